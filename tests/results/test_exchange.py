"""Files of --export and --import: exact round trips, strict reading, honest labels."""

from __future__ import annotations

import copy
import cProfile
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
from result_folders import make_seed_folder

from cog import constants
from cog.commands import print_results
from cog.errors import CogError
from cog.results import exchange, find, published, run_records
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
def any_cells(draw):
    cells = {}
    for _ in range(draw(st.integers(1, 5))):
        seeds = tuple(sorted(draw(st.sets(st.integers(0, 2**63 - 1), max_size=4))))
        missing = tuple(sorted(draw(st.sets(st.integers(0, 50), max_size=2)) - set(seeds)))
        by_seed = st.just(()) | st.tuples(*[PERCENT] * len(seeds))
        top1, top5 = draw(by_seed), draw(by_seed)
        shared = {
            "model": f"{draw(NAMES)}_{draw(NAMES)}",
            "dataset": draw(st.sampled_from(constants.DATASETS) | NAMES),
            "evaluation": "logreg",
            "n_shot": draw(st.integers(0, 200)),
            "seeds": seeds,
            "missing_seeds": missing,
            "epochs": tuple(draw(st.integers(1, 100)) for _ in seeds) if draw(st.booleans()) else (),
            "source": draw(st.sampled_from(["runs", "their lab", "Größe £", "x" * 80])),
        }
        place = (
            *(shared[key] for key in ("model", "dataset", "n_shot")),
            shared["source"].replace("runs", "ours"),
        )
        cells[place] = []
        for metric, values in (("top1", top1), ("top5", top5)):
            if metric == "top5" and not values and draw(st.booleans()):
                continue
            mean, std = draw(PERCENT), draw(st.none() | st.floats(0, 50))
            if values:
                mean, std = statistics.fmean(values), statistics.pstdev(values)
            cells[place].append(SeedAverage(metric=metric, value=mean, std=std, by_seed=values, **shared))
    return [average for pair in cells.values() for average in pair]


@settings(deadline=None, max_examples=n_examples(8, 100))
@given(any_cells())
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


def test_runs_from_disk_survive(tmp_path):
    for seed in constants.SEEDS[:3]:
        make_seed_folder(tmp_path / f"models/a/b/in1k/eval_logreg/seed-{seed}", 70 + seed / 7, 90 + seed / 70)
    runs, _ = find.find_runs(tmp_path / "models")
    cells = run_records.average_runs(runs, constants.SEEDS)
    top1, top5 = exchange.load(write(tmp_path / "ours.json", cells))
    assert [top1, top5] == relabelled(cells, "ours")
    assert top1.values == {seed: 70 + seed / 7 for seed in constants.SEEDS[:3]}


def test_documented_form(tmp_path):
    path = write(tmp_path / "f.json", make(), label="lab")
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "label", "toolkit", "written", "cells"]
    assert (
        content["format"] == "imagenet-cog results" and content["version"] == 1 and content["label"] == "lab"
    )
    (row,) = content["cells"]
    assert row == {
        "model": "a_b",
        "dataset": "in1k",
        "n_shot": 8,
        "source": None,
        "top1": {"mean": statistics.fmean((50.1, 50.2, 50.4)), "std": statistics.pstdev((50.1, 50.2, 50.4))},
        "top5": {"mean": 91.0, "std": statistics.pstdev((90.0, 91.0, 92.0))},
        "seeds": [22, 37, 45],
        "missing_seeds": [77, 93],
        "epochs": [100, 100, 100],
        "top1_by_seed": [50.1, 50.2, 50.4],
        "top5_by_seed": [90.0, 91.0, 92.0],
    }
    assert set(row) == set(exchange.LISTS["cells"])
    for key in row:
        assert f'"{key}"' in exchange.__doc__
    assert len(path.read_text().splitlines()) == 10, "one line for each cell, so that differences can be read"


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
    (entry,) = content["cells"] or content["measures"]
    assert content["version"] == 4 and list(entry["concepts"]) == [*exchange._CONCEPTS]
    assert all(f'"{key}"' in exchange.__doc__ for key in ("concepts", *exchange._CONCEPTS))
    # Of runs on other images there is no interval, and so they are not shared.
    mixed = dataclasses.replace(average, concepts=(average.concepts[0], counted(images=12).concepts[1]))
    (without,) = exchange.load(write(tmp_path / "g.json", [mixed]))
    assert without.concepts == () and json.loads((tmp_path / "g.json").read_text())["version"] < 4


CONCEPTS = ("cells", 0, "concepts")
BAD_CONCEPTS = {
    "number": (CONCEPTS, 3, "cells[0].concepts is 3"),
    "unknown entry": ((*CONCEPTS, "x"), 1, "unknown entry"),
    "no classes": ((*CONCEPTS, "n_classes"), 0, "concepts is wrong"),
    "huge": ((*CONCEPTS, "n_classes"), 1 << 62, "concepts is wrong"),
    "other classes": ((*CONCEPTS, "n_classes"), 3, "concepts is wrong"),
    "no images": ((*CONCEPTS, "images_per_class"), 0, "0 images per class"),
    "images null": ((*CONCEPTS, "images_per_class"), None, "concepts is wrong"),
    "few images": ((*CONCEPTS, "images_per_class"), 9, "more right answers than there are images"),
    "more images": ((*CONCEPTS, "images_per_class"), 20, "the accuracy is"),
    "of one seed": ((*CONCEPTS, "correct_per_class"), ["CQgACg=="], "answers of each seed"),
    "answers null": ((*CONCEPTS, "correct_per_class"), [None, None], "concepts is wrong"),
    "another accuracy": ((*CONCEPTS, "correct_per_class", 1), "CQgACg==", "the accuracy is"),
    "no base64": ((*CONCEPTS, "correct_per_class", 1), "\x00" * 8, "concepts is wrong"),
    "no image list": (
        (*CONCEPTS, "image_list"),
        "5",
        'concepts.image_list is "5", expected a SHA-256 digest',
    ),
    "without seeds": (("cells", 0, "top1_by_seed"), [], "answers of each seed"),
    "of another version": (("version",), 3, 'unknown entry "concepts"'),
}


@pytest.mark.parametrize("name", BAD_CONCEPTS)
def test_wrong_answers_per_concept(tmp_path, name):
    where, value, message = BAD_CONCEPTS[name]
    content = json.loads(exchange.dump([counted()], label="lab"))
    path = tmp_path / "f.json"
    path.write_text(json.dumps(change(where, value)(content)))
    with pytest.raises(CogError) as error:
        exchange.load(path)
    text = str(error.value)
    assert text.startswith(f"--import {path}: ") and message in text and "\n" not in text and len(text) < 400


def test_of_the_same_numbers_those_with_answers_per_concept_are_kept():
    whole = counted(source="x")
    bare = dataclasses.replace(whole, concepts=())
    for groups in ((whole, bare), (bare, whole)):
        (merged,) = exchange.merge(*((name, [a]) for name, a in zip("fg", groups)))
        assert merged.concepts == whole.concepts


def test_what_a_model_has_seen_survives(tmp_path):
    seen = counted(pretraining="IN-21K")
    measure = counted(evaluation="mlp", pretraining="IN-21K")
    path = write(tmp_path / "f.json", [seen, measure], label="lab")
    assert [a.pretraining for a in exchange.load(path)] == ["IN-21K"] * 2
    content = json.loads(path.read_text())
    assert content["version"] == 5 and '"pretraining": "IN-21K"' in exchange.__doc__
    for said in ("IN-2K", None, ["IN-1K"]):
        content["measures"][0]["pretraining"] = said
        path.write_text(json.dumps(content))
        with pytest.raises(CogError, match=r"measures\[0\].pretraining is .*, expected IN-1K, IN-21K"):
            exchange.load(path)
    content["version"] = 4
    path.write_text(json.dumps(content))
    with pytest.raises(CogError, match='unknown entry "pretraining"'):
        exchange.load(path)


def test_files_that_disagree_on_what_a_model_has_seen():
    one, two = make(source="x", pretraining="web"), make(source="x", pretraining="IN-1K", n_shot=1)
    text = r"^pretraining of a_b \[x\] is web in f and IN-1K in g; correct one of them$"
    with pytest.raises(CogError, match=text):
        exchange.merge(("f", one), ("g", two))
    for groups in ((one, make(source="x")), (make(source="x"), one)):
        assert {a.pretraining for a in exchange.merge(*zip("fg", groups, strict=True))} == {"web"}


def test_the_label_is_the_files_name_unless_given(tmp_path):
    cells = make()
    assert exchange.load(write(tmp_path / "lab one.json", cells))[0].source == "lab one"
    assert exchange.load(write(tmp_path / "x.json", cells, label="lab two"))[0].source == "lab two"
    for name in ("runs", "paper v2", "paper v1", " "):
        assert exchange.load(write(tmp_path / f"{name}.json", cells))[0].source == "imported"
    odd = os.fsdecode(b"caf\xe9\n.json")
    assert exchange.load(write(tmp_path / odd, cells))[0].source == "caf??"


GOOD = json.loads(exchange.dump([*make(), *make("a_c")], label="lab"))


def change(where, value):
    """Return a function that sets one entry of a good file."""

    def apply(content):
        target = content
        *path, last = where
        for key in path:
            target = target[key]
        target[last] = value
        return content

    return apply


def remove(where):
    def apply(content):
        target = content
        *path, last = where
        for key in path:
            target = target[key]
        del target[last]
        return content

    return apply


CELL = ("cells", 1)
BAD = {
    "not an object": (lambda content: [content], "not a file of --export"),
    "text": (lambda content: "imagenet-cog results", "not a file of --export"),
    "another format": (change(("format",), "lm results"), "not a file of --export"),
    "no format": (remove(("format",)), "not a file of --export"),
    "later version": (change(("version",), 6), "version is 6, expected 1 to 5"),
    "version true": (change(("version",), True), "version is true"),
    "no version": (remove(("version",)), "version is null"),
    "unknown entry": (change(("cell",), []), "unknown entry \"cell\""),
    "no label": (remove(("label",)), "no entry 'label'"),
    "no cells": (remove(("cells",)), "no entry 'cells'"),
    "cells null": (change(("cells",), None), "cells is not a list"),
    "cells empty": (change(("cells",), []), "cells is not a list with anything in it"),
    "cells object": (change(("cells",), {"0": 1}), "cells is not a list"),
    "label number": (change(("label",), 3), "label is 3"),
    "label empty": (change(("label",), ""), "label is"),
    "label two lines": (change(("label",), "a\nb"), "label is"),
    "label color": (change(("label",), "\x1b[31mred"), "label is"),
    "label long": (change(("label",), "x" * 81), "label is"),
    "label runs": (change(("label",), "runs"), "reserved"),
    "label paper": (change(("label",), "paper v2"), "reserved"),
    "cell number": (change(CELL, 3), "cells[1] is 3"),
    "cell null": (change(CELL, None), "cells[1] is null"),
    "cell unknown entry": (change((*CELL, "top3"), 1.0), "cells[1] has the unknown entry \"top3\""),
    "cell without seeds": (remove((*CELL, "seeds")), "cells[1] has no entry 'seeds'"),
    "model number": (change((*CELL, "model"), 3), "cells[1].model is 3"),
    "model without underscore": (change((*CELL, "model"), "net"), "cells[1].model is \"net\""),
    "model path": (change((*CELL, "model"), "../../x_y"), "cells[1].model"),
    "model two lines": (change((*CELL, "model"), "a_b\n"), "cells[1].model"),
    "model long": (change((*CELL, "model"), "a_" + "b" * 300), "cells[1].model"),
    "model html": (change((*CELL, "model"), "<script>_x"), "cells[1].model"),
    "dataset path": (change((*CELL, "dataset"), "a/b"), "cells[1].dataset"),
    "dataset null": (change((*CELL, "dataset"), None), "cells[1].dataset is null"),
    "n_shot text": (change((*CELL, "n_shot"), "8"), "cells[1].n_shot is \"8\""),
    "n_shot negative": (change((*CELL, "n_shot"), -1), "cells[1].n_shot is -1"),
    "n_shot float": (change((*CELL, "n_shot"), 8.0), "cells[1].n_shot is 8.0"),
    "n_shot true": (change((*CELL, "n_shot"), True), "cells[1].n_shot is true"),
    "n_shot huge": (change((*CELL, "n_shot"), 10**500), "cells[1].n_shot is a huge number"),
    "seeds number": (change((*CELL, "seeds"), 22), "cells[1].seeds is 22"),
    "seed text": (change((*CELL, "seeds", 1), "37"), "cells[1].seeds[1] is \"37\""),
    "seed twice": (change((*CELL, "seeds"), [22, 37, 37]), "has a seed twice"),
    "seeds falling": (change((*CELL, "seeds"), [37, 22, 45]), "ascending"),
    "too many seeds": (change((*CELL, "seeds"), list(range(2000))), "at most 1000"),
    "missing seed present": (change((*CELL, "missing_seeds"), [22]), "names a seed that is there"),
    "epochs of others": (change((*CELL, "epochs"), [100]), "cells[1].epochs has 1 values"),
    "no epoch": (change((*CELL, "epochs", 0), 0), "cells[1].epochs"),
    "top1 number": (change((*CELL, "top1"), 50.0), "cells[1].top1 is 50.0"),
    "top1 null": (change((*CELL, "top1"), None), "cells[1].top1 is null"),
    "top1 without std": (remove((*CELL, "top1", "std")), "cells[1].top1 has no entry 'std'"),
    "mean above 100": (change((*CELL, "top1", "mean"), 175.3), "cells[1].top1.mean is 175.3, expected a percentage"),
    "mean negative": (change((*CELL, "top1", "mean"), -1), "cells[1].top1.mean is -1"),
    "mean text": (change((*CELL, "top1", "mean"), "50"), "cells[1].top1.mean is \"50\""),
    "mean null": (change((*CELL, "top1", "mean"), None), "cells[1].top1.mean is null"),
    "mean of others": (change((*CELL, "top1", "mean"), 50.3), "cells[1].top1_by_seed does not have the mean"),
    "std of others": (change((*CELL, "top1", "std"), 0.3), "cells[1].top1_by_seed does not have the population"),
    "std null but values": (change((*CELL, "top1", "std"), None), "cells[1].top1_by_seed does not have"),
    "std negative": (change((*CELL, "top5", "std"), -0.1), "cells[1].top5.std is -0.1"),
    "std huge": (change((*CELL, "top5", "std"), 60), "cells[1].top5.std is 60"),
    "top5 null but values": (change((*CELL, "top5"), None), "cells[1].top5_by_seed has values"),
    "values of other seeds": (change((*CELL, "top1_by_seed"), [50.0]), "cells[1].top1_by_seed is a list of 1"),
    "values null": (change((*CELL, "top1_by_seed"), None), "cells[1].top1_by_seed is null"),
    "value text": (change((*CELL, "top1_by_seed", 2), "x"), "cells[1].top1_by_seed[2] is \"x\""),
    "value outside": (change((*CELL, "top1_by_seed", 2), 1e9), "cells[1].top1_by_seed[2]"),
    "source number": (change((*CELL, "source"), 1), "cells[1].source is 1"),
    "source runs": (change((*CELL, "source"), "runs"), "reserved"),
    "poses as published": (change((*CELL, "source"), "paper v2"), "not the published number"),
    "the same twice": (change((*CELL, "model"), "a_b"), "cells[1] is a second a_b on in1k (n_shot 8); the first"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_results_can_be(tmp_path, name):
    apply, message = BAD[name]
    path = tmp_path / "f.json"
    path.write_text(json.dumps(apply(copy.deepcopy(GOOD))))
    with pytest.raises(CogError) as error:
        exchange.load(path)
    text = str(error.value)
    assert text.startswith(f"--import {path}: ") and message in text and "\n" not in text and len(text) < 400


def test_a_changed_published_number_is_refused(tmp_path):
    cells = published.accuracies()
    cells[7] = dataclasses.replace(cells[7], value=cells[7].value + 0.1)
    with pytest.raises(CogError, match=r"sup_resnet50 on in1k \(n_shot 128\) is labelled 'paper v2'"):
        exchange.load(write(tmp_path / "f.json", cells))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\x80\x04N.", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 10**6, "not valid JSON"),
        (b'{"format": "imagenet-cog results", "a": ' * 10**5, "not valid JSON"),
        (b"9" * 10**6, "not valid JSON"),
        (json.dumps(change(("cells", 0, "top1", "mean"), float("nan"))(copy.deepcopy(GOOD))).encode(), "NaN is not"),
        (json.dumps(GOOD).replace("50.1", "1e999", 1).encode(), "expected a number"),
        (json.dumps(GOOD).replace("50.1", "-Infinity", 1).encode(), "-Infinity is not"),
    ],
    ids=itertools.count(),  # the content says when it was written, which processes that share the tests must agree on
)  # fmt: skip
def test_what_is_no_json(tmp_path, content, message):
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
        ("large", "expected at most"),
    ):
        with pytest.raises(CogError, match=message):
            exchange.load(tmp_path / name)


def test_too_many_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "_MOST_ENTRIES", 1)
    (tmp_path / "f.json").write_text(json.dumps(GOOD))
    with pytest.raises(CogError, match="2 cells, expected at most 1"):
        exchange.load(tmp_path / "f.json")


def test_merging():
    one, two, three = make(source="x"), make("a_c", source="x"), make(source="y")
    assert exchange.merge(("f", [*one, *two]), ("g", [*two, *three])) == [*one, *two, *three]
    assert exchange.merge() == []
    with pytest.raises(CogError, match=r"f and g have different numbers of a_b on in1k \(n_shot 8\).*'x'"):
        exchange.merge(("f", [*one, *two]), ("g", make(source="x", missing_seeds=())))


def test_what_no_reader_would_accept_is_not_written(tmp_path):
    for cell, message in (
        (make(""), "runs without a model name"),
        (make(dataset="a/b"), "dataset is"),
        (make(epochs=(1,)), "epochs has 1 values"),
    ):
        with pytest.raises(CogError, match=message):
            exchange.write(tmp_path / "f.json", [*make("x_y"), *cell])
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_is_there_twice_is_refused(tmp_path):
    path = write(tmp_path / "f.json", make())
    whole = path.read_text()
    for text in (
        whole.replace('"label": null', '"label": "one", "label": "two"'),
        whole.replace('"mean":', '"mean": 99.0, "mean":', 1),
    ):
        assert text != whole
        path.write_text(text)
        with pytest.raises(CogError, match=r"an object has the entry .* twice"):
            exchange.load(path)


@pytest.mark.slow
def test_many_imported_cells_are_shown_with_work_in_proportion(tmp_path, capsys):
    """Calls of functions, which no busy machine changes: four times the cells take about four times as many."""

    def calls(n):
        cells = [one for index in range(n) for one in make(model=f"m{index}_net", n_shot=0)]
        path = write(tmp_path / f"{n}.json", cells)
        profile = cProfile.Profile()
        with profile:
            assert print_results.main(["--import", str(path), "--rank", "--format", "csv"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == n + 1
        return sum(entry.callcount for entry in profile.getstats())

    calls(10)
    few, many = calls(500), calls(2000)
    assert many < 4.6 * few
    assert many < 2000 * 500


@pytest.mark.slow
def test_many_imported_cells_take_seconds(tmp_path, capsys):
    """The quadratic part was in built-in functions, which a count of calls does not see."""
    path = write(
        tmp_path / "many.json", [one for index in range(20_000) for one in make(f"m{index}_net", n_shot=0)]
    )
    start = time.process_time()
    assert print_results.main(["--import", str(path), "--format", "csv"]) == 0
    assert time.process_time() - start < 10  # 2 to 3 s when the machine is idle, a minute when quadratic
    assert len(capsys.readouterr().out.splitlines()) == 20_001
