"""Ranks, checked against calculations of their own."""

from __future__ import annotations

import dataclasses
import math

import pytest
from report_runs import make_cell, published_cell

from cog import constants
from cog.results import published, ranking

PAPER = published.accuracies()


@pytest.mark.parametrize("n_shot", [0, 1, 16])
@pytest.mark.parametrize("dataset", constants.DATASETS)
def test_ranks_agree_with_an_independent_calculation(dataset, n_shot):
    """Every published model entered again under another name stands beside itself."""
    table = {c.model: c for c in PAPER if (c.dataset, c.n_shot) == (dataset, n_shot)}
    assert len(table) == 31
    for model, score in table.items():
        own = make_cell("a_copy", dataset, n_shot, score.value, score.std)
        place = ranking.place(own, PAPER)
        means = sorted([*(s.value for s in table.values()), score.value], reverse=True)
        assert place.rank == means.index(score.value) + 1
        assert place.of == 32
        assert model in place.level_with
        higher = [m for m in means if m > score.value]
        lower = [m for m in means if m < score.value]
        assert (place.above.other.value if place.above else None) == (higher[-1] if higher else None)
        assert (place.below.other.value if place.below else None) == (lower[0] if lower else None)
        tolerance = {m: math.hypot(s.std, score.std) + 0.05 + 1e-9 for m, s in table.items()}
        equal = {m for m, s in table.items() if abs(s.value - score.value) <= tolerance[m]}
        assert set(place.about_equal) == equal
        assert place.best_rank == 1 + sum(s.value > score.value and m not in equal for m, s in table.items())
        assert place.worst_rank == 1 + sum(s.value > score.value or (m in equal) for m, s in table.items())
        assert place.to_reference.points == pytest.approx(score.value - table["sup_resnet50"].value)


def test_a_published_model_run_again_is_not_its_own_rival():
    place = ranking.place(make_cell("dino_resnet50", "cog_l5", mean=57.6, std=0.05), PAPER)
    assert (place.rank, place.of) == (1, 31)  # DINO is first on L5, by 0.1
    assert "dino_resnet50" not in place.about_equal
    assert place.to_published.points == pytest.approx(0.0) and not place.to_published.clear
    assert place.below.other.value == 57.5


def test_rank_at_the_precision_of_the_paper():
    rivals = [published_cell("a_a", mean=70.0), published_cell("b_b", mean=60.0)]
    assert ranking.place(make_cell(mean=69.96), rivals).rank == 1
    assert ranking.place(make_cell(mean=69.96), rivals).level_with
    assert ranking.place(make_cell(mean=69.94), rivals).rank == 2
    assert ranking.place(make_cell(dataset="birds"), rivals) is None


def test_a_single_seed_borrows_the_other_deviation():
    own = make_cell(mean=70.5, std=0.0, seeds=(22,))
    gap = ranking.gap(own, published_cell("a_a", mean=70.0, std=0.4))
    assert not gap.clear, "0.5 points are less than sqrt(2) times 0.4"
    several = ranking.gap(dataclasses.replace(own, seeds=(22, 37)), published_cell("a_a", mean=70.0, std=0.4))
    assert several.clear, "but more than 0.4"
