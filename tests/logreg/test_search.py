"""CLF.SEARCH batched against Optuna's own loops; what it does to a run."""

from __future__ import annotations

import math
import pickle

import optuna
import pytest
from classifier_runs import command, logs_of, search

from cog.commands import logreg
from cog.logreg import search as tune
from cog.logreg.settings import Settings

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
    assert search(hill, n_trials=n_trials, search="batched", trials_per_round=per_round)[1] == rounds


def test_batched_trials_are_those_of_optunas_constant_liar():
    trials = search(hill, n_trials=23, seed=7, search="batched", trials_per_round=4)[0].trials
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
    sequential = search(hill, n_trials=20)[0].trials
    batched = search(hill, n_trials=20, search="batched")[0].trials
    pairs = [[(t.lr, t.wd) for t in trials] for trials in (sequential, batched)]
    assert pairs[0][:10] == pairs[1][:10]  # the random start
    assert pairs[0][11] != pairs[1][11]
    assert len(set(pairs[1])) == 20

    def worse_late(lr, wd):
        worse_late.calls += 1
        return (hill(lr, wd)[0] - 30 * (worse_late.calls > 10), False)

    worse_late.calls = 0
    other = search(worse_late, n_trials=20, search="batched")[0].trials
    assert [(t.lr, t.wd) for t in other][:15] == pairs[1][:15]
    assert [(t.lr, t.wd) for t in other][15:] != pairs[1][15:]


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_searches_do_not_disturb_each_other(mode):
    """Two seeds in turn give what each gives alone."""
    alone = [search(hill, n_trials=17, seed=seed, search=mode)[0].trials for seed in (1, 2)]
    searches = [
        tune.Search(Settings(seed=seed, n_trials=17, lr_interval=LR, wd_interval=WD, search=mode))
        for seed in (1, 2)
    ]
    while any(rounds := [one.ask() for one in searches]):
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
    expected = search(lambda lr, wd: (0.0, False), n_trials=10, seed=22)[0].trials
    assert [t.params["lr"] for t in studies[0].trials][:10] == [t.lr for t in expected]


def test_diverged_trials_of_a_round_count_as_zero():
    def objective(lr, wd):
        return (math.nan, True) if lr > 10 else hill(lr, wd)

    finished, _ = search(objective, n_trials=25, search="batched")
    diverged = [t.number for t in finished.trials if t.diverged]
    assert 0 < len(diverged) < 20
    assert [finished.study.trials[n].value for n in diverged] == [0.0] * len(diverged)
    assert not finished.best.diverged
