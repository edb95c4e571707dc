"""What a failed attempt leaves in its output folder."""

from __future__ import annotations

import contextlib
import json

import pytest
from test_output_folder import folder_of

from cog.errors import CogError, FailedImagesError
from cog.runtime.locks import LockedError
from cog.runtime.output_folder import FAILURE_FILE, read_failure
from cog.runtime.signals import Interrupted


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


def test_next_attempt_forgets(tmp_path):
    with pytest.raises(CogError), noted(tmp_path):
        raise CogError("once")
    with noted(tmp_path):
        assert read_failure(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_error_of_a_full_disk_is_not_hidden(tmp_path, monkeypatch):
    def fsync(_):
        raise OSError(28, "No space left on device")

    with folder_of(tmp_path).claim() as claim:
        monkeypatch.setattr("os.fsync", fsync)
        with pytest.raises(CogError, match="the first"), claim.failures_noted():
            raise CogError("the first")
    assert list(tmp_path.iterdir()) == []


def test_errors_after_the_lock_was_lost(tmp_path):
    """What went wrong is that the work is someone else's by now; nothing is left in their folder."""
    with pytest.raises(LockedError, match="is gone") as caught, noted(tmp_path):
        (tmp_path / ".lock").unlink()
        raise CogError("cannot write")
    assert str(caught.value.__cause__) == "cannot write"
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder(tmp_path):
    assert read_failure(tmp_path / "missing") is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"message": 3, "when": "", "host": "", "job": ""}']
)
def test_damaged_notes(tmp_path, content):
    (tmp_path / FAILURE_FILE).write_text(content)
    assert read_failure(tmp_path) is None
    with noted(tmp_path):
        pass


def test_notes_of_later_versions(tmp_path):
    data = {"message": "m", "when": "w", "host": "h", "job": "", "more": 1}
    (tmp_path / FAILURE_FILE).write_text(json.dumps(data))
    failure = read_failure(tmp_path)
    assert failure is not None and failure.message == "m"
