"""Classifiers on a CPU: whole protocols, in turns with an earlier commit of the toolkit and with the original's loop.

    git worktree add ../previous COMMIT
    python tests/benchmarks/bench_logreg.py --previous ../previous [--cases 512x100 2048x1000 few1 few8]
        [--precisions bf16 fp32] [--repeats 3] [--threads 2] [--epochs 100] [--no_study]

Each protocol (30 trials and the final training of one seed, scored on a test set after every epoch) runs in a process
of its own, with the threads that are named; sides take turns, so that what else the machine does meets all of them.
Columns are medians of seconds, without imports and preparation, and medians of the ratios of each turn. --epochs
shortens all sides alike. The original's loop (tests/benchmarks/plain_logreg.py) is timed over two epochs and scaled.

The study is two data sets (512 x 100) with five seeds each: as study.sh runs it, two tasks side by side with one
processor each, against the original's loop, which runs one after the other with all processors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

SEEDS, TRIALS, BATCH = (22, 37, 45, 77, 93), 30, 1024

#: name: (training rows, test rows, d, classes, shots)
CASES = {
    "512x100": (20_000, 5_000, 512, 100, 0),
    "2048x1000": (20_000, 5_000, 2048, 1000, 0),
    **{f"few{n}": (100_000, 20_000, 2048, 1000, n) for n in (1, 8, 64)},
}


def feature_sets(case: str) -> list[Any]:
    """Return clustered, l2-normalized random features, about as hard to separate as real ones."""
    import torch

    from cog.features.feature_files import FeatureSet

    n_train, n_test, dim, n_classes, _ = CASES[case]
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(n_classes, dim, generator=generator)
    sets = []
    for n, split in ((n_train, "train"), (n_test, "test")):
        y = torch.arange(n) % n_classes
        x = torch.randn(n, dim, generator=generator)
        for rows in torch.arange(n).split(8192):
            x[rows] += 4.5 / dim**0.5 * centers[y[rows]]
            x[rows] /= x[rows].norm(dim=1, keepdim=True)
        sets.append(FeatureSet(x, y, f"bench_net_data_{split}"))
    return sets


def run(case: str, precision: str, n_epochs: int, seeds: list[int]) -> dict[str, float]:
    """Run the protocol of seeds with the toolkit on the path, of this commit or of an earlier one."""
    import torch

    from cog.logreg import protocol
    from cog.logreg.engine import Engine
    from cog.logreg.settings import Settings

    engine = Engine(torch.device("cpu"), precision)
    sets, n_shot = feature_sets(case), CASES[case][4]
    runs = [Settings(seed=seed, n_shot=n_shot, n_epochs=n_epochs, n_trials=TRIALS) for seed in seeds]
    if hasattr(engine, "prepare"):
        prepared = engine.prepare(*sets, runs[0], n_seeds=len(runs))
        data, together = prepared if isinstance(prepared, tuple) else (prepared, prepared.together)
        options = {"width": together.trials} if isinstance(prepared, tuple) else {}
        start, results = time.perf_counter(), []
        for first in range(0, len(runs), together.seeds):
            group = runs[first : first + together.seeds]
            results += protocol.run_protocol(data, group, engine, print_freq=0, **options)
    else:
        from cog.logreg.preprocess import prepare

        data = prepare(*sets, engine)
        start = time.perf_counter()
        results = [protocol.run_protocol(data, one, engine) for one in runs]
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "top1": getattr(results[0], "classifier", results[0]).logs["test/top1"][-1]}


def plain(case: str, n_epochs: int, n_runs: int) -> dict[str, float]:
    """Time two epochs of the original's loop, and scale them to protocols."""
    import plain_logreg
    import torch

    train, test = feature_sets(case)
    n_train, _, dim, n_classes, _ = CASES[case]
    cut = int(0.8 * n_train)

    def seconds(x: Any, y: Any, scored: tuple[Any, Any]) -> float:
        start = time.perf_counter()
        plain_logreg.fit(torch.nn.Linear(dim, n_classes), (x, y), scored, lr=10.0, wd=1e-6, n_epochs=2)
        return (time.perf_counter() - start) / 2

    held_out = train.x[cut:], train.y[cut:]
    seconds(train.x[:cut], train.y[:cut], held_out)
    search = seconds(train.x[:cut], train.y[:cut], held_out)
    final = seconds(train.x, train.y, (test.x, test.y))
    return {"seconds": n_runs * n_epochs * (TRIALS * search + final)}


def start(side: str, root: Path, words: list[str], threads: int) -> subprocess.Popen[str]:
    """Start one side in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": str(threads)}
    line = [sys.executable, __file__, "--one", side, *words]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> float:
    """Return the seconds that a process prints."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return float(json.loads(out.splitlines()[-1])["seconds"])


def compare(case: str, precision: str, args: argparse.Namespace) -> None:
    """Measure the sides in turns."""
    roots = {"now": HERE.parent.parent, **({"previous": args.previous.resolve()} if args.previous else {})}
    times: dict[str, list[float]] = {side: [] for side in (*roots, "plain")}
    for _ in range(args.repeats):
        for side, root in roots.items():
            words = [case, precision, str(args.epochs), "22"]
            times[side].append(result(start("run", root, words, args.threads)))
        if not CASES[case][4]:
            words = [case, precision, str(args.epochs), "22"]
            times["plain"].append(result(start("plain", roots["now"], words, args.threads)))
    shown = f"{case:<10} {precision}  {args.threads} threads  now {statistics.median(times['now']):8.1f} s"
    for side in ("previous", "plain"):
        if times.get(side):
            ratios = [other / now for other, now in zip(times[side], times["now"], strict=True)]
            shown += (
                f"   {side} {statistics.median(times[side]):9.1f} s ({statistics.median(ratios):5.2f} x now)"
            )
    print(shown, flush=True)


def study(args: argparse.Namespace) -> None:
    """Measure a study of two data sets with five seeds each, and the same runs of the original's loop."""
    ratios, times = [], []
    for _ in range(args.repeats):
        words = ["512x100", "bf16", str(args.epochs)]
        began = time.perf_counter()
        tasks = [start("run", HERE.parent.parent, [*words, *map(str, SEEDS)], 1) for _ in range(2)]
        seconds = max(result(task) for task in tasks)
        times.append(time.perf_counter() - began)
        loop = result(start("plain", HERE.parent.parent, [*words, *map(str, 2 * SEEDS)], args.threads))
        ratios.append(loop / seconds)
    print(
        f"study: two tasks of five seeds, one processor each {statistics.median(times):.1f} s with imports; the "
        f"original's loop takes {statistics.median(ratios):.2f} times as long",
        flush=True,
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--previous", type=Path, help="work tree of an earlier commit")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["512x100", "2048x1000", "few1", "few8"])
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--no_study", action="store_true")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        side, case, precision, n_epochs, *seeds = args.one
        sys.path.append(str(HERE))
        done = (
            run(case, precision, int(n_epochs), list(map(int, seeds)))
            if side == "run"
            else plain(case, int(n_epochs), len(seeds))
        )
        print(json.dumps(done))
        return
    for case in args.cases:
        for precision in args.precisions:
            compare(case, precision, args)
    if not args.no_study:
        study(args)


if __name__ == "__main__":
    main()
