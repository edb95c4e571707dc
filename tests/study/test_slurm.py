"""Studies on a real SLURM of one node (``local_slurm.py``): arrays, dependencies, interruptions, and a whole study."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import local_slurm
import pytest
import tiny

pytestmark = pytest.mark.slurm

#: Features of 16 x 16 pixels, and classifiers of a moment.
QUICK = [
    "--device", "cpu", "FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16",
    "FT_EXTRACT.N_WORKERS", "0", "CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def _slurm():
    reason = local_slurm.missing()
    if reason:
        pytest.skip(reason)
    # Not below pytest's folder, whose name is too long for a socket.
    with (
        tempfile.TemporaryDirectory(prefix="cog-slurm-") as folder,
        local_slurm.local_slurm(Path(folder)) as slurm,
    ):
        yield slurm


@pytest.fixture
def slurm(_slurm):
    """A SLURM without jobs."""
    yield _slurm
    _slurm.cancel_all()


#: A script of a study for task.sh: it gets --dataset D --model M, and runs the shell command in the file <M>.sh.
#: Like the real scripts, it queues its task again when SLURM has warned it of the time limit.
RUNS_MODEL = """
import os, subprocess, sys
from cog.runtime import cli, signals

def main(argv):
    with signals.deferred():
        for step in range(2000):
            code = subprocess.run(["bash", os.path.join(sys.argv[5], sys.argv[4] + ".sh"), str(step)]).returncode
            if code not in (1, -15):  # SIGTERM goes to all processes of a job
                return code
            signals.check("saved")

cli.run(main)
"""


@pytest.fixture
def task(slurm, repository, python, tmp_path):
    """Submit shell commands as tasks of a list, through task.sh; returns the job and the log of a task.

    A command is run again and again until it ends with another exit code than 1.
    """

    def submit(*commands: str, options: tuple[str, ...] = ()):
        script, path = tmp_path / "script.py", tmp_path / "tasks.txt"
        script.write_text(RUNS_MODEL)
        path.write_text("".join(f"extract in1k a_{number}\n" for number in range(1, len(commands) + 1)))
        for number, command in enumerate(commands, 1):
            (tmp_path / f"a_{number}.sh").write_text(command)
        job = slurm.sbatch(
            f"--array=1-{len(commands)}", f"--output={tmp_path}/%A_%a.log", "--open-mode=append", *options,
            f"--export=ALL,PYTHONPATH={repository}",
            str(repository / "bash-scripts/slurm/task.sh"), str(path), python, str(script), str(tmp_path),
        )  # fmt: skip
        return job, lambda number: (tmp_path / f"{job}_{number}.log").read_text()

    return submit


@pytest.fixture
def submit_study(slurm, repository, python):
    """Run submit_study.sh; returns the finished process."""

    def submit(*arguments: str, code: int = 0, **environment: str):
        done = subprocess.run(
            ["bash", str(repository / "bash-scripts/slurm/submit_study.sh"), *arguments],
            env=slurm.environment | {"COG_PYTHON": python, "OMP_NUM_THREADS": "1"} | environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return submit


def jobs_of(done) -> dict[str, list[str]]:
    """Return jobs by stage from what submit_study.sh printed."""
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line[:1].isdigit() and line.split()[1].endswith(":"):
            found.setdefault(line.split()[1].rstrip(":"), []).append(line.split()[0])
    return found


def all_of(jobs: dict[str, list[str]]) -> list[str]:
    return [job for some in jobs.values() for job in some]


#: A unit of work, which counts in a file; the third is the last.
COUNTS = """
n=$(($(cat {state} 2> /dev/null || echo 0) + 1))
echo $n > {state}; echo unit $n; sleep 1
[ $n -ge 3 ]
"""


def wait_for_text(read, text: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = read()
        except FileNotFoundError:
            found = ""
        if text in found:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


# ---- one task --------------------------------------------------------------------------------------------------------


def test_warning_before_time_limit_requeues_only_that_task(slurm, task, tmp_path):
    """The task saves and queues itself again; what waits for the array begins after its second start."""
    commands = [COUNTS.format(state=tmp_path / f"state{number}") for number in range(2)]
    job, log = task(*commands, options=("--signal=B:USR1@60", "--time=5"))
    after = slurm.sbatch(f"--dependency=afterany:{job}", "--output=/dev/null", "--wrap=true")
    wait_for_text(lambda: log(2), "\nunit 1")
    # The number of an array's last task is that of the array: a requeue by that number would take all tasks along.
    slurm.run("scancel", "--signal=USR1", "--batch", f"{job}_2")
    states = slurm.wait(job, after)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 3
    assert (
        "ended by SIGUSR1: saved" in log(2) and "start 2: extract in1k a_2" in log(2) and "unit 3" in log(2)
    )
    assert "start 2" not in log(1)


def test_real_time_limit_is_survived(slurm, task, tmp_path):
    """SLURM itself sends the signal before the limit of a minute."""
    once = tmp_path / "once"
    job, log = task(f"[ -e {once} ] && [ $1 = 0 ] && exit 0; touch {once}; sleep 1; exit 1",
                    options=("--time=1", "--signal=B:USR1@55"))  # fmt: skip
    assert slurm.wait(job, timeout=150) == {f"{job}_1": "COMPLETED"}
    assert "ended by SIGUSR1" in log(1) and "start 2" in log(1)


def test_other_failures_keep_their_code(slurm, task):
    job, log = task("exit 3", "exit 0", "exit 75")
    assert slurm.wait(job) == {f"{job}_1": "FAILED", f"{job}_2": "COMPLETED", f"{job}_3": "FAILED"}
    assert slurm.show(f"{job}_1")["ExitCode"] == "3:0"
    assert log(1).count("start 1") == log(3).count("start 1") == 1 and "start 2" not in log(3)


def test_cancelled_task_saves_and_stays_cancelled(slurm, task, tmp_path):
    job, log = task(COUNTS.format(state=tmp_path / "state"))
    wait_for_text(lambda: log(1), "\nunit 1")
    slurm.run("scancel", f"{job}_1")
    assert slurm.wait(job) == {f"{job}_1": "CANCELLED"}
    wait_for_text(lambda: log(1), "ended by SIGTERM: saved")
    time.sleep(1)
    assert slurm.states(job) == {f"{job}_1": "CANCELLED"}


def test_preempted_task_continues(slurm, task, tmp_path):
    """SLURM sends SIGTERM and queues the task again by itself; the task does not interfere."""
    options = ("--requeue", "--gres=gpu:2", "--partition=main")
    job, log = task(COUNTS.format(state=tmp_path / "state"), options=options)
    wait_for_text(lambda: log(1), "\nunit 1")
    urgent = slurm.sbatch("--partition=urgent", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 1")
    assert set(slurm.wait(urgent, job).values()) == {"COMPLETED"}
    assert log(1).count("on ") >= 2 and "unit 3" in log(1)


# ---- studies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(workshop, tmp_path):
    """Variables of a study of one model on two data sets, three classifier runs each."""
    return [
        f"models_root_dir={workshop.models}", f"log_dir={tmp_path / 'study logs'}", "model_names=tiny_net",
        f"model_loader={workshop.loader}:load_my_model", f"in1k_images_root={workshop.in1k}",
        f"imagenet_images_root={workshop.in21k}", f"cog_levels_mapping_file={workshop.levels_file}",
        f"cog_concepts_split_file={workshop.split_file}", "datasets=in1k cog_l1", "seeds=1 2 3", "shots=0", "gpus=0",
        *QUICK,
    ]  # fmt: skip


def states_of(slurm, root: Path, repository, python, *arguments: str) -> dict[tuple[str, str], set[str]]:
    """Return the states that ``status`` shows, by kind and data set."""
    done = subprocess.run(
        [python, "-m", "cog", "status", "--models_root_dir", str(root), "--models", "tiny_net", "--datasets", "in1k",
         "cog_l1", "--seeds", "1", "2", "3", "--shots", "0", "--format", "csv", *arguments],
        env=slurm.environment, cwd=repository, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found: dict[tuple[str, str], set[str]] = {}
    for line in done.stdout.splitlines()[1:]:
        kind, _, dataset, _, _, _, state = line.split(",")[:7]
        found.setdefault((kind, dataset), set()).add(state)
    return found


def test_study_fails_once_and_is_completed(
    slurm, submit_study, study, workshop, tmp_path, repository, python
):
    """One extraction fails: its classifiers end at once, the others run; only the missing part is submitted again."""
    broken = workshop.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image = broken.read_bytes()
    broken.write_bytes(b"broken")
    log_dir = tmp_path / "study logs"
    slurm.run(
        "scontrol", "update", "partitionname=main", "state=DOWN"
    )  # nothing begins before it is looked at
    try:
        jobs = jobs_of(submit_study(*study))
        assert {stage: len(some) for stage, some in jobs.items()} == {"extract": 1, "logreg": 2, "results": 1}
        again = submit_study(*study)  # everything is on its way
        assert "0 tasks to submit, 4 are queued" in again.stdout and not jobs_of(again)
        shown = states_of(slurm, workshop.models, repository, python, "--log_dir", str(log_dir))
        assert shown[("run", "in1k")] == {"queued"}
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    (extract,), (of_in1k, of_level), (results,) = jobs["extract"], jobs["logreg"], jobs["results"]
    assert slurm.wait(*all_of(jobs), timeout=240) == {
        f"{extract}_1": "FAILED", f"{extract}_2": "COMPLETED",
        f"{of_in1k}_3": "FAILED", f"{of_level}_4": "COMPLETED", results: "COMPLETED",
    }  # fmt: skip
    assert slurm.show(f"{extract}_1")["ExitCode"] == "3:0"
    assert "run extract_features.py first" in (log_dir / "3.log").read_text()
    table = log_dir / "results.txt"
    assert "3 of 6 classifier runs are missing" in table.read_text()
    shown = states_of(slurm, workshop.models, repository, python)
    assert shown[("features", "in1k")] == {"done", "failed"}
    assert shown[("features", "cog_l1")] == shown[("run", "cog_l1")] == {"done"}

    broken.write_bytes(image)
    done = submit_study(*study)
    jobs = jobs_of(done)
    assert "2 tasks to submit, 0 are queued" in done.stdout
    states = slurm.wait(*all_of(jobs), timeout=240)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 3
    text = table.read_text()
    assert "missing" not in text
    assert (log_dir / "report.html").is_file()
    assert "nothing to do now" in submit_study(*study).stderr


def test_submission_by_a_task_of_an_array(slurm, submit_study, study):
    """The variables of that task reach no job; names and filters of the user hide no job from the next submission."""
    outer = {
        "SLURM_JOB_ID": "8",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_RESTART_COUNT": "1",
    }
    variables = [*study, "datasets=in1k", "seeds=1", "sbatch_args=--job-name=mine"]
    slurm.run("scontrol", "update", "partitionname=main", "state=DOWN")
    try:
        jobs = jobs_of(submit_study(*variables, **outer))
        again = submit_study(*variables, **outer, SQUEUE_STATES="RUNNING", SQUEUE_PARTITION="urgent")
        assert "0 tasks to submit" in again.stdout and not jobs_of(again)
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    states = slurm.wait(*all_of(jobs), timeout=240)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 3


def test_dry_run_is_what_is_submitted(slurm, submit_study, study, tmp_path):
    """The commands are those of the real submission, but for the numbers of jobs; and nothing is written."""
    variables = [
        *study, "throttle=3", "logreg_sbatch_args=--time=20",
        "sbatch_args=--partition=main --cpus-per-task=1 --mem=100 --comment='a b' --nice=5",
    ]  # fmt: skip
    shown = submit_study(*variables, "--dry_run").stdout
    assert not (tmp_path / "study logs").exists()
    assert not slurm.run("squeue", "--noheader").strip()
    line = next(line for line in shown.splitlines() if "--array=3%3" in line)
    for word in ("--dependency=afterany:JOB_1 ", "--partition=main", "--time=20", "--requeue", "--signal=B:USR1@120",
                 "'--comment=a b' --nice=5"):  # fmt: skip
        assert word in line
    assert "--gres" not in line
    slurm.run("scontrol", "update", "partitionname=main", "state=DOWN")
    try:
        jobs = jobs_of(submit_study(*variables))
        job = slurm.show(f"{jobs['logreg'][0]}_3")
    finally:
        slurm.cancel_all()
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    found = job["ArrayTaskThrottle"], job["TimeLimit"], job["Requeue"], job["Comment"]
    assert found == ("3", "00:20:00", "1", "a")


def test_refused_submission(slurm, submit_study, study):
    """SLURM's own reason, in one line."""
    done = submit_study(*study, "sbatch_args=--partition=none_such", code=2)
    assert "sbatch failed" in done.stderr and "invalid partition" in done.stderr
    assert "Traceback" not in done.stderr


#: Four images per forward pass.
SMALL_PASSES = [
    "FT_EXTRACT.IMAGE_RESIZE_SIZE", "224", "FT_EXTRACT.IMAGE_CROP_SIZE", "224", "FT_EXTRACT.BATCH_SIZE", "4",
]  # fmt: skip


def extract_here(workshop, repository, python, root: Path) -> bytes:
    """Extract in1k test of tiny_net elsewhere in one undisturbed process; returns the features file."""
    subprocess.run(
        [python, str(repository / "extract_features.py"), "--model=tiny_net", "--dataset=in1k", "--split=test",
         f"--ckpt_file={workshop.checkpoint}", f"--model_loader={workshop.loader}:load_my_model",
         f"--in1k_images_root={workshop.in1k}", f"--output_dir={root}", *QUICK[:-4], *SMALL_PASSES],
        check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return (root / "X_Y.pth").read_bytes()


def test_interrupted_extraction_is_requeued_and_continues(
    slurm, submit_study, study, workshop, tmp_path, repository, python
):
    """The real script, told to save in the middle of its images; its features are those of an undisturbed one."""
    tiny.write_class_folders(workshop.in1k / "val", n_images=48, seed=9)
    workshop.make_slow()
    jobs = jobs_of(submit_study(*study, "datasets=in1k", "seeds=1", *SMALL_PASSES))
    log = tmp_path / "study logs/1.log"
    wait_for_text(log.read_text, "tiny_net on in1k", timeout=90)
    time.sleep(3)
    slurm.run("scancel", "--signal=USR1", "--batch", f"{jobs['extract'][0]}_1")
    assert set(slurm.wait(*all_of(jobs), timeout=240).values()) == {"COMPLETED"}
    text = log.read_text()
    assert text.count("ended by SIGUSR1") == 1 and "start 2: extract in1k tiny_net" in text
    assert "the same command continues from here" in text
    expected = extract_here(workshop, repository, python, tmp_path / "undisturbed")
    assert (workshop.models / "tiny/net/in1k/features_test/X_Y.pth").read_bytes() == expected
    assert "tiny_net" in (tmp_path / "study logs/results.txt").read_text()


#: Makes one task of an array fail, the first time.
FAILS_ONCE = """
import os
import re

if os.environ.get("SLURM_ARRAY_TASK_ID") == "3" and not os.path.exists({marker!r}):
    os.mkdir({marker!r})
    raise RuntimeError("made to fail once")
"""


@pytest.mark.slow
def test_study_of_the_miniature_equals_the_sequential_drivers(
    slurm, submit_study, shared_dir, repository, python, tmp_path
):
    """Two networks on photographs, two seeds, N = 1 and all, with a task that fails once.

    COG_FULL_PROTOCOL=1 does it with all data sets, the images' full size and the protocol's searches.
    """
    full = os.environ.get("COG_FULL_PROTOCOL") == "1"
    miniature = shared_dir / "miniature"
    models = ["mobilenet_v2_100", "mobilenet_v1_random"]
    datasets = "in1k cog_l1 cog_l2 cog_l3 cog_l4 cog_l5" if full else "in1k cog_l5"
    n_datasets = len(datasets.split())
    loader = tmp_path / "nets.py"
    source = (miniature / "real_nets.py").read_text()
    loader.write_text(source + FAILS_ONCE.format(marker=str(tmp_path / "failed")))
    extraction = [
        "FT_EXTRACT.IMAGE_NORM.MEAN", "[0.5, 0.5, 0.5]", "FT_EXTRACT.IMAGE_NORM.STD", "[0.5, 0.5, 0.5]",
        "FT_EXTRACT.N_WORKERS", "0",
        *([] if full else ["FT_EXTRACT.IMAGE_RESIZE_SIZE", "32", "FT_EXTRACT.IMAGE_CROP_SIZE", "32"]),
    ]  # fmt: skip
    protocol = [] if full else ["CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "4"]
    images = [
        f"in1k_images_root={miniature / 'in1k'}", f"imagenet_images_root={miniature / 'in21k'}",
        f"cog_levels_mapping_file={miniature / 'cog_levels_mapping_file.pkl'}",
        f"cog_concepts_split_file={miniature / 'cog_concepts_split_file.pkl'}",
        f"model_loader={loader}:load_my_model",
    ]  # fmt: skip
    roots = {name: tmp_path / name for name in ("on_slurm", "in_sequence")}
    for root in roots.values():
        checkpoint = root / "mobilenet/v2_100/model.ckpt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.symlink_to(miniature / "models/mobilenet/v2_100/model.ckpt")

    began = time.monotonic()
    study = [
        f"models_root_dir={roots['on_slurm']}", f"log_dir={tmp_path / 'logs'}", f"model_names={' '.join(models)}",
        f"datasets={datasets}", "seeds=22 37", "shots=0 1", "gpus=1",
        "sbatch_args=--cpus-per-task=1", *images, *extraction, *protocol,
        "--device", "cpu",
    ]  # fmt: skip
    jobs = jobs_of(submit_study(*study))
    states = slurm.wait(*all_of(jobs), timeout=3600)
    assert sorted(states.values()).count("FAILED") == 2  # an extraction, and the classifiers that need it
    before = {path: path.stat().st_mtime_ns for path in roots["on_slurm"].rglob("results.json")}
    assert len(before) == 8 * n_datasets - 4
    again = submit_study(*study)
    assert "2 tasks to submit, 0 are queued" in again.stdout
    states = slurm.wait(*all_of(jobs_of(again)), timeout=600)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 3
    assert {path: path.stat().st_mtime_ns for path in before} == before
    on_slurm = time.monotonic() - began

    began = time.monotonic()
    environment = os.environ | {"COG_PYTHON": python, "OMP_NUM_THREADS": "1"}

    def drive(script: str, *arguments: str) -> None:
        done = subprocess.run(
            ["bash", str(repository / "bash-scripts" / script), f"models_root_dir={roots['in_sequence']}", *arguments,
             "--device", "cpu"],
            env=environment, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    for model in models:
        drive("extract_features.sh", f"model_name={model}", f"datasets={datasets}", *images, *extraction)
        drive("logreg.sh", f"model_name={model}", f"dataset={datasets}", "seeds=22 37", *protocol)
        drive("fewshot.sh", f"model_name={model}", f"dataset={datasets}", "seeds=22 37", "shots=1", *protocol)
    in_sequence = time.monotonic() - began

    table = subprocess.run(
        [python, str(repository / "print_results.py"), "--models_root_dir", str(roots["in_sequence"]),
         "--model", *models, "--dataset", *datasets.split(), "--n_shot", "0", "1", "--seeds", "22", "37"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert (tmp_path / "logs/results.txt").read_text() == table
    rows = [line for line in table.splitlines() if line.startswith("mobilenet_v2_100 ")]
    assert len(rows) == 2 and not re.search(r"\(\d/\d\)", table)
    for path in roots["in_sequence"].rglob("X_Y.pth"):
        assert path.read_bytes() == (roots["on_slurm"] / path.relative_to(roots["in_sequence"])).read_bytes()
    print(f"{table}\non SLURM: {on_slurm:.0f} s, in sequence: {in_sequence:.0f} s")
