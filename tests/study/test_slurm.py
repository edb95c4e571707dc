"""Studies on a real SLURM of one node (``local_slurm.py``): whatever happens, the outputs are those of a study here."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import local_slurm
import pytest
import tiny
import torch

pytestmark = pytest.mark.slurm

QUICK = [
    "FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16", "FT_EXTRACT.N_WORKERS", "0",
    "FT_EXTRACT.BATCH_SIZE", "2", "CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def _slurm():
    if reason := local_slurm.missing():
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


class Studies:
    """A world of two models and two data sets, and study.sh in it."""

    def __init__(self, root: Path, repository: Path, python: str) -> None:
        root.mkdir()
        self.workshop = tiny.build_workshop(root)
        tiny.write_class_folders(self.workshop.in1k / "val", n_images=40, seed=9)
        self.log_dir = root / "study logs"
        other = self.workshop.models / "other/net/model.ckpt"
        other.parent.mkdir(parents=True)
        torch.save({"mix": torch.tensor([3.0, 1.0, 2.0])}, other)
        self.script, self.python = str(repository / "bash-scripts/study.sh"), python

    def make_slow(self) -> None:
        """Let the network take a twentieth of a second for each image."""
        self.workshop.make_slow()
        loader = self.workshop.loader
        loader.write_text(loader.read_text().replace("time.sleep(0.25)", "time.sleep(0.05 * len(x))"))

    def words(self, *more: str) -> list[str]:
        made = self.workshop
        return [
            "bash", self.script, f"models_root_dir={made.models}", f"log_dir={self.log_dir}",
            "model_name=tiny_net other_net",
            f"model_loader={made.loader}:load_my_model", f"in1k_images_root={made.in1k}",
            f"imagenet_images_root={made.in21k}", f"cog_levels_mapping_file={made.levels_file}",
            f"cog_concepts_split_file={made.split_file}", "dataset=in1k cog_l1", "seeds=1 2", "shots=0", *more, *QUICK,
        ]  # fmt: skip

    def start(self, *more: str, environment=os.environ) -> subprocess.Popen:
        variables = {**environment, "COG_PYTHON": self.python, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.words(*more), env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def outputs(self) -> dict[str, tuple[str, str]]:
        names = ("X_Y.pth", "model.pth", "logs.pkl", "preds.pkl")
        return {
            name: entry for name, entry in tiny.snapshot(self.workshop.models).items() if name.endswith(names)
        }

    def log(self, number: int) -> str:
        path = self.log_dir / f"{number}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, repository, python):
    """Outputs of the study in one undisturbed process after the other, without SLURM."""
    studies = Studies(tmp_path_factory.mktemp("undisturbed") / "w", repository, python)
    process = studies.start("n_processes=1")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return studies.outputs()


@pytest.fixture
def studies(slurm, tmp_path, repository, python):
    return Studies(tmp_path / "w", repository, python)


@pytest.fixture
def submit(slurm, studies):
    """Submit the study; returns the numbers of the jobs by stage."""

    def submit(*more: str, options: str = "--mem=100") -> dict[str, list[str]]:
        process = studies.start(f"slurm={options}", *more, environment=slurm.environment)
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, out + errors
        jobs: dict[str, list[str]] = {}
        for line in out.splitlines():
            if line[:1].isdigit() and line.split()[1].endswith(":"):
                jobs.setdefault(line.split()[1].rstrip(":"), []).append(line.split()[0])
        return jobs

    return submit


def wait(slurm, jobs: dict[str, list[str]], timeout: float = 300) -> dict[str, str]:
    return slurm.wait(*(job for same in jobs.values() for job in same), timeout=timeout)


def wait_for_text(read, text: str, timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while text not in read():
        assert time.monotonic() < deadline, read()
        time.sleep(0.05)


def test_time_limit_saves_and_requeues(slurm, submit, studies, undisturbed):
    """SLURM itself warns the extraction, whose limit is a minute; the array that waits for it begins after its end."""
    studies.workshop.make_slow()
    jobs = submit(options="--mem=100 --time=1")
    states = wait(slurm, jobs, timeout=420)
    assert set(states.values()) == {"COMPLETED"}
    assert "ended by SIGUSR1" in studies.log(1) and "start 2: extract in1k tiny_net other_net" in studies.log(
        1
    )
    assert studies.outputs() == undisturbed
    assert "other_net" in (studies.log_dir / "results.txt").read_text()


def test_cancelled_task_saves_and_stays_cancelled_until_submitted_again(slurm, submit, studies, undisturbed):
    studies.make_slow()
    jobs = submit()
    wait_for_text(lambda: studies.log(1), "in1k test: 120 images")
    time.sleep(2)
    slurm.run("scancel", f"{jobs['extract'][0]}_1")
    states = wait(slurm, jobs)
    assert states[f"{jobs['extract'][0]}_1"] == "CANCELLED" and sorted(states.values()).count("FAILED") == 2
    wait_for_text(lambda: studies.log(1), "ended by SIGTERM", timeout=10)
    again = submit()
    assert set(wait(slurm, again).values()) == {"COMPLETED"}
    assert studies.outputs() == undisturbed


def test_preempted_task_continues(slurm, submit, studies, undisturbed):
    """SLURM sends SIGTERM and queues the task again by itself; the task does not interfere."""
    studies.make_slow()
    jobs = submit(options="--gres=gpu:1 --partition=main")
    wait_for_text(lambda: studies.log(1), "in1k test: 120 images")
    urgent = slurm.sbatch("--partition=urgent", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 1")
    slurm.wait(urgent)
    assert set(wait(slurm, jobs).values()) == {"COMPLETED"}
    assert "start 2: extract" in studies.log(1) + studies.log(2)
    assert studies.outputs() == undisturbed


def test_failing_extraction_is_repaired(slurm, submit, studies, undisturbed):
    """Its classifiers end at once, the others run; only what is missing is submitted again, and nothing twice."""
    broken = studies.workshop.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image, times = broken.read_bytes(), broken.stat()
    broken.write_bytes(b"broken")
    slurm.run(
        "scontrol", "update", "partitionname=main", "state=DOWN"
    )  # nothing begins before it is looked at
    try:
        jobs = submit()
        assert {stage: len(same) for stage, same in jobs.items()} == {"extract": 1, "logreg": 2, "results": 1}
        assert submit() == {}
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    states = wait(slurm, jobs)
    assert sorted(states.values()) == ["COMPLETED"] * 4 + ["FAILED"] * 3
    assert slurm.show(f"{jobs['extract'][0]}_1")["ExitCode"] == "3:0"
    assert "classifier runs: 4 done, 4 missing of 8 (50 %)" in (studies.log_dir / "results.txt").read_text()
    broken.write_bytes(image)
    os.utime(broken, ns=(times.st_atime_ns, times.st_mtime_ns))
    again = submit()
    states = wait(slurm, again)
    assert set(states.values()) == {"COMPLETED"} and len(states) == 4
    assert studies.outputs() == undisturbed and submit() == {}


def test_refused_submissions_and_two_at_once(slurm, studies, submit, undisturbed):
    """A refusal is one line; a list beyond MaxArraySize, too; two people submit at once, and nothing is lost."""
    process = studies.start("slurm=--partition=none_such", environment=slurm.environment)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "sbatch failed" in errors and "invalid partition" in errors
    assert "Traceback" not in errors
    both = [studies.start("slurm=--mem=100", environment=slurm.environment) for _ in range(2)]
    for process in both:
        assert process.communicate(timeout=120) and process.returncode == 0
    while slurm.run("squeue", "--noheader").strip():
        time.sleep(0.2)
    assert submit() == {}
    assert studies.outputs() == undisturbed
    with open(studies.log_dir / "tasks.txt", "a") as file:
        file.write("extract other a_net\n" * 1000)
    process = studies.start("slurm=", "dataset=cog_l2", environment=slurm.environment)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "MaxArraySize is 1001 here; use another --log_dir" in errors
