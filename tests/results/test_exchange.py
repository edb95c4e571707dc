"""Files of --export and --import: exact round trips, strict reading, honest labels."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
import statistics
import time
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import n_examples

from cog import constants
from cog.commands import print_results
from cog.errors import CogError
from cog.results import exchange, published
from cog.results.concept_counts import ConceptCounts
from cog.results.scores import SeedAverage

SEEDS = (22, 37, 45)


def make(model="a_b", dataset="in1k", *, top1=(50.1, 50.2, 50.4), top5=(90.0, 91.0, 92.0), **changes):
    """Both accuracies of one model."""
    return [
        dataclasses.replace(
            SeedAverage(
                model, dataset, "logreg", metric, 8, statistics.fmean(values), statistics.pstdev(values), SEEDS,
                (77, 93), tuple(values), epochs=(100, 100, 100),
            ),
            **changes,
        )
        for metric, values in (("top1", top1), ("top5", top5))
    ]  # fmt: skip


def write(path, cells, **arguments):
    exchange.write(path, cells, **arguments)
    return path


def relabelled(cells, label):
    return [dataclasses.replace(cell, source=label) for cell in cells]


PERCENT = st.floats(0, 100)
NAMES = st.text("abz09.+-", max_size=10).map("n".__add__)


@st.composite
def any_average(draw):
    seeds = tuple(sorted(draw(st.sets(st.integers(0, 2**63 - 1), max_size=4))))
    values = draw(st.just(()) | st.tuples(*[PERCENT] * len(seeds)))
    mean, std = draw(PERCENT), draw(st.none() | st.floats(0, 50))
    if values:
        mean, std = statistics.fmean(values), statistics.pstdev(values)
    return SeedAverage(
        model=f"{draw(NAMES)}_{draw(NAMES)}",
        dataset=draw(st.sampled_from(constants.DATASETS) | NAMES),
        evaluation="logreg",
        metric=draw(st.sampled_from(["top1", "top5"])),
        n_shot=draw(st.integers(0, 200)),
        value=mean,
        std=std,
        seeds=seeds,
        missing_seeds=tuple(sorted(draw(st.sets(st.integers(0, 50), max_size=2)) - set(seeds))),
        by_seed=values,
        source=draw(st.sampled_from(["runs", "their lab", "Größe £", "x" * 80])),
        epochs=tuple(draw(st.integers(1, 100)) for _ in seeds) if draw(st.booleans()) else (),
    )


@settings(deadline=None, max_examples=n_examples(8, 100))
@given(st.lists(any_average(), min_size=1, max_size=8, unique_by=lambda average: average.place))
def test_round_trip_is_exact(tmp_path_factory, cells):
    path = write(tmp_path_factory.mktemp("x") / "f.json", cells, label="ours")
    expected = [dataclasses.replace(c, source="ours") if c.source == "runs" else c for c in cells]
    assert exchange.load(path) == expected
    again = write(path, exchange.load(path), label="other")
    assert exchange.load(again) == expected


def test_published_numbers_survive_and_stay_published(tmp_path):
    for version in published.SOURCES:
        path = write(tmp_path / f"{version}.json", published.accuracies(version))
        assert exchange.load(path) == published.accuracies(version)


def test_documented_form(tmp_path):
    path = write(tmp_path / "f.json", make(), label="lab")
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "label", "toolkit", "written", "entries"]
    assert (content["format"], content["version"], content["label"]) == ("imagenet-cog results", 1, "lab")
    top1, top5 = content["entries"]
    assert top1 == {
        "model": "a_b",
        "dataset": "in1k",
        "evaluation": "logreg",
        "metric": "top1",
        "n_shot": 8,
        "value": statistics.fmean((50.1, 50.2, 50.4)),
        "std": statistics.pstdev((50.1, 50.2, 50.4)),
        "seeds": [22, 37, 45],
        "missing_seeds": [77, 93],
        "by_seed": [50.1, 50.2, 50.4],
        "epochs": [100, 100, 100],
    }
    assert top5 == top1 | {
        "metric": "top5", "value": 91.0, "std": statistics.pstdev((90.0, 91.0, 92.0)), "by_seed": [90.0, 91.0, 92.0]
    }  # fmt: skip
    for field in dataclasses.fields(SeedAverage):
        assert f'"{field.name}"' in exchange.__doc__
    assert len(path.read_text().splitlines()) == 11, (
        "one line for each entry, so that differences can be read"
    )


def refused(folder, content, message):
    """Assert that a file is refused in one line."""
    path = folder / "f.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CogError) as error:
        exchange.load(path)
    text = str(error.value)
    assert text.startswith(f"--import {path}: ") and message in text and "\n" not in text and len(text) < 400


def counted(*, model="a_b", images=10, n_seeds=2, image_list="5" * 64, **fields):
    """An average of runs on four concepts with right answers per concept."""
    correct = [[9, 8, k, 10] for k in range(n_seeds)]
    runs = tuple(ConceptCounts(array("B", row), images, image_list) for row in correct)
    values = tuple(100 * sum(row) / runs[0].n_images for row in correct)
    place = (model, "cog_l1", fields.pop("evaluation", "logreg"), "top1", 0)
    mean, std = statistics.fmean(values), statistics.pstdev(values)
    seeds = constants.SEEDS[:n_seeds]
    return SeedAverage(*place, mean, std, seeds, by_seed=values, concepts=runs, **fields)


@pytest.mark.parametrize("images", [10, array("B", [10, 9, 200, 11])])
@pytest.mark.parametrize("evaluation", ["logreg", "mlp"])
def test_right_answers_per_concept_survive(tmp_path, evaluation, images):
    average = counted(evaluation=evaluation, images=images)
    path = write(tmp_path / "f.json", [average], label="lab")
    (found,) = exchange.load(path)
    assert found == dataclasses.replace(average, source="lab")
    assert [(c.correct, c.images, c.image_list) for c in found.concepts] == [
        (c.correct, c.images, c.image_list) for c in average.concepts
    ]
    (unnamed,) = exchange.load(write(tmp_path / "h.json", [counted(images=images, image_list="my list")]))
    assert {c.image_list for c in unnamed.concepts} == {None}
    content = json.loads(path.read_text())
    assert list(content["entries"][0]["concepts"]) == [*exchange._CONCEPTS]
    assert all(f'"{key}"' in exchange.__doc__ for key in ("concepts", *exchange._CONCEPTS))
    # Of runs on other images there is no interval, and so they are not shared.
    mixed = dataclasses.replace(average, concepts=(average.concepts[0], counted(images=12).concepts[1]))
    (without,) = exchange.load(write(tmp_path / "g.json", [mixed]))
    assert without.concepts == ()


CONCEPTS = ("entries", 0, "concepts")
BAD_CONCEPTS = {
    "number": (CONCEPTS, 3, "entries[0]: concepts is 3"),
    "unknown entry": ((*CONCEPTS, "x"), 1, "unknown entry"),
    "no classes": ((*CONCEPTS, "n_classes"), 0, "concepts is wrong"),
    "other classes": ((*CONCEPTS, "n_classes"), 3, "concepts is wrong"),
    "of one seed": ((*CONCEPTS, "correct_per_class"), ["CQgACg=="], "answers of each seed"),
    "answers null": ((*CONCEPTS, "correct_per_class"), [None, None], "concepts is wrong"),
    "another accuracy": ((*CONCEPTS, "correct_per_class", 1), "CQgACg==", "the accuracy is"),
    "no image list": (
        (*CONCEPTS, "image_list"),
        "5",
        'concepts.image_list is "5", expected a SHA-256 digest',
    ),
    "of another metric": (("entries", 0, "metric"), "top5", "answers of each seed"),
}


@pytest.mark.parametrize("name", BAD_CONCEPTS)
def test_wrong_answers_per_concept(tmp_path, name):
    where, value, message = BAD_CONCEPTS[name]
    content = json.loads(exchange.dump([counted()], label="lab"))
    refused(tmp_path, change(where, value)(content), message)


def test_the_label_is_the_files_name_unless_given(tmp_path):
    cells = make()
    assert exchange.load(write(tmp_path / "lab one.json", cells))[0].source == "lab one"
    assert exchange.load(write(tmp_path / "x.json", cells, label="lab two"))[0].source == "lab two"
    for name in ("runs", "paper v2", "paper v1", " "):
        assert exchange.load(write(tmp_path / f"{name}.json", cells))[0].source == "imported"
    odd = os.fsdecode(b"caf\xe9\n.json")
    assert exchange.load(write(tmp_path / odd, cells))[0].source == "caf??"


GOOD = json.loads(exchange.dump([*make(), *make("a_c")], label="lab"))


_NOTHING = object()


def change(where, value):
    """Return a function that sets one entry of a good file."""

    def apply(content):
        target = content
        *path, last = where
        for key in path:
            target = target[key]
        if value is _NOTHING:
            del target[last]
        else:
            target[last] = value
        return content

    return apply


def remove(where):
    return change(where, _NOTHING)


ENTRY = ("entries", 1)
NO_COUNTS = {"classes": [], "train_images": [], "test_images": []}
BAD = {
    "not an object": (lambda content: [content], "not a file of --export"),
    "another format": (change(("format",), "lm results"), "not a file of --export"),
    "later version": (change(("version",), 7), "version is 7, expected 1"),
    "unknown entry": (change(("entry",), []), "unknown entry \"entry\""),
    "no label": (remove(("label",)), "no entry 'label'"),
    "no entries": (remove(("entries",)), "no entry 'entries'"),
    "entries empty": (change(("entries",), []), "entries is a list of 0, expected a list with anything in it"),
    "label number": (change(("label",), 3), "label is 3"),
    "label two lines": (change(("label",), "a\nb"), "label is"),
    "label runs": (change(("label",), "runs"), "reserved"),
    "entry number": (change(ENTRY, 3), "entries[1]: the entry is 3"),
    "entry unknown entry": (change((*ENTRY, "top3"), 1.0), "entries[1]: unknown entry \"top3\""),
    "entry without a model": (remove((*ENTRY, "model")), "entries[1]: no entry 'model'"),
    "entry without seeds": (remove((*ENTRY, "seeds")), "entries[1]: epochs is a list of 3"),
    "model without underscore": (change((*ENTRY, "model"), "net"), "entries[1]: model is \"net\""),
    "model path": (change((*ENTRY, "model"), "../../x_y"), "entries[1]: model"),
    "model long": (change((*ENTRY, "model"), "a_" + "b" * 300), "entries[1]: model"),
    "dataset path": (change((*ENTRY, "dataset"), "a/b"), "entries[1]: dataset"),
    "dataset null": (change((*ENTRY, "dataset"), None), "entries[1]: dataset is null"),
    "n_shot negative": (change((*ENTRY, "n_shot"), -1), "entries[1]: n_shot is -1"),
    "n_shot true": (change((*ENTRY, "n_shot"), True), "entries[1]: n_shot is true"),
    "n_shot huge": (change((*ENTRY, "n_shot"), 10**500), "entries[1]: n_shot is a huge number"),
    "seeds number": (change((*ENTRY, "seeds"), 22), "entries[1]: seeds is 22"),
    "seed text": (change((*ENTRY, "seeds", 1), "37"), "entries[1]: seeds is a list of 3"),
    "seed twice": (change((*ENTRY, "seeds"), [22, 37, 37]), "none of them twice"),
    "seeds falling": (change((*ENTRY, "seeds"), [37, 22, 45]), "ascending"),
    "too many seeds": (change((*ENTRY, "seeds"), list(range(2000))), "at most 1000"),
    "missing seed present": (change((*ENTRY, "missing_seeds"), [22]), "names a seed that is there"),
    "epochs of others": (change((*ENTRY, "epochs"), [100]), "entries[1]: epochs is a list of 1"),
    "no epoch": (change((*ENTRY, "epochs", 0), 0), "entries[1]: epochs"),
    "mean above 100": (change((*ENTRY, "value"), 175.3), "entries[1]: value is 175.3, expected a percentage"),
    "mean null": (change((*ENTRY, "value"), None), "entries[1]: value is null"),
    "mean of others": (change((*ENTRY, "value"), 50.3), "entries[1]: by_seed does not have the mean"),
    "std of others": (change((*ENTRY, "std"), 0.3), "entries[1]: by_seed does not have the population"),
    "std null but values": (change((*ENTRY, "std"), None), "entries[1]: by_seed does not have"),
    "std negative": (change((*ENTRY, "std"), -0.1), "entries[1]: std is -0.1"),
    "std huge": (change((*ENTRY, "std"), 60), "entries[1]: std is 60"),
    "values of other seeds": (change((*ENTRY, "by_seed"), [50.0]), "entries[1]: by_seed is a list of 1"),
    "values no list": (change((*ENTRY, "by_seed"), 3), "entries[1]: by_seed is 3, expected a list"),
    "value text": (change((*ENTRY, "by_seed", 2), "x"), "entries[1]: by_seed is a list of 3"),
    "value outside": (change((*ENTRY, "by_seed", 2), 1e9), "entries[1]: by_seed is 1000000000.0"),
    "value huge": (change((*ENTRY, "value"), 1e300), "entries[1]: value is 1e+300, expected a number"),
    "pretraining": (change((*ENTRY, "pretraining"), "IN-2K"), "entries[1]: pretraining is"),
    "class lists": (change((*ENTRY, "counts"), NO_COUNTS | {"class_lists": ["x"]}), "entries[1]: counts is"),
    "source number": (change((*ENTRY, "source"), 1), "entries[1]: source is 1"),
    "source runs": (change((*ENTRY, "source"), "runs"), "reserved"),
    "poses as published": (change((*ENTRY, "source"), "paper v2"), "not the published number"),
    "the same twice": (change((*ENTRY, "metric"), "top1"), "entries[1] is a second a_b on in1k (n_shot 8); the first"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_impossible_results_are_refused(tmp_path, name):
    apply, message = BAD[name]
    refused(tmp_path, apply(copy.deepcopy(GOOD)), message)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 10**6, "not valid JSON"),
        (b"9" * 10**6, "not valid JSON"),
        (json.dumps(change(("entries", 0, "value"), float("nan"))(copy.deepcopy(GOOD))).encode(), "value is NaN"),
        (json.dumps(GOOD).replace("50.1", "1e999", 1).encode(), "by_seed is a list of 3"),
    ],
    ids=itertools.count(),  # the content says when it was written, which processes that share the tests must agree on
)  # fmt: skip
def test_invalid_json_is_refused(tmp_path, content, message):
    path = tmp_path / "f.json"
    path.write_bytes(content)
    with pytest.raises(CogError, match=message) as error:
        exchange.load(path)
    assert len(str(error.value)) < 500


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as handle:
        handle.truncate((1 << 27) + 1)
    for name, message in (
        ("folder", "is a folder"),
        ("pipe", "is not a regular file"),
        ("absent", "does not exist"),
        ("large", "of at most"),
    ):
        with pytest.raises(CogError, match=message):
            exchange.load(tmp_path / name)


def test_merging():
    one, two, three = make(source="x"), make("a_c", source="x"), make(source="y")
    assert exchange.merge(("f", [*one, *two]), ("g", [*two, *three])) == [*one, *two, *three]
    assert exchange.merge() == []
    for other in (make(source="x", missing_seeds=()), make(source="x", pretraining="web")):
        with pytest.raises(
            CogError, match=r"f and g have different numbers of a_b on in1k \(n_shot 8\).*'x'"
        ):
            exchange.merge(("f", [*one, *two]), ("g", other))


def test_averages_that_cannot_be_read_are_not_written(tmp_path):
    for cell, message in (
        (make(""), "runs without a model name"),
        (make(dataset="a/b"), "dataset is"),
        (make(epochs=(1,)), "epochs is a list of 1"),
    ):
        with pytest.raises(CogError, match=message):
            exchange.write(tmp_path / "f.json", [*make("x_y"), *cell])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_imported_cells_take_seconds(tmp_path, capsys):
    """The quadratic part was in built-in functions, which a count of calls does not see."""
    path = write(
        tmp_path / "many.json", [one for index in range(20_000) for one in make(f"m{index}_net", n_shot=0)]
    )
    start = time.process_time()
    assert print_results.main(["--import", str(path), "--format", "csv"]) == 0
    assert time.process_time() - start < 10  # 2 to 3 s when the machine is idle, a minute when quadratic
    assert len(capsys.readouterr().out.splitlines()) == 40_001
