"""Searches and descriptions of features as they are recorded."""

from __future__ import annotations

import json
import math

import pytest
from report_runs import make_run
from result_folders import make_logs, make_seed_folder

from cog.errors import CogError
from cog.results import find, search_history

TRIALS = [
    {"number": 0, "lr": 1.0, "wd": 1e-6, "val_top1": 50.0, "diverged": False, "seconds": 2.0},
    {"number": 1, "lr": 0.0, "wd": 1e-6, "val_top1": 60.0},
    {"number": 2, "lr": 1.0, "wd": -1.0, "val_top1": 61.0},
    {"number": 3, "lr": 90.0, "wd": 1e-7, "val_top1": None, "diverged": True},
    {"number": 4, "lr": 2.0, "wd": 1e-5, "val_top1": None},
    {"number": 5, "lr": 3.0, "wd": 0.0, "val_top1": 100.00001},
    {"number": 6, "lr": "3", "wd": 1e-5, "val_top1": 70.0},
    {"number": 7, "lr": 3.0},
    17,
]


@pytest.fixture
def run(tmp_path):
    logs = make_logs(70.0) | {"test/top1": [1.0, 120.0, float("nan"), 70.0], "test/top5": [90.0] * 4}
    folder = make_seed_folder(tmp_path / "seed-22", logs=logs)
    record = {
        "status": "complete", "seed": 22, "final": {"folder": "final-lr-10.5_wd-1e-06", "lr": 3.0, "wd": 0.0},
        "identity": {"lr_interval": [0.1, 100.0], "wd_interval": [1e-4, 1e-12]}, "trials": TRIALS,
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(record))
    ((run,), problems) = find.read_evaluation(tmp_path)
    assert not problems
    return run


def test_every_trial_that_has_both_hyper_parameters_is_read(run):
    search = search_history.read_search(run)
    assert [trial.number for trial in search.trials] == [0, 1, 2, 3, 4, 5]
    assert [trial.number for trial in search.trials if math.isnan(trial.val_top1)] == [3, 4]
    assert search.chosen is search.trials[5] and search.trials[0].seconds == 2.0
    assert (search.lr_interval, search.wd_interval) == ((0.1, 100.0), None)
    assert len(search.curves["test/top1"]) == 4 and math.isnan(search.curves["test/top1"][2])


def test_files_that_vanished_or_broke(run):
    (run.path / run.final_folder / "logs.pkl").unlink()
    with pytest.raises(CogError, match=r"logs\.pkl"):
        search_history.read_search(run)
    (run.path / "results.json").write_text("[]")
    with pytest.raises(CogError, match="expected a JSON object"):
        search_history.read_search(run)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"n_images": "many"}',
     b'{"n_images": -3, "versions": [1], "preprocessing": {"mean": [[[]]], "x": 1e999}, "checkpoint_sha256": 5}'],
)  # fmt: skip
def test_descriptions_of_features_that_are_none(tmp_path, content):
    run = make_run(path=tmp_path / "my" / "net" / "in1k" / "eval_logreg" / "seed-22")
    features = run.path.parent.parent / "features_train"
    features.mkdir(parents=True)
    (features / "features.json").write_bytes(content)
    for made in search_history.features_of([run]).values():
        assert (made.n_images, made.checkpoint_sha256, made.preprocessing) == (None,) * 3
        assert made.versions == {}
