"""Files of --export and --import, counts per concept: exact round trips, strict reading, honest labels."""

import base64
import copy
import json
import struct
from array import array

import pandas as pd
import pytest
from frames import rows, stated

from cog.errors import CogError
from cog.results import concept_counts, frame, published, read, share
from cog.results.concept_counts import ConceptCounts
from cog.results.frame import SCORES, scores_of


def write(path, made, **arguments):
    share.write(path, scores_of(made), **arguments)
    return path


def same(found, made, source="lab"):
    """Assert that a frame has rows, where those of runs have the source of the file."""
    expected = scores_of(made).assign(folder=None)
    expected["source"] = expected["source"].replace("runs", source)
    pd.testing.assert_frame_equal(found.drop(columns="correct"), expected.drop(columns="correct"))


def test_round_trip_is_exact(tmp_path):
    more = {"images": 10**9, "protocol": "n_epochs 3", "features": "0a"}
    made = rows("n_x+.-", [1 / 3, 100.0], seeds=(0, 2**63 - 1), **more)
    more = {"dataset": "n.a", "n_shot": 200, "metric": "top5", "classes": "e" * 64}
    made += stated("n_b", 70.1, 0.1, source="Größe £", **more)
    made += stated("n_c", 1e-300, source="x" * 80, data="24 classes, 1,200 test images", pretraining="web")
    made += [dict(row) for version in published.SOURCES for row in published.rows(version)[::50]]
    path = write(tmp_path / "f.json", made, label="ours")
    same(share.load(path), made, "ours")
    write(tmp_path / "g.json", share.load(path), label="other")
    same(share.load(tmp_path / "g.json"), made, "ours")


def test_documented_form(tmp_path):
    images = array("B", [10, 9, 200, 11])
    counts = ConceptCounts(array("B", [9, 8, 0, 10]), images, "5" * 64)
    [row] = rows("a_b", [100 * 27 / counts.n_images], seeds=(22,), folder="/secret/folder")
    row |= {"correct": counts, "classes": "9" * 64, "protocol": "n_epochs 3", "features": "4b7e"}
    made = [row | {"data": "4 classes", "images": 40}, *stated("a_c", 1.0, 0.5)]
    path = write(tmp_path / "lab one.json", made)
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "toolkit", "written", "label", "rows"]
    assert content["rows"][0].keys() == {*SCORES} - {"folder", "std", "source"}, "no folder of this machine"
    for name in (*share._WRITTEN, *content["rows"][0]["correct"]):
        assert f'"{name}"' in share.__doc__
    assert len(path.read_text().splitlines()) == 11, "one line for each row, so that differences can be read"
    found = share.load(path)
    assert found["correct"][0].image_list == "5" * 64 and set(found["source"]) == {"lab one"}
    assert list(found["correct"][0].correct) == [9, 8, 0, 10] and found["correct"][0].images == images


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("x") / "f.json"
    write(path, [*rows("a_b", correct=[[9, 8, 7]] * 2), *stated("a_c", 50.0, 0.5)], label="lab")
    return json.loads(path.read_text())


ROW, MEAN, CORRECT = ("rows", 1), ("rows", 2), ("rows", 1, "correct")
BAD = [
    ((), [1], "expected a JSON object"),
    (("version",), 7, '"version": 1'),
    (("rows",), [], "there are no rows"),
    (("label",), "a\nb", "label is"),
    (("label",), "paper v2", "reserved"),
    (ROW, 3, "rows[1]: found 3, expected an object"),
    ((*ROW, "model"), "../../x_y", 'rows[1]: "model"'),
    ((*ROW, "dataset"), "a/b", 'rows[1]: "dataset"'),
    ((*ROW, "n_shot"), 10**500, 'rows[1]: "n_shot": 1000'),
    ((*ROW, "seed"), 0, "rows[1]: a second logreg top1 of a_b on in1k (n_shot 0, seed 0)"),
    ((*ROW, "std"), 0.5, "std beside a seed"),
    ((*ROW, "value"), 175.3, "rows[1]: value is 175.3, expected a percentage"),
    ((*ROW, "value"), float("nan"), 'rows[1]: "value": NaN'),
    ((*MEAN, "value"), 1e300, 'rows[2]: "value": 1e+300'),
    ((*ROW, "data"), "a\x1b[31m", 'rows[1]: "data"'),
    ((*MEAN, "source"), "paper v2", "not the published number"),
    ((*CORRECT, "correct_per_class"), "CQgI", "the accuracy is"),
    ((*CORRECT, "correct_per_class"), 7, "no text with 3 numbers"),
    ((*CORRECT, "images_per_class"), 10**30, "images per class"),
    ((*CORRECT, "images_per_class"), 8, "more right answers"),
    ((*ROW, "data"), "benchmark", "correct has 3 classes"),
]


@pytest.mark.parametrize("where, value, message", BAD)
def test_impossible_results_are_refused_in_one_line(tmp_path, good, where, value, message):
    content = target = copy.deepcopy(good)
    for key in where[:-1]:
        target = target[key]
    if where:
        target[where[-1]] = value
    path = tmp_path / "f.json"
    path.write_text(json.dumps(content if where else value))
    with pytest.raises(CogError) as error:
        share.load(path)
    text = str(error.value)
    assert str(path) in text[:200] and message in text and "\n" not in text and len(text) < 400


def test_several_files(tmp_path):
    one, two = rows("a_b", [70.0], seeds=(22,)), rows("a_c", [70.0], seeds=(22,))
    other = [{**one[0], "value": 71.0}]
    files = [write(tmp_path / f"{n}.json", made, label="x") for n, made in enumerate((one + two, two, other))]
    assert len(read.read(imports=files[:2]).scores) == 2, "equal rows are one"
    note = frame.average(read.read(imports=files).scores).set_index("model")["note"].to_dict()
    assert note == {"a_b": "a seed is there twice", "a_c": ""}


def test_rows_that_cannot_be_read_are_not_written(tmp_path):
    for changes, message in (({"model": ""}, "runs without a model"), ({"dataset": "a/b"}, '"dataset"')):
        with pytest.raises(CogError, match=message):
            write(tmp_path / "f.json", [*rows("x_y", [1.0]), {**rows("a_b", [1.0])[0], **changes}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("correct", "images", "code"),
    [([3, 0, 50], [50] * 3, "B"), ([300, 7], [70000, 9], "H"), ([70000, 0], [70000, 1], "I")],
)
def test_written_counts_have_the_documented_form_and_are_read_again(correct, images, code):
    entries = concept_counts.write(correct, images)
    packed = struct.pack(f"<{len(correct)}{code}", *correct)
    assert entries["correct_per_class"] == base64.b64encode(packed).decode()
    found = concept_counts.read(entries, n_classes=len(correct), top1=100 * sum(correct) / sum(images))
    assert found.correct.tolist() == correct and found.n_images == sum(images)
    assert isinstance(entries["images_per_class"], int) == (len(set(images)) == 1)
