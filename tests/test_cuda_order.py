"""The order of work on a GPU's streams, and its graphs, on an imitation of them (see ``fake_cuda.py``)."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import test_cuda_engine as engine_tests
import torch
from fake_cuda import FakeCuda, Race
from test_cuda_engine import RECIPE, assert_same_bits, problem, some_runs

from cog.logreg import cuda_engine, streaming
from cog.logreg.cuda_engine import CudaEngine


def imitation(fake, precision="fp32", **options):
    """Return an engine that believes to be on a GPU."""
    engine = CudaEngine(torch.device("cpu"), precision, max_runs=64, **options)
    engine._cuda, engine._graphs = True, True
    engine._streams = fake.streams[: 1 + cuda_engine._BRANCHES]
    return engine


@pytest.mark.parametrize("feature_memory", [None, 0])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_streams_wait_for_each_other_and_graphs_repeat_the_steps(monkeypatch, precision, feature_memory):
    monkeypatch.setattr(cuda_engine, "_BLOCK_STEPS", 3)
    runs = some_runs(3, seeds=2, shots=(0, 4))[1:]
    expected, scores = engine_tests.train(CudaEngine(torch.device("cpu"), precision), runs)
    with FakeCuda(monkeypatch) as fake:
        fits, own_scores = engine_tests.train(imitation(fake, precision, feature_memory=feature_memory), runs)
    assert_same_bits(fits, expected)
    assert own_scores == scores
    # 560 rows make 3 blocks of 3 batches in an epoch: whole ones and the last in either slot; 28 rows make one.
    # The first time each is issued step by step.
    assert [graph.n_replays for graph in fake.graphs] == [5, 5, 2, 2, 2, 2]


def test_recorded_run(monkeypatch):
    x, y, rows = problem()
    (run,) = some_runs(1)
    test = x[rows], y[rows]
    (expected,), _ = engine_tests.train(CudaEngine(torch.device("cpu")), [run], test=test)
    with FakeCuda(monkeypatch) as fake:
        (fit,), _ = engine_tests.train(imitation(fake), [run], test=test)
    assert fake.graphs
    assert fit.history.logs == expected.history.logs


def test_runs_that_end_and_graphs_without_them(monkeypatch):
    runs = some_runs(5, seeds=2)
    recipe = dataclasses.replace(RECIPE, n_epochs=12)

    def monitor(epoch, lives):
        return [
            live for live in lives if (epoch, live.index) in ((4, 0), (4, 6), (5, 5), (5, 7), (5, 8), (5, 9))
        ]

    expected, _ = engine_tests.train(CudaEngine(torch.device("cpu")), runs, recipe, monitor=monitor)
    with FakeCuda(monkeypatch) as fake:
        fits, _ = engine_tests.train(imitation(fake), runs, recipe, monitor=monitor)
    assert_same_bits(fits, expected)
    assert len(fake.graphs) == 2 + 0 + 2  # all; without two for one epoch, too short for a graph; without six


def test_missing_waits_are_found(monkeypatch):
    """The imitation itself: without either wait there is a race."""
    runs = some_runs(3, seeds=2)
    with FakeCuda(monkeypatch) as fake:
        with monkeypatch.context() as broken:
            broken.setattr(streaming.ResidentFeed, "release", lambda feed: None)
            with pytest.raises(Race):
                engine_tests.train(imitation(fake), runs)
    with FakeCuda(monkeypatch) as fake:
        with monkeypatch.context() as broken:
            broken.setattr(fake.streams[0], "wait_event", lambda event: None)
            with pytest.raises(Race):
                engine_tests.train(imitation(fake), runs)
    with FakeCuda(monkeypatch) as fake:
        with monkeypatch.context() as broken:
            broken.setattr(fake.streams[3], "wait_stream", lambda other: None)
            with pytest.raises(Race):
                engine_tests.train(imitation(fake), runs)


class Stopped(Exception):
    """The process was asked to end."""


class MemoryCheckpoint:
    """Keeps states as bytes, as a file does; ends the training after some of the saves."""

    def __init__(self, *ends):
        self.ends, self.saves, self.data = ends, 0, None

    def restore(self, n_runs):
        return [None] * n_runs if self.data is None else pickle.loads(self.data)

    def due(self):
        return True

    def save(self, states):
        self.saves += 1
        self.data = pickle.dumps(list(states))
        if self.saves in self.ends:
            raise Stopped


@pytest.mark.parametrize("feature_memory", [None, 0])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_interrupted_twice_and_continued_with_graphs(monkeypatch, precision, feature_memory):
    """Runs of different lengths and groups, one of which ends early; resident and streamed features."""
    monkeypatch.setattr(cuda_engine, "_BLOCK_STEPS", 3)
    runs = some_runs(3, seeds=2, shots=(0, 4))[1:]
    recipe = dataclasses.replace(RECIPE, n_epochs=6)
    expected, _ = engine_tests.train(CudaEngine(torch.device("cpu"), precision), runs, recipe)
    checkpoint, graphs = MemoryCheckpoint(2, 3, 8), []
    for session in range(4):
        with FakeCuda(monkeypatch) as fake:
            engine = imitation(fake, precision, feature_memory=feature_memory)
            if session < 3:
                with pytest.raises(Stopped):
                    engine_tests.train(engine, runs, recipe, checkpoint=checkpoint)
            else:
                fits, _ = engine_tests.train(engine, runs, recipe, checkpoint=checkpoint)
            graphs.append(len(fake.graphs))
    assert_same_bits(fits, expected)
    assert checkpoint.saves == 2 * 5  # every epoch but the last, of runs of either length
    assert graphs[3] > 0
