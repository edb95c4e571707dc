"""From missing units to tasks, task lists and sbatch commands."""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_folders import small_study

from cog import constants
from cog.commands import slurm_flags
from cog.commands import study as command
from cog.errors import CogError
from cog.runtime import locks
from cog.study import plan as study_plan
from cog.study import slurm, units
from cog.study.slurm import Array, Dependencies, QueuedJobs, SlurmOptions
from cog.study.units import (
    DONE,
    FAILED,
    INTERRUPTED,
    MISSING,
    QUEUED,
    RUNNING,
    ExtractionUnit,
    Status,
    Study,
    TrainingUnit,
)

NOTHING_AHEAD = QueuedJobs()


def make_plan(study, statuses=None, ahead=NOTHING_AHEAD, **options):
    """Return the plan of a study; without statuses everything is missing."""
    statuses = all_missing(study) if statuses is None else statuses
    commands = study_plan.ScriptCommands(study.root, study.root)
    return study_plan.make_plan(study, statuses, ahead, commands, **options)


def all_missing(study: Study) -> dict:
    return {unit: Status(MISSING) for unit in study.units()}


def test_everything_is_missing(tmp_path):
    study = small_study(tmp_path)
    plan = make_plan(study)
    extract, logreg = plan.arrays
    assert (extract.name, logreg.name, logreg.after.arrays) == ("extract", "logreg", ("extract",))
    assert list(extract.commands) == list(logreg.commands) == [0, 1, 2, 3]
    assert extract.commands[1] == [
        sys.executable, str(study_plan.REPOSITORY / "extract_features.py"), f"--models_root_dir={tmp_path}",
        "--model=a_net", "--dataset=cog_l1", "--split", "train", "test",
    ]  # fmt: skip
    assert logreg.commands[2] == [
        sys.executable, str(study_plan.REPOSITORY / "logreg.py"), f"--models_root_dir={tmp_path}", "--model=b_net",
        "--dataset=in1k", "--seeds", "1", "2", "--n_shots", "0", "8",
    ]  # fmt: skip
    covered = [unit for array in plan.arrays for some in array.units.values() for unit in some]
    assert sorted(map(str, covered)) == sorted(map(str, study.units()))
    assert not plan.held_back


def test_numbers_correspond_and_what_is_done_is_left_out(tmp_path):
    """Classifiers whose features are there wait for nothing; the others for the task of their own number."""
    study = small_study(tmp_path)
    statuses = all_missing(study)
    for split in constants.SPLITS:
        statuses[ExtractionUnit("a_net", "cog_l1", split)] = Status(DONE)
    statuses[ExtractionUnit("b_net", "in1k", "test")] = Status(DONE)
    for unit in study.trainings("b_net", "cog_l1"):
        statuses[unit] = Status(DONE)
    statuses[TrainingUnit("a_net", "in1k", "logreg", 8, 2)] = Status(DONE)
    extract, *trainings = make_plan(study, statuses).arrays
    assert list(extract.commands) == [0, 2, 3]
    assert extract.commands[2][-2:] == ["--split", "train"]
    waiting, free = trainings
    assert (waiting.after.arrays, list(waiting.commands)) == (("extract",), [0, 2])
    assert (free.after, list(free.commands)) == (Dependencies(), [1])
    # The run that is done is skipped by logreg.py: one call for all keeps the features loaded once.
    assert waiting.commands[0][-6:] == ["--seeds", "1", "2", "--n_shots", "0", "8"]
    assert TrainingUnit("a_net", "in1k", "logreg", 8, 2) not in waiting.units[0]


@pytest.mark.parametrize("state", [FAILED, INTERRUPTED])
def test_failed_and_interrupted_are_repeated(tmp_path, state):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    plan = make_plan(study, {unit: Status(state) for unit in study.units()})
    assert [len(array.commands) for array in plan.arrays] == [1, 1]


def test_what_is_queued_or_running_is_not_submitted_again(tmp_path):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    train, test = study.extractions("a_net", "in1k")
    queued = TrainingUnit("a_net", "in1k", "logreg", 0, 1)
    ahead = QueuedJobs(
        {train: ("12_0", "RUNNING"), test: ("13_4", "PENDING"), queued: ("14_0", "PENDING")}, ()
    )
    statuses = all_missing(study)
    statuses[train] = Status(RUNNING, "here")
    statuses = study_plan.with_queue(statuses, ahead)
    assert statuses[test] == Status(QUEUED, "SLURM job 13_4, pending")
    assert statuses[train] == Status(RUNNING, "here")
    plan = make_plan(study, statuses, ahead)
    assert {array.kind for array in plan.arrays} == {"logreg"}
    # Task 0 of job 12 has the number of the pair, so that one array can wait for all such tasks.
    assert all(array.after == Dependencies((), ("12",), ("13_4",)) for array in plan.arrays)
    commands = [array.commands[0] for array in plan.arrays]
    runs = sorted(" ".join(words[words.index("--seeds") :]) for words in commands)
    assert runs == ["--seeds 1 2 --n_shots 8", "--seeds 2 --n_shots 0"]


def test_nobody_waits_for_an_unknown_process(tmp_path):
    """Features that something outside the scheduler extracts now: no dependency can say so."""
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    statuses = all_missing(study)
    statuses[ExtractionUnit("a_net", "in1k", "test")] = Status(
        RUNNING, "extract_features.py on host, process 5"
    )
    plan = make_plan(study, statuses)
    assert [array.kind for array in plan.arrays] == ["extract"]
    assert plan.arrays[0].commands[0][-1] == "train"
    assert plan.held_back == (
        "4 classifier runs of a_net on in1k wait for features of a_net on in1k test: extract_features.py on host, "
        "process 5",
    )


def test_tasks_of_models_that_are_left_out(tmp_path):
    plan = make_plan(small_study(tmp_path), max_array_size=2)
    assert [array.name for array in plan.without(["a_net"]).arrays] == ["extract-2", "logreg-2"]
    extract, logreg = make_plan(small_study(tmp_path)).without(["a_net"]).arrays
    assert list(extract.commands) == list(extract.units) == list(logreg.commands) == [2, 3]
    assert plan.without(["a_net", "b_net"]).arrays == ()


def test_arrays_of_limited_size(tmp_path):
    plan = make_plan(small_study(tmp_path), max_array_size=3)
    assert [(array.name, list(array.commands), array.after.arrays) for array in plan.arrays] == [
        ("extract", [0, 1, 2], ()),
        ("extract-2", [0], ()),
        ("logreg", [0, 1, 2], ("extract",)),
        ("logreg-2", [0], ("extract-2",)),
    ]


@settings(deadline=None)  # a busy machine is no failure
@given(st.data())
def test_grids_cover_what_is_missing_and_touch_nothing_taken(data):
    seeds, shots = [1, 2, 3], [0, 1, 8]
    runs = [(seed, shot) for seed in seeds for shot in shots]
    states = {run: data.draw(st.sampled_from(["missing", "taken", "done"])) for run in runs}
    missing = [
        TrainingUnit("a_b", "in1k", "logreg", shot, seed)
        for (seed, shot), s in states.items()
        if s == "missing"
    ]
    taken = {run for run, state in states.items() if state == "taken"}
    calls = study_plan.as_seed_shot_grids(missing, taken)
    named = [(seed, shot) for call_seeds, call_shots in calls for seed in call_seeds for shot in call_shots]
    assert len(named) == len(set(named))
    assert not taken & set(named)
    assert {(unit.seed, unit.n_shot) for unit in missing} <= set(named)
    if not taken:
        assert len(calls) <= 1


def test_task_lists_survive_the_shell(tmp_path):
    """Every argument arrives as it was; line n + 1 is task n."""
    odd = [
        "a b", "it's", '"x"', "$HOME", "`id`", "*", "back\\slash", "tab\there", "", "ü", "--flag=[0.5, 0.5]",
        "a;b",
    ]  # fmt: skip
    array = Array("logreg", "logreg", commands={1: ["printf", "%s\\0", *odd], 3: ["true"]})
    lines = array.task_list().splitlines()
    assert [line.startswith("#") for line in lines] == [True, False, True, False]
    done = subprocess.run(
        ["bash", "-c", 'eval "command=($1)"; "${command[@]}"', "-", lines[1]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\0")[:-1] == odd
    with pytest.raises(CogError, match="line break"):
        slurm.command_line(["a\nb"])


@settings(deadline=None)  # a busy machine is no failure
@given(st.sets(st.integers(0, 60), min_size=1))
def test_array_numbers(numbers):
    text = slurm.number_ranges(numbers)
    ranges = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    assert [number for ends in ranges for number in range(ends[0], ends[-1] + 1)] == sorted(numbers)
    assert len(ranges) == sum(number - 1 not in numbers for number in numbers)


def slurm_options(*flags: str) -> SlurmOptions:
    args = command.parse_args(["--models_root_dir=/models", "--log_dir=/logs/100%", *flags])
    return slurm_flags.options(args, Path(args.log_dir))


def test_sbatch_command():
    options = slurm_options(
        "--sbatch_args=--partition=gpu --constraint='a100|h100'",
        "--gpus=2",
        "--logreg_sbatch_args=--nice=3",
        "--slurm",
    )
    array = Array("logreg", "logreg", Dependencies(("extract",), ("8",), ("9_1", "9_3")),
                  commands={0: ["true"], 2: ["true"]}, throttle=5)  # fmt: skip
    words = slurm.sbatch(array, options, task_list=Path("/logs/list.txt"), jobs={"extract": "77"})
    assert words == [
        "sbatch", "--parsable", "--job-name=cog-logreg", "--array=0,2%5", "--requeue", "--signal=B:USR1@120",
        "--dependency=aftercorr:77,aftercorr:8,afterok:9_1:9_3", "--kill-on-invalid-dep=yes",
        "--output=/logs/100%%/logs/%x-%A_%a.log", "--open-mode=append", "--gres=gpu:2", "--partition=gpu",
        "--constraint=a100|h100", "--nice=3", str(options.task_script), "/logs/list.txt", "100",
    ]  # fmt: skip
    assert options.flags["results"] == ["--partition=gpu", "--constraint=a100|h100"]


def test_records_of_submissions(tmp_path, monkeypatch):
    """What was submitted for another root, or has ended, is not ahead."""
    unit, run = ExtractionUnit("a_net", "in1k", "test"), TrainingUnit("a_net", "in1k", "logreg", 8, 22)
    other = ExtractionUnit("b_net", "in1k", "test")
    submission = slurm.Submission(tmp_path)
    submission.path.mkdir(parents=True)
    submission.add("12", kind="extract", root=tmp_path, units={0: [unit], 3: [other]})
    submission.add("13", kind="logreg", root=tmp_path, units={0: [run]})
    submission.add("14", kind="results", root=tmp_path, units={})
    assert slurm.Submission(tmp_path).path.name == "0002"
    monkeypatch.setattr(
        slurm, "queued_tasks", lambda: {"12_0": "RUNNING", "13_0": "PENDING", "14": "PENDING"}
    )
    ahead = slurm.queued_jobs(tmp_path, tmp_path)
    assert ahead == QueuedJobs({unit: ("12_0", "RUNNING"), run: ("13_0", "PENDING")}, ("14",))
    monkeypatch.setattr(slurm, "queued_tasks", lambda: pytest.fail("nothing was submitted for this root"))
    assert slurm.queued_jobs(tmp_path, tmp_path / "other") == NOTHING_AHEAD
    (submission.path / "jobs.json").write_text('{"jobs": 3}')
    with pytest.raises(CogError, match="is not the record of a submission"):
        slurm.queued_jobs(tmp_path, tmp_path)


def fake_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_answers_of_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    fake_program(tmp_path, "scontrol", "echo 'MaxArraySize            = 77'")
    assert slurm.max_array_size() == 77
    fake_program(tmp_path, "scontrol", "exit 1")
    assert slurm.max_array_size() == 1001
    fake_program(tmp_path, "sbatch", "echo '12;cluster'")
    assert slurm.submit(["sbatch"]) == "12"
    fake_program(tmp_path, "sbatch", "echo sbatch: no >&2; exit 1")
    with pytest.raises(CogError, match="sbatch failed: sbatch: no"):
        slurm.submit(["sbatch"])
    fake_program(tmp_path, "sbatch", "echo Submitted")
    with pytest.raises(CogError, match="expected the number of a job"):
        slurm.submit(["sbatch"])
    answer = ["5|3|RUNNING", "5|4|COMPLETING", "6|N/A|PENDING"]
    fake_program(tmp_path, "squeue", "\n".join(["cat << EOF", *answer, "EOF"]))
    assert slurm.queued_tasks() == {"5_3": "RUNNING", "6": "PENDING"}
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(CogError, match="squeue was not found"):
        slurm.queued_tasks()


def test_jobs_with_a_name_of_the_user_are_found_in_the_queue(tmp_path, monkeypatch):
    """``sbatch_args=--job-name=myexp`` must not lead to a second submission."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    # As squeue does: a line of the wanted fields.
    script = """for format; do :; done
        echo "${format#--format=}" | sed 's/%F/8/; s/%K/0/; s/%T/PENDING/; s/%j/myexp/'"""
    fake_program(tmp_path, "squeue", script)
    assert slurm.queued_tasks() == {"8_0": "PENDING"}


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
    assert commands[0][-3:] == ["--allow_failures=3", "FT_EXTRACT.N_WORKERS", "0"]
    assert commands[1][-3:] == ["--device=cpu", "CLF.N_EPOCHS", "2"]
    assert lines[-1].startswith("# tiny_net: ") and "tried on n01440764" in lines[-1]
    assert not (tmp_path / "logs").exists()


def test_a_dry_run_names_a_model_that_fails(workshop, tmp_path, capsys):
    workshop.loader.write_text("def load_my_model(init_args):\n    raise ValueError('no such layer')\n")
    assert command.main(arguments(workshop, tmp_path / "logs", "--dry_run")) == 2
    assert "no such layer" in capsys.readouterr().out.splitlines()[-1]


def test_a_limited_study_extracts_from_the_root_and_works_below_it(workshop, tmp_path, capsys):
    assert command.main(arguments(workshop, tmp_path / "logs", "--dry_run", "--limit", "2")) == 0
    lines = capsys.readouterr().out.splitlines()
    extract, logreg = (shlex.split(line)[2:] for line in lines if not line.startswith("#"))
    assert extract[0] == f"--models_root_dir={workshop.models}" and "--limit=2" in extract
    assert logreg[0] == f"--models_root_dir={workshop.models}/limit-2"
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


def test_one_study_at_a_time_per_log_folder(workshop, tmp_path):
    with (
        locks.locked(tmp_path / "logs", flag="--log_dir"),
        pytest.raises(locks.LockedError, match="is being written by"),
    ):
        command.main(arguments(workshop, tmp_path / "logs"))


def test_order_of_units_does_not_depend_on_the_file_system(tmp_path):
    study = small_study(tmp_path)
    statuses = list(all_missing(study).items())
    random.Random(0).shuffle(statuses)
    assert make_plan(study, dict(statuses)) == make_plan(study)
    assert units.Study(tmp_path, ("a_b",)).pairs() == [("a_b", dataset) for dataset in constants.DATASETS]
