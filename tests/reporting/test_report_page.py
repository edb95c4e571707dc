"""The report as a file: self-contained, escaped, well-formed, with the tables of the views in it."""

from __future__ import annotations

import base64
import collections
import functools
import html.parser
import json
import os
import re
from array import array

import pytest
from experiment_records import write_record, write_runs
from report_runs import make_cell, make_found, make_run
from result_folders import make_logs, make_record, make_seed_folder

from cog import constants
from cog.commands import print_results
from cog.errors import CogError
from cog.reporting import html as report
from cog.reporting.html import page as report_page
from cog.results import published, run_records, uncertainty
from cog.results.concept_counts import ConceptCounts
from cog.results.run_records import Problem

PAPER = published.accuracies()
HOSTILE = "<script>alert(1)</script>\"'&><img src=x onerror=alert(2)></script><!--\u202e\x00\n\udc80"
VOID = {"meta", "link", "br", "wbr", "input", "img"}


class Page(html.parser.HTMLParser):
    """Collects what tests ask for, and checks that tags are balanced."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: collections.Counter[str] = collections.Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def values(self, attribute):
        return [value for _, name, value in self.attributes if name == attribute]


@pytest.fixture
def no_figures(monkeypatch):
    """Figures have tests of their own, and take a second."""
    monkeypatch.setattr(report_page, "_pictures", lambda shown: (None, []))


def write_page(path, **arguments):
    """Write a report without figures and parse it."""
    known = {"published": PAPER, "created": "2026-11-19T10:00:00+00:00"}
    known |= {name: arguments.pop(name) for name in ("published", "root", "baseline") if name in arguments}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "_pictures", lambda shown: (None, []))
        report.write(path, make_found(**arguments), **known)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture
def write(tmp_path):
    return functools.partial(write_page, tmp_path / "report.html")


@pytest.fixture(scope="module")
def of_study(tmp_path_factory):
    """The page of :func:`study`: text and parsed."""
    return write_page(tmp_path_factory.mktemp("page") / "report.html", runs=study())


def study(model="my_net", shots=(0, 8), shift=0.5, **changes):
    """Runs like ResNet50's, a little better."""
    return [
        make_run(model, c.dataset, c.n_shot, seed, c.value + shift + seed / 1000, **changes)
        for c in PAPER
        if c.model == "sup_resnet50" and c.n_shot in shots
        for seed in constants.SEEDS
    ]


def rows_of(text, title):
    """The rows of the table whose caption begins with ``title``: words of every cell."""
    table = next(part for part in text.split("<table")[1:] if f"<caption>{title}" in part)
    body = table.split("<tbody>")[1].split("</tbody>")[0]
    plain = lambda cell: " ".join(re.sub(r"<[^>]*>", " ", cell.replace("<wbr>", "")).split())  # noqa: E731
    return [list(map(plain, re.findall(r"<t[hd].*?</t[hd]>", row, re.S))) for row in body.split("<tr")[1:]]


def test_page_is_self_contained(of_study):
    text, page = of_study
    for attribute in ("src", "href", "action", "data", "poster", "srcset"):
        for value in page.values(attribute):
            assert value.startswith(("#", "data:")), value
    assert not re.search(r"url\(|@import|https?://", text)
    assert page.tags["script"] == page.tags["style"] == page.tags["main"] == page.tags["h1"] == 1
    assert page.tags["caption"] == page.tags["table"]
    ids = page.values("id")
    assert len(ids) == len(set(ids)) and all(
        link.lstrip("#") in [*ids, "data:,"] for link in page.values("href")
    )


def test_tables_are_those_of_the_views(of_study):
    text, page = of_study
    own = {(c.dataset, c.n_shot): c for c in PAPER if c.model == "sup_resnet50"}
    ranks = [
        1
        + sum(
            c.value > round(own[d, 0].value + 0.5 + 0.0548, 1)
            for c in PAPER
            if (c.dataset, c.n_shot) == (d, 0)
        )
        for d in constants.DATASETS
    ]
    (row,) = rows_of(text, "Rank by top-1 accuracy among the 32 models here, all images")
    assert row[0] == "my_net †" and list(map(int, row[1:-1])) == ranks
    first, *others = rows_of(text, "top-1 accuracy (%), all training images")
    assert first[0] == "my_net †" and len(others) == 31
    assert first[1] == f"{own['in1k', 0].value + 0.5548:.1f} ± 0.0"
    first, *_ = rows_of(text, "top-1 accuracy, difference to sup_resnet50")
    assert first[1].startswith("+0.6")
    assert rows_of(text, "top-1 accuracy, change since the model")
    assert len(rows_of(text, "top-1 accuracy (%), in1k")) == 32  # shots side by side
    assert "mean over L1 to L5" not in page.text and "my_net † over L1 to L5" in page.text


def test_intervals_where_answers_per_concept_are_known(write):
    runs = [make_run(seed=s, top1=80.0, concepts=ConceptCounts(array("B", [9, 7, 8]), 10)) for s in (22, 37)]
    known = uncertainty.accuracy([run.concepts for run in runs])
    text, _ = write(runs=runs)
    assert f"[{known.low:.1f}, {known.high:.1f}]" in text


def test_any_baseline_and_none(write):
    text, _ = write(runs=[*study(), *study("b_net", shift=-1.0)], baseline="b_net")
    assert rows_of(text, "top-1 accuracy, difference to b_net")[1][1].startswith("+1.5")
    with pytest.raises(CogError, match="no result of c_net"):
        write(runs=study(), baseline="c_net")


def test_missing_seeds_come_with_the_command(write):
    _, page = write(runs=[run for run in study() if (run.dataset, run.seed) != ("cog_l2", 45)])
    assert "Seeds are missing in 2 results" in page.text
    assert "model_name=my_net dataset=cog_l2 seeds=45" in page.text


def test_results_on_other_data_are_compared_with_each_other_only(write):
    runs = [run for model, top1 in (("a_net", 80.0), ("b_net", 40.0))
            for run in (make_run(model, "in1k", seed=s, top1=top1, n_classes=24) for s in (22, 37))]  # fmt: skip
    text, page = write(runs=runs)
    assert "Results of 2 models" in page.text and "24 classes where the benchmark has 1,000" in page.text
    assert [row[:2] for row in rows_of(text, "Rank by top-1")] == [["a_net", "1"], ["b_net", "2"]]
    assert "DeiT" not in page.text


def test_a_trial_says_so_in_title_and_banner(write):
    text, page = write(runs=study(shots=(0,)), root="/models/limit-3")
    assert "<title>TRIAL, NOT RESULTS" in text and page.text.count("TRIAL, NOT RESULTS") == 3


def test_published_results_alone(write):
    text, page = write()
    assert "The published results" in page.text
    assert len(rows_of(text, "top-1 accuracy (%), all training images")) == 31


def test_the_same_results_give_the_same_page(write, of_study):
    assert write(runs=study())[0] == of_study[0]


# ---- hostile names and records ------------------------------------------------------------------------
def test_everything_from_folders_is_escaped(write, tmp_path):
    """Names and records that try to be markup are shown as text, and change nothing of the page's structure."""

    def page_of(evil):
        runs = [
            make_run(
                f"a_{evil}", dataset, 0, seed, path=tmp_path / "none", device=evil, finished=evil,
                versions={evil: evil}, settings={"n_trials": evil, evil: evil}, diverged=True, lr=0.1,
                train_features={"checkpoint_sha256": evil}, test_features={"checkpoint_sha256": evil + "x"},
            )
            for dataset in ("in1k", f"d{evil}")
            for seed in (22, 37)
        ]  # fmt: skip
        cells = [*run_records.average_runs(runs, constants.SEEDS), make_cell(f"b_{evil}", source=evil)]
        problems = [Problem(tmp_path / "x", evil)]
        return write(runs=runs, cells=cells, problems=problems, root=f"/root/{evil}")

    _, expected = page_of("h" * len(HOSTILE))
    text, page = page_of(HOSTILE)
    assert "<script>alert" not in text and "<img" not in text
    assert page.tags == expected.tags
    assert [(t, n) for t, n, _ in page.attributes] == [(t, n) for t, n, _ in expected.attributes]
    assert "<script>alert(1)</script>\"'&><img" in page.text  # shown as it is
    assert "\\u202e\\x00\\n\\udc80" in page.text  # what would not show is spelled out


def test_features_searches_and_analyses_from_hostile_files(tmp_path, no_figures):
    root = tmp_path / "models"
    base = root / "my" / "net" / "in1k"
    for split in constants.SPLITS:
        (base / f"features_{split}").mkdir(parents=True)
        entries = dict.fromkeys(
            ("checkpoint_sha256", "precision", "device", "finished", "label"), HOSTILE[:50]
        )
        entries |= {"versions": {HOSTILE[:50]: "1"}, "preprocessing": {HOSTILE[:50]: HOSTILE[:50]}}
        (base / f"features_{split}" / "features.json").write_text(json.dumps(entries))
    trial = {"number": HOSTILE[:50], "lr": 1.0, "wd": 1e-5, "val_top1": 50.0, "diverged": HOSTILE[:50]}
    folder = make_seed_folder(base / "eval_logreg" / "seed-22", logs=make_logs(70.0))
    make_record(folder, seed=22, record={"trials": [trial]})
    odd = {"identity": {HOSTILE[:50]: HOSTILE[:50]}, "device": HOSTILE[:50], "details": {"x": [HOSTILE[:50]]}}
    for name in ("kmeans", "cross_" + "a" * 80):
        write_record(root, "a_b", "in1k", name, {"value": 1e308, "ami": 0.5}, **odd)
    target = tmp_path / "report.html"
    assert print_results.main(["--models_root_dir", str(root), "--report", str(target), "--overwrite"]) == 0
    page = Page(target.read_text(encoding="utf-8"))
    assert page.tags["script"] == 1
    assert all(value.startswith("data:image/svg+xml;base64,") for value in page.values("src"))
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "alert(1)" in page.text


@pytest.mark.slow
def test_figures_are_pictures_inside(tmp_path):
    cells = run_records.average_runs(study(model=f"a_{HOSTILE}"), constants.SEEDS)
    cells += [make_cell(f"b_{HOSTILE}", dataset, source=HOSTILE) for dataset in ("in1k", "cog_l1")]
    text = report.write(tmp_path / "r.html", make_found(cells=cells), published=PAPER).read_text()
    page = Page(text)
    assert page.tags["figure"] == page.tags["img"] == 4
    for source in page.values("src"):
        drawn = base64.b64decode(source.removeprefix("data:image/svg+xml;base64,"))
        assert drawn.lstrip().startswith(b"<?xml") and b"<script" not in drawn
    assert "<script>alert" not in text and os.path.getsize(tmp_path / "r.html") < 2_000_000


# ---- from the command line ----------------------------------------------------------------------------
def test_command_line(tmp_path, no_figures, capsys):
    root, target = tmp_path / "models", tmp_path / "out.html"
    for dataset in ("in1k", "cog_l1"):
        for seed in (22, 37):
            folder = root / "my/net" / dataset / f"eval_logreg/seed-{seed}"
            make_record(make_seed_folder(folder, top1=70.0 + seed / 100), seed=seed)
    (root / "my/net/cog_l2/eval_logreg/seed-22").mkdir(parents=True)
    arguments = ["--models_root_dir", str(root), "--report", str(target), "--overwrite"]
    assert print_results.main(arguments) == 0
    page = Page(target.read_text())
    assert "my_net" in page.text and "1 folder not counted" in page.text and str(root) in page.text
    assert capsys.readouterr().out == "", "the report replaces the table"
    target.write_text("old")
    assert print_results.main(arguments) == 0
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert sorted(os.listdir(tmp_path)) == ["models", "out.html"]


def test_other_experiments_have_a_section(tmp_path, no_figures):
    root, target = tmp_path / "models", tmp_path / "report.html"
    for dataset in ("in1k", "cog_l5"):
        for name, top1 in (("logreg", 60.0), ("logreg_pca32", 45.0), ("mlp", 62.0)):
            write_runs(root, "a_b", dataset, name, dict.fromkeys(constants.SEEDS, top1))
        write_record(root, "a_b", dataset, "kmeans", {"ami": 0.5}, seeds=[0])
    assert print_results.main(["--models_root_dir", str(root), "--report", str(target), "--overwrite"]) == 0
    text = target.read_text(encoding="utf-8")
    part = re.search(r'<section id="experiments".*?</section>', text, re.DOTALL)[0]
    assert ">0.500<" in part and ">62.0<" in part and "+3.3" in part
    only = tmp_path / "analyses"
    write_record(only, "a_b", "in1k", "kmeans", {"ami": 0.5})
    print_results.main(["--models_root_dir", str(only), "--report", str(target), "--overwrite"])
    text = target.read_text(encoding="utf-8")
    assert "<h1>Results of other experiments</h1>" in text and "1 analyses" in text and "DeiT" not in text
