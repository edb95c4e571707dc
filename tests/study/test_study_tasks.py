"""From missing units to the list of tasks and sbatch commands."""

from __future__ import annotations

import multiprocessing
import shlex
from pathlib import Path

import pytest
from result_folders import small_study

from cog.commands import study as command
from cog.errors import CogError
from cog.runtime import locks
from cog.study import slurm, tasks, units
from cog.study.tasks import StudyTask
from cog.study.units import DELETED, DONE, FAILED, INTERRUPTED, MISSING, QUEUED, RUNNING, Status, Study


def all_missing(study: Study) -> dict:
    return {unit: Status(MISSING) for unit in study.units()}


def lines_of(log_dir: Path) -> list[str]:
    return (log_dir / "tasks.txt").read_text().splitlines()


# ---- the list --------------------------------------------------------------------------------------------------------


def test_a_number_is_the_name_of_a_task_for_ever(tmp_path):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    assert tasks.list_tasks(study, tmp_path) == {
        1: StudyTask("extract", "in1k", "a_net"),
        2: StudyTask("logreg", "in1k", "a_net"),
    }
    wider = small_study(tmp_path, models=("b_net", "a_net"), datasets=("in1k",))
    found = tasks.list_tasks(wider, tmp_path)
    assert {number: str(task) for number, task in found.items()} == {
        1: "extract in1k a_net", 2: "logreg in1k a_net", 3: "extract in1k b_net", 4: "logreg in1k b_net",
    }  # fmt: skip
    assert lines_of(tmp_path) == [str(found[number]) for number in (1, 2, 3, 4)]
    assert tasks.list_tasks(study, tmp_path) == {1: found[1], 2: found[2]}


def test_nothing_is_written_without_append(tmp_path):
    study = small_study(tmp_path)
    assert list(tasks.list_tasks(study, tmp_path, append=False)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not list(tmp_path.iterdir())


def test_a_torn_line_is_a_number_that_nobody_uses(tmp_path):
    (tmp_path / "tasks.txt").write_text("extract in1k a_net\nlogreg in1")
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    assert {number: str(task) for number, task in tasks.list_tasks(study, tmp_path).items()} == {
        1: "extract in1k a_net",
        3: "logreg in1k a_net",
    }
    assert lines_of(tmp_path)[2] == "logreg in1k a_net"


def append(folder: str, models: tuple[str, ...]) -> dict[int, str]:
    found = tasks.list_tasks(small_study(Path(folder), models=models), Path(folder))
    return {number: str(task) for number, task in found.items()}


def test_processes_that_append_at_once_agree(tmp_path):
    wanted = [("a_net", "b_net"), ("b_net", "c_net"), ("a_net",), ("a_net", "b_net")] * 3
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.starmap(append, [(str(tmp_path), models) for models in wanted], chunksize=1)
    lines = lines_of(tmp_path)
    for numbers in found:
        assert {number: lines[number - 1] for number in numbers} == numbers
        assert all(lines.index(task) == number - 1 for number, task in numbers.items())


# ---- what is to do ---------------------------------------------------------------------------------------------------


def open_of(study: Study, statuses) -> list[str]:
    listed = tasks.list_tasks(study, study.root, append=False)
    return [str(task) for task in tasks.open_tasks(study, listed, statuses).values()]


def test_what_is_done_is_left_out(tmp_path):
    study = small_study(tmp_path, datasets=("in1k",))
    statuses = all_missing(study)
    for unit in (*study.extractions("a_net", "in1k"), *study.trainings("b_net", "in1k")):
        statuses[unit] = Status(DONE)
    assert open_of(study, statuses) == ["extract in1k b_net", "logreg in1k a_net"]
    assert not open_of(study, dict.fromkeys(statuses, Status(DONE)))


@pytest.mark.parametrize("state", [FAILED, INTERRUPTED])
def test_failed_and_interrupted_are_repeated(tmp_path, state):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    assert len(open_of(study, {unit: Status(state) for unit in study.units()})) == 2


def test_deleted_features_are_extracted_again_only_for_a_run(tmp_path):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    statuses = dict.fromkeys(study.units(), Status(DONE))
    statuses |= dict.fromkeys(study.extractions("a_net", "in1k"), Status(DELETED))
    assert not open_of(study, statuses)
    statuses[study.trainings("a_net", "in1k")[0]] = Status(MISSING)
    assert open_of(study, statuses) == ["extract in1k a_net", "logreg in1k a_net"]


def test_classifiers_wait_for_features_that_another_process_extracts(tmp_path, caplog):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    statuses = all_missing(study)
    statuses |= dict.fromkeys(study.extractions("a_net", "in1k"), Status(RUNNING, "process 5 on host"))
    assert not open_of(study, statuses)
    assert "left out: logreg in1k a_net: features of a_net on in1k train: process 5 on host" in caplog.text


# ---- SLURM -----------------------------------------------------------------------------------------------------------


def fake_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    """SLURM's programs, which count jobs from 1 and write the words of sbatch, one call per line, into a file."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin")
    fake_program(programs, "squeue", "cat $0.txt 2> /dev/null || true")
    fake_program(programs, "scontrol", "echo 'MaxArraySize            = 77'")
    fake_program(programs, "sbatch", 'echo "$@" >> $0.txt; wc -l < $0.txt')
    return programs


def submit(study: Study, log_dir: Path, *, dry_run: bool = False) -> None:
    listed = tasks.list_tasks(study, log_dir)
    commands = tasks.Commands(("python", "extract.py", "--e"), ("python", "logreg.py", "--l"))
    flags = {"extract": ["--gres=gpu:1"], "logreg": ["--time=5"], "results": []}
    slurm.submit(listed, listed, commands, ["table"], slurm.SlurmOptions(flags, 3), log_dir, dry_run=dry_run)


def test_jobs_of_a_study(tmp_path, fake_slurm, capsys):
    log_dir = tmp_path / "logs 100%"
    log_dir.mkdir()
    submit(small_study(tmp_path), log_dir)
    name = slurm.job_name(log_dir)
    sent = (fake_slurm / "sbatch.txt").read_text().splitlines()
    assert [line.split()[1] for line in sent] == [
        "--gres=gpu:1",
        "--time=5",
        "--time=5",
        f"--job-name={name}",
    ]
    assert "--array=1,2,3,4%3 --signal=B:USR1@120 --requeue" in sent[0] and "--dependency" not in sent[0]
    assert "logs 100%%/%a.log" in sent[0] and sent[0].endswith("tasks.txt python extract.py --e")
    assert "--dependency=afterany:1_1:1_2 --array=5,6%3" in sent[1]
    assert "--dependency=afterany:1_3:1_4 --array=7,8%3" in sent[2]
    assert "--dependency=afterany:1:2:3 " in sent[3] and sent[3].endswith("--wrap=table")
    assert capsys.readouterr().out.splitlines()[0] == "8 tasks to submit, 0 are queued"


def test_what_is_queued_is_not_submitted_again(tmp_path, fake_slurm, capsys):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    (fake_slurm / "squeue.txt").write_text("7 1 PENDING\n6 2 COMPLETING\n")
    submit(study, tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == "1 tasks to submit, 1 are queued"
    assert "--dependency=afterany:7_1 --array=2%3" in (fake_slurm / "sbatch.txt").read_text()
    listed = tasks.list_tasks(study, tmp_path)
    shown = slurm.with_queue(study, all_missing(study), listed, slurm.queued_tasks(tmp_path))
    assert {shown[unit] for unit in study.extractions("a_net", "in1k")} == {Status(QUEUED, "SLURM job 7_1")}


def test_a_dry_run_submits_nothing(tmp_path, fake_slurm, capsys):
    submit(small_study(tmp_path), tmp_path, dry_run=True)
    assert not (fake_slurm / "sbatch.txt").exists()
    assert sum(line.startswith("sbatch ") for line in capsys.readouterr().out.splitlines()) == 4


def test_many_models_are_few_jobs(tmp_path, fake_slurm):
    fake_program(fake_slurm, "scontrol", "echo 'MaxArraySize = 1001'")
    submit(small_study(tmp_path, models=tuple(f"a_{n}" for n in range(20)), datasets=("in1k",)), tmp_path)
    assert (
        len((fake_slurm / "sbatch.txt").read_text().splitlines()) == 5
    )  # 1 extraction, 3 of classifiers, 1 results


def test_answers_of_slurm(tmp_path, fake_slurm, monkeypatch):
    study = small_study(tmp_path)
    fake_program(fake_slurm, "scontrol", "echo 'MaxArraySize = 8'")
    with pytest.raises(CogError, match=r"line 8 of .*MaxArraySize is 8 here; use another --log_dir"):
        submit(study, tmp_path)
    fake_program(fake_slurm, "scontrol", "true")
    fake_program(fake_slurm, "sbatch", "echo sbatch: no >&2; exit 1")
    with pytest.raises(CogError, match="sbatch failed: sbatch: no"):
        submit(study, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(CogError, match="squeue was not found"):
        slurm.queued_tasks(tmp_path)


def test_slurm_gets_no_filters_of_the_user_and_nothing_of_the_job_that_submits(monkeypatch):
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "here", "SBATCH_ACCOUNT": "me", "OTHER": "1"}
    dropped = (
        "SQUEUE_STATES", "SQUEUE_PARTITION", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT",
        "SLURM_JOB_ID",
    )  # fmt: skip
    for name, value in (kept | dict.fromkeys(dropped, "3")).items():
        monkeypatch.setenv(name, value)
    passed = dict(line.partition("=")[::2] for line in slurm.run_slurm("env").splitlines())
    assert kept.items() <= passed.items()
    assert not passed.keys() & set(dropped)


# ---- the command -----------------------------------------------------------------------------------------------------


def arguments(workshop, log_dir, *more: str) -> list[str]:
    return [
        "--models_root_dir", str(workshop.models), "--models", "tiny_net", "--log_dir", str(log_dir),
        "--model_loader", f"{workshop.loader}:load_my_model", "--in1k_images_root", str(workshop.in1k),
        "--datasets", "in1k", "--seeds", "1", "--shots", "0", *more,
    ]  # fmt: skip


def test_arguments_reach_their_scripts(workshop, tmp_path, capsys):
    code = command.main(arguments(
        workshop, tmp_path / "logs", "--dry_run", "--allow_failures", "3", "--device", "cpu",
        "FT_EXTRACT.N_WORKERS", "0", "CLF.N_EPOCHS", "2",
    ))  # fmt: skip
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert [Path(words[1]).name for words in commands] == ["extract_features.py", "logreg.py"]
    assert commands[0][2:6] == commands[1][2:6] == ["--dataset", "in1k", "--model", "tiny_net"]
    assert commands[0][-3:] == ["--allow_failures=3", "FT_EXTRACT.N_WORKERS", "0"]
    assert commands[1][-3:] == ["--device=cpu", "CLF.N_EPOCHS", "2"]
    assert lines[-1].startswith("# tiny_net: ") and "tried on n01440764" in lines[-1]
    assert not (tmp_path / "logs").exists()


def test_what_waits_for_another_process_is_told_once(workshop, tmp_path, caplog):
    folder = workshop.models / "tiny/net/in1k/features_train"
    folder.mkdir(parents=True)
    with locks.locked(folder, flag="--output_dir"):
        assert command.main(arguments(workshop, tmp_path / "logs", "--dry_run")) == 0
    assert caplog.text.count("left out: logreg in1k tiny_net") == 1


def test_a_dry_run_names_a_model_that_fails(workshop, tmp_path, capsys):
    workshop.loader.write_text("def load_my_model(init_args):\n    raise ValueError('no such layer')\n")
    assert command.main(arguments(workshop, tmp_path / "logs", "--dry_run")) == 2
    assert "no such layer" in capsys.readouterr().out.splitlines()[-1]


def test_a_limited_study_extracts_from_the_root_and_works_below_it(workshop, tmp_path, capsys):
    assert command.main(arguments(workshop, tmp_path / "logs", "--dry_run", "--limit", "2")) == 0
    lines = capsys.readouterr().out.splitlines()
    extract, logreg = (shlex.split(line)[2:] for line in lines if not line.startswith("#"))
    assert f"--models_root_dir={workshop.models}" in extract and "--limit=2" in extract
    assert f"--models_root_dir={workshop.models}/limit-2" in logreg
    assert logreg[-4:] == ["CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "2"]


@pytest.mark.parametrize(("more", "message"), [
    (["CLF.NO_SUCH", "1"], "unknown configuration key CLF.NO_SUCH"),
    (["EVAL.SEED", "1"], "EVAL.SEED is for a single run"),
    (["--datasets", "cog_l1"], "the features of cog_l1 are missing, and extracting them needs --imagenet_images_root"),
    (["--datasets", "in 1k"], "is not a data set name"),
])  # fmt: skip
def test_wrong_input_is_told_before_anything_is_done(workshop, tmp_path, more, message):
    with pytest.raises(CogError, match=message) as error:
        command.main(arguments(workshop, tmp_path / "logs", *more))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "logs").exists()


def test_order_of_pairs(tmp_path):
    pairs = units.Study(tmp_path, ("a_b",)).pairs()
    assert pairs == [("a_b", dataset) for dataset in ("in1k", *(f"cog_l{k}" for k in range(1, 6)))]
