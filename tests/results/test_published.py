"""The published numbers in the package are those of the papers, and tables show them to the digit."""

import csv
import re

from frames import means_of

from cog.models import paper_models
from cog.reporting import render, views
from cog.results import published

KEY = ("dataset", "model", "evaluation", "metric", "n_shot")


def parse(path):
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, strict=True))


def place(row, evaluation="logreg", metric="top1", n_shot="all"):
    return row["dataset"], row["model"], evaluation, metric, 0 if n_shot == "all" else int(n_shot)


def numbers(version):
    """Return value and deviation of every number by place."""
    rows = published.rows(version)
    found = {tuple(row[name] for name in KEY): (row["value"], row["std"]) for row in rows}
    assert len(found) == len(rows) and {row["source"] for row in rows} == {f"paper {version}"}
    return found


def test_tables_5_to_10_to_the_digit(shared_dir):
    """Every number, and every cell of the tables as text, against the text of the paper."""
    rows = parse(shared_dir / "paper/cog_v2_top1.csv")
    expected = {place(row, n_shot=row["n_shot"]): (float(row["mean"]), float(row["std"])) for row in rows}
    assert numbers("v2") == expected and len(expected) == 31 * 6 * 9
    texts = {(row["dataset"], row["model"], row["n_shot"]): f"{row['mean']} ± {row['std']}" for row in rows}
    found = {}
    for number, (title, wide) in enumerate(render.grids(views.fewshot(means_of(published.rows()))), start=5):
        dataset = re.search(rf"(in1k|cog_l\d) \(Table {number} of the paper\)", title)[1]
        for label, cells in wide.iterrows():
            for head, cell in cells.items():
                found[dataset, label.split()[0], head.removeprefix("N=")] = cell
    assert found == texts


def test_tables_of_the_first_version(shared_dir):
    paper, found = shared_dir / "paper", numbers("v1")
    few = parse(paper / "cog_v1_table4_fewshot.csv")
    expected = {place(row, n_shot=row["n_shot"]): float(row["top1"]) for row in few}
    assert len(expected) == 378
    for row in parse(paper / "cog_v1_table3_mlp.csv"):
        if row["unit"] == "relative_percent_vs_logreg":
            expected[place(row, row["classifier"], "relative_to_logreg")] = float(row["value"])
    for row in parse(paper / "cog_v1_table5_pca.csv"):  # all components are all features
        evaluation = "logreg" if row["pca_dim"] == "2048" else f"logreg_pca{row['pca_dim']}"
        assert expected.setdefault(place(row, evaluation), float(row["top1"])) == float(row["top1"])
    for row in parse(paper / "cog_v1_table6_clustering.csv"):
        metric = {"purity": "purity_v1"}.get(row["metric"], row["metric"])
        expected[place(row, "kmeans", metric)] = float(row["value"])
    assert found == {key: (value, None) for key, value in expected.items()}
    for row in parse(paper / "cog_v1_table2_logreg_top1.csv"):
        assert found[place(row)][0] == float(row["top1"])


def test_the_first_version_as_text():
    shown = views.analysis(means_of(published.rows("v1")), ["all"])[[*KEY, "cell"]]
    cells = {tuple(row[:5]): row[5] for row in shown.to_numpy().tolist()}
    for key, (value, _) in numbers("v1").items():
        if key[2:4] != ("logreg", "top1"):
            sign, digits = "+" if key[3] == "relative_to_logreg" else "", 3 if key[2] == "kmeans" else 1
            text = f"{value:{sign}.{digits}f}"
            assert cells[key] == ("0.0" if float(text) == 0 else text)


def test_models(shared_dir):
    rows = parse(shared_dir / "paper/models_table.csv")
    assert [row["model"] for row in rows] == list(published.MODELS)
    assert set(published.MODELS) == paper_models.MODELS.keys() - set(paper_models.list_models("other"))
    for order, row in enumerate(rows):
        model, spec = published.MODELS[row["model"]], paper_models.MODELS[row["model"]]
        assert (model.order, model.name, model.table_label) == (order, row["model"], row["table5_10_label"])
        assert model.label == (row["paper_label"][2:] if order else "ResNet50")
        assert (model.category, model.marker) == (row["category"], row["matplotlib_marker"])
        assert model.color == (row["figure_color"] if order else "black")
        assert (model.in_fig4 or "no", model.params_m) == (row["in_fig4"], row["params_M"])
        assert (model.category, model.pretraining) == (spec.category, spec.pretraining)
