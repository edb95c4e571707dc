"""A study that deletes its features: last, only those that nothing needs any more, and not extracted again."""

from __future__ import annotations

import json
import shutil

import pytest

from cog import constants, paths
from cog.commands import status as status_command
from cog.commands import study as study_command
from cog.runtime import locks
from cog.study import delete, status, tasks, units

SEEDS, SHOTS = (1, 2), (0, 8)


@pytest.fixture
def study(tmp_path):
    """Two models on two data sets: everything is done but one run of ``b_net`` on cog_l1."""
    found = units.Study(
        root=tmp_path / "models", models=("a_net", "b_net"), datasets=("in1k", "cog_l1"), seeds=SEEDS, n_shots=SHOTS
    )  # fmt: skip
    for unit in found.units():
        folder = unit.folder(found.root)
        folder.mkdir(parents=True)
        if isinstance(unit, units.ExtractionUnit):
            (folder / constants.FEATURES_FILE).write_bytes(b"features")
            (folder / "features.json").write_text("{}")
        else:
            (folder / "results.json").write_text('{"status": "complete"}')
    shutil.rmtree(units.TrainingUnit("b_net", "cog_l1", "logreg", 8, 2).folder(found.root))
    return found


def features(study):
    return {f"{path.parts[-5]}_{path.parts[-4]}/{path.parts[-3]}" for path in study.root.rglob("X_Y.pth")}


def test_what_is_done_goes_and_is_listed(study, capsys, caplog):
    before = {path: path.read_bytes() for path in study.root.rglob("*.json")}
    deleted = delete.delete_features(study, units.survey(study))
    assert len(deleted) == 6 and features(study) == {"b_net/cog_l1"}
    out = capsys.readouterr().out
    assert all(str(path) in out for path in deleted) and "6 splits, 0.048 kB" in out
    assert "features of b_net on cog_l1 are kept: 1 of 4 runs are not done" in caplog.text
    assert all(path.read_bytes() == content for path, content in before.items())
    assert delete.delete_features(study, units.survey(study)) == []


@pytest.mark.parametrize(
    "unfinished",
    ["in1k/eval_mlp/seed-22/.resume", "cog_l1/analysis_cross/.resume", "in1k/features_other/.resume"],
)
def test_what_something_unfinished_needs_stays(study, unfinished):
    """Runs of other studies on the data set, and analyses of the model, whatever data set they are filed under."""
    (study.root / "a/net" / unfinished).mkdir(parents=True)
    delete.delete_features(study, units.survey(study))
    kept = {"a_net/in1k"} | ({"a_net/cog_l1"} if "analysis" in unfinished else set())
    assert features(study) == kept | {"b_net/cog_l1"}


def test_features_of_a_damaged_run_stay(study, caplog):
    damaged = units.TrainingUnit("a_net", "in1k", "logreg", 0, 1).folder(study.root) / "results.json"
    damaged.write_text('{"status": "comp')
    delete.delete_features(study, units.survey(study))
    assert features(study) == {"a_net/in1k", "b_net/cog_l1"}
    assert f"features of a_net on in1k are kept: {damaged} is not valid JSON" in caplog.text


def test_what_a_process_works_on_stays(study):
    folder = study.root / "a/net/in1k/eval_mlp/seed-22"
    with locks.locked(folder, flag="x"):
        delete.delete_features(study, units.survey(study))
    assert "a_net/in1k" in features(study)


def open_tasks(study):
    listed = tasks.list_tasks(study, study.root, append=False)
    return [str(task) for task in tasks.open_tasks(study, listed, units.survey(study)).values()]


def test_not_extracted_again_unless_a_run_needs_it(study):
    delete.delete_features(study, units.survey(study))
    assert open_tasks(study) == ["logreg cog_l1 b_net"]
    shutil.rmtree(units.TrainingUnit("a_net", "in1k", "logreg", 0, 1).folder(study.root))
    assert open_tasks(study) == ["extract in1k a_net", "logreg in1k a_net", "logreg cog_l1 b_net"]


def test_status_says_deleted(study, capsys):
    delete.delete_features(study, units.survey(study))
    text = status.draw(study, units.survey(study))
    assert "features: 2 done, 6 features deleted of 8 (100 %)" in text
    capsys.readouterr()
    status_command.main([
        "--models_root_dir", str(study.root), "--datasets", "in1k", "cog_l1", "--seeds", "1", "2",
        "--shots", "0", "8", "--format", "json",
    ])  # fmt: skip
    states = [unit["state"] for unit in json.loads(capsys.readouterr().out) if unit["kind"] == "features"]
    assert sorted(states) == ["deleted"] * 6 + ["done"] * 2


def test_new_features_end_it(study):
    """The note of a deletion does not count beside features."""
    delete.delete_features(study, units.survey(study))
    unit = units.ExtractionUnit("a_net", "in1k", "train")
    (unit.folder(study.root) / constants.FEATURES_FILE).write_bytes(b"new")
    assert units.survey(study)[unit].state == units.DONE


def test_the_command_deletes_last(study, tmp_path, monkeypatch, capsys):
    """Nothing is deleted by a dry run, nor without the flag."""
    monkeypatch.setattr(study_command.study_results, "show", lambda *_: None)
    (paths.ModelDir(study.root, "b_net").path / "cog_l1/features_train/X_Y.pth").unlink()
    argv = ["--models_root_dir", str(study.root), "--log_dir", str(tmp_path / "logs"), "--models", "a_net",
            "--datasets", "in1k", "--seeds", "1", "2", "--shots", "0", "8"]  # fmt: skip
    for more in ([], ["--delete_features", "--dry_run"]):
        assert study_command.main([*argv, *more]) == 0
        assert "a_net/in1k" in features(study)
    assert study_command.main([*argv, "--delete_features"]) == 0
    assert "a_net/in1k" not in features(study) and "a_net/cog_l1" in features(study)
    assert "features_train/X_Y.pth (0.008 kB)" in capsys.readouterr().out
    assert study_command.main([*argv, "--delete_features"]) == 0
