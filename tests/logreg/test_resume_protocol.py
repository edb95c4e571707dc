"""Runs of the protocol that are interrupted and continued: the same trials, weights and logs as without."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os

import hostile
import pytest
import torch
from classifier_runs import Killed, KillingFile, begun, feature_set, killing_work, run_once
from marks import first_quick

from cog.errors import CogError
from cog.logreg import protocol
from cog.logreg import search as tune
from cog.logreg.checkpoint import Work
from cog.logreg.engine import Engine
from cog.logreg.search import TrialJournal
from cog.logreg.settings import Settings
from cog.logreg.sgd import TrainedClassifier
from cog.runtime import state_file
from cog.runtime.state_file import StateFile

CPU = torch.device("cpu")


class Stub(Engine):
    """Trains nothing; the score is a smooth function of the hyper-parameters; ``width`` trials are a part."""

    def __init__(self, width=1000):
        super().__init__(CPU)
        self.width, self.trained = width, []

    def trials_per_batch(self, n_rows, settings, *, dim, n_classes):
        return self.width

    def fit(self, data, spec, settings, *, on_epoch=None, work=None):
        self.trained += spec.pairs
        if spec.record:
            raise Finished
        values = [50 - 10 * (math.log10(lr) - 1) ** 2 - (math.log10(wd) + 6) ** 2 for lr, wd in spec.pairs]
        return [
            TrainedClassifier([(torch.full((3, 4), value), torch.zeros(3))], diverged=lr > 50)
            for value, (lr, _) in zip(values, spec.pairs, strict=True)
        ]

    def validate(self, data, rows, classifiers):
        return [float(one.weight[0, 0]) for one in classifiers]


class Finished(Exception):
    """The search is over."""


def stub_search(settings, folder, width=1000):
    """Run the search; return all pairs that were trained, the trials and the study."""
    engine, searches = Stub(width), []
    sets = [feature_set(n=60, d=4, n_classes=3, seed=seed) for seed in (0, 1)]

    class Remembered(tune.Search):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            searches.append(self)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Finished):
        patch.setattr(protocol, "Search", Remembered)
        run_once(*sets, settings, engine, Work(begun(folder)))
    (search,) = searches
    study = [(t.number, t.state, t.params, t.values, t.user_attrs) for t in search.study.trials]
    return engine.trained, [dataclasses.replace(t, seconds=0.0) for t in search.trials], study


#: name: (width, how many of 30 trials are trained together at a time)
SEARCHES = {
    "together": (1000, [10, *[1] * 20]),
    "parts": (1, [1] * 30),
    "pairs": (2, [2] * 5 + [1] * 20),
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_an_interrupted_search_draws_the_same(tmp_path, kind):
    """Pairs, states and scores of all 30 trials, from the first lines of the journal; no trial is recorded twice."""
    width, sizes = SEARCHES[kind]
    settings = Settings(seed=22, n_trials=30)
    trained, trials, study = stub_search(settings, tmp_path, width)
    assert len(set(trained[:30])) == 30
    path = tmp_path / ".resume/study.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 30
    for last in (4, 11, 12, 29):
        path.write_bytes(b"".join(lines[:last]))
        resumed, *same = stub_search(settings, tmp_path, width)
        assert same == [trials, study]
        # nothing twice but what shares a part with an unfinished trial; and the final training
        begun_at = max(n for n in itertools.accumulate(sizes, initial=0) if n <= last)
        assert resumed == trained[begun_at:]
        assert [dataclasses.replace(t, seconds=0.0) for t in journal(path).trials] == trials


# ------------------------------------------------------------------------------------------------------------
# The journal


journal = TrialJournal


def fill(path, n=5):
    book = journal(path)
    for number in range(n):
        trial = tune.Trial(number, 0.1 + number / 3, 1e-7 / (number + 1), 10.1 * number, number == 2, 1.5)
        book.append(trial)
    return journal(path).trials


def test_a_journal_keeps_every_digit(tmp_path):
    trials = fill(tmp_path / "journal")
    assert [trial.lr for trial in trials] == [0.1 + number / 3 for number in range(5)]
    assert [trial.wd for trial in trials] == [1e-7 / (number + 1) for number in range(5)]
    assert [trial.diverged for trial in trials] == [False, False, True, False, False]


def test_a_torn_journal(tmp_path):
    """The whole lines count; what is appended next is not spoiled by the torn one."""
    path = tmp_path / "journal"
    trials = fill(path, 3)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for size in sorted({*range(0, len(content), 41), *(end - 1 for end in ends)}):
        path.write_bytes(content[:size])
        expected = sum(end <= size for end in ends)
        book = journal(path)
        assert book.trials == trials[:expected]
        book.append(tune.Trial(expected, 1.0, 1e-6, 50.0, False, 0.0))
        assert [trial.lr for trial in journal(path).trials] == [e.lr for e in trials[:expected]] + [1.0]


@pytest.mark.parametrize(
    "content",
    [b"\0" * 300, b"[]\n", b"{}\n", b"null\n" * 3, b"\xff\xfe\n", b'{"number": 1, "lr": "x"}\n'],
)
def test_a_damaged_journal_is_begun_again(tmp_path, content):
    path = tmp_path / "journal"
    path.write_bytes(content)
    assert journal(path).trials == []
    assert len(fill(path, 2)) == 2


def test_other_suggestions_are_an_error(tmp_path):
    """What another version of the sampler would do to a search."""
    fill(begun(tmp_path).path / "study.journal")
    with pytest.raises(
        CogError, match=r"trial 0 was lr 0.1, wd 1e-07 .* Optuna or NumPy draws other numbers"
    ):
        stub_search(Settings(seed=22), tmp_path)


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    book = journal(tmp_path / "journal")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CogError, match="cannot write .*journal: No space left"):
            book.append(tune.Trial(0, 1.0, 1e-6, 50.0, False, 0.0))
    assert len(journal(tmp_path / "journal").trials) <= 1


# ------------------------------------------------------------------------------------------------------------
# Trainings


@pytest.fixture
def killing():
    KillingFile.reset()
    return KillingFile.reset


#: Trainings of all forms are killed in test_engine.py.
RUNS = {
    "bf16": ("bf16", {}),
    "search": ("fp32", {"n_trials": 13, "n_epochs": 2}),
    "fixed": ("fp32", {"n_trials": 0, "lr": 3.0, "wd": 1e-6, "n_epochs": 6}),
    "diverging": ("fp32", {"lr_interval": (1e-1, 1e38), "n_trials": 6}),
}


def outcome(name, folder):
    precision, changes = RUNS[name]
    settings = Settings(**{"seed": 22, "n_trials": 3, "n_epochs": 3, "batch_size": 16} | changes)
    folder.mkdir(exist_ok=True)
    sets = [feature_set(n=60, d=24, n_classes=6, seed=seed) for seed in (0, 1)]
    return run_once(*sets, settings, Engine(CPU, precision), killing_work(folder))


def assert_same(one, other):
    assert (one.lr, one.wd, one.rows) == (other.lr, other.wd, other.rows)
    for layers in zip(one.classifier.layers, other.classifier.layers, strict=True):
        for tensors in zip(*layers, strict=True):
            assert torch.equal(*(tensor.view(torch.int32) for tensor in tensors))
    assert torch.equal(one.classifier.predictions, other.classifier.predictions)
    assert one.classifier.logs == other.classifier.logs
    trials = [
        [dataclasses.replace(t, seconds=0.0) for t in each.search.trials]
        for each in (one, other)
        if each.search
    ]
    assert trials[:1] == trials[1:]


@pytest.mark.parametrize("name", first_quick(1, RUNS))
def test_a_run_killed_after_every_epoch(tmp_path, killing, name):
    """Search and final training, one epoch further each time; the result to the last bit."""
    killing()
    whole = outcome(name, tmp_path / "whole")
    n_saves = KillingFile.n_saves
    assert n_saves >= 4
    for last in range(1, n_saves + 1):
        folder = tmp_path / str(last)
        killing(last)
        with pytest.raises(Killed):
            outcome(name, folder)
        killing()
        assert_same(outcome(name, folder), whole)
        assert KillingFile.n_saves == n_saves - last  # nothing that was saved is trained again
        file = StateFile(folder / ".resume/checkpoint.pt")
        assert not file.path.exists() or file.load()["key"]["stage"] == "final"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04"])
def test_a_damaged_checkpoint_costs_one_training(tmp_path, killing, caplog, content):
    caplog.set_level("WARNING", logger="cog")
    killing()
    whole = outcome("fixed", tmp_path / "whole")
    killing(4)
    with pytest.raises(Killed):
        outcome("fixed", tmp_path / "a")
    (tmp_path / "a/.resume/checkpoint.pt").write_bytes(content)
    killing()
    assert_same(outcome("fixed", tmp_path / "a"), whole)
    assert "checkpoint.pt" in caplog.text and "that part of the work starts again" in caplog.text


@pytest.mark.parametrize("kind", hostile.TORCH_FILES)
def test_a_checkpoint_runs_no_code(tmp_path, kind):
    file, canary = tmp_path / "checkpoint.pt", tmp_path / "canary"
    file.write_bytes(hostile.TORCH_FILES[kind](canary))
    assert StateFile(file).load() is None
    assert not canary.exists()


def test_saves_are_rare_and_rarer_where_they_are_slow(tmp_path, monkeypatch):
    now, slow = [0.0], [3.0]
    monkeypatch.setattr(state_file.time, "monotonic", lambda: now[0])
    saved = StateFile(tmp_path / "a.pt", create=lambda: now.__setitem__(0, now[0] + slow[0]))
    assert saved.load() is None and not saved.due()
    now[0] = state_file.SAVE_SECONDS
    assert saved.due()
    saved.save({"weight": torch.ones(2)})
    now[0] += state_file.SAVE_SECONDS
    assert not saved.due()
    now[0] += 3.0 / 0.005 - state_file.SAVE_SECONDS
    assert saved.due()
    assert saved.load()["weight"].tolist() == [1.0, 1.0] and not saved.due()
