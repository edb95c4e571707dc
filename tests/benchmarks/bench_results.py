"""How long status, tables and report take, and how much memory, with many models of 6 data sets and 45 runs each.

::

    python tests/benchmarks/bench_results.py                             # 37 models: 9,990 runs
    python tests/benchmarks/bench_results.py --models 1000 --folder DIR

The runs are records with accuracies that are drawn; no classifier is trained. Each has the ten files of a real one,
empty where no command reads them. The files of more than 100 models are links to those of the first 100. A RAM file
system needs an inode for each (``mount -t tmpfs -o nr_inodes=5000000``). Prints seconds, seconds of processors and peak
memory of each command with all its processes, and the number of files and folders.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "helpers")]

from result_folders import EPOCH_KEYS

from cog import constants, paths
from cog.results import concept_counts, runs

#: Models whose files are written.
N_WRITTEN = 100

#: Test images of a concept.
N_IMAGES = 50

FINAL = "final-lr-10.754262252767127_wd-3.0876607228369945e-08"
SMALL_FILES = (
    "study.pkl", "arguments.json", "config.txt", "program.log",
    *(f"{FINAL}/{name}" for name in ("preds.pkl", "args.pkl", "model.txt", "model.pth")),
)  # fmt: skip


def record_of(model: str, dataset: str, n_shot: int, seed: int, correct: list[int]) -> dict:
    """Return results.json of a run with 30 trials, and test images of each concept that are classified rightly."""
    top1 = 100 * sum(correct) / (N_IMAGES * len(correct))
    features = {
        "bytes": 1 << 30,
        "checkpoint_sha256": model.encode().hex().ljust(64, "0"),
        "image_list_sha256": "a" * 64,
    }
    trial = {"lr": 0.4220672085778961, "wd": 7.1358957073451595e-09, "val_top1": 66.6, "diverged": False,
             "seconds": 9.123, "pruned": False}  # fmt: skip
    return {
        "status": "complete", "model": model, "dataset": dataset, "seed": seed, "n_shot": n_shot,
        "train_features": f"/models/{model}/{dataset}/features_train/X_Y.pth",
        "test_features": f"/models/{model}/{dataset}/features_test/X_Y.pth",
        "versions": {"python": "3.11.7", "torch": "2.15.0", "optuna": "5.0.0", "numpy": "2.4.6"},
        "device": "cuda:0", "finished": "2026-11-22T17:11:48+00:00", "precision": "fp32",
        "identity": {"seed": seed, "n_shot": n_shot, "n_trials": 30, "n_epochs": 100, "batch_size": 1024,
                     "lr_interval": [0.1, 100.0], "wd_interval": [1e-12, 0.0001], "normalize": True,
                     "classifier": "logreg", "train_features": features, "test_features": features},
        "configuration": {f"CLF.KEY_{k}": k for k in range(60)},
        "n_classes": 1000, "feature_dim": 2048,
        "rows": {"search_train": 1024000, "search_val": 256000, "final_train": 1280000, "test": 50000},
        "final": {"folder": FINAL, "lr": 10.754262252767127, "wd": 3.0876607228369945e-08, "test_top1": top1,
                  "test_top5": top1 + 5, "diverged": False,
                  **concept_counts.write(correct, [N_IMAGES] * len(correct))},
        "best_trial": 5, "trials": [{"number": k, **trial} for k in range(30)],
        "seconds": {"search": 123.4, "final": 23.4},
    }  # fmt: skip


def runs_of(model: str, dataset: str, draw: random.Random):
    """Yield name, record and logs.pkl of each run."""
    for n_shot in (0, *constants.SHOTS):
        for seed in constants.SEEDS:
            most = draw.randrange(20, N_IMAGES)
            correct = [most * byte // 255 for byte in draw.randbytes(1000)]
            record = record_of(model, dataset, n_shot, seed, correct)
            top1 = record["final"]["test_top1"]
            logs = {key: [top1 + 0.001 * k for k in range(100)] for key in EPOCH_KEYS}
            logs["test/top1"][-1], logs["test/top5"][-1] = top1, top1 + 5
            name = f"{paths.evaluation_folder('logreg', n_shot)}/{paths.seed_folder(seed)}"
            yield name, record, pickle.dumps(logs, protocol=4)


def make(root: Path, n_models: int) -> None:
    """Write the runs of all models."""
    draw = random.Random(0)
    models = [f"net_{number:04d}" for number in range(n_models)]
    for model in models[:N_WRITTEN]:
        for dataset in constants.DATASETS:
            folder = paths.ModelDir(root, model).path / dataset
            for split in constants.SPLITS:
                (folder / f"features_{split}").mkdir(parents=True)
                (folder / f"features_{split}" / constants.FEATURES_FILE).touch()
            content = {}
            for name, record, logs in runs_of(model, dataset, draw):
                content[name] = {
                    "results.json": json.dumps(record, indent=2).encode(),
                    f"{FINAL}/logs.pkl": logs,
                }
                content[name] |= dict.fromkeys(SMALL_FILES, b"")
            write(folder, content)
    for number in range(N_WRITTEN, n_models):
        written, linked = (paths.ModelDir(root, models[n]).path for n in (number % N_WRITTEN, number))
        shutil.copytree(written, linked, copy_function=os.link)


def write(folder: Path, content: dict[str, dict[str, bytes]]) -> None:
    for name, files in content.items():
        (folder / name / FINAL).mkdir(parents=True)
        for below, data in files.items():
            (folder / name / below).write_bytes(data)


def measure(label: str, argv: list[str]) -> None:
    """Run a command; print its seconds and the peak memory of its processes, shared pages counted once."""
    start, before, peak = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), 0
    command = [sys.executable, *argv]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(
                    0.2 if time.monotonic() - start < 5 else 2
                )  # counting the memory takes time, too
        errors.seek(0)
        said = errors.read()
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{label}: {seconds:.1f} s ({cpu:.1f} s of processors), {peak / 1024:.0f} MB, exit code {process.returncode}"
    )
    if process.returncode:
        print(said[-2000:])


def memory(process: int) -> int:
    """Return the memory of a process and those that it has started, in kB."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return 0
    own = re.search(r"^Pss: +(\d+)", rollup, re.MULTILINE)
    return (int(own[1]) if own else 0) + sum(memory(int(child)) for child in children)


def main() -> None:
    """Write the runs, and measure each command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=37)
    parser.add_argument("--folder", type=Path, help="holds the runs and is kept (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.folder or Path(temporary, "models")
        start = time.monotonic()
        if not root.exists():
            make(root, args.models)
        entries = sum(1 + len(names) for _, _, names in os.walk(root))
        seconds = time.monotonic() - start
        print(f"{args.models} models, {entries:,} files and folders, made in {seconds:.0f} s", flush=True)
        table = ["print_results.py", "--models_root_dir", str(root)]
        measure("status", ["-m", "cog", "status", "--models_root_dir", str(root)])
        measure("table", table)
        measure("report", [*table, "--report", str(Path(temporary, "report.html"))])
        measure("differences", [*table, "--relative_to", "net_0000"])
        start = time.monotonic()
        n_runs = len(runs.find(root).runs)
        print(f"reading alone: {time.monotonic() - start:.1f} s for {n_runs:,} runs")


if __name__ == "__main__":
    main()
