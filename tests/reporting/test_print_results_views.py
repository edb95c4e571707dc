"""The print_results command with runs, published numbers and files together; its outputs; what it refuses."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pickle
import re
from unittest import mock

import numpy as np
import pytest
from result_folders import make_logs, make_record, make_seed_folder

from cog import constants
from cog.commands import print_results
from cog.errors import CogError
from cog.reporting import figures as reporting_figures
from cog.reporting import html
from cog.reporting.figures import search
from cog.reporting.tables import accuracies
from cog.reporting.tables.layout import TableStyle
from cog.reporting.tables.pivot import Averages
from cog.results import concept_counts, exchange, find, published, uncertainty
from cog.runtime import cli

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


SHIFTS = (-0.2, -0.1, 0.0, 0.1, 0.2)
#: Accuracy of sup_resnet50 as run here; the published: 75.8, 67.9 and 52.0.
OURS = {"in1k": 75.9, "cog_l1": 67.85, "cog_l5": 45.0}
MINE = {"in1k": 74.0, "cog_l1": 68.5, "cog_l5": 50.0}


@pytest.fixture
def study(tmp_path):
    """sup_resnet50 and mine_net on three data sets, five seeds; few-shot of mine_net with two seeds."""
    root = tmp_path / "models"
    for model, top1_of in (("sup/resnet50", OURS), ("mine/net", MINE)):
        for dataset, top1 in top1_of.items():
            for seed, shift in zip(constants.SEEDS, SHIFTS):
                # A common shift of each seed, which pairing removes, and a little of each model's own.
                own = 0.01 * (seed % 7 - 3) * (1 if model == "mine/net" else -1)
                make_seed_folder(
                    root / model / dataset / f"eval_logreg/seed-{seed}", top1 + shift + own, 90.0
                )
    for seed in constants.SEEDS[:2]:
        make_seed_folder(root / f"mine/net/in1k/eval_logreg_N8/seed-{seed}", 55.0, 80.0)
    return root


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_records_beside_the_published(study, show):
    argv = ("--models_root_dir", study, "--with_published", "--format", "json")
    records = json.loads(show(*argv))
    paper = {(cell.model, cell.dataset, cell.n_shot): cell for cell in published.accuracies()}
    assert len(records) == 2 * 7 + 1674
    records = [row for row in records if row["metric"] == "top1"]
    own = [row for row in records if row["source"] == "runs" and row["model"] == "sup_resnet50"]
    assert len(own) == 3
    for row in own:
        assert row["mean"] == pytest.approx(OURS[row["dataset"]], abs=0.03)
        other = paper["sup_resnet50", row["dataset"], 0]
        deviation = (row["std"] ** 2 + other.std**2) ** 0.5
        assert (row["published_mean"], row["published_std"]) == (other.value, other.std)
        assert row["difference"] == pytest.approx(row["mean"] - other.value)
        assert row["combined_deviation"] == pytest.approx(deviation)
        assert row["within"] is (abs(row["mean"] - other.value) <= deviation + 0.05)
    assert {row["dataset"]: row["within"] for row in own} == {"in1k": True, "cog_l1": True, "cog_l5": False}
    assert {row["within"] for row in records if row["source"] == "paper v2"} == {None}


def test_one_evaluation_beside_the_published(study, show):
    select = ("--models_root_dir", study, "--dataset", "cog_l1", "--with_published", "--model")
    assert show(*select, "sup_resnet50").splitlines()[-1] == (
        "paper v2: 67.9 +- 0.1; difference -0.04, within the combined deviation of 0.17"
    )
    assert show(*select, "mine_net").splitlines()[-1] == (
        "paper v2: no number of this model, data set and number of shots"
    )
    out = show("--logreg_root_dir", study / "sup/resnet50/in1k/eval_logreg", "--with_published --paper v1")
    assert out.splitlines()[-1].startswith(
        "paper v1: 75.8; difference +0.11 (the deviation was not published)"
    )


def test_a_drop_needs_no_table_of_in1k(study, show):
    argv = ("--models_root_dir", study, "--drop", "--n_shot", "all", "--format", "json")
    everything = json.loads(show(*argv))
    assert {row["dataset"] for row in everything} == {"in1k", "cog_l1", "cog_l5"}
    only = json.loads(show(*argv, "--dataset", "cog_l5", "--model", "mine_*"))
    assert only == [row for row in everything if (row["dataset"], row["model"]) == ("cog_l5", "mine_net")]
    baseline = ("--relative_to", "sup_resnet50", "--model", "mine_net", "--dataset", "cog_l5")
    row, _ = json.loads(show(*argv[:2], *baseline, *argv[3:]))
    assert row["difference"] == pytest.approx(5 - 0.028) and row["baseline_source"] == "runs"


MODELS = ("sup_resnet50", "clip_resnet50")


@pytest.mark.parametrize("layout", ["datasets", "shots"])
@pytest.mark.parametrize(
    "quantity",
    [accuracies.accuracy, accuracies.relative_to("sup_resnet50"), accuracies.drop, accuracies.rank],
)
def test_sources_are_treated_alike(quantity, layout):
    """The same numbers as runs, of a file and as published: all views show the same."""
    cells = [one for one in published.accuracies() if one.model in MODELS and one.n_shot in (0, 8)]

    def shown(source):
        averages = Averages((dataclasses.replace(one, source=source) for one in cells), models=MODELS)
        view = accuracies.of_accuracies(
            averages, quantity, metrics=["top1"], layout=layout, style=TableStyle()
        )
        tables = [
            (re.sub(r" \[.*\]| \(Table \d+ of the paper\)", "", table.title), table.rows)
            for table in view.tables
        ]
        return tables, [{**record, "source": "", "baseline_source": ""} for record in view.records]

    assert shown("runs") == shown("their file") == shown("paper v2") and len(shown("runs")[1]) == 24


@pytest.fixture
def counted(study):
    """The study with right answers per concept: mine_net is behind on in1k, level on cog_l1, and ahead on cog_l5."""
    ahead = {"in1k": -6, "cog_l1": 0, "cog_l5": 6}
    base = np.random.default_rng(0).integers(20, 40, 40)
    for path in study.glob("*/*/*/eval_logreg/seed-*"):
        model, dataset, seed = path.parts[-4], path.parts[-3], int(path.name[5:])
        own = np.random.default_rng(seed + len(dataset + model)).integers(-2, 3, 40)
        right = (base + own + (ahead[dataset] if model == "net" else 0)).tolist()
        logs = make_logs(100 * sum(right) / 2000, 99.0)
        (path / "final-lr-10.5_wd-1e-06/logs.pkl").write_bytes(pickle.dumps(logs))
        counts = concept_counts.write(right, [50] * 40)
        make_record(path, seed=seed, record={"n_classes": 40}, **counts)
    return study


def concepts_of(root):
    """Return the right answers per concept of the runs with all images, by model and data set."""
    found: dict[tuple[str, str], list[object]] = {}
    for run in find.find_all(root, n_shots=[0]).runs:
        found.setdefault((run.model, run.dataset), []).append(run.concepts)
    return found


def test_differences_paired_over_seeds_and_concepts(counted, show):
    argv = (
        "--models_root_dir",
        counted,
        "--model",
        "mine_net",
        "--relative_to",
        "sup_resnet50",
        "--n_shot",
        0,
    )
    rows = [row for row in json.loads(show(*argv, "--format", "json")) if row["metric"] == "top1"]
    assert [row["dataset"] for row in rows] == ["in1k", "cog_l1", "cog_l5"]
    concepts = concepts_of(counted)
    estimates = [
        uncertainty.difference(*(concepts[model, row["dataset"]] for model in ("mine_net", "sup_resnet50")))
        for row in rows
    ]
    for row, estimate, p in zip(rows, estimates, uncertainty.holm([e.p for e in estimates])):
        assert (row["difference"], row["low"], row["high"], row["p"]) == pytest.approx(
            (estimate.mean, estimate.low, estimate.high, estimate.p)
        )
        assert row["p_holm"] == p and row["common_seeds"] == list(constants.SEEDS)
    assert [row["reading"] for row in rows] == ["lower", "cannot be told apart", "higher"]
    entries = re.findall(r"[-+]\d+\.\d +\[[^]]*\](?: \*)?", show(*argv))
    assert [entry.endswith("*") for entry in entries] == [True, False, True]
    assert "cannot be told apart" in " ".join(show(*argv).split())


def test_imported_numbers_have_the_intervals_and_verdicts_of_the_runs(counted, show, tmp_path):
    file = tmp_path / "theirs.json"
    show("--models_root_dir", counted, "--export", file)

    def place(row):
        return row["dataset"], row["model"], row["n_shot"], row["metric"]

    for view in (("--model mine_net", "--relative_to", "sup_resnet50"), ("--drop",), ("--n_shot", "all")):
        ours, theirs = (
            sorted(json.loads(show(*source, *view, "--format", "json")), key=place)
            for source in (("--models_root_dir", counted), ("--import", file))
        )
        for one, other in zip(ours, theirs, strict=True):
            names = [name for name in one if "source" not in name]
            assert [one[name] for name in names] == [other[name] for name in names]
    # A model of the file against one's own runs.
    own = (
        "--models_root_dir",
        counted,
        "--import",
        file,
        "--relative_to sup_resnet50 --model mine_net --n_shot 0",
    )
    rows = json.loads(show(*own, "--format", "json"))
    readings = {
        (row["dataset"], row["reading"])
        for row in rows
        if (row["source"], row["metric"]) == ("theirs", "top1")
    }
    assert readings == {("in1k", "lower"), ("cog_l1", "cannot be told apart"), ("cog_l5", "higher")}


@pytest.mark.parametrize(
    "view, expected",
    [
        ((), lambda there, base, in1k: uncertainty.accuracy(there)),
        (("--relative_to", "sup_resnet50"), lambda there, base, in1k: uncertainty.difference(there, base)),
        (
            ("--drop", "--dataset", "cog_l1", "cog_l5"),
            lambda there, base, in1k: uncertainty.change(*map(uncertainty.accuracy, (there, in1k))),
        ),
    ],
    ids=["accuracy", "difference", "drop"],
)
def test_intervals_are_over_the_right_answers_per_concept(counted, show, view, expected):
    concepts = concepts_of(counted)
    rows = json.loads(show("--models_root_dir", counted, *view, "--n_shot", 0, "--format", "json"))
    rows = [row for row in rows if row["metric"] == "top1"]
    assert len(rows) in (4, 6)
    for row in rows:
        if row["model"] == row.get("baseline"):
            assert (row["difference"], row["low"], row["high"]) == (0.0, None, None)
            continue
        places = ((row["model"], row["dataset"]), ("sup_resnet50", row["dataset"]), (row["model"], "in1k"))
        interval = expected(*(concepts[place] for place in places)).interval
        assert (row["low"], row["high"]) == pytest.approx(interval)


def test_a_drop_on_in1k_itself_has_no_interval(counted, show):
    rows = json.loads(show("--models_root_dir", counted, "--drop --dataset in1k --n_shot 0 --format json"))
    assert [(row["drop"], row["low"], row["high"]) for row in rows] == [(0.0, None, None)] * 4


def test_without_counts_or_common_seeds_nothing_is_told(study, show):
    select = ("--models_root_dir", study, "--model", "mine_net", "--n_shot", "all", "--relative_to")
    rows = json.loads(show(*select, "sup_resnet50", "--format", "json"))
    assert {row["reading"] for row in rows} == {"not told: counts per concept are not known"}
    assert {(row["low"], row["p_holm"], len(row["common_seeds"])) for row in rows} == {(None, None, 5)}
    assert "*" not in show(*select, "sup_resnet50").splitlines()[3]
    rows = json.loads(show(*select, "clip_resnet50", "--with_published", "--format", "json"))
    assert [row["dataset"] for row in rows] == ["in1k", "cog_l1", "cog_l5"]
    assert {(row["low"], len(row["common_seeds"])) for row in rows} == {(None, 0)}


def test_export_and_import(study, tmp_path, show):
    target = tmp_path / "ours.json"
    argv = ("--models_root_dir", study, "--view", "shots")
    expected = show(*argv, "--n_shot", "all")
    assert show("--models_root_dir", study, "--export", target) == "", "instead of the tables"
    assert len(exchange.load(target)) == 2 * 7
    imported = show("--import", target, "--view shots --n_shot all --model mine_net sup_resnet50")
    flat, _, unverified = " ".join(imported.replace("[ours]", "").split()).partition(" Unverified: ")
    assert flat == " ".join(expected.split())
    assert "does not say how many classes" in unverified  # these runs do not record it
    # Paired comparisons survive, also between their runs and ours.
    compare = ("--relative_to sup_resnet50 --model mine_net --n_shot all", "--format", "json")
    ours = json.loads(show("--models_root_dir", study, *compare))
    theirs = json.loads(show("--import", target, *compare))
    assert theirs == [{**row, "source": "ours", "baseline_source": "ours"} for row in ours]
    both = json.loads(show("--models_root_dir", study, "--import", target, *compare))
    assert {len(row["common_seeds"]) for row in both} == {5}
    assert {(row["source"], row["baseline_source"]) for row in both} == {("runs", "runs"), ("ours", "ours")}


@pytest.mark.slow
def test_published_numbers_through_a_file_are_the_published_numbers(tmp_path, show):
    target = tmp_path / "f.json"
    show("--published_only", "--export", target)
    assert show("--import", target, "--view", "shots") == show("--published_only", "--view", "shots")
    # Once, not twice.
    assert show("--import", target, "--with_published", "--rank") == show("--published_only", "--rank")


def test_an_imported_cell_that_is_incomplete_is_marked(study, tmp_path, show):
    show("--models_root_dir", study, "--export", tmp_path / "f.json")
    out = show("--import", tmp_path / "f.json", "--n_shot", 8)
    assert "mine_net  55.0 ± 0.0 (2/5)" in out and "mine_net, in1k: 45, 77, 93" in out


@pytest.mark.parametrize(
    "more", [(), ("--with_published", "--model", "mine_*"), ("--relative_to", "mine_net")]
)
def test_figures_report_and_diagnostics_get_what_is_selected(study, tmp_path, show, monkeypatch, more):
    calls = {name: mock.Mock(return_value=[]) for name in ("figures", "diagnostics", "report")}
    for module, call in zip((reporting_figures, search, html), calls.values()):
        monkeypatch.setattr(module, "write", call)
    places = {name: tmp_path / f"new_{name}" for name in ("figures", "diagnostics", "report")}
    flags = [word for name, path in places.items() for word in (f"--{name}", path)]
    out = show("--models_root_dir", study, *flags, *more, "--dataset in1k")
    assert out == ""
    models = {"mine_net"} if "--model" in more else {"mine_net", "sup_resnet50"}
    (cells, of_paper, folder), drawn = calls["figures"].call_args
    (runs, searches), _ = calls["diagnostics"].call_args
    (page, stated), report = calls["report"].call_args
    for selected in (cells, stated.cells):
        assert {(cell.model, cell.source, cell.dataset) for cell in selected} == {
            (model, "runs", "in1k") for model in models
        }
    assert {run.model for run in runs} == {run.model for run in stated.runs} == models
    assert of_paper == []
    assert report["published"] == published.accuracies(), "where a model stands among all of them"
    assert (folder, searches, page) == tuple(places.values())
    assert drawn["datasets"] == ["in1k"]
    assert drawn["baseline"] == ("mine_net" if "--relative_to" in more else None)
    assert report["root"] == study


def test_runs_with_different_settings_are_averaged_with_a_warning(tmp_path, capsys):
    for dataset in ("in1k", "cog_l1"):
        for seed, n_trials in ((22, 30), (37, 30), (45, 5 if dataset == "in1k" else 30)):
            folder = make_seed_folder(tmp_path / f"models/a/b/{dataset}/eval_logreg/seed-{seed}")
            settings = {"seed": seed, "n_trials": n_trials, "lr_interval": [0.1, 100.0], "lr": seed / 7}
            make_record(folder, seed=seed, record={"identity": settings})
    # A run of the original toolkit records no settings.
    make_seed_folder(tmp_path / "models/a/b/in1k/eval_logreg/seed_77")
    cli.set_up_logging()
    print_results.main(["--models_root_dir", str(tmp_path / "models")])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "warning: Different settings between results of one model: CLF.N_TRIALS 5: a_b, IN-1K"
    )
    assert "seed 45; CLF.N_TRIALS 30: a_b, IN-1K, all images, seed 22; " in line


def test_unwritable_folder_without_relying_on_permissions(study, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK))
    for flag in ("--export", "--report", "--figures", "--diagnostics"):
        with pytest.raises(CogError, match=f"{flag} .*no permission"):
            print_results.main(["--models_root_dir", str(study), flag, str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_a_single_seed_has_no_deviation(study, show):
    select = ("--models_root_dir", study, "--dataset", "cog_l1", "--seeds", "22", "--format", "json")
    assert {row["std"] for row in json.loads(show(*select))} == {None}
    for view, column in (
        (["--relative_to", "sup_resnet50"], "deviation"),
        (["--drop"], "drop_deviation"),
    ):
        assert {row.get(column) for row in json.loads(show(*select, *view))} == {None}
    assert "±" not in show("--models_root_dir", study, "--seeds", "22")


def test_ranks_beside_published_means_are_at_their_precision(study, show):
    """A mean 0.04 below a published one, which is rounded to 0.1, shares its rank, as on the page."""
    for seed in constants.SEEDS:
        make_seed_folder(study / f"tied/net/cog_l1/eval_logreg/seed-{seed}", 71.06, 90.0)  # DINO: 71.1
    select = (
        "--models_root_dir",
        study,
        "--dataset",
        "cog_l1",
        "--n_shot",
        "all",
        "--rank",
        "--format",
        "json",
    )
    rows = [row for row in json.loads(show(*select, "--with_published")) if row["metric"] == "top1"]
    ranks = {row["model"]: row for row in rows if row["source"] != "runs"}
    mine = {row["model"]: row for row in rows if row["source"] == "runs"}
    assert mine["tied_net"]["rank"] == ranks["dino_resnet50"]["rank"] and mine["tied_net"]["n_tied"] > 1
    assert "rounded to 0.1, as published" in show(*select[:-2], "--with_published")
    assert "rounded" not in show(*select[:-2])


def test_another_classifier_is_named(study, show, tmp_path):
    for seed in constants.SEEDS[:2]:
        make_seed_folder(study / f"mine/net/in1k/eval_mlp/seed-{seed}", 55.0, 80.0)
    select = ("--models_root_dir", study, "CLF.TYPE", "mlp")
    assert "Classifier of the runs: MLP (mlp)." in show(*select, "--view", "datasets")
    rows = json.loads(show(*select, "--with_published", "--format", "json"))
    assert {(row["source"], row["evaluation"]) for row in rows} == {("runs", "mlp"), ("paper v2", "logreg")}
    page = tmp_path / "page.html"
    show(*select, "--report", page)
    assert "The classifier of these results: MLP (mlp)" in page.read_text()
