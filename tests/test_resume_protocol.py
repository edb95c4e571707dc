"""Runs of the protocol that are interrupted and continued: the same trials, weights and logs as without."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os

import pytest
import torch
from test_protocol import feature_set
from test_search import overlapping

from cog.errors import CogError
from cog.logreg import checkpoint, protocol, tune
from cog.logreg.cpu_engine import CpuEngine
from cog.logreg.cuda_engine import CudaEngine
from cog.logreg.settings import Settings
from cog.logreg.sgd import Fit
from cog.logreg.trial_journal import TrialJournal

CPU = torch.device("cpu")


class Killed(BaseException):
    """What SIGKILL is: no handler between here and the test sees it."""


class Stub(CpuEngine):
    """Trains nothing; the score is a smooth function of the hyper-parameters.

    Args:
        kill_at: dies before that many classifiers are trained.
        width: runs in a part.
    """

    def __init__(self, kill_at=None, width=1000):
        super().__init__()
        self.kill_at, self.width, self.trained = kill_at, width, []

    def together(self, n_classes):
        return self.width

    def fit(self, features, y, runs, recipe, *, test=None, on_epoch=None, monitor=None, checkpoint=None):
        if self.kill_at is not None and len(self.trained) + len(runs) > self.kill_at:
            raise Killed
        self.trained += [(run.lr, run.wd) for run in runs]
        fits = []
        for run in runs:
            value = 50 - 10 * (math.log10(run.lr) - 1) ** 2 - (math.log10(run.wd) + 6) ** 2
            fit = Fit(torch.full((3, 4), value), torch.zeros(3), run.lr > 50)
            if monitor is not None:
                for epoch in (9, 19):
                    live = protocol.Live(run, fit.weight * (epoch + 1) / 30, fit.bias, runs.index(run))
                    if not fit.stopped:
                        fit.stopped = bool(monitor(epoch, [live]))
                        fit.weight = live.weight if fit.stopped else fit.weight
            fits.append(fit)
        if test is not None:
            raise Finished
        return fits

    def validate(self, features, y, rows, fits):
        return [float(fit.weight[0, 0]) for fit in fits]


class Finished(Exception):
    """The search is over."""


def stub_search(settings, folder, **options):
    """Run the search; returns the engine and what the final training would be given."""
    engine = Stub(**options)
    data = protocol.prepare(
        feature_set(n=60, d=4, n_classes=3), feature_set(n=60, d=4, n_classes=3, seed=1), engine
    )
    searches = []

    def remember(*arguments):
        searches.append(open_search(*arguments))
        return searches[-1]

    open_search = protocol._open_search
    protocol._open_search = remember
    try:
        with contextlib.suppress(Finished):
            list(protocol.run_all(data, [settings], engine, print_freq=0, resume=[folder]))
    finally:
        protocol._open_search = open_search
    (search,) = searches
    study = [
        (t.number, t.state, t.params, t.values, t.intermediate_values, t.user_attrs)
        for t in search.study.trials
    ]
    return engine, [dataclasses.replace(t, seconds=0.0) for t in search.trials], study


SEARCHES = {
    "sequential": ({}, 1000),
    "parts": ({}, 1),
    "batched": ({"search": "batched", "trials_per_round": 4}, 2),
    "pruner": ({"pruner": "median", "n_epochs": 30}, 1),
    "both": ({"pruner": "median", "n_epochs": 30, "search": "batched"}, 3),
}


@pytest.fixture(scope="module")
def whole_search(tmp_path_factory):
    """Searches without an interruption, each done once: engine, trials, study, folder."""
    done = {}

    def get(kind):
        if kind not in done:
            changes, width = SEARCHES[kind]
            folder = tmp_path_factory.mktemp("whole")
            done[kind] = *stub_search(Settings(seed=22, n_trials=30, **changes), folder, width=width), folder
        return done[kind]

    return get


@pytest.mark.parametrize("kind", ["sequential", *(pytest.param(k, marks=pytest.mark.slow) for k in SEARCHES)])
def test_a_search_continued_after_every_trial_draws_the_same(tmp_path, whole_search, kind):
    """Learning rates, weight decays, states and reported values of all 30 trials, from the journal's first lines."""
    changes, width = SEARCHES[kind]
    engine, trials, study, folder = whole_search(kind)
    assert len(set(engine.trained[:30])) == 30
    if "pruner" in changes:
        assert any(trial.pruned for trial in trials)
    lines = (folder / "study.journal").read_bytes().splitlines(keepends=True)
    assert len(lines) == 31
    for last in range(1, 30):
        (tmp_path / "study.journal").write_bytes(b"".join(lines[: 1 + last]))
        resumed, same_trials, same_study = stub_search(
            Settings(seed=22, n_trials=30, **changes), tmp_path, width=width
        )
        assert same_trials == trials
        assert same_study == study
        assert len(resumed.trained) == 31 - last  # nothing twice; and the final training
        assert resumed.trained == engine.trained[last:]


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_killed_draws_the_same(tmp_path, whole_search, kind):
    changes, width = SEARCHES[kind]
    settings = Settings(seed=22, n_trials=30, **changes)
    _, trials, study, _ = whole_search(kind)
    for last in (4, 12, 29):
        folder = tmp_path / str(last)
        folder.mkdir()
        with pytest.raises(Killed):
            stub_search(settings, folder, width=width, kill_at=last)
        resumed, same_trials, same_study = stub_search(settings, folder, width=width)
        assert (same_trials, same_study) == (trials, study)
        repeated = len(resumed.trained) - (31 - last)  # of a part that was killed as a whole
        assert 0 <= repeated < (width if width < 1000 else 10)


def test_interrupted_again_and_again(tmp_path):
    settings = Settings(seed=5, n_trials=30)
    (tmp_path / "whole").mkdir()
    (tmp_path / "resumed").mkdir()
    _, trials, study = stub_search(settings, tmp_path / "whole", width=3)
    for _ in range(40):
        with contextlib.suppress(Killed):
            _, same_trials, same_study = stub_search(settings, tmp_path / "resumed", width=3, kill_at=6)
            break
    else:
        pytest.fail("no progress")
    assert (same_trials, same_study) == (trials, study)


# ------------------------------------------------------------------------------------------------------------
# The journal


def journal(path):
    return TrialJournal(path, lr_interval=(1e-1, 1e2), wd_interval=(1e-12, 1e-4))


def fill(path, n=5):
    book = journal(path)
    for number in range(n):
        trial = tune.Trial(
            number, 0.1 + number / 3, 1e-7 / (number + 1), 10.1 * number, number == 2, 1.5, number == 3
        )
        book.append(trial, {9: 1 / 3, 19: float("nan")} if number == 3 else {})
    return journal(path).entries


def test_what_is_appended_comes_back(tmp_path):
    entries = fill(tmp_path / "journal")
    assert [entry.lr for entry in entries] == [0.1 + number / 3 for number in range(5)]  # to the last digit
    assert [entry.wd for entry in entries] == [1e-7 / (number + 1) for number in range(5)]
    assert [entry.diverged for entry in entries] == [False, False, True, False, False]
    assert [entry.pruned for entry in entries] == [False, False, False, True, False]
    assert entries[3].reports[9] == 1 / 3
    assert math.isnan(entries[3].reports[19])


def test_a_journal_is_json_that_optuna_reads(tmp_path):
    import optuna

    fill(tmp_path / "journal")
    for line in (tmp_path / "journal").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal"))
    )
    study = optuna.load_study(study_name="search", storage=storage)
    assert len(study.trials) == 5
    assert study.best_trial.number == 4


def test_a_torn_journal(tmp_path):
    """The whole lines count; what is appended next is not spoiled by the torn one."""
    path = tmp_path / "journal"
    entries = fill(path, 3)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for size in range(0, len(content), 41):
        path.write_bytes(content[:size])
        expected = max(0, sum(end <= size for end in ends) - 1)  # the first line creates the study
        book = journal(path)
        assert book.entries == entries[:expected]
        book.append(tune.Trial(expected, 1.0, 1e-6, 50.0, False, 0.0), {})
        assert [entry.lr for entry in journal(path).entries] == [e.lr for e in entries[:expected]] + [1.0]


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 300,
        b"[]\n",
        b"{}\n",
        b'{"op_code": 99}\n',
        b"null\n" * 3,
        b'{"op_code": 4, "study_id": 7}\n',
        b"\xff\xfe\n",
    ],
)
def test_a_damaged_journal_is_begun_again(tmp_path, content):
    path = tmp_path / "journal"
    path.write_bytes(content)
    assert journal(path).entries == []
    assert len(fill(path, 2)) == 2


def test_left_over_locks_of_the_journal(tmp_path):
    path = tmp_path / "journal"
    fill(path, 2)
    (tmp_path / "journal.lock").write_text("")
    (tmp_path / "journal.lock1234.rename").symlink_to("nowhere")
    assert len(fill(path, 3)) == 5  # at once: Optuna's own waiting takes half a minute
    assert os.listdir(tmp_path) == ["journal"]


def test_other_suggestions_are_an_error(tmp_path):
    """What another version of the sampler would do to a search."""
    fill(tmp_path / "study.journal")
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
            book.append(tune.Trial(0, 1.0, 1e-6, 50.0, False, 0.0), {})
    assert len(fill(tmp_path / "journal", 2)) in (2, 3)


# ------------------------------------------------------------------------------------------------------------
# Trainings


class Killing(checkpoint.JointCheckpoint):
    """Saves after every epoch, and dies after some of the saves."""

    saves, kill_after = 0, None

    def due(self):
        return any(part is not None for part, _ in self._parts)

    def save(self, states):
        super().save(states)
        Killing.saves += 1
        if Killing.saves == Killing.kill_after:
            raise Killed


@pytest.fixture
def killing(monkeypatch):
    monkeypatch.setattr(protocol, "JointCheckpoint", Killing)

    def set_up(kill_after):
        Killing.saves, Killing.kill_after = 0, kill_after

    return set_up


ENGINES = {
    "fp32": (lambda: CpuEngine("fp32"), {}),
    "bf16": (lambda: CpuEngine("bf16"), {}),
    "span": (lambda: CpuEngine("fp32"), {"n_shot": 1}),
    "gpu code": (lambda: CudaEngine(CPU, "fp32"), {}),
    "gpu code bf16": (lambda: CudaEngine(CPU, "bf16", max_runs=2), {}),
    "lbfgs": (lambda: CpuEngine("fp32"), {"solver": "lbfgs"}),
    "lbfgs search": (lambda: CpuEngine("fp32"), {"solver": "lbfgs", "wd_interval": (1e-7, 1e-2)}),
    "fixed": (lambda: CpuEngine("fp32"), {"n_trials": 0, "lr": 3.0, "wd": 1e-6, "n_epochs": 6}),
    "diverging": (lambda: CpuEngine("fp32"), {"lr_interval": (1e-1, 1e38), "n_trials": 6}),
}


def outcome(make_engine, study, folders, *, side_by_side=None):
    engine = make_engine()
    if side_by_side is not None:
        engine.side_by_side = side_by_side
    sets = [feature_set(n=60, d=24, n_classes=6, seed=seed) for seed in (0, 1)]
    data = protocol.prepare(*sets, engine)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return [one for _, one in sorted(protocol.run_all(data, study, engine, print_freq=0, resume=folders))]


def assert_same(resumed, whole):
    for one, other in zip(resumed, whole, strict=True):
        assert (one.lr, one.wd, one.sizes) == (other.lr, other.wd, other.sizes)
        assert torch.equal(one.fit.weight, other.fit.weight)
        assert torch.equal(one.fit.bias, other.fit.bias)
        assert torch.equal(one.fit.predictions, other.fit.predictions)
        assert one.fit.history.logs == other.fit.history.logs
        trials = [[dataclasses.replace(t, seconds=0.0) for t in each.trials] for each in (one, other)]
        assert trials[0] == trials[1]


@pytest.mark.parametrize(
    "name",
    [
        k if k in ("bf16", "span", "gpu code bf16") else pytest.param(k, marks=pytest.mark.slow)
        for k in ENGINES
    ],
)
def test_a_training_killed_after_every_epoch(tmp_path, killing, name):
    """Search and final training, one epoch (or iteration) further each time; the result to the last bit."""
    make_engine, changes = ENGINES[name]
    study = [Settings(**{"seed": 22, "n_trials": 3, "n_epochs": 3, "batch_size": 16} | changes)]
    killing(None)
    whole = outcome(make_engine, study, [tmp_path / "whole"])
    n_saves = Killing.saves
    assert n_saves >= 4
    for last in range(1, n_saves + 1):
        folder = tmp_path / str(last)
        killing(last)
        with pytest.raises(Killed):
            outcome(make_engine, study, [folder])
        killing(None)
        assert_same(outcome(make_engine, study, [folder]), whole)
        assert Killing.saves == n_saves - last  # nothing that was saved is trained again
        assert not (folder / "checkpoint.pt").exists() or settings_final(folder)
    # One epoch per session, until it is through.
    for _ in range(n_saves + 1):
        killing(1)
        with contextlib.suppress(Killed):
            assert_same(outcome(make_engine, study, [tmp_path / "steps"]), whole)
            break
    else:
        pytest.fail("no progress")


def settings_final(folder):
    return checkpoint.read(folder / "checkpoint.pt")["key"]["stage"] == "final"


@pytest.mark.parametrize("step", [97, pytest.param(7, marks=pytest.mark.slow)])
def test_a_pruned_search_killed_after_some_epoch(tmp_path, killing, step):
    settings = Settings(seed=22, n_trials=16, n_epochs=21, batch_size=64, pruner="median")

    def search(folder):
        folder.mkdir(exist_ok=True)
        engine = CpuEngine("fp32")
        data = protocol.prepare(overlapping(), overlapping(1), engine)
        ((_, one),) = protocol.run_all(data, [settings], engine, print_freq=0, resume=[folder])
        return one, [t.intermediate_values for t in one.study.trials]

    killing(None)
    whole, reports = search(tmp_path / "whole")
    assert any(trial.pruned for trial in whole.trials)
    for last in range(step, Killing.saves + 1, step):
        killing(last)
        with pytest.raises(Killed):
            search(tmp_path / str(last))
        killing(None)
        resumed, again = search(tmp_path / str(last))
        assert_same([resumed], [whole])
        assert again == reports


@pytest.mark.parametrize("make_engine", [lambda: CpuEngine("fp32"), lambda: CudaEngine(CPU, "fp32")])
def test_runs_side_by_side(tmp_path, killing, make_engine):
    """Seeds and shots in one call of fit: each folder holds its own part, and they need not agree afterwards."""
    study = [
        Settings(seed=seed, n_shot=n_shot, n_trials=3, n_epochs=4, batch_size=16)
        for seed in (22, 37)
        for n_shot in (0, 4)
    ]
    killing(None)
    whole = outcome(make_engine, study, [tmp_path / f"whole{i}" for i in range(4)])
    for last in (1, 3, 5):
        folders = [tmp_path / f"{last}-{i}" for i in range(4)]
        killing(last)
        with pytest.raises(Killed):
            outcome(make_engine, study, folders, side_by_side=4)
        killing(None)
        (folders[1] / "checkpoint.pt").unlink(missing_ok=True)  # as if killed between two folders
        assert_same(outcome(make_engine, study, folders, side_by_side=4), whole)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04"])
def test_a_damaged_checkpoint_costs_one_training(tmp_path, killing, caplog, content):
    caplog.set_level("WARNING", logger="cog")
    study = [Settings(seed=22, n_trials=2, n_epochs=4, batch_size=16)]
    make_engine = ENGINES["fp32"][0]
    killing(None)
    whole = outcome(make_engine, study, [tmp_path / "whole"])
    killing(5)
    with pytest.raises(Killed):
        outcome(make_engine, study, [tmp_path / "a"])
    (tmp_path / "a" / "checkpoint.pt").write_bytes(content)
    killing(None)
    assert_same(outcome(make_engine, study, [tmp_path / "a"]), whole)
    assert "cannot be read" in caplog.text


def test_a_checkpoint_runs_no_code(tmp_path, killing):
    import pickle

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    (tmp_path / "a").mkdir()
    for data in (pickle.dumps(Evil(), protocol=2), pickle.dumps({"key": Evil()}, protocol=2)):
        (tmp_path / "a" / "checkpoint.pt").write_bytes(data)
        assert checkpoint.read(tmp_path / "a" / "checkpoint.pt") is None
    torch.save({"key": Evil()}, tmp_path / "a" / "checkpoint.pt")
    assert checkpoint.read(tmp_path / "a" / "checkpoint.pt") is None
    assert not (tmp_path / "pwned").exists()


def test_saves_are_rare_and_rarer_where_they_are_slow(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    file = checkpoint.FileCheckpoint(tmp_path / "file", {"stage": "final"})
    assert file.restore(1) == [None]
    write = checkpoint.write

    def slow(path, data):
        write(path, data)
        now[0] += 3.0

    monkeypatch.setattr(checkpoint, "write", slow)
    assert not file.due()
    now[0] = checkpoint.SAVE_SECONDS
    assert file.due()
    file.save([checkpoint.RunState(3, {"weight": torch.ones(2)}, logs={"lr": [1.0]})])
    now[0] += checkpoint.SAVE_SECONDS
    assert not file.due()
    now[0] += 3.0 / 0.005 - checkpoint.SAVE_SECONDS
    assert file.due()
    (state,) = file.restore(1)
    assert (state.epochs, state.ended, state.logs) == (3, "", {"lr": [1.0]})
    assert checkpoint.FileCheckpoint(tmp_path / "file", {"stage": "search"}).restore(1) == [None]
    assert file.restore(2) == [None, None]
