"""Right answers per concept of runs that do not record them, from their predictions."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
from result_folders import make_logs, make_record, make_seed_folder

from cog.commands import print_results
from cog.errors import CogError
from cog.results import concept_counts, find, saved_predictions

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
        make_record(path, seed=seed, record={"n_classes": n_classes})
    return path


def counts(root, **how):
    runs, problems = find.find_runs(root)
    assert not problems
    (run,) = saved_predictions.with_counts(runs, **how)
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
def test_predictions_that_do_not_give_the_accuracy_are_not_counted(tmp_path, name):
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


def of_40_classes(correct):
    """Return what a run with so many right answers of 10 images per class has, for write_run."""
    return {"content": [predictions(correct)], "top1": 100 * correct.sum() / 400, "n_classes": 40}


def test_predictions_are_read_for_views_of_differences_alone(tmp_path, capsys, monkeypatch):
    generator = np.random.default_rng(0)
    for model, share in (("a/b", 5), ("a/c", 9)):
        for seed in (22, 37):
            write_run(tmp_path, model=model, seed=seed, **of_40_classes(generator.binomial(share, 0.9, 40)))
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


def answers(found, n):
    return np.unpackbits(found.right, count=n).astype(bool).tolist()


def test_answers_image_by_image(tmp_path):
    """With recorded counts these stay, also with other numbers of images per class; else they follow."""
    path = write_run(tmp_path)
    right = np.repeat(range(4), 10) == predictions()
    assert counts(tmp_path).right is None
    assert answers(counts(tmp_path, by_image=True), 40) == right.tolist()
    shutil.rmtree(path)
    path = make_seed_folder(path.with_name("seed-37"), logs=make_logs(50.0, 95.0))
    make_record(path, seed=37, record={"n_classes": 3}, **concept_counts.write([1, 2, 0], [1, 3, 2]))
    for saved, expected in (
        ([0, 1, 2, 1, 0, 0], [1, 1, 0, 1, 0, 0]),
        ([0, 1, 2, 2, 0, 2], None),  # other counts
        ([0, 1, 2, 1, 0], None),
    ):
        (path / "final-lr-10.5_wd-1e-06/preds.pkl").write_bytes(pickle.dumps([np.array(saved)]))
        found = counts(tmp_path, by_image=True)
        assert found.correct.tolist() == [1, 2, 0] and [*found.images] == [1, 3, 2]
        assert (None if found.right is None else answers(found, 6)) == expected


def test_intervals_over_images(tmp_path, capsys):
    """Verdicts stay those over concepts; a run without predictions has no interval, and a note says so."""
    generator = np.random.default_rng(0)
    easy, gain = generator.integers(0, 8, 40), 3 * generator.integers(0, 2, 40)
    for model, better in (("a/b", 0), ("a/c", 1)):
        for dataset in ("in1k", "cog_l1"):
            for seed in (22, 37):
                run = {"model": model, "dataset": dataset, "seed": seed}
                write_run(tmp_path, **run, **of_40_classes(easy + better * gain))
    argv = ["--models_root_dir", str(tmp_path)]

    def shown(*more):
        assert print_results.main([*argv, *more]) == 0
        captured = capsys.readouterr()
        return (json.loads(captured.out) if "json" in more else captured.out), captured.err

    images = ("--interval_over", "images", "--format", "json")
    for view in ((), ("--relative_to", "a_b", "--model", "a_c"), ("--drop", "--dataset", "cog_l1")):
        rows = shown(*view, *images)[0]
        assert {row["interval_over"] for row in rows} == {"images"} and len(rows) == 4 - 2 * bool(view)
        if view:
            for row, other in zip(rows, shown(*view, "--format", "json")[0], strict=True):
                assert other["low"] < row["low"] < row["high"] < other["high"], view
    names = ("difference", "low", "high", "p", "p_holm", "reading")
    by_image, over_concepts = (
        [{name: row[name] for name in names} for row in shown("--compare", "a_c", "a_b", *how)[0]]
        for how in (images, ("--format", "json"))
    )
    for row, other in zip(by_image, over_concepts, strict=True):
        assert (row.pop("low"), row.pop("high")) != (other.pop("low"), other.pop("high"))
        assert row == other and row["reading"] == "higher"
    text = shown("--compare", "a_c", "a_b", *images[:2])[0]
    assert "95 % over images" in text and "those of the interval over concepts" in " ".join(text.split())
    assert "of these very concepts" in shown(*images[:2])[0] and "No interval" not in text
    (tmp_path / "a/b/in1k/eval_logreg/seed-22/final-lr-10.5_wd-1e-06/preds.pkl").unlink()
    text, _ = shown(*images[:2])
    assert " ".join(text.split()).count("1 of 4 averages, such as a_b, in1k, all training images") == 1
    rows = shown(*images)[0]
    assert [row["dataset"] for row in rows if row["low"] is None] == ["in1k"]
    for flags in (["--rank"], ["--power"], ["--report", str(tmp_path / "x.html")]):
        with pytest.raises(CogError, match="--interval_over images is for"):
            print_results.main([*argv, *images, *flags])
