"""Sentences of the page about ranks and differences."""

from __future__ import annotations

import dataclasses

import numpy as np
from averages import counted_cell
from report_runs import shifted_study

from cog import constants
from cog.reporting.html import sentences
from cog.results import published, ranking
from cog.results.comparison import judge

PAPER = published.accuracies()


def test_sentences_about_a_model_that_is_better_on_the_levels():
    cells = shifted_study({"in1k": -2.0, **{level: 4.0 + i for i, level in enumerate(constants.COG_LEVELS)}})
    text = " ".join(sentences.describe_places(ranking.places(cells, PAPER)))
    better = sum(c.value > 73.8 for c in PAPER if (c.dataset, c.n_shot) == ("in1k", 0))
    assert f"73.8 ± 0.0 % on IN-1K, rank {better + 1} of 32" in text
    assert "deviation over seeds on IN-1K (−2.0) and all levels (+4.0 on L1 to +8.0 on L5)." in text
    assert "it stands better on unseen concepts than on those of IN-1K" in text
    words = "its mean is above every published one by more than the combined deviation over seeds"
    assert f"On L3, L4 and L5 {words}" in text


def test_sentences_do_not_claim_what_the_deviations_do_not_carry():
    text = " ".join(sentences.describe_places(ranking.places(shifted_study({}), PAPER)))
    words = (
        "within the combined deviation over seeds on IN-1K (0.0) and all levels (0.0). Whether other concepts"
    )
    assert f"Against ResNet50, in percentage points: {words}" in text
    assert "better" not in text and "worse" not in text and "ahead" not in text


def test_ranks_that_overlap_are_no_trend():
    better = shifted_study({"in1k": -2.0, **dict.fromkeys(constants.COG_LEVELS, 4.0)})
    for std, told in ((0.1, True), (10.0, False)):
        cells = [dataclasses.replace(cell, std=std) for cell in better]
        text = " ".join(sentences.describe_places(ranking.places(cells, PAPER)))
        assert ("it stands better on unseen concepts" in text) == told


def test_sentence_about_few_images():
    found = ranking.places(shifted_study({}, shots=(0, 1, 128)), PAPER)
    [text] = sentences.describe_few_shot(found)
    assert text.startswith("Ranks by number of training images: on IN-1K ")
    assert f"on IN-1K {found['in1k', 1].rank} with 1 per class, {found['in1k', 0].rank} with all" in text
    assert sentences.describe_few_shot(ranking.places(shifted_study({}), PAPER)) == []
    # Only data sets with both numbers of images are compared, and named.
    few = [cell for cell in shifted_study({}, shots=(1,)) if cell.dataset == "cog_l5"]
    every = [cell for cell in shifted_study({}) if cell.dataset in ("in1k", "cog_l1", "cog_l5")]
    found = ranking.places([*few, *every], PAPER)
    [text] = sentences.describe_few_shot(found)
    ranks = [found["cog_l5", n].rank for n in (1, 0)]
    assert text.endswith(f"images: on L5 {ranks[0]} with 1 per class, {ranks[1]} with all.")
    assert sentences.describe_few_shot(ranking.places([*few, every[0]], PAPER)) == []


def test_a_repeated_published_result_below_its_publication_is_not_above_every_published_one():
    top = "deit_base_distilled_384"
    for shift, told in ((-0.5, False), (0.0, False), (3.0, True)):
        cells = shifted_study(dict.fromkeys(constants.DATASETS, shift), model=top, base=top)
        text = " ".join(sentences.describe_places(ranking.places(cells, PAPER)))
        assert ("above every published one" in text) == told


def test_a_published_model_is_compared_with_its_publication():
    cells = shifted_study({"cog_l2": 3.0}, model="sup_resnet50")
    places = ranking.places(cells, PAPER)
    [text] = sentences.describe_published(places)
    assert "further apart on L2 (+3.0)" in text
    assert not any("Against ResNet50" in s for s in sentences.describe_places(places))
    assert sentences.describe_published(ranking.places(shifted_study({}), PAPER)) == []


def test_own_models_are_said_to_be_highest_where_that_is_told():
    generator = np.random.default_rng(3)
    base = generator.binomial(50, 0.5, (5, 60))
    cells = [counted_cell("a_c", base, dataset=name) for name in ("in1k", "cog_l1")]
    cells += [counted_cell("a_b", base + gain, dataset=name) for name, gain in (("in1k", 10), ("cog_l1", 0))]
    label = {(cell.model, cell.source): cell.model for cell in cells}
    (text,) = sentences.describe_highest(judge(ranking.to_highest(cells)), label)
    assert text == (
        "With all training images: a_b is highest on in1k; highest by the mean alone: a_c on cog_l1 (not told "
        "apart from a_b)."
    )
    assert sentences.describe_highest(judge(ranking.to_highest(cells[:2])), label) == []


def test_the_highest_is_told_from_every_other_model():
    """The second may be told from the first, and the third, which varies more, not."""
    generator = np.random.default_rng(4)
    base = generator.binomial(50, 0.5, (5, 60))
    wild = np.clip(base + generator.integers(-25, 26, (1, 60)) - 2, 0, 50)
    cells = [counted_cell("a_b", base + 1), counted_cell("a_c", base), counted_cell("a_d", wild)]
    differences = ranking.to_highest(cells)
    assert [item.baseline.model for item in differences] == ["a_c", "a_d"]
    (text,) = sentences.describe_highest(
        judge(differences), {(cell.model, "runs"): cell.model for cell in cells}
    )
    assert [item.sign for item in judge(differences)] == [1, 0]
    assert text.endswith("highest by the mean alone: a_b on in1k (not told apart from a_d).")
