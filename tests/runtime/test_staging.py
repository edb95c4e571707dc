"""Files appear whole or not at all: publication order, exceptions, killed processes, full disks."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess

import pytest
import tiny

from cog.errors import CogError
from cog.runtime import atomic_dir, files


def write_all(folder, contents):
    """Write files, by their path below the folder."""
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def texts(folder):
    """Return the texts of the files of a folder, by their path below it; those of stages are left out."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".partial-" not in str(path)
    }


def test_nothing_is_visible_before_the_end(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with atomic_dir.staged(out, markers=("done",)) as stage:
        write_all(stage, {"data": "1", "done": "2"})
        assert [name for name in os.listdir(out) if not name.startswith(".")] == []
        assert stage.parent == out  # same file system: publication is a rename
    assert texts(out) == {"data": "1", "done": "2"}
    assert sorted(os.listdir(out)) == ["data", "done"]


def test_markers_go_first_and_come_last(tmp_path, monkeypatch):
    (tmp_path / "old").write_text("0")
    moves = []
    replace, remove = os.replace, atomic_dir._remove

    def recording_replace(source, target):
        moves.append(f"+{os.path.basename(target)}")
        replace(source, target)

    def recording_remove(path, stage):
        moves.append(f"-{path.name}")
        remove(path, stage)

    with atomic_dir.staged(tmp_path, markers=("a_features", "m_metadata"), replaces=["old"]) as stage:
        write_all(stage, {"zebra": "1", "m_metadata": "2", "a_features": "3", "b": "4"})
        monkeypatch.setattr(atomic_dir.os, "replace", recording_replace)
        monkeypatch.setattr(atomic_dir, "_remove", recording_remove)
    assert moves == ["-a_features", "-m_metadata", "-old", "+b", "+zebra", "+m_metadata", "+a_features"]
    assert sorted(os.listdir(tmp_path)) == ["a_features", "b", "m_metadata", "zebra"]


class Killed(BaseException):
    """What SIGKILL is to the steps after it: none of them happens."""


class Steps:
    """Let the process die at the k-th call that changes the disk, in publication and its repetition."""

    NAMES = ("replace", "rename", "unlink", "fsync", "mkdir")

    def __init__(self, monkeypatch, last):
        self.count, self.dead = 0, False
        for module, name in [(os, name) for name in self.NAMES] + [(atomic_dir.shutil, "rmtree")]:
            monkeypatch.setattr(module, name, self.counting(getattr(module, name), last))

    def counting(self, function, last):
        def call(*args, **kwargs):
            if self.dead or self.count == last:
                self.dead = True
                raise Killed
            self.count += 1
            return function(*args, **kwargs)

        return call


OLD = {"data": "old", "more": "old", "done": "old", "final-1/logs": "old"}
NEW = {"data": "new", "done": "new", "final-2/logs": "new", "final-2/model": "new", "mine": "untouched"}


def replace_result(folder):
    with atomic_dir.staged(folder, markers=("done",), replaces=["data", "done", "final-1", "more"]) as stage:
        write_all(stage, {name: text for name, text in NEW.items() if name != "mine"})


@pytest.mark.parametrize("old", [True, False])
def test_a_publication_killed_at_any_step_is_finished_or_undone(tmp_path, monkeypatch, old):
    """After every step: old, nothing, or new for readers; after the next start old or new as a whole."""
    before = (OLD if old else {}) | {"mine": "untouched"}
    seen, last = [], 0
    while True:
        out = tmp_path / str(last)
        write_all(out, before)
        with monkeypatch.context() as patch:
            steps = Steps(patch, last)
            with contextlib.suppress(Killed):
                replace_result(out)
        found = texts(out)
        if "done" in found:  # what a reader takes for complete is one of the two
            assert found in (before, NEW)
        atomic_dir.recover(out)
        assert texts(out) in (before, NEW)
        seen.append("new" if texts(out) == NEW else "old")
        assert not [path for path in out.rglob("*") if ".partial-" in path.name]
        if not steps.dead:
            break
        last += 1
    assert seen == sorted(seen, reverse=True)  # once new, always new
    assert seen.count("old") >= 5
    assert seen.count("new") >= (9 if old else 5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 3))
def test_a_repetition_killed_as_well(tmp_path, monkeypatch, first):
    """Killed in publication, then at every step of the start after it."""
    for last in range(12):
        out = tmp_path / str(last)
        write_all(out, OLD)
        for at, work in ((first, replace_result), (last, atomic_dir.recover)):
            with monkeypatch.context() as patch:
                Steps(patch, at)
                with contextlib.suppress(Killed):
                    work(out)
        atomic_dir.recover(out)
        assert texts(out) in (OLD, {k: v for k, v in NEW.items() if k != "mine"})
        assert not list(out.glob(".partial-*"))


@pytest.mark.parametrize("failing_move", range(4))
def test_a_publication_that_fails_is_finished_by_the_next_start(tmp_path, monkeypatch, failing_move):
    for name in ("data", "more", "done"):
        (tmp_path / name).write_text("old")
    replace, moved = os.replace, []

    def failing(source, target):
        if len(moved) == failing_move:
            raise OSError(28, "No space left on device")
        moved.append(target)
        replace(source, target)

    def publish():
        with atomic_dir.staged(tmp_path, markers=("done",)) as stage:
            write_all(stage, {"data": "new", "more": "new", "done": "new"})
            monkeypatch.setattr(atomic_dir.os, "replace", failing)

    if failing_move < 3:
        with pytest.raises(CogError, match="No space left.*whole in .*partial-"):
            publish()
        assert not (tmp_path / "done").exists()
        monkeypatch.undo()
        atomic_dir.recover(tmp_path)
    else:
        publish()
    assert texts(tmp_path) == {"data": "new", "more": "new", "done": "new"}
    assert not list(tmp_path.glob(".partial-*"))


@pytest.mark.parametrize(
    "note", ["", '{"entries": ["da', "[]", '{"entries": ["../data"], "markers": [], "replaces": []}']
)
def test_a_stage_without_a_whole_note_is_removed(tmp_path, note):
    write_all(tmp_path, {"data": "old", ".partial-abc/data": "new", ".partial-abc/.publish": note})
    (tmp_path / ".partial-def").mkdir()
    assert atomic_dir.needs_recovery(tmp_path)
    atomic_dir.recover(tmp_path)
    assert texts(tmp_path) == {"data": "old"}
    assert not atomic_dir.needs_recovery(tmp_path)
    assert not atomic_dir.needs_recovery(tmp_path / "absent")


def test_temporary_files_of_the_dead_are_removed(tmp_path):
    dead = ["..failed.json.abcd1234.tmp", ".features.json.abcd1234.tmp"]
    kept = [".mine.json.abcd1234.tmp", "features.json.abcd1234.tmp", "notes.tmp", ".failed.json", ".lock"]
    for name in (*dead, *kept):
        (tmp_path / name).write_text("")
    atomic_dir.recover(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


@pytest.mark.parametrize("old", [{"data": "old", "done": "old"}, {}])
@pytest.mark.parametrize("error", [CogError("bad"), RuntimeError("bug"), KeyboardInterrupt(), SystemExit(1)])
def test_exceptions_leave_the_folder_as_it_was(tmp_path, error, old):
    (tmp_path / "out").mkdir()
    write_all(tmp_path / "out", old)
    before = tiny.snapshot(tmp_path)
    with pytest.raises(type(error)):
        with atomic_dir.staged(tmp_path / "out", markers=("done",), replaces=["data"]) as stage:
            write_all(stage, {"data": "new", "done": "new"})
            raise error
    assert tiny.snapshot(tmp_path) == before


def test_folders_are_deleted_only_when_named(tmp_path):
    """A user's folder that is called like a result must not be lost."""
    for name in ("data", "done"):
        out = tmp_path / name
        (out / name).mkdir(parents=True)
        (out / name / "thesis.tex").write_text("years of work")
        before = tiny.snapshot(out)
        with pytest.raises(CogError, match=f"{name} is a folder"):
            with atomic_dir.staged(out, markers=("done",)) as stage:
                write_all(stage, {"data": "1", "done": "2"})
        assert tiny.snapshot(out) == before
    old = tmp_path / "old"
    (old / "final").mkdir(parents=True)
    (old / "final" / "logs.pkl").write_text("old")
    with atomic_dir.staged(old, markers=("done",), replaces=["final"]) as stage:
        (stage / "final").mkdir()
        write_all(stage, {"done": "2"})
    assert sorted(os.listdir(old)) == ["done", "final"]
    assert os.listdir(old / "final") == []


def test_links_are_replaced_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    out = tmp_path / "out"
    out.mkdir()
    (out / "data").symlink_to(tmp_path / "precious")
    (out / "old").symlink_to(tmp_path / "precious")
    (out / "done").symlink_to(tmp_path / "precious" / "file")
    with atomic_dir.staged(out, markers=("done",), replaces=["old"]) as stage:
        write_all(stage, {"data": "1", "done": "2"})
    assert texts(out) == {"data": "1", "done": "2"}
    assert (tmp_path / "precious" / "file").read_text() == "keep"


def test_permissions_are_those_of_ordinary_files(tmp_path):
    previous = os.umask(0o027)
    try:
        (tmp_path / "out").mkdir()
        with atomic_dir.staged(tmp_path / "out", markers=("done",)) as stage:
            write_all(stage, {"done": "1"})
        files.write_text(tmp_path / "alone", "1")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "out" / "done").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "alone").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750


# --- processes that die, disks that fill up


def start(python, repository, code, *arguments):
    return subprocess.Popen(
        [python, "-c", code, *map(str, arguments)], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


SAVES_FEATURES = """
import resource, sys, torch
from cog.features import feature_files
from cog.runtime import cli
def main(argv):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    data = feature_files.FeatureSet(torch.zeros(1000, 100), torch.zeros(1000, dtype=torch.int64), "x")
    feature_files.save(data, sys.argv[1])
cli.run(main)
"""

LOGS = """
import logging, resource, sys
from pathlib import Path
from cog.runtime import cli, files, provenance
def main(argv):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    with provenance.log_file(Path(sys.argv[1])):
        for _ in range(1000):
            logging.getLogger("cog").debug("x" * 100)
            logging.getLogger("cog.other").info("y" * 100)
    files.write_pickle(sys.argv[2], list(range(100000)))
cli.run(main)
"""


def check_full(process, name):
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if "yyy" not in line]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: cannot write")
    assert name in lines[0]


@pytest.mark.slow
def test_disk_full_while_features_are_saved(tmp_path, python, repository):
    path = tmp_path / "X_Y.pth"
    path.write_text("old")
    check_full(start(python, repository, SAVES_FEATURES, path), "X_Y.pth")
    assert texts(tmp_path) == {"X_Y.pth": "old"}


def test_disk_full_while_the_log_is_written(tmp_path, python, repository):
    path = tmp_path / "data.pkl"
    check_full(start(python, repository, LOGS, tmp_path / "program.log", path), "data.pkl")
    assert not path.exists()


def test_standard_output_on_a_full_disk(python, repository):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    code = "from cog.runtime import cli; cli.run(lambda argv: print('result'))"
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [python, "-c", code], cwd=repository, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("error: ")
    assert "No space left" in process.stderr


def test_reader_that_goes_away(python, repository):
    code = "from cog.runtime import cli; cli.run(lambda argv: print('x' * 1000000))"
    process = start(python, repository, code)
    process.stdout.close()
    process.wait(timeout=30)
    assert process.stderr.read() == ""
    assert process.returncode == 141


# --- single files


def test_atomic_write_keeps_the_old_file_on_failure(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        with files.atomic_write(path) as handle:
            handle.write(b"new")
            raise RuntimeError
    assert texts(tmp_path) == {"file": "old"}


def test_atomic_write_is_one_step_for_readers(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with open(path) as reader:
        files.write_text(path, "new content")
        assert reader.read() == "old"  # the file that was opened is still whole
    assert path.read_text() == "new content"


@pytest.mark.parametrize("where", ["absent/file", "regular/file", "folder"])
def test_atomic_write_where_it_cannot(tmp_path, where):
    (tmp_path / "regular").write_text("x")
    (tmp_path / "folder").mkdir()
    before = tiny.snapshot(tmp_path)
    with pytest.raises(CogError, match=f"cannot write .*{where}"):
        files.write_text(tmp_path / where, "new")
    assert tiny.snapshot(tmp_path) == before


def test_names_that_are_not_utf_8(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    files.write_text(tmp_path / "paths", f"{name}\n")
    assert (tmp_path / "paths").read_bytes() == b"caf\xe9.png\n"
    files.write_json(tmp_path / "json", {"path": name})
    assert files.read_json(tmp_path / "json") == {"path": name}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_broken_json(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(CogError, match=r"file\.json"):
        files.read_json(tmp_path / "file.json")


def test_ensure_writable_dir(tmp_path):
    files.ensure_writable_dir(tmp_path / "a/b", "--output_dir")
    assert os.listdir(tmp_path / "a/b") == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(CogError, match="cannot write into --output_dir"):
        files.ensure_writable_dir(tmp_path / "file" / "below", "--output_dir")
