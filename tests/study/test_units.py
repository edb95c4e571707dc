"""States of outputs, read from folders alone, and the table of ``status``."""

import json
import shutil
import time

import pytest
from result_folders import make_seed_folder
from studies import small_study

from cog.commands import status as command
from cog.errors import CogError
from cog.runtime.output import DONE, Output
from cog.study import units
from cog.study.units import Study, Unit

FAILED_RUN = Unit("b_net", "cog_l1", "", 8, 2)


def finish(study: Study, wanted: list[Unit]) -> None:
    for unit in wanted:
        names = ("features.json", "X_Y.pth") if unit.split else ("results.json",)
        study.folder(unit).mkdir(parents=True)
        for name in names:
            (study.folder(unit) / name).write_text('{"identity": {}}')


@pytest.fixture
def study(tmp_path):
    """Two models on two data sets: everything is done but one run, which has failed."""
    made = small_study(tmp_path / "models")
    finish(made, [unit for unit in units.survey(made) if unit != FAILED_RUN])
    with pytest.raises(CogError), Output(made.folder(FAILED_RUN), {}).claimed():
        raise CogError("out of\nmemory")
    (made.root / units.STUDY_FILE).write_text(json.dumps(vars(made), default=str))
    return made


def show(study, capsys, *words: str) -> str:
    assert command.main(["--models_root_dir", str(study.root), *words]) == 0
    return capsys.readouterr().out


def test_states_come_from_folders(study):
    interrupted, missing, deleted = study.runs("a_net", "in1k")[0], *study.features("a_net", "in1k")
    shutil.rmtree(study.folder(interrupted))
    with Output(study.folder(interrupted), {}).claimed():
        state = units.survey(study)[interrupted]
        assert state.word == "running" and "process" in state.detail
    shutil.rmtree(study.folder(missing))
    (study.folder(deleted) / "X_Y.pth").unlink()
    of_original = study.features("b_net", "in1k")[0]
    (study.folder(of_original) / "features.json").unlink()
    run = study.runs("b_net", "in1k")[-1]
    shutil.rmtree(study.folder(run))
    make_seed_folder(study.root / "b/net/in1k/eval_logreg-N8/seed_2")
    states = units.survey(study)
    words = [states[unit].word for unit in (interrupted, missing, deleted, FAILED_RUN, of_original, run)]
    assert words == ["interrupted", "missing", "deleted", "failed", DONE, DONE]


def test_status_shows_percentages_and_reasons(study, capsys):
    text = show(study, capsys)
    row = next(line for line in text.splitlines() if line.startswith("b_net"))
    assert row.split("  ")[1:] == ["2/2, 4/4", "2/2, 3/4 1f", "4/4, 7/8 1f"]
    assert "classifier runs: 15 done, 1 failed of 16 (93 %)" in text
    assert "failed:\n  classifier of b_net on cog_l1, N = 8, seed 2: out of memory\n" in text
    assert "b_net" not in show(study, capsys, "--model", "a_*")
    rows = json.loads(show(study, capsys, "--format", "json"))
    assert vars(FAILED_RUN) | {"state": "failed", "detail": "out of memory"} in rows and len(rows) == 24
    (study.root / units.STUDY_FILE).unlink()
    assert "of 540 (" in show(study, capsys)  # of the protocol


@pytest.mark.slow
def test_status_of_ten_models_takes_a_second_or_two(tmp_path):
    study = Study(tmp_path, tuple(f"a_{n}" for n in range(10)))
    finish(study, list(units.survey(study)))
    began = time.process_time()
    text = units.draw(study, units.survey(study))
    assert time.process_time() - began < 2.5 and "2700 done of 2700 (100 %)" in text
