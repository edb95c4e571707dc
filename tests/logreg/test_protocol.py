"""Tune, refit, test: what is trained on what, and inputs at the edge."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from classifier_runs import QUICK, clusters, feature_set, run_spied

from cog.features import feature_files
from cog.features.feature_files import FeatureSet
from cog.logreg.settings import RowCounts
from cog.runtime import random_streams


def test_search_holds_out_a_fifth_and_the_final_run_uses_everything():
    outcome, spy = run_spied(QUICK)
    assert len(spy.specs) == 5
    assert spy.tested == [False] * 4 + [True]
    search_rows = [set(r.rows.tolist()) for r in spy.specs[:4]]
    assert all(rows == search_rows[0] for rows in search_rows)
    assert len(search_rows[0]) == 96
    assert sorted(spy.specs[4].rows.tolist()) == list(range(120))
    assert outcome.rows == RowCounts(search_train=96, search_val=24, final_train=120, test=120)
    best = max(outcome.search.trials, key=lambda trial: trial.val_top1)
    assert (outcome.lr, outcome.wd) == (best.lr, best.wd) == spy.specs[4].pairs[0]
    assert len(outcome.classifier.logs["test/top1"]) == 8


def test_trials_are_scored_on_the_held_out_rows_after_the_last_epoch():
    """Of classes that overlap: the score on the held-out rows is that of no other rows."""
    x, y = clusters(240, 16, 6, spread=2.5)
    outcome, spy = run_spied(QUICK, train=FeatureSet(x, y, "overlapping"))
    rows = spy.specs[0].rows
    held_out = torch.tensor(sorted(set(range(240)) - set(rows.tolist())))

    def top1(fit, rows):
        return 100 * ((x[rows] @ fit.weight.T + fit.bias).argmax(1) == y[rows]).float().mean().item()

    for trial, fit in zip(outcome.search.trials, spy.fits[:4], strict=True):
        assert trial.val_top1 == pytest.approx(top1(fit, held_out))
        assert trial.val_top1 != pytest.approx(top1(fit, rows))


def test_few_shot_draws_after_the_cut_and_again_from_everything():
    y = feature_set().y
    _, plain = run_spied(QUICK)
    outcome, spy = run_spied(dataclasses.replace(QUICK, n_shot=4))
    search, final = spy.specs[0].rows, spy.specs[-1].rows
    assert torch.bincount(y[search]).tolist() == [4] * 6
    assert torch.bincount(y[final]).tolist() == [4] * 6
    assert set(search.tolist()) <= set(
        plain.specs[0].rows.tolist()
    )  # same validation part as with all images
    assert set(search.tolist()) != set(final.tolist())
    assert outcome.rows.search_val == 24
    # each stage draws with a stream of its own
    for rows, pool, stage in ((search, plain.specs[0].rows, "search"), (final, torch.arange(120), "final")):
        rng = random_streams.numpy_rng(22, "draw", stage=stage, n_shot=4)
        assert torch.equal(rows, feature_files.draw_few_shot(y, pool, n_shot=4, rng=rng)[0])


def test_choices_do_not_depend_on_the_number_of_trials():
    """Same seed, other number of trials: same split, draw, initial weights and order in the final run."""
    settings = dataclasses.replace(QUICK, n_shot=3)
    _, four = run_spied(settings)
    _, seven = run_spied(dataclasses.replace(settings, n_trials=7))
    final, other = four.specs[-1], seven.specs[-1]
    assert torch.equal(final.rows, other.rows)
    assert (final.init_seed, final.order_seed) == (other.init_seed, other.order_seed)
    assert [r.pairs for r in four.specs[:4]] == [r.pairs for r in seven.specs[:4]]


def test_given_hyper_parameters_reproduce_the_search_result():
    searched, _ = run_spied(QUICK)
    fixed, _ = run_spied(dataclasses.replace(QUICK, n_trials=0, lr=searched.lr, wd=searched.wd))
    assert fixed.classifier.logs == searched.classifier.logs
    assert torch.equal(fixed.classifier.weight, searched.classifier.weight)
    assert fixed.search is None


def test_global_random_state_plays_no_part():
    torch.manual_seed(0)
    first, _ = run_spied(QUICK)
    torch.manual_seed(1)
    torch.rand(100)
    state = torch.random.get_rng_state()
    second, _ = run_spied(QUICK)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.classifier.logs == second.classifier.logs


def test_seeds_differ():
    first, a = run_spied(QUICK)
    second, b = run_spied(dataclasses.replace(QUICK, seed=37))
    assert first.search.trials[0].lr != second.search.trials[0].lr
    assert set(a.specs[0].rows.tolist()) != set(b.specs[0].rows.tolist())
    assert a.specs[-1].init_seed != b.specs[-1].init_seed


# ------------------------------------------------------------------------------------------------------------
# Inputs at the edge


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_fewer_than_five_classes(n_classes):
    outcome, _ = run_spied(
        QUICK, train=feature_set(n_classes=n_classes), test=feature_set(n_classes=n_classes, seed=1)
    )
    assert outcome.classifier.logs["test/top5"] == [100.0] * 8


def test_labels_that_are_not_consecutive_give_the_same_result():
    plain, _ = run_spied(QUICK)
    remap = torch.tensor([-5, 3, 10, 11, 700, 10**12])
    train, test = feature_set(), feature_set(seed=1)
    outcome, spy = run_spied(
        QUICK,
        train=FeatureSet(train.x, remap[train.y], "odd"),
        test=FeatureSet(test.x, remap[test.y], "odd"),
    )
    assert spy.labels == remap.tolist()
    assert outcome.classifier.logs == plain.classifier.logs


def test_class_with_fewer_images_than_shots(caplog):
    caplog.set_level("WARNING", logger="cog")
    train = feature_set()
    keep = torch.cat([torch.arange(120)[train.y != 5], torch.arange(120)[train.y == 5][:3]])
    outcome, spy = run_spied(
        dataclasses.replace(QUICK, n_shot=8), train=FeatureSet(train.x[keep], train.y[keep], "few")
    )
    assert torch.bincount(train.y[keep][spy.specs[-1].rows]).tolist() == [8] * 5 + [3]
    assert "1 of 6 classes have fewer than CLF.N_SHOT 8" in caplog.text
    assert outcome.rows.final_train == 43


def test_class_without_test_images_is_reported(caplog):
    caplog.set_level("WARNING", logger="cog")
    test = feature_set(seed=1)
    outcome, _ = run_spied(QUICK, test=FeatureSet(test.x[test.y < 4], test.y[test.y < 4], "part"))
    assert "2 of 6 classes have no test features" in caplog.text
    assert outcome.classifier.weight.shape[0] == 6
