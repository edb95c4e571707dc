"""How long tables, differences and report take, and how much memory, with many models of 270 runs each.

::

    python tests/benchmarks/bench_results.py                             # 40 models: 10,800 runs
    python tests/benchmarks/bench_results.py --models 400 --folder DIR

The runs are records with accuracies that are drawn; no classifier is trained. Prints seconds, seconds of
processors and peak memory of each command with all its processes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "helpers")]

from benchmark_runs import write_study

from cog import constants
from cog.results import runs


def measure(label: str, argv: list[str]) -> None:
    """Run a command of print_results.py; print its seconds and peak memory."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "print_results.py", *argv]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = f"{after.ru_maxrss / 1024:.0f} MB at most so far"
    print(f"{label}: {seconds:.1f} s ({cpu:.1f} s of processors), {memory}, exit code {done.returncode}")
    if done.returncode:
        print(done.stderr[-2000:])


def main() -> None:
    """Write the runs, and measure each command, the one with the least memory first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--folder", type=Path, help="holds the runs and is kept (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.folder or Path(temporary, "models")
        if not root.exists():
            models = {f"net_{number:04d}": number % 41 / 4 - 5 for number in range(args.models)}
            write_study(root, models, seeds=constants.SEEDS, shots=(0, *constants.SHOTS))
        start = time.monotonic()
        n_runs = len(runs.find(root).runs)
        print(f"reading alone: {time.monotonic() - start:.1f} s for {n_runs:,} runs")
        table = ["--models_root_dir", str(root)]
        measure("table", table)
        measure("differences", [*table, "--relative_to", "net_0000"])
        measure("report", [*table, "--report", str(Path(temporary, "report.html"))])


if __name__ == "__main__":
    main()
