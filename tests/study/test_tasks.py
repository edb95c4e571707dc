"""From missing outputs to the list of tasks, and to the commands of SLURM, here programs that note words."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from studies import small_study

from cog.errors import CogError
from cog.runtime.output import DONE, State
from cog.study import slurm, tasks, units
from cog.study.tasks import Task


def words(numbered: dict[int, Task]) -> dict[int, str]:
    return {number: str(task) for number, task in numbered.items()}


def test_a_number_is_the_name_of_a_task_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MODELS_PER_PASS", 2)
    study = small_study(tmp_path, datasets=("in1k",))
    first = {1: "extract in1k a_net b_net", 2: "logreg in1k a_net", 3: "logreg in1k b_net"}
    assert words(tasks.list_tasks(study, tmp_path, append=False)) == first and not list(tmp_path.iterdir())
    assert words(tasks.list_tasks(study, tmp_path)) == first
    wider = small_study(tmp_path, models=("c_net", "b_net", "d_net", "e_net"), datasets=("in1k",))
    assert words(tasks.list_tasks(wider, tmp_path)) == {  # the listed pass stays as it is
        1: first[1],
        3: first[3],
        4: "extract in1k c_net d_net",
        5: "extract in1k e_net",
        6: "logreg in1k c_net",
        7: "logreg in1k d_net",
        8: "logreg in1k e_net",
    }
    assert words(tasks.list_tasks(study, tmp_path)) == first
    assert len((tmp_path / "tasks.txt").read_text().splitlines()) == 8


def append(folder: str, models: tuple[str, ...]) -> dict[int, str]:
    return words(tasks.list_tasks(small_study(Path(folder), models=models), Path(folder)))


def test_processes_that_append_at_once_agree(tmp_path):
    (tmp_path / "tasks.txt").write_text("extract in1k a_net\nlogreg in1")  # torn: a number that nobody uses
    wanted = [("a_net", "b_net"), ("b_net", "c_net"), ("a_net",), ("a_net", "b_net")] * 3
    with multiprocessing.get_context("fork").Pool(4) as pool:
        listed = pool.starmap(append, [(str(tmp_path), models) for models in wanted], chunksize=1)
    lines = (tmp_path / "tasks.txt").read_text().splitlines()
    assert lines[:2] == ["extract in1k a_net", "logreg in1"]
    for numbers in listed:
        assert {number: lines[number - 1] for number in numbers} == numbers
        assert all(lines.index(task) == number - 1 for number, task in numbers.items())


def test_what_is_done_or_not_needed_is_left_out(tmp_path):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    done = dict.fromkeys(units.survey(study), State(DONE))
    features, run = study.features("a_net", "in1k"), study.runs("a_net", "in1k")[0]

    def open_tasks(states=None) -> list[str]:
        listed = tasks.list_tasks(study, study.root, append=False).values()
        return [task.kind for task in listed if tasks.is_open(study, task, done | (states or {}))]

    deleted = dict.fromkeys(features, State(units.DELETED))
    assert open_tasks(dict.fromkeys(done, State("missing"))) == ["extract", "logreg"]
    assert open_tasks() == []
    assert open_tasks({run: State("failed", "why")}) == ["logreg"]
    assert open_tasks(deleted) == []
    assert open_tasks(deleted | {run: State("interrupted")}) == ["extract", "logreg"]
    assert open_tasks({run: State("other")}) == ["logreg"]
    assert open_tasks({features[1]: State("other"), run: State("other")}) == ["extract", "logreg"]


def fake_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    """SLURM's programs, which count jobs from 1 and write the words of sbatch into a file."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin")
    monkeypatch.setenv("SQUEUE_STATES", "all")  # a filter of the user, which must not reach squeue
    fake_program(programs, "squeue", '[ -z "$SQUEUE_STATES" ] && cat $0.txt 2> /dev/null || true')
    fake_program(programs, "scontrol", "echo 'MaxArraySize            = 77'")
    fake_program(programs, "sbatch", 'echo "$@" >> $0.txt; wc -l < $0.txt')
    return programs


def submit(study, log_dir: Path, *, dry_run: bool = False) -> None:
    listed = tasks.list_tasks(study, log_dir)
    commands = {"extract": ["python", "extract.py", "--e"], "logreg": ["python", "logreg.py", "--l"]}
    slurm.submit(listed, listed, commands, "table", ["--gres=gpu:1"], log_dir, dry_run=dry_run)


def test_jobs_of_a_study(tmp_path, fake_slurm, capsys):
    log_dir = tmp_path / "logs 100%"
    log_dir.mkdir()
    submit(small_study(tmp_path), log_dir, dry_run=True)
    assert not (fake_slurm / "sbatch.txt").exists()
    assert sum(line.startswith("sbatch ") for line in capsys.readouterr().out.splitlines()) == 4
    submit(small_study(tmp_path), log_dir)
    sent = (fake_slurm / "sbatch.txt").read_text().splitlines()
    name = f"--parsable --gres=gpu:1 --job-name={slurm.job_name(log_dir)} "
    assert all(line.startswith(name) for line in sent)
    assert "--array=1,2 --signal=B:USR1@120 --requeue" in sent[0] and "--dependency" not in sent[0]
    assert "logs 100%%/%a.log" in sent[0] and sent[0].endswith("tasks.txt python extract.py --e")
    assert "--dependency=afterany:1_1 --array=3,4" in sent[1]  # an array of classifiers for each extraction
    assert "--dependency=afterany:1_2 --array=5,6" in sent[2]
    assert "--dependency=afterany:1:2:3 " in sent[3] and sent[3].endswith("--wrap=table")


def test_what_is_queued_is_not_submitted_again(tmp_path, fake_slurm, capsys):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    (fake_slurm / "squeue.txt").write_text("7 1 PENDING\n6 2 COMPLETING\n")
    submit(study, tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == "1 tasks to submit, 1 are queued"
    assert "--dependency=afterany:7_1 --array=2" in (fake_slurm / "sbatch.txt").read_text()


def test_refusals_of_slurm(tmp_path, fake_slurm):
    study = small_study(tmp_path, models=("a_net",))
    fake_program(fake_slurm, "scontrol", "echo 'MaxArraySize = 4'")
    with pytest.raises(CogError, match=r"line 4 of .*MaxArraySize is 4 here; use another --log_dir"):
        submit(study, tmp_path)
    fake_program(fake_slurm, "squeue", "echo not now >&2; exit 1")
    with pytest.raises(CogError, match="squeue failed: not now"):
        submit(study, tmp_path)
