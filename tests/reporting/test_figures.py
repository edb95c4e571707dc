"""Data of figures of accuracies against the published numbers, their curves, styles and errors."""

from __future__ import annotations

import csv
import dataclasses
import math
import re

import numpy as np
import pytest
from averages import counted_cell
from report_runs import forty_models

from cog import constants
from cog.errors import CogError
from cog.reporting import figures
from cog.reporting.figures import style
from cog.results import published
from cog.results.run_records import average_runs
from cog.results.scores import SeedAverage

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


DATASETS = ("in1k", "cog_l1", "cog_l2", "cog_l3", "cog_l4", "cog_l5")
SHOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
CATEGORIES = ("self-supervision", "regularization", "web-data", "architecture")


def own_cells(model, *, mean=60.0, datasets=DATASETS, shots=SHOTS, source="runs", missing=()):
    """Return top-1 and top-5 accuracies that differ from place to place: ``mean`` + data set + shots."""
    seeds = tuple(seed for seed in (22, 37, 45) if seed not in missing)
    cells = []
    for place, dataset in enumerate(datasets):
        for n_shot in shots:
            top1 = mean - 2.5 * place + (6 if n_shot == 0 else math.log2(n_shot) - 2)
            for metric, value, std in (("top1", top1, 0.3 + 0.1 * place), ("top5", mean + 20 - place, 0.2)):
                cell = SeedAverage(
                    model, dataset, "logreg", metric, n_shot, value, std, seeds, tuple(missing)
                )
                cells.append(dataclasses.replace(cell, epochs=(100,) * len(seeds), source=source))
    return cells


def fig3(cells, **settings):
    """Return Fig. 3 with these results beside the published ones."""
    (chart,) = figures.charts(cells, published.accuracies(), which=["fig3"], **settings)
    return chart


def rows_of(chart):
    return list(csv.DictReader(chart.csv().splitlines()))


@pytest.fixture(scope="module")
def paper():
    """All charts of the published numbers, by stem."""
    return {chart.stem: chart for chart in figures.charts([], published.accuracies())}


# ---- data ---------------------------------------------------------------------------------------------
def check_rows(rows):
    """Recompute every row from the published numbers."""
    scores = {(cell.dataset, cell.model, str(cell.n_shot)): cell for cell in published.accuracies()}
    for row in rows:
        dataset, model, n_shot = row["dataset"], row["model"], row["n_shot"]
        mean, std = scores[dataset, model, n_shot].value, scores[dataset, model, n_shot].std
        assert (float(row["score"]), float(row["score_std"])) == (mean, std)
        if row["quantity"] == "absolute":
            expected, bar = mean, std
        elif row["quantity"] == "relative":
            expected, bar = mean - scores[dataset, "sup_resnet50", n_shot].value, std
            assert row["reference"] == f"sup_resnet50 {dataset}"
        else:
            in1k = scores["in1k", model, n_shot].value
            expected, bar = 100 * (mean - in1k) / in1k, 100 * std / in1k
            assert row["reference"] == f"{model} in1k"
        assert float(row["value"]) == pytest.approx(expected, abs=1e-8)
        assert float(row["std"]) == pytest.approx(bar, abs=1e-8)


@pytest.mark.parametrize(
    "stem",
    ["fig3_levels", "fig4_fewshot", "fig10_fewshot_absolute", "fig11_fewshot_relative", "drop_from_in1k"],
)
def test_csv_equals_the_published_tables(paper, stem):
    rows = rows_of(paper[stem])
    assert len(rows) > 100
    check_rows(rows)


def test_figures_show_what_the_paper_shows(paper):
    scores = {(cell.dataset, cell.model, str(cell.n_shot)) for cell in published.accuracies()}
    members = {
        category: {name for name, model in published.MODELS.items() if model.category == category}
        for category in CATEGORIES
    }
    fig3 = rows_of(paper["fig3_levels"])
    absolute = {(r["dataset"], r["model"], r["n_shot"]) for r in fig3 if r["panel"] == "absolute"}
    assert absolute == {place for place in scores if place[2] == "0"}
    assert [panel.key for panel in paper["fig3_levels"].panels()] == ["absolute", *CATEGORIES]
    for category in CATEGORIES:
        shown = {r["model"] for r in fig3 if r["panel"] == category}
        assert shown == members[category] | {"sup_resnet50"}
    fig4 = rows_of(paper["fig4_fewshot"])
    assert {r["model"] for r in fig4} == {name for name, model in published.MODELS.items() if model.in_fig4}
    assert {(r["dataset"], r["n_shot"]) for r in fig4} == {
        (dataset, str(n)) for dataset in ("cog_l1", "cog_l3", "cog_l5") for n in SHOTS if n != 1
    }
    for stem in ("fig10_fewshot_absolute", "fig11_fewshot_relative"):
        chart = paper[stem]
        assert [[panel.key for panel in row] for row in chart.grid] == [
            [f"{dataset}_{category}" for category in CATEGORIES] for dataset in DATASETS
        ]
        assert {(r["dataset"], r["model"], r["n_shot"]) for r in rows_of(chart)} == scores


def test_drop_of_the_first_version():
    first = {(cell.dataset, cell.model): cell.value for cell in published.accuracies("v1") if not cell.n_shot}
    (chart,) = figures.charts([], published.accuracies("v1"), which=["drop"])
    assert chart.stem == "drop_from_in1k_v1" and chart.single
    drops = {(row["dataset"], row["model"]): float(row["value"]) for row in rows_of(chart)}
    assert drops == {
        (dataset, model): pytest.approx(100 * (value / first["in1k", model] - 1))
        for (dataset, model), value in first.items()
    }
    assert {row["std"] for row in rows_of(chart)} == {""}, "not published"
    assert round(drops["cog_l5", "swav_resnet50"], 1) == -27.2


def test_any_baseline():
    cells = own_cells("my_net") + own_cells("other_net", mean=50)
    chart = fig3(cells, baseline="dino_resnet50")
    places = {(row["panel"], row["model"], row["dataset"]): row["value"] for row in rows_of(chart)}
    assert float(places["self-supervision", "swav_resnet50", "cog_l5"]) == pytest.approx(56.4 - 57.6)
    rows = [row for row in rows_of(fig3(cells, baseline="other_net")) if row["quantity"] == "relative"]
    assert {float(row["value"]) for row in rows if row["model"] == "my_net"} == {10}


def test_own_models_compared_as_in_the_tables():
    """With the baseline of their own source if it has one, else with the first source that has one."""
    own = own_cells("my_net") + own_cells("sup_resnet50", mean=59)
    foreign = own_cells("their_net", source="lab A")
    chart = fig3([*own, *foreign])
    rows = [row for row in rows_of(chart) if row["quantity"] == "relative"]
    against = {row["model"]: row["reference_source"] for row in rows}
    assert against["my_net"] == "runs" and against["their_net"] == "runs"
    assert against["dino_resnet50"] == "paper v2"
    assert {round(float(row["value"]), 9) for row in rows if row["model"] == "my_net"} == {1}
    assert any("sup" in note or "ResNet50" in note for note in chart.notes)
    # one zero line: the paper's
    assert {row["source"] for row in rows if row["model"] == "sup_resnet50"} == {"paper v2"}


def test_a_curve_is_compared_with_one_source():
    """Where one's own baseline lacks a data set, the paper's does not step in, and panels leave the place out."""
    own = own_cells("my_net", datasets=["in1k", "cog_l1", "birds"])
    chart = fig3([*own, *own_cells("sup_resnet50", datasets=["in1k"])])
    rows = [row for row in rows_of(chart) if row["quantity"] == "relative" and row["model"] == "my_net"]
    assert {(row["dataset"], row["reference_source"]) for row in rows} == {("in1k", "runs")}
    assert "birds" in chart.lead.tick_labels
    assert {panel.tick_labels for row in chart.grid for panel in row} == {
        tuple(label for label in chart.lead.tick_labels if label != "birds")
    }


def test_others_are_compared_with_and_not_shown():
    others = [cell for cell in published.accuracies() if cell.model == "sup_resnet50"]
    others += own_cells("my_net", datasets=["in1k"])
    fig3, drop = figures.charts(
        own_cells("my_net", datasets=DATASETS[1:]), others=others, which=["fig3", "drop"]
    )
    assert {row["model"] for row in rows_of(fig3)} == {"my_net"}
    relative = {row["dataset"]: row["value"] for row in rows_of(fig3) if row["quantity"] == "relative"}
    # Of own_cells: 60 + 6 on in1k and on cog_l1, which is the first of the shown data sets.
    assert float(relative["cog_l1"]) == pytest.approx(66.0 - 67.9)
    drops = {row["dataset"]: row["value"] for row in rows_of(drop)}
    assert float(drops["cog_l5"]) == pytest.approx(100 * ((60 - 2.5 * 4 + 6) / 66.0 - 1))
    assert "in1k" not in drops


def test_which_panels_hold_own_models():
    cells = own_cells("my_net") + own_cells("dino_resnet50")
    chart = fig3(cells)
    where = {panel.key: {s.curve.model for s in panel.series if s.curve.is_own} for panel in chart.panels()}
    assert where["absolute"] == where["self-supervision"] == {"my_net", "dino_resnet50"}
    assert where["architecture"] == where["web-data"] == where["regularization"] == {"my_net"}
    many = [cell for index in range(20) for cell in own_cells(f"sweep_run{index}", mean=40 + index)]
    chart = fig3(many)
    where = {panel.key: sum(s.curve.is_own for s in panel.series) for panel in chart.panels()}
    assert where == dict.fromkeys(CATEGORIES, 0) | {"absolute": 20, "own": 20}


def test_own_runs_of_the_papers_models_look_as_in_the_paper_when_alone():
    cells = own_cells("dino_resnet50") + own_cells("sup_resnet50")
    (chart,) = figures.charts(cells, which=["fig3"])
    dino = next(c for c in chart.curves() if c.model == "dino_resnet50")
    assert not dino.is_own and dino.style == style.published_style("dino_resnet50") and dino.label == "DINO"
    assert [panel.key for panel in chart.panels()] == ["absolute", "self-supervision"]


@pytest.mark.parametrize("seeds", [(22, 37, 45), (22, 37, 77)])
def test_a_difference_has_an_interval_only_over_the_same_seeds(seeds):
    correct = np.random.default_rng(0).binomial(50, 0.7, (2, 3, 100))
    cells = [
        counted_cell("my_net", correct[0], dataset="cog_l1", seeds=(22, 37, 45)),
        counted_cell("sup_resnet50", correct[1], dataset="cog_l1", seeds=seeds),
    ]
    chart = fig3(cells)
    curves = [s for panel in chart.panels() if panel.quantity == "relative" for s in panel.series]
    point = next(p for s in curves if s.curve.model == "my_net" for p in s.points)
    assert (point.low < point.value < point.high) == (seeds == (22, 37, 45))
    assert math.isnan(point.low) == (seeds != (22, 37, 45))


def test_missing_points_interrupt_the_line():
    cells = [cell for cell in own_cells("my_net", shots=[0]) if cell.dataset not in ("cog_l2", "cog_l4")]
    chart = fig3(cells)
    (series,) = (series for series in chart.lead.series if series.curve.is_own)
    values = series.values(chart.lead.ticks)
    assert [math.isnan(value) for value in values] == [False, False, True, False, True, False]
    shown = {row["dataset"] for row in rows_of(chart) if row["model"] == "my_net"}
    assert shown == {"in1k", "cog_l1", "cog_l3", "cog_l5"}


def test_one_shot_setting_and_few_shot_only():
    cells = own_cells("my_net", shots=[8])
    made = figures.charts(cells, [])
    assert [chart.stem for chart in made] == ["fig3_levels_N8", "drop_from_in1k_N8", "levels_N8"]
    assert "8 training images per class" in made[0].caption
    (chart,) = figures.charts(cells, [], which=["fig4"])
    assert {row["n_shot"] for row in rows_of(chart)} == {"8"}
    assert fig3(cells).stem.endswith("_N8"), "beside the paper, levels have the shots of the user's runs"


def test_selected_shots_and_datasets():
    settings = {"which": ["fig4"], "shots": [1, 8], "datasets": ["cog_l2"]}
    (chart,) = figures.charts([], published.accuracies(), **settings)
    assert {(r["dataset"], r["n_shot"]) for r in rows_of(chart)} == {("cog_l2", "1"), ("cog_l2", "8")}


def test_notes_say_which_seeds_are_missing():
    cells = own_cells("my_net", missing=(45,), datasets=["in1k", "cog_l1"], shots=[0])
    (chart,) = figures.charts(cells, which=["fig3"])
    assert chart.notes == ("Seeds are missing: my_net (IN-1K, L1); see the CSV file.",)
    assert {row["missing_seeds"] for row in rows_of(chart)} == {"45"}
    assert {row["n_seeds"] for row in rows_of(chart)} == {"2"}


def test_names_of_all_kinds():
    long = "_x_" + "very-long-model-name-" * 8
    cells = [c for name in (long, long + "b", "naïve_β$net$", "", "a\nb") for c in own_cells(name)]
    (chart,) = figures.charts(cells, which=["fig3"])
    labels = [curve.label for curve in chart.curves()]
    assert len(set(labels)) == 5
    assert all(len(label) <= 64 and label.isprintable() for label in labels)
    assert "(unnamed)" in labels
    assert {row["model"] for row in rows_of(chart)} >= {long, long + "b"}
    twice = own_cells("my_net") + own_cells("my_net", source="lab A")
    (chart,) = figures.charts(twice, which=["fig3"])
    assert {curve.label for curve in chart.curves()} == {"my_net (runs)", "my_net (lab A)"}


# ---- style --------------------------------------------------------------------------------------------
def test_styles_are_the_papers():
    seen = {}
    for name, model in published.MODELS.items():
        made = style.published_style(name)
        assert made.marker == model.marker
        seen.setdefault(model.color, set()).add((made.color, made.dashes))
    assert all(len(found) == 1 for found in seen.values())
    assert len(set().union(*seen.values())) == len(seen)


def test_curves_can_be_told_apart_without_color():
    """Marker and dashes differ within every category, and among the models of one's own that are named."""
    for category in CATEGORIES:
        members = [name for name, row in published.MODELS.items() if row.category == category]
        looks = [(style.published_style(name).marker, style.published_style(name).dashes) for name in members]
        assert len(set(looks)) == len(members)
    looks = [style.own_style(position) for position in range(84)]
    assert len({look.marker for look in looks[: style.MANY]}) == style.MANY
    assert len({look.color for look in looks[: style.MANY]}) == style.MANY
    assert len({(look.color, look.marker) for look in looks}) == 84


def test_of_many_models_the_highest_on_the_levels_are_named():
    cells = average_runs([run for run in forty_models(seeds=(22, 37)) if run.n_shot == 0])
    (chart,) = figures.charts(cells, published.accuracies(), which=["levels"])
    own = {curve.model: curve for curve in chart.curves() if curve.is_own}
    assert len(own) == 40
    sums = dict.fromkeys(own, 0.0)
    for cell in cells:
        if cell.metric == "top1" and cell.dataset != "in1k":
            sums[cell.model] += cell.value
    best = sorted(sums, key=sums.__getitem__)[-style.MANY :]
    assert {model for model, curve in own.items() if curve.named} == set(best)
    assert {curve.style for curve in own.values() if not curve.named} == {style.GRAY_OWN}
    assert [curve.model for curve in chart.curves() if not curve.is_own and curve.named] == ["sup_resnet50"]
    assert all(curve.label == model for model, curve in own.items())  # in full


def test_levels_are_drawn_on_the_data_sets_of_the_paper_alone():
    """Blurred faces are no step between IN-1K and L1, and a data set of the user's is none after L5."""
    further = ["in1k_blurred", "birds"]
    cells = own_cells("my_net", datasets=[*constants.DATASETS, *further], shots=[0])
    charts = figures.charts(cells, published.accuracies(), which=["levels", "fig3"])
    labels, of_fig3 = ([*next(chart.panels()).tick_labels] for chart in charts)
    assert labels == ["IN-1K", "L1", "L2", "L3", "L4", "L5"] and of_fig3 == [*labels, "birds"]
    assert next(charts[1].panels()).x_break == 5.5
    (named,) = figures.charts(cells, [], which=["fig3"], datasets=["in1k", "in1k_blurred"])
    assert len(next(named.panels()).ticks) == 2


# ---- errors -------------------------------------------------------------------------------------------
def one_cell():
    return own_cells("my_net", datasets=["cog_l1"], shots=[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: figures.write([], [], d), "no top-1 score to draw"),
        (lambda d: figures.write(one_cell(), [], d, which=["fig11"]), "no result of sup_resnet50 on the same data"),
        (lambda d: figures.write(one_cell(), [], d, which=["drop"]), "the drop needs"),
        (lambda d: figures.write(one_cell(), [], d, datasets=["cog_l9"]), "no result has the data sets"),
    ],
)  # fmt: skip
def test_errors(tmp_path, call, message):
    with pytest.raises(CogError, match=re.escape(message)) as error:
        call(tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CogError, match="cannot write into"):
        figures.write(one_cell(), [], tmp_path / "file")
    (tmp_path / "out" / "fig3_levels.csv").mkdir(parents=True)
    with pytest.raises(CogError, match="in the way"):
        figures.write(one_cell(), [], tmp_path / "out")
