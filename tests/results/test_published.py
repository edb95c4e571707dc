"""The published numbers in the package equal those of the papers' tables, and tables show them to the digit."""

from __future__ import annotations

import csv
import re

import pytest
from frames import means_of

from cog import constants
from cog.models import paper_models
from cog.reporting import render, views
from cog.results import published

KEY = ("dataset", "model", "evaluation", "metric", "n_shot")


def parse(path):
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, strict=True))


def shots(text):
    return 0 if text == "all" else int(text)


def numbers(version):
    """Return value and deviation of every number by place."""
    rows = published.rows(version)
    found = {tuple(row[name] for name in KEY): (row["value"], row["std"]) for row in rows}
    assert len(found) == len(rows) and {row["source"] for row in rows} == {f"paper {version}"}
    return found


def test_every_cell_of_the_final_version(shared_dir):
    rows = parse(shared_dir / "paper/cog_v2_top1.csv")
    assert len(rows) == 1674
    assert numbers("v2") == {
        (row["dataset"], row["model"], "logreg", "top1", shots(row["n_shot"])): (
            float(row["mean"]),
            float(row["std"]),
        )
        for row in rows
    }


def test_tables_5_to_10_to_the_digit(shared_dir):
    """Every cell of the tables as text, against the text of the paper."""
    expected = {
        (row["dataset"], row["model"], row["n_shot"]): f"{row['mean']} ± {row['std']}"
        for row in parse(shared_dir / "paper/cog_v2_top1.csv")
    }
    found = {}
    for number, (title, wide) in enumerate(render.grids(views.fewshot(means_of(published.rows()))), start=5):
        dataset = re.search(rf"(in1k|cog_l\d) \(Table {number} of the paper\)", title)[1]
        for label, cells in wide.iterrows():
            for head, cell in cells.items():
                found[dataset, label.split()[0], head.removeprefix("N=")] = cell
    assert found == expected


def test_tables_of_the_first_version(shared_dir):
    paper = shared_dir / "paper"
    few, found = parse(paper / "cog_v1_table4_fewshot.csv"), numbers("v1")
    expected = {
        (row["dataset"], row["model"], "logreg", "top1", shots(row["n_shot"])): float(row["top1"])
        for row in few
    }
    assert len(expected) == 378
    expected |= {
        (row["dataset"], row["model"], row["classifier"], "relative_to_logreg", 0): float(row["value"])
        for row in parse(paper / "cog_v1_table3_mlp.csv")
        if row["unit"] == "relative_percent_vs_logreg"
    }
    for row in parse(paper / "cog_v1_table5_pca.csv"):  # all components are all features
        evaluation = "logreg" if row["pca_dim"] == "2048" else f"logreg_pca{row['pca_dim']}"
        key = (row["dataset"], row["model"], evaluation, "top1", 0)
        assert expected.setdefault(key, float(row["top1"])) == float(row["top1"])
    names = {"purity": "purity_v1", "ami": "ami", "nmi": "nmi", "ari": "ari"}
    for row in parse(paper / "cog_v1_table6_clustering.csv"):
        expected[row["dataset"], row["model"], "kmeans", names[row["metric"]], 0] = float(row["value"])
    assert found == {key: (value, None) for key, value in expected.items()}
    for row in parse(paper / "cog_v1_table2_logreg_top1.csv"):
        assert found[row["dataset"], row["model"], "logreg", "top1", 0][0] == float(row["top1"])
    assert len(found) + len(numbers("v2")) >= 2_400


def test_the_first_version_as_text():
    means = means_of(published.rows("v1"))
    cells = {
        tuple(row[:5]): row[5] for row in views.analysis(means, ["all"])[[*KEY, "cell"]].to_numpy().tolist()
    }
    for key, (value, _) in numbers("v1").items():
        if key[2:4] != ("logreg", "top1"):
            digits = 3 if key[2] == "kmeans" else 1
            sign = "+" if key[3] == "relative_to_logreg" else ""
            text = f"{value:{sign}.{digits}f}"
            assert cells[key] == ("0.0" if float(text) == 0 else text)


def test_models_table(shared_dir):
    rows = parse(shared_dir / "paper/models_table.csv")
    assert [row["model"] for row in rows] == list(published.MODELS)
    for order, row in enumerate(rows):
        model = published.MODELS[row["model"]]
        assert (model.order, model.name, model.table_label) == (order, row["model"], row["table5_10_label"])
        assert model.label == (row["paper_label"][2:] if order else "ResNet50")
        assert (model.category, model.marker) == (row["category"], row["matplotlib_marker"])
        assert model.color == (row["figure_color"] if order else "black")
        assert model.in_fig4 is (row["in_fig4"] == "yes")
        assert model.params_m == (float(row["params_M"]) if row["params_M"] else None)


def test_complete_and_consistent_without_the_papers_files():
    found = numbers("v2")
    assert {(dataset, model, n_shot) for dataset, model, _, _, n_shot in found} == {
        (dataset, model, n_shot)
        for dataset in constants.DATASETS
        for model in published.MODELS
        for n_shot in (*constants.SHOTS, 0)
    }
    assert len(found) == 31 * 6 * 9 and all(0 < value < 100 and 0 <= std < 2 for value, std in found.values())
    web = {row["model"] for row in published.rows() if row["pretraining"] != "IN-1K"}
    assert web == {"ssup_resnet50", "swsup_resnet50", "mopro_resnet50", "clip_resnet50"}
    assert {model.category for model in published.MODELS.values()} == set(published.CATEGORY_LABELS)
    with pytest.raises(ValueError, match="v3"):
        published.rows("v3")


def test_models_agree_with_what_the_toolkit_declares():
    assert set(published.MODELS) == paper_models.MODELS.keys() - set(paper_models.list_models("other"))
    for name, model in published.MODELS.items():
        assert model.category == paper_models.MODELS[name].category
