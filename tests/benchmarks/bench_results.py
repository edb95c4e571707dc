"""How long tables and a report of thousands of run folders take.

::

    python tests/benchmarks/bench_results.py [--runs 10000] [--profile] [--folder DIR]

Writes run folders as this toolkit does (100 epochs, 30 trials), every fourth group of seeds as the original toolkit
does,
plus one with a cut ``logs.pkl``, one half-written and one foreign folder, which must come back as problems. Each
reading is a new process; times are those of 2 cores that nothing else uses.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pickle
import pstats
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from cog import constants, paths
from cog.results import concept_counts, find

_KEYS = ("train/loss", "train/top1", "train/top5", "test/loss", "test/top1", "test/top5", "lr")


def write_run(path: Path, *, seed: int, n_shot: int, rng: random.Random, original: bool) -> None:
    """Write one seed folder with everything that reading looks at."""
    lr, wd = 10 ** rng.uniform(-1, 2), 10 ** rng.uniform(-12, -4)
    folder = f"final-lr-{lr}_wd-{wd}"
    (path / folder).mkdir(parents=True)
    logs = {key: [rng.uniform(0, 100) for _ in range(100)] for key in _KEYS}
    correct = rng.choices(range(51), k=1000)
    logs["test/top1"][-1] = 100 * sum(correct) / 50_000
    (path / folder / "logs.pkl").write_bytes(pickle.dumps(logs, protocol=None if original else 4))
    if original:
        return
    trials = [
        {
            "number": number,
            "lr": 10 ** rng.uniform(-1, 2),
            "wd": 10 ** rng.uniform(-12, -4),
            "val_top1": rng.uniform(0, 100),
            "diverged": number == 3,
            "seconds": 12.3,
        }
        for number in range(30)
    ]
    features = {"bytes": 8_000_000_000, "checkpoint_sha256": "0" * 64, "image_list_sha256": "1" * 64}
    record = {
        "status": "complete",
        "versions": {"python": "3.11.7", "imagenet-cog": "0", "torch": "2.6.0", "optuna": "4.0", "numpy": "2.0"},
        "device": "cuda:0",
        "finished": "2026-01-01T00:00:00+00:00",
        "seed": seed,
        "n_shot": n_shot,
        "identity": {
            "seed": seed, "n_shot": n_shot, "n_trials": 30, "n_epochs": 100, "batch_size": 1024, "momentum": 0.9,
            "val_frac": 0.2, "lr_interval": [0.1, 100.0], "wd_interval": [1e-12, 1e-4], "normalize": True,
            "lr": None, "wd": None, "train_features": features, "test_features": features,
        },
        "n_classes": 1000,
        "feature_dim": 2048,
        "rows": {"search_train": 1000, "search_val": 1000, "final_train": 1000, "test": 50000},
        "final": {
            "folder": folder, "lr": lr, "wd": wd, "test_top1": logs["test/top1"][-1],
            "test_top5": logs["test/top5"][-1], "diverged": False, **concept_counts.write(correct, [50] * 1000),
        },
        "best_trial": 7,
        "trials": trials,
        "seconds": {"search": 600.0, "final": 60.0},
    }  # fmt: skip
    (path / "results.json").write_text(json.dumps(record, indent=2))


def write_study(root: Path, n_runs: int) -> None:
    """Write ``n_runs`` good runs and three that are none."""
    rng = random.Random(0)
    written = 0
    for model in (f"net_m{number}" for number in range(n_runs)):
        for dataset in constants.DATASETS:
            for n_shot in (0, *constants.SHOTS):
                for seed in constants.SEEDS:
                    if written == n_runs:
                        break
                    path = paths.ModelDir(root, model).run(dataset, name="logreg", n_shot=n_shot, seed=seed)
                    write_run(path, seed=seed, n_shot=n_shot, rng=rng, original=written // 5 % 4 == 3)
                    written += 1
        if written == n_runs:
            break
    base = paths.ModelDir(root, "bad_folders")
    cut = base.run("in1k", name="logreg", n_shot=0, seed=22)
    write_run(cut, seed=22, n_shot=0, rng=rng, original=True)
    (logs,) = cut.glob("final-*/logs.pkl")
    logs.write_bytes(logs.read_bytes()[:3000])
    half = base.run("in1k", name="logreg", n_shot=0, seed=37)
    (half / "final-lr-1_wd-1").mkdir(parents=True)
    (half / ".partial-1").mkdir()
    (base.evaluation("in1k", name="logreg", n_shot=0) / "seeds of my lemon tree").mkdir()


def measure(root: Path, *flags: str) -> tuple[float, float, float, bytes]:
    """Run print_results.py in a new process.

    Returns:
        Seconds by the clock and of the processors, the largest size in memory in MB, and what it prints.
    """
    script = [sys.executable, str(REPOSITORY / "print_results.py"), "--models_root_dir", str(root), *flags]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(script, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read()
    if status:
        sys.exit(text.decode())
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, text


def main() -> None:
    """Write, make the table twice and the report, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--profile", action="store_true", help="profile the reading")
    parser.add_argument("--folder", type=Path, help="use the study that is there already, and keep it")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    root = folder / "models"
    report = folder / "report.html"
    try:
        if not root.is_dir():
            start = time.perf_counter()
            write_study(root, args.runs)
            print(f"wrote {args.runs} run folders in {time.perf_counter() - start:.1f} s")
        texts = []
        for name, most, *flags in (
            ("table", 6),
            ("table again", 6),
            ("report", 10, "--report", str(report), "--overwrite"),
            ("comparison", 30, "--baseline", "net_m0"),
            ("power", 30, "--power"),
        ):
            seconds, busy, megabytes, text = measure(root, *map(str, flags))
            texts.append(text)
            print(
                f"{name}: {seconds:.2f} s (expected: below {most}), {busy:.2f} s of processor time, "
                f"{megabytes:.0f} MB (expected: below 400)"
            )
        print("both tables agree" if texts[0] == texts[1] else "THE TABLES DIFFER")
        print(*(line[:160] for line in texts[0].decode().splitlines() if "not counted" in line), sep="\n")
        if args.profile:
            with cProfile.Profile() as profile:
                find.find_all(root)
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    finally:
        report.unlink(missing_ok=True)
        if args.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
