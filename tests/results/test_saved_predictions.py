"""Right answers per concept of runs that do not record them, from their predictions."""

from __future__ import annotations

import json
import pickle
import time

import numpy as np
import pytest
from result_folders import make_logs, make_record, make_seed_folder

from cog.commands import print_results
from cog.errors import CogError
from cog.results import find, saved_predictions

CORRECT = [9, 0, 4, 10]


def predictions(correct=CORRECT, n=10):
    """Classes predicted for n images of each class, of which so many are right."""
    rows = [[k] * hits + [(k + 1) % len(correct)] * (n - hits) for k, hits in enumerate(correct)]
    return np.array(rows).ravel()


def write_run(
    root, *, model="a/b", dataset="cog_l1", seed=22, content=None, top1=None, n_classes=4, record=True
):
    """Write a run as earlier versions did: without counts, with predictions."""
    content = [predictions()] if content is None else content
    path = root / model / dataset / f"eval_logreg/seed-{seed}"
    top1 = 100 * sum(CORRECT) / 40 if top1 is None else top1
    make_seed_folder(path, logs=make_logs(top1, 95.0))
    saved = content if isinstance(content, bytes) else pickle.dumps(content)
    (path / "final-lr-10.5_wd-1e-06/preds.pkl").write_bytes(saved)
    if record:
        make_record(path, seed=seed)
        written = json.loads((path / "results.json").read_text()) | {"n_classes": n_classes}
        (path / "results.json").write_text(json.dumps(written))
    return path


def counts(root):
    runs, problems = find.find_runs(root)
    assert not problems
    (run,) = saved_predictions.with_counts(runs)
    assert (run.top1, run.path) == (runs[0].top1, runs[0].path)
    return run.concepts


@pytest.mark.parametrize("form", [list, lambda x: [x * 0, x], lambda x: x, lambda x: [[*map(int, x)]]])
def test_the_last_predictions_are_counted(tmp_path, form):
    """A list of one array, of one for each epoch (original toolkit), a bare array, plain numbers."""
    saved = predictions()
    write_run(tmp_path, content=[saved] if form is list else form(saved))
    found = counts(tmp_path)
    assert (found.correct.tolist(), found.images) == (CORRECT, 10)


OTHERS = {
    "no pickle": {"content": b"not to be opened"},
    "a function": {"content": b"cos\nsystem\n(S'true'\ntR."},
    "no classes": {"content": [predictions().astype(float)]},
    "empty": {"content": [[]]},
    "of other images": {"content": [predictions()[:-1]]},
    "of other labels": {"content": [np.roll(predictions(), 10)]},
    "one image more": {"top1": 100 * (sum(CORRECT) + 1) / 40},
    "classes unknown": {"n_classes": None},
    "no class": {"n_classes": 0},
    "not sorted by class": {"content": [predictions().reshape(4, 10).T.ravel()]},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_not_make_the_accuracy_is_not_counted(tmp_path, name):
    write_run(tmp_path, **OTHERS[name])
    assert counts(tmp_path) is None
    with pytest.raises(CogError, match="right answers per concept"):
        print_results.main(["--models_root_dir", str(tmp_path), "--power"])


def test_runs_of_the_original_toolkit_are_of_1000_classes(tmp_path):
    saved = np.repeat(np.arange(1000), 2)
    saved[::4] += 1
    write_run(tmp_path, content=[saved], top1=75.0, record=False)
    found = counts(tmp_path)
    assert found.correct.tolist() == [1, 2] * 500 and found.images == 2
    write_run(tmp_path, model="c/d", dataset="own", content=[saved], top1=75.0, record=False)
    assert saved_predictions.with_counts(find.find_runs(tmp_path, datasets=["own"])[0])[0].concepts is None


def test_recorded_counts_are_left_as_they_are(tmp_path):
    write_run(tmp_path, content=b"not to be opened")
    (run,) = find.find_runs(tmp_path)[0]
    known = object()
    object.__setattr__(run, "concepts", known)
    assert saved_predictions.with_counts([run])[0].concepts is known


def test_predictions_are_read_for_views_of_differences_alone(tmp_path, capsys, monkeypatch):
    generator = np.random.default_rng(0)
    for model, share in (("a/b", 5), ("a/c", 9)):
        for seed in (22, 37):
            correct = generator.binomial(share, 0.9, 40)
            top1 = 100 * correct.sum() / 400
            write_run(
                tmp_path, model=model, seed=seed, content=[predictions(correct)], top1=top1, n_classes=40
            )
    argv = ["--models_root_dir", str(tmp_path), "--format", "json"]

    def rows(*more):
        assert print_results.main([*argv, *more]) == 0
        return json.loads(capsys.readouterr().out)

    (compared,) = rows("--compare", "a_b", "a_c")
    assert compared["reading"] == "lower" and compared["low"] < compared["difference"] < compared["high"]
    assert all(row["low"] is not None for row in rows("--relative_to", "a_c", "--model", "a_b"))
    target = tmp_path / "shared.json"
    print_results.main([*argv[:2], "--export", str(target)])
    assert target.read_text().count("correct_per_class") == 2
    monkeypatch.setattr(saved_predictions, "read", None)  # no table of means reads them
    assert all("low" not in row for row in rows())


@pytest.mark.slow
def test_a_thousand_runs_of_50_000_images_take_seconds(tmp_path):
    saved = np.repeat(np.arange(1000), 50)
    write_run(tmp_path, content=[saved], top1=100.0, n_classes=1000)
    (run,) = find.find_runs(tmp_path)[0]
    started = time.process_time()
    assert all(made.concepts is not None for made in saved_predictions.with_counts([run] * 1000))
    assert time.process_time() - started < 10
