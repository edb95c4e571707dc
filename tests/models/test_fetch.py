"""Downloads, from a small HTTP server on the loopback interface that cuts, lies and fails on demand."""

import contextlib
import dataclasses
import hashlib
import http.server
import io
import os
import random
import subprocess
import threading
import zipfile

import pytest

from cog.commands.models import main
from cog.models import fetch
from cog.models.paper_models import MODELS

DATA = random.Random(0).randbytes(1_200_000)

#: Path with the SHA-256 of the file; that of ``/a`` is not known.
KNOWN = f"/{hashlib.sha256(DATA).hexdigest()}/a"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.requests.append((self.path, wanted))
        if isinstance(data := server.files.get(self.path, 404), int):
            return self.send_error(data)
        etag = hashlib.md5(data).hexdigest()
        fresh = wanted is None or self.headers.get("If-Range", etag) != etag
        start = 0 if fresh else int(wanted.removeprefix("bytes=").rstrip("-"))
        if start >= len(data) > 0:
            return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", etag)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data[start:][: server.cuts.pop(0) if server.cuts else None])
        self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    """Serve ``files``, bytes or a status; answer n breaks off after ``cuts[n]`` bytes."""
    monkeypatch.setattr(fetch, "_RETRY_WAIT_S", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.cuts, running.requests = {"/a": DATA, KNOWN: DATA}, [], []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def prepare(url: str, root, *, dry_run: bool = False, **fields):
    declared = dataclasses.replace(MODELS["dino_resnet50"], url=url, **fields)
    ((_, status, detail),) = fetch.fetch([declared], root, dry_run=dry_run)
    assert "\n" not in detail
    return status, detail, root / "dino" / "resnet50" / "model.ckpt"


def leftovers(target) -> set[str]:
    return {path.name for path in target.parent.iterdir()} - {target.name}


def test_resume_after_cut_connections_then_skip(server, tmp_path):
    server.cuts = [100_000] * 8
    status, _, target = prepare(server.url + KNOWN, tmp_path)
    assert (status, target.read_bytes(), leftovers(target)) == ("ready", DATA, set())
    begun = [wanted for _, wanted in server.requests]
    assert begun == [None, *(f"bytes={n}00000-" for n in range(1, 9))]
    status, detail, _ = prepare(server.url + KNOWN, tmp_path)
    assert status == "ready" and "as published" in detail and len(server.requests) == len(begun)


@pytest.mark.parametrize("part, status", [(DATA[:500_000], "ready"), (b"other", "failed"), (DATA, "ready")])
def test_a_killed_command_is_continued_where_the_hash_is_known(server, tmp_path, part, status):
    for path, expected in ((KNOWN, status), ("/a", "ready")):
        target = tmp_path / path.strip("/") / "dino/resnet50/model.ckpt"
        target.parent.mkdir(parents=True)
        target.with_name(".model.ckpt.part").write_bytes(part)
        got, _, target = prepare(server.url + path, tmp_path / path.strip("/"))
        assert got == expected and target.exists() == (got == "ready") and not leftovers(target)
    assert server.requests[0] == (KNOWN, f"bytes={len(part)}-") and server.requests[-1] == ("/a", None)


def test_a_file_that_changes_meanwhile_is_downloaded_as_a_whole(server, tmp_path, monkeypatch):
    server.cuts, other = [500_000], DATA[::-1]
    monkeypatch.setattr(fetch.time, "sleep", lambda _: server.files.update({"/a": other}))
    status, _, target = prepare(server.url + "/a", tmp_path)
    assert (status, target.read_bytes(), leftovers(target)) == ("ready", other, set())


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"/{64 * '0'}/a", "is not the published file: SHA-256"),
        ("/page", "gave a web page"),
        ("/empty", "gave nothing instead"),
        ("/no", "HTTP 404"),
        ("/500", "HTTP 500"),
        ("refused", "Connection refused"),
    ],
)
def test_a_link_that_fails_is_one_line_with_advice(server, tmp_path, path, says, monkeypatch, capsys):
    page = b"<!DOCTYPE html><html>log in</html>"
    server.files |= {path: DATA, "/page": page, "/empty": b"", "/no": 404, "/500": 500}
    url = "http://127.0.0.1:9/a" if path == "refused" else server.url + path
    status, detail, target = prepare(url, tmp_path)
    assert status == "failed" and says in detail and not target.exists()
    assert f"get {url} otherwise and save it as {target}" in detail
    monkeypatch.setitem(MODELS, "dino_resnet50", dataclasses.replace(MODELS["dino_resnet50"], url=url))
    assert main(["fetch", str(tmp_path), "dino_resnet50", "cutmix_resnet50"]) == 2
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in printed[:2]] == ["failed", "manual"]
    assert printed[-1] == "1 failed, 1 manual"


def test_browsers_links_dry_runs_and_files_that_are_there_touch_nothing(server, tmp_path):
    status, detail, target = prepare("https://example.org/folder", tmp_path, browser=True)
    assert status == "manual" and "https://example.org/folder" in detail and str(target) in detail
    assert prepare(server.url + "/a", tmp_path / "new", dry_run=True)[0] == "would download"
    assert not (tmp_path / "new").exists()
    target.parent.mkdir(parents=True)
    target.write_bytes(b"mine")
    status, detail, _ = prepare(server.url + KNOWN, tmp_path)
    assert status == "failed" and "not the published file" in detail
    assert prepare(server.url + "/a", tmp_path)[0] == "ready" and target.read_bytes() == b"mine"
    assert not server.requests


def archive_of(data: bytes, compression=zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("folder/notes.txt", "x")
        archive.writestr("folder/student.pth.tar", data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("make", "member", "says"),
    [
        (lambda: archive_of(DATA), "student.pth.tar", ""),
        (lambda: archive_of(DATA), "teacher.pth", "without one teacher.pth"),
        (lambda: archive_of(bytes(9_000_000)), "student.pth.tar", "would grow to 9,000,000 bytes"),
        (lambda: archive_of(DATA[:9000], zipfile.ZIP_LZMA), "student.pth.tar", "would grow"),  # huge window
        (lambda: archive_of(DATA)[:500_000], "student.pth.tar", "is damaged"),
    ],
)
def test_an_archive_is_unpacked_or_refused(server, tmp_path, make, member, says):
    server.files["/a.zip"] = make()
    status, detail, target = prepare(server.url + "/a.zip", tmp_path, member=member)
    assert status == ("failed" if says else "ready") and says in detail
    assert target.exists() == (not says) and (says or target.read_bytes() == DATA) and not leftovers(target)


def test_checkpoints_in_parts(server, tmp_path):
    server.files["/m.index"], server.files["/m.data-00000-of-00001"] = b"index", b"data"
    url, parts = server.url + "/m", (".data-00000-of-00001", ".index")
    status, _, target = prepare(url, tmp_path, parts=parts)
    assert status == "ready" and not target.exists()
    assert target.with_name("model.ckpt.index").read_bytes() == b"index"
    assert target.with_name("model.ckpt.data-00000-of-00001").read_bytes() == b"data"
    assert prepare(url, tmp_path, parts=parts)[1].startswith("already there")
    del server.files["/m.index"]
    status, _, target = prepare(url, tmp_path / "2", parts=parts)
    assert status == "failed" and not target.with_name("model.ckpt.data-00000-of-00001").exists()


@pytest.mark.slow
def test_scripts_take_the_root_and_run_from_anywhere(repository, tmp_path, python):
    scripts = ("prepare.sh", ["cutmix_resnet50", "sup_vgg19"], 2), ("all.sh", [], len(MODELS))
    for script, models, n in scripts:
        command = ["bash", str(repository / "prepare_models" / script), "my models", *models, "--dry_run"]
        options = {"cwd": tmp_path, "env": {**os.environ, "COG_PYTHON": python}, "text": True}
        done = subprocess.run(command, check=True, capture_output=True, **options)
        assert sum(line.split()[0] in MODELS for line in done.stdout.splitlines()[-n - 1 : -1]) == n
        assert not list(tmp_path.iterdir())
