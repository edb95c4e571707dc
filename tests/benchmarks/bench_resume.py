"""What locks, saved row ranges, journals and checkpoints cost a run that nothing disturbs.

Compared with the code of commit 806b2d6, the last one without them, which is unpacked from git into a temporary folder.
One process per version has imported everything; they take turns on the same inputs, each turn a whole command with an
output folder of its own, so that other load on the machine hits both. Reported are the medians of the ratios of
neighbouring turns, of wall-clock time (which counts waiting for the disk) and of processor time (which other load
disturbs less)::

    python tests/benchmarks/bench_resume.py [--turns 7] [--images 400] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(REPOSITORY),
    str(REPOSITORY / "tests"),
    str(REPOSITORY / "tests/helpers"),
    str(REPOSITORY / "tests/benchmarks"),
]

BEFORE = "806b2d6"

WORKER = """
import json, os, sys, time, importlib, logging
sys.path.insert(0, sys.argv[1])
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
import torch
torch.set_num_threads(int(sys.argv[2]))
import cog
from cog.features import extract; from cog.features import feature_files as features
from cog.commands import extract_features, logreg
from cog.logreg import jobs, protocol
import optuna, torchvision
assert os.path.dirname(os.path.dirname(cog.__file__)) == sys.argv[1], cog.__file__
mains = {"extract_features": extract_features.main, "logreg": logreg.main}
logging.getLogger("cog").setLevel(logging.ERROR)
print(json.dumps("ready"), file=answers)
for line in sys.stdin:
    name, argv = json.loads(line)
    wall, cpu = time.perf_counter(), time.process_time()
    code = mains[name](argv)
    print(json.dumps([code, time.perf_counter() - wall, time.process_time() - cpu]), file=answers)
"""


class Worker:
    """A process that runs commands of one version of the package."""

    def __init__(self, tree: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tree), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)}, cwd=tree,
        )  # fmt: skip
        self._answer()

    def run(self, name: str, argv: list[str]) -> tuple[float, float]:
        """Return wall-clock and processor seconds of a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, argv]) + "\n")
        self._process.stdin.flush()
        code, wall, cpu = self._answer()
        if code:
            raise SystemExit(f"{name} ended with exit code {code}")
        return wall, cpu

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark has ended")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def commands(work: Path, n_images: int) -> dict[str, tuple[str, list[str]]]:
    """Return what is measured; inputs are written into ``work``, ``{output}`` stands for the output folder."""
    import bench_extract
    import tiny

    for label in ("a", "b"):
        folder = work / "images/train" / label
        folder.mkdir(parents=True)
        bench_extract.generate(folder, n_images // 2)
    loader = tiny.write_loader(work / "my_net.py")
    for split, seed, n in (("train", 0, 200), ("test", 1, 50)):
        x, y = tiny.make_xy(n_per_class=n, n_classes=100, dim=256, seed=seed, spread=4.0)
        tiny.write_features(work / f"features_{split}", x, y)
    extraction = [
        "--model", "tiny_net", "--dataset", "photographs", "--split", "train", "--device", "cpu", "--model_loader",
        f"{loader}:load_my_model", "--images_root", str(work / "images"), "--output_dir", "{output}",
        "FT_EXTRACT.N_WORKERS", "1",
    ]  # fmt: skip
    classifier = [
        "--train_features_dir", str(work / "features_train"), "--test_features_dir", str(work / "features_test"),
        "--device", "cpu", "--output_dir", "{output}", "CLF.N_TRIALS", "12", "CLF.N_EPOCHS", "20",
        "CLF.PRECISION", "fp32",
    ]  # fmt: skip
    return {"extraction": ("extract_features", extraction), "logreg": ("logreg", classifier)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--what", nargs="+", choices=("extraction", "logreg"), default=["extraction", "logreg"]
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as name:
        work = Path(name)
        old_tree = work / "before"
        old_tree.mkdir()
        archive = subprocess.run(["git", "archive", BEFORE], cwd=REPOSITORY, check=True, capture_output=True)
        subprocess.run(["tar", "-x"], cwd=old_tree, input=archive.stdout, check=True)
        measured = commands(work, args.images)
        workers = {"before": Worker(old_tree, args.threads), "now": Worker(REPOSITORY, args.threads)}
        print(f"{args.threads} threads, {args.turns} turns; before: {BEFORE}")
        for what in args.what:
            script, argv = measured[what]
            times: dict[str, list[tuple[float, float]]] = {"before": [], "now": []}
            for turn in range(args.turns + 1):
                order = ("before", "now") if turn % 2 else ("now", "before")
                for version in order:
                    output = work / "out"
                    found = workers[version].run(
                        script, [word.replace("{output}", str(output)) for word in argv]
                    )
                    shutil.rmtree(output)
                    if turn:  # the first one warms up
                        times[version].append(found)
            for index, kind in enumerate(("wall clock", "processor")):
                before, now = ([one[index] for one in times[version]] for version in ("before", "now"))
                ratios = sorted(b / a for a, b in zip(before, now, strict=True))
                overhead = 100 * (statistics.median(ratios) - 1)
                spread = f"{100 * (ratios[0] - 1):+.1f} to {100 * (ratios[-1] - 1):+.1f} %"
                seconds = f"before {statistics.median(before):6.2f} s  now {statistics.median(now):6.2f} s"
                print(
                    f"{what:<11} {kind:<11} {seconds}  overhead {overhead:+.1f} % (median of ratios; {spread})",
                    flush=True,
                )
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
