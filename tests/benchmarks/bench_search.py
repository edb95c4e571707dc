"""How good are the modes of search? Best validation accuracy and final test accuracy over many seeds.

    python tests/benchmarks/bench_search.py                           synthetic features: 100 classes, not saturated
    python tests/benchmarks/bench_search.py --features DIR --n_shot 2 all data sets below DIR, pooled into one

``DIR`` is what extract_features.py fills, such as ``<models_root_dir>/<model_title>/<architecture_name>``: the classes
of every ``features_train/X_Y.pth`` with a ``features_test/X_Y.pth`` beside it are put into one data set, which is
harder than each of them.

Every mode runs the whole protocol with the same seeds: the same split, draw, initial weights, order, and the same ten
random trials at the start (trained once). Differences are paired by seed; their standard error says what is chance.
The modes: sequential (the default), batched with rounds of 5 and 10, and random (no model at all, for scale).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg import protocol, search
from cog.logreg.checkpoint import Work
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings
from cog.runtime.device import resolve_device

MODES = {
    "sequential": {"search": "sequential"},
    "batched 5": {"search": "batched", "trials_per_round": 5},
    "batched 10": {"search": "batched", "trials_per_round": 10},
    "random": {"search": "sequential"},
}


def synthetic(n_per_class: int = 30, n_classes: int = 100, dim: int = 64) -> tuple[FeatureSet, FeatureSet]:
    """Features as networks give them: a common mean, directions of very different spread, overlapping classes."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, dim + 1).float().rsqrt()
    centres = torch.randn(n_classes, dim, generator=generator)
    sets = []
    for _ in range(2):
        y = torch.arange(n_per_class * n_classes) % n_classes
        x = 1 + (centres[y] + 2 * torch.randn(len(y), dim, generator=generator)) * spectrum
        sets.append(FeatureSet(torch.nn.functional.normalize(x), y, "synthetic"))
    return sets[0], sets[1]


def pooled(root: Path, *, normalize: bool = True) -> tuple[FeatureSet, FeatureSet]:
    """All data sets below ``root`` as one: each brings its own classes."""
    parts: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"train": [], "test": []}
    offset = 0
    for train in sorted(root.rglob("features_train/X_Y.pth")):
        test = train.parent.parent / "features_test" / train.name
        if not test.is_file():
            continue
        loaded = {
            "train": feature_files.load(train, normalize=normalize),
            "test": feature_files.load(test, normalize=normalize),
        }
        for split, one in loaded.items():
            parts[split].append((one.x, one.y + offset))
        offset += int(loaded["train"].y.max()) + 1
    if not offset:
        raise SystemExit(f"no features_train/X_Y.pth with a features_test/X_Y.pth beside it below {root}")
    train_set, test_set = (
        FeatureSet(torch.cat([x for x, _ in parts[split]]), torch.cat([y for _, y in parts[split]]), "pooled")
        for split in ("train", "test")
    )
    return train_set, test_set


class Remembering:
    """An engine that trains no trial twice: the modes share their random start."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[int, float, float], object] = {}

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def fit(self, data, spec, settings, **options):
        if spec.record:
            return self._engine.fit(data, spec, settings, **options)
        keys = [(spec.order_seed, *pair) for pair in spec.pairs]
        new = [pair for key, pair in zip(keys, spec.pairs, strict=True) if key not in self._known]
        fits = (
            self._engine.fit(data, dataclasses.replace(spec, pairs=new), settings, **options) if new else []
        )
        self._known |= {(spec.order_seed, *pair): fit for pair, fit in zip(new, fits, strict=True)}
        return [self._known[key] for key in keys]


def one_seed(args: argparse.Namespace, seed: int) -> dict[str, tuple[float, float]]:
    """Best validation accuracy and final test accuracy of every mode."""
    torch.set_num_threads(1)
    train, test = pooled(Path(args.features)) if args.features else synthetic()
    base = Engine(resolve_device(args.device), args.precision)
    data = prepare(train, test, base)
    engine = Remembering(base)
    found = {}
    for mode, options in MODES.items():
        settings = Settings(
            seed=seed, n_shot=args.n_shot, n_trials=args.n_trials, n_epochs=args.n_epochs, **options
        )
        everything_random = mock.patch.object(search, "N_STARTUP_TRIALS", args.n_trials)
        with everything_random if mode == "random" else contextlib.nullcontext():
            result = protocol.run_protocol(data, settings, engine, Work(print_freq=0))
        found[mode] = result.search.best.val_top1, result.classifier.logs["test/top1"][-1]
    return found


def print_differences(title: str, values: dict[str, list[float]]) -> None:
    """Print a row for each mode: mean, deviation over seeds, and paired differences to the first mode.

    Args:
        title: heading of the first column.
        values: percentages of each mode, in the order of the seeds.
    """
    first, *_ = values
    print(
        f"{title:<12}{'mean':>8}{'seed sd':>9}{'difference':>12}{'std err':>9}{'largest':>9}   within seed sd"
    )
    for mode, percents in values.items():
        line = f"{mode:<12}{statistics.mean(percents):8.3f}{statistics.stdev(percents):9.3f}"
        if mode != first:
            differences = [a - b for a, b in zip(percents, values[first], strict=True)]
            mean, error = (
                statistics.mean(differences),
                statistics.stdev(differences) / len(differences) ** 0.5,
            )
            within = "yes" if abs(mean) < statistics.stdev(values[first]) else "NO"
            line += f"{mean:+12.3f}{error:9.3f}{max(map(abs, differences)):9.3f}   {within}"
        print(line)


def main() -> None:
    """Run the seeds in worker processes and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--features", help="folder of feature folders (default: synthetic)")
    parser.add_argument("--n_shot", type=int, default=0, help="training images per class (default: all)")
    parser.add_argument("--n_trials", type=int, default=30)
    parser.add_argument("--n_epochs", type=int, default=100)
    parser.add_argument("--precision", default="fp32", help="CLF.PRECISION (default: fp32)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error(
            "--seeds must be at least 2: the spread over seeds is what differences are compared with"
        )
    train, test = pooled(Path(args.features)) if args.features else synthetic()
    print(
        f"{len(train)} training and {len(test)} test features, {train.x.shape[1]} dimensions, "
        f"{int(train.y.max()) + 1} classes, {args.n_shot or 'all'} images per class, {args.n_trials} trials of "
        f"{args.n_epochs} epochs"
    )
    start = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        results = []
        for result in pool.imap(functools.partial(one_seed, args), range(args.seeds)):
            results.append(result)
            print(f"{len(results)} of {args.seeds} seeds", end="\r", file=sys.stderr, flush=True)
    for index, what in enumerate(("best validation top-1", "test top-1 of the final run")):
        print(f"\n{what} (percent, {args.seeds} seeds)")
        print_differences("mode", {mode: [result[mode][index] for result in results] for mode in MODES})
    print(f"\n{time.monotonic() - start:.0f} s with {args.workers} workers")


if __name__ == "__main__":
    main()
