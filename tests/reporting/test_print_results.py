"""The print_results command: what it prints, what it warns about, how it fails."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from result_folders import make_record, make_seed_folder
from result_folders import print_results_as_user as run

from cog.errors import CogError
from cog.results import run_records

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


REPOSITORY = Path(__file__).resolve().parents[2]
SEEDS = (22, 37, 45, 77, 93)


@pytest.fixture
def study(tmp_path):
    """Two models, three data sets, all images and 8 shots; one cell incomplete, one absent."""
    root = tmp_path / "models"
    for seed, change in zip(SEEDS, (-0.2, -0.1, 0.0, 0.1, 0.2)):
        for path, top1 in (
            ("net/big/in1k/eval_logreg", 98.9),
            ("net/big/cog_l1/eval_logreg", 9.5),
            ("net/big/my_birds/eval_logreg", 71.0),
            ("net/small_v2/in1k/eval_logreg", 60.0),
            ("net/small_v2/in1k/eval_logreg-N8", 40.0),
        ):
            make_seed_folder(root / path / f"seed_{seed}", top1 + change, min(100.0, top1 + 20))
    for seed in (22, 93):
        folder = make_seed_folder(root / f"net/small_v2/cog_l1/eval_logreg/seed-{seed}", seed / 2, 80.0)
        make_record(folder, seed=seed)
    return root


def test_one_folder_names_missing_seeds(study, capsys):
    run("--models_root_dir", study, "--model", "net_small_v2", "--dataset", "cog_l1")
    out = capsys.readouterr().out.splitlines()
    assert out[2:] == [
        "top-1: 28.75 +- 17.75 (test/top1, 2 seeds)",
        "top-5: 80.00 +- 0.00 (test/top5, 2 seeds)",
        "missing seeds: 37, 45, 77",
    ]
    run("--models_root_dir", study, "--model net_small_v2 --dataset cog_l1 --seeds 22 5")
    assert capsys.readouterr().out.splitlines() == [
        "seed 22: top-1 11.00, top-5 80.00",
        "top-1: 11.00 +- 0.00 (test/top1, 1 seed)",
        "top-5: 80.00 +- 0.00 (test/top5, 1 seed)",
        "missing seeds: 5",
    ]


def test_both_ways_to_name_one_folder_agree(study, capsys):
    folder = study / "net/small_v2/in1k/eval_logreg-N8"
    run("--logreg_root_dir", folder)
    expected = capsys.readouterr().out
    assert "top-1: 40.00 +- 0.14" in expected
    select = ("--models_root_dir", study, "--model", "net_small_v2", "--dataset", "in1k")
    for argv in (
        (*select, "CLF.N_SHOT", 8),
        (*select, "EVAL.SEED", 55, "CLF.N_SHOT", 8, "EVAL.NAME", "logreg"),
        ("CLF.N_SHOT", 8, *select, "--logreg_root_dir", "None"),
        (*select, "--n_shot", 8),
        (*select, "--n_shot", 8, "CLF.N_SHOT", 8, "--seeds", "null"),
        ("--logreg_root_dir", folder, "--model None --dataset none"),
    ):
        run(*argv)
        out, err = capsys.readouterr()
        assert (out, err) == (expected, ""), argv


TEXT = """\
top-1 accuracy (%), all training images, mean ± std over seeds

              in1k        cog_l1             my_birds
net_big       98.9 ± 0.1   9.5 ± 0.1         71.0 ± 0.1
net_small_v2  60.0 ± 0.1  28.8 ± 17.8 (2/5)  -

missing seeds:
  net_small_v2, cog_l1: 37, 45, 77

top-1 accuracy (%), 8 training images per class, mean ± std over seeds

              in1k        cog_l1  my_birds
net_big       -           -       -
net_small_v2  40.0 ± 0.1  -       -
"""


def test_selections_make_smaller_tables(study, capsys):
    run("--models_root_dir", study, "--model net_small_v2 net_big --dataset cog_l1 in1k --n_shot all")
    assert capsys.readouterr().out == (
        "top-1 accuracy (%), all training images, mean ± std over seeds\n\n"
        "              in1k        cog_l1\n"
        "net_small_v2  60.0 ± 0.1  28.8 ± 17.8 (2/5)\n"
        "net_big       98.9 ± 0.1   9.5 ± 0.1\n\n"
        "missing seeds:\n  net_small_v2, cog_l1: 37, 45, 77\n"
    )
    run("--models_root_dir", study, "CLF.N_SHOT", 8)
    assert capsys.readouterr().out.splitlines()[2:] == ["              in1k", "net_small_v2  40.0 ± 0.1"]
    run("--models_root_dir", study, "--model net_small_v2 --dataset in1k --n_shot 8 all --format csv")
    assert [line.split(",")[2] for line in capsys.readouterr().out.splitlines()] == [
        "n_shot",
        "0",
        "0",
        "8",
        "8",
    ]
    run("--logreg_root_dir", study / "net/big/cog_l1/eval_logreg", "CLF.N_SHOT", 4, "--format", "csv")
    top1, top5 = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (top1["model"], top1["dataset"], top1["metric"], top5["metric"]) == (
        "net_big",
        "cog_l1",
        "top1",
        "top5",
    )
    assert float(top1["mean"]) == pytest.approx(9.5) and float(top1["std"]) == pytest.approx(0.02**0.5)
    assert float(top5["mean"]) == pytest.approx(29.5) and (top5["n_seeds"], top5["missing_seeds"]) == (
        "5",
        "",
    )


def test_seeds_select_and_are_expected(study, capsys):
    run("--models_root_dir", study, "--seeds 22 93 7 --format csv --n_shot 0 --dataset cog_l1")
    rows = [row for row in csv.DictReader(capsys.readouterr().out.splitlines()) if row["metric"] == "top1"]
    assert [(row["model"], row["n_seeds"], row["missing_seeds"]) for row in rows] == [
        ("net_big", "2", "7"), ("net_small_v2", "2", "7"),
    ]  # fmt: skip
    assert [float(row["std"]) for row in rows] == pytest.approx([0.2, 17.75])
    make_seed_folder(study / "net/big/in1k/eval_logreg/seed-1")
    run("--models_root_dir", study, "--n_shot", 0, "--dataset", "in1k")
    assert "net_small_v2, in1k: 1\n" in capsys.readouterr().out


def test_problems_and_doubts_are_warnings(study, capsys):
    (study / "net/big/in1k/eval_logreg/seed_45/final-lr-10.5_wd-1e-06/logs.pkl").write_bytes(b"half")
    (study / "net/big/cog_l1/eval_logreg/.seed-1").mkdir()
    make_record(study / "net/big/my_birds/eval_logreg/seed_22", diverged=True)
    make_seed_folder(study / "net/big/cog_l2/eval_logreg/seed-22", n_epochs=2)
    make_seed_folder(study / "net/big/cog_l2/eval_logreg/seed-37", n_epochs=5)
    argv = ("--models_root_dir", study, "--model", "net_big", "net_typo", "--n_shot", 0, 3)
    run(*argv)
    out, err = capsys.readouterr()
    assert "net_big   98.9 ± 0.2 (4/5)  " in out
    base = study / "net/big"
    leftover, broken, *others = err.splitlines()
    assert leftover == f"warning: not counted: {base}/cog_l1/eval_logreg/.seed-1: {run_records.LEFTOVER}"
    place = f"{base}/in1k/eval_logreg/seed_45: final-lr-10.5_wd-1e-06/logs.pkl"
    assert broken.startswith(f"warning: not counted: {place}")
    assert others[:-1] == [
        "warning: no finished run for --model net_typo",
        "warning: no finished run for --n_shot 3",
        "warning: Final training diverged in 1 run: net_big, my_birds, all images, seed 22: "
        f"{base}/my_birds/eval_logreg/seed_22",
    ]
    assert others[-1].startswith(
        "warning: Different numbers of epochs: epochs 2: net_big, L2, all images, seed 22;"
    )


def test_everything_is_one_table_for_each_number_of_shots(study, capsys):
    run("--models_root_dir", study)
    assert capsys.readouterr() == (TEXT, "")
    run("--models_root_dir", study, "--format", "json")
    rows = [row for row in json.loads(capsys.readouterr().out) if row["metric"] == "top1"]
    assert [(row["model"], row["dataset"], row["n_shot"]) for row in rows] == [
        ("net_big", "in1k", 0), ("net_big", "cog_l1", 0), ("net_big", "my_birds", 0),
        ("net_small_v2", "in1k", 0), ("net_small_v2", "cog_l1", 0), ("net_small_v2", "in1k", 8),
    ]  # fmt: skip


def test_only_broken_runs_is_an_error_that_names_them(tmp_path, capsys):
    make_seed_folder(tmp_path / "seed_22", logs=b"half")
    with pytest.raises(CogError, match=r"1 could not be counted, see above"):
        run("--logreg_root_dir", tmp_path)
    assert f"not counted: {tmp_path}/seed_22: " in capsys.readouterr().err


def test_the_script_itself(study):
    """Where the output is ASCII, so is the table."""
    for model in ("big", "small_v2"):
        features = study / "net" / model / "in1k/features_train/features.json"
        features.parent.mkdir()
        features.write_text('{"pretraining": "IN-1K"}')
    command = [sys.executable, REPOSITORY / "print_results.py", "--models_root_dir", study]
    done = subprocess.run(command, capture_output=True, check=False, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, TEXT.replace("±", "+-"), b"")
