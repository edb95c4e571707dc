"""One life of an output folder: looked at, claimed, continued, published; taken over by another process."""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import re
import shutil

import pytest
import tiny
from test_staging import Killed, Steps

from cog.errors import CogError, FailedImagesError
from cog.runtime import files, output_folder
from cog.runtime.locks import LockedError, locked
from cog.runtime.output_folder import FAILURE_FILE, FolderClaim, OutputFolder, read_failure, read_state
from cog.runtime.resume_dir import ResumeFolder
from cog.runtime.signals import Interrupted


class SumFolder(OutputFolder):
    """Holds ``sum.json``: identity and sum; ``part-<n>`` are states."""

    markers = ("sum.json",)
    asked = 0

    def holds_result(self):
        self.asked += 1
        if self.overwrite or not (self.path / "sum.json").exists():
            return False
        stored = json.loads((self.path / "sum.json").read_text())
        if changed := self.compare(stored["identity"], self.identity):
            raise CogError(f"made differently: {'; '.join(changed)}")
        return True

    def replaced(self):
        return ["sum.json", "notes.txt"]


def folder_of(path, *, overwrite=False, **identity):
    return SumFolder(path, identity or {"up_to": 3}, overwrite=overwrite)


def add_up(folder, *, stop_after=None):
    """Add up numbers, a state for each; returns how many were added now, None when nothing was to be done."""
    if folder.is_done():
        return None
    with folder.claim() as claim:
        if claim.is_done():
            return None
        claim.begin()
        total, added = 0, 0
        with claim.failures_noted():
            for number in range(1, folder.identity["up_to"] + 1):
                state = claim.resume.existing(f"part-{number}")
                if state is None:
                    if added == stop_after:
                        raise KeyboardInterrupt
                    files.write_text(claim.resume.file(f"part-{number}"), str(number))
                    state, added = claim.resume.existing(f"part-{number}"), added + 1
                total += int(state.read_text())
            with claim.publish() as stage:
                files.write_json(stage / "sum.json", {"identity": folder.identity, "sum": total})
        return added


def interrupted(folder, after):
    with pytest.raises(KeyboardInterrupt):
        add_up(folder, stop_after=after)


def take_over(path):
    """Let another machine have the lock, as after minutes of standstill."""
    lock = path / ".lock"
    data = json.loads(lock.read_text()) | {"token": "0" * 32, "host": "elsewhere", "boot": "another"}
    lock.unlink()
    lock.write_text(json.dumps(data))


def taken_over_at(patch, name, path, *, done=True):
    """Let another process have the folder right before a function is first called, and (``done``) finish its work.

    Returns:
        A list that receives what is in the folder from then on.
    """
    module, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(module)
    function, before = getattr(owner, attribute), []

    def late(*args, **kwargs):
        if not before:
            take_over(path)
            if done:
                shutil.rmtree(path / ".resume", ignore_errors=True)
            files.write_text(path / "theirs", "the result of the other one")
            before.append(
                {name: text for name, text in tiny.snapshot(path).items() if ".partial-" not in name}
            )
        return function(*args, **kwargs)

    patch.setattr(owner, attribute, late)
    return before


def test_from_missing_to_done(tmp_path, caplog):
    caplog.set_level("INFO", logger="cog")
    folder = folder_of(tmp_path / "a" / "out")
    assert read_state(folder.path, complete=False).state == "missing"
    assert add_up(folder) == 3
    assert json.loads((folder.path / "sum.json").read_text())["sum"] == 6
    assert os.listdir(folder.path) == ["sum.json"]
    assert folder.asked == 2  # a look, and once more with the lock
    again = folder_of(folder.path)
    assert add_up(again) is None
    assert again.asked == 1
    assert f"{folder.path} is complete, skipped" in caplog.text


def test_nothing_is_left_where_nothing_was_done(tmp_path):
    with folder_of(tmp_path / "a/b").claim() as claim:
        claim.begin()
        assert (tmp_path / "a/b/.lock").is_file()
        claim.release()
        assert os.listdir(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_another_process_was_faster(tmp_path):
    late = folder_of(tmp_path)
    assert not late.is_done()
    assert add_up(folder_of(tmp_path)) == 3
    with late.claim() as claim:
        assert claim.is_done()


def test_work_goes_on_where_it_was_interrupted(tmp_path):
    interrupted(folder_of(tmp_path), 2)
    assert os.listdir(tmp_path) == [".resume"]
    assert add_up(folder_of(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["sum.json"]


def test_other_results_and_beginnings_are_refused_or_replaced(tmp_path):
    add_up(folder_of(tmp_path, up_to=2))
    (tmp_path / "notes.txt").write_text("of the old one")
    (tmp_path / "mine.txt").write_text("of the user")
    before = tiny.snapshot(tmp_path)
    with pytest.raises(CogError, match="made differently: up_to: 2 -> 4"):
        add_up(folder_of(tmp_path, up_to=4))
    assert tiny.snapshot(tmp_path) == before
    interrupted(folder_of(tmp_path, up_to=4, overwrite=True), 2)
    with pytest.raises(CogError, match=r"beginning of different work \(up_to: 4 -> 5\)"):
        (tmp_path / "sum.json").unlink()
        add_up(folder_of(tmp_path, up_to=5))
    assert add_up(folder_of(tmp_path, up_to=5, overwrite=True)) == 5
    assert sorted(os.listdir(tmp_path)) == ["mine.txt", "sum.json"]


def test_versions_and_more_of_a_beginning_are_compared(tmp_path):
    def begin(overwrite=False, device="cpu", torch="2.10"):
        with folder_of(tmp_path, overwrite=overwrite).claim() as claim:
            claim.begin({"device": device}, versions={"torch": torch})
            return claim.resume.file("part-1").exists() or claim.resume.file("part-1").write_text("1")

    begin()
    assert begin() is True
    for changes, difference in (
        ({"device": "cuda"}, "device: cpu -> cuda"),
        ({"torch": "3"}, "torch: 2.10 -> 3"),
    ):
        with pytest.raises(CogError, match=re.escape(f"different work ({difference})")):
            begin(**changes)
    assert begin(overwrite=True, device="cuda") == 1
    assert begin(device="cuda") is True


def test_a_description_alone_is_no_obstacle(tmp_path):
    """Nothing would be lost: and the description is that of the new work from then on."""
    with folder_of(tmp_path, up_to=9).claim() as claim:
        claim.begin()
        claim.resume.create()
    with folder_of(tmp_path).claim() as claim:
        assert not claim.is_done()
        claim.begin()
        claim.resume.create()
    assert claim.resume.read()["identity"] == {"up_to": 3}


def test_unreadable_beginnings(tmp_path):
    interrupted(folder_of(tmp_path), 1)
    (tmp_path / ".resume/identity.json").write_text("{")
    with pytest.raises(CogError, match="unreadable leftovers; remove this folder"):
        add_up(folder_of(tmp_path))
    assert add_up(folder_of(tmp_path, overwrite=True)) == 3


def test_work_that_outlived_its_result_is_removed(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumeFolder, "discard", lambda self: None)
        add_up(folder_of(tmp_path))
    assert (tmp_path / ".resume/part-1").is_file()
    with locked(tmp_path, flag="x"):
        assert folder_of(tmp_path).is_done()  # whoever is at work there is left alone
        assert (tmp_path / ".resume/part-1").is_file()
    assert add_up(folder_of(tmp_path)) is None
    assert os.listdir(tmp_path) == ["sum.json"]


def test_a_folder_in_disorder_that_another_process_has(tmp_path):
    (tmp_path / ".partial-abc").mkdir()
    with locked(tmp_path, flag="x"), pytest.raises(LockedError, match="is being written by"):
        folder_of(tmp_path).is_done()
    folder = folder_of(tmp_path)
    assert add_up(folder) == 3
    assert folder.asked == 2
    assert os.listdir(tmp_path) == ["sum.json"]


@pytest.mark.parametrize(
    "where", ["file/out", "file", "new/file_too_long", "loop/out", "dangling", "dangling/out"]
)
def test_folders_that_cannot_be_made(tmp_path, where):
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere/at/all")
    folder = folder_of(tmp_path / where.replace("file_too_long", "x" * 300))
    before = tiny.snapshot(tmp_path)
    with pytest.raises(CogError, match="cannot write into --output_dir"), folder.claim():
        pytest.fail("entered")
    assert tiny.snapshot(tmp_path) == before


def _publish(claim):
    with claim.publish() as stage:
        files.write_json(stage / "sum.json", {})


LATE = {
    "saves a state": lambda claim: claim.resume.file("part-9"),
    "creates the folder of states": lambda claim: claim.resume.create(),
    "discards other work": lambda claim: claim.begin({"other": 1}),
    "begins to compute": lambda claim: claim.failures_noted().__enter__(),
    "publishes": _publish,
}


@pytest.mark.parametrize("step", LATE)
@pytest.mark.parametrize("ended", [True, False], ids=["done", "at work"])
def test_a_process_whose_folder_was_taken_over_changes_nothing(tmp_path, step, ended):
    """The other process is done, or has begun; the late one is told at its next step."""
    with folder_of(tmp_path, overwrite=True).claim() as claim:
        claim.begin()
        claim.resume.file("part-1").write_text("1")
        take_over(tmp_path)
        if ended:
            claim.resume.path.rename(tmp_path / "sum.json")
        (tmp_path / ".failed.json").write_text("{}")
        before = tiny.snapshot(tmp_path)
        if not (ended and step == "discards other work"):  # then there is none
            with pytest.raises(LockedError, match="taken over by .* on elsewhere"):
                LATE[step](claim)
        claim.resume.remove()
        assert tiny.snapshot(tmp_path) == before
    assert tiny.snapshot(tmp_path) == before


@pytest.mark.parametrize("every", [21, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_step_and_started_again(tmp_path, every):
    """From the first file to the last: the same command ends with the result and nothing beside it."""
    step, counts = 0, set()
    while True:
        out = tmp_path / str(step)
        add_up(folder_of(out, up_to=2))
        command = dict(up_to=3, overwrite=True)
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(patch, step)
            with contextlib.suppress(Killed):
                add_up(folder_of(out, **command))
        for lock in out.glob(".lock*"):  # its process still lives here
            lock.unlink()
        state = read_state(out, complete=(out / "sum.json").is_file())
        counts.add(state.state)
        assert add_up(folder_of(out, **command)) is not None
        assert json.loads((out / "sum.json").read_text())["sum"] == 6
        assert os.listdir(out) == ["sum.json"]
        if not steps.dead:
            break
        step += every
    assert step > 40
    assert counts == ({"done", "interrupted"} if every == 1 else {"done"})


# --- how far any folder is


RECORDED = '{"message": "no images", "when": "2021-10-11", "host": "node7", "job": ""}'
RESULT, ORIGINAL, FAILED = {"X_Y.pth": ""}, {"final-1/logs.pkl": ""}, {".failed.json": RECORDED}
UNFINISHED, STAGED, LOCK = {".resume/a": ""}, {".partial-ab/a": ""}, {".lock": "{}"}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(
    ("entries", "state", "trace"),
    [
        ({}, "missing", None),
        (RESULT, "done", None),
        (UNFINISHED, "interrupted", ".resume"),
        (STAGED, "interrupted", ".partial-ab"),
        (LOCK, "interrupted", ".lock"),
        (FAILED, "failed", None),
        (FAILED | UNFINISHED, "failed", ".resume"),
        ({".failed.json": "{"} | UNFINISHED, "failed", ".resume"),
        (RESULT | FAILED, "done", None),
        (RESULT | UNFINISHED | STAGED, "done", ".partial-ab"),
        (ORIGINAL, "done", None),
        (ORIGINAL | FAILED, "done", None),
        (ORIGINAL | LOCK, "done", None),
        (ORIGINAL | FAILED | UNFINISHED, "interrupted", ".resume"),
        (ORIGINAL | STAGED, "interrupted", ".partial-ab"),
        (ORIGINAL | UNFINISHED, "interrupted", ".resume"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_states(tmp_path, monkeypatch, entries, state, trace, held):
    original = "final-1/logs.pkl" in entries
    complete = original or "X_Y.pth" in entries
    for name, text in entries.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(output_folder, "live_holder", lambda path: "somebody" if held else None)
    if held:
        (tmp_path / ".lock").write_text("{}")
        state, trace = "running", trace or ".lock"
    for names in (None, os.listdir(tmp_path)):
        status = read_state(tmp_path, names, complete=complete, marked=not original)
        assert status.state == state
        assert status.holder == ("somebody" if held else None)
        if state in ("interrupted", "failed"):
            assert status.trace == trace
        assert (status.failure is not None) == (".failed.json" in entries)
    if ".failed.json" in entries:
        readable = entries[".failed.json"] == RECORDED
        assert ("no images" if readable else "cannot be read") in status.failure.message


def test_a_claim_that_fails_gives_the_lock_back(tmp_path, monkeypatch):
    def full(path):
        raise CogError("No space left on device")

    monkeypatch.setattr("cog.runtime.atomic_dir.recover", full)
    with pytest.raises(CogError, match="No space"):
        FolderClaim(folder_of(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


# --- what a failed attempt leaves in its output folder


@contextlib.contextmanager
def noted(folder):
    with folder_of(folder).claim() as claim, claim.failures_noted():
        yield


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (CogError("bad input"), "bad input"),
        (FailedImagesError("3 of 4 images"), "3 of 4 images"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (RuntimeError("CUDA\n out of memory"), "CUDA out of memory"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_failures_are_noted_and_raised(tmp_path, monkeypatch, error, message):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(type(error)), noted(tmp_path):
        raise error
    failure = read_failure(tmp_path)
    assert failure is not None
    assert (failure.message, failure.job) == (message, "12_3")
    assert failure.host and failure.when.endswith("+00:00")


@pytest.mark.parametrize("error", [Interrupted("ended"), LockedError("busy"), KeyboardInterrupt()])
def test_interruptions_are_no_failures(tmp_path, error):
    with pytest.raises(type(error)), noted(tmp_path):
        raise error
    assert read_failure(tmp_path) is None


def test_the_next_attempt_forgets_failures(tmp_path):
    with pytest.raises(CogError), noted(tmp_path):
        raise CogError("once")
    with noted(tmp_path):
        assert read_failure(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_result_forgets_failures(tmp_path):
    with pytest.raises(CogError), noted(tmp_path):
        raise CogError("no images")
    files.write_json(tmp_path / "sum.json", {"identity": {"up_to": 3}})
    with folder_of(tmp_path).claim() as claim:
        assert claim.is_done()
    assert os.listdir(tmp_path) == ["sum.json"]


def test_error_of_a_full_disk_is_not_hidden(tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(28, "No space left on device")

    with folder_of(tmp_path).claim() as claim:
        monkeypatch.setattr("os.fsync", fsync)
        with pytest.raises(CogError, match="the first"), claim.failures_noted():
            raise CogError("the first")
    assert list(tmp_path.iterdir()) == []


def test_failures_after_the_lock_was_lost(tmp_path):
    with pytest.raises(LockedError, match="is gone") as caught, noted(tmp_path):
        (tmp_path / ".lock").unlink()
        raise CogError("cannot write")
    assert str(caught.value.__cause__) == "cannot write"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, None) for text in ("", "[]", "null", '{"message": 3, "when": "", "host": "", "job": ""}')),
        ('{"message": "m", "when": "w", "host": "h", "job": "", "of a later version": 1}', "m"),
    ],
)
def test_notes_of_failures(tmp_path, content, message):
    assert read_failure(tmp_path) is None
    (tmp_path / FAILURE_FILE).write_text(content)
    assert getattr(read_failure(tmp_path), "message", None) == message
    with noted(tmp_path):
        pass
