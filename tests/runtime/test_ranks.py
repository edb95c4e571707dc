"""Which of several processes this one is, and which GPU it takes."""

from __future__ import annotations

import contextlib

import pytest

from cog.errors import CogError
from cog.runtime import ranks

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
