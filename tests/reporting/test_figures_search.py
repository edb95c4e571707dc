"""Drawings of searches: what is read from run folders, drawn and written."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle

import pytest
from result_folders import make_record, make_seed_folder
from test_figures_drawn import check_layout

from cog.errors import CogError, UnsafeFileError
from cog.reporting.figures import saving, search
from cog.results import find, search_history

SEEDS = (22, 37)

#: lr, wd, validation top-1, diverged; the fourth is the best.
TRIALS = [
    (0.5, 1e-10, 40.0, False),
    (80.0, 1e-5, 0.0, True),
    (3.0, 1e-6, 55.0, False),
    (12.0, 1e-7, 61.0, False),
    (15.0, 1e-7, 60.0, False),
]


def trial(number, *values):
    """Return the record of a trial with the values of a row of ``TRIALS``."""
    names = ("lr", "wd", "val_top1", "diverged")
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
    return folder, search.write(runs, folder)


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
def test_files(written, pages, root):
    folder, paths = written
    ends = (".pdf", ".png", ".svg", ".csv", "_curves.csv")
    names = {f"{stem}{end}" for stem in pages for end in ends}
    assert {path.name for path in paths} == set(os.listdir(folder)) == names
    rows = read_csv(folder / "search_my_net_cog_l3.csv")
    assert tuple(rows[0]) == search.TRIAL_COLUMNS
    assert [row["seed"] for row in rows] == ["22"] * 5 + ["37"] * 5
    for row, (lr, wd, top1, diverged) in zip(rows, TRIALS * 2):
        assert (float(row["lr"]), float(row["wd"])) == (lr, wd)
        assert row["val_top1"] == ("" if diverged else str(top1))
        assert (row["diverged"], row["seconds"]) == (str(int(diverged)), "1.5")
    assert [row["chosen"] for row in rows] == ["0", "0", "0", "1", "0"] * 2
    assert [row["best_so_far"] for row in rows[:5]] == ["40.0", "40.0", "55.0", "61.0", "61.0"]
    rows = read_csv(folder / "search_my_net_cog_l3_curves.csv")
    for seed in SEEDS:
        path = root / f"my/net/cog_l3/eval_logreg/seed-{seed}/final-lr-12.0_wd-1e-07/logs.pkl"
        logs = pickle.loads(path.read_bytes())
        mine = [row for row in rows if row["seed"] == str(seed)]
        assert [row["epoch"] for row in mine] == ["1", "2", "3", "4"]
        for key in search_history.CURVES:
            assert [float(row[key]) for row in mine] == logs[key]


def draw(page):
    with saving.drawing():
        figure = search.draw(page.title, [search_history.read_search(run) for run in page.runs])
        check_layout(figure)
    return figure


def test_what_is_drawn(pages):
    figure = draw(pages["search_my_net_cog_l3"])
    plane, best, curves = figure.axes[:3]
    for scatter in plane.collections:
        assert list(scatter.get_array()) == [40, 55, 60, 61]  # the best on top
        assert (scatter.norm.vmin, scatter.norm.vmax) == (51, 61)  # ten points below the best
        assert [tuple(place) for place in scatter.get_offsets()][-1] == (12.0, 1e-7)
    assert len(plane.collections) == len(SEEDS)
    lines = {tuple(map(float, line.get_ydata())) for line in best.get_lines()}
    assert (40, 40, 55, 61, 61) in lines
    lines = {tuple(line.get_ydata()) for line in curves.get_lines()}
    assert (26.0, 27.0, 28.0, 29.0) in lines  # test top-1 of seed 22


def test_what_is_missing_is_said(pages):
    for stem, words in (
        ("search_old_net_in1k", "study.pkl of the original toolkit cannot be read safely"),
        ("search_fixed_net_in1k", "made without a search"),
    ):
        (legend,) = draw(pages[stem]).legends
        assert words in legend.get_title().get_text().replace("\n", " ")


@pytest.mark.slow
def test_odd_records_are_read_as_far_as_they_go(tmp_path):
    path = write_run(tmp_path, "odd_net", "in1k", 22)
    record = json.loads((path / "results.json").read_text())
    record["identity"] = {"lr_interval": [5, 1], "wd_interval": "none"}
    record["trials"] = [
        None,
        {"lr": "high", "wd": 1},
        {"lr": 2, "wd": 1e-5, "val_top1": None},
        trial(7, 0.0, 1e-5, 30.0, False),
        trial(8, 1e300, 1e-300, 10**400, False),
        trial(9, 1e-200, 1e200, 100.0, False),
    ]
    (path / "results.json").write_text(json.dumps(record))
    runs, _ = find.find_runs(tmp_path)
    found = search_history.read_search(runs[0])
    assert [(t.number, t.lr) for t in found.trials] == [(2, 2.0), (7, 0.0), (8, 1e300), (9, 1e-200)]
    assert (found.lr_interval, found.wd_interval, found.chosen) == (None, None, None)
    search.write(runs, tmp_path / "out")
    rows = read_csv(tmp_path / "out" / "search_odd_net_in1k.csv")
    assert [row["val_top1"] for row in rows] == ["", "30.0", "", "100.0"]


def test_diverged_final_training(tmp_path):
    path = write_run(tmp_path, "bad_net", "in1k", 22, trials=[(1.0, 1e-5, 0.0, True)])
    (logs_file,) = path.glob("final-*/logs.pkl")
    logs = pickle.loads(logs_file.read_bytes())
    logs["train/loss"] = [1.0, math.nan, math.inf, math.inf]
    del logs["lr"]
    logs_file.write_bytes(pickle.dumps(logs))
    runs, _ = find.find_runs(tmp_path)
    assert search_history.read_search(runs[0]).missing == ("no curve of lr",)
    search.write(runs, tmp_path / "out")
    rows = read_csv(tmp_path / "out" / "search_bad_net_in1k_curves.csv")
    assert [row["train/loss"] for row in rows] == ["1.0", "", "", ""]


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(CogError, match="no run whose search"):
        search.write([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_hostile_logs_are_refused(tmp_path):
    path = write_run(tmp_path, "my_net", "in1k", 22)
    runs, _ = find.find_runs(tmp_path)
    (logs_file,) = path.glob("final-*/logs.pkl")
    logs_file.write_bytes(b"cos\nsystem\n(S'touch /nowhere'\ntR.")
    with pytest.raises(UnsafeFileError):
        search.write(runs, tmp_path / "out")
