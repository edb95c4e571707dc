"""The report's section on other experiments: what it states, its notices, and that hostile records stay text."""

from __future__ import annotations

import re

import pytest
from experiment_records import write_record, write_runs
from report_runs import make_found, make_run
from test_report_page import Page

from cog import constants
from cog.commands import print_results
from cog.reporting import html
from cog.reporting.figures import search
from cog.reporting.html import facts, pictures
from cog.results import published, scores
from cog.results.run_records import Problem
from cog.results.scores import SeedAverage
from cog.runtime.output_folder import FAILED, INTERRUPTED, RUNNING

HOSTILE = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(pictures, "draw", lambda *args, **kwargs: ([], ""))
    monkeypatch.setattr(search, "strips", lambda pages, most: [])


@pytest.fixture
def study(tmp_path):
    """Two models on two data sets; the second lacks an analysis."""
    root = tmp_path / "models"
    for model, share in (("mini_trained", 1.0), ("mini_untrained", 0.3)):
        for dataset in ("in1k", "cog_l5"):
            for name, top1 in (("logreg", 60.0), ("logreg_pca32", 45.0), ("mlp", 62.0)):
                write_runs(root, model, dataset, name, dict.fromkeys(constants.SEEDS, share * top1))
            write_record(root, model, dataset, "ncm", {"top1_cosine": share * 50})
            if model == "mini_trained":
                write_record(root, model, dataset, "kmeans", {"ami": 0.5}, seeds=[0])
    return root


def page_of(root, tmp_path, *argv):
    target = tmp_path / "report.html"
    assert print_results.main(["--models_root_dir", str(root), "--report", str(target), *argv]) == 0
    text = target.read_text(encoding="utf-8")
    return text, Page(text)


def section(text):
    return re.search(r'<section id="experiments".*?</section>', text, re.DOTALL)[0]


def test_the_section_holds_every_number(study, tmp_path, no_figures):
    text, page = page_of(study, tmp_path)
    part = section(text)
    assert 'href="#experiments"' in text
    first = part.split("</table>")[0]
    heads = re.findall(r"<button[^>]*>(.*?)</button>", first)
    assert heads == [
        "Model", "▲ LogReg (%)", "▲ nearest class mean (%)", "▲ k-means AMI", "▲ LogReg, PCA 32 (%)", "▲ MLP (%)",
    ]  # fmt: skip
    rows = re.findall(r"<tr><th.*?</tr>", first.split("<tbody>")[1])
    values = [re.findall(r'data-v="([^"]*)"', row) for row in rows]
    assert values == [["60", "50", "0.5", "45", "62"], ["18", "15", "13.5", "18.6"]]
    assert "MLP relative to LogReg" in part and "+3.3" in part
    assert page.tags["table"] > 8


def test_missing_analyses_are_a_note_with_the_command(study, tmp_path, no_figures):
    text, _ = page_of(study, tmp_path)
    assert "2 analyses not there yet" in text
    words = "--model mini_untrained --datasets in1k cog_l5 --analysis kmeans"
    assert f"python analyze_features.py --models_root_dir {study} {words}" in text


def test_without_other_experiments_there_is_no_section(tmp_path, no_figures):
    root = tmp_path / "models"
    write_runs(root, "a_b", "in1k", "logreg", {22: 60.0})
    text, _ = page_of(root, tmp_path)
    assert 'id="experiments"' not in text and "analyses" not in text


def test_only_analyses(tmp_path, no_figures):
    root = tmp_path / "models"
    write_record(root, "a_b", "in1k", "ncm", {"top1_cosine": 50.0})
    write_record(root, "a_b", "in1k", "kmeans", {"ami": 0.5})
    text, _ = page_of(root, tmp_path)
    assert "<h1>Results of other experiments</h1>" in text and "no linear classifiers here" in text
    assert "2 analyses from" in text and "ResNet50" not in text


def test_published_experiments_stand_beside_comparable_ones(tmp_path, no_figures):
    root = tmp_path / "models"
    write_runs(root, "a_b", "in1k", "logreg", dict.fromkeys(constants.SEEDS, 60.0))
    write_record(root, "a_b", "in1k", "kmeans", {"purity_v1": 0.4})
    text, _ = page_of(root, tmp_path, "--with_published", "--paper", "v1")
    assert "swav_<wbr>resnet50 [paper v1]" in section(text)
    target = tmp_path / "published.html"
    print_results.main(["--published_only", "--paper", "v1", "--report", str(target)])
    assert "Other experiments" in target.read_text(encoding="utf-8")


def test_published_experiments_are_left_out_where_the_data_differ():
    runs = [
        make_run("a_b", name, seed=s, n_classes=10) for name in ("in1k", "cog_l1") for s in constants.SEEDS
    ]
    numbers = [a for a in published.averages("v1") if not scores.is_protocol(a)]
    numbers.append(SeedAverage("a_b", "in1k", "kmeans", "ami", 0, 0.5))
    stated = facts.collect(make_found(runs, all_measures=numbers), published=published.accuracies("v1"))
    assert not stated.compared and [one.model for one in stated.results.all_measures] == ["a_b"]


def test_hostile_records_stay_text(tmp_path, no_figures):
    root = tmp_path / "models"
    entry = dict.fromkeys(("wnid", "names", "accuracy"), HOSTILE)
    entry |= {"difference": 1e308, "false_discovery_rate": []}
    odd = {
        "identity": {HOSTILE: HOSTILE[:30], "k": [[1, 2], {"x": HOSTILE}], "test_features": 3, "n": 10**400},
        "device": HOSTILE,
        "finished": HOSTILE,
        "seconds": -1e300,
        "versions": {HOSTILE: HOSTILE},
        "details": {"winners": [entry, 3, None], "losers": HOSTILE, "against": HOSTILE, "bins": [HOSTILE]},
    }
    for name in ("kmeans", "winners_x", "distance", "cross_" + "a" * 80):
        write_record(root, "a_b", "in1k", name, {"value": 1e308, "spearman": 0.5}, **odd)
    write_record(root, "a_c", "in1k", "kmeans", {"value": -1e-308}, identity={"k": 3})
    write_record(root, "a_d", "in1k", "kmeans", {"value": 0}, identity={"k": 4})
    text, page = page_of(root, tmp_path)
    assert page.tags["script"] == 1 and page.tags["img"] == 0
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "alert(1)" in page.text
    assert "Analyses were made with different settings" in text


def test_unfinished_runs_are_no_warning():
    problems = [
        Problem(html.Path("/m/seed-1"), "in progress: x", RUNNING),
        Problem(html.Path("/m/seed-2"), "unfinished", INTERRUPTED),
        Problem(html.Path("/m/seed-3"), "failed: out of memory", FAILED),
    ]
    found = facts.collect(make_found(problems=problems))
    kinds = {notice.kind: notice for notice in found.notices}
    assert kinds["unfinished runs"].severity == "note" and len(kinds["unfinished runs"].items) == 2
    assert kinds["folders that are not counted"].items == ("/m/seed-3: failed: out of memory",)


def test_figures_of_experiments_are_in_the_page(tmp_path):
    root = tmp_path / "models"
    for dataset in ("in1k", "cog_l1"):
        write_record(root, "a_b", dataset, "kmeans", {"purity_v1": 0.4, "ami": 0.5})
    text, page = page_of(root, tmp_path)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert len(captions) == 2 and captions[0].startswith("Purity of k-means clusters")
    assert page.tags["svg"] >= 2


def test_p_values_keep_their_digits_and_can_be_sorted_by(tmp_path, no_figures):
    root = tmp_path / "models"
    write_record(root, "a_b", "in1k", "winners_c_d", {"p_sign_test": 3.14e-59})
    text, _ = page_of(root, tmp_path)
    assert '<td data-v="3.1e-59"><b>3.1e−59</b></td>' in section(text)
