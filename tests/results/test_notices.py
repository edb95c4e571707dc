"""Checks: what each of them finds, and the command that repairs it."""

from __future__ import annotations

import json
import shlex

import pytest
from result_folders import make_record, make_seed_folder

from cog import constants
from cog.results import frame, notices, read, records, runs

FULL = {"n_classes": 1000, "rows": {"test": 50_000}}


def make_runs(
    root, *, model="my/net", datasets=("in1k", "cog_l2"), seeds=constants.SEEDS, n_shots=(0,), **more
):
    """Write runs on the benchmark's counts; ``more`` goes to their records, ``final`` to the final training."""
    identity, final = more.pop("identity", {}), more.pop("final", {})
    for dataset in datasets:
        for n_shot in n_shots:
            for seed in seeds:
                name = f"eval_logreg_N{n_shot}" if n_shot else "eval_logreg"
                path = root / model / dataset / name / f"seed-{seed}"
                folder = path if path.is_dir() else make_seed_folder(path)
                record = {**FULL, **more, "identity": {"lr_interval": [0.1, 100.0], **identity}}
                make_record(folder, seed=seed, n_shot=n_shot, record=record, **final)


def check(root):
    results = read.read(root)
    return notices.check(frame.average(results.scores), results.found, root=str(root))


def titles(found):
    return [notice.title for notice in found]


def test_a_complete_study_has_nothing_to_report(tmp_path):
    make_runs(tmp_path)
    assert check(tmp_path) == []


def test_missing_seeds_with_the_command_that_adds_them(tmp_path):
    root = tmp_path / "models dir"
    other = {"n_trials": 3, "n_epochs": 4, "lr_interval": [0.1, 10.0], "normalize": False, "momentum": 0.8}
    make_runs(root, datasets=("in1k", "cog_l1"), identity=other)
    make_runs(root, datasets=("cog_l2",), seeds=(22, 37, 77), identity=other)
    make_runs(root, datasets=("cog_l1",), n_shots=(1, 8), seeds=constants.SEEDS[:4], identity=other)
    notice = check(root)[0]
    assert notice.title == "Seeds are missing in 3 of 5 results" and notice.severity == "warning"
    assert "my_net, L2, all: missing 45, 93" in notice.places
    few, every = sorted(map(shlex.split, notice.commands))
    settings = shlex.split("CLF.N_TRIALS 3 CLF.N_EPOCHS 4 CLF.LR_INTV '(0.1, 10.0)' CLF.NORM_FTS False")
    variables = [f"models_root_dir={root}", "model_name=my_net"]
    assert few[:2] == ["bash", "bash-scripts/fewshot.sh"]
    assert few[2:] == [*variables, "dataset=cog_l1", "shots=1 8", "seeds=93", *settings]
    assert every == ["bash", "bash-scripts/logreg.sh", *variables, "dataset=cog_l2", "seeds=45 93", *settings]


def test_names_in_commands_are_quoted(tmp_path):
    root = tmp_path / "$(touch x)"
    make_runs(root, seeds=(22,))
    [command] = [c for notice in check(root) for c in notice.commands]
    assert f"models_root_dir='{root}'" in command


def test_folders_that_are_not_counted(tmp_path):
    make_runs(tmp_path)
    found = read.read(tmp_path)
    states = {"1": "running", "2": "interrupted", "3": "failed", "4": ""}
    found.found.skipped += [runs.Skipped(tmp_path / name, "why", state) for name, state in states.items()]
    failed, unfinished = notices.check(frame.average(found.scores), found.found)
    assert failed.title == "2 folders not counted" and failed.places[0] == f"{tmp_path}/3: why"
    assert unfinished.title == "2 runs not finished"


def test_other_data_and_settings(tmp_path):
    make_runs(tmp_path, model="a/net", n_classes=24)
    [other] = check(tmp_path)
    assert other.title == "Not the benchmark's data" and other.places == ("a_net, IN-1K, L2: 24 classes",)
    make_runs(tmp_path, model="b/net", identity={"n_trials": 10})
    found = {notice.title: notice.places for notice in check(tmp_path)}
    assert found["Settings differ from the paper's protocol"] == ("n_trials 10 (10 runs)",)
    assert set(found["Different data or settings under one name"]) == {
        "a_net on IN-1K, L2: 24 classes",
        "b_net on IN-1K, L2: n_trials 10",
    }


def test_mixed_settings_of_one_model(tmp_path):
    make_runs(tmp_path, identity={"n_epochs": 100, "batch_size": 1024})
    make_runs(tmp_path, datasets=("in1k",), seeds=(22,), identity={"n_epochs": 50, "batch_size": 256})
    found = {notice.title: notice for notice in check(tmp_path)}
    places = found["Different settings between results of one model"].places
    assert places[0] == "CLF.N_EPOCHS 50: my_net, IN-1K, all, seed 22"
    problem = found["No mean for 1 result"]
    assert problem.severity == "problem"
    assert problem.places == ("my_net, IN-1K, all: its seeds are of other settings",)


def test_diverged_training_comes_first_and_edges_are_told(tmp_path):
    make_runs(tmp_path, final={"lr": 10.5})
    make_runs(tmp_path, datasets=("in1k",), seeds=(22,), final={"lr": 99.0, "diverged": True})
    diverged, edge = check(tmp_path)
    assert (diverged.severity, diverged.title) == ("problem", "Final training diverged in 1 run")
    assert diverged.places[0].startswith("my_net, IN-1K, all, seed 22: ")
    assert "in 1 run" in edge.title and edge.places == ("my_net, IN-1K, all, seed 22: 99",)
    # On the logarithmic axis, 86 and 88 are at 97.8 % and 98.2 % of the way.
    known = {0.1: False, 86.0: False, 88.0: True, 100.0: True, None: False, -1.0: False}
    assert {value: records.at_upper_edge(value, [0.1, 100.0]) for value in known} == known
    for broken in (None, [1.0], [0.0, 1.0], ["a", "b"], [5.0, 1.0], "x"):
        assert not records.at_upper_edge(1.0, broken)


@pytest.mark.parametrize("changed", ["checkpoint_sha256", "sample_sha256", "rows_sha256"])
def test_features_that_were_made_anew(tmp_path, changed):
    used = {"checkpoint_sha256": "a" * 64, "sample_sha256": "b" * 64, "rows_sha256": "c" * 64}
    make_runs(
        tmp_path, datasets=("in1k",), identity={f"{split}_features": used for split in constants.SPLITS}
    )
    for now, expected in ((used, []), (used | {changed: "d" * 64}, ["Features changed after the runs"])):
        folder = tmp_path / "my/net/in1k/features_test"
        folder.mkdir(exist_ok=True)
        (folder / "features.json").write_text(json.dumps({"identity": now}))
        assert titles(check(tmp_path)) == expected
        results = read.read(tmp_path)
        assert titles(notices.of_training(frame.average(results.scores), results.found)) == expected


def test_features_of_other_checkpoints_and_failed_images(tmp_path):
    used = {"train_features": {"checkpoint_sha256": "a"}, "test_features": {"checkpoint_sha256": "b"}}
    make_runs(tmp_path, identity=used)
    for number, dataset in enumerate(("in1k", "cog_l2")):
        described = {"checkpoint_sha256": "ab"[number] * 64, "n_failed": 3 * number, "n_images": 50_000}
        folder = tmp_path / f"my/net/{dataset}/features_test"
        folder.mkdir()
        (folder / "features.json").write_text(json.dumps(described))
    found = {notice.title: notice for notice in check(tmp_path)}
    places = found["Features of different checkpoints"].places
    assert len(places) == 12 and places[0] == "my_net, IN-1K, all, seed 22"
    assert places[-2:] == tuple(
        f"my_net, checkpoint {sha * 12}: {name} test" for sha, name in (("a", "IN-1K"), ("b", "L2"))
    )
    assert "3 images could not be decoded" in found
