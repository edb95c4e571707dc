"""Views of the published numbers against plain arithmetic, and what tables are made of."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from averages import counted_cell

from cog.commands import print_results
from cog.reporting.tables import accuracies, layout, writers
from cog.reporting.tables.layout import Row, TableStyle
from cog.reporting.tables.pivot import Averages
from cog.results import comparison, published
from cog.results.scores import SeedAverage

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


SHOTS = ("1", "2", "4", "8", "16", "32", "64", "128", "all")
DATASETS = ("in1k", "cog_l1", "cog_l2", "cog_l3", "cog_l4", "cog_l5")


@pytest.fixture(scope="module")
def paper():
    """{(data set, model, shots): (mean, std)} of Tables 5-10."""
    return {
        (average.dataset, average.model, str(average.n_shot or "all")): (average.value, average.std)
        for average in published.accuracies()
    }


@pytest.fixture
def show(capsys):
    def show_(*argv):
        capsys.readouterr()
        assert print_results.main(["--published_only", *map(str, argv)]) == 0
        return capsys.readouterr().out

    return show_


def read_json(text):
    """{(data set, model, shots): record}."""
    rows = json.loads(text)
    found = {(row["dataset"], row["model"], str(row["n_shot"] or "all")): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("view", accuracies.LAYOUTS)
def test_tables_5_to_10_as_records(paper, show, view):
    records = read_json(show("--view", view, "--format", "json"))
    assert {key: (row["mean"], row["std"]) for key, row in records.items()} == paper
    assert {row["source"] for row in records.values()} == {"paper v2"}


# --- ranks and differences of all cells


def test_rank_of_every_cell(paper, show):
    found = read_json(show("--rank", "--format", "json"))
    assert found.keys() == paper.keys()
    for (dataset, model, shots), row in found.items():
        means = [paper[dataset, other, shots][0] for other in published.MODELS]
        mine = paper[dataset, model, shots][0]
        # Independent of the definition: position in the sorted list, at the first of equals.
        assert row["rank"] == sorted(means, reverse=True).index(mine) + 1
        assert (row["n_ranked"], row["n_tied"]) == (31, means.count(mine))
        over = [found[other, model, shots]["rank"] for other in DATASETS]
        assert row["mean_rank"] == pytest.approx(sum(over) / 6, abs=1e-12)
    for row in read_json(show("--rank", "--view", "shots", "--format", "json")).values():
        over = [found[row["dataset"], row["model"], shots]["rank"] for shots in SHOTS]
        assert row["mean_rank"] == pytest.approx(sum(over) / 9, abs=1e-12)


@pytest.mark.parametrize("baseline", ["sup_resnet50", "clip_resnet50"])
def test_difference_of_every_cell(paper, show, baseline):
    found = read_json(show("--relative_to", baseline, "--format", "json"))
    assert found.keys() == paper.keys()
    for (dataset, model, shots), row in found.items():
        mean, std = paper[dataset, model, shots]
        other, other_std = paper[dataset, baseline, shots]
        # In tenths, where they are whole numbers.
        assert round(row["difference"] * 10, 6) == round(mean * 10) - round(other * 10)
        if model == baseline:
            assert row["deviation"] is None
        else:
            assert row["deviation"] ** 2 == pytest.approx(std**2 + other_std**2, abs=1e-12)


def test_drop_of_every_cell(paper, show):
    for (dataset, model, shots), row in read_json(show("--drop", "--format", "json")).items():
        own, mean = paper["in1k", model, shots][0], paper[dataset, model, shots][0]
        assert row["drop"] == pytest.approx((mean - own) / own * 100, abs=1e-9)


def test_first_version_as_records(show):
    found = read_json(show("--paper", "v1", "--format", "json"))
    assert {key: (row["mean"], row["std"]) for key, row in found.items()} == {
        (average.dataset, average.model, str(average.n_shot or "all")): (average.value, None)
        for average in published.accuracies("v1")
    }


# --- what tables are made of


def make(model="a_b", dataset="in1k", n_shot=0, mean=50.0, std=0.5, metric="top1", **changes):
    return SeedAverage(model, dataset, "logreg", metric, n_shot, mean, std, **changes)


def tabulate(cells, quantity=accuracies.accuracy, metrics=("top1",), where="datasets"):
    return accuracies.of_accuracies(
        Averages(cells), quantity, metrics=metrics, layout=where, style=TableStyle()
    )


def test_ranks_with_ties_and_gaps():
    cells = [make(f"m_{i}", mean=mean) for i, mean in enumerate((50.0, 60.0, 60.0, 40.0))]
    cells += [make("m_3", "cog_l1", mean=1.0), make("m_0", "cog_l1", mean=2.0)]
    view = tabulate(cells, accuracies.rank)
    assert {(r["model"], r["dataset"]): (r["rank"], r["mean_rank"]) for r in view.records} == {
        ("m_0", "in1k"): (3, 2.0), ("m_1", "in1k"): (1, 1.0), ("m_2", "in1k"): (1, 1.0), ("m_3", "in1k"): (4, 3.0),
        ("m_0", "cog_l1"): (1, 2.0), ("m_3", "cog_l1"): (2, 3.0),
    }  # fmt: skip
    # Means over different columns do not compare: rows with gaps come last, and say so.
    assert [label for label, _ in view.tables[0].rows] == ["m_0", "m_3", "m_1", "m_2"]
    assert view.tables[0].rows[2][1][-1] == writers.TableEntry("1.0", seeds="1/2")


def test_sources_are_rows_of_their_own():
    cells = [make(mean=50.0), make(mean=51.0, source="their lab"), make("a_c", mean=49.0, source="paper v2")]
    view = tabulate(cells)
    assert [label for label, _ in view.tables[0].rows] == ["a_b", "a_b [their lab]", "a_c [paper v2]"]
    relative = tabulate(cells, accuracies.relative_to("a_b"))
    found = {(r["model"], r["source"]): (r["difference"], r["baseline_source"]) for r in relative.records}
    assert found == {
        ("a_b", "runs"): (0.0, "runs"),
        ("a_b", "their lab"): (0.0, "their lab"),
        ("a_c", "paper v2"): (-1.0, "runs"),
    }
    assert "paper v2" in relative.tables[0].notes[0].text


def test_order_of_rows():
    rows = [Row("a_b", source) for source in ("runs", "paper v2", "a lab", "z lab")]
    assert layout.order_rows(reversed(rows)) == rows
    paper, own = Row("sup_resnet50", "paper v2"), Row("a_x10", "runs")
    assert layout.order_rows([own, paper]) == [paper, own], "the paper's models first where it is shown"
    assert layout.order_rows([own, Row("a_x2", "runs")])[0].model == "a_x2"
    wanted = ["a_b", "sup_resnet50", "a_x10"]
    assert layout.order_rows([paper], models=wanted[:2]) == [Row("a_b", "paper v2"), paper]
    assert layout.order_rows([own, paper], models=wanted) == [Row("a_b", "runs"), paper, own]


def test_differences_to_a_model_have_intervals_and_verdicts_over_the_common_seeds():
    correct = np.random.default_rng(0).binomial(50, 0.7, (3, 3, 100))
    cells = [
        counted_cell("a_b", correct[0]),
        counted_cell("a_c", correct[1]),
        counted_cell("a_d", correct[2] - 9),
    ]
    cells.append(counted_cell("a_e", correct[0][:2], seeds=(cells[0].seeds[2], 999)))
    view = tabulate(cells, accuracies.relative_to("a_c"))
    records = {row["model"]: row for row in view.records}
    found = comparison.judge(comparison.difference(cell, cells[1]) for cell in (cells[0], cells[2], cells[3]))
    for item in found:
        row = records[item.average.model]
        assert (row["difference"], row["low"], row["high"]) == (item.mean, item.low, item.high)
        assert (row["p"], row["p_holm"], row["common_seeds"]) == (item.p, item.p_holm, item.seeds)
    readings = {model: row.get("reading") for model, row in records.items()}
    assert readings == {
        "a_b": "cannot be told apart", "a_c": None, "a_d": "lower", "a_e": "not told: one common seed",
    }  # fmt: skip
    entries = {label: entry for label, (entry,) in view.tables[0].rows}
    assert entries["a_d"].interval.endswith("] *") and not entries["a_d"].deviation
    assert entries["a_b"].interval.endswith("]") and entries["a_c"] == writers.TableEntry("0.0")
    assert "cannot be told apart" in view.tables[0].notes[-1].text


def test_top5_where_only_some_have_it():
    cells = [make("a_b"), make("a_b", metric="top5", mean=90.0, std=0.1), make("a_c")]
    view = tabulate(cells, metrics=("top5",))
    assert [r["model"] for r in view.records] == ["a_b"]
    assert view.tables[0].rows[1] == ("a_c", (None,))


def test_numbers_are_never_minus_zero():
    assert layout.format_number(-0.04, 1, signed=True) == "0.0"
    assert layout.format_number(0.04, 1, signed=True) == "0.0"
    assert layout.format_number(-0.04, 2, signed=True) == "-0.04"
    assert layout.format_number(0.06, 1, signed=True) == "+0.1"


def test_missing_seeds_are_named_together():
    def cell(model, dataset, missing):
        return make(model, dataset, seeds=(22,), missing_seeds=missing, epochs=(1,))

    cells = [cell("a_b", d, (37, 45)) for d in ("in1k", "cog_l1", "cog_l2")]
    cells += [cell("a_c", "in1k", (37,)), cell("a_c", "cog_l1", (45,)), cell("a_c", "cog_l2", (37,))]
    (note,) = tabulate(cells).tables[0].notes
    first = ("a_b, every column", "37, 45")
    assert note.items == (first, ("a_c, in1k, cog_l2", "37"), ("a_c, cog_l1", "45"))


def test_wide_names_do_not_break_the_drawing():
    table = writers.Table("t" * 300, ("c" * 150, "d"), (("r" * 120, (writers.TableEntry("1.0"), None)),))
    out = writers.draw([table], "text", width=80)
    assert "c" * 150 in out and out.count("r…r") == 2
    assert writers.draw([writers.Table("nothing", (), ())], "latex") == "% nothing\n"


@pytest.mark.parametrize("form", writers.DRAWN)
def test_notes_stand_below_a_title_without_a_table(form):
    assert "not compared" in writers.draw(
        [writers.Table("nothing", (), (), (writers.Note("not compared"),))], form
    )


def test_csv_has_all_digits():
    text = writers.flat([{"a": "x,y", "b": -0.1 / 3, "c": (-1, 2), "d": True}], ("a", "b", "c", "d"), "csv")
    assert text == f'a,b,c,d\n"x,y",{-0.1 / 3!r},-1 2,yes\n'


def test_one_module_writes_csv_files(repository):
    writing = [
        source.name
        for source in (repository / "cog").rglob("*.py")
        if re.search(r"csv\.(Dict)?[wW]riter", source.read_text(encoding="utf-8"))
        and source.parent.name != "models"  # everything there is declared in the source
    ]
    assert writing == ["csv_text.py"]


def test_text_from_outside_is_text_in_markdown_and_latex():
    evil = "<img src=x onerror=1>[a](javascript:b) ![c](https://d) [g][h] [i]: www.e.f & \\input{g}|`"
    table = writers.Table(evil, (evil,), ((evil, (writers.TableEntry(evil),)),), (writers.Note(evil),
                         writers.Note(evil, ((evil, evil),))), words=frozenset({0}))  # fmt: skip
    for one in (table, writers.Table(evil, (), ())):
        text = writers.draw([one], "markdown")
        assert "<" not in text and not re.search(r"\][(\[:]", text)
        assert "://" not in text and "www." not in text
    lines = [line for line in writers.draw([table], "latex").splitlines() if not line.startswith("%")]
    assert not any(r"\input" in line for line in lines) and any(r"\&" in line for line in lines)
    odd = writers.Table("", ("50%_&$#{x}~^\\|\n",), (("a_b", (None,)),))
    escaped = (
        r"50\%\_\&\$\#\{x\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textbar{}\textbackslash{}n"
    )
    assert escaped in writers.draw([odd], "latex")
    # After a rule or the end of a row, [ and * would be taken for an argument.
    starts = writers.Table("", ("x",), (("[X] net", (None,)), ("*net", (None,))))
    rows = writers.draw([starts], "latex").splitlines()[5:7]
    assert [row[:4] for row in rows] == ["{}[X", "{}*n"]
    assert r"| 50%_&amp;$#{x}~^\\\|\\n |" in writers.draw([odd], "markdown")
