"""Several runs in one process: the folders that single calls write, file by file; what happens when one fails."""

from __future__ import annotations

import itertools

import pytest
import tiny
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
from cog.logreg import protocol, run_folder
from cog.logreg.engine import Engine
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
            ["CLF.N_TRIALS", "13"],
            ["CLF.TYPE", "mlp_noact", "CLF.MLP_HIDDEN", "16", "CLF.PCA_DIM", "3"],
            ["CLF.PCA_DIM", "3"],
            ["CLF.MAX_PER_CLASS", "4"],
        ],
    )
    + [pytest.param(["--device", "cuda"], marks=pytest.mark.gpu)],
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


def test_log_files_hold_their_own_run_only(feature_folders, tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    logreg.main(study_command(feature_folders, tmp_path, shots=(0, 2)))
    for number, folder in ((1, "out/seed-22"), (4, "out_N2/seed-37")):
        text = (tmp_path / folder / "program.log").read_text()
        assert f"run {number} of 4: {tmp_path / folder}" in text
        assert text.count("best: lr") == text.count("steps in ") == 1


# ------------------------------------------------------------------------------------------------------------
# What is there already


def test_complete_runs_are_skipped_and_the_rest_is_done(feature_folders, tmp_path, capsys):
    root = tmp_path / "results"
    logreg.main(command(feature_folders, root / "out/seed-37", "EVAL.SEED", "37"))
    logreg.main(command(feature_folders, root / "out_N2/seed-22", "EVAL.SEED", "22", "CLF.N_SHOT", "2"))
    before = {k: v for k, v in tiny.snapshot(root).items() if v[0] == "file"}
    capsys.readouterr()
    logreg.main(study_command(feature_folders, root))
    after = tiny.snapshot(root)
    assert {name: after[name] for name in before} == before
    assert capsys.readouterr().out.count("top-1:") == 6  # of those that were skipped, too
    assert set(complete(root)) == FOLDERS


def test_one_folder_in_the_way_stops_everything_before_it_begins(feature_folders, tmp_path):
    root = tmp_path / "results"
    logreg.main(command(feature_folders, root / "out_N4/seed-37", "EVAL.SEED", "37", "CLF.N_SHOT", "4"))
    before = tiny.snapshot(root)
    with pytest.raises(CogError, match=r"out_N4/seed-37 holds a different run \(n_epochs: 4 -> 5\)"):
        logreg.main(study_command(feature_folders, root, "CLF.N_EPOCHS", "5"))
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
        (["CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", "0"], "CLF.MLP_HIDDEN = 0 is not valid"),
        (["CLF.TYPE", "svm"], "CLF.TYPE = 'svm' is not valid, expected logreg, mlp"),
    ],
)
def test_combinations_without_a_meaning(feature_folders, tmp_path, extra, message):
    arguments = study_command(feature_folders, tmp_path, seeds=(22, 37), shots=(0, 2))
    with pytest.raises(CogError, match=message):
        logreg.main([*arguments, *extra])
    assert not (tmp_path / "out").exists()
