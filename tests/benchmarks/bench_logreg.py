"""Classifiers on a CPU: whole protocols, in turns with an earlier commit and with the original's loop.

    git worktree add ../previous COMMIT
    python tests/benchmarks/bench_logreg.py --previous ../previous [--cases 512x100 2048x1000 few1 few8 study]
        [--precisions bf16 fp32] [--repeats 3] [--threads 2] [--epochs 100]

Each protocol (30 trials and the final training of one seed, scored on a test set after every epoch) runs in a
process of its own; sides take turns, so that what else the machine does meets all. Columns are medians of
seconds, without imports and preparation, and of the ratios of each turn. --epochs shortens all sides alike.
The original's loop (tests/benchmarks/plain_logreg.py) is timed over two epochs and scaled. The study is two
data sets (512 x 100) with five seeds each, as study.sh runs it: two tasks side by side with one processor
each, against the original's loop, which runs one after the other with all processors.
"""

import argparse
import functools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from turns import add_previous, in_turns, ratio

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

SEEDS, TRIALS = ("22", "37", "45", "77", "93"), 30

#: name: (training rows, test rows, d, classes, shots)
CASES = {
    "512x100": (20_000, 5_000, 512, 100, 0),
    "2048x1000": (20_000, 5_000, 2048, 1000, 0),
    **{f"few{n}": (100_000, 20_000, 2048, 1000, n) for n in (1, 8)},
}


def run(case: str, precision: str, n_epochs: int, seeds: list[int]) -> float:
    """Return the seconds of the protocol of seeds with the toolkit on the path."""
    import plain_logreg
    import torch

    from cog.logreg.engine import Engine
    from cog.logreg.protocol import run_protocol
    from cog.logreg.settings import Settings

    *sizes, n_shot = CASES[case]
    engine, sets = Engine(torch.device("cpu"), precision), plain_logreg.feature_sets(*sizes)
    runs = [Settings(seed=seed, n_trials=TRIALS, n_epochs=n_epochs, n_shot=n_shot) for seed in seeds]
    if not hasattr(engine, "prepare"):  # before classifiers were trained in lockstep
        from cog.logreg.preprocess import prepare

        data = prepare(*sets, engine)
        start = time.perf_counter()
        for one in runs:
            run_protocol(data, one, engine)
        return time.perf_counter() - start
    data = engine.prepare(*sets, runs[0], n_seeds=len(runs))
    start, most = time.perf_counter(), data.together.seeds
    for first in range(0, len(runs), most):
        run_protocol(data, runs[first : first + most], engine, print_freq=0)
    return time.perf_counter() - start


def plain(case: str, n_epochs: int, n_runs: int) -> float:
    """Return the seconds of protocols of the original's loop, from two of its epochs."""
    import plain_logreg
    import torch

    n_train, n_test, dim, n_classes, _ = CASES[case]
    train, test = plain_logreg.feature_sets(n_train, n_test, dim, n_classes)
    cut = int(0.8 * n_train)

    def seconds(n: int, *scored: torch.Tensor) -> float:
        start, model = time.perf_counter(), torch.nn.Linear(dim, n_classes)
        plain_logreg.fit(model, (train.x[:n], train.y[:n]), scored, lr=10.0, wd=1e-6, n_epochs=2)
        return (time.perf_counter() - start) / 2

    _, search = [seconds(cut, train.x[cut:], train.y[cut:]) for _ in range(2)]
    return n_runs * n_epochs * (TRIALS * search + seconds(n_train, test.x, test.y))


def start(side: str, root: Path, words: list[str], threads: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    line = [sys.executable, __file__, "--one", side, *words]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)


def seconds_of(process: subprocess.Popen[str]) -> float:
    return float(process.communicate()[0].splitlines()[-1])


def compare(case: str, precision: str, args: argparse.Namespace) -> None:
    sides = {"now": ROOT, **({"previous": args.previous} if args.previous else {})}
    sides |= {} if CASES[case][4] else {"plain": ROOT}
    words = [case, precision, str(args.epochs), SEEDS[0]]
    begun = {side: functools.partial(start, side, root, words, args.threads) for side, root in sides.items()}
    times = in_turns({side: lambda run=run: seconds_of(run()) for side, run in begun.items()}, args.repeats)
    shown = f"{case:<10} {precision}  {args.threads} threads"
    for side, seconds in times.items():
        multiple = ratio(seconds, times["now"])
        shown += f"   {side} {statistics.median(seconds):8.1f} s ({multiple:5.2f} x now)"
    print(shown, flush=True)


def study(args: argparse.Namespace) -> None:
    """Measure a study of two data sets with five seeds each, and the same runs of the original's loop."""
    ratios, words = [], ["512x100", "bf16", str(args.epochs)]
    for _ in range(args.repeats):
        seconds = max(map(seconds_of, [start("now", ROOT, [*words, *SEEDS], 1) for _ in range(2)]))
        ratios.append(seconds_of(start("plain", ROOT, [*words, *SEEDS, *SEEDS], args.threads)) / seconds)
    print(f"study: the original's loop takes {statistics.median(ratios):.2f} times as long", flush=True)


def main() -> None:
    parser, cases = argparse.ArgumentParser(description=__doc__.splitlines()[0]), [*CASES, "study"]
    add_previous(parser)
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        side, case, precision, n_epochs, *seeds = args.one
        sys.path.append(str(HERE))
        if side == "plain":
            return print(plain(case, int(n_epochs), len(seeds)))
        return print(run(case, precision, int(n_epochs), [*map(int, seeds)]))
    for case in args.cases:
        for precision in args.precisions if case != "study" else ():
            compare(case, precision, args)
    if "study" in args.cases:
        study(args)


if __name__ == "__main__":
    main()
