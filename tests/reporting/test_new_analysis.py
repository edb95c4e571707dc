"""An analysis that is new to the toolkit: what is declared of it is shown in tables and files."""

from __future__ import annotations

import csv
import re

import pytest
from experiment_records import write_record

from cog.commands import print_results
from cog.results import metric_info
from cog.results.metric_info import Metric

VALUES = {("a_b", "in1k"): 3.14159, ("a_b", "cog_l1"): 2.5, ("c_d", "in1k"): 7.25, ("c_d", "cog_l1"): 6.0}


@pytest.fixture
def root(tmp_path):
    for (model, dataset), value in VALUES.items():
        write_record(tmp_path / "models", model, dataset, "depth", {"mean": value, "n_layers": 50})
    return tmp_path / "models"


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setattr(metric_info, "_DECLARED", dict(metric_info._DECLARED))
    metric_info.declare("depth", {"mean": Metric("depth", "mean depth", "layers", decimals=1, better=-1)})
    yield
    metric_info.describe.cache_clear()


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


def test_without_a_declaration_it_is_shown_under_its_own_name(root, capsys):
    assert "depth: mean" in shown(root, capsys, "--analysis", "depth")
