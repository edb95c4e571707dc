"""CLF.SEARCH batched and CLF.PRUNER median against Optuna's own loops; what they do to a run."""

from __future__ import annotations

import dataclasses
import math
import pickle

import optuna
import pytest
import torch
from test_logreg import command, logs_of
from test_protocol import QUICK, feature_set, search
from test_sgd import clusters

from cog import features, randomness
from cog.commands import logreg
from cog.features import FeatureSet
from cog.logreg import protocol, tune
from cog.logreg.cpu_engine import CpuEngine
from cog.logreg.settings import Settings
from cog.logreg.sgd import Recipe

LR, WD = (1e-1, 1e2), (1e-12, 1e-4)


def hill(lr, wd):
    """A smooth objective with one maximum."""
    return 50 - 10 * (math.log10(lr) - 1) ** 2 - (math.log10(wd) + 6) ** 2, False


def suggest(asked):
    return asked.suggest_float("lr", *LR, log=True), asked.suggest_float("wd", *WD, log=True)


# ------------------------------------------------------------------------------------------------------------
# Batched search


@pytest.mark.parametrize(
    ("n_trials", "per_round", "rounds"),
    [
        (30, 5, [10, 5, 5, 5, 5]),
        (30, 7, [10, 7, 7, 6]),
        (30, 50, [10, 20]),
        (12, 5, [10, 2]),
        (4, 5, [4]),
        (13, 1, [10, 1, 1, 1]),
    ],
)
def test_rounds(n_trials, per_round, rounds):
    assert search(hill, n_trials=n_trials, search="batched", trials_per_round=per_round)[2] == rounds


def test_batched_trials_are_those_of_optunas_constant_liar():
    trials, _, _ = search(hill, n_trials=23, seed=7, search="batched", trials_per_round=4)
    sampler = optuna.samplers.TPESampler(multivariate=True, seed=7, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for start, size in ((0, 10), (10, 4), (14, 4), (18, 4), (22, 1)):
        asked = [study.ask() for _ in range(size)]
        for one, trial in zip(asked, trials[start : start + size], strict=True):
            assert suggest(one) == (trial.lr, trial.wd)
        for one in asked:
            study.tell(one, hill(one.params["lr"], one.params["wd"])[0])


def test_suggestions_of_a_round_do_not_wait_for_its_results():
    """The same results reach the sampler late: the round is other than the sequential trials, up to its end."""
    sequential, _, _ = search(hill, n_trials=20)
    batched, _, _ = search(hill, n_trials=20, search="batched")
    pairs = [[(t.lr, t.wd) for t in trials] for trials in (sequential, batched)]
    assert pairs[0][:10] == pairs[1][:10]  # the random start
    assert pairs[0][11] != pairs[1][11]
    assert len(set(pairs[1])) == 20

    def worse_late(lr, wd):
        worse_late.calls += 1
        return (hill(lr, wd)[0] - 30 * (worse_late.calls > 10), False)

    worse_late.calls = 0
    other, _, _ = search(worse_late, n_trials=20, search="batched")
    assert [(t.lr, t.wd) for t in other][:15] == pairs[1][:15]
    assert [(t.lr, t.wd) for t in other][15:] != pairs[1][15:]


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_searches_do_not_disturb_each_other(mode):
    """Two seeds in turn give what each gives alone."""
    alone = [search(hill, n_trials=17, seed=seed, search=mode)[0] for seed in (1, 2)]
    searches = [
        tune.Search(Settings(seed=seed, n_trials=17, lr_interval=LR, wd_interval=WD, search=mode))
        for seed in (1, 2)
    ]
    while not all(one.done for one in searches):
        rounds = [one.ask() for one in searches]
        for one, pairs in zip(searches[::-1], rounds[::-1], strict=True):
            one.tell([tune.Result(*hill(*pair), seconds=0.0) for pair in pairs])
    assert [one.trials for one in searches] == alone


def test_batched_run_twice_and_by_command(feature_folders, tmp_path):
    pairs = ["CLF.SEARCH", "batched", "CLF.TRIALS_PER_ROUND", "3", "CLF.N_TRIALS", "15"]
    for name in "ab":
        logreg.main(command(feature_folders, tmp_path / name, *pairs))
    assert logs_of(tmp_path / "a") == logs_of(tmp_path / "b")
    studies = [pickle.loads((tmp_path / name / "study.pkl").read_bytes()) for name in "ab"]
    assert [t.params for t in studies[0].trials] == [t.params for t in studies[1].trials]
    expected, _, _ = search(lambda lr, wd: (0.0, False), n_trials=10, seed=22)
    assert [t.params["lr"] for t in studies[0].trials][:10] == [t.lr for t in expected]


def test_diverged_trials_of_a_round_count_as_zero():
    def objective(lr, wd):
        return (math.nan, True) if lr > 10 else hill(lr, wd)

    trials, study, _ = search(objective, n_trials=25, search="batched")
    diverged = [t.number for t in trials if t.diverged]
    assert 0 < len(diverged) < 20
    assert [study.trials[n].value for n in diverged] == [0.0] * len(diverged)
    assert not tune.best(trials).diverged


# ------------------------------------------------------------------------------------------------------------
# Median pruning

PRUNED = Settings(seed=22, n_trials=16, n_epochs=30, batch_size=64, pruner="median")


def curve(lr, wd, epoch):
    return hill(lr, wd)[0] * (epoch + 1) / 30


def test_pruned_trials_are_those_of_optunas_median_pruner():
    settings = dataclasses.replace(PRUNED, n_trials=25, seed=3)
    ours = tune.Search(settings)
    while not ours.done:
        pairs = ours.ask()
        results = []
        for position, (lr, wd) in enumerate(pairs):
            stopped = next(
                (epoch for epoch in (9, 19) if ours.should_stop(position, epoch, curve(lr, wd, epoch))), None
            )
            value = curve(lr, wd, 29 if stopped is None else stopped)
            results.append(tune.Result(value, False, 0.0, pruned=stopped is not None))
        ours.tell(results)
    sampler = optuna.samplers.TPESampler(multivariate=True, seed=3)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.MedianPruner(), direction="maximize")
    waiting = []  # the random ones at the start are told together
    for number in range(25):
        asked = study.ask()
        lr, wd = suggest(asked)
        assert (lr, wd) == (ours.trials[number].lr, ours.trials[number].wd)
        outcome = {"values": curve(lr, wd, 29)}
        for epoch in (9, 19):
            asked.report(curve(lr, wd, epoch), epoch)
            if asked.should_prune():
                outcome = {"state": optuna.trial.TrialState.PRUNED}
                break
        waiting.append((asked, outcome))
        if number >= 9:
            for one, told in waiting:
                study.tell(one, **told)
            waiting = []
    states = [trial.state for trial in study.trials]
    assert [t.state for t in ours.study.trials] == states
    assert [t.pruned for t in ours.trials] == [s == optuna.trial.TrialState.PRUNED for s in states]
    assert 3 <= sum(t.pruned for t in ours.trials) <= 14
    assert not any(t.pruned for t in ours.trials[:10])
    assert tune.best(ours.trials).number == study.best_trial.number


class Watcher(CpuEngine):
    """Notes which classifiers were trained for how many epochs in the search."""

    def __init__(self):
        super().__init__("fp32")
        self.epochs = []
        self.search_fits = []

    def fit(self, features, y, runs, recipe, *, test=None, monitor=None, **options):
        epochs = [recipe.n_epochs] * len(runs)

        def watch(epoch, live):
            stop = monitor(epoch, live)
            for one in stop:
                epochs[one.index] = epoch + 1
            return stop

        fits = super().fit(
            features, y, runs, recipe, test=test, monitor=watch if monitor else None, **options
        )
        if test is None:
            self.epochs += epochs
            self.search_fits += fits
        return fits


def overlapping(seed=0, n_classes=8):
    x, y = clusters(640, 24, n_classes, spread=2.5)
    part = slice(0, 320) if seed == 0 else slice(320, 640)
    return FeatureSet(x[part], y[part], "overlapping")


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_pruning_saves_epochs_and_changes_no_survivor(mode):
    settings = dataclasses.replace(PRUNED, search=mode)
    train, test = overlapping(), overlapping(1)
    engine = Watcher()
    outcome = protocol.run(train, test, settings, engine, print_freq=0)
    trials = outcome.trials
    pruned = [trial.number for trial in trials if trial.pruned]
    assert pruned
    assert min(pruned) >= 10
    states = [trial.state.name for trial in outcome.study.trials]
    assert [number for number, state in enumerate(states) if state == "PRUNED"] == pruned
    assert [engine.epochs[number] in (10, 20) for number in pruned] == [True] * len(pruned)
    assert sum(engine.epochs) < 16 * 30
    best = tune.best(trials)
    assert not best.pruned
    assert (outcome.lr, outcome.wd) == (best.lr, best.wd)
    assert best.val_top1 == max(trial.val_top1 for trial in trials if not trial.pruned)
    # What survived, trained without any pruning.
    plain = CpuEngine("fp32")
    rows, held_out = features.split_train_val(train.y, val_frac=0.2, rng=randomness.numpy_rng(22, "split"))
    matrix = plain.load(train.x)
    survivors = [trial for trial in trials if not trial.pruned]
    specs = [protocol._spec(settings, rows, trial.lr, trial.wd, "search") for trial in survivors]
    fits = plain.fit(matrix, train.y, specs, Recipe(8, 30, 64, 0.9))
    assert plain.validate(matrix, train.y, held_out, fits) == [trial.val_top1 for trial in survivors]
    for trial, fit in zip(survivors, fits, strict=True):
        assert torch.equal(fit.weight, engine.search_fits[trial.number].weight)
    # ... and the final training knows nothing of the search.
    fixed = dataclasses.replace(settings, pruner="none", n_trials=0, lr=best.lr, wd=best.wd)
    expected = protocol.run(train, test, fixed, CpuEngine("fp32"), print_freq=0)
    assert outcome.fit.history.logs == expected.fit.history.logs
    assert torch.equal(outcome.fit.weight, expected.fit.weight)


def test_pruned_trials_score_what_was_last_measured():
    train, engine = overlapping(), Watcher()
    outcome = protocol.run(train, overlapping(1), PRUNED, engine, print_freq=0)
    for trial, frozen in zip(outcome.trials, outcome.study.trials, strict=True):
        steps = frozen.intermediate_values
        assert sorted(steps) == ([9, 19] if engine.epochs[trial.number] > 10 else [9])
        if trial.pruned:
            assert trial.val_top1 == steps[max(steps)] == frozen.value


def test_pruning_is_deterministic_and_the_same_beside_other_runs():
    """The trials, the final classifier: twice, and with another seed in the same process."""
    train, test, engine = overlapping(), overlapping(1), CpuEngine("fp32")
    alone = [
        protocol.run(train, test, dataclasses.replace(PRUNED, seed=seed), engine, print_freq=0)
        for seed in (22, 37)
    ]
    engine.side_by_side = 2
    data = protocol.prepare(train, test, engine)
    study = [dataclasses.replace(PRUNED, seed=seed) for seed in (22, 37)]
    both = dict(protocol.run_all(data, study, engine, print_freq=0))
    for position, one in enumerate(alone):
        other = both[position]
        timeless = [[dataclasses.replace(t, seconds=0.0) for t in outcome.trials] for outcome in (one, other)]
        assert timeless[0] == timeless[1]
        assert torch.equal(one.fit.weight, other.fit.weight)
        assert one.fit.history.logs == other.fit.history.logs


def test_parts_of_a_round_change_nothing():
    """What an engine does with classifiers that do not fit into its cache or memory at once."""
    outcomes = []
    for together in (100, 2):
        engine = CpuEngine("fp32")
        engine.together = lambda n_classes, n=together: n
        settings = dataclasses.replace(PRUNED, search="batched", n_trials=20)
        outcomes.append(protocol.run(overlapping(), overlapping(1), settings, engine, print_freq=0))
    whole, parts = ([dataclasses.replace(t, seconds=0.0) for t in outcome.trials] for outcome in outcomes)
    assert whole == parts
    assert any(trial.pruned for trial in whole)
    values = [[t.intermediate_values for t in outcome.study.trials] for outcome in outcomes]
    assert values[0] == values[1]


def test_a_pruned_trial_is_never_chosen():
    """Not even when what was last measured of it is the highest value."""
    trials = [tune.Trial(n, 1.0, 0.0, 50.0 + n, False, 0.0, pruned=n == 2) for n in range(3)]
    assert tune.best(trials).number == 1


def test_no_pruning_at_ten_trials_or_fewer_than_eleven_epochs():
    """The random start is told at once, and the first look is after ten epochs."""
    for changes in ({"n_trials": 10}, {"n_epochs": 10}):
        settings = dataclasses.replace(PRUNED, **changes)
        plain = dataclasses.replace(settings, pruner="none")
        outcomes = [
            protocol.run(overlapping(), overlapping(1), one, CpuEngine("fp32"), print_freq=0)
            for one in (settings, plain)
        ]
        assert not any(trial.pruned for trial in outcomes[0].trials)
        assert [t.val_top1 for t in outcomes[0].trials] == [t.val_top1 for t in outcomes[1].trials]


def test_pruning_by_command(feature_folders, tmp_path):
    out = tmp_path / "run"
    pairs = ["CLF.PRUNER", "median", "CLF.N_TRIALS", "16", "CLF.N_EPOCHS", "25"]
    logreg.main(command(feature_folders, out, *pairs))
    study = pickle.loads((out / "study.pkl").read_bytes())
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"}
    assert len(study.trials) == 16
    assert len(logs_of(out)["lr"]) == 25


def test_default_search_has_neither():
    outcome = protocol.run(feature_set(), feature_set(seed=1), QUICK, CpuEngine("fp32"), print_freq=0)
    assert {trial.state.name for trial in outcome.study.trials} == {"COMPLETE"}
    assert not outcome.study.trials[0].intermediate_values
