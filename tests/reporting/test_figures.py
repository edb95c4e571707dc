"""Figures: what is drawn, from which numbers, and their files."""

import pandas as pd
import pytest
from benchmark_runs import RESNET50, write_run, write_study
from frames import means_of, rows
from result_folders import make_seed_folder

from cog import constants
from cog.commands import print_results
from cog.errors import CogError
from cog.reporting.figures import draw as figures
from cog.reporting.figures import style
from cog.reporting.figures.lines import Sheet, over_datasets
from cog.results.frame import average
from cog.results.read import read


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two own models beside the published ones."""
    root = write_study(tmp_path_factory.mktemp("two"), {"my_good": 3.0, "my_bad": -3.0})
    return read(root, published="v2").scores


def drawn(means, *names):
    """Return the sheets of figures by name."""
    with figures.drawing():
        return {found: sheet for found, _, sheet in figures.draw(means, names)}


def test_levels_and_fig3_have_own_models_and_published_ones(two):
    sheets = drawn(average(two), "levels", "fig3")
    data = sheets["levels"].data
    assert data["model"].nunique() == 33 and set(data["dataset"]) == set(constants.DATASETS)
    own = data[data["model"] == "my_good"].set_index("dataset")["value"]
    assert own["cog_l3"] == pytest.approx(RESNET50["cog_l3", 0] + 3, abs=1)
    labels = [text.get_text() for text in sheets["levels"].figure.legends[0].get_texts()]
    assert labels == ["my_bad †", "my_good †", "ResNet50 (23.5M)", "30 models of the paper"]
    panels = dict(tuple(sheets["fig3"].data.groupby("panel")))
    assert set(panels) == {"All models", "Self-supervision", "Regularization", "Web data", "Architecture"}
    web = {f"{name}_resnet50" for name in ("ssup", "swsup", "mopro", "clip")}
    assert set(panels["Web data"]["model"]) == {*web, "my_good", "my_bad"}
    dino = panels["Self-supervision"].query("model == 'dino_resnet50' and dataset == 'cog_l5'")
    assert dino["value"].item() == pytest.approx(5.6)
    few = two[two["model"].isin(["my_good", "sup_resnet50"]) & two["dataset"].isin(["in1k", "cog_l5"])]
    assert "fig10" in drawn(average(few), "fig10")


@pytest.mark.slow
def test_published_figures_have_all_their_numbers():
    scores = read(published="v2").scores.query("dataset not in ('cog_l2', 'cog_l4')")
    sheets = drawn(average(scores), "fig4", "fig10", "fig11")
    assert len(sheets["fig10"].data) == len(sheets["fig11"].data) == 30 * 4 * 9  # the reference has no group
    fig4 = sheets["fig4"].data
    assert fig4["model"].nunique() == 8 and set(fig4["dataset"]) == {"cog_l1", "cog_l3", "cog_l5"}
    assert 1 not in set(fig4["n_shot"])
    names = {"fig3", "drop", "mlp", "v1_fig5", "v1_fig8", "v1_fig9"}
    sheets = drawn(average(read(published="v1").scores), *names)
    assert set(sheets) == names
    one = "evaluation == 'logreg_pca32' and model == 'sup_resnet50' and dataset == 'in1k'"
    assert len(sheets["v1_fig8"].data.query(one)) == 1


def test_numbers_on_other_data_are_never_drawn_beside_the_papers(tmp_path):
    for dataset in constants.DATASETS[:2]:
        write_run(tmp_path, "my_good", dataset, 22, 3.0)
        write_run(tmp_path, "my_small", dataset, 22, 20.0, rows={"final_train": 240, "test": 50_000})
        write_run(tmp_path, "my_short", dataset, 22, 10.0, identity={"n_epochs": 5})
    means = average(read(tmp_path, published="v2").scores)
    (sheet,) = drawn(means, "levels", "fewshot").values()  # with one number of shots, there is no curve
    assert not {"my_small", "my_short"} & set(sheet.data["model"]) and "my_good" in set(sheet.data["model"])
    assert "Not drawn, because not alike: my_" in sheet.figure.legends[0].get_title().get_text()
    alone = means[(means["model"] == "my_small") | (means["source"] != "runs")]
    sheets = drawn(alone, "levels", "fig3")  # which are the same without published numbers
    assert set(sheets) == {"levels"} and set(sheets["levels"].data["model"]) == {"my_small"}


def test_of_many_models_the_best_have_names():
    groups = [rows(f"m_{n}", [50.0 + n]) for n in range(40)]
    looks = style.looks(means_of(*groups, rows("m_39", [95.0], source="lab")))
    named = {look.label: look.line["color"] for look in looks.values() if look.label}
    assert named.keys() == {"m_39 [lab]", *(f"m_{n}" for n in range(34, 40))} and len({*named.values()}) == 7


@pytest.mark.slow
def test_files_are_equal_for_equal_numbers(monkeypatch, tmp_path, two):
    monkeypatch.setattr(figures, "FIGURES", {"levels": figures.FIGURES["levels"]})
    means = average(two[(two["dataset"] == "in1k") & two["model"].isin(["my_good", "my_bad"])])
    runs = two[(two["model"] == "my_good") & (two["dataset"] == "in1k") & (two["n_shot"] == 0)]
    for name in "ab":
        figures.write(means, runs, tmp_path / name)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"levels.pdf", "levels.png", "levels.svg", "levels.csv", "search_my_good_in1k.csv"} <= names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    trials = pd.read_csv(tmp_path / "a" / "search_my_good_in1k.csv")
    assert len(trials) == 2 * 30 and trials["best_so_far"].max() == 75.0  # diverged trials are higher
    assert len(pd.read_csv(tmp_path / "a" / "search_my_good_in1k_curves.csv")) == 2 * 20


@pytest.mark.slow
def test_a_further_figure_is_one_function(monkeypatch, tmp_path, two):
    def in1k_only(means):
        """Draw accuracies on IN-1K."""
        shown = means[(means["dataset"] == "in1k") & (means["metric"] == "top1") & (means["n_shot"] == 0)]
        if shown.empty:
            return None
        sheet = Sheet(style.looks(shown))
        sheet.lines(sheet.panels[0][0], shown, over_datasets(shown), ylabel="top-1 (%)")
        return sheet.finish("IN-1K alone.")

    fig3, further = {"fig3": figures.FIGURES["fig3"]}, {"in1k": (in1k_only, "IN-1K alone")}
    monkeypatch.setattr(figures, "FIGURES", further)
    figures.write(average(two), two.iloc[:0], tmp_path)
    assert len(pd.read_csv(tmp_path / "in1k.csv")) == 33
    monkeypatch.setattr(figures, "FIGURES", fig3 | further)
    assert print_results.main(["--published", "--report", str(tmp_path / "page.html")]) == 0
    assert "IN-1K alone" in (tmp_path / "page.html").read_text()
    with pytest.raises(CogError, match="no result to draw"):
        figures.write(average(two.iloc[:0]), two.iloc[:0], tmp_path)


def test_searches_of_hostile_folders_have_what_can_be_read(tmp_path):
    folder = write_run(tmp_path, "my_net", "in1k", 22, 0.0, trials=[{"lr": "x"}, 7, None, {"val_top1": 5.0}])
    (folder / "final-lr-1.0_wd-1e-06" / "logs.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    logs = {"train/top1": ["a", 2.0, None], "test/top1": [[1.0], 3.0], "lr": {"a": 1}, "train/loss": "1"}
    odd = make_seed_folder(tmp_path / "odd", logs=logs)
    trials, curves = figures.search.read_search({22: folder, 37: tmp_path / "gone", 45: odd})
    assert trials["val_top1"].dropna().tolist() == [5.0] and len(curves) == curves["epoch"].sum() / 2 == 3
    assert curves[["train/top1", "test/top1"]].sum().tolist() == [2.0, 3.0]
    curves = pd.DataFrame({"seed": [22]}, columns=figures.search.CURVES)
    panels = figures.search.draw("", trials.iloc[:0], curves).panels[0]
    assert [axes.axison for axes in panels] == [False, False, True], "no empty axes"
