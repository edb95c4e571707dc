"""Estimates of the durations of a model's experiments on each data set, made before any features are read.

The estimates of classifiers and analyses count matrix products, whose rate is measured for a moment on the device. The
estimate of fine-tuning counts images, whose rate is that of the extraction of the features on such a device.
No result depends on these estimates.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cog import config, constants
from cog.analysis import registry
from cog.features.folder import FeatureFolder
from cog.logreg.run_folder import RESULTS_FILE, RunFolder
from cog.logreg.settings import Settings
from cog.paths import ModelDir, analysis_folder
from cog.runtime.json_fields import number, text, whole

#: Assumed rate of training as a share of that of large matrix products; gathering rows and scoring take the rest.
_EFFICIENCY = 0.5

#: Time of an image in training, relative to extraction: the backward pass takes twice as long as the forward pass.
_TRAINING_FACTOR = 3.0

#: Time of a repetition of k-means, in products of all training rows with all centers: about 60 iterations, in which
#: bounds make most distances unnecessary, and the starting centers (tests/benchmarks/bench_analysis.py).
#: Features without clusters take several times as long.
_KMEANS_PRODUCTS = 29

#: Time of products in float64, which nearest class means use, relative to those in float32.
_FLOAT64 = 2.0

_PROBE_SECONDS = 0.2
_PROBE_SIZE = 1024

_NO_SIZE = "no estimate: the size of the features is in no features.json"
_NO_RATE = "no estimate: the speed of the network on such a device is in no features.json"
_NO_PRODUCTS = "no estimate: it works on saved predictions"


@dataclass(frozen=True)
class FeatureFacts:
    """The contents of ``features.json`` of both splits of a data set.

    Attributes:
        n_train: number of training images.
        n_test: number of test images.
        n_classes: number of classes, C.
        dim: width of the features.
        images_per_second: rate of the extraction by one process; None when unknown.
        device: name of the device of the extraction; None when unknown.
    """

    n_train: int
    n_test: int
    n_classes: int
    dim: int
    images_per_second: float | None
    device: str | None


def read_features(model: ModelDir, dataset: str) -> FeatureFacts | None:
    """Return the contents of ``features.json`` of both splits of a data set; None when a size is missing."""
    train, test = (
        FeatureFolder(model.features(dataset, split)).metadata() or {} for split in constants.SPLITS
    )
    n_train, n_test = whole(train.get("n_images")), whole(test.get("n_images"))
    n_classes, dim = whole(train.get("n_classes")), whole(train.get("feature_dim"))
    if not (n_train and n_test and n_classes and dim):
        return None
    rate, device = number(train.get("images_per_second")), text(train.get("device"))
    return FeatureFacts(n_train, n_test, n_classes, dim, rate, device)


def classifier_experiments(args: argparse.Namespace) -> Iterator[tuple[str, list[str], list[int]]]:
    """Yield name, ``KEY VALUE`` pairs and numbers of shots of each experiment that trains classifiers."""
    yield "logreg", [], [0]
    yield "fewshot", [], args.shots
    for dim in args.dims:
        yield f"pca{dim}", ["CLF.PCA_DIM", str(dim)], [0]
    yield "balanced", ["CLF.MAX_PER_CLASS", str(args.max_per_class)], [0]
    for kind in ("mlp", "mlp_noact"):
        yield kind, ["CLF.TYPE", kind], [0]


def training_flops(clf: Any, n_shot: int, facts: FeatureFacts) -> float:
    """Return the floating-point operations of a classifier run.

    Args:
        clf: the section CLF of the configuration.
        n_shot: number of training images per class, 0 = all.
        facts: the features.
    """
    from cog.logreg import estimate

    per_class = max(1, min(facts.n_train // facts.n_classes, clf.MAX_PER_CLASS or facts.n_train))
    fixed = None if clf.N_TRIALS else 1.0
    settings = Settings(
        seed=0, n_shot=n_shot, n_trials=clf.N_TRIALS, n_epochs=clf.N_EPOCHS, classifier=clf.TYPE,
        mlp_hidden=clf.MLP_HIDDEN, mlp_layers=clf.MLP_LAYERS, val_frac=clf.VAL_PERC, lr=fixed, wd=fixed,
    )  # fmt: skip
    rows = estimate.rows_of([per_class] * facts.n_classes, settings, facts.n_test)
    dim = clf.PCA_DIM or facts.dim
    return estimate.estimate_flops(rows, settings, dim=dim, n_classes=facts.n_classes)


def label_free_flops(name: str, facts: FeatureFacts, options: Any) -> float:
    """Return the floating-point operations of the matrix products in an analysis of ``--analysis all``.

    Args:
        name: name of the analysis.
        facts: the features.
        options: the section ANALYSIS of the configuration.
    """
    k = options.KMEANS_K or facts.n_classes
    return {
        "kmeans": 2.0 * facts.dim * facts.n_train * k * _KMEANS_PRODUCTS * len(options.KMEANS_SEEDS),
        "alignment": 1.0 * facts.dim * facts.n_test * facts.n_test,
        "knn": 2.0 * facts.dim * facts.n_train * facts.n_test,
        "ncm": _FLOAT64 * 2 * 2.0 * facts.dim * facts.n_test * facts.n_classes,
    }[name]


def measure_rate(name: str | None) -> float:
    """Return the floating-point operations per second of large matrix products on a device."""
    import torch

    from cog.runtime.device import resolve_device

    device = resolve_device(name)
    matrix = torch.rand(_PROBE_SIZE, _PROBE_SIZE, device=device)

    def multiply(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            product = matrix @ matrix
        float(product[0, 0])  # reading a value waits for the device
        return time.perf_counter() - start

    multiply(1)
    times = max(1, min(1000, int(_PROBE_SECONDS / multiply(1))))
    return 2.0 * _PROBE_SIZE**3 * times / min(multiply(times) for _ in range(3))


class StepTimes:
    """Expected durations of the experiments of a model: seconds, or as text the reason why there is no estimate.

    Args:
        args: the flags of the command.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._model = ModelDir(args.models_root_dir, args.model)
        self._features = {dataset: read_features(self._model, dataset) for dataset in args.datasets}

    @functools.cached_property
    def _rate(self) -> float:
        return measure_rate(self._args.device)

    def all(self) -> Iterator[tuple[str, dict[str, float | str]]]:
        """Yield each experiment with its durations by data set."""
        for name, opts, shots in classifier_experiments(self._args):
            yield name, self._each(functools.partial(self._classifiers, opts, shots))
        yield "label_free", self._each(self._label_free)
        times = self._each(self._cross)
        times.pop(self._args.trained_on, None)
        yield "cross", times
        for name in ("distance", "subtrees", "winners"):
            yield name, dict.fromkeys(self._features, _NO_PRODUCTS)
        yield "finetune", self._each(self._finetune)

    def _each(self, estimate: Callable[[str, FeatureFacts], float | str]) -> dict[str, float | str]:
        """Return the durations of an experiment by data set."""
        return {
            dataset: _NO_SIZE if facts is None else estimate(dataset, facts)
            for dataset, facts in self._features.items()
        }

    def _config(self, *opts: str) -> Any:
        return config.get_cfg(
            model_name=self._args.model, config_file=self._args.config, opts=[*self._args.opts, *opts]
        )

    def _n_left(self, dataset: str, evaluation: str, n_shot: int, seeds: Sequence[int]) -> int:
        """Return the number of runs that are not done."""
        folders = (self._model.run(dataset, name=evaluation, n_shot=n_shot, seed=seed) for seed in seeds)
        return sum(not RunFolder(folder).is_complete() for folder in folders)

    def _is_done(self, dataset: str, analysis: str) -> bool:
        return (self._model.path / dataset / analysis_folder(analysis) / RESULTS_FILE).is_file()

    def _classifiers(self, opts: list[str], shots: list[int], dataset: str, facts: FeatureFacts) -> float:
        cfg = self._config(*opts)
        evaluation = config.evaluation_name(cfg)
        n_flops = sum(
            self._n_left(dataset, evaluation, n_shot, self._args.seeds)
            * training_flops(cfg.CLF, n_shot, facts)
            for n_shot in shots
        )
        return n_flops / (self._rate * _EFFICIENCY)

    def _label_free(self, dataset: str, facts: FeatureFacts) -> float:
        options = self._config().ANALYSIS
        names = [analysis.name for analysis in registry.get([registry.ALL])]
        left = [name for name in names if not self._is_done(dataset, name)]
        return sum(label_free_flops(name, facts, options) for name in left) / self._rate

    def _cross(self, dataset: str, facts: FeatureFacts) -> float | str:
        trained_on = self._args.trained_on
        trained = self._features.get(trained_on)
        if trained is None:
            return _NO_SIZE
        if self._is_done(dataset, f"cross_{trained_on}"):
            return 0.0
        n_rows = (facts.n_test + trained.n_test) * len(self._args.seeds)
        return 2.0 * facts.dim * n_rows * trained.n_classes / self._rate

    def _finetune(self, dataset: str, facts: FeatureFacts) -> float | str:
        from cog.runtime.device import device_name, resolve_device

        device = resolve_device(self._args.device)
        if not facts.images_per_second or facts.device != device_name(device):
            return _NO_RATE
        n_left = self._n_left(dataset, config.FINETUNE, 0, self._args.finetune_seeds)
        # On a CPU, more processes share the same cores and are not faster.
        n_processes = self._args.n_processes if device.type == "cuda" else 1
        per_epoch = _TRAINING_FACTOR * facts.n_train + facts.n_test
        n_images = n_left * self._config().FINETUNE.N_EPOCHS * per_epoch
        return n_images / (facts.images_per_second * n_processes)
