"""CLF.SEARCH batched against Optuna's own loops; what it does to a run."""

from __future__ import annotations

import json
import math

import optuna
import pytest
import torch
from classifier_runs import command, search

from cog.commands import logreg
from cog.features import feature_files
from cog.logreg import protocol
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings
from cog.runtime import random_streams

LR, WD = (1e-1, 1e2), (1e-12, 1e-4)


def hill(lr, wd):
    """A smooth objective with one maximum."""
    return 50 - 10 * (math.log10(lr) - 1) ** 2 - (math.log10(wd) + 6) ** 2, False


# ------------------------------------------------------------------------------------------------------------
# Batched search


@pytest.mark.parametrize(
    ("n_trials", "per_round", "rounds"),
    [
        (30, 7, [10, 7, 7, 6]),
        (30, 50, [10, 20]),
        (4, 5, [4]),
        (13, 1, [10, 1, 1, 1]),
    ],
)
def test_rounds(n_trials, per_round, rounds):
    assert search(hill, n_trials=n_trials, search="batched", trials_per_round=per_round)[1] == rounds


@pytest.mark.parametrize(
    ("options", "rounds", "parts"),
    [
        ({}, [10] + [1] * 13, [1] * 23),
        ({"search": "batched", "trials_per_round": 4}, [10, 4, 4, 4, 1], [10, 4, 4, 4, 1]),
    ],
    ids=["sequential", "batched"],
)
def test_trials_are_those_of_optunas_own_loop(options, rounds, parts):
    """Multivariate TPE; the constant liar if the sampler is asked for several trials (``parts``) at a time."""
    finished, found_rounds = search(hill, n_trials=23, seed=7, **options)
    assert found_rounds == rounds
    sampler = optuna.samplers.TPESampler(multivariate=True, seed=7, constant_liar=bool(options))
    study = optuna.create_study(sampler=sampler, direction="maximize")
    pairs = []
    for size in parts:
        asked = [study.ask() for _ in range(size)]
        for trial in asked:
            lr = trial.suggest_float("lr", *LR, log=True)
            pairs.append((lr, trial.suggest_float("wd", *WD, log=True)))
        for trial, pair in zip(asked, pairs[-size:], strict=True):
            study.tell(trial, hill(*pair)[0])
    assert pairs == [(trial.lr, trial.wd) for trial in finished.trials]


def flat(lr, wd):
    """As good wherever the learning rate is above 1, by accuracy; by loss at 10."""
    return (50.0 if lr > 1 else 49.8), False


def test_ties_are_counted_and_named():
    found = search(flat, n_trials=20)[0]
    good = [trial.lr for trial in found.trials if trial.lr > 1]
    assert 2 < len(good) < 20
    assert found.tie_record() == {"points": 0.1, "n_trials": len(good), "lr": [min(good), max(good)]}
    assert found.describe_ties() == (
        f"{len(good)} of 20 trials within 0.1 points: "
        f"learning rates from {min(good):.3g} to {max(good):.3g} are as good"
    )
    assert found.best.number == found.study.best_trial.number  # the first of equal ones, as in Optuna
    found = search(lambda lr, wd: (0.0, lr > 10), n_trials=10)[0]  # a diverged trial is no tie
    assert found.tie_record()["n_trials"] == sum(trial.lr <= 10 for trial in found.trials)


def test_ties_are_broken_by_the_loss_where_it_is_asked_for():
    def outcome(lr, wd):
        return *flat(lr, wd), abs(math.log(lr / 10))

    first, loss = (search(outcome, n_trials=20, tie_break=rule)[0] for rule in ("first", "loss"))
    assert [t.lr for t in first.trials] == [t.lr for t in loss.trials], "the search is the same"
    assert first.best.val_top1 == loss.best.val_top1 and first.best.number < loss.best.number
    good = [trial.lr for trial in loss.trials if trial.lr > 1]
    assert loss.best.lr == min(good, key=lambda lr: abs(math.log(lr / 10)))


def test_the_validation_loss_is_that_of_the_held_out_part(feature_folders, tmp_path):
    """... by plain PyTorch, from a trial trained alone; without the option nothing of it is computed or recorded."""
    pairs = ["CLF.TIE_BREAK", "loss", "CLF.N_TRIALS", "2", "CLF.PRECISION", "fp32"]
    logreg.main(command(feature_folders, tmp_path / "out", *pairs))
    record = json.loads((tmp_path / "out/results.json").read_text())
    train = feature_files.load(feature_folders[0], normalize=True)
    settings = Settings(seed=22, n_trials=2, n_epochs=4, tie_break="loss")
    rng = random_streams.numpy_rng(22, "split")
    rows, held_out = feature_files.split_train_val(train.y, val_frac=0.2, rng=rng)
    engine = Engine(torch.device("cpu"), "fp32")
    data = prepare(train, feature_files.load(feature_folders[1], normalize=True), engine)
    for trial in record["trials"]:
        spec = protocol._train_spec(settings, rows, [(trial["lr"], trial["wd"])], stage="search")
        (classifier,) = engine.fit(data, spec, settings)
        logits = torch.nn.functional.linear(train.x[held_out], classifier.weight, classifier.bias)
        expected = torch.nn.functional.cross_entropy(logits, train.y[held_out])
        assert trial["val_loss"] == pytest.approx(expected.item(), rel=1e-4)
    ties = record["ties"]
    assert ties["points"] == 0.1 and 1 <= ties["n_trials"] <= 2 and ties["lr"][0] <= ties["lr"][1]
    logreg.main(command(feature_folders, tmp_path / "plain", *pairs[2:]))
    plain = json.loads((tmp_path / "plain/results.json").read_text())
    assert "val_loss" not in plain["trials"][0] and plain["trials"][0]["lr"] == record["trials"][0]["lr"]


@pytest.mark.parametrize("mode", ["sequential", "batched"])
def test_diverged_trials_count_as_zero(mode):
    def objective(lr, wd):
        return (math.nan, True) if lr > 10 else hill(lr, wd)

    finished, _ = search(objective, n_trials=25, search=mode)
    diverged = [trial for trial in finished.trials if trial.diverged]
    assert 0 < len(diverged) < 20
    assert {trial.val_top1 for trial in diverged} == {0.0}
    assert {finished.study.trials[trial.number].value for trial in diverged} == {0.0}
    assert not finished.best.diverged
    assert finished.best.val_top1 == finished.study.best_value
