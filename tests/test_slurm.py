"""Studies on a real SLURM of one node (``local_slurm.py``): arrays, dependencies, interruptions, and a whole study."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import local_slurm
import pytest

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
    with tempfile.TemporaryDirectory(prefix="cog-slurm-") as folder, local_slurm.local_slurm(Path(folder)) as slurm:
        yield slurm


@pytest.fixture
def slurm(_slurm):
    """A SLURM without jobs."""
    yield _slurm
    _slurm.cancel_all()


@pytest.fixture
def task(slurm, repository, tmp_path):
    """Submit shell commands as tasks of a list, through task.sh; returns the job and the log of a task."""

    def submit(*commands: str, options: tuple[str, ...] = (), max_requeues: int = 5):
        path = tmp_path / f"tasks-{time.monotonic_ns()}.txt"
        path.write_text("".join(f"bash -c {shlex.quote(command)}\n" for command in commands))
        job = slurm.sbatch(
            f"--array=0-{len(commands) - 1}", f"--output={tmp_path}/%A_%a.log", "--open-mode=append", *options,
            str(repository / "bash-scripts/slurm/task.sh"), str(path), str(max_requeues),
        )  # fmt: skip
        return job, lambda number: (tmp_path / f"{job}_{number}.log").read_text()

    return submit


@pytest.fixture
def submit_study(slurm, repository, python):
    """Run submit_study.sh; returns the finished process."""

    def submit(*arguments: str, code: int = 0):
        done = subprocess.run(
            ["bash", str(repository / "bash-scripts/slurm/submit_study.sh"), *arguments],
            env=slurm.environment | {"COG_PYTHON": python, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return submit


def jobs_of(done) -> dict[str, str]:
    """Return job by kind from what submit_study.sh printed."""
    return {line.split()[1].rstrip(":"): line.split()[0] for line in done.stdout.splitlines()}


#: Ends with 75 when it is told to save, and goes on where it was: three units of a second.
SAVES = (
    "trap 'echo saved; exit 75' TERM USR1; n=$(cat {state} 2> /dev/null || echo 0); echo begins after $n.; "
    "while [ $n -lt 3 ]; do sleep 1 & wait $!; n=$((n + 1)); echo $n > {state}; done; echo complete."
)


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
    """USR1 goes to the batch shell alone; the command gets it, saves, ends with 75; the task is queued again."""
    commands = [SAVES.format(state=tmp_path / f"state{number}") for number in range(2)]
    job, log = task(*commands, options=("--signal=B:USR1@60", "--time=5"))
    after = slurm.sbatch(
        "--array=0-1", f"--dependency=aftercorr:{job}", "--kill-on-invalid-dep=yes", "--output=/dev/null", "--wrap=true"
    )  # fmt: skip
    wait_for_text(lambda: log(1), "\nbegins after 0.")
    # The number of an array's last task is that of the array: a requeue by that number would take all tasks along.
    slurm.run("scancel", "--signal=USR1", "--batch", f"{job}_1")
    states = slurm.wait(job, after)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 4
    text = log(1)
    assert "\nsaved" in text and "exit code 75 after SIGUSR1" in text
    assert text.count("\nbegins after") == 2 and text.rstrip().endswith("exit code 0")
    assert log(0).count("\nbegins after") == 1


def test_real_time_limit_is_survived(slurm, task, tmp_path):
    """SLURM itself sends the signal before the limit of a minute."""
    job, log = task(
        "trap 'exit 75' USR1; [ -e {0} ] && exit 0; touch {0}; sleep 100 & wait $!".format(tmp_path / "once"),
        options=("--time=1", "--signal=B:USR1@55"),
    )
    assert slurm.wait(job, timeout=90) == {f"{job}_0": "COMPLETED"}
    assert "exit code 75 after SIGUSR1" in log(0)
    assert "restart 1" in log(0)


def test_exit_code_75_by_itself_and_its_limit(slurm, task):
    """Whatever ended it, 75 means that it can go on; but not for ever."""
    job, log = task("exit 75", max_requeues=1)
    assert slurm.wait(job) == {f"{job}_0": "FAILED"}
    assert log(0).count("exit code 75") == 2
    assert "was queued again 1 times, max_requeues=1" in log(0)
    assert slurm.show(f"{job}_0")["ExitCode"] == "75:0"


def test_no_requeue_when_not_wanted(slurm, task):
    job, log = task("exit 75", max_requeues=0)
    assert slurm.wait(job) == {f"{job}_0": "FAILED"}
    assert log(0).count("exit code 75") == 1
    assert "error" not in log(0)


def test_other_failures_keep_their_code(slurm, task):
    job, log = task("exit 3", "true")
    assert slurm.wait(job) == {f"{job}_0": "FAILED", f"{job}_1": "COMPLETED"}
    assert slurm.show(f"{job}_0")["ExitCode"] == "3:0"
    assert log(0).count("exit code 3") == 1


def test_cancelled_task_saves_and_stays_cancelled(slurm, task, tmp_path):
    job, log = task(SAVES.format(state=tmp_path / "state"))
    wait_for_text(lambda: log(0), "\nbegins after 0.")
    slurm.run("scancel", f"{job}_0")
    assert slurm.wait(job) == {f"{job}_0": "CANCELLED"}
    wait_for_text(lambda: log(0), "\nsaved")
    time.sleep(1)
    assert slurm.states(job) == {f"{job}_0": "CANCELLED"}


def test_preempted_task_continues(slurm, task, tmp_path):
    """SLURM sends SIGTERM and queues the task again by itself; the task does not interfere."""
    options = ("--requeue", "--gres=gpu:2", "--partition=main")
    job, log = task(SAVES.format(state=tmp_path / "state"), options=options)
    wait_for_text(lambda: log(0), "\nbegins after 0.")
    urgent = slurm.sbatch("--partition=urgent", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 1")
    assert set(slurm.wait(urgent, job).values()) == {"COMPLETED"}
    assert log(0).count("\nbegins after") == 2
    assert "\ncomplete." in log(0)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_throttle_and_gpus(slurm, task):
    """Two of four tasks at a time, each with one of the two GPUs to itself."""
    command = "date +%s.%N; echo GPU=$CUDA_VISIBLE_DEVICES; sleep 1; date +%s.%N"
    job, log = task(*[command] * 4, options=("--gres=gpu:1", "--array=0-3%2"))
    assert set(slurm.wait(job).values()) == {"COMPLETED"}
    spans = []
    for number in range(4):
        times = [float(line) for line in log(number).splitlines() if line.replace(".", "").isdigit()]
        gpu = next(line for line in log(number).splitlines() if line.startswith("GPU="))
        assert gpu in ("GPU=0", "GPU=1")
        spans.append((*times, gpu))
    for begin, end, gpu in spans:
        same_time = [other for other in spans if other[0] < end and other[1] > begin]
        assert len(same_time) <= 2
        assert [other[2] for other in same_time].count(gpu) == 1
