"""Tables of other experiments, a view and a metric of one's own, and the table in a notebook."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pandas as pd
import pytest
from frames import means_of, rows, stated
from result_folders import make_seed_folder

import cog
from cog.errors import CogError
from cog.reporting import render, views
from cog.results import metrics

PAGE = Path(__file__).resolve().parents[2] / "docs/results.md"


def of_analysis(evaluation, numbers, model="a_b", **more):
    return [
        {**row, "metric": metric}
        for metric, value in numbers.items()
        for row in stated(model, value, evaluation=evaluation, **more)
    ]


def cell_of(view, **place):
    found = view
    for name, value in place.items():
        found = found[found[name] == value]
    return found["cell"].item()


def test_numbers_of_analyses_with_their_intervals():
    kmeans = [{**row, "std": 0.01} for row in of_analysis("kmeans", {"ami": 0.61})]
    means = means_of(
        rows("a_b", [70.0, 71.0]),
        kmeans,
        of_analysis("kmeans", {"ami_min": 0.6, "ami_max": 0.62}),
        of_analysis(
            "own", {"rho": 0.5, "rho_low": 0.4, "rho_high": 0.6, "n_pairs": 12, "share_percent": 3.25}
        ),
        of_analysis("knn", {"top1_k20_weighted": 48.0}, dataset="cog_l5"),
    )
    view = views.analysis(means, ["all"])
    assert cell_of(view, metric="ami") == "0.610 [0.600, 0.620]", "the range of the repetitions, no deviation"
    assert view.loc[view["metric"] == "ami", "std"].item() == 0.01, "for programs"
    assert cell_of(view, metric="rho") == "0.500 [0.400, 0.600]"
    assert (cell_of(view, metric="n_pairs"), cell_of(view, metric="share_percent")) == ("12", "3.25")
    assert set(view["metric"]) == {"ami", "rho", "n_pairs", "share_percent", "top1_k20_weighted"}
    text = render.render(view, "text")
    assert "kNN, k=20, weighted, top-1 (%)" in text and "own: share (%)" in text and "lowest inertia" in text
    assert view["title"].iloc[0].startswith("kNN"), "declared numbers come first"
    with pytest.raises(
        CogError, match="no result of the analysis cross among those read; there is kmeans, knn, own"
    ):
        views.analysis(means, ["cross"])


def test_classifiers_of_other_kinds():
    means = means_of(
        rows("a_b", [60.0, 61.0]),
        rows("a_b", [66.0, 67.0], evaluation="mlp"),
        rows("a_b", [50.0, 51.0], evaluation="logreg_pca32"),
        rows("a_b", [90.0], evaluation="finetune"),
        rows("a_b", [1.0], evaluation="my_own"),
    )
    view = views.analysis(means, ["mlp", "pca", "finetune"])
    assert cell_of(view, evaluation="mlp", metric="top1") == "66.5 ± 0.5"
    assert cell_of(view, evaluation="mlp", metric="relative_to_logreg") == "+9.9 ± 1.2"
    assert cell_of(view, evaluation="finetune", metric="logreg_relative") == "-32.8"
    assert set(view["evaluation"]) == {"mlp", "logreg_pca32", "finetune"}
    assert "my_own" in set(views.analysis(means, ["all"])["evaluation"])


def test_a_metric_and_a_view_of_ones_own(monkeypatch):
    """Each is one function in one file."""

    def describe(rest, metric):
        known = metrics.Metric("depth", f"depth of {rest}", unit=metrics.UNIT, decimals=1)
        return known if metric == "d" else None

    def best(means: pd.DataFrame) -> pd.DataFrame:
        view = means.loc[means.groupby("dataset")["value"].idxmax()]
        return views.readable(view, "best model, {of}", view["model"], notes=["by top-1 accuracy"])

    monkeypatch.setattr(metrics, "_DECLARED", dict(metrics._DECLARED))
    metrics.declare("depth", describe)
    monkeypatch.setitem(views.VIEWS, "best", best)
    means = means_of(rows("a_b", [1.0]), rows("a_c", [2.0]), of_analysis("depth_in1k", {"d": 0.25}))
    assert "depth of in1k (0 to 1)" in render.table(means, analysis=["depth"])
    assert "best model, all training images" in render.table(means, "best")
    assert render.table(means, "best", format="csv").count("a_c") == 1


def test_the_example_of_the_documentation(tmp_path):
    for dataset in ("in1k", "cog_l5"):
        for seed in (22, 37):
            make_seed_folder(tmp_path / f"my/net/{dataset}/eval_logreg/seed-{seed}", 60.0 + seed / 10)
    (tmp_path / "my/net/in1k/eval_logreg/seed-45").mkdir()
    code = re.search(r"## In a notebook\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    names: dict[str, pd.DataFrame] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code.replace("/models", str(tmp_path)), names)
    assert "my_net †" in printed.getvalue() and "63.0 ± 0.8 (2/5)" in printed.getvalue()
    frame = names["frame"]
    assert [Path(path).name for path, _ in frame.attrs["skipped"]] == ["seed-45"]
    assert len(frame) == 8 + 1674 and set(frame["source"]) == {"runs", "paper v2"}
    text = cog.table(names["means"], relative_to="sup_resnet50", format="csv")
    assert "no verdict: counts per concept are not known" in text
    for wrong in ({"show": "x"}, {"format": "html"}):
        with pytest.raises(CogError, match="expected one of"):
            cog.table(names["means"], **wrong)


def test_reading_nothing_is_a_warning_and_wrong_names_are_errors(tmp_path, caplog):
    assert cog.read_results(tmp_path).empty and "no result of any model" in caplog.text
    some = cog.read_results(published="v1", models="swav_*", datasets="in1k")
    assert set(some["model"]) == {"swav_resnet50"}
    with pytest.raises(CogError, match="v3"):
        cog.read_results(published="v3")
    assert len(cog.average(cog.read_results(tmp_path))) == 0
