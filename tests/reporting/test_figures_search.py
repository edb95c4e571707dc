"""Search diagnostics: what is read from run folders, drawn and written."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import re
from xml.etree import ElementTree

import pytest
from report_runs import make_run
from result_folders import make_record, make_seed_folder
from test_figures_drawn import check_layout

from cog.errors import CogError, UnsafeFileError
from cog.reporting.figures import saving, search
from cog.results import find, search_history

SEEDS = (22, 37)

#: lr, wd, validation top-1, diverged, pruned; the fourth is the best that may be chosen.
TRIALS = [
    (0.5, 1e-10, 40.0, False, False),
    (80.0, 1e-5, 0.0, True, False),
    (3.0, 1e-6, 55.0, False, False),
    (12.0, 1e-7, 61.0, False, False),
    (9.0, 1e-8, 70.0, False, True),
    (15.0, 1e-7, 60.0, False, False),
]


def trial(number, *values):
    """Return the record of a trial with the values of a row of ``TRIALS``."""
    names = ("lr", "wd", "val_top1", "diverged", "pruned")
    return {"number": number, "seconds": 1.5} | dict(zip(names, values, strict=True))


def write_run(
    root, model, dataset, seed, *, n_shot=0, trials=TRIALS, original=False, epochs=4, final=(12.0, 1e-7)
):
    title, _, architecture = model.partition("_")
    suffix = f"_N{n_shot}" if n_shot else ""
    path = root / title / architecture / dataset / f"eval_logreg{suffix}" / f"seed-{seed}"
    folder = f"final-lr-{final[0]}_wd-{final[1]}"
    logs = {
        f"{part}/{name}": [float(seed + epoch + offset) for epoch in range(epochs)]
        for offset, (part, name) in enumerate(
            (part, name) for part in ("train", "test") for name in ("loss", "top1", "top5")
        )
    }
    logs["lr"] = [final[0] * (epochs - epoch) / epochs for epoch in range(epochs)]
    make_seed_folder(path, logs=logs, final=folder)
    if original:
        return path
    record = {
        "model": model,
        "dataset": dataset,
        "identity": {"lr_interval": [0.1, 100.0], "wd_interval": [1e-12, 1e-4]},
        "trials": [trial(number, *values) for number, values in enumerate(trials)],
    }
    make_record(path, seed=seed, n_shot=n_shot, record=record, folder=folder, lr=final[0], wd=final[1])
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs with and without searches; study.pkl of none is a pickle, so reading one would fail."""
    root = tmp_path_factory.mktemp("models")
    for seed in SEEDS:
        write_run(root, "my_net", "cog_l3", seed)
    write_run(root, "my_net", "cog_l3", 22, n_shot=8)
    write_run(root, "old_net", "in1k", 22, original=True)
    write_run(root, "fixed_net", "in1k", 22, trials=[], final=(10.0, 0.0), epochs=1)
    return root


@pytest.fixture(scope="module")
def runs(root):
    runs, problems = find.find_runs(root)
    assert not problems and len(runs) == 5
    return runs


@pytest.fixture(scope="module")
def pages(runs):
    return {page.stem: page for page in search.pages(runs)}


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search") / "new"
    return folder, search.write(runs, folder, formats=["svg"])


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_pages_hold_the_seeds_of_one_cell(pages):
    assert {stem: [run.seed for run in page.runs] for stem, page in pages.items()} == {
        "search_my_net_cog_l3": [22, 37],
        "search_my_net_cog_l3_N8": [22],
        "search_old_net_in1k": [22],
        "search_fixed_net_in1k": [22],
    }
    assert pages["search_my_net_cog_l3_N8"].title == "my_net, L3, 8 training images per class"


@pytest.mark.slow
def test_files(written, pages):
    folder, paths = written
    names = {f"{stem}{end}" for stem in pages for end in (".svg", ".csv", "_curves.csv")}
    assert {path.name for path in paths} == set(os.listdir(folder)) == names


@pytest.mark.slow
def test_trials_are_written_as_recorded(written):
    rows = read_csv(written[0] / "search_my_net_cog_l3.csv")
    assert tuple(rows[0]) == search.TRIAL_COLUMNS
    assert [row["seed"] for row in rows] == ["22"] * 6 + ["37"] * 6
    for row, (lr, wd, top1, diverged, pruned) in zip(rows, TRIALS * 2):
        assert (float(row["lr"]), float(row["wd"])) == (lr, wd)
        assert row["val_top1"] == ("" if diverged else str(top1))
        assert (row["diverged"], row["pruned"]) == (str(int(diverged)), str(int(pruned)))
        assert row["seconds"] == "1.5"
    assert [row["chosen"] for row in rows] == ["0", "0", "0", "1", "0", "0"] * 2
    # a stopped trial cannot be chosen, so it does not count for the best
    assert [row["best_so_far"] for row in rows[:6]] == ["40.0", "40.0", "55.0", "61.0", "61.0", "61.0"]


@pytest.mark.slow
def test_curves_are_those_of_the_logs(written, root):
    rows = read_csv(written[0] / "search_my_net_cog_l3_curves.csv")
    assert [(row["seed"], row["epoch"]) for row in rows] == [
        (str(seed), str(epoch)) for seed in SEEDS for epoch in (1, 2, 3, 4)
    ]
    for seed in SEEDS:
        path = root / f"my/net/cog_l3/eval_logreg/seed-{seed}/final-lr-12.0_wd-1e-07/logs.pkl"
        logs = pickle.loads(path.read_bytes())
        mine = [row for row in rows if row["seed"] == str(seed)]
        for key in search_history.CURVES:
            assert [float(row[key]) for row in mine] == logs[key]


def artists(figure):
    """Positions of every marked artist: {gid: [(x, y), ...]}."""
    found = {}
    for axes in figure.axes:
        for line in axes.get_lines():
            if line.get_gid():
                found[line.get_gid()] = list(zip(line.get_xdata(), line.get_ydata()))
        for points in axes.collections:
            if points.get_gid():
                found[points.get_gid()] = [tuple(offset) for offset in points.get_offsets()]
    return found


def test_what_is_drawn(pages):
    from cog.reporting.figures import search_drawing

    page = pages["search_my_net_cog_l3"]
    with saving.drawing():
        found = search.read(page)
        figure = search_drawing.draw(page.title, found)
        check_layout(figure)
    drawn = artists(figure)
    places = [(math.log10(lr), math.log10(wd)) for lr, wd, *_ in TRIALS]
    for seed in SEEDS:
        assert drawn[f"trials.{seed}"] == [places[i] for i in (0, 2, 5, 3)]  # the best on top
        assert drawn[f"diverged.{seed}"] == [places[1]]
        assert drawn[f"pruned.{seed}"] == [places[4]]
        assert drawn[f"chosen.{seed}"] == [places[3]]
        assert drawn[f"best.{seed}"] == list(zip(range(1, 7), (40, 40, 55, 61, 61, 61)))
        assert [y for _, y in drawn[f"scores.{seed}"]] == [40, 55, 61, 70, 60]
        assert drawn[f"train-loss.{seed}"] == [(e + 1, seed + e) for e in range(4)]
        assert drawn[f"test-top1.{seed}"] == [(e + 1, seed + e + 4) for e in range(4)]
        assert drawn[f"lr.{seed}"] == [(1, 12), (2, 9), (3, 6), (4, 3)]
    plane = figure.axes[0]
    ends = {line.get_xdata()[0] for line in plane.get_lines()} | {
        line.get_ydata()[0] for line in plane.get_lines()
    }
    assert {-1.0, 2.0, -12.0, -4.0} <= ends  # the interval's ends
    (scatter,) = (c for c in plane.collections if c.get_gid() == "trials.22")
    assert list(scatter.get_array()) == [40, 55, 60, 61]
    assert (scatter.norm.vmin, scatter.norm.vmax) == (51, 61)  # ten points below the best


def test_what_is_missing_is_said(pages):
    from cog.reporting.figures import search_drawing

    for stem, words in (
        ("search_old_net_in1k", "original toolkit, whose study.pkl cannot be read safely"),
        ("search_fixed_net_in1k", "made without a search"),
    ):
        page = pages[stem]
        found = search.read(page)
        assert any(words in text for one in found for text in one.missing)
        with saving.drawing():
            figure = search_drawing.draw(page.title, found)
            check_layout(figure)
        if stem == "search_old_net_in1k":
            ((x, y),) = artists(figure)["chosen.22"]
            (left, right), (low, high) = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
            assert left < x < right and low < y < high
        texts = " ".join(t.get_text() for t in (*figure.texts, *(x for a in figure.axes for x in a.texts)))
        assert words in texts.replace("\n", " ")
        assert not any(gid.startswith(("trials", "best")) for gid in artists(figure))
    assert "test-top1.22" in artists(figure)
    old = search.read(pages["search_old_net_in1k"])[0]
    assert (old.lr, old.wd, old.trials) == (12.0, 1e-7, ())


@pytest.mark.slow
def test_odd_records_are_read_as_far_as_they_go(tmp_path):
    path = write_run(tmp_path, "odd_net", "in1k", 22)
    record = json.loads((path / "results.json").read_text())
    record["identity"] = {"lr_interval": [5, 1], "wd_interval": "none"}
    record["trials"] = [
        None,
        {"lr": "high", "wd": 1},
        {"lr": 2, "wd": 1e-5, "val_top1": None},
        trial(7, 0.0, 1e-5, 30.0, False, False),
        trial(8, 1e300, 1e-300, 10**400, False, False),
    ]
    (path / "results.json").write_text(json.dumps(record))
    runs, _ = find.find_runs(tmp_path)
    (found,) = search.read(search.pages(runs)[0])
    assert [(t.number, t.lr) for t in found.trials] == [(2, 2.0), (7, 0.0), (8, 1e300)]
    assert (found.lr_interval, found.wd_interval, found.chosen) == (None, None, None)
    search.write(runs, tmp_path / "out", formats=["png"])
    rows = read_csv(tmp_path / "out" / "search_odd_net_in1k.csv")
    assert [row["val_top1"] for row in rows] == ["", "30.0", ""]


def test_diverged_final_training(tmp_path):
    path = write_run(tmp_path, "bad_net", "in1k", 22, trials=[(1.0, 1e-5, 0.0, True, False)])
    (logs_file,) = path.glob("final-*/logs.pkl")
    logs = pickle.loads(logs_file.read_bytes())
    logs["train/loss"] = [1.0, math.nan, math.inf, math.inf]
    del logs["lr"]
    logs_file.write_bytes(pickle.dumps(logs))
    runs, _ = find.find_runs(tmp_path)
    (found,) = search.read(search.pages(runs)[0])
    assert found.missing == ("no curve of lr",)
    search.write(runs, tmp_path / "out", formats=["svg"])
    rows = read_csv(tmp_path / "out" / "search_bad_net_in1k_curves.csv")
    assert [row["train/loss"] for row in rows] == ["1.0", "", "", ""]


def test_strips_of_a_page(pages):
    texts = search.strips(pages.values(), most=2)
    assert len(texts) == 2
    ids = [found for text in texts for found in re.findall(r' id="([^"]*)"', text)]
    assert len(ids) == len(set(ids))
    for text in texts:
        root = ElementTree.fromstring(text)
        assert not any(element.tag.endswith(("image", "style", "script")) for element in root.iter())
        assert "Chosen: seed 22: lr 1" in root.attrib["aria-label"]


def test_nothing_is_drawn_of_runs_without_records(tmp_path):
    run = make_run(path=tmp_path)
    assert search.strips(search.pages([run]), most=3) == [""]


@pytest.mark.slow
@pytest.mark.parametrize(
    "trials",
    [
        [],
        [(1.0, 0.0, 50.0, False)],
        [(1.0, 1e-5, 50.0, False)],
        [(1e-300, 1e300, 0.0, True)] * 3,
        [(1e-9, 1e-9, 100.0, False), (1e9, 1.0, 0.0, False)],
    ],
)
def test_strips_of_odd_searches(trials):
    from cog.reporting.figures import inline, search_drawing

    made = tuple(search_history.Trial(n, *trial, math.nan) for n, trial in enumerate(trials))
    for interval in (None, (1e-12, 1e-4)):
        record = search_history.SearchRecord(
            22, made, 1e-200, 1e200, interval, interval, {"test/top1": (50.0,)}
        )
        with saving.drawing():
            figure = search_drawing.draw_strip([record])
            drawn = inline.from_figure(figure, prefix="x", description="", tooltips={})
            if max(trials, default=(1e300,))[0] < 1e3:  # axes over hundreds of decades have long labels
                check_layout(figure)
        assert "nan" not in drawn and "inf" not in drawn


@pytest.mark.slow
def test_errors(written, runs, tmp_path):
    with pytest.raises(CogError, match="no run whose search"):
        search.write([], tmp_path / "out")
    with pytest.raises(CogError, match=r"holds figures already \(search_.* and 9 more\)"):
        search.write(runs, written[0], formats=["svg"])
    assert not (tmp_path / "out").exists()


def test_hostile_logs_are_refused(tmp_path):
    path = write_run(tmp_path, "my_net", "in1k", 22)
    runs, _ = find.find_runs(tmp_path)
    (logs_file,) = path.glob("final-*/logs.pkl")
    logs_file.write_bytes(b"cos\nsystem\n(S'touch /nowhere'\ntR.")
    with pytest.raises(UnsafeFileError):
        search.write(runs, tmp_path / "out", formats=["svg"])
