"""Figures of other experiments: their data against the tables they come from, and what is drawn."""

from __future__ import annotations

import math

import pytest
from test_figures import rows_of

from cog.errors import CogError
from cog.reporting import figures
from cog.results import published, relative
from cog.results.scores import SeedAverage

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


@pytest.fixture(scope="module")
def paper():
    """Charts of the first version's numbers, by figure."""
    cells = published.accuracies("v1")
    found = relative.derive(published.averages("v1"))
    return {chart.figure: chart for chart in figures.charts([], cells, measures=found)}


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


OWN = ("v1_fig5", "v1_fig8", "v1_fig9", "v1_fig10", "mlp", "fig6", "knn")


@pytest.fixture(scope="module")
def ours():
    return {c.figure: c for c in figures.charts([], [], measures=[*own(), *own("mini_other", shift=0.1)])}


def test_figures_of_ones_own_numbers(ours):
    assert tuple(ours) == OWN
    assert [panel.key for panel in ours["v1_fig5"].panels()] == ["kmeans_purity_v1", "kmeans_purity"]
    assert ours["v1_fig5"].grid[0][0].tick_labels == ("IN-1K", "IN-1K-b", "L1")
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
    assert plane.ticks == () and plane.series[0].curve.model == "mini_net"
    assert [(point.x, point.value) for point in plane.series[0].points] == [
        pytest.approx((2.5 * share, 0.8 * share)) for share in (1, 0.9, 0.8)
    ]


def test_ones_own_beside_the_published(paper):
    cells = [*published.accuracies("v1")]
    mine = SeedAverage("mini_net", "in1k", "logreg", "top1", 0, 70.0, 0.1, (22,))
    found = relative.derive(
        [
            *published.averages("v1"),
            mine,
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


def test_requests_that_cannot_be_met():
    cells = published.accuracies("v2")
    with pytest.raises(CogError, match="no result to draw in v1_fig5"):
        figures.charts([], cells, which=["v1_fig5"])
    with pytest.raises(CogError, match="no result on principal components"):
        figures.charts([], cells, which=["v1_fig8"])
    with pytest.raises(CogError, match="no result of nearest neighbors"):
        figures.charts([], [], measures=own()[:1], which=["knn"])
    with pytest.raises(CogError, match="no accuracy of the protocol"):
        figures.charts([], [], measures=own(), which=["fig3"])
    assert [c.figure for c in figures.charts([], [], measures=own(), datasets=["cog_l1"])] == list(OWN)
