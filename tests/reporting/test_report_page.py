"""The report as a file: self-contained, escaped, well-formed, and never written over anything by accident."""

from __future__ import annotations

import base64
import collections
import dataclasses
import functools
import hashlib
import html.parser
import json
import os
import re
from array import array

import pytest
from report_runs import make_cell, make_found, make_run
from result_folders import make_record, make_seed_folder

from cog import constants
from cog.commands import print_results
from cog.reporting import figures
from cog.reporting import html as report
from cog.reporting.html import facts, pictures
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
        self.headings: list[int] = []
        self.text = ""
        self.raw = {"script": "", "style": ""}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]] += data
        else:
            self.text += data

    def values(self, attribute):
        return [value for _, name, value in self.attributes if name == attribute]


@pytest.fixture
def no_figures(monkeypatch):
    """Figures have tests of their own, and take a second."""
    monkeypatch.setattr(pictures, "draw", lambda *args, **kwargs: ([], ""))


def write_page(path, **arguments):
    """Write a report without figures and parse it."""
    known = {"published": PAPER, "created": "2026-11-19T10:00:00+00:00", "overwrite": True}
    known |= {name: arguments.pop(name) for name in ("published", "root") if name in arguments}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "draw", lambda *args, **kwargs: ([], ""))
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


def test_page_is_self_contained_and_admits_only_itself(of_study):
    text, page = of_study
    for attribute in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
        for value in page.values(attribute):
            assert value.startswith("#") or value == "data:,", value
    assert not re.search(r"url\((?!#)|@import|https?://", text.replace("http://www.w3.org/2000/svg", ""))
    [policy] = [v for v in page.values("content") if v and v.startswith("default-src")]
    assert policy.startswith("default-src 'none';")
    for kind, directive in (("script", "script-src"), ("style", "style-src-elem")):
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert page.tags["script"] == page.tags["style"] == 1
    assert ("link", "href", "data:,") in page.attributes, (
        "else browsers ask the server of the page for an icon"
    )
    assert not any(name.startswith("on") for _, name, _ in page.attributes)


def test_page_has_the_structure_that_assistive_technology_needs(write):
    _, page = write(runs=study(shots=(0, 1, 8)) + study("b_net"))
    assert ("html", "lang", "en") in page.attributes
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for attribute in ("href", "aria-labelledby", "aria-describedby"):
        for value in page.values(attribute):
            assert value == "data:," or value.lstrip("#") in ids, value
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in zip(page.headings, page.headings[1:], strict=False))
    assert page.tags["main"] == page.tags["header"] == page.tags["footer"] == 1
    assert page.tags["caption"] == page.tags["table"]
    assert set(page.values("scope")) == {"row", "col"}


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

    _, expected = page_of("h" * len(HOSTILE))  # as long: long names are allowed to wrap
    text, page = page_of(HOSTILE)
    assert "<script>alert" not in text and "<img" not in text and "onerror=" not in page.values("src")
    assert page.tags == expected.tags
    assert [(t, n) for t, n, _ in page.attributes] == [(t, n) for t, n, _ in expected.attributes]
    assert "<script>alert(1)</script>\"'&><img" in page.text  # shown as it is
    assert "\\u202e\\x00\\n\\udc80" in page.text  # what would not show is spelled out


def test_features_and_searches_from_hostile_files(write, tmp_path):
    base = tmp_path / "my" / "net" / "in1k"
    logs = {"test/top1": [1.0, HOSTILE, float("nan"), 1e9]}
    run_folder = make_seed_folder(base / "eval_logreg" / "seed-22", logs=logs)
    trial = {"number": HOSTILE, "lr": 1.0, "wd": 1e-5, "val_top1": 50.0, "diverged": HOSTILE}
    (run_folder / "results.json").write_text(json.dumps({"trials": [trial]}))
    texts = "checkpoint_sha256 loader profile variant precision images_root device finished"
    for split in constants.SPLITS:
        (base / f"features_{split}").mkdir()
        entries = dict.fromkeys(texts.split(), HOSTILE)
        entries |= {"versions": {HOSTILE: HOSTILE}, "preprocessing": {HOSTILE: HOSTILE}, "n_images": 10**30}
        (base / f"features_{split}" / "features.json").write_text(json.dumps(entries))
    text, page = write(runs=[make_run(path=run_folder)])
    assert "<script>alert" not in text and "<img" not in text
    assert page.tags["svg"] >= 2  # strip and search


def test_other_data_are_warned_of_once_for_all_figures(monkeypatch, caplog):
    monkeypatch.setattr(figures, "svg", lambda chart, *, prefix: "")
    runs = study(shots=(0,)) + study("b_net", shots=(0,), n_classes=24)
    drawn, _ = pictures.draw(facts.collect(make_found(runs), published=PAPER))
    assert [picture.name for picture in drawn] == ["levels", "fig3", "fig4", "drop"]
    assert [message for message in caplog.messages if "24 classes" in message] == caplog.messages[:1]


@pytest.mark.slow
def test_figures_are_inside_and_safe(tmp_path):
    cells = run_records.average_runs(study(model=f"a_{HOSTILE}"), constants.SEEDS)
    cells += [
        make_cell(f"b_{HOSTILE}", dataset, source=HOSTILE) for dataset in ("in1k", f"d{HOSTILE}", "cog_l1")
    ]
    text = report.write(tmp_path / "r.html", make_found(cells=cells), published=PAPER).read_text()
    page = Page(text)
    assert page.tags["figure"] == 4
    assert "<script>alert" not in text and "<img" not in text
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert os.path.getsize(tmp_path / "r.html") < 1_500_000


def test_published_results_alone(write):
    _, page = write()
    assert "no results of your own" in page.text
    assert page.text.count("DeiT-S-distilled") >= 15


def test_the_same_results_give_the_same_page(write, of_study):
    assert write(runs=study())[0] == of_study[0]


@pytest.mark.slow
def test_page_of_31_published_models_and_one_own_is_small(write, tmp_path):
    runs = []
    for run in study(shots=(0, *constants.SHOTS)):
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        trials = [
            {"number": n, "lr": 1.1**n, "wd": 1e-5 / 1.5**n, "val_top1": n + 40.0, "diverged": False}
            for n in range(30)
        ]
        (folder / "results.json").write_text(json.dumps({"trials": trials}))
        runs.append(make_run(run.model, run.dataset, run.n_shot, run.seed, run.top1, path=folder))
    text, page = write(runs=runs)
    assert len(runs) == 270
    assert page.tags["figure"] == 54  # searches
    assert len(text) < 1_500_000


# ---- from the command line --------------------------------------------------------------------------
def test_command_line(tmp_path, no_figures, capsys):
    root, target = tmp_path / "models", tmp_path / "out.html"
    for dataset in ("in1k", "cog_l1"):
        for seed in (22, 37):
            folder = root / "my/net" / dataset / f"eval_logreg/seed-{seed}"
            make_record(make_seed_folder(folder, top1=70.0 + seed / 100), seed=seed)
    (root / "my/net/cog_l2/eval_logreg/seed-22").mkdir(parents=True)
    arguments = ["--models_root_dir", str(root), "--report", str(target)]
    assert print_results.main(arguments) == 0
    page = Page(target.read_text())
    assert "my_net" in page.text and "1 folder not counted" in page.text and str(root) in page.text
    assert capsys.readouterr().out == "", "the report replaces the table"
    target.write_text("old")
    assert print_results.main([*arguments, "--overwrite"]) == 0
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert sorted(os.listdir(tmp_path)) == ["models", "out.html"]


def test_tables_show_intervals_where_answers_per_concept_are_known(write, of_study):
    runs = [dataclasses.replace(run, concepts=ConceptCounts(array("B", [9, 7, 8]), 10)) for run in study()]
    known = uncertainty.accuracy([run.concepts for run in runs[:5]])
    text, _ = write(runs=runs)
    assert f"[{known.low:.1f}, {known.high:.1f}]</span>" in text
    text, _ = of_study
    assert "In brackets" not in text and "</b> <i>" in text
