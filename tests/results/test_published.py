"""The published numbers in the package equal those of the papers' tables."""

from __future__ import annotations

import csv

from cog import constants
from cog.models import paper_models
from cog.results import published
from cog.results.scores import SeedAverage


def parse(path):
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, strict=True))


def shots(text):
    return 0 if text == "all" else int(text)


def test_every_cell_of_the_final_version(shared_dir):
    rows = parse(shared_dir / "paper/cog_v2_top1.csv")
    assert len(rows) == 1674
    assert published.accuracies() == [
        SeedAverage(
            row["model"],
            row["dataset"],
            "logreg",
            "top1",
            shots(row["n_shot"]),
            float(row["mean"]),
            float(row["std"]),
            source="paper v2",
        )
        for row in rows
    ]
    for row in rows:
        assert published.MODELS[row["model"]].category == row["category"]


def test_models_table(shared_dir):
    rows = parse(shared_dir / "paper/models_table.csv")
    assert [row["model"] for row in rows] == list(published.MODELS)
    for order, row in enumerate(rows):
        model = published.MODELS[row["model"]]
        assert model.order == order and model.name == row["model"]
        assert model.table_label == row["table5_10_label"]
        assert model.label == (row["paper_label"][2:] if order else "ResNet50")
        assert (model.category, model.marker) == (row["category"], row["matplotlib_marker"])
        assert model.color == (row["figure_color"] if order else "black")
        assert model.in_fig4 is (row["in_fig4"] == "yes")
        assert model.params_m == (float(row["params_M"]) if row["params_M"] else None)
    assert sum(model.in_fig4 for model in published.MODELS.values()) == 8


def test_tables_of_the_first_version(shared_dir):
    paper = shared_dir / "paper"
    cells = published.accuracies("v1")
    found = {(cell.dataset, cell.model, cell.n_shot): cell for cell in cells}
    few = parse(paper / "cog_v1_table4_fewshot.csv")
    assert len(found) == len(cells) == len(few) == 378
    for row in few:
        score = found[row["dataset"], row["model"], shots(row["n_shot"])]
        assert (score.value, score.std) == (float(row["top1"]), None)
    for row in parse(paper / "cog_v1_table2_logreg_top1.csv"):
        assert found[row["dataset"], row["model"], 0].value == float(row["top1"])
    assert {cell.source for cell in cells} == {"paper v1"}
    expected = [
        (row["classifier"], "relative_to_logreg", row["dataset"], row["model"], float(row["value"]))
        for row in parse(paper / "cog_v1_table3_mlp.csv")
        if row["unit"] == "relative_percent_vs_logreg"
    ]
    expected += [
        (f"logreg_pca{row['pca_dim']}", "top1", row["dataset"], row["model"], float(row["top1"]))
        for row in parse(paper / "cog_v1_table5_pca.csv")
        if row["pca_dim"] != "2048"
    ]
    names = {"purity": "purity_v1", "ami": "ami", "nmi": "nmi", "ari": "ari"}
    expected += [
        ("kmeans", names[row["metric"]], row["dataset"], row["model"], float(row["value"]))
        for row in parse(paper / "cog_v1_table6_clustering.csv")
    ]
    everything = published.averages("v1")
    others = [(a.evaluation, a.metric, a.dataset, a.model, a.value) for a in everything[378:]]
    assert everything[:378] == cells and others == expected
    by_place = {(a.dataset, a.model): a.value for a in cells if a.n_shot == 0}
    for row in parse(paper / "cog_v1_table5_pca.csv"):
        if row["pca_dim"] == "2048":  # all components are all features
            assert by_place[row["dataset"], row["model"]] == float(row["top1"])


def test_complete_and_consistent_without_the_papers_files():
    cells = published.accuracies()
    keys = {(cell.dataset, cell.model, cell.n_shot) for cell in cells}
    assert keys == {
        (dataset, model, n_shot)
        for dataset in constants.DATASETS
        for model in published.MODELS
        for n_shot in (*constants.SHOTS, 0)
    }
    assert len(keys) == len(cells) == 31 * 6 * 9
    assert all(0 < cell.value < 100 and 0 <= cell.std < 2 for cell in cells)
    assert {model.category for model in published.MODELS.values()} == set(published.CATEGORY_LABELS)


def test_models_agree_with_what_the_toolkit_declares():
    assert set(published.MODELS) == paper_models.MODELS.keys() - set(paper_models.list_models("other"))
    for name, model in published.MODELS.items():
        assert model.category == paper_models.MODELS[name].category
