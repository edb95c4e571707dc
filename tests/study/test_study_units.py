"""The units of a study, their states, and the table of `status`."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
import result_folders
from result_folders import small_study

from cog import constants, paths
from cog.commands import status, study_results
from cog.errors import CogError
from cog.logreg.run_folder import RunFolder
from cog.results import find
from cog.runtime import locks
from cog.study import units


@pytest.fixture
def root(tmp_path):
    """Two models; ``a_net`` has features of in1k and cog_l1, and some runs."""
    root = tmp_path / "models"
    for model, dataset in (("a_net", "in1k"), ("a_net", "cog_l1"), ("b_net", "in1k")):
        folder = paths.ModelDir(root, model).path / dataset
        for split in constants.SPLITS:
            (folder / f"features_{split}").mkdir(parents=True)
            if model == "a_net":
                (folder / f"features_{split}" / "X_Y.pth").touch()
    return root


def finish(folder) -> None:
    """Write what tells that a run is complete."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text('{"status": "complete"}')


def fail(folder, message: str) -> None:
    """Leave a failed run."""
    folder.mkdir(parents=True)
    with pytest.raises(CogError), RunFolder(folder).claim() as claim, claim.failures_noted():
        raise CogError(message)


def flags(root, models="a_net", datasets="in1k", seeds="1", shots="0") -> list[str]:
    """Return flags of status.py; each value is a text of words."""
    return [
        "--models_root_dir", str(root), "--models", *models.split(), "--datasets", *datasets.split(),
        "--seeds", *seeds.split(), "--shots", *shots.split(),
    ]  # fmt: skip


def run_of(seed: int, n_shot: int = 0, model: str = "a_net", dataset: str = "in1k") -> units.TrainingUnit:
    return units.TrainingUnit(model, dataset, "logreg", n_shot, seed)


def test_enumeration_of_the_whole_benchmark(root):
    """12 extractions and 270 runs per model."""
    everything = list(units.Study(root=root, models=("a_net",)).units())
    assert sum(isinstance(unit, units.ExtractionUnit) for unit in everything) == 12
    assert sum(isinstance(unit, units.TrainingUnit) for unit in everything) == 270
    assert len(set(everything)) == 282
    assert {unit.folder(root) for unit in everything if isinstance(unit, units.TrainingUnit)} == {
        root / "a/net" / dataset / f"eval_logreg{f'_N{shots}' if shots else ''}" / f"seed-{seed}"
        for dataset in constants.DATASETS
        for shots in (0, *constants.SHOTS)
        for seed in constants.SEEDS
    }


def test_states(root):
    study = small_study(root, n_shots=(0, 8, 4))
    finish(run_of(1).folder(root))
    abandoned = run_of(1, 4).folder(root)
    abandoned.mkdir(parents=True)
    (abandoned / ".lock").write_text("{}")
    os.utime(abandoned / ".lock", (1, 1))
    for unit, entry in ((run_of(2), ".resume"), (run_of(1, 8), ".partial-x"), (run_of(2, 8), "program.log")):
        (unit.folder(root) / entry).mkdir(parents=True)
    fail(run_of(1, dataset="cog_l1").folder(root), "no   memory\nleft")
    with locks.locked(run_of(2, dataset="cog_l1").folder(root), flag="--output_dir"):
        found = units.survey(study)
    assert found[run_of(1)] == units.Status(units.DONE)
    for unit in (run_of(2), run_of(1, 8), run_of(1, 4)):
        assert found[unit].state == units.INTERRUPTED
    assert found[run_of(2, 8)].state == units.MISSING
    assert found[run_of(1, dataset="cog_l1")].state == units.FAILED
    assert found[run_of(1, dataset="cog_l1")].detail.startswith("no memory left (")
    running = found[run_of(2, dataset="cog_l1")]
    assert running.state == units.RUNNING and f"process {os.getpid()}" in running.detail
    assert found[units.ExtractionUnit("a_net", "cog_l1", "train")].state == units.DONE
    assert found[units.ExtractionUnit("b_net", "in1k", "train")].state == units.MISSING
    assert found[units.ExtractionUnit("b_net", "in1k", "test")].state == units.MISSING
    assert found[units.ExtractionUnit("b_net", "cog_l1", "test")].state == units.MISSING


FAILURE = '{"message": "out of memory", "when": "2021", "host": "node7", "job": ""}'


@pytest.mark.parametrize("result", ["none", "marked", "original"])
@pytest.mark.parametrize(
    "traces",
    [
        (), (".resume",), (".partial-x",), (".failed.json",), (".lock",), (".resume", ".failed.json"), (".damaged",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_status_and_tables_agree(root, result, traces):
    """Whether a run counts as done, and why not, is the same for both, whatever lies in its folder."""
    folder = run_of(1).folder(root)
    if result == "none":
        folder.mkdir(parents=True)
    else:
        result_folders.make_seed_folder(folder)
    if result == "marked":
        result_folders.make_record(folder, seed=1)
    for name in traces:
        if name in (".resume", ".partial-x"):
            (folder / name).mkdir()
        else:
            text = {".failed.json": FAILURE, ".lock": "{}", ".damaged": "{"}[name]
            (folder / name.replace(".damaged", ".failed.json")).write_text(text)
    runs, problems = find.find_runs(root, models=["a_net"], datasets=["in1k"])
    states = [problem.state for problem in problems if problem.path == folder]
    status = units.survey(small_study(root))[run_of(1)]
    if status.state == units.DONE:
        assert len(runs) == 1 and not states
    else:
        assert not runs
        assert states == ["" if status.state == units.MISSING else status.state]


def test_results_of_a_part_say_once_what_is_not_there(root, tmp_path, caplog, capsys):
    for seed in (1, 2):
        result_folders.make_seed_folder(run_of(seed).folder(root))
    logs = tmp_path / "logs"
    logs.mkdir()
    study_results.write(small_study(root), logs, [])
    assert "a_net" in (logs / "results.txt").read_text() and "a_net" in (logs / "report.html").read_text()
    shown = capsys.readouterr().err + caplog.text
    for absent in ("--model b_net", "--dataset cog_l1", "--n_shot 8"):
        assert shown.count(f"no finished run for {absent}") == 1
    assert shown.count("14 of 16 classifier runs are missing") == 1


def test_runs_of_the_original_toolkit(root):
    """Its code spelled folders otherwise; such a run is done, and told apart."""
    base = root / "a/net/in1k"
    for folder in (base / "eval_logreg-N8/seed_1", base / "eval_logreg_N8/seed-2"):
        (folder / "final-lr-1.0_wd-0.1").mkdir(parents=True)
        (folder / "final-lr-1.0_wd-0.1" / "logs.pkl").touch()
    found = units.survey(small_study(root))
    assert found[run_of(1, 8)] == units.Status(units.DONE, foreign=True)
    assert found[run_of(2, 8)] == units.Status(units.DONE)
    (run_of(1, 8).folder(root) / ".resume").mkdir(parents=True)  # begun here as well
    assert units.survey(small_study(root))[run_of(1, 8)].state == units.DONE
    with locks.locked(run_of(1, 8).folder(root), flag="--output_dir"):  # at work here
        assert units.survey(small_study(root))[run_of(1, 8)].state == units.RUNNING


def test_other_evaluations_are_not_mixed(root):
    finish(root / "a/net/in1k/eval_lbfgs/seed-1")
    assert units.survey(small_study(root))[run_of(1)].state == units.MISSING
    other = units.TrainingUnit("a_net", "in1k", "lbfgs", 0, 1)
    assert units.survey(small_study(root, evaluation="lbfgs"))[other].state == units.DONE


def test_names_and_patterns(root):
    assert units.find_models(root, None) == ("a_net", "b_net")
    assert units.find_models(root, ["b_net", "*_net", "new_net"]) == ("b_net", "a_net", "new_net")
    assert units.find_models(root, None, ["mine_new", "a_net"]) == ("a_net", "b_net", "mine_new")
    assert units.find_models(root, ["mine_*"], ["mine_new"]) == ("mine_new",)
    with pytest.raises(CogError, match=r"no model under .* matches z\*"):
        units.find_models(root, ["z*"])
    with pytest.raises(CogError, match="not a model name"):
        units.find_models(root, ["nounderscore"])
    assert units.find_datasets(root, ["a_net"]) == constants.DATASETS
    (root / "a/net/birds/features_test").mkdir(parents=True)
    (root / "a/net/notes").mkdir()
    assert units.find_datasets(root, ["a_net"]) == ("in1k", "cog_l1", "birds")


def unlistable(folder, monkeypatch):
    listdir = os.listdir

    def refuse(path="."):
        if os.fspath(path) == str(folder):
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)


def circular(folder, monkeypatch):
    shutil.rmtree(folder)
    folder.symlink_to(folder)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (unlistable, "cannot read .*/a/net/in1k: Permission denied"),
        (circular, "cannot read .*/a/net/in1k: Too many levels of symbolic links"),
    ],
)
def test_a_folder_that_cannot_be_read_hides_no_other(root, monkeypatch, caplog, spoil, reason):
    finish(run_of(1, dataset="cog_l1").folder(root))
    study = small_study(root)
    before = units.survey(study)
    spoil(root / "a/net/in1k", monkeypatch)
    found = [units.survey(study) for _ in range(2)][1]
    bad = {*study.trainings("a_net", "in1k"), *study.extractions("a_net", "in1k")}
    assert {found[unit].state for unit in bad} == {units.FAILED}
    assert all(re.search(reason, found[unit].detail) for unit in bad)
    assert {unit: found[unit] for unit in found.keys() - bad} == {
        unit: before[unit] for unit in before.keys() - bad
    }
    assert caplog.text.count("; what cannot be read counts as failed") == 1


def test_folders_that_cannot_be_listed_are_no_data_sets(root, monkeypatch, capsys):
    (root / "a/net/loop").symlink_to("loop")
    (root / "a/net/private/features_test").mkdir(parents=True)
    unlistable(root / "a/net/private", monkeypatch)
    assert units.find_datasets(root, ["a_net"]) == constants.DATASETS
    assert status.main(["--models_root_dir", str(root), "--seeds", "1", "--shots", "0"]) == 0
    assert "private" not in capsys.readouterr().out


def test_table(root, capsys):
    finish(run_of(1).folder(root))
    fail(run_of(2, dataset="cog_l1").folder(root), "disk full")
    with locks.locked(run_of(2).folder(root), flag="--output_dir"):
        assert status.main(flags(root, "*", "in1k cog_l1", "1 2", "0 8")) == 0
        text = capsys.readouterr().out
    lines = [line.split("  ") for line in text.splitlines()]
    row = {words[0]: [word.strip() for word in words[1:] if word.strip()] for words in lines if words}
    assert row["a_net"] == ["2/2, 1/4 1r", "2/2, 0/4 1f", "4/4, 1/8 1r 1f"]
    assert row["b_net"] == ["0/2, 0/4", "0/2, 0/4", "0/4, 0/8"]
    assert row["all"] == ["2/4, 1/8 1r", "2/4, 0/8 1f", "4/8, 1/16 1r 1f"]
    assert "features: 4 done, 4 missing of 8" in text
    assert "classifier runs: 1 done, 1 running, 1 failed, 13 missing of 16" in text
    assert f"classifier of a_net on in1k, all images, seed 2: {os.path.basename(sys.argv[0])} on " in text
    assert "classifier of a_net on cog_l1, all images, seed 2: disk full (" in text


def test_flat_formats(root, capsys):
    finish(run_of(1).folder(root))
    arguments = flags(root)
    assert status.main([*arguments, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["kind"], row["split"], row["seed"], row["state"]) for row in rows] == [
        ("features", "train", "", "done"),
        ("features", "test", "", "done"),
        ("run", "", "1", "done"),
    ]
    assert status.main([*arguments, "--format", "json"]) == 0
    assert [record["folder"] for record in json.loads(capsys.readouterr().out)] == [
        str(root / "a/net/in1k/features_train"),
        str(root / "a/net/in1k/features_test"),
        str(root / "a/net/in1k/eval_logreg/seed-1"),
    ]


def test_variants_have_folders_of_their_own(root, capsys):
    finish(root / "a/net/in1k/eval_logreg_pca4/seed-1")
    assert status.main([*flags(root), "--format", "json", "CLF.PCA_DIM", "4"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["state"] == "done"
    with pytest.raises(CogError, match="EVAL.SEED is for a single run; give --seeds for a study"):
        status.main([*flags(root), "EVAL.SEED", "4"])


@pytest.mark.slow
def test_thousands_of_folders_are_fast(tmp_path, python, repository):
    """31 models x 6 data sets x 45 runs."""
    for model in range(31):
        for dataset in constants.DATASETS:
            base = tmp_path / f"m{model}/net/{dataset}"
            for shots in (0, *constants.SHOTS):
                for seed in constants.SEEDS:
                    folder = base / paths.evaluation_folder("logreg", shots) / f"seed-{seed}"
                    os.makedirs(folder)
                    os.close(os.open(folder / "results.json", os.O_CREAT | os.O_WRONLY))
    began = time.monotonic()
    done = subprocess.run(
        [python, "-m", "cog", "status", "--models_root_dir", str(tmp_path)], cwd=repository,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert time.monotonic() - began < 10
    assert "classifier runs: 8370 done of 8370" in done.stdout
