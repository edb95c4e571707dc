"""The protocol in a notebook, with results equal bit for bit to those of ``logreg.py``."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from cog import config, constants
from cog.config import variant_name
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.notebook import OWN_NETWORK, extract_features, words_of
from cog.logreg.engine import Engine
from cog.logreg.protocol import run_protocol
from cog.logreg.run_files import counts_per_class
from cog.logreg.settings import FLAGS, KEYS, Settings, from_config
from cog.results import concept_counts, frame
from cog.results.benchmark import data_of, unlike_protocol
from cog.runtime import files
from cog.runtime.device import resolve_device

if TYPE_CHECKING:
    import pandas as pd


def evaluate(
    backbone: nn.Module | None,
    train: Any,
    test: Any,
    *,
    n_shot: int | str | Sequence[int | str] = 0,
    seeds: int | Sequence[int] = constants.SEEDS,
    dataset: str = "images",
    device: str | None = None,
    n_workers: int = 0,
    opts: Sequence[object] = (),
    **settings: Any,
) -> pd.DataFrame:
    """Run the protocol on the features of a network, once per seed and number of shots.

    Args:
        backbone: network as for :func:`cog.extract_features`; None when ``train`` and ``test`` are features.
        train: training images as for :func:`cog.extract_features`, or their features (a ``FeatureSet``, or the path of
            an ``X_Y.pth``).
        test: test images or features, of the same classes.
        n_shot: number of training images per class, or several such numbers; 0 or ``"all"``: all images.
        seeds: seed of the run, or seeds of several runs, which are trained in lockstep.
        dataset: name of the data in the table.
        device: value of ``--device``; None: CUDA when there is a GPU, else the CPU.
        n_workers: decoding workers.
        opts: ``[KEY, VALUE, ...]`` of the configuration of the extraction.
        **settings: other fields of :class:`cog.logreg.settings.Settings`, such as ``n_trials``; their defaults are
            those of the classifier, as in the configuration.

    Returns:
        The long table of :mod:`cog.results.frame`: top-1 and top-5 accuracy of each run, in percent.
        :func:`cog.results.frame.average` returns the means over seeds, with intervals.

    Raises:
        CogError: an unknown setting, a value out of range; see also :func:`cog.extract_features` and
            :func:`cog.logreg.protocol.run_protocol`.
    """
    words = words_of(opts)
    for key in words[::2]:
        if not key.startswith("FT_EXTRACT."):
            raise CogError(
                f"{key} in opts: they are those of the extraction; give settings by name (n_trials=10)"
            )
    known = {field.name for field in dataclasses.fields(Settings)} - {"seed", "n_shot"}
    for name in settings.keys() - known:
        raise CogError(f"{name} is not a setting of evaluate(), expected one of {', '.join(sorted(known))}")
    shots, seeds = _whole_numbers("n_shot", n_shot), _whole_numbers("seeds", seeds)
    first = _settings(settings, words)
    how: dict[str, Any] = {
        "device": device,
        "n_workers": n_workers,
        "opts": opts,
        "normalize": first.normalize,
    }
    features = [_features(backbone, images, **how) for images in (train, test)]
    model = (
        str(getattr(backbone, "name", OWN_NETWORK)) if backbone is not None else _model_of(train, features[0])
    )
    engine = Engine(resolve_device(device), first.precision)
    data = engine.prepare(features[0], features[1], first, n_seeds=len(seeds))
    evaluation = variant_name(first.classifier, max_per_class=first.max_per_class)
    rows = []
    for n in shots:
        for start in range(0, len(seeds), data.together.seeds):
            part = seeds[start : start + data.together.seeds]
            group = [dataclasses.replace(first, seed=seed, n_shot=n) for seed in part]
            for run, result in zip(group, run_protocol(data, group, engine), strict=True):
                logs, predictions = result.classifier.logs, result.classifier.predictions
                assert logs is not None and predictions is not None
                top1, top5 = (logs[f"test/{metric}"][-1] for metric in ("top1", "top5"))
                counts = {"n_classes": data.n_classes, "n_test": result.rows["test"]}
                n_train, classes = (None if n else result.rows["final_train"]), features[0].class_list
                per_class = counts_per_class(predictions, data.test_y, data.n_classes, top1=top1)
                row = {
                    "source": frame.RUNS,
                    "model": model,
                    "dataset": dataset,
                    "evaluation": evaluation,
                    "n_shot": n,
                    "seed": run.seed,
                    "images": result.rows["test"],
                    "data": data_of(dataset, n_train=n_train, classes=classes, **counts),
                    "classes": classes,
                    "protocol": unlike_protocol(dataclasses.asdict(run), evaluation),
                }
                correct = concept_counts.read(per_class, n_classes=data.n_classes, top1=top1)
                rows.append(row | {"metric": "top1", "value": top1, "correct": correct})
                rows.append(row | {"metric": "top5", "value": top5})
    return frame.scores_of(rows)


def _settings(given: Mapping[str, Any], opts: Sequence[str]) -> Settings:
    """Return the settings of a configuration with the given values, which checks them and knows the other defaults.

    Raises:
        CogError: see :func:`cog.config.get_cfg` and :class:`Settings`.
    """
    keys = {field.name: KEYS.get(field.name, field.name.upper()) for field in dataclasses.fields(Settings)}
    plain = {name: v.item() if isinstance(v, np.generic) else v for name, v in given.items()}
    others = {name: plain.pop(name) for name in FLAGS if name in plain}
    values = {f"CLF.{keys[name]}": value for name, value in plain.items()}
    cfg = config.get_cfg(opts=opts, entry_values=values, entry_source="evaluate()")
    return from_config(cfg, seed=0, **others)


def _whole_numbers(name: str, given: Any) -> list[int]:
    """Return one or several whole numbers, which must differ; among numbers of shots, ``"all"`` is 0."""
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if name == "n_shot":
        several = [0 if isinstance(number, str) and number == "all" else number for number in several]
    are_whole = (
        isinstance(n, numbers.Integral) and not isinstance(n, bool) and 0 <= int(n) < 2**32 for n in several
    )
    if not all(are_whole) or not 0 < len(several) == len(set(several)):
        also = ', 0 or "all" for all images' if name == "n_shot" else ""
        raise CogError(
            f"{name} = {given!r}: expected one or several different whole numbers from 0 to 4294967295{also}"
        )
    return list(map(int, several))


def _model_of(train: Any, features: FeatureSet) -> str:
    """Return the name of the model of a file of features; the name of the features if it is not recorded."""
    record = None if isinstance(train, FeatureSet) else Path(train).parent / "features.json"
    described = files.read_object(record) if record is not None and record.is_file() else {}
    identity = described.get("identity")
    named = (identity if isinstance(identity, dict) else described).get("model")
    return str(named or features.name)


def _features(backbone: nn.Module | None, images: Any, *, normalize: bool, **how: Any) -> FeatureSet:
    """Return the checked features of images or of a file, normalized or not."""
    if isinstance(images, FeatureSet):
        x = images.x.float().clone()
        feature_files.check_and_normalize_(x, images.name, normalize=normalize)
        return FeatureSet(x, images.y, images.name, class_list=images.class_list)
    if str(images).endswith(".pth"):
        return feature_files.load(images, normalize=normalize)
    if backbone is None:
        raise CogError(f"{images!r}: evaluate() has no backbone for these images; give one, or give features")
    return extract_features(backbone, images, normalize=normalize, **how)
