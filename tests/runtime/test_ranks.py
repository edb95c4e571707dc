"""Several processes for one extraction: the same result, whoever comes, dies or is late."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time

import extraction
import pytest
from marks import first_quick
from waiting import wait_for

from cog.commands import extract_features
from cog.errors import CogError, FailedImagesError
from cog.features import runner, shards, sharing
from cog.features.extract import Extractor
from cog.models.choice import load_backbone
from cog.runtime import locks, ranks, signals
from cog.runtime.ranks import Rank

# --- which process this is


TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip
# As srun 22.05 to 24.11 sets them.
SRUN = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NPROCS": "4",
}  # fmt: skip


def without(environment, *names):
    return {key: value for key, value in environment.items() if key not in names}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0)),
        (TORCHRUN, (1, 3, 1)),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, (0, 1, 0)),
        (without(TORCHRUN, "LOCAL_RANK"), (1, 3, 1)),
        (without(TORCHRUN, "WORLD_SIZE"), (0, 1, 0)),
        (SRUN, (2, 4, 0)),
        (without(SRUN, "SLURM_NTASKS", "SLURM_NPROCS"), (2, 4, 0)),
        (without(SRUN, "SLURM_STEP_NUM_TASKS"), (2, 4, 0)),
        (SRUN | {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, (0, 1, 0)),
        # a batch script: one process, whatever was allocated
        (without(SRUN, "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS") | {"SLURM_PROCID": "0"}, (0, 1, 0)),
        (SRUN | {"SLURM_STEP_ID": "batch", "SLURM_STEPID": "batch"}, (0, 1, 0)),
        (TORCHRUN | SRUN, (1, 3, 1)),  # torchrun started by srun
        (TORCHRUN | {"COG_RANKS": "0"}, (0, 1, 0)),
        (TORCHRUN | {"RANK": "", "WORLD_SIZE": ""}, (0, 1, 0)),
    ],
)  # fmt: skip
def test_this_rank(environment, expected):
    rank = ranks.this_rank(environment)
    assert (rank.number, rank.size, rank.local) == expected


def test_groups_tell_starts_apart():
    def group(*changes):
        return ranks.this_rank({key: value for change in changes for key, value in change.items()}).group

    assert group(TORCHRUN) == group(TORCHRUN, {"RANK": "0", "LOCAL_RANK": "0"})
    assert group(TORCHRUN) != group(TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert group(SRUN) == group(SRUN, {"SLURM_PROCID": "0"})
    for other in ({"SLURM_RESTART_COUNT": "1"}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "18"}):
        assert group(SRUN) != group(SRUN, other)
    assert not ranks.this_rank(without(TORCHRUN, "TORCHELASTIC_RUN_ID")).is_unique


def test_impossible_numbers():
    with pytest.raises(CogError, match="process 3 of 3"):
        ranks.this_rank(TORCHRUN | {"RANK": "3"})


@pytest.mark.parametrize(
    ("environment", "n_gpus", "expected"),
    [
        ({}, 4, 0),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3"}, 4, 1),
        (TORCHRUN, 1, 0),  # not torchrun: something that shows each process a GPU of its own
        (TORCHRUN, 4, 1),
        (SRUN | {"SLURM_LOCALID": "2"}, 4, 2),
        (SRUN | {"SLURM_LOCALID": "2"}, 1, 0),
        (SRUN | {"SLURM_LOCALID": "2", "SLURM_GPUS_PER_TASK": "2"}, 2, 0),
        (SRUN | {"SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "8(x2),2"}, 2, 1),
        # More processes than GPUs: all of them find it.
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3"}, 1, None),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "0"}, 2, None),
        (SRUN | {"SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 2, None),
    ],
)
def test_one_gpu_each(environment, n_gpus, expected):
    message = f"processes on this machine, and torch sees {n_gpus} GPU"
    with contextlib.nullcontext() if expected is not None else pytest.raises(CogError, match=message):
        assert ranks.own_gpu(ranks.this_rank(environment), n_gpus) == expected


# --- processes as threads of this one


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(sharing, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(sharing, "FOREIGN_SECONDS", 0.3)
    monkeypatch.setattr(sharing, "_LEAST_UNIT_ROWS", 1)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return extraction.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    return extraction.write_inputs(tmp_path_factory.mktemp("spoiled"), broken=(0, 5, 6, 29))


@pytest.fixture(scope="module")
def alone(inputs, spoiled, tmp_path_factory):
    """What one process makes of the inputs, without and with failed images."""
    found = {}
    for root, allowed in ((inputs, "0"), (spoiled, "4")):
        out = tmp_path_factory.mktemp("alone") / "out"
        assert extract_features.main(extraction.arguments(root, out, "--allow_failures", allowed)) == 0
        found[root] = extraction.outcome(out)
    return found


class Member:
    """One process of a group, as a thread."""

    def __init__(self, root, out, rank, *more, sleep=0.0, fails_after=None):
        args = extract_features.parse_args(extraction.arguments(root, out, *more))
        self.plan = extract_features.make_plan(args, rank, time.time())
        cfg, (self.job,) = self.plan.cfg, self.plan.jobs
        backbone = load_backbone("placed_net", None, "cpu", f"{root / 'net.py'}:load_my_model")
        self.extractor = Extractor(
            backbone, resize=224, crop=224, mean=cfg.FT_EXTRACT.IMAGE_NORM.MEAN, std=cfg.FT_EXTRACT.IMAGE_NORM.STD,
            device="cpu", batch_size=4,
        )  # fmt: skip
        stream = self.extractor.stream

        def watched(*arguments, **options):
            for found in stream(*arguments, **options):
                time.sleep(sleep)
                if fails_after is not None and self.rows >= fails_after:
                    raise CogError("this process has no more memory")
                self.rows += found.n
                yield found

        self.extractor.stream = watched
        self.rows = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            runner.extract(self.job, self.extractor, label="")
        except BaseException as error:
            self.error = error


def run_all(*members, delays=()):
    for number, member in enumerate(members):
        time.sleep(delays[number] if delays else 0)
        member.thread.start()
    for member in members:
        member.thread.join(60)
        assert not member.thread.is_alive()


def group_of(size, name="g"):
    return [Rank(number, size, number, name) for number in range(size)]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.mark.parametrize("size", first_quick(1, [3, 2, 9]))
@pytest.mark.parametrize("which", ["inputs", "spoiled"])
def test_any_number_of_processes_is_one(size, which, request, alone, out):
    root = request.getfixturevalue(which)
    members = [
        Member(root, out, rank, "--allow_failures", "4" if which == "spoiled" else "0", sleep=0.02)
        for rank in group_of(size)
    ]
    run_all(*members)
    assert [member.error for member in members] == [None] * size
    assert extraction.outcome(out) == alone[root]
    assert sum(member.rows for member in members) == 30  # nothing twice
    assert sum(member.rows > 0 for member in members) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("delays", [(0, 0.3, 0), (0, 5, 0)])
def test_nobody_waits_for_those_who_are_late(inputs, alone, out, delays):
    """Helpers that come before the leader, after it, or when everything is over."""
    leader, first, second = (Member(inputs, out, rank, sleep=0.01) for rank in group_of(3))
    run_all(second, leader, first, delays=(0, delays[0], min(delays[1], 1.5)))
    assert [leader.error, first.error, second.error] == [None] * 3
    assert extraction.outcome(out) == alone[inputs]


def test_missing_processes_are_not_missed(inputs, alone, out):
    leader = Member(inputs, out, Rank(0, 4, 0, "g"))
    run_all(leader)
    assert leader.error is None
    assert extraction.outcome(out) == alone[inputs]


def test_a_helper_that_fails_is_replaced(inputs, alone, out):
    leader = Member(inputs, out, Rank(0, 2, 0, "g"), sleep=0.05)
    helper = Member(inputs, out, Rank(1, 2, 1, "g"), fails_after=8)
    run_all(leader, helper)
    assert leader.error is None and "no more memory" in str(helper.error)
    assert helper.rows == 8
    assert extraction.outcome(out) == alone[inputs]


@pytest.mark.slow
def test_a_leader_that_fails_ends_the_others_and_another_number_goes_on(inputs, alone, out):
    members = [
        Member(inputs, out, rank, sleep=0.05, fails_after=4 if rank.leads else None) for rank in group_of(3)
    ]
    run_all(*members)
    assert "no more memory" in str(members[0].error)
    for helper in members[1:]:
        assert isinstance(helper.error, CogError)
        assert "rank 0 failed: this process has no more memory" in str(helper.error)
    assert sorted(os.listdir(out)) == [".failed.json", ".resume"]
    time.sleep(1.1)  # an old failure is not mistaken for a new one: times are whole seconds
    again = [Member(inputs, out, rank, sleep=0.01) for rank in group_of(2, "h")]
    run_all(*again)
    assert [member.error for member in again] == [None, None]
    assert sum(member.rows for member in again) < 30
    assert extraction.outcome(out) == alone[inputs]


def test_a_leader_that_dies_interrupts_the_others(inputs, alone, out):
    """Nothing but a stale lock is left of it."""
    helper = Member(inputs, out, Rank(1, 2, 1, "g"), sleep=0.1)
    with locks.locked(out, flag="--output_dir") as lock:
        leader = Member(inputs, out, Rank(0, 2, 0, "g"))
        manifest = runner._manifest(leader.job, leader.extractor, leader=lock.holder.token)
        shards.Shards(out).begin(manifest)
        helper.thread.start()
        while not list((out / ".resume").glob("rows-*.json")):
            time.sleep(0.01)
    helper.thread.join(30)
    assert isinstance(helper.error, signals.Interrupted) and helper.error.exit_code == 75
    assert "rank 0 has ended" in str(helper.error)
    assert extract_features.main(extraction.arguments(inputs, out)) == 0
    assert extraction.outcome(out) == alone[inputs]


def test_failed_images_end_all_and_rank_0_with_their_error(spoiled, out):
    members = [Member(spoiled, out, rank, sleep=0.02) for rank in group_of(3)]
    run_all(*members)
    assert isinstance(members[0].error, FailedImagesError)
    for member in members[1:]:
        assert "rank 0 failed: 4 of 30 images" in str(member.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "flags", "kind", "message"),
    [
        ("g", ["FT_EXTRACT.PRECISION", "bf16"], CogError, "other input than rank 0: precision: fp32 -> bf16"),
        ("other", [], locks.LockedError, "is being written by"),
    ],
    ids=["other input", "another start"],
)
def test_helpers_that_do_not_belong_to_the_leader_leave(inputs, out, group, flags, kind, message):
    leader = Member(inputs, out, Rank(0, 2, 0, "g"), sleep=0.15)
    helper = Member(inputs, out, Rank(1, 2, 1, group), *flags)
    run_all(leader, helper)
    assert leader.error is None
    assert isinstance(helper.error, kind) and message in str(helper.error)


def test_a_leader_that_never_comes(inputs, out, monkeypatch):
    monkeypatch.setattr(sharing, "LEADER_SECONDS", 0.2)
    helper = Member(inputs, out, Rank(1, 2, 1, "g"))
    run_all(helper)
    assert "rank 0 has not begun" in str(helper.error) and "COG_RANKS=0" in str(helper.error)
    assert not out.exists()


# --- real processes


def environment(sleep="0"):
    return {**os.environ, "OMP_NUM_THREADS": "1", "COG_TEST_SLEEP": sleep}


def launched(python, repository, n, arguments, sleep="0"):
    """Start processes as srun does."""
    script = [python, str(repository / "extract_features.py"), *arguments]
    variables = [SRUN | {"SLURM_PROCID": str(number), "SLURM_NTASKS": str(n)} for number in range(n)]
    return [
        subprocess.Popen(
            script, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(sleep) | own,
        )
        for own in variables
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0, "all"])
def test_a_process_that_is_killed(spoiled, alone, out, python, repository, victim):
    arguments = extraction.arguments(spoiled, out, "--allow_failures", "4")
    processes = launched(python, repository, 2, arguments, sleep="0.3")
    try:
        wait_for(lambda: list((out / ".resume").glob("rows-*.json")))
        for process in processes if victim == "all" else [processes[victim]]:
            process.send_signal(signal.SIGTERM if victim == "all" else signal.SIGKILL)
        ended = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert "Traceback" not in "".join(error for _, error in ended)
    if victim == 1:
        assert processes[0].returncode == 0, ended
    else:
        assert not (out / "X_Y.pth").exists()
        assert extract_features.main(arguments) == 0
    assert extraction.outcome(out) == alone[spoiled]


def torchrun(python):
    return [[python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3"]], [{}]


def srun(python):
    return [[python]] * 4, [SRUN | {"SLURM_PROCID": str(number)} for number in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("start", [torchrun, srun])
def test_other_launchers(inputs, alone, out, python, repository, start):
    script = [str(repository / "extract_features.py"), *extraction.arguments(inputs, out)]
    processes = [
        subprocess.Popen([*words, *script], stderr=subprocess.PIPE, text=True, env=environment("0.2") | more)
        for words, more in zip(*start(python), strict=True)
    ]
    errors = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), errors
    assert "rank 1: placed_net on birds test" in "".join(errors)
    assert extraction.outcome(out) == alone[inputs]
