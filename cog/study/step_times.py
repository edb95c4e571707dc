"""How long the steps of ``experiments.sh`` take, before anything is read: ``python -m cog.commands.step_times``.

Prints a line ``<experiment> <data set> <seconds> <duration>`` for each classifier experiment whose features tell
their size (``features.json``): for the runs that are not done. The matrix products of the protocol are counted, and
their rate is measured for a moment on the device. No result depends on it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cog import config, constants
from cog.features.folder import FeatureFolder
from cog.logreg.run_folder import RunFolder
from cog.logreg.settings import Settings
from cog.paths import ModelDir
from cog.runtime import cli as cli_tools
from cog.runtime.json_fields import whole
from cog.runtime.progress import duration

#: Of the rate of large matrix products, what training is taken to reach: the rest goes into gathering rows and scoring.
_EFFICIENCY = 0.5

_PROBE_SECONDS = 0.2
_PROBE_SIZE = 1024


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags; touches no file."""
    parser = cli_tools.Parser(__doc__ or "")
    for flag in ("models_root_dir", "model"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--device")
    parser.add_argument("--config")
    parser.add_argument("--datasets", nargs="+", required=True)
    for flag in ("seeds", "shots", "dims"):
        parser.add_argument(f"--{flag}", nargs="+", type=cli_tools.whole_number(0), default=[])
    parser.add_argument("--max_per_class", type=cli_tools.whole_number(0), default=0)
    return parser.parse_args(argv)


def experiments(args: argparse.Namespace) -> Iterator[tuple[str, list[str], list[int]]]:
    """Yield name, configuration and shots of each experiment."""
    yield "logreg", [], [0]
    yield "fewshot", [], args.shots
    for dim in args.dims:
        yield f"pca{dim}", ["CLF.PCA_DIM", str(dim)], [0]
    yield "balanced", ["CLF.MAX_PER_CLASS", str(args.max_per_class)], [0]
    for kind in ("mlp", "mlp_noact"):
        yield kind, ["CLF.TYPE", kind], [0]


def flops(cfg: Any, n_runs: dict[int, int], train: dict[str, Any], test: dict[str, Any]) -> float | None:
    """Return the floating-point operations of runs; None where the features do not tell their size.

    Args:
        cfg: the configuration.
        n_runs: number of runs by their training images per class.
        train: content of ``features.json`` of the training split.
        test: the same of the test split.
    """
    from cog.logreg import estimate

    sizes = [whole(train.get(key)) for key in ("n_images", "n_classes", "feature_dim")]
    n_test = whole(test.get("n_images"))
    if not all(sizes) or not n_test:
        return None
    n_train, n_classes, dim = (size or 0 for size in sizes)
    clf = cfg.CLF
    per_class = max(1, min(n_train // n_classes, clf.MAX_PER_CLASS or n_train))
    total = 0.0
    for n_shot, n in n_runs.items():
        fixed = None if clf.N_TRIALS else 1.0
        settings = Settings(
            seed=0, n_shot=n_shot, n_trials=clf.N_TRIALS, n_epochs=clf.N_EPOCHS, classifier=clf.TYPE,
            mlp_hidden=clf.MLP_HIDDEN, mlp_layers=clf.MLP_LAYERS, val_frac=clf.VAL_PERC, lr=fixed, wd=fixed,
        )  # fmt: skip
        rows = estimate.rows_of([per_class] * n_classes, settings, n_test)
        total += n * estimate.estimate_flops(rows, settings, dim=clf.PCA_DIM or dim, n_classes=n_classes)
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
        float(product[0, 0])  # waits for the device
        return time.perf_counter() - start

    multiply(1)
    times = max(1, min(1000, int(_PROBE_SECONDS / multiply(1))))
    return 2.0 * _PROBE_SIZE**3 * times / min(multiply(times) for _ in range(3))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines; returns the exit code."""
    args = parse_args(argv)
    model = ModelDir(args.models_root_dir, args.model)
    rate = 0.0
    for dataset in args.datasets:
        train, test = (
            FeatureFolder(model.features(dataset, split)).metadata() or {} for split in constants.SPLITS
        )
        for name, opts, shots in experiments(args):
            cfg = config.get_cfg(model_name=args.model, config_file=args.config, opts=[*args.opts, *opts])
            evaluation = config.evaluation_name(cfg)
            n_runs = {
                n_shot: sum(
                    not RunFolder(model.run(dataset, name=evaluation, n_shot=n_shot, seed=seed)).is_complete()
                    for seed in args.seeds
                )
                for n_shot in shots
            }
            work = flops(cfg, n_runs, train, test)
            if work is None:
                break
            rate = rate or measure_rate(args.device)
            seconds = work / (rate * _EFFICIENCY)
            sys.stdout.write(f"{name} {dataset} {seconds:.0f} {duration(seconds)}\n")
    return 0


if __name__ == "__main__":
    cli_tools.run(main)
