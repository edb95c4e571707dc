"""The search against Optuna's own loop."""

from __future__ import annotations

import math

import optuna
from classifier_runs import search

LR, WD = (1e-1, 1e2), (1e-12, 1e-4)


def hill(lr, wd):
    """A smooth objective with one maximum."""
    return 50 - 10 * (math.log10(lr) - 1) ** 2 - (math.log10(wd) + 6) ** 2, False


def test_trials_are_those_of_optunas_own_loop():
    finished, rounds = search(hill, n_trials=23, seed=7)
    assert rounds == [10] + [1] * 13
    sampler = optuna.samplers.TPESampler(multivariate=True, seed=7)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    pairs = []
    for _ in range(23):
        trial = study.ask()
        lr = trial.suggest_float("lr", *LR, log=True)
        pairs.append((lr, trial.suggest_float("wd", *WD, log=True)))
        study.tell(trial, hill(*pairs[-1])[0])
    assert pairs == [(trial.lr, trial.wd) for trial in finished.trials]


def test_diverged_trials_count_as_zero():
    def objective(lr, wd):
        return (math.nan, True) if lr > 10 else hill(lr, wd)

    finished, _ = search(objective, n_trials=25)
    diverged = [trial for trial in finished.trials if trial.diverged]
    assert 0 < len(diverged) < 20
    assert {trial.val_top1 for trial in diverged} == {0.0}
    assert {finished.study.trials[trial.number].value for trial in diverged} == {0.0}
    assert not finished.best.diverged
    assert finished.best.val_top1 == finished.study.best_value
