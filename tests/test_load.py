"""Many processes on one models root: no result is lost, none is mixed with another."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import crash_matrix
import pytest
import tiny

N = 20


def _start(argv: list[str], barrier, log: str) -> None:
    """Run logreg.py's ``main`` as the script does, at the same moment as the others."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["logreg.py", *argv]
    from cog.commands import logreg
    from cog.runtime import cli

    barrier.wait()
    try:
        cli.run(logreg.main, argv)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(ended.code or 0))
    os._exit(70)


def start_all(commands: list[list[str]], logs: Path) -> list[tuple[int, str]]:
    """Run commands side by side; returns exit code and output of each."""
    logs.mkdir()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(commands))
    processes = [
        context.Process(target=_start, args=(argv, barrier, str(logs / f"{number}.txt")))
        for number, argv in enumerate(commands)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert all(process.exitcode is not None for process in processes)
    return [
        (process.exitcode or 0, (logs / f"{number}.txt").read_text())
        for number, process in enumerate(processes)
    ]


@pytest.fixture
def root(tmp_path):
    """A models root with features of one data set."""
    crash_matrix.import_everything()
    for split, seed in (("train", 0), ("test", 1)):
        x, y = tiny.make_xy(n_per_class=20, seed=seed, spread=2.5)
        tiny.write_features(
            tmp_path / f"models/tiny/net/birds/features_{split}", x, y, name=f"tiny_net_birds_{split}"
        )
    return tmp_path / "models"


def command(root: Path, seed: int) -> list[str]:
    return [
        "--models_root_dir", str(root), "--model", "tiny_net", "--dataset", "birds", "--device", "cpu",
        "EVAL.SEED", str(seed), "CLF.N_TRIALS", "11", "CLF.N_EPOCHS", "4", "CLF.BATCH_SIZE", "16",
    ]  # fmt: skip


@pytest.mark.slow
def test_different_runs(root, tmp_path):
    commands = [command(root, seed) for seed in range(N)]
    for code, text in start_all(commands, tmp_path / "logs"):
        assert code == 0, text
    together = crash_matrix.snapshot(root / "tiny/net/birds/eval_logreg")
    assert not [name for name in together if "/." in name or name.startswith(".")]
    (root / "tiny/net/birds/eval_logreg").rename(tmp_path / "together")
    for seed in (0, 7, 19):
        [(code, text)] = start_all([command(root, seed)], tmp_path / f"alone-{seed}")
        assert code == 0, text
    alone = crash_matrix.snapshot(root / "tiny/net/birds/eval_logreg")
    assert len({name.split("/")[0] for name in together}) == N
    assert {name.split("/")[0] for name in alone} == {"seed-0", "seed-7", "seed-19"}
    assert {name: together[name] for name in alone} == alone


@pytest.mark.slow
def test_one_run_wanted_by_all(root, tmp_path):
    found = start_all([command(root, 3)] * N, tmp_path / "logs")
    assert all("Traceback" not in text for _, text in found)
    trained = [text for code, text in found if code == 0 and "trial " in text]
    skipped = [text for code, text in found if code == 0 and "trial " not in text]
    refused = [text for code, text in found if code == 2]
    assert len(trained) == 1, found
    assert len(skipped) + len(refused) == N - 1
    for text in refused:
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and "is being written by logreg.py on" in lines[0]
    seed = root / "tiny/net/birds/eval_logreg/seed-3"
    assert json.loads((seed / "results.json").read_text())["status"] == "complete"
    assert not [name for name in os.listdir(seed) if name.startswith(".")]
    whole = crash_matrix.snapshot(seed)
    seed.rename(tmp_path / "first")
    [(code, text)] = start_all([command(root, 3)], tmp_path / "again")
    assert code == 0, text
    assert crash_matrix.snapshot(seed) == whole
