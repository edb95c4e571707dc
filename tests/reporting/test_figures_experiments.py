"""Figures of other experiments: their data against the tables they come from, and what is drawn."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from test_figures import rows_of

from cog.errors import CogError
from cog.reporting import figures
from cog.reporting.figures import axes
from cog.reporting.tables import experiments
from cog.reporting.tables.layout import TableStyle
from cog.reporting.tables.pivot import Averages
from cog.results import published, relative, scores
from cog.results.analysis_records import AnalysisRecord
from cog.results.scores import SeedAverage

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


@pytest.fixture(scope="module")
def paper():
    """Charts of the first version's numbers, by figure."""
    cells = published.accuracies("v1")
    found = relative.derive(published.averages("v1"))
    return {chart.figure: chart for chart in figures.charts([], cells, measures=found, singles=False)}


def test_figures_of_the_first_version(paper):
    assert list(paper) == ["fig3", "fig4", "fig10", "fig11", "drop", "v1_fig5", "v1_fig8", "v1_fig9", "mlp"]
    assert {name: len(list(paper[name].panels())) for name in ("v1_fig5", "v1_fig8", "v1_fig9", "mlp")} == {
        "v1_fig5": 1, "v1_fig8": 12, "v1_fig9": 3, "mlp": 2,
    }  # fmt: skip
    assert [panel.title for panel in paper["v1_fig9"].panels()] == ["AMI", "NMI", "ARI"]
    fig4 = rows_of(paper["fig4"])
    assert {row["dataset"] for row in fig4} == {"in1k", "cog_l1", "cog_l5"}
    assert {row["n_shot"] for row in fig4} == {"0", "1", "2", "4", "8", "16", "32", "64", "128"}
    assert paper["v1_fig8"].grid[0][0].tick_labels == ("32", "64", "128", "256", "512", "1024", "all")
    first = paper["v1_fig8"].grid[0][0]
    assert first.ticks == (5, 6, 7, 8, 9, 10, 11) and first.x_break == 10.5
    assert [[panel.title for panel in row] for row in paper["v1_fig8"].grid] == 2 * [
        ["IN-1K", "L1", "L2"], ["L3", "L4", "L5"],
    ]  # fmt: skip


def test_every_number_of_the_tables_is_a_point(paper):
    tables = {
        (f"{average.evaluation}/{average.metric}", average.dataset, average.model): average.value
        for average in published.averages("v1")
        if not average.n_shot
    }
    found = {}
    for name in ("v1_fig5", "v1_fig8", "v1_fig9", "mlp"):
        for row in rows_of(paper[name]):
            assert row["source"] == "paper v1" and row["n_seeds"] == "" and row["std"] == ""
            place = row["metric"], row["dataset"], row["model"]
            if row["quantity"] == "relative" and name == "v1_fig8":
                difference = tables[place] - tables[row["metric"], row["dataset"], "sup_resnet50"]
                assert float(row["value"]) == pytest.approx(difference, abs=1e-9)
                assert row["reference"] == f"sup_resnet50 {row['dataset']}"
            else:
                assert found.setdefault(place, float(row["value"])) == float(row["value"])
    assert found == tables


NUMBERS = {
    ("kmeans", "purity"): 0.6, ("kmeans", "purity_v1"): 0.5, ("kmeans", "ami"): 0.4,
    ("alignment", "alignment"): 0.8, ("alignment", "uniformity"): -2.5, ("alignment", "uniformity_v1"): 2.5,
    ("alignment", "alignment_by_uniformity"): 0.32,
    ("logreg", "top1"): 70.0, ("logreg_pca32", "top1"): 40.0, ("logreg_pca64", "top1"): 50.0,
    ("mlp", "top1"): 71.0, ("finetune", "top1"): 80.0,
    ("knn", "top1_k1_weighted"): 49.9, ("knn", "top1_k20_weighted"): 48.0,
    ("knn", "top1_k1_majority"): 49.9, ("knn", "top1_k20_majority"): 48.0,
}  # fmt: skip


def own(model="mini_net", *, shift=0.0):
    """Return numbers of every experiment on three data sets, a tenth less on each than on the one before."""
    made = []
    for place, dataset in enumerate(("in1k", "in1k_blurred", "cog_l1")):
        for (evaluation, metric), value in NUMBERS.items():
            number = value * (1 - 0.1 * place) + shift
            std = 0.01 if evaluation == "kmeans" else None
            missing = (37,) if evaluation == "mlp" else ()
            made.append(SeedAverage(model, dataset, evaluation, metric, 0, number, std, (22,), missing))
    return relative.derive(made)


OWN = ("v1_fig5", "v1_fig6", "v1_fig8", "v1_fig9", "v1_fig10", "mlp", "fig6", "knn")


@pytest.fixture(scope="module")
def ours():
    return {c.figure: c for c in figures.charts([], [], measures=[*own(), *own("mini_other", shift=0.1)])}


def test_figures_of_ones_own_numbers(ours):
    assert tuple(ours) == OWN
    assert [panel.key for panel in ours["v1_fig5"].panels()] == ["kmeans_purity_v1", "kmeans_purity"]
    assert ours["v1_fig5"].grid[0][0].tick_labels == ("IN-1K", "IN-1K-b", "L1")
    points = {
        (row["panel"], row["dataset"]): float(row["value"])
        for row in rows_of(ours["v1_fig6"])
        if row["model"] == "mini_net"
    }
    assert points["alignment_alignment_ratio_to_in1k", "cog_l1"] == pytest.approx(0.8)
    assert points["alignment_uniformity_ratio_to_in1k", "in1k"] == 1
    assert [panel.quantity for panel in ours["fig6"].panels()] == ["relative", "absolute"]
    scales = {
        name: len({panel.y_group for panel in ours[name].panels()})
        for name in ("fig6", "v1_fig5", "mlp", "knn")
    }
    assert scales == {"fig6": 2, "v1_fig5": 2, "mlp": 1, "knn": 1}, "the same number shares its scale"
    relative = [r for r in rows_of(ours["fig6"]) if r["quantity"] == "relative" and r["model"] == "mini_net"]
    assert [float(row["value"]) for row in relative] == pytest.approx([100 * (70 - 80) / 80] * 3)
    assert any("Seeds are missing: mini_net" in note for note in ours["mlp"].notes)
    assert "relative" not in {panel.quantity for panel in ours["v1_fig8"].panels()}, "there is no baseline"
    assert ours["knn"].grid[0][0].ticks == (0, math.log2(20))
    assert {row["metric"] for row in rows_of(ours["knn"])} == {
        "knn/top1_k1_weighted",
        "knn/top1_k20_weighted",
    }


def test_alignment_and_uniformity_in_a_plane(ours):
    plane = ours["v1_fig10"].grid[0][2]
    assert plane.title == "Alignment (y), uniformity (x)", "the axes have no other names"
    assert plane.plane and plane.series[0].curve.model == "mini_net"
    assert [(point.x, point.value) for point in plane.series[0].points] == [
        pytest.approx((2.5 * share, 0.8 * share)) for share in (1, 0.9, 0.8)
    ]
    assert plane.ticks[0] <= 2.0 and plane.ticks[-1] >= 2.5 and 3 <= len(plane.ticks) <= 6


@pytest.mark.parametrize(
    "low, high", [(-2.9, -0.5), (0.0, 0.0), (1e-9, 3e-9), (-1e6, 1e6), (0.61, 0.62), (-2.0, -2.0), (3, 7.9)]
)
def test_round_numbers_enclose(low, high):
    ticks = axes.round_numbers(low, high)
    assert (
        2 <= len(ticks) <= 6 and ticks[0] <= low + 1e-12 * abs(low) and ticks[-1] >= high - 1e-12 * abs(high)
    )
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-6) for step in steps) and steps[0] > 0


def test_ones_own_beside_the_published(paper):
    cells = [*published.accuracies("v1")]
    mine = SeedAverage("mini_net", "in1k", "logreg", "top1", 0, 70.0, 0.1, (22,))
    found = relative.derive(
        [
            *scores.without_single_std([*published.averages("v1"), mine]),
            *(m for m in own() if m.evaluation != "logreg"),
        ]
    )
    chart = next(iter(figures.charts([mine], cells, measures=found, which=["v1_fig5"])))
    models = {series.curve.model: series.curve.is_own for series in chart.grid[0][0].series}
    assert len(models) == 8 and models["mini_net"] and not models["swav_resnet50"]
    chart = next(iter(figures.charts([mine], cells, measures=found, which=["v1_fig8"])))
    below = [row for row in rows_of(chart) if row["quantity"] == "relative" and row["model"] == "mini_net"]
    assert {(row["reference_source"], row["metric"]) for row in below} == {
        ("paper v1", "logreg_pca32/top1"), ("paper v1", "logreg_pca64/top1"), ("paper v1", "logreg/top1"),
    }  # fmt: skip


def distance_record(model="mini_net", dataset="cog_l1", bins=None):
    if bins is None:
        bins = [
            {"similarity": 0.9 - place / 10, "accuracy": 60.0 - place, "standard_error": 1.5}
            for place in range(5)
        ]
    return AnalysisRecord("distance", model, dataset, {}, {}, details={"bins": bins})


def correlations(model="mini_net", dataset="cog_l1"):
    values = {"spearman": 0.41, "spearman_low": -0.3, "spearman_high": 0.52}
    return [SeedAverage(model, dataset, "distance", name, 0, value) for name, value in values.items()]


def test_accuracy_by_similarity():
    found = [*correlations(), *correlations(dataset="cog_levels"), *correlations("mini_other")]
    records = [
        distance_record(),
        distance_record(dataset="cog_levels", bins=[]),
        distance_record(dataset="cog_l2"),
    ]
    (chart,) = figures.charts([], [], measures=found, analyses=records, which=["distance"])
    assert [panel.title for panel in chart.panels()] == ["L1"], "no bins, or no correlation: nothing to draw"
    (series,) = chart.grid[0][0].series
    assert [p.x for p in series.points] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert [(p.value, p.std) for p in series.points] == [(56.0 + place, 1.5) for place in range(5)]
    assert chart.notes == ("mini_net: Spearman L1 0.41 [\N{MINUS SIGN}0.30, 0.52].",)
    row = rows_of(chart)[0]
    assert (row["metric"], row["value"], row["reference_score"]) == ("distance/accuracy_in_bin", "56", "0.5")


def test_of_many_correlations_those_of_ones_own_models_are_told():
    names = ["sup_resnet50", "swav_resnet50", "byol_resnet50", "dino_resnet50", "obow_resnet50", "mini_net"]
    found = [measure for name in names for measure in correlations(name)]
    records = [distance_record(name) for name in names]
    (chart,) = figures.charts([], [], measures=found, analyses=records, which=["distance"])
    assert chart.notes[0].startswith("mini_net: ") and chart.notes[1].startswith("ResNet50")
    assert chart.notes[-1] == "Correlations of 2 more models are in the tables."


@pytest.mark.parametrize(
    "bins",
    [None, 3, "x", [1], [{}], [{"similarity": "x", "accuracy": 1}], [{"similarity": 1e400, "accuracy": 1}]],
)
def test_bins_that_are_none(bins):
    record = distance_record(bins=bins if bins is not None else {})
    with pytest.raises(CogError, match="no result of accuracy against semantic distance"):
        figures.charts([], [], measures=correlations(), analyses=[record], which=["distance"])


def test_requests_that_cannot_be_met():
    cells = published.accuracies("v2")
    with pytest.raises(CogError, match="no number of kmeans to draw"):
        figures.charts([], cells, which=["v1_fig5"])
    with pytest.raises(CogError, match="no result on principal components"):
        figures.charts([], cells, which=["v1_fig8"])
    with pytest.raises(CogError, match="no result of nearest neighbors"):
        figures.charts([], [], measures=own()[:1], which=["knn"])
    with pytest.raises(CogError, match="no top-1 score to draw"):
        figures.charts([], [], measures=own(), which=["fig3"])
    assert [c.figure for c in figures.charts([], [], measures=own(), datasets=["cog_l1"])] == list(OWN)


def subtree_numbers(model, dataset, accuracies, within=()):
    """Return accuracies by WordNet subtree, and the correlation within subtrees with its interval."""
    values = {f"accuracy_{name}": value for name, value in accuracies.items()}
    values |= {f"spearman_within_subtrees{end}": value for end, value in zip(("", "_low", "_high"), within)}
    return [SeedAverage(model, dataset, "subtrees", name, 0, value) for name, value in values.items()]


def test_accuracy_by_subtree_as_figure_and_as_table():
    found = [
        *subtree_numbers(
            "mini_net", "cog_l1", {"rest": 10.0, "plants": 20.0, "birds": 30.0}, (-0.25, -0.5, 0.1)
        ),
        *subtree_numbers("mini_net", "cog_l2", {"plants": 40.0, "mammals": 50.0}),
    ]
    found += [
        dataclasses.replace(found[1], metric=f"accuracy_plants_{end}", value=value)
        for end, value in (("low", 15.0), ("high", 26.0))
    ]
    (chart,) = figures.charts([], [], measures=found, which=["subtrees"])
    first, second = chart.panels()
    assert (first.title, second.title) == ("L1", "L2")
    assert first.tick_labels == second.tick_labels == ("mammals", "birds", "plants", "rest")  # as declared
    assert [(p.x, p.value) for p in first.series[0].points] == [(1, 30.0), (2, 20.0), (3, 10.0)]
    assert [(p.low, p.high) for p in first.series[0].points if p.low < p.high] == [(15.0, 26.0)]
    assert "paler, where known: 95 % interval over concepts and seeds" in chart.caption
    assert [(p.x, p.value) for p in second.series[0].points] == [(0, 50.0), (2, 40.0)]
    assert chart.notes == (
        "mini_net: Spearman within subtrees L1 \N{MINUS SIGN}0.25 [\N{MINUS SIGN}0.50, 0.10].",
    )
    view = experiments.of_analyses(Averages(found), ["subtrees"], style=TableStyle())
    tables = {table.title: table for table in view.tables}
    title = "accuracy by WordNet subtree (%), cog_l1"
    assert tables[title].columns == ("birds", "plants", "rest")
    assert [entry.number for entry in tables[title].rows[0][1]] == ["30.0", "20.0", "10.0"]
    assert tables[title.replace("l1", "l2")].columns == ("mammals", "plants")
