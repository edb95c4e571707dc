"""An analysis that is new to the toolkit: what is declared of it is shown in tables, files, figures and the page."""

from __future__ import annotations

import csv
import re

import pytest
from experiment_records import write_record

from cog.commands import print_results
from cog.reporting.figures.declarations import FIGURES, FigureSpec, PanelSpec
from cog.reporting.html import pictures
from cog.results import metric_info
from cog.results.metric_info import Metric

VALUES = {("a_b", "in1k"): 3.14159, ("a_b", "cog_l1"): 2.5, ("c_d", "in1k"): 7.25, ("c_d", "cog_l1"): 6.0}


@pytest.fixture
def root(tmp_path):
    for (model, dataset), value in VALUES.items():
        write_record(tmp_path / "models", model, dataset, "depth", {"mean": value, "n_layers": 50})
    return tmp_path / "models"


@pytest.fixture
def declared(monkeypatch, no_other_figures):
    monkeypatch.setattr(metric_info, "_DECLARED", dict(metric_info._DECLARED))
    metric_info.declare("depth", {"mean": Metric("depth", "mean depth", "layers", decimals=1, better=-1)})
    panel = PanelSpec(("depth", "mean", 0), "Depth", "layers")
    monkeypatch.setitem(FIGURES, "depth", FigureSpec("depth", "Mean depth on {datasets}", (panel,)))
    yield
    metric_info.describe.cache_clear()


@pytest.fixture(autouse=True)
def no_other_figures(monkeypatch):
    """They have tests of their own, and take seconds."""
    monkeypatch.setattr(pictures, "_WHICH", ())
    monkeypatch.setattr(pictures, "_EXPERIMENTS", ())
    for name in set(FIGURES) - {pictures.ANSWER}:  # for which there are no accuracies here
        monkeypatch.delitem(FIGURES, name)


def shown(root, capsys, *flags):
    assert print_results.main(["--models_root_dir", str(root), *map(str, flags)]) == 0
    return capsys.readouterr().out


def test_what_is_declared_is_in_tables(root, declared, capsys):
    text = shown(root, capsys, "--analysis", "depth")
    assert "mean depth (layers)" in text
    assert re.search(r"a_b † +3\.1 +2\.5", text) and re.search(r"c_d † +7\.2 +6\.0", text)
    assert text.count("† pretraining may have held") == 1
    rows = csv.DictReader(shown(root, capsys, "--analysis", "depth", "--format", "csv").splitlines())
    found = {(row["model"], row["dataset"]): float(row["value"]) for row in rows if row["quantity"] == "mean"}
    assert found == VALUES


def test_what_is_declared_is_drawn(root, declared, tmp_path, capsys):
    shown(root, capsys, "--figures", tmp_path / "out", "--figure_names", "depth", "--figure_formats", "svg")
    rows = csv.DictReader((tmp_path / "out" / "depth.csv").read_text(encoding="utf-8").splitlines())
    assert {(row["model"], row["dataset"]): float(row["value"]) for row in rows} == VALUES
    assert "layers" in (tmp_path / "out" / "depth.svg").read_text(encoding="utf-8")


def test_what_is_declared_is_on_the_page(root, declared, tmp_path, capsys):
    shown(root, capsys, "--report", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "depth" in page and '<td data-v="3.1"><b>3.1</b></td>' in page
    assert "<figcaption>Mean depth on IN&#8209;1K, L1." in page


def test_without_a_declaration_it_is_shown_under_its_own_name(root, tmp_path, capsys):
    assert "depth: mean" in shown(root, capsys, "--analysis", "depth")
    shown(root, capsys, "--report", tmp_path / "page.html")
    assert "<b>3.142</b>" in (tmp_path / "page.html").read_text(encoding="utf-8")
