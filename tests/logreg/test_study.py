"""Several runs in one process: the folders that single calls write, file by file; what happens when one fails."""

from __future__ import annotations

import itertools
import re
import threading
import time

import pytest
import tiny
import torch
from classifier_runs import (
    FOLDERS,
    assert_same_files,
    command,
    complete,
    contents,
    single_calls,
    study_command,
)
from marks import first_quick

from cog.commands import logreg
from cog.errors import CogError
from cog.features import feature_files
from cog.logreg import parallel, protocol, run_folder, training
from cog.logreg.engine import Engine
from cog.logreg.preprocess import prepare
from cog.logreg.settings import Settings
from cog.runtime.memory import exhaustion_explained
from cog.runtime.output_folder import read_failure


@pytest.mark.parametrize(
    "pairs",
    first_quick(
        1,
        [
            ["CLF.PCA_DIM", "2", "CLF.MAX_PER_CLASS", "4"],
            ["CLF.PRECISION", "bf16"],
            ["CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", "16"],
            ["CLF.PRECISION", "fp32"],
            ["CLF.SEARCH", "batched", "CLF.N_TRIALS", "13"],
            ["CLF.TYPE", "mlp_noact", "CLF.MLP_HIDDEN", "16", "CLF.PCA_DIM", "3"],
            ["CLF.PCA_DIM", "3"],
            ["CLF.MAX_PER_CLASS", "4"],
        ],
    )
    + [
        pytest.param(["--device", "cuda", "CLF.SEARCH", way], marks=pytest.mark.gpu)
        for way in ("sequential", "batched")
    ],
)
def test_every_file_is_that_of_a_single_call(feature_folders, tmp_path, pairs):
    """Paths are part of some files, so both write to the same place, one after the other."""
    root = tmp_path / "results"
    assert logreg.main(study_command(feature_folders, root, *pairs)) == 0
    study = contents(root)
    assert {name.rsplit("/", 1)[0] for name in study if name.endswith("results.json")} == FOLDERS
    root.rename(tmp_path / "study")
    single_calls(feature_folders, root, *pairs)
    assert_same_files(study, contents(root))


@pytest.mark.parametrize(
    ("seeds", "shots", "pairs", "expected"),
    [
        ((3, 1), None, ["CLF.N_SHOT", "2"], {"out_N2/seed-3", "out_N2/seed-1"}),
        (None, (1, 0), ["EVAL.SEED", "9"], {"out_N1/seed-9", "out/seed-9"}),
    ],
)
def test_folders(feature_folders, tmp_path, seeds, shots, pairs, expected):
    arguments = study_command(feature_folders, tmp_path, *pairs, seeds=seeds, shots=shots)
    arguments[arguments.index("--output_dir") + 1] += "/"
    logreg.main(arguments)
    assert set(complete(tmp_path)) == expected


def test_log_files_hold_their_own_run_only(feature_folders, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", logger="cog")
    monkeypatch.setattr(training, "runs_at_once", lambda *args: (3, []))
    logreg.main(study_command(feature_folders, tmp_path, shots=(0, 2)))
    for folder, label in (("out/seed-22", "[seed 22, all]"), ("out_N2/seed-37", "[seed 37, 2]")):
        text = (tmp_path / folder / "program.log").read_text()
        assert set(re.findall(r"INFO (\[.*?\])", text)) == {label}
        assert "best: lr" in text


# ------------------------------------------------------------------------------------------------------------
# What is there already


def test_complete_runs_are_skipped_and_the_rest_is_done(feature_folders, tmp_path, capsys):
    root = tmp_path / "results"
    logreg.main(command(feature_folders, root / "out/seed-37", "EVAL.SEED", "37"))
    logreg.main(command(feature_folders, root / "out_N2/seed-22", "EVAL.SEED", "22", "CLF.N_SHOT", "2"))
    before = {k: v for k, v in tiny.snapshot(root).items() if v[0] == "file"}
    capsys.readouterr()
    logreg.main(study_command(feature_folders, root, "--skip_complete"))
    after = tiny.snapshot(root)
    assert {name: after[name] for name in before} == before
    assert capsys.readouterr().out.count("top-1:") == 6  # of those that were skipped, too
    assert set(complete(root)) == FOLDERS


def test_one_folder_in_the_way_stops_everything_before_it_begins(feature_folders, tmp_path):
    root = tmp_path / "results"
    logreg.main(command(feature_folders, root / "out_N4/seed-37", "EVAL.SEED", "37", "CLF.N_SHOT", "4"))
    before = tiny.snapshot(root)
    for flags in ([], ["--skip_complete"]):
        with pytest.raises(CogError, match=r"out_N4/seed-37 holds a different run \(n_epochs: 4 -> 5\)"):
            logreg.main(study_command(feature_folders, root, *flags, "CLF.N_EPOCHS", "5"))
    assert tiny.snapshot(root) == before


# ------------------------------------------------------------------------------------------------------------
# Failures


def test_a_folder_that_cannot_be_made(feature_folders, tmp_path):
    root = tmp_path / "results"
    root.mkdir()
    (root / "out_N2").write_text("a file where a folder should go")
    with pytest.raises(CogError, match="cannot write into --output_dir"):
        logreg.main(study_command(feature_folders, root))
    assert [path.name for path in root.iterdir()] == ["out_N2"]  # found out before any run was started


@pytest.mark.parametrize(
    "error", first_quick(1, [CogError("the disk is on fire"), KeyboardInterrupt(), MemoryError()])
)
@pytest.mark.parametrize(
    ("target", "name", "n_calls", "left"),
    first_quick(
        2,
        [
            (Engine, "validate", 7, set()),  # after the first of the three trials, which is not yet saved
            (run_folder, "write", 3, {".resume"}),
            (protocol, "_draw_few_shot", 6, {".resume"}),  # twice in each run: search and final training
        ],
    ),
    ids=["search", "writing", "final"],
)
def test_finished_runs_stay_and_the_one_that_failed_can_be_continued(
    feature_folders, tmp_path, monkeypatch, error, target, name, n_calls, left
):
    """The third of six runs fails after a call in its search, its final training, or the writing of its files."""
    root = tmp_path / "results"
    arguments = study_command(feature_folders, root)
    function, calls = getattr(target, name), itertools.count(1)

    def failing(*args, **kwargs):
        result = function(*args, **kwargs)
        if next(calls) == n_calls:
            raise error
        return result

    with monkeypatch.context() as patch:
        patch.setattr(target, name, failing)
        with pytest.raises(CogError if isinstance(error, MemoryError) else type(error)):
            logreg.main(arguments)
    assert complete(root) == ["out/seed-22", "out/seed-37"]
    third = root / "out_N2/seed-22"
    if not isinstance(error, KeyboardInterrupt):
        left = left | {".failed.json"}
        message = str(error) or "out of memory while training classifiers of 3 classes"
        assert message in read_failure(third).message
    assert {path.name for path in third.glob("*")} == left
    assert not list(root.glob("out_N*/*")) or left  # no empty folder
    before = tiny.snapshot(root / "out")
    logreg.main(arguments)
    assert not list(root.rglob(".*"))
    after = tiny.snapshot(root / "out")
    assert {name: after[name] for name in before} == before
    assert set(complete(root)) == FOLDERS


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["CLF.N_SHOT", "2"], "--n_shots and CLF.N_SHOT are both given"),
        (["--seeds", "1", "2", "1"], "--seeds names a value twice: 1 2 1"),
        (["--seeds", "4294967296"], "EVAL.SEED"),
        (["--lr", "1.0"], "--wd"),
        *(
            ([key, value], f"{key} {value} is not supported any more, expected {expected}; leave {key} out")
            for key, value, expected in (("CLF.SOLVER", "lbfgs", "sgd"), ("CLF.PRUNER", "median", "none"))
        ),
        (["CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", "0"], "CLF.MLP_HIDDEN = 0 is not valid"),
        (["CLF.TYPE", "svm"], "CLF.TYPE = 'svm' is not valid, expected logreg, mlp, mlp_noact"),
    ],
)
def test_combinations_without_a_meaning(feature_folders, tmp_path, extra, message):
    arguments = study_command(feature_folders, tmp_path, seeds=(22, 37), shots=(0, 2))
    with pytest.raises(CogError, match=message):
        logreg.main([*arguments, *extra])
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------------
# Side by side


@pytest.mark.parametrize(
    "pairs", first_quick(1, [["CLF.PRECISION", "bf16"], ["CLF.PRECISION", "fp32"], ["CLF.TYPE", "mlp"]])
)
def test_runs_side_by_side_write_what_they_write_alone(feature_folders, tmp_path, monkeypatch, pairs):
    root = tmp_path / "results"
    pairs = [*pairs, "CLF.MLP_HIDDEN", "16"]
    assert logreg.main(study_command(feature_folders, root, *pairs)) == 0
    alone = contents(root)
    root.rename(tmp_path / "alone")
    monkeypatch.setattr(training, "runs_at_once", lambda *args: (4, [2]))
    assert logreg.main(study_command(feature_folders, root, *pairs)) == 0
    assert_same_files(contents(root), alone)


@pytest.mark.parametrize(
    "error", first_quick(1, [CogError("the disk is on fire"), RuntimeError("what is that?")])
)
def test_one_of_several_side_by_side_fails(feature_folders, tmp_path, monkeypatch, error):
    """The others end at their next epoch, unfinished and without a note; the same command does the rest."""
    root = tmp_path / "results"
    arguments = study_command(feature_folders, root)
    monkeypatch.setattr(training, "runs_at_once", lambda *args: (3, []))
    validate, calls = Engine.validate, itertools.count(1)

    def failing(*args, **options):
        if next(calls) == 2:
            raise error
        return validate(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "validate", failing)
        with pytest.raises(type(error), match=str(error)[:8]):
            logreg.main(arguments)
    assert len(list(root.rglob(".failed.json"))) == 1
    logreg.main(arguments)
    assert set(complete(root)) == FOLDERS
    assert not list(root.rglob(".*"))


def test_processors_are_divided_evenly(monkeypatch):
    """Five runs on two processors: one each, and the last has both."""
    threads, done = [], []
    monkeypatch.setattr(torch, "get_num_threads", lambda: getattr(own, "n", 2))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: setattr(own, "n", n))
    own, barrier = threading.local(), threading.Barrier(2)

    def do(number, before_epoch):
        for _ in range(3):
            if number < 4:
                barrier.wait(timeout=60)
            before_epoch()
            threads.append((number, torch.get_num_threads()))
            if number == 4:
                while len(jobs._unfinished) > 1:
                    time.sleep(0.001)
        done.append(number)

    jobs = parallel.SideBySide(do, 5, 2, torch.device("cpu"))
    jobs.run()
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert {n for number, n in threads if number < 4} == {1}
    assert threads[-1] == (4, 2)


def test_runs_that_do_not_fit_side_by_side_are_done_alone(caplog):
    active, tries = [], []

    def do(number, before_epoch):
        active.append(number)
        tries.append(number)
        try:
            if number == 0 and tries.count(0) == 1:
                with exhaustion_explained("training", "train less"):
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        finally:
            active.remove(number)

    parallel.SideBySide(do, 4, 3, torch.device("cpu")).run()
    assert sorted(tries) == [0, 0, 1, 2, 3]
    assert tries[-1] == 0
    assert "3 runs side by side: the GPU is out of memory (2 GiB more were asked for)" in caplog.text

    def never(number, before_epoch):
        with exhaustion_explained("training", "train less"):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(
        CogError, match="the GPU is out of memory while training; end other programs .* train less, or"
    ):
        parallel.SideBySide(never, 2, 2, torch.device("cpu")).run()


def test_runs_at_once_within_the_processors_and_the_memory(feature_folders, monkeypatch):
    engine = Engine(torch.device("cpu"))
    data = prepare(*(feature_files.load(folder) for folder in feature_folders), engine)
    study = [Settings(seed=seed) for seed in range(5)]
    assert parallel.runs_at_once(data, study, engine)[0] == 1  # tests have one thread
    monkeypatch.setattr(Engine, "max_parallel_runs", 3)
    tried = []
    products = parallel._try_products

    def other_bits(*args):
        tried.append(args)
        return (
            products(*args) if len(tried) < 2 else [torch.full_like(t, len(tried)) for t in products(*args)]
        )

    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    assert parallel.runs_at_once(data, study, engine)[0] == 3
    assert parallel.runs_at_once(data, study[:2], engine)[0] == 2
    each = parallel.training_bytes(study[0], data.features.n, data.features.dim, len(data.labels))
    monkeypatch.setattr(parallel, "device_room", lambda device: 5 * each)
    assert parallel.runs_at_once(data, study, engine)[0] == 2
    monkeypatch.setattr(parallel, "_try_products", other_bits)
    assert parallel.runs_at_once(data, study, engine)[0] == 1
