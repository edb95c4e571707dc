"""Studies on a real SLURM of one node (``local_slurm.py``): the outputs are always those of a study here."""

import tempfile
from pathlib import Path

import local_slurm
import pytest
from studies import Studies
from waiting import wait_for

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def slurm():
    if reason := local_slurm.missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="cog-slurm-") as folder:
        with local_slurm.local_slurm(Path(folder)) as slurm:
            yield slurm


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, repository, python):
    studies = Studies(tmp_path_factory.mktemp("undisturbed"), repository, python)
    code, _, err = studies.run("n_processes=1")
    assert code == 0, err
    return studies.outputs()


@pytest.fixture
def studies(slurm, tmp_path, repository, python):
    yield Studies(tmp_path, repository, python, slurm.environment)
    slurm.cancel_all()


def wait(slurm, jobs: dict[str, list[str]]) -> dict[str, str]:
    return slurm.wait(*(job for same in jobs.values() for job in same), timeout=300)


def test_time_limit_saves_and_requeues(slurm, studies, undisturbed):
    studies.pace.write_text("0.08")  # ten seconds a chunk
    jobs = studies.submit("--mem=100 --time=20")
    studies.wait_for_a_chunk()
    extraction = f"jobid={jobs['extract'][0]}_1"
    slurm.run("scontrol", "update", extraction, "timelimit=2")  # SLURM looks twice a minute
    wait_for(lambda: "ended by SIGUSR1" in studies.log(1))
    studies.pace.write_text("0")
    slurm.run("scontrol", "update", extraction, "timelimit=20")
    assert set(wait(slurm, jobs).values()) == {"COMPLETED"}
    assert "start 2: extract in1k tiny_net" in studies.log(1) and studies.outputs() == undisturbed


def test_cancelled_task_stays_cancelled_until_submitted_again(slurm, studies, undisturbed):
    studies.pace.write_text("0.02")
    jobs = studies.submit()
    studies.wait_for_a_chunk()
    slurm.run("scancel", f"{jobs['extract'][0]}_1")
    studies.pace.write_text("0")
    states = wait(slurm, jobs)
    assert states[f"{jobs['extract'][0]}_1"] == "CANCELLED" and sorted(states.values()).count("FAILED") == 3
    wait_for(lambda: "ended by SIGTERM" in studies.log(1))
    assert set(wait(slurm, studies.submit()).values()) == {"COMPLETED"}
    assert studies.outputs() == undisturbed


def test_preempted_task_continues(slurm, studies, undisturbed):
    studies.pace.write_text("0.02")
    jobs = studies.submit("--gres=gpu:1 --partition=main")
    studies.wait_for_a_chunk()
    urgent = ("--partition=urgent", "--gres=gpu:2", "--output=/dev/null", "--wrap=true")
    slurm.wait(slurm.run("sbatch", "--parsable", *urgent).strip())
    studies.pace.write_text("0")
    assert set(wait(slurm, jobs).values()) == {"COMPLETED"}
    assert "start 2: extract" in studies.log(1)
    assert studies.outputs() == undisturbed


def test_failing_extraction_is_repaired(slurm, studies, undisturbed):
    broken = studies.made.in1k / "val" / "n01440764" / "n01440764_0.JPEG"
    image, both = broken.read_bytes(), ("--mem=100", "dataset=in1k cog_l1")
    broken.write_bytes(b"broken")
    jobs = studies.submit(*both)
    assert {stage: len(same) for stage, same in jobs.items()} == {"extract": 1, "logreg": 2, "results": 1}
    states = wait(slurm, jobs)
    assert sorted(states.values()) == ["COMPLETED"] * 4 + ["FAILED"] * 3
    assert "1 of 300 images could not be decoded" in studies.log(1)
    assert "classifier runs: 4 done, 4 missing of 8 (50 %)" in (studies.log_dir / "results.txt").read_text()
    broken.write_bytes(image)
    states = wait(slurm, studies.submit(*both))
    assert set(states.values()) == {"COMPLETED"} and len(states) == 4
    made = studies.outputs()
    assert {name: made[name] for name in undisturbed} == undisturbed


def test_refused_submissions_and_two_at_once(slurm, studies, undisturbed):
    code, _, err = studies.run("slurm=--partition=none_such")
    assert code == 2 and "sbatch failed" in err and "invalid partition" in err and "Traceback" not in err
    code, _, err = studies.run("slurm=--mem=100 --test-only")
    assert code == 2 and "sbatch failed: sbatch: Job" in err
    for process in [studies.start("slurm=--mem=100") for _ in range(2)]:
        assert process.communicate(timeout=300) and process.returncode == 0
    wait_for(lambda: not slurm.run("squeue", "--noheader").strip(), 300)
    assert studies.submit() == {} and studies.outputs() == undisturbed
    with open(studies.log_dir / "tasks.txt", "a") as file:
        file.write("extract other a_net\n" * 1000)
    code, _, err = studies.run("slurm=", "dataset=cog_l2")
    assert code == 2 and "MaxArraySize is 1001 here; use another --log_dir" in err
