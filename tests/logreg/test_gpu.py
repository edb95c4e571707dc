"""The engine on a GPU. The tests share shapes, because each is compiled once per precision, for seconds."""

import dataclasses

import pytest
import torch
from classifier_runs import (
    QUICK,
    TEST,
    TRAIN,
    assert_continues,
    command,
    complete,
    error,
    fit,
    parameters,
    spec_of,
)
from test_kill import snapshot

from cog.commands import logreg
from cog.logreg.engine import Engine
from cog.logreg.features import Lockstep
from cog.logreg.protocol import run_protocol
from cog.logreg.settings import Settings

pytestmark = pytest.mark.gpu

#: Largest error of weights, relative to their way, by precision.
TOLERANCE = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2}

#: 25 steps per epoch: a whole graph, and a part of one; the last batch is incomplete.
SETTINGS, N = dataclasses.replace(QUICK, batch_size=40), 990

SHAPES = [(5, 1, True), (2, 10, False)]


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(("s", "k", "record"), SHAPES)
def test_replayed_graphs_give_the_weights_of_torch_sgd(precision, s, k, record):
    """With the bits of issued steps: batches that are sent from the host are in no graph."""
    spec = spec_of(s, k, n=N, record=record)
    found = [
        fit(spec, SETTINGS, precision=precision, device="cuda", place=Lockstep(s, k, resident, copy))[1]
        for resident, copy in ((True, True), (True, False), (False, False))
    ]
    errors = [error(found[0], spec, SETTINGS, i, j) for i in range(s) for j in range(k)]
    assert max(errors) < TOLERANCE[precision]
    bits = [parameters(trained) for trained in found]
    assert torch.equal(bits[0], bits[1]) and torch.equal(bits[0], bits[2])
    assert found[0].logs == found[1].logs == found[2].logs


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("s", "k", "record"), SHAPES)
def test_resumed_after_any_epoch_gives_the_same_bits(tmp_path, precision, s, k, record):
    spec = spec_of(s, k, n=N, record=record)
    assert_continues(tmp_path, spec, SETTINGS, precision=precision, device="cuda")


def test_five_seeds_in_lockstep_predict_as_each_alone():
    fixed = {"n_trials": 0, "lr_interval": (3.0, 3.0), "wd_interval": (1e-6, 1e-6)}
    runs = [Settings(seed=seed, n_epochs=10, batch_size=40, **fixed) for seed in range(5)]
    engine = Engine(torch.device("cuda", 0), "tf32")
    data = engine.prepare(TRAIN, TEST, runs[0], n_seeds=5)
    assert (data.together.seeds, data.together.resident) == (5, True)
    results = run_protocol(data, runs, engine, print_freq=0)
    for run, result in zip(runs, results, strict=True):
        (alone,) = run_protocol(data, [run], engine, print_freq=0)
        assert int((alone.predictions != result.predictions).sum()) <= 1


def test_the_command_gives_the_same_files_again(feature_folders, tmp_path):
    flags = ["--seeds", "22", "37", "--device", "cuda", "CLF.N_TRIALS", "11"]
    for name in ("a", "b"):
        assert logreg.main([*command(feature_folders, tmp_path / name / "out"), *flags]) == 0
    first, second = (snapshot(tmp_path / name) for name in ("a", "b"))
    assert first == second and complete(tmp_path / "a") == ["out/seed-22", "out/seed-37"]
