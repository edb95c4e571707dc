"""Checks: what each of them finds, and the command that repairs it."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest
from report_runs import make_cell, make_found, make_run

from cog import constants
from cog.results import checks, search_history
from cog.results.run_records import Problem
from cog.runtime.output_folder import FAILED, INTERRUPTED, RUNNING


def collect(runs, *, features=None, **more):
    return checks.collect(make_found(runs, **more), features or {}, root="models dir")


def titles(found):
    return [notice.title for notice in found]


def whole_study(**changes):
    return [make_run(dataset=d, seed=s, **changes) for d in constants.DATASETS for s in constants.SEEDS]


def with_first_run(**changes):
    """A whole study in which the run of IN-1K with seed 22 is changed."""
    return [make_run(dataset="in1k", seed=22, **changes), *whole_study()[1:]]


def test_a_complete_study_has_nothing_to_report():
    assert collect(whole_study()) == []


def test_missing_seeds_with_the_command_that_adds_them():
    runs = [r for r in whole_study() if (r.dataset, r.seed) not in [("cog_l2", 45), ("cog_l2", 93)]]
    runs += [make_run(dataset="cog_l1", n_shot=n, seed=s) for n in (1, 8) for s in constants.SEEDS[:4]]
    [notice] = collect(runs)
    assert notice.severity == "warning" and notice.title == "Seeds are missing in 3 of 8 results"
    assert notice.places[-1] == "my_net, L2, all images: 3 of 5, missing 45, 93"
    assert notice.commands == (
        "bash bash-scripts/fewshot.sh models_root_dir='models dir' model_name=my_net dataset=cog_l1 shots='1 8' "
        "seeds=93",
        "bash bash-scripts/logreg.sh models_root_dir='models dir' model_name=my_net dataset=cog_l2 seeds='45 93'",
    )


def test_missing_seeds_get_the_settings_of_the_others():
    """With the protocol's, runs of one average would have different numbers of epochs."""
    other = {"n_trials": 3, "n_epochs": 4, "lr_interval": [0.1, 10.0], "normalize": False, "momentum": 0.8}
    runs = [make_run(seed=seed, settings=other) for seed in (22, 37)]
    command = next(c for notice in collect(runs) for c in notice.commands if "seeds='45 77 93'" in c)
    words = shlex.split(command.partition(" CLF.")[2])
    assert ["CLF." + words[0], *words[1:]] == [
        "CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "4", "CLF.LR_INTV", "(0.1, 10.0)", "CLF.NORM_FTS", "False",
    ]  # fmt: skip
    mixed = [make_run(seed=22, settings=other), make_run(seed=37)]
    assert not any("CLF." in c for notice in collect(mixed) for c in notice.commands)


def test_names_in_commands_are_quoted():
    runs = [make_run(model="my_$(touch x)", dataset="a b", seed=22)]
    [command] = [c for notice in collect(runs) for c in notice.commands]
    assert "model_name='my_$(touch x)' dataset='a b'" in command


def test_folders_that_are_not_counted(tmp_path):
    problems = [
        Problem(tmp_path / "1", "in progress", RUNNING),
        Problem(tmp_path / "2", "unfinished", INTERRUPTED),
        Problem(tmp_path / "3", "out of memory", FAILED),
    ]
    failed, unfinished = collect(whole_study(), problems=problems)
    assert failed.title == "1 folder not counted" and failed.places == (f"{tmp_path}/3: out of memory",)
    assert unfinished.title == "2 runs not finished"


def test_other_data_and_other_classes():
    cells = [make_cell(), make_cell("b_net")]
    counts = [dataclasses.replace(cells[0].counts, classes=(1000,), class_lists=(d * 64,)) for d in "ab"]
    cells = [dataclasses.replace(cell, dataset="birds", counts=c) for cell, c in zip(cells, counts)]
    assert titles(collect([], cells=cells)) == ["Different classes under one name"]
    [notice] = collect(whole_study(n_classes=24))
    assert notice.title == "Not the benchmark's data" and "24 classes" in notice.places[0]


def test_a_learning_rate_at_the_upper_end_of_its_interval():
    [notice] = collect(with_first_run(lr=99.0))
    assert "in 1 run" in notice.title and notice.places == ("my_net, IN-1K, all images, seed 22: 99",)
    # On the logarithmic axis, 86 and 88 are at 97.8 % and 98.2 % of the way.
    known = {0.1: False, 1.0: False, 86.0: False, 88.0: True, 100.0: True, None: False}
    assert {value: checks.at_upper_edge(value, [0.1, 100.0]) for value in known} == known
    for broken in (None, [1.0], [0.0, 1.0], ["a", "b"], [5.0, 1.0], "x"):
        assert not checks.at_upper_edge(1.0, broken)


def test_diverged_training_comes_first():
    variant = make_run(evaluation="mlp", dataset="cog_l3", seed=37, diverged=True)
    found = collect(with_first_run(diverged=True, lr=99.0), other_runs=[variant])
    assert [notice.severity for notice in found] == ["problem", "warning"]
    assert found[0].title == "Final training diverged in 2 runs"
    assert found[0].places[0].startswith("my_net, IN-1K, all images, seed 22: /runs/")


def test_settings_other_than_the_protocol():
    settings = {"n_epochs": 50, "n_trials": 10, "normalize": False}
    [notice] = collect(whole_study(n_epochs=50, settings=settings))
    assert notice.places == (
        "CLF.N_TRIALS: 10 instead of 30 (30 runs)",
        "CLF.N_EPOCHS: 50 instead of 100 (30 runs)",
        "CLF.NORM_FTS: no instead of yes (30 runs)",
    )


def test_mixed_epochs_and_settings():
    runs = with_first_run(n_epochs=50, settings={"n_epochs": 50, "batch_size": 256})
    found = {notice.title: notice.places for notice in collect(runs)}
    assert "epochs 50: my_net, IN-1K, all images, seed 22" in found["Different numbers of epochs"]
    assert found["Different settings between results of one model"][0].startswith(
        "CLF.BATCH_SIZE 256: my_net"
    )


def test_features_of_other_checkpoints_and_failed_images(tmp_path):
    """Read from the folders: one data set of another checkpoint, and features made anew after the runs."""
    runs = []
    for number, dataset in enumerate(("in1k", "cog_l1")):
        base = tmp_path / "my" / "net" / dataset
        for split in constants.SPLITS:
            features = {"checkpoint_sha256": "ab"[number] * 64, "n_failed": 3 * number, "n_images": 1000}
            (base / f"features_{split}").mkdir(parents=True)
            (base / f"features_{split}/features.json").write_text(json.dumps(features))
        origin = {"checkpoint_sha256": "a" * 64}
        for seed in constants.SEEDS:
            path = base / f"eval_logreg/seed-{seed}"
            runs.append(
                make_run(dataset=dataset, seed=seed, path=path, train_features=origin, test_features=origin)
            )
    found = {n.title: n for n in collect(runs, features=search_history.features_of(runs))}
    assert found["Features of different checkpoints"].places == (
        "my_net, checkpoint aaaaaaaaaaaa: IN-1K train; IN-1K test",
        "my_net, checkpoint bbbbbbbbbbbb: L1 train; L1 test",
    )
    assert "6 images could not be decoded" in found
    stale = found["Features changed after the runs"].places
    assert stale == tuple(f"my_net, L1, all images, seed {seed}" for seed in constants.SEEDS)


@pytest.mark.parametrize("changed", ["checkpoint_sha256", "sample_sha256"])
def test_runs_on_features_that_were_made_anew_are_told_with_tables(tmp_path, changed):
    used = {"checkpoint_sha256": "a" * 64, "sample_sha256": "b" * 64}
    base = tmp_path / "my/net/in1k"
    (base / "features_test").mkdir(parents=True)
    run = make_run(path=base / "eval_logreg/seed-22", train_features=used, test_features=used)
    for now, expected in ((used, []), (used | {changed: "c" * 64}, ["Features changed after the runs"])):
        (base / "features_test/features.json").write_text(json.dumps(now))
        told = checks.of_runs(make_found([run]))
        assert titles(told) == expected


def test_training_and_test_features_of_different_checkpoints():
    runs = whole_study(train_features={"checkpoint_sha256": "a"}, test_features={"checkpoint_sha256": "b"})
    [notice] = collect(runs)
    assert (notice.severity, notice.title) == ("problem", "Features of different checkpoints")
    assert len(notice.places) == 13 and notice.places[-1] == "and 18 more"
