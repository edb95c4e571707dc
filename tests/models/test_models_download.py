"""Downloads, from a small HTTP server on the loopback interface that cuts, lies and fails on demand."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import io
import os
import subprocess
import threading
import urllib.request
import zipfile

import pytest
import torch
from marks import first_quick

from cog.errors import CogError
from cog.models import download
from cog.models.__main__ import main
from cog.models.spec import PaperModel
from cog.models.zoo import MODELS


def checkpoint_bytes(seed: int = 0, n: int = 300_000) -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.randn(n, generator=torch.Generator().manual_seed(seed))}, buffer)
    return buffer.getvalue()


DATA = checkpoint_bytes()
DIGEST = hashlib.sha256(DATA).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves ``files``, ``DATA`` as ``/a``; ``cuts[path]`` lists after how many bytes each answer breaks off."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a": DATA}
        self.cuts: dict[str, list] = {}
        self.status: dict[str, list[int]] = {}
        self.etag = '"1"'
        self.content_type = "application/octet-stream"
        self.ranges = True
        self.requests: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        path = self.path.partition("?")[0]
        if path.startswith("http://"):  # we are asked as a proxy
            path = "/" + path.split("/", 3)[3]
        if server.status.get(path):
            return self.send_error(server.status[path].pop(0))
        if path not in server.files:
            return self.send_error(404)
        data, start = server.files[path], 0
        wanted = self.headers.get("Range")
        if server.ranges and wanted and self.headers.get("If-Range") in (None, server.etag):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("Content-Type", server.content_type)
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        cut = server.cuts[path].pop(0) if server.cuts.get(path) else None
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data[start:] if cut is None else data[start : start + cut])
        self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "_RETRY_WAIT_S", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def spec(url: str, sha256: str = "", **fields) -> PaperModel:
    return dataclasses.replace(MODELS["dino_resnet50"], url=url, sha256=sha256, **fields)


def prepare(declared: PaperModel, root, **options):
    (outcome,) = download.prepare([declared], root, **options)
    return outcome, root / "dino" / "resnet50" / "model.ckpt"


def leftovers(target) -> set[str]:
    return {path.name for path in target.parent.iterdir()} - {target.name}


def test_plain_download_then_skip(server, tmp_path):
    declared = spec(server.url("/a"), DIGEST[:8])
    outcome, target = prepare(declared, tmp_path)
    assert (outcome.status, target.read_bytes()) == ("ready", DATA)
    assert not leftovers(target)
    n_requests = len(server.requests)
    outcome, _ = prepare(declared, tmp_path)
    assert (
        outcome.status == "ready" and "as published" in outcome.detail and len(server.requests) == n_requests
    )


def test_resume_after_cut_connections(server, tmp_path):
    server.cuts["/a"] = [400_000, 300_000]
    outcome, target = prepare(spec(server.url("/a"), DIGEST), tmp_path)
    assert (outcome.status, target.read_bytes()) == ("ready", DATA)
    assert [wanted for _, wanted in server.requests] == [None, "bytes=400000-", "bytes=700000-"]


@pytest.mark.parametrize("change", ["etag", "no ranges", "no etag"])
def test_what_cannot_be_continued_starts_again(server, tmp_path, change, monkeypatch):
    server.cuts["/a"] = [500_000]
    server.ranges = change != "no ranges"
    expected = DATA
    if change == "no etag":
        server.etag = ""
    if change == "etag":
        expected = checkpoint_bytes(1)
        changed = lambda _: (setattr(server, "etag", '"2"'), server.files.update({"/a": expected}))  # noqa: E731
        monkeypatch.setattr(download.time, "sleep", changed)
    outcome, target = prepare(spec(server.url("/a")), tmp_path)
    assert (outcome.status, target.read_bytes()) == ("ready", expected) and len(server.requests) == 2
    assert not leftovers(target)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("hash", "wrong file: SHA-256"), ("page", "web page"), ("without end", "more than 1 MB")],
)
def test_what_is_no_checkpoint_is_not_kept(server, tmp_path, monkeypatch, kind, words):
    if kind == "page":
        server.content_type = "text/html; charset=utf-8"
    if kind == "without end":
        monkeypatch.setattr(download, "_MAX_MB", 1)
    sha256 = "0" * 64 if kind == "hash" else ""
    outcome, target = prepare(spec(server.url("/a"), sha256), tmp_path)
    assert outcome.status == "failed" and words in outcome.detail and "\n" not in outcome.detail
    assert not target.exists()
    if kind == "hash":
        assert not leftovers(target)


@pytest.mark.parametrize("kind", ["404", "500", "empty", "page", "refused"])
def test_a_link_that_fails_is_one_line_with_advice(server, tmp_path, kind):
    server.files["/a"] = b"" if kind == "empty" else b"<!DOCTYPE html><html>log in</html>"
    if kind == "404":
        del server.files["/a"]
    if kind == "500":
        server.status["/a"] = [500] * 10
    url = "http://127.0.0.1:9/a" if kind == "refused" else server.url("/a")
    outcome, target = prepare(spec(url), tmp_path)
    assert outcome.status == "failed" and "\n" not in outcome.detail
    assert f"get {url} otherwise, save it as {target}" in outcome.detail and not leftovers(target)


def test_transient_errors_are_repeated(server, tmp_path):
    server.status["/a"] = [503, 429]
    outcome, _ = prepare(spec(server.url("/a"), DIGEST), tmp_path)
    assert outcome.status == "ready" and len(server.requests) == 3


def test_manual_links_print_the_steps(server, tmp_path, capsys):
    declared = spec("https://example.org/folder", browser=True)
    outcome, target = prepare(declared, tmp_path)
    printed = capsys.readouterr().out
    assert outcome.status == "manual"
    assert "https://example.org/folder" in printed and str(target) in printed
    assert f"python -m cog.models check {tmp_path} dino_resnet50" in printed


def test_dry_run_touches_nothing(server, tmp_path):
    outcome, _ = prepare(spec(server.url("/a")), tmp_path / "new", dry_run=True)
    assert outcome.status == "would download" and not server.requests and not (tmp_path / "new").exists()


def test_what_is_there_is_never_replaced(server, tmp_path):
    target = tmp_path / "dino" / "resnet50" / "model.ckpt"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"mine")
    outcome, _ = prepare(spec(server.url("/a"), DIGEST), tmp_path)
    assert outcome.status == "failed" and "not the published file" in outcome.detail
    outcome, _ = prepare(spec(server.url("/a")), tmp_path)
    assert outcome.status == "ready" and target.read_bytes() == b"mine" and not server.requests


def test_full_disk(server, tmp_path, monkeypatch):
    real = open

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    def full(path, mode="r", *args, **kwargs):
        return Full(path, mode) if "wb" in mode else real(path, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(download, "open", full, raising=False)
        outcome, target = prepare(spec(server.url("/a"), DIGEST), tmp_path)
    assert outcome.status == "failed" and "No space left on device" in outcome.detail and not target.exists()
    assert prepare(spec(server.url("/a"), DIGEST), tmp_path)[0].status == "ready"


def test_zip_archives_are_unpacked(server, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("folder/notes.txt", "x")
        archive.writestr("folder/student.pth.tar", DATA)
    server.files["/a.zip"] = buffer.getvalue()
    declared = spec(server.url("/a.zip"), member="elsewhere/student.pth.tar")
    outcome, target = prepare(declared, tmp_path)
    assert (outcome.status, target.read_bytes()) == ("ready", DATA) and not leftovers(target)
    outcome, _ = prepare(spec(server.url("/a.zip"), member="teacher.pth"), tmp_path / "2")
    assert outcome.status == "failed" and "does not contain teacher.pth" in outcome.detail


def _archive(compression=zipfile.ZIP_STORED, data=DATA) -> bytearray:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("student.pth.tar", data)
    return bytearray(buffer.getvalue())


def _hostile_archive(kind: str) -> bytes:
    if kind == "bomb":  # 50 MB of zeros in 50 KB
        return bytes(_archive(zipfile.ZIP_DEFLATED, bytes(50_000_000)))
    if kind == "lzma":  # its window may be gigabytes
        return bytes(_archive(zipfile.ZIP_LZMA))
    archive = _archive(zipfile.ZIP_DEFLATED)
    if kind == "cut":
        return bytes(archive[: len(archive) // 2])
    if kind == "damaged":
        archive[len(archive) // 2] ^= 255
        return bytes(archive)
    directory = archive.rindex(b"PK\x01\x02")
    if kind == "encrypted":
        archive[6] |= 1
        archive[directory + 8] |= 1
    if kind == "directory":  # announces one of a gigabyte
        end = archive.rindex(b"PK\x05\x06")
        archive[end + 12 : end + 16] = (1 << 30).to_bytes(4, "little")
    return bytes(archive)


@pytest.mark.parametrize("kind", first_quick(2, ["bomb", "damaged", "lzma", "cut", "encrypted", "directory"]))
def test_hostile_and_damaged_archives_are_refused_in_one_line(server, tmp_path, kind, monkeypatch):
    written = []
    real = download.shutil.copyfileobj
    monkeypatch.setattr(download.shutil, "copyfileobj", lambda *a: written.append(kind) or real(*a))
    server.files["/a.zip"] = _hostile_archive(kind)
    outcome, target = prepare(spec(server.url("/a.zip"), member="student.pth.tar"), tmp_path)
    assert outcome.status == "failed" and "\n" not in outcome.detail
    assert ("damaged" if kind not in ("bomb", "lzma") else "student.pth.tar") in outcome.detail
    assert not target.exists() and not leftovers(target)
    assert bool(written) == (kind == "damaged")  # the others are refused before a byte is unpacked


def test_checkpoints_in_parts(server, tmp_path):
    server.files["/m.index"], server.files["/m.data-00000-of-00001"] = b"index", b"data"
    declared = spec(server.url("/m"), parts=(".data-00000-of-00001", ".index"))
    outcome, target = prepare(declared, tmp_path)
    assert outcome.status == "ready" and not target.exists()
    assert target.with_name("model.ckpt.index").read_bytes() == b"index"
    assert target.with_name("model.ckpt.data-00000-of-00001").read_bytes() == b"data"
    assert prepare(declared, tmp_path)[0].detail.startswith("already there")
    del server.files["/m.index"]
    outcome, target = prepare(declared, tmp_path / "2")
    assert outcome.status == "failed" and not target.with_name("model.ckpt.data-00000-of-00001").exists()


def test_proxy_of_the_environment(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url(""))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setattr(urllib.request, "_opener", None)
    outcome, _ = prepare(spec("http://models.example.org/a", DIGEST), tmp_path)
    monkeypatch.setattr(urllib.request, "_opener", None)
    assert outcome.status == "ready" and server.requests[0][0] == "http://models.example.org/a"


def test_command_line_ends_with_a_table(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(MODELS, "dino_resnet50", spec(server.url("/a")))
    broken = dataclasses.replace(MODELS["swav_resnet50"], url=server.url("/no"))
    monkeypatch.setitem(MODELS, "swav_resnet50", broken)
    assert main(["fetch", str(tmp_path), "dino_resnet50", "swav_resnet50", "cutmix_resnet50"]) == 2
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed[-4:-1]] == [
        ["dino_resnet50", "ready"],
        ["swav_resnet50", "failed"],
        ["cutmix_resnet50", "manual"],
    ]
    assert printed[-1] == "1 ready, 1 failed, 1 manual"
    for words, says in (
        (["", "--all"], "is empty"),
        (["x"], "or --all"),
        (["x", "dino_resnet50", "--all"], "or --all"),
    ):
        with pytest.raises(CogError, match=says):
            main(["fetch", *words])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "models", "n_models"),
    [("prepare.sh", ["cutmix_resnet50", "sup_vgg19"], 2), ("all.sh", [], len(MODELS))],
)
def test_scripts_take_the_root_and_run_from_anywhere(repository, tmp_path, python, script, models, n_models):
    environment = {**os.environ, "COG_PYTHON": python}
    command = ["bash", str(repository / "prepare_models" / script), "my models", *models, "--dry_run"]
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert sum(line.split()[0] in MODELS for line in done.stdout.splitlines()[-n_models - 1 : -1]) == n_models
    assert not list(tmp_path.iterdir())
    done = subprocess.run(command[:2], check=False, **options)
    assert done.returncode == 2 and "models_root_dir" in done.stderr
