"""logreg.py interrupted, killed, started twice: every file is as if nothing had happened."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal

import pytest
import tiny
import torch
from classifier_runs import FOLDERS, assert_same_files, command, complete, contents, study_command
from marks import first_quick
from test_output_folder import taken_over_at

from cog.commands import logreg
from cog.errors import CogError
from cog.logreg import engine, jobs, protocol
from cog.runtime import atomic_dir, state_file
from cog.runtime.locks import LockedError, locked
from cog.runtime.output_folder import read_failure
from cog.runtime.resume_dir import ResumeFolder, sample_sha256
from cog.runtime.signals import Interrupted
from cog.runtime.state_file import StateFile

PAIRS = ["CLF.N_TRIALS", "12", "CLF.N_EPOCHS", "4", "CLF.BATCH_SIZE", "8"]


@pytest.fixture
def signalled(monkeypatch):
    """Return a function: a signal comes when the engine asks for the k-th time from now whether to save (None: never).

    The function returns a list that grows by one with each time.
    """
    asked, original = [], StateFile.due

    def set_up(k, number=signal.SIGTERM):
        asked.clear()

        def due(self):
            asked.append(None)
            if len(asked) == k:
                os.kill(os.getpid(), number)
            return original(self)

        monkeypatch.setattr(StateFile, "due", due)
        return asked

    return set_up


def n_sessions(folder):
    return (folder / "program.log").read_text().count("command: ")


# ------------------------------------------------------------------------------------------------------------
# Signals


@pytest.mark.parametrize(
    ("number", "device"),
    [
        *first_quick(1, [(signal.SIGTERM, "cpu"), (signal.SIGUSR1, "cpu")]),
        pytest.param(signal.SIGTERM, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_interrupted_after_epochs_of_search_and_final_training(
    feature_folders, tmp_path, signalled, caplog, monkeypatch, number, device
):
    """One start per epoch somewhere in the run; each ends with what it has saved."""
    monkeypatch.setattr(engine, "CPU_ROWS_ALONE", 0)  # trials share products, as in long searches
    caplog.set_level("INFO", logger="cog")
    out = tmp_path / "run"
    arguments = command(feature_folders, out, *PAIRS, "--device", device)
    asked = signalled(None)
    logreg.main(arguments)
    n_asked = len(asked)
    assert n_asked == 3 * (
        1 + 1 + 1 + 1
    )  # rounds of 10, 1 and 1, and the final training: all epochs but the last
    whole = contents(out)
    shutil.rmtree(out)
    sessions = 0
    while True:
        sessions += 1
        signalled(1, number)
        try:
            assert logreg.main(arguments) == 0
            break
        except Interrupted as error:
            assert error.exit_code == 75
            assert f"{number.name}: the training so far is saved" in str(error)
            assert "the same command continues" in str(error)
            assert [path.name for path in out.iterdir()] == [".resume"]
    assert sessions == n_asked + 1
    assert_same_files(contents(out), whole)
    assert not list(out.glob(".*"))
    assert (out / "program.log").read_text().count("command: ") == sessions
    assert f"continuing, session {sessions}" in (out / "program.log").read_text()


def test_a_signal_at_the_very_end_is_too_late(feature_folders, tmp_path, monkeypatch):
    """A result that only has to be written is written."""
    out = tmp_path / "run"
    rename = atomic_dir.os.replace

    def interrupting(source, target):
        if os.path.basename(target) == "results.json":
            os.kill(os.getpid(), signal.SIGTERM)
        rename(source, target)

    monkeypatch.setattr(atomic_dir.os, "replace", interrupting)
    assert logreg.main(command(feature_folders, out)) == 0
    assert (out / "results.json").is_file()


def test_work_in_progress_that_outlived_its_result_is_removed(feature_folders, tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    out = tmp_path / "run"
    arguments = command(feature_folders, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumeFolder, "discard", lambda self: None)
        logreg.main(arguments)
    before = {name: value for name, value in contents(out).items() if not name.startswith(".resume/")}
    shutil.copytree(out, tmp_path / "copy")
    for folder, flags in ((out, []), (tmp_path / "copy", ["--overwrite"])):
        assert logreg.main([*arguments, "--output_dir", str(folder), *flags]) == 0
        assert not (folder / ".resume").exists()
        assert {name: value for name, value in contents(folder).items() if name in before} == before
        assert f"{folder} is complete, skipped" in caplog.text


# ------------------------------------------------------------------------------------------------------------
# Another command for the same folder


@pytest.fixture
def half_done(feature_folders, tmp_path, signalled):
    """A folder with five finished trials of twelve."""
    out = tmp_path / "run"
    arguments = command(feature_folders, out, *PAIRS)
    signalled(5)
    with pytest.raises(Interrupted):
        logreg.main(arguments)
    signalled(None)
    return out, arguments


def test_another_configuration_is_refused(half_done):
    out, arguments = half_done
    before = tiny.snapshot(out)
    for pairs, difference in (
        (["CLF.N_EPOCHS", "5"], "n_epochs: 4 -> 5"),
        (["--mom", "0.8"], "momentum: 0.9 -> 0.8"),
    ):
        message = f"beginning of different work ({difference}"
        with pytest.raises(CogError, match=re.escape(message)):
            logreg.main([*arguments, *pairs])
        assert tiny.snapshot(out) == before
    logreg.main([*arguments, "CLF.N_EPOCHS", "5", "--overwrite"])
    assert json.loads((out / "results.json").read_text())["identity"]["n_epochs"] == 5
    assert n_sessions(out) == 1


def test_what_changes_no_result_may_change(half_done):
    out, arguments = half_done
    assert logreg.main([*arguments, "--print_freq", "1"]) == 0
    assert n_sessions(out) == 2


def test_other_versions_and_features_of_the_same_size_are_refused(half_done, feature_folders):
    out, arguments = half_done
    path = out / ".resume" / "identity.json"
    data = json.loads(path.read_text())
    data["versions"]["optuna"] = "1.0"
    path.write_text(json.dumps(data))
    with pytest.raises(CogError, match=r"optuna: 1\.0 -> \d"):
        logreg.main(arguments)
    path = feature_folders[0] / "X_Y.pth"
    data = torch.load(path, weights_only=True)
    data["X"][7, 3] += 1.0
    torch.save(data, path)
    with pytest.raises(CogError, match=r"train_features\.sample_sha256: .* or remove this folder"):
        logreg.main(arguments)


@pytest.mark.parametrize("content", ["{", '{"identity": {}}'])
def test_work_whose_description_is_damaged_is_begun_again(half_done, content):
    out, arguments = half_done
    (out / ".resume" / "identity.json").write_text(content)
    assert logreg.main(arguments) == 0
    assert n_sessions(out) == 1


def test_an_interrupted_replacement_goes_on(feature_folders, tmp_path, signalled):
    """--overwrite again is not yet another beginning: neither for the run in work nor for those it has replaced."""
    root = tmp_path / "results"
    arguments = study_command(feature_folders, root, "CLF.N_TRIALS", "2", shots=None)
    logreg.main(arguments)
    old = {name: (root / name / "results.json").stat().st_mtime_ns for name in complete(root)}
    asked = signalled(None)
    logreg.main([*arguments, "--overwrite"])  # replaces them when nothing is to be continued
    new = {name: (root / name / "results.json").stat().st_mtime_ns for name in complete(root)}
    assert all(new[name] > old[name] for name in old)
    signalled(len(asked) // 2 + 2)  # in the second run
    with pytest.raises(Interrupted):
        logreg.main([*arguments, "--overwrite"])
    assert complete(root) == sorted(old)  # the old result of the second stays until its replacement is there
    first = (root / "out/seed-22/results.json").stat().st_mtime_ns
    assert first > new["out/seed-22"]
    signalled(None)
    logreg.main([*arguments, "--overwrite"])
    assert (root / "out/seed-22/results.json").stat().st_mtime_ns == first
    assert (root / "out/seed-37/results.json").stat().st_mtime_ns > new["out/seed-37"]
    assert n_sessions(root / "out/seed-37") == 2
    assert not list(root.rglob(".*"))


def test_bad_input_leaves_no_work_behind(feature_folders, tmp_path):
    """One image per class: found out when the run has begun. Its failure is noted, for tables of a study."""
    out = tmp_path / "run"
    x, y = tiny.make_xy()
    tiny.write_features(feature_folders[0], x[:30:10], y[:30:10])
    with pytest.raises(CogError, match="single training image"):
        logreg.main(command(feature_folders, out))
    assert [path.name for path in out.iterdir()] == [".failed.json"]
    assert "single training image" in read_failure(out).message
    tiny.write_features(feature_folders[0], x, y)
    assert logreg.main(command(feature_folders, out, "CLF.N_EPOCHS", "2")) == 0
    assert read_failure(out) is None


def test_sample_of_a_file(tmp_path):
    data, path, seen = bytearray(1_000_000), tmp_path / "file", set()
    variants = [data[:-1], b""]
    for position in (0, 999_999, 500_000):
        data[position] ^= 1
        variants.append(bytes(data))
    for variant in variants:
        path.write_bytes(variant)
        seen.add(sample_sha256(path))
    assert len(seen) == len(variants)


# ------------------------------------------------------------------------------------------------------------
# Two at the same time


def test_a_folder_that_is_being_written(feature_folders, tmp_path):
    """Fails fast, whether alone or one of many; what it created it removes."""
    root = tmp_path / "results"
    with locked(root / "out_N2/seed-37", flag="--output_dir"):
        before = tiny.snapshot(root)
        with pytest.raises(LockedError, match="out_N2/seed-37 is being written by .* process"):
            logreg.main(study_command(feature_folders, root))
        assert tiny.snapshot(root) == before
    logreg.main(study_command(feature_folders, root))
    assert set(complete(root)) == FOLDERS
    assert not list(root.rglob(".*"))


def test_a_run_that_another_process_finished_meanwhile(feature_folders, tmp_path, monkeypatch):
    """Between the first look and the lock: it is not trained again."""
    out = tmp_path / "run"
    arguments = command(feature_folders, out)
    claimed = jobs.claimed

    def late(*args, **options):
        monkeypatch.setattr(jobs, "claimed", claimed)
        logreg.main(arguments)
        monkeypatch.delattr(protocol, "run_protocol")
        return claimed(*args, **options)

    monkeypatch.setattr(jobs, "claimed", late)
    assert logreg.main(arguments) == 0
    assert (out / "results.json").is_file()


@pytest.mark.parametrize(
    ("late", "done"),
    first_quick(
        3,
        [
            ("logreg.search.TrialJournal.append", False),
            ("runtime.state_file.StateFile.save", True),
            ("logreg.run_folder.write", True),
            ("logreg.search.TrialJournal.append", True),
            ("runtime.state_file.StateFile.save", False),
            ("logreg.run_folder.write", False),
        ],
    ),
)
def test_who_comes_late_writes_nothing(feature_folders, tmp_path, monkeypatch, late, done):
    """Another process has the folder by now: no trial, no state and no result of the one that stood still."""
    out = tmp_path / "run"
    arguments = command(feature_folders, out, "CLF.N_TRIALS", "2", "CLF.N_EPOCHS", "3")
    with monkeypatch.context() as patch:
        patch.setattr(state_file, "SAVE_SECONDS", 0.0)
        patch.setattr(state_file, "_MAX_SHARE", 1e9)
        before = taken_over_at(patch, f"cog.{late}", out, done=done)
        with pytest.raises(LockedError, match="taken over by .* on elsewhere"):
            logreg.main(arguments)
    after = tiny.snapshot(out)
    after.pop(".resume/program.log", None)  # open since before, it may tell of the end
    before[0].pop(".resume/program.log", None)
    assert after == before[0]
    (out / ".lock").unlink()
    assert logreg.main(arguments) == 0
