"""Studies on a real SLURM of one node (``local_slurm.py``): the outputs are always those of a study here."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import local_slurm
import pytest
import studies as helper
import tiny
import torch
from waiting import wait_for

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def _slurm():
    if reason := local_slurm.missing():
        pytest.skip(reason)
    # Not below pytest's folder, whose name is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="cog-slurm-") as folder:
        with local_slurm.local_slurm(Path(folder)) as slurm:
            yield slurm


@pytest.fixture
def slurm(_slurm):
    """A SLURM without jobs."""
    yield _slurm
    _slurm.cancel_all()


class Studies:
    """A world of two models and two data sets, and study.sh in it."""

    def __init__(self, root: Path, repository: Path, python: str, environment=os.environ) -> None:
        root.mkdir()
        self.made = made = tiny.build_workshop(root)
        tiny.write_class_folders(made.in1k / "val", n_images=700, seed=9)  # more than four chunks
        other = made.models / "other/net/model.ckpt"
        other.parent.mkdir(parents=True)
        torch.save({"mix": torch.tensor([3.0, 1.0, 2.0])}, other)
        self.log_dir, self.environment = root / "study logs", {**environment, "COG_PYTHON": python}
        words = ("model_name=tiny_net other_net", "shots=0", "seeds=1 2")
        self.words = helper.command(made, repository, self.log_dir, *words)

    def make_slow(self, seconds: float = 0.01) -> None:
        """Let the network take a time for each image."""
        self.made.make_slow()
        source = self.made.loader.read_text().replace("time.sleep(0.25)", f"time.sleep({seconds} * len(x))")
        self.made.loader.write_text(source)

    def start(self, *more: str) -> subprocess.Popen:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*self.words, *more], env=self.environment, text=True, **streams)

    def refused(self, *more: str) -> str:
        process = self.start(*more)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 2 and "Traceback" not in errors
        return errors

    def submit(self, options: str = "--mem=100") -> dict[str, list[str]]:
        """Submit the study; returns the numbers of the jobs by stage."""
        process = self.start(f"slurm={options}")
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, out + errors
        jobs: dict[str, list[str]] = {}
        for line in out.splitlines():
            if line[:1].isdigit() and line.split()[1].endswith(":"):
                jobs.setdefault(line.split()[1].rstrip(":"), []).append(line.split()[0])
        return jobs

    def outputs(self) -> dict[str, tuple[str, str]]:
        return helper.outputs(self.made)

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
    return Studies(tmp_path / "w", repository, python, slurm.environment)


def wait(slurm, jobs: dict[str, list[str]], timeout: float = 300) -> dict[str, str]:
    return slurm.wait(*(job for same in jobs.values() for job in same), timeout=timeout)


def test_time_limit_saves_and_requeues(slurm, studies, undisturbed):
    """SLURM itself warns the extraction 30 to 60 seconds after its start; what waits for it begins later."""
    studies.make_slow(0.02)
    states = wait(slurm, studies.submit("--mem=100 --time=3"), timeout=500)
    assert set(states.values()) == {"COMPLETED"}
    assert "ended by SIGUSR1" in studies.log(1) and "start 2: extract in1k tiny_net" in studies.log(1)
    assert studies.outputs() == undisturbed
    assert "other_net" in (studies.log_dir / "results.txt").read_text()


def test_cancelled_task_stays_cancelled_until_submitted_again(slurm, studies, undisturbed):
    studies.make_slow()
    jobs = studies.submit()
    wait_for(lambda: "in1k test: 2100 images" in studies.log(1))
    time.sleep(2)
    slurm.run("scancel", f"{jobs['extract'][0]}_1")
    states = wait(slurm, jobs)
    assert states[f"{jobs['extract'][0]}_1"] == "CANCELLED" and sorted(states.values()).count("FAILED") == 2
    wait_for(lambda: "ended by SIGTERM" in studies.log(1))
    assert set(wait(slurm, studies.submit()).values()) == {"COMPLETED"}
    assert studies.outputs() == undisturbed


def test_preempted_task_continues(slurm, studies, undisturbed):
    """SLURM sends SIGTERM and queues the task again by itself; the task does not interfere."""
    studies.make_slow()
    jobs = studies.submit("--gres=gpu:1 --partition=main")
    wait_for(lambda: "in1k test: 2100 images" in studies.log(1))
    slurm.wait(slurm.sbatch("--partition=urgent", "--gres=gpu:2", "--output=/dev/null", "--wrap=sleep 1"))
    assert set(wait(slurm, jobs).values()) == {"COMPLETED"}
    assert "start 2: extract" in studies.log(1) + studies.log(2)
    assert studies.outputs() == undisturbed


def test_failing_extraction_is_repaired(slurm, studies, undisturbed):
    """Its classifiers end at once, the others run; only what is missing is submitted again, nothing twice."""
    broken = studies.made.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image, times = broken.read_bytes(), broken.stat()
    broken.write_bytes(b"broken")
    # Nothing begins before it is looked at.
    slurm.run("scontrol", "update", "partitionname=main", "state=DOWN")
    try:
        jobs = studies.submit()
        assert {stage: len(same) for stage, same in jobs.items()} == {"extract": 1, "logreg": 2, "results": 1}
        assert studies.submit() == {}
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")
    states = wait(slurm, jobs)
    assert sorted(states.values()) == ["COMPLETED"] * 4 + ["FAILED"] * 3
    assert slurm.show(f"{jobs['extract'][0]}_1")["ExitCode"] == "3:0"
    assert "classifier runs: 4 done, 4 missing of 8 (50 %)" in (studies.log_dir / "results.txt").read_text()
    broken.write_bytes(image)
    os.utime(broken, ns=(times.st_atime_ns, times.st_mtime_ns))
    states = wait(slurm, studies.submit())
    assert set(states.values()) == {"COMPLETED"} and len(states) == 4
    assert studies.outputs() == undisturbed and studies.submit() == {}


def test_refused_submissions_and_two_at_once(slurm, studies, undisturbed):
    """A refusal is one line; a list beyond MaxArraySize, too; two people submit at once, nothing is lost."""
    errors = studies.refused("slurm=--partition=none_such")
    assert "sbatch failed" in errors and "invalid partition" in errors
    for process in [studies.start("slurm=--mem=100") for _ in range(2)]:
        assert process.communicate(timeout=300) and process.returncode == 0
    wait_for(lambda: not slurm.run("squeue", "--noheader").strip(), 300)
    assert studies.submit() == {}
    assert studies.outputs() == undisturbed
    with open(studies.log_dir / "tasks.txt", "a") as file:
        file.write("extract other a_net\n" * 1000)
    errors = studies.refused("slurm=", "dataset=cog_l2")
    assert "MaxArraySize is 1001 here; use another --log_dir" in errors
