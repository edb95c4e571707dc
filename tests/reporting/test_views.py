"""Tables of other experiments, a view and a metric of one's own, and the table in a notebook."""

import contextlib
import io
import re

import pandas as pd
import pytest
from frames import means_of, rows, stated
from result_folders import make_seed_folder

import cog
from cog.commands import print_results
from cog.errors import CogError
from cog.reporting import render, views
from cog.results import metrics


def of_analysis(evaluation, numbers, **more):
    return [stated("a_b", n, evaluation=evaluation, metric=m, **more)[0] for m, n in numbers.items()]


def test_numbers_of_analyses_with_their_intervals():
    own = {"rho": 0.5, "rho_low": 0.4, "rho_high": 0.6, "n_pairs": 12, "share_percent": 3.25}
    means = means_of(
        rows("a_b", [70.0, 71.0]),
        [{**row, "std": 0.01} for row in of_analysis("kmeans", {"ami": 0.61})],
        of_analysis("kmeans", {"ami_min": 0.6, "ami_max": 0.62}),
        of_analysis("own", own),
        of_analysis("knn", {"top1_k20_weighted": 48.0}, dataset="cog_l5"),
    )
    view = views.analysis(means, ["all"])
    assert view.set_index("metric")["cell"].to_dict() == {
        "ami": "0.610 [0.600, 0.620]",  # the range of the repetitions, no deviation
        "rho": "0.500 [0.400, 0.600]",
        "n_pairs": "12",
        "share_percent": "3.25",
        "top1_k20_weighted": "48.0",
    }
    assert view.loc[view["metric"] == "ami", "std"].item() == 0.01, "for programs"
    text = render.render(view, "text")
    assert "kNN, k=20, weighted, top-1 (%)" in text and "own: share (%)" in text and "lowest inertia" in text
    assert view["title"].iloc[0].startswith("kNN"), "declared numbers come first"
    expected = "no result of the analysis cross among those read; there is kmeans, knn, own"
    with pytest.raises(CogError, match=expected):
        views.analysis(means, ["cross"])


def test_classifiers_of_other_kinds():
    means = means_of(
        rows("a_b", [60.0, 61.0], protocol="n_trials 3"),
        rows("a_b", [66.0, 67.0], evaluation="mlp", protocol="n_trials 3, mlp_hidden 128"),
        rows("a_b", [50.0, 51.0], evaluation="logreg_pca32", n_shot=8),
        rows("a_b", [90.0], evaluation="finetune"),
        rows("a_b", [1.0], evaluation="my_own"),
    )
    view = views.analysis(means, ["mlp", "pca", "finetune"])
    assert view.set_index(["title"])["cell"].to_dict() == {
        "MLP, top-1 (%)": "66.5 ± 0.5",
        "MLP relative to LogReg (%)": "+9.9 ± 1.2",
        "LogReg, 32 principal components, N=8, top-1 (%)": "50.5 ± 0.5",
        "fine-tuned, top-1 (%)": "90.0",
        "LogReg on frozen features relative to the fine-tuned model (%)": "-32.8",
    }
    assert "my_own" in set(views.analysis(means, ["all"])["evaluation"])


def test_a_metric_and_a_view_of_ones_own(monkeypatch, capsys):
    """Each is one declaration or function in one file."""

    def best(means: pd.DataFrame) -> pd.DataFrame:
        view = means.loc[means.groupby("dataset")["value"].idxmax()]
        return views.readable(view, "best model, {of}", view["model"], notes=["by top-1 accuracy"])

    depth = {"d": metrics.Metric("depth of {of}", unit=metrics.UNIT, decimals=1)}
    monkeypatch.setitem(metrics.DECLARED, "depth", depth)
    monkeypatch.setitem(views.VIEWS, "best", best)
    means = means_of(rows("a_b", [1.0]), rows("a_c", [2.0]), of_analysis("depth_in1k", {"d": 0.25}))
    assert "depth of in1k (0 to 1)" in render.table(means, analysis=["depth"])
    assert "best model, all training images" in render.table(means, "best")
    assert render.table(means, "best", format="csv").count("a_c") == 1
    assert print_results.main(["--published", "--show", "best", "--n_shot", "0"]) == 0
    assert "best model, all training images" in capsys.readouterr().out


def test_the_example_of_the_documentation(tmp_path, repository):
    for dataset in ("in1k", "cog_l5"):
        for seed in (22, 37):
            make_seed_folder(tmp_path / f"my/net/{dataset}/eval_logreg/seed-{seed}", 60.0 + seed / 10)
    (tmp_path / "my/net/in1k/eval_logreg/seed-45").mkdir()
    page = (repository / "docs/results.md").read_text()
    code = re.search(r"## In a notebook\n\n```python\n(.*?)```", page, re.DOTALL)[1]
    names: dict[str, pd.DataFrame] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code.replace("/models", str(tmp_path)), names)
    assert "my_net †" in printed.getvalue() and "63.0 ± 0.8 (2/5)" in printed.getvalue()
    assert [path[-7:] for path, _ in names["frame"].attrs["skipped"]] == ["seed-45"]
    assert len(names["frame"]) == 8 + 1674 and set(names["frame"]["source"]) == {"runs", "paper v2"}
    text = cog.table(names["means"], relative_to="sup_resnet50", format="csv")
    assert "no verdict: counts per concept are not known" in text
    with pytest.raises(CogError, match="expected one of"):
        cog.table(names["means"], format="html")
    (tmp_path / "empty").mkdir()
    assert len(cog.average(cog.read_results(tmp_path / "empty"))) == 0
    some = cog.read_results(published="v1", models="swav_*", datasets="in1k")
    assert set(some["model"]) == {"swav_resnet50"} and "67.6" in cog.table(cog.average(some))
