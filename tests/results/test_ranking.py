"""Ranks and the sentences about them, checked against calculations of their own."""

from __future__ import annotations

import dataclasses
import math

import pytest
from report_runs import make_cell, published_cell, shifted_study

from cog import constants
from cog.results import published, ranking

PAPER = published.accuracies()
LABELS = {name: model.label for name, model in published.MODELS.items()}


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
        assert model in place.level_with and place.shared
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


def test_known_ranks_of_the_paper():
    def rank(model, dataset):
        score = next(c for c in PAPER if (c.model, c.dataset, c.n_shot) == (model, dataset, 0))
        return ranking.place(make_cell(model, dataset, mean=score.value, std=score.std), PAPER).rank

    assert rank("dino_resnet50", "cog_l5") == 1
    assert rank("nat_m4", "cog_l5") > 1
    assert rank("cutmix_resnet50", "cog_l5") == 31


def test_rank_at_the_precision_of_the_paper():
    rivals = [published_cell("a_a", mean=70.0), published_cell("b_b", mean=60.0)]
    assert ranking.place(make_cell(mean=69.96), rivals).rank == 1
    assert ranking.place(make_cell(mean=69.96), rivals).shared
    assert ranking.place(make_cell(mean=69.94), rivals).rank == 2
    assert ranking.place(make_cell(dataset="birds"), rivals) is None


def test_a_single_seed_borrows_the_other_deviation():
    own = make_cell(mean=70.5, std=0.0, seeds=(22,))
    gap = ranking.gap(own, published_cell("a_a", mean=70.0, std=0.4))
    assert not gap.clear, "0.5 points are less than sqrt(2) times 0.4"
    several = ranking.gap(dataclasses.replace(own, seeds=(22, 37)), published_cell("a_a", mean=70.0, std=0.4))
    assert several.clear, "but more than 0.4"


def test_sentences_about_a_model_that_is_better_on_the_levels():
    cells = shifted_study({"in1k": -2.0, **{level: 4.0 + i for i, level in enumerate(constants.COG_LEVELS)}})
    text = " ".join(ranking.describe_places(ranking.places(cells, PAPER), LABELS))
    better = sum(c.value > 73.8 for c in PAPER if (c.dataset, c.n_shot) == ("in1k", 0))
    assert f"73.8 ± 0.0 % on IN-1K, rank {better + 1} of 32" in text
    assert "deviation over seeds on IN-1K (−2.0) and all levels (+4.0 on L1 to +8.0 on L5)." in text
    assert "it stands better on unseen concepts than on those of IN-1K" in text
    words = "its mean is above every published one by more than the combined deviation over seeds"
    assert f"On L3, L4 and L5 {words}" in text


def test_sentences_do_not_claim_what_the_deviations_do_not_carry():
    text = " ".join(ranking.describe_places(ranking.places(shifted_study({}), PAPER), LABELS))
    words = (
        "within the combined deviation over seeds on IN-1K (0.0) and all levels (0.0). Whether other concepts"
    )
    assert f"Against ResNet50, in percentage points: {words}" in text
    assert "better" not in text and "worse" not in text and "ahead" not in text


def test_sentence_about_few_images():
    found = ranking.places(shifted_study({}, shots=(0, 1, 128)), PAPER)
    [text] = ranking.describe_few_shot(found)
    assert text.startswith("Ranks by number of training images: on IN-1K ")
    assert f"on IN-1K {found['in1k', 1].rank} with 1 per class, {found['in1k', 0].rank} with all" in text
    assert ranking.describe_few_shot(ranking.places(shifted_study({}), PAPER)) == []


def test_a_published_model_is_compared_with_its_publication():
    cells = shifted_study({"cog_l2": 3.0}, model="sup_resnet50")
    places = ranking.places(cells, PAPER)
    [text] = ranking.describe_published(places)
    assert "further apart on L2 (+3.0)" in text
    assert not any("Against ResNet50" in s for s in ranking.describe_places(places, LABELS))
    assert ranking.describe_published(ranking.places(shifted_study({}), PAPER)) == []
