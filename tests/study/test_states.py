"""States of outputs, read from folders alone; the table of ``status``; deletion of features that nothing needs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time

import pytest
from result_folders import small_study

from cog.commands import status as command
from cog.errors import CogError
from cog.runtime import output
from cog.runtime.output import DONE, Output
from cog.study import delete, status, units
from cog.study.units import Study, Unit

FAILED_RUN = Unit("b_net", "cog_l1", "", 8, 2)


def finish(study: Study, *units_: Unit) -> None:
    for unit in units_:
        folder = study.folder(unit)
        folder.mkdir(parents=True)
        (folder / (units.FEATURES_RECORD if unit.split else units.RUN_RECORD)).write_text('{"identity": {}}')
        if unit.split:
            (folder / "X_Y.pth").write_bytes(b"features")


def fail(study: Study, unit: Unit, reason: str) -> None:
    with pytest.raises(CogError), Output(study.folder(unit), {}).claimed():
        raise CogError(reason)


@pytest.fixture
def study(tmp_path):
    """Two models on two data sets: everything is done but one run, which has failed."""
    made = small_study(tmp_path / "models")
    finish(made, *(unit for unit in made.units() if unit != FAILED_RUN))
    fail(made, FAILED_RUN, "out of\nmemory")
    (made.root / units.STUDY_FILE).write_text(made.as_json())
    return made


def show(study, capsys, *words: str) -> str:
    assert command.main(["--models_root_dir", str(study.root), *words]) == 0
    return capsys.readouterr().out


def test_states_come_from_folders(study):
    interrupted, missing, deleted = study.runs("a_net", "in1k")[0], *study.features("a_net", "in1k")
    shutil.rmtree(study.folder(interrupted))
    with Output(study.folder(interrupted), {}).claimed():
        assert units.survey(study)[interrupted].word == "running"
        assert "process" in units.survey(study)[interrupted].detail
    shutil.rmtree(study.folder(missing))
    (study.folder(deleted) / "X_Y.pth").unlink()
    states = units.survey(study)
    words = [states[unit].word for unit in (interrupted, missing, deleted, FAILED_RUN)]
    assert words == ["interrupted", "missing", "deleted", "failed"]
    assert (
        states[FAILED_RUN].detail == "out of memory" and list(states.values()).count(output.State(DONE)) == 20
    )


def test_features_of_the_original_toolkit_are_done(tmp_path):
    study = small_study(tmp_path)
    unit = study.features("a_net", "in1k")[0]
    study.folder(unit).mkdir(parents=True)
    (study.folder(unit) / "X_Y.pth").write_bytes(b"")
    assert units.survey(study)[unit].word == DONE


def test_status_shows_percentages_and_reasons(study, capsys):
    text = show(study, capsys)
    row = next(line for line in text.splitlines() if line.startswith("b_net"))
    assert row.split("  ")[1:] == ["2/2, 4/4", "2/2, 3/4 1f", "4/4, 7/8 1f"]
    assert "classifier runs: 15 done, 1 failed of 16 (93 %)" in text
    assert "failed:\n  classifier of b_net on cog_l1, N = 8, seed 2: out of memory\n" in text
    assert "b_net" not in show(study, capsys, "--model", "a_*")


def test_status_as_data(study, capsys):
    failed = [
        unit for unit in json.loads(show(study, capsys, "--format", "json")) if unit["state"] == "failed"
    ]
    assert failed == [
        {"kind": "run", "model": "b_net", "dataset": "cog_l1", "split": None, "n_shot": 8, "seed": 2,
         "state": "failed", "detail": "out of memory", "folder": str(study.folder(FAILED_RUN))}
    ]  # fmt: skip


def test_status_of_an_unknown_model_names_the_nearest(study):
    with pytest.raises(
        CogError, match="--model a_nte: there is no such model here; did you mean a_net"
    ) as error:
        command.main(["--models_root_dir", str(study.root), "--model", "a_nte"])
    assert error.value.exit_code == 2


def test_status_without_a_study_is_that_of_the_protocol(study, capsys):
    (study.root / units.STUDY_FILE).unlink()
    assert "of 540 (" in show(study, capsys)
    (study.root / units.STUDY_FILE).write_text('{"root": "x"}')
    with pytest.raises(CogError, match="do not describe a study"):
        show(study, capsys)


@pytest.mark.slow
def test_status_of_forty_models_takes_seconds(tmp_path):
    study = Study(tmp_path, tuple(f"a_{n}" for n in range(40)))
    finish(study, *study.units())
    began = time.monotonic()
    states = units.survey(study)
    text = status.draw(study, states)
    assert time.monotonic() - began < 10 and "10800 done of 10800 (100 %)" in text


# ---- --delete_features -----------------------------------------------------------------------------------------------


def features(study) -> set[str]:
    return {f"{path.parts[-5]}_{path.parts[-4]}/{path.parts[-3]}" for path in study.root.rglob("X_Y.pth")}


def test_features_that_nothing_needs_are_deleted(study, capsys, caplog):
    before = {path: path.read_bytes() for path in study.root.rglob("*.json")}
    deleted = delete.delete_features(study, units.survey(study))
    out = capsys.readouterr().out
    assert (
        len(deleted) == 6
        and features(study) == {"b_net/cog_l1"}
        and all(str(path) in out for path in deleted)
    )
    assert "features of b_net on cog_l1 are kept: 1 of 4 runs are not done" in caplog.text
    assert all(path.read_bytes() == content for path, content in before.items())
    assert delete.delete_features(study, units.survey(study)) == []
    assert "features: 2 done, 6 deleted of 8 (100 %)" in status.draw(study, units.survey(study))


@pytest.mark.parametrize(
    ("unfinished", "kept"),
    [
        ("in1k/eval_mlp/.seed-22.work", {"in1k"}),
        ("cog_l1/.analysis_cross.work", {"in1k", "cog_l1"}),
        ("in1k/.features_other.work", {"in1k"}),
    ],
)
def test_features_that_unfinished_work_may_need_stay(study, unfinished, kept):
    (study.root / "a/net" / unfinished).mkdir(parents=True)
    delete.delete_features(study, units.survey(study))
    assert features(study) == {f"a_net/{dataset}" for dataset in kept} | {"b_net/cog_l1"}


def test_features_of_a_damaged_run_stay(study, caplog):
    damaged = study.folder(study.runs("a_net", "in1k")[0]) / "results.json"
    damaged.write_text('{"status": "comp')
    delete.delete_features(study, units.survey(study))
    assert features(study) == {"a_net/in1k", "b_net/cog_l1"}
    assert f"features of a_net on in1k are kept: {damaged} is not valid JSON" in caplog.text


def test_a_study_is_read_as_it_was_written(study):
    again = Study.of_entries(json.loads(study.as_json()))
    assert again == study and dataclasses.asdict(again) == dataclasses.asdict(study)
