"""Classifiers on a GPU at the size of the benchmark, beside the loop of the original toolkit.

    python tests/benchmarks/bench_gpu.py [--device cuda] [--rows 1100000] [--parts steps protocol few tf32 plain]

Features are 1.1 million x 2048 (l2-normalized clusters), 1000 classes, 50,000 test rows, batches of 1024. Prints one
table: what was measured, on what, and the goal. Times are differences of trainings of different length, so that they
have no start-up; those of a protocol are computed from its trainings of 1 and 3 epochs (all 30 trials of 5 seeds are
trained, scored and suggested, only the number of epochs is smaller), and say so. Takes about 3 minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import plain_logreg

from cog.features import sampling
from cog.features.feature_files import FeatureSet
from cog.logreg import protocol
from cog.logreg.engine import Engine
from cog.logreg.features import Data
from cog.logreg.protocol import run_protocol
from cog.logreg.search import Search, Trial
from cog.logreg.settings import Settings
from cog.runtime import seeds

DIM, CLASSES, TEST, BATCH, SEEDS = 2048, 1000, 50_000, 1024, (22, 37, 45, 77, 93)
PARTS = ("steps", "protocol", "few", "tf32", "plain")

ROWS: list[tuple[str, str, str]] = []


def tell(what: str, measured: str, goal: str = "") -> None:
    """Add a line to the table, and print it at once, in case the time ends."""
    ROWS.append((what, measured, goal))
    print(
        f"{time.perf_counter() - START:6.1f} s  {what}: {measured}{f' (goal {goal})' if goal else ''}",
        flush=True,
    )


def timed(function: Callable[[], object]) -> float:
    """Return the duration of a call in seconds, with the work of the GPU."""
    synchronize()
    start = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - start


def synchronize() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def feature_sets(n_rows: int, device: torch.device) -> list[FeatureSet]:
    """Return training and test features on the host, drawn on the device."""
    generator = torch.Generator(device).manual_seed(0)
    centers = torch.randn(CLASSES, DIM, device=device, generator=generator)
    sets = []
    for n, split in ((n_rows, "train"), (TEST, "test")):
        y = torch.arange(n) % CLASSES
        x = torch.empty(n, DIM)
        for part, labels in zip(x.split(65_536), y.split(65_536), strict=True):
            rows = torch.randn(part.shape, device=device, generator=generator)
            rows += 4.5 / DIM**0.5 * centers[labels.to(device)]
            part.copy_(torch.nn.functional.normalize(rows))
        sets.append(FeatureSet(x, y, f"bench_net_data_{split}"))
    return sets


def splits(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training rows of the search of each seed, and the validation rows."""
    found = [sampling.split_train_val(y, val_frac=0.2, rng=seeds.numpy_rng(seed, "split")) for seed in SEEDS]
    train, val = zip(*found, strict=True)
    return torch.stack(train), torch.stack(val)


def step_seconds(engine: Engine, data: Data, rows: torch.Tensor, s: int, k: int) -> float:
    """Return the seconds of a step of S seeds x K trials, from trainings of 2 and of 6 epochs."""
    pairs = [[(1.0 + i, 1e-6) for i in range(k)] for _ in range(s)]

    def train(n_epochs: int) -> None:
        runs = [Settings(seed=seed, n_epochs=n_epochs, batch_size=BATCH) for seed in range(s)]
        engine.fit(data, runs, rows[:s], pairs, stage="search")

    train(4)  # compiles, records the graphs, and reserves memory on the host
    short, long = timed(lambda: train(2)), timed(lambda: train(6))
    return (long - short) / 4 / -(-rows.shape[1] // BATCH)


def tell_steps(engine: Engine, data: Data, rows: torch.Tensor, cases: list[tuple[int, int, str]]) -> None:
    """Measure steps."""
    for s, k, goal in cases:
        seconds = step_seconds(engine, data, rows, s, k)
        rate = 4 * BATCH * DIM * CLASSES * s * k / seconds / 1e12
        name = f"{engine.precision}: {s} seed(s) x {k} trial(s), per classifier and step"
        tell(name, f"{1e6 * seconds / s / k:.1f} us ({rate:.0f} TFLOP/s)", goal)


def tell_protocol(engine: Engine, data: Data) -> None:
    """Compute the time of a protocol of five seeds from runs with few epochs."""
    runs = [Settings(seed=seed, batch_size=BATCH) for seed in SEEDS]

    def run(n_epochs: int) -> None:
        shorter = [dataclasses.replace(one, n_epochs=n_epochs) for one in runs]
        results = run_protocol(data, shorter, engine, print_freq=0)
        top1 = [f"{result.logs['test/top1'][-1]:.2f}" for result in results]
        print(f"          {n_epochs} epoch(s): test top-1 {' '.join(top1)}", flush=True)

    seconds = [timed(lambda n=n: run(n)) for n in (1, 1, 3)]
    per_epoch = (seconds[2] - seconds[1]) / 2
    whole = seconds[1] + 99 * per_epoch
    tell(
        "bf16: protocol of one data set, 5 seeds",
        f"{whole / 60:.2f} min (computed from 1 and 3 epochs)",
        "7.5 min",
    )
    tell(
        "  of which all trials with a single epoch",
        f"{seconds[1]:.1f} s (first time, compiled: {seconds[0]:.1f} s)",
    )


def tell_few(engine: Engine, data: Data) -> None:
    """Measure N = 8, whole."""
    runs = [Settings(seed=seed, n_shot=8, batch_size=BATCH) for seed in SEEDS]
    shorter = [dataclasses.replace(one, n_epochs=2) for one in runs]
    first = timed(lambda: run_protocol(data, shorter, engine, print_freq=0))
    whole = timed(lambda: run_protocol(data, runs, engine, print_freq=0))
    tell(
        "bf16: N = 8, 5 seeds, after compilation", f"{whole:.1f} s (2 epochs, compiled: {first:.1f} s)", "7 s"
    )
    few, val = (torch.stack(each) for each in zip(*(protocol._split(data, one) for one in runs), strict=True))
    parts = {"rows of 5 seeds": timed(lambda: [protocol._split(data, one) for one in runs])}
    for name, k, stage in (
        ("10 trials", 10, "search"),
        ("1 trial", 1, "search"),
        ("final training", 1, "final"),
    ):
        pairs = [[(1.0 + i, 1e-6) for i in range(k)] for _ in SEEDS]
        engine.fit(data, shorter, few, pairs, stage=stage)
        parts[name] = timed(lambda p=pairs, s=stage: engine.fit(data, runs, few, p, stage=s))
        trained = engine.fit(data, shorter, few, pairs, stage=stage)
        parts[f"score of {name}"] = timed(lambda t=trained: engine.validate(data, val, t))
    parts["20 x 5 suggestions"] = timed(lambda: [suggest(one) for one in runs])
    tell("  of which", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items()))


def suggest(run: Settings) -> None:
    """Ask and tell as a search of 30 trials does."""
    search = Search(run)
    for n in (10, *[1] * 20):
        pairs = search.ask(n)
        search.tell(
            [Trial(len(search.trials) + i, *pair, 50.0 + i, False, 0.0) for i, pair in enumerate(pairs)]
        )


def tell_plain(sets: list[FeatureSet], device: torch.device) -> None:
    """Measure the loop of the original toolkit: 200 steps, and the validation of 50,000 rows."""
    x, y = sets[0].x[: 200 * BATCH].to(device), sets[0].y[: 200 * BATCH].to(device)
    test = sets[1].x.to(device), sets[1].y.to(device)
    model = torch.nn.Linear(DIM, CLASSES).to(device)

    def train(n_epochs: int) -> None:
        plain_logreg.fit(model, (x, y), test, lr=10.0, wd=1e-6, n_epochs=n_epochs, batch_size=BATCH)

    train(1)
    epoch = (timed(lambda: train(2)) - timed(lambda: train(1))) / 1
    few = (x[:BATCH], y[:BATCH])

    def validate(n_epochs: int) -> None:
        plain_logreg.fit(model, few, test, lr=10.0, wd=1e-6, n_epochs=n_epochs, batch_size=BATCH)

    scored = (timed(lambda: validate(6)) - timed(lambda: validate(1))) / 5
    step = (epoch - scored) / 200
    n_steps = 0.8 * len(sets[0]) / BATCH
    search = 3000 * (n_steps * step + scored * 0.2 * len(sets[0]) / TEST)
    final = 100 * (1.25 * n_steps * step + scored)
    tell(
        "plain loop, fp32: per step",
        f"{1e6 * step:.0f} us; a run of one seed {(search + final) / 60:.0f} min (computed)",
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=1_100_000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}, {args.rows} rows", flush=True)
    sets = feature_sets(args.rows, device)
    print(f"{time.perf_counter() - START:6.1f} s  features drawn", flush=True)
    rows, _ = splits(sets[0].y)

    def part(name: str, function: Callable[[], None]) -> None:
        if name in args.parts:
            try:
                function()
            except Exception:
                tell(name, f"FAILED: {traceback.format_exc()[-1500:]}")

    settings = Settings(seed=22, batch_size=BATCH)
    engine = Engine(device, "bf16")
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    data = engine.prepare(*sets, settings, n_seeds=len(SEEDS))
    print(
        f"{time.perf_counter() - START:6.1f} s  prepared in {time.perf_counter() - start:.1f} s: {data.together}",
        flush=True,
    )
    part(
        "steps", lambda: tell_steps(engine, data, rows, [(1, 1, "60 us"), (5, 1, "35 us"), (1, 10, "28 us")])
    )
    part("protocol", lambda: tell_protocol(engine, data))
    if device.type == "cuda":
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        tell(
            "bf16: peak GPU memory",
            f"{peaks[0] / 1e9:.1f} GB allocated, {peaks[1] / 1e9:.1f} GB reserved",
            "24 GB",
        )
    part("few", lambda: tell_few(engine, data))
    del data, engine
    if "tf32" in args.parts:
        engine = Engine(device, "tf32" if device.type == "cuda" else "fp32")
        data = engine.prepare(*sets, settings, n_seeds=len(SEEDS))
        part("tf32", lambda: tell_steps(engine, data, rows, [(5, 1, "61 us")]))
        del data, engine
    part("plain", lambda: tell_plain(sets, device))
    widths = [max(len(row[i]) for row in ROWS) for i in range(3)]
    print(
        "\n"
        + "\n".join("  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in ROWS)
    )


START = time.perf_counter()

if __name__ == "__main__":
    main()
