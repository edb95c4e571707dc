"""Classifiers on a GPU at the size of the benchmark, beside the loop of the original toolkit.

    python tests/benchmarks/bench_gpu.py [--rows 1100000]

Features are 1.1 million x 2048 (l2-normalized clusters), 1000 classes, 50,000 test rows, batches of 1024.
The time of a step is the difference of trainings of different length; that of a protocol is computed from
trainings of 1 and 3 epochs, with all trials of five seeds. About 3 minutes.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

import plain_logreg

from cog.features.feature_files import FeatureSet
from cog.logreg import protocol
from cog.logreg.engine import Engine
from cog.logreg.features import Data
from cog.logreg.protocol import run_protocol
from cog.logreg.settings import Settings

DIM, CLASSES, TEST, BATCH, SEEDS = 2048, 1000, 50_000, 1024, (22, 37, 45, 77, 93)
START = time.perf_counter()


def tell(what: str, measured: str, goal: str = "") -> None:
    print(f"{time.perf_counter() - START:6.1f} s  {what:<55} {measured:<45} {goal}".rstrip(), flush=True)


def timed(function: Callable[[], object]) -> float:
    """Return the duration of a call in seconds, with the work of the GPU."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def runs_of(**settings: int) -> list[Settings]:
    return [Settings(seed=seed, batch_size=BATCH, **settings) for seed in SEEDS]


def tell_steps(engine: Engine, data: Data, *cases: tuple[int, int, str]) -> None:
    """Measure steps of S seeds x K trials, from trainings of 2 and of 6 epochs."""
    rows, _ = protocol._split(data, runs_of())
    for s, k, goal in cases:
        pairs = [[(1.0 + i, 1e-6) for i in range(k)]] * s

        def train(n_epochs: int, s: int = s, pairs: list[list[tuple[float, float]]] = pairs) -> None:
            engine.fit(data, runs_of(n_epochs=n_epochs)[:s], rows[:s], pairs, val_rows=rows[:s, :1])

        train(4)  # compiles, records the graphs, and reserves memory on the host
        short, long = timed(lambda: train(2)), timed(lambda: train(6))
        seconds = (long - short) / 4 / -(-rows.shape[1] // BATCH)
        rate = 4 * BATCH * DIM * CLASSES * s * k / seconds / 1e12
        name = f"{engine.precision}: {s} seed(s) x {k} trial(s), per classifier and step"
        tell(name, f"{1e6 * seconds / s / k:.1f} us ({rate:.0f} TFLOP/s)", goal)


def tell_protocols(engine: Engine, data: Data) -> None:
    """Compute the time of a protocol of five seeds from runs with few epochs; measure N = 8 whole."""
    groups = [runs_of(n_epochs=n_epochs) for n_epochs in (1, 1, 3)]
    times = [timed(lambda runs=runs: run_protocol(data, runs, engine, print_freq=0)) for runs in groups]
    compiled, one, three = times
    minutes = (one + 99 * (three - one) / 2) / 60
    tell("bf16: protocol, 5 seeds", f"{minutes:.2f} min (computed from 1 and 3 epochs)", "7.5 min")
    tell("  of which trials with one epoch", f"{one:.1f} s (first time, compiled: {compiled:.1f} s)")
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    tell("bf16: peak GPU memory", f"{peaks[0] / 1e9:.1f} GB, {peaks[1] / 1e9:.1f} GB reserved", "24 GB")
    run_protocol(data, runs_of(n_shot=8, n_epochs=2), engine, print_freq=0)
    whole = timed(lambda: run_protocol(data, runs_of(n_shot=8), engine, print_freq=0))
    tell("bf16: N = 8, 5 seeds, after compilation", f"{whole:.1f} s", "7 s")


def tell_plain(sets: list[FeatureSet], device: torch.device) -> None:
    """Measure the loop of the original toolkit: 200 steps, and the validation of 50,000 rows."""
    x, y = sets[0].x[: 200 * BATCH].to(device), sets[0].y[: 200 * BATCH].to(device)
    test = sets[1].x.to(device), sets[1].y.to(device)
    model = torch.nn.Linear(DIM, CLASSES).to(device)

    def train(n: int, n_epochs: int) -> None:
        plain_logreg.fit(model, (x[:n], y[:n]), test, lr=10.0, wd=1e-6, n_epochs=n_epochs, batch_size=BATCH)

    train(len(x), 1)
    scored = (timed(lambda: train(BATCH, 6)) - timed(lambda: train(BATCH, 1))) / 5
    step = (timed(lambda: train(len(x), 2)) - timed(lambda: train(len(x), 1)) - scored) / 200
    n_steps = 0.8 * len(sets[0]) / BATCH
    search = 3000 * (n_steps * step + scored * 0.2 * len(sets[0]) / TEST)
    minutes = (search + 100 * (1.25 * n_steps * step + scored)) / 60
    tell("plain loop, fp32: per step", f"{1e6 * step:.0f} us; a run {minutes:.0f} min (computed)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_100_000)
    args, device = parser.parse_args(), torch.device("cuda")
    tell(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}",
        f"{args.rows} rows",
        "goal",
    )
    sets = plain_logreg.feature_sets(args.rows, TEST, DIM, CLASSES, device)
    for precision in ("bf16", "tf32"):
        engine = Engine(device, precision)
        data = engine.prepare(*sets, runs_of()[0], n_seeds=len(SEEDS))
        tell("prepared", str(data.together))
        if precision == "bf16":
            tell_steps(engine, data, (1, 1, "60 us"), (5, 1, "35 us"), (1, 10, "28 us"))
            tell_protocols(engine, data)
        else:
            tell_steps(engine, data, (5, 1, "61 us"))
        del data, engine
    tell_plain(sets, device)


if __name__ == "__main__":
    main()
