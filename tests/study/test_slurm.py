"""Studies on a real SLURM of one node (``local_slurm.py``): arrays, dependencies, interruptions, and a whole study."""

from __future__ import annotations

import os
import re
import shlex
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

    def submit(*arguments: str, code: int = 0, **environment: str):
        done = subprocess.run(
            ["bash", str(repository / "bash-scripts/slurm/submit_study.sh"), *arguments],
            env=slurm.environment | {"COG_PYTHON": python, "OMP_NUM_THREADS": "1"} | environment,
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


def test_signal_reaches_every_rank(slurm, task, tmp_path):
    """Through srun, which ends with their exit code."""
    script = tmp_path / "rank.sh"
    script.write_text(
        "trap 'echo rank $SLURM_PROCID of $SLURM_NTASKS saved; exit 75' USR1\n"
        f"[ -e {tmp_path}/once$SLURM_PROCID ] && exit 0\ntouch {tmp_path}/once$SLURM_PROCID\n"
        "while true; do sleep 0.2; done\n"  # srun tells every process of a step, the sleep as well
    )
    job, log = task(f"exec srun bash {script}", options=("--ntasks=2",))
    wait_for_text(lambda: str(list(tmp_path.glob("once*"))), "once1")
    wait_for_text(lambda: str(list(tmp_path.glob("once*"))), "once0")
    time.sleep(0.5)
    slurm.run("scancel", "--signal=USR1", "--batch", f"{job}_0")
    assert slurm.wait(job) == {f"{job}_0": "COMPLETED"}
    assert all(f"rank {rank} of 2 saved" in log(0) for rank in (0, 1)), log(0)
    assert "exit code 75 after SIGUSR1" in log(0)


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
    """One extraction fails: its classifiers are cancelled, the others run; only the missing part is submitted again."""
    broken = workshop.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image = broken.read_bytes()
    broken.write_bytes(b"broken")
    slurm.run(
        "scontrol", "update", "partitionname=main", "state=DOWN"
    )  # nothing begins before it is looked at
    try:
        jobs = jobs_of(submit_study(*study))
        assert sorted(jobs) == ["extract", "logreg", "results"]
        again = submit_study(*study)  # everything is on its way
        assert "nothing to submit" in again.stderr and not again.stdout
        shown = states_of(
            slurm, workshop.models, repository, python, "--log_dir", str(tmp_path / "study logs")
        )
        assert shown[("run", "in1k")] == {"queued"}
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    states = slurm.wait(*jobs.values(), timeout=180)
    assert states == {
        f"{jobs['extract']}_0": "FAILED", f"{jobs['extract']}_1": "COMPLETED",
        f"{jobs['logreg']}_0": "CANCELLED", f"{jobs['logreg']}_1": "COMPLETED",
        jobs["results"]: "COMPLETED",
    }  # fmt: skip
    assert slurm.show(f"{jobs['extract']}_0")["ExitCode"] == "3:0"
    table = tmp_path / "study logs" / "results.txt"
    assert "3 of 6 classifier runs are missing" in table.read_text()
    shown = states_of(slurm, workshop.models, repository, python)
    assert shown[("features", "in1k")] == {"done", "failed"}
    assert shown[("run", "in1k")] == {"missing"}
    assert shown[("features", "cog_l1")] == shown[("run", "cog_l1")] == {"done"}

    broken.write_bytes(image)
    done = submit_study(*study)
    jobs = jobs_of(done)
    assert "extract: 1 tasks" in done.stdout and "logreg: 1 tasks" in done.stdout
    states = slurm.wait(*jobs.values(), timeout=180)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 3
    text = table.read_text()
    assert "missing" not in text and "(" not in text.splitlines()[-1]
    assert (tmp_path / "study logs" / "report.html").is_file()
    again = submit_study(*study)
    assert "nothing to submit" in again.stderr and not again.stdout


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
        assert "nothing to submit" in again.stderr and not again.stdout
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    states = slurm.wait(*jobs.values(), timeout=180)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 3


def test_dry_run_is_what_is_submitted(slurm, submit_study, study, workshop, tmp_path):
    """The commands are those of the real submission, but for the numbers of jobs; and nothing is written."""
    variables = [
        *study, "throttle=3", "logreg_sbatch_args=--time=20",
        "sbatch_args=--partition=main --cpus-per-task=1 --mem=100 --comment='a b' --nice=5",
    ]  # fmt: skip
    shown = submit_study(*variables, "--dry_run").stdout
    assert not (tmp_path / "study logs").exists()
    assert not slurm.run("squeue", "--noheader").strip()
    script = tmp_path / "script.sh"
    script.write_text(shown)
    subprocess.run(["bash", "-n", str(script)], check=True)
    line = next(line for line in shown.splitlines() if line.startswith("job_logreg="))
    assert line.startswith("job_logreg=$(sbatch --parsable --job-name=cog-logreg --array=0-1%3 ")
    for word in ("--dependency=aftercorr:${job_extract} --kill-on-invalid-dep=yes", "--partition=main",
                 "--time=20", "--requeue", "--signal=B:USR1@120", "'--comment=a b' --nice=5"):  # fmt: skip
        assert word in line
    assert "--gres" not in line
    assert "--dependency=afterany:${job_extract}:${job_logreg}" in shown
    slurm.run("scontrol", "update", "partitionname=main", "state=DOWN")
    try:
        jobs = jobs_of(submit_study(*variables))
        job = slurm.show(f"{jobs['logreg']}_0")
    finally:
        slurm.cancel_all()
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    assert (job["ArrayTaskThrottle"], job["TimeLimit"], job["Requeue"], job["Comment"]) == (
        "3",
        "00:20:00",
        "1",
        "a",
    )
    for kind in ("extract", "logreg", "results"):
        assert (tmp_path / "study logs/submissions/0001" / f"{kind}.txt").read_text() in shown


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
    log = tmp_path / f"study logs/logs/cog-extract-{jobs['extract']}_0.log"
    wait_for_text(log.read_text, "tiny_net on in1k", timeout=90)
    time.sleep(3)
    slurm.run("scancel", "--signal=USR1", "--batch", f"{jobs['extract']}_0")
    assert set(slurm.wait(*jobs.values(), timeout=240).values()) == {"COMPLETED"}
    text = log.read_text()
    assert text.count("exit code 75 after SIGUSR1") == 1 and "restart 1" in text
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
    states = slurm.wait(*jobs.values(), timeout=3600)
    lost = [f"{jobs['extract']}_3", f"{jobs['logreg']}_3"]
    assert [states.pop(task) for task in lost] == ["FAILED", "CANCELLED"]
    assert set(states.values()) == {"COMPLETED"} and len(states) == 4 * n_datasets - 1
    before = {path: path.stat().st_mtime_ns for path in roots["on_slurm"].rglob("results.json")}
    assert len(before) == 8 * n_datasets - 4
    again = submit_study(*study)
    assert "extract: 1 tasks" in again.stdout and "logreg: 1 tasks" in again.stdout
    states = slurm.wait(*jobs_of(again).values(), timeout=600)
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
