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
    """Run a command of print_results.py; print its seconds and the peak memory."""
    start, command = time.monotonic(), [sys.executable, "print_results.py", *argv]
    subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{label}: {time.monotonic() - start:.1f} s, {memory:.0f} MB at most so far")


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        models = {f"net_{number:04d}": number % 41 / 4 - 5 for number in range(40)}
        write_study(Path(root), models, seeds=constants.SEEDS, shots=(0, *constants.SHOTS))
        measure("table", ["--models_root_dir", root])  # less memory: first
        measure("report", ["--models_root_dir", root, "--report", f"{root}/report.html"])


if __name__ == "__main__":
    main()
