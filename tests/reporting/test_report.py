"""The HTML page: its facts, what of files reaches it, and what it replaces."""

import html
import json
import re

import pytest
from benchmark_runs import write_run, write_study

from cog import constants
from cog.errors import CogError
from cog.reporting import report
from cog.reporting.figures import draw as figures
from cog.results.read import read

HOSTILE = "</script><script>alert(1)</script>\"'&><img src=x onerror=alert(2)>\u202e\0\n\udc80"


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Leave out pictures, which take most of the time."""
    monkeypatch.setattr(figures, "draw", lambda *arguments: iter(()))
    monkeypatch.setattr(figures, "searches", lambda *arguments: iter(()))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"), {"my_good": 3.0, "my_bad": -3.0}, shots=(0,))


def rows_of(text):
    """Return the cells of the first table by label of the row."""
    rows = re.findall(r"<tr.*?</tr>", re.search(r"<table.*?</table>", text, re.DOTALL)[0], re.DOTALL)
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    plain = [[" ".join(re.sub(r"<[^>]+>", "", cell).split()) for cell in line] for line in lines]
    return {line[0]: line[1:] for line in plain}


def test_first_table_says_where_models_stand_and_how_sure_that_is(study, tmp_path):
    text = report.write(tmp_path / "r.html", read(study, published="v2"), root=study).read_text()
    rows = rows_of(text)
    assert rows["model"] == ["mean L1 to L5", "rank", "IN-1K to L5", "IN-1K", "L1", "L2", "L3", "L4", "L5"]
    assert list(rows)[1:3] == ["my_good †", "my_bad †"], "own models come first, the best before"
    assert len(rows) == 1 + 2 + 31
    mean, rank, change, *cells = rows["my_good †"]
    assert 60 < float(mean) < 65 and 1 < int(rank) < 15 and change.startswith("-")
    assert all(re.fullmatch(r"\d\d\.\d ± \d\.\d \(2/5\) \[\d\d\.\d, \d\d\.\d\]", cell) for cell in cells)
    assert "<title>How well do 2 models generalize?</title>" in text
    assert "Seeds are missing" in text and "seeds=" in text, "with the command that repairs it"
    assert re.sub(r"<[^>]+>", "", text).count(cells[1]) == 1, "each accuracy stands once"


def test_a_model_with_one_level_on_other_data_has_no_rank(tmp_path):
    write_study(tmp_path, {"my_net": 0.0}, shots=(0,), datasets=constants.DATASETS[:5])
    write_run(tmp_path, "my_net", "cog_l5", 22, 0.0, rows={"test": 49_000}, identity={"n_trials": 3})
    rows = rows_of(report.write(tmp_path / "r.html", read(tmp_path, published="v2")).read_text())
    assert rows["my_net † ‡"][1:3] == ["-", "-"] and rows["deit_base_distilled_384 [paper v2]"][1] == "1"
    some = read(tmp_path, published="v2", datasets=["in1k", "cog_l1", "cog_l3"])
    assert rows_of(report.write(tmp_path / "r.html", some).read_text())["model"][0] == "mean L1, L3"
    few = read(write_study(tmp_path / "few", {"my_net": 0.0}, shots=(8,)), published="v2")
    assert list(rows_of(report.write(tmp_path / "r.html", few).read_text()))[1] == "my_net †"


def test_titles_and_banner_say_what_the_page_shows(study, tmp_path):
    def page(results, **more):
        return report.write(tmp_path / "r.html", results, **more).read_text()

    for dataset in constants.DATASETS[:2]:
        rows = {"final_train": 240, "test": 50_000}
        write_run(tmp_path / "models", "my_small", dataset, 22, 5.0, rows=rows)
    text = page(read(tmp_path / "models", published="v2"))
    assert "<title>Results of my_small</title>" in text and len(rows_of(text)) == 2
    assert "240 training images" in text and "Not the benchmark" in text
    (tmp_path / "limit-3").symlink_to(study)
    text = page(read(study), root=tmp_path / "limit-3")
    assert "<title>TRIAL, NOT RESULTS: " in text and "at most 3 classes" in text
    text = page(read(published="v2"))
    assert "<title>The published results</title>" in text and len(rows_of(text)) == 32
    imported = read(study, published="v2")
    imported.scores = imported.scores.replace({"source": {"runs": "lab"}})
    assert list(rows_of(page(imported)))[1:3] == ["my_good † [lab]", "my_bad † [lab]"], "not the paper's"
    (tmp_path / "empty").mkdir()
    text = page(read(tmp_path / "empty"), root=tmp_path / "empty")
    assert "<title>No results</title>" in text and "<table" not in text
    with pytest.raises(CogError, match="no result of no_net"):
        page(read(study), baseline="no_net")


def test_page_tells_what_another_page_would_lose(study, tmp_path):
    wide, narrow = read(study), read(study, datasets=["in1k"], models=["my_good"])
    target = report.write(tmp_path / "r.html", wide)
    assert report.not_shown(target, wide) == [] and report.not_shown(tmp_path / "none.html", wide) == []
    assert "my_bad on cog_l5" in report.not_shown(target, narrow)


def test_texts_of_files_are_text(tmp_path):
    def page_of(words):
        root = tmp_path / f"root{len(words)}"
        more = {"device": words, "precision": words, "versions": {"torch": words}}
        base = write_run(root, "my_net", "in1k", 22, 0.0, **more).parent.parent
        for split in constants.SPLITS:
            (base / f"features_{split}").mkdir()
            record = dict.fromkeys(("checkpoint_sha256", "precision", "pretraining", "device"), words)
            (base / f"features_{split}/features.json").write_text(json.dumps(record))
        broken = root / "my/net/cog_l2/eval_logreg/seed-22"
        broken.mkdir(parents=True)
        (broken / "results.json").write_text(json.dumps({"status": words}))
        path = tmp_path / f"{len(words)}.html"
        target = report.write(path, read(root), root=f"/root/{words}", created=words)
        return target.read_text()

    def tags(page):
        return re.findall(r"<[^<>]*>", re.sub(r'"[^"]*"', "", page))

    text = page_of(HOSTILE)
    assert "<script>alert" not in text and "<img" not in text and tags(text) == tags(page_of("harmless"))
    assert "<script>alert(1)</script>\"'&><img" in html.unescape(text)  # shown as it is
