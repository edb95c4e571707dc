"""Files of --export and --import: exact round trips, strict reading, honest labels."""

from __future__ import annotations

import copy
import json
import os
from array import array

import pandas as pd
import pytest
from frames import rows, stated
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import n_examples

from cog import constants
from cog.errors import CogError
from cog.results import frame, published, share
from cog.results.concept_counts import ConceptCounts
from cog.results.frame import SCORES, scores_of


def write(path, made, **arguments):
    share.write(path, scores_of(made), **arguments)
    return path


def same(found, made, source="lab"):
    """Assert that a frame has rows, where those of runs have the source of the file."""
    expected = scores_of(made).assign(folder=None)
    expected["source"] = expected["source"].replace("runs", source)
    for counts, other in zip(found["correct"], expected["correct"], strict=True):
        assert (counts is None) == (other is None)
        if counts is not None:
            assert (list(counts.correct), counts.images) == (list(other.correct), other.images)
    pd.testing.assert_frame_equal(found.drop(columns="correct"), expected.drop(columns="correct"))


PERCENT = st.floats(0, 100)
NAMES = st.text("abz09.+-", max_size=10).map("n".__add__)


@st.composite
def any_row(draw):
    seed = draw(st.none() | st.integers(0, 2**63 - 1))
    return {
        "source": draw(st.sampled_from(["runs", "their lab", "Größe £", "x" * 80])),
        "model": f"{draw(NAMES)}_{draw(NAMES)}",
        "dataset": draw(st.sampled_from(constants.DATASETS) | NAMES),
        "evaluation": "logreg",
        "n_shot": draw(st.integers(0, 200)),
        "metric": draw(st.sampled_from(["top1", "top5"])),
        "seed": seed,
        "value": draw(PERCENT),
        "std": None if seed is not None else draw(st.none() | st.floats(0, 50)),
        "images": draw(st.none() | st.integers(0, 10**9)),
        "data": draw(st.sampled_from(["benchmark", "unknown", "24 classes, 1,200 test images"])),
        "classes": draw(st.none() | st.just("e" * 64)),
        "protocol": draw(st.sampled_from(["", "n_epochs 3"])),
        "features": draw(st.none() | st.just("0123456789ab")),
        "pretraining": draw(st.sampled_from(["IN-1K", "web", "unknown"])),
    }


def place(row):
    return tuple(row[name] for name in frame.PLACE)


@settings(deadline=None, max_examples=n_examples(8, 100))
@given(st.lists(any_row(), min_size=1, max_size=8, unique_by=place))
def test_round_trip_is_exact(tmp_path_factory, made):
    path = write(tmp_path_factory.mktemp("x") / "f.json", made, label="ours")
    same(share.load(path), made, "ours")
    again = tmp_path_factory.mktemp("y") / "g.json"
    share.write(again, share.load(path), label="other")
    same(share.load(again), made, "ours")


def test_published_numbers_survive_and_stay_published(tmp_path):
    for version, source in published.SOURCES.items():
        found = share.load(write(tmp_path / f"{version}.json", published.rows(version)))
        same(found, published.rows(version))
        assert set(found["source"]) == {source}


@pytest.mark.parametrize("images", [10, array("B", [10, 9, 200, 11])])
def test_documented_form(tmp_path, images):
    counts = ConceptCounts(array("B", [9, 8, 0, 10]), images, "5" * 64)
    [row] = rows("a_b", [100 * 27 / counts.n_images], seeds=(22,), folder="/secret/folder")
    row |= {"correct": counts, "classes": "9" * 64, "protocol": "n_epochs 3", "features": "4b7e"}
    row |= {"data": "4 classes", "images": 40}
    path = write(tmp_path / "f.json", [row, *stated("a_b", 1.0, 0.5, source="paper")], label="lab")
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "label", "toolkit", "written", "rows"]
    assert (content["format"], content["version"], content["label"]) == ("imagenet-cog results", 1, "lab")
    assert content["rows"][0].keys() == {*SCORES} - {"folder", "std", "source"}, "no folder of this machine"
    assert content["rows"][0]["correct"].keys() == {*share._CORRECT}
    for name in (*share._WRITTEN, *share._CORRECT):
        assert f'"{name}"' in share.__doc__
    assert len(path.read_text().splitlines()) == 11, "one line for each row, so that differences can be read"
    assert share.load(path)["correct"][0].image_list == "5" * 64


def test_the_label_is_the_files_name_unless_given(tmp_path):
    made = rows("a_b", [70.0])
    assert set(share.load(write(tmp_path / "lab one.json", made))["source"]) == {"lab one"}
    assert set(share.load(write(tmp_path / "x.json", made, label="lab two"))["source"]) == {"lab two"}
    for name in ("runs", "paper v2", " "):
        assert set(share.load(write(tmp_path / f"{name}.json", made))["source"]) == {"imported"}
    odd = os.fsdecode(b"caf\xe9\n.json")
    assert set(share.load(write(tmp_path / odd, made))["source"]) == {"caf??"}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("x") / "f.json"
    write(path, [*rows("a_b", correct=[[9, 8, 7]] * 2), *stated("a_c", 50.0, 0.5)], label="lab")
    return json.loads(path.read_text())


ROW, MEAN, CORRECT = ("rows", 1), ("rows", 2), ("rows", 1, "correct")
BAD = [
    (("format",), "lm results", "not a file of --export"),
    (("version",), 7, "version is 7, expected 1"),
    (("entries",), [], 'unknown entry "entries"'),
    (("label",), None, None),
    (("rows",), [], "rows is [], expected a list with anything in it"),
    (("label",), 3, "label is 3"),
    (("label",), "a\nb", "label is"),
    (("label",), "runs", "reserved"),
    (ROW, 3, "rows[1]: found 3, expected an object"),
    ((*ROW, "top3"), 1.0, 'rows[1]: unknown entry "top3"'),
    ((*ROW, "folder"), "/x", 'rows[1]: unknown entry "folder"'),
    ((*ROW, "model"), ..., "rows[1]: no entry 'model'"),
    ((*ROW, "model"), "net", 'rows[1]: model is "net"'),
    ((*ROW, "model"), "../../x_y", "rows[1]: model"),
    ((*ROW, "model"), "a_" + "b" * 300, "rows[1]: model"),
    ((*ROW, "dataset"), "a/b", "rows[1]: dataset"),
    ((*ROW, "dataset"), None, "rows[1]: dataset is null"),
    ((*ROW, "n_shot"), -1, "rows[1]: n_shot is -1"),
    ((*ROW, "n_shot"), True, "rows[1]: n_shot is true"),
    ((*ROW, "n_shot"), 10**500, "rows[1]: n_shot is 1000"),
    ((*ROW, "seed"), "37", "rows[1]: seed is"),
    ((*ROW, "seed"), 0, "a second logreg top1 of a_b on in1k (n_shot 0, seed 0); the first is rows[0]"),
    ((*ROW, "std"), 0.5, "std beside a seed"),
    ((*ROW, "value"), 175.3, "rows[1]: value is 175.3, expected a percentage"),
    ((*ROW, "value"), float("nan"), "rows[1]: value is NaN"),
    ((*MEAN, "value"), 1e300, "rows[2]: value is 1e+300, expected a number"),
    ((*MEAN, "std"), -0.1, "rows[2]: std is -0.1"),
    ((*ROW, "pretraining"), "IN-2K", "rows[1]: pretraining is"),
    ((*ROW, "classes"), "x", "rows[1]: classes is"),
    ((*ROW, "data"), "a\x1b[31m", "rows[1]: data is"),
    ((*ROW, "protocol"), "x" * 400, "rows[1]: protocol is"),
    ((*ROW, "images"), -1, "rows[1]: images is"),
    ((*ROW, "source"), "runs", "reserved"),
    ((*MEAN, "source"), "paper v2", "not the published number"),
    (CORRECT, 3, "rows[1]: correct is 3"),
    ((*CORRECT, "x"), 1, "unknown entry"),
    ((*CORRECT, "n_classes"), 0, "correct is wrong"),
    ((*CORRECT, "n_classes"), 2, "correct is wrong"),
    ((*CORRECT, "correct_per_class"), None, "correct is wrong"),
    ((*CORRECT, "correct_per_class"), "CQgI", "the accuracy is"),
    ((*CORRECT, "image_list"), "5", 'correct.image_list is "5", expected a SHA-256 digest'),
    ((*ROW, "metric"), "top5", "only top-1 accuracies have it"),
    ((*ROW, "data"), "benchmark", "correct has 3 classes"),
]


@pytest.mark.parametrize("where, value, message", BAD)
def test_impossible_results_are_refused_in_one_line(tmp_path, good, where, value, message):
    content = target = copy.deepcopy(good)
    for key in where[:-1]:
        target = target[key]
    if value is ...:
        del target[where[-1]]
    elif where:
        target[where[-1]] = value
    path = tmp_path / "f.json"
    path.write_text(json.dumps(content if where else value))
    if message is None:
        assert len(share.load(path)) == 3
        return
    with pytest.raises(CogError) as error:
        share.load(path)
    text = str(error.value)
    assert text.startswith(f"--import {path}: ") and message in text and "\n" not in text and len(text) < 400


def test_merging():
    one, two, three = (
        scores_of(rows(m, [70.0], source=s)) for m, s in (("a_b", "x"), ("a_c", "x"), ("a_b", "y"))
    )
    merged = share.merge([pd.concat([one, two]), pd.concat([two, three])])
    assert merged[["model", "source"]].values.tolist() == [["a_b", "x"], ["a_c", "x"], ["a_b", "y"]]
    for change in ({"value": 71.0}, {"pretraining": "web"}, {"protocol": "n_epochs 3"}):
        with pytest.raises(CogError, match=r"f and g have different numbers of logreg top1 of a_b .*'x'"):
            share.merge([one, one.assign(**change)], ["f", "g"])


def test_rows_that_cannot_be_read_are_not_written(tmp_path):
    for changes, message in (({"model": ""}, "runs without a model"), ({"dataset": "a/b"}, "dataset is")):
        with pytest.raises(CogError, match=message):
            write(tmp_path / "f.json", [*rows("x_y", [1.0]), {**rows("a_b", [1.0])[0], **changes}])
    assert list(tmp_path.iterdir()) == []
