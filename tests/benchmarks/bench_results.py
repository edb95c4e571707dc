"""How long a table and the report take, and how much memory, with 40 models of 270 runs each.

The runs are records with accuracies that are drawn; no classifier is trained.
"""

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


def measure(label: str, argv: list[str]) -> None:
    """Run a command of print_results.py; print its seconds, those of CPU, and peak memory."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "print_results.py", *argv]
    subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{label}: {wall:.1f} s, {cpu:.1f} s of CPU, {after.ru_maxrss / 1024:.0f} MB at most so far")


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        models = {f"net_{number:04d}": number % 41 / 4 - 5 for number in range(40)}
        write_study(Path(root), models, seeds=constants.SEEDS, shots=(0, *constants.SHOTS))
        measure("table", ["--models_root_dir", root])  # less memory: first
        measure("report", ["--models_root_dir", root, "--report", f"{root}/report.html"])


if __name__ == "__main__":
    main()
