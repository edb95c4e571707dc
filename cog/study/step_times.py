"""Estimates of the durations of a model's experiments on each data set, made before any features are read.

The estimates of classifiers and analyses count matrix products, whose rate is measured for a moment on the device. The
estimate of fine-tuning counts images, whose rate is that of the extraction of the features on such a device.
No result depends on these estimates.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cog import config, constants
from cog.analysis import registry
from cog.analysis.estimate import FeatureSizes, classifier_flops, label_free_flops
from cog.features.folder import FeatureFolder
from cog.logreg.run_folder import RESULTS_FILE, RunFolder
from cog.logreg.settings import Settings
from cog.paths import ModelDir, analysis_folder
from cog.runtime.json_fields import number, text, whole

#: Assumed rate of training as a share of that of large matrix products; gathering rows and scoring take the rest.
_EFFICIENCY = 0.5

#: Time of an image in training, relative to extraction: the backward pass takes twice as long as the forward pass.
_TRAINING_FACTOR = 3.0

_PROBE_SECONDS = 0.2
_PROBE_SIZE = 1024

_NO_SIZE = "no estimate: the size of the features is in no features.json"
_NO_RATE = "no estimate: the speed of the network on such a device is in no features.json"
_NO_PRODUCTS = "no estimate: it works on saved predictions"


@dataclass(frozen=True)
class DatasetFeatures:
    """The contents of ``features.json`` of both splits of a data set; a value that the file lacks is None.

    Attributes:
        sizes: sizes of the features.
        images_per_second: rate of the extraction by one process.
        device: name of the device of the extraction.
    """

    sizes: FeatureSizes | None
    images_per_second: float | None
    device: str | None


def classifier_experiments(args: argparse.Namespace) -> Iterator[tuple[str, list[str], list[int]]]:
    """Yield name, ``KEY VALUE`` pairs and numbers of shots of each experiment that trains classifiers."""
    yield "logreg", [], [0]
    yield "fewshot", [], args.shots
    for dim in args.dims:
        yield f"pca{dim}", ["CLF.PCA_DIM", str(dim)], [0]
    yield "balanced", ["CLF.MAX_PER_CLASS", str(args.max_per_class)], [0]
    for kind in ("mlp", "mlp_noact"):
        yield kind, ["CLF.TYPE", kind], [0]


def classifier_training_flops(cfg: Any, n_runs: dict[int, int], sizes: FeatureSizes) -> float:
    """Return the floating-point operations of classifier runs.

    Args:
        cfg: the configuration.
        n_runs: number of runs by number of training images per class, 0 = all.
        sizes: sizes of the features.
    """
    from cog.logreg import estimate

    clf, n_classes = cfg.CLF, sizes.n_classes
    per_class = max(1, min(sizes.n_train // n_classes, clf.MAX_PER_CLASS or sizes.n_train))
    total = 0.0
    for n_shot, n in n_runs.items():
        fixed = None if clf.N_TRIALS else 1.0
        settings = Settings(
            seed=0, n_shot=n_shot, n_trials=clf.N_TRIALS, n_epochs=clf.N_EPOCHS, classifier=clf.TYPE,
            mlp_hidden=clf.MLP_HIDDEN, mlp_layers=clf.MLP_LAYERS, val_frac=clf.VAL_PERC, lr=fixed, wd=fixed,
        )  # fmt: skip
        rows = estimate.rows_of([per_class] * n_classes, settings, sizes.n_test)
        total += n * estimate.estimate_flops(
            rows, settings, dim=clf.PCA_DIM or sizes.dim, n_classes=n_classes
        )
    return total


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


def read_features(model: ModelDir, dataset: str) -> DatasetFeatures:
    """Return the contents of ``features.json`` of both splits of a data set."""
    train, test = (
        FeatureFolder(model.features(dataset, split)).metadata() or {} for split in constants.SPLITS
    )
    numbers = [whole(train.get("n_images")), whole(test.get("n_images"))]
    numbers += [whole(train.get(key)) for key in ("n_classes", "feature_dim")]
    sizes = FeatureSizes(*(n or 0 for n in numbers)) if all(numbers) else None
    return DatasetFeatures(sizes, number(train.get("images_per_second")), text(train.get("device")))


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
            yield name, {dataset: self._classifiers(dataset, opts, shots) for dataset in self._features}
        yield "label_free", {dataset: self._label_free(dataset) for dataset in self._features}
        others = [dataset for dataset in self._features if dataset != self._args.trained_on]
        yield "cross", {dataset: self._cross(dataset) for dataset in others}
        for name in ("distance", "subtrees", "winners"):
            yield name, dict.fromkeys(self._features, _NO_PRODUCTS)
        yield "finetune", {dataset: self._finetune(dataset) for dataset in self._features}

    def _config(self, *opts: str) -> Any:
        return config.get_cfg(
            model_name=self._args.model, config_file=self._args.config, opts=[*self._args.opts, *opts]
        )

    def _n_left(self, dataset: str, evaluation: str, n_shot: int, seeds: Sequence[int]) -> int:
        """Return the number of runs that are not done."""
        folders = (self._model.run(dataset, name=evaluation, n_shot=n_shot, seed=seed) for seed in seeds)
        return sum(not RunFolder(folder).is_complete() for folder in folders)

    def _classifiers(self, dataset: str, opts: list[str], shots: list[int]) -> float | str:
        sizes = self._features[dataset].sizes
        if sizes is None:
            return _NO_SIZE
        cfg = self._config(*opts)
        evaluation = config.evaluation_name(cfg)
        n_runs = {n: self._n_left(dataset, evaluation, n, self._args.seeds) for n in shots}
        return classifier_training_flops(cfg, n_runs, sizes) / (self._rate * _EFFICIENCY)

    def _label_free(self, dataset: str) -> float | str:
        sizes = self._features[dataset].sizes
        if sizes is None:
            return _NO_SIZE
        options = self._config().ANALYSIS
        names = [analysis.name for analysis in registry.get([registry.ALL])]
        folder = self._model.path / dataset
        left = [name for name in names if not (folder / analysis_folder(name) / RESULTS_FILE).is_file()]
        return sum(label_free_flops(name, sizes, options) for name in left) / self._rate

    def _cross(self, dataset: str) -> float | str:
        trained_on = self._args.trained_on
        if trained_on not in self._features:
            return _NO_SIZE
        trained, sizes = self._features[trained_on].sizes, self._features[dataset].sizes
        if trained is None or sizes is None:
            return _NO_SIZE
        done = self._model.path / dataset / analysis_folder(f"cross_{trained_on}") / RESULTS_FILE
        if done.is_file():
            return 0.0
        n_rows = sizes.n_test + trained.n_test
        return classifier_flops(n_rows, trained.n_classes, sizes.dim, len(self._args.seeds)) / self._rate

    def _finetune(self, dataset: str) -> float | str:
        from cog.runtime.device import device_name, resolve_device

        features, device = self._features[dataset], resolve_device(self._args.device)
        if features.sizes is None:
            return _NO_SIZE
        if not features.images_per_second or features.device != device_name(device):
            return _NO_RATE
        n_left = self._n_left(dataset, config.FINETUNE, 0, self._args.finetune_seeds)
        # On a CPU, more processes share the same cores and are not faster.
        n_processes = self._args.n_processes if device.type == "cuda" else 1
        per_epoch = _TRAINING_FACTOR * features.sizes.n_train + features.sizes.n_test
        n_images = n_left * self._config().FINETUNE.N_EPOCHS * per_epoch
        return n_images / (features.images_per_second * n_processes)
