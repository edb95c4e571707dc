"""The protocol in a notebook, with results equal bit for bit to those of ``logreg.py``."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cog import config, constants
from cog.config import variant_name
from cog.errors import CogError
from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.features.folder import FeatureFolder, with_class_list
from cog.features.notebook import OWN_NETWORK, extract_features, words_of
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.protocol import run_protocol
from cog.logreg.run_folder import counts_per_class
from cog.logreg.settings import FLAGS, KEYS, Settings, from_config
from cog.results import concept_counts
from cog.results.scores import Counts, Score
from cog.runtime.device import exact_float32, resolve_device


def evaluate(
    backbone: nn.Module | None,
    train: Any,
    test: Any,
    *,
    n_shots: int | str | Sequence[int | str] = 0,
    seeds: int | Sequence[int] = constants.SEEDS,
    dataset: str = "images",
    device: str | None = None,
    n_workers: int = 0,
    opts: Sequence[object] = (),
    **settings: Any,
) -> list[Score]:
    """Run the protocol on the features of a network, once per seed and number of shots.

    Args:
        backbone: network as for :func:`cog.extract_features`; None when ``train`` and ``test`` are features.
        train: training images as for :func:`cog.extract_features`, or their features (a ``FeatureSet``, or the path of
            an ``X_Y.pth``).
        test: test images or features, of the same classes.
        n_shots: number of training images per class, or several such numbers; 0 or ``"all"``: all images.
        seeds: seed of the run, or seeds of several runs.
        dataset: name of the data in the scores.
        device: value of ``--device``; None: CUDA when there is a GPU, else the CPU.
        n_workers: decoding threads.
        opts: ``[KEY, VALUE, ...]`` of the configuration of the extraction.
        **settings: other fields of :class:`cog.logreg.settings.Settings`, such as ``n_trials``; their defaults are
            those of the classifier, as in the configuration.

    Returns:
        Top-1 and top-5 accuracies of each run, in percent; :func:`cog.results.scores.average` returns their means,
        :func:`cog.results.uncertainty.accuracy` the intervals from the ``concepts`` of a mean.

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
    shots, seeds = _whole_numbers("n_shots", n_shots), _whole_numbers("seeds", seeds)
    first = _settings(settings, words)
    how = {"device": device, "n_workers": n_workers, "opts": opts}
    normalize = first.normalizes_features
    features = [_features(backbone, images, normalize=normalize, **how) for images in (train, test)]
    if backbone is not None:
        model = str(getattr(backbone, "name", OWN_NETWORK))
    else:
        model = _described(train).get("model") or features[0].name
    engine = Engine(resolve_device(device), first.precision)
    class_lists = tuple(sorted({part.class_list for part in features if part.class_list is not None}))
    data = prepare(features[0], features[1], engine, first)
    evaluation = variant_name(first.classifier, pca_dim=first.pca_dim, max_per_class=first.max_per_class)
    scores = []
    for n_shot in shots:
        for seed in seeds:
            run = dataclasses.replace(first, seed=seed, n_shot=n_shot)
            with exact_float32():
                result = run_protocol(data, run, engine)
            trained, rows, n_classes = result.classifier, result.rows, len(data.labels)
            logs, predictions = trained.logs, trained.predictions
            assert logs is not None and predictions is not None
            top1, top5 = (logs[f"test/{metric}"][-1] for metric in ("top1", "top5"))
            n_train = () if n_shot else (rows.final_train,)
            counts = Counts((n_classes,), n_train, (rows.test,), class_lists)
            per_class = counts_per_class(predictions, data.test_y, n_classes, top1=top1)
            concepts = concept_counts.read(per_class, n_classes=n_classes, top1=top1)
            place = model, dataset, evaluation, n_shot
            scores.append(Score(*place, "top1", top1, seed, counts=counts, concepts=concepts))
            scores.append(Score(*place, "top5", top5, seed, counts=counts))
    return scores


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


def _whole_numbers(name: str, given: Any) -> tuple[int, ...]:
    """Return one or several whole numbers, which must differ; among numbers of shots, ``"all"`` is 0."""
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if name == "n_shots":
        several = [0 if isinstance(number, str) and number == "all" else number for number in several]
    if not several:
        raise CogError(f"{name} is empty: there is nothing to do")
    for number in several:
        is_whole = isinstance(number, numbers.Integral) and not isinstance(number, bool)
        if not is_whole or not 0 <= number < 2**32:
            also = ', 0 or "all" for all images' if name == "n_shots" else ""
            raise CogError(f"{name} {number!r}: expected whole numbers from 0 to 4294967295{also}")
    if len(set(several)) < len(several):
        raise CogError(f"{name} has a value twice: {', '.join(map(str, several))}")
    return tuple(map(int, several))


def _described(images: Any) -> dict[str, Any]:
    """Return the contents of features.json beside a file of features; empty for other forms, and without the file."""
    is_file = not isinstance(images, FeatureSet) and str(images).endswith(".pth")
    return (FeatureFolder(Path(images).parent).metadata() or {}) if is_file else {}


def _features(backbone: nn.Module | None, images: Any, *, normalize: bool, **how: Any) -> FeatureSet:
    """Return the checked features of images or of a file, normalized or not, in memory that may be rewritten."""
    if isinstance(images, FeatureSet):
        x = images.x.float().clone()
        feature_files.check_and_normalize_(x, images.name, normalize=normalize)
        return FeatureSet(x, images.y, images.name, class_list=images.class_list)
    if str(images).endswith(".pth"):
        return with_class_list(feature_files.load(images, normalize=normalize), Path(images))
    if backbone is None:
        raise CogError(f"{images!r}: evaluate() has no backbone for these images; give one, or give features")
    return extract_features(backbone, images, normalize=normalize, **how)
