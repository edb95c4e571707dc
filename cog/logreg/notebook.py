"""The protocol in a notebook, with results equal bit for bit to those of ``logreg.py``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from cog import config, constants
from cog.errors import CogError
from cog.features import feature_files
from cog.features.extract import OWN_NETWORK, extract_features
from cog.features.feature_files import FeatureSet
from cog.logreg.engine import Engine
from cog.logreg.protocol import run_protocol
from cog.logreg.run_files import counts_per_class
from cog.logreg.settings import Settings, from_config, keys
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
        train: training images as for :func:`cog.extract_features`, or features: a ``FeatureSet``, or the path
            of an ``X_Y.pth``.
        test: test images or features, of the same classes.
        n_shot: number of training images per class, or several such numbers; 0 or ``"all"``: all images.
        seeds: seed of the run, or seeds of several runs, which are trained in lockstep.
        dataset: name of the data in the table.
        device: value of ``--device``; None: CUDA when there is a GPU, else the CPU.
        n_workers: decoding workers of the extraction.
        opts: ``[KEY, VALUE, ...]`` of its configuration.
        **settings: other fields of :class:`cog.logreg.settings.Settings`, such as ``n_trials``.

    Returns:
        The long table of :mod:`cog.results.frame`: top-1 and top-5 accuracy of each run, in percent.
    """
    shots = [0 if isinstance(n, str) and n == "all" else n for n in _several(n_shot)]
    several = [[_settings(settings, opts, seed, n) for seed in _several(seeds)] for n in shots]
    if not several or not several[0]:
        raise CogError("evaluate() without seeds, or without n_shot: give one or several numbers")
    first, how = several[0][0], {"device": device, "n_workers": n_workers, "opts": opts}
    on_train, on_test = (_features(backbone, images, first.normalize, how) for images in (train, test))
    engine = Engine(resolve_device(device), first.precision)
    data = engine.prepare(on_train, on_test, first, n_seeds=len(several[0]))
    evaluation = f"{first.classifier}_max{first.max_per_class}" if first.max_per_class else first.classifier
    model = on_train.name if backbone is None else str(getattr(backbone, "name", OWN_NETWORK))
    n_test, classes = len(data.test_y), on_train.class_list
    of_all: dict[str, Any] = {"source": frame.RUNS, "model": model, "dataset": dataset}
    of_all["evaluation"] = evaluation
    data_with = functools.partial(data_of, dataset, n_classes=data.n_classes, n_test=n_test, classes=classes)
    rows, most = [], data.together.seeds
    for group in (runs[i : i + most] for runs in several for i in range(0, len(runs), most)):
        for run, result in zip(group, run_protocol(data, group, engine), strict=True):
            top1, top5 = (result.logs[f"test/{metric}"][-1] for metric in ("top1", "top5"))
            per_class = counts_per_class(result.predictions, data.test_y, data.n_classes, top1=top1)
            correct = concept_counts.read(per_class, n_classes=data.n_classes, top1=top1)
            of_run = files.plain(dataclasses.asdict(run))
            protocol = unlike_protocol(of_run, evaluation, diverged=result.diverged)
            row = {"n_shot": run.n_shot, "seed": run.seed, "images": n_test, "classes": classes}
            row |= {"protocol": protocol, "data": data_with(n_train=None if run.n_shot else len(on_train))}
            rows.append(of_all | row | {"metric": "top1", "value": top1, "correct": correct})
            rows.append(of_all | row | {"metric": "top5", "value": top5})
    return frame.scores_of(rows)


def _several(given: Any) -> list[Any]:
    """Return one or several values as a list, each once."""
    values = [given] if isinstance(given, str) or np.ndim(given) == 0 else list(given)
    return list(dict.fromkeys(values))


def _settings(given: Mapping[str, Any], opts: Sequence[object], seed: Any, n_shot: Any) -> Settings:
    """Return the settings of a configuration with the given values, which checks them."""
    words, others = [*map(str, opts)], dict(given)
    if not all(key.startswith("FT_EXTRACT.") for key in words[::2]):
        raise CogError(f"opts = {words} are those of the extraction; give settings by name (n_trials=10)")
    momentum = others.pop("momentum", 0.9)
    named = {f"CLF.{keys().get(name, name.upper())}": value for name, value in others.items()}
    named |= {"EVAL.SEED": seed, "CLF.N_SHOT": n_shot}
    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in named.items()}
    cfg = config.get_cfg(opts=words, entry_values=values, entry_source="evaluate()")
    return from_config(cfg, seed=cfg.EVAL.SEED, momentum=momentum)


def _features(backbone: nn.Module | None, images: Any, normalize: bool, how: dict[str, Any]) -> FeatureSet:
    """Return the checked features of images or of a file, normalized or not."""
    if isinstance(images, FeatureSet):
        x = images.x.float().clone()
        feature_files.check_and_normalize_(x, images.name, normalize=normalize)
        return FeatureSet(x, images.y, images.name, class_list=images.class_list)
    if str(images).endswith(".pth"):
        return feature_files.load(images, normalize=normalize)
    if backbone is None or isinstance(backbone, str):
        raise CogError(f"{images} needs a network (cog.load_backbone), not {backbone}; or give features")
    return extract_features(backbone, images, normalize=normalize, **how)
