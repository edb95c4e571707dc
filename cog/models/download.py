"""Downloads of checkpoints: continued after cut connections, checked, moved into place as a whole.

Proxies are taken from the environment (``http_proxy``, ``https_proxy``, ``no_proxy``) by urllib.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import shlex
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cog.errors import CogError, UnsafeFileError, os_errors_explained
from cog.models.check import CheckpointStatus
from cog.models.formats.detect import checkpoint_files, detect, sha256
from cog.models.spec import PaperModel
from cog.paths import ModelDir
from cog.runtime import files
from cog.runtime.progress import Progress

logger = logging.getLogger(__name__)

READY, MANUAL, FAILED = "ready", "manual", "failed"

_MB = 1_000_000  # bytes: the size of one read, and the unit of progress
_TIMEOUT_S = 60
_PROGRESS_S = 10  # between two lines of progress in a log
_ATTEMPTS = 5
_RETRY_WAIT_S = 2.0  # before the first repetition; it doubles with each further one
_HEADERS = {"User-Agent": "imagenet-cog (checkpoint download)", "Accept-Encoding": "identity"}
_MAX_MB = 20_000
_MAX_EXPANSION = 20  # times the archive's size: weights hardly compress, so a larger member is no checkpoint


def prepare(
    specs: Sequence[PaperModel], models_root_dir: str | os.PathLike[str], *, dry_run: bool = False
) -> list[CheckpointStatus]:
    """Bring the checkpoints of several models into place.

    Args:
        specs: declarations of the models.
        models_root_dir: root of the model folders; created when missing.
        dry_run: whether the downloads are only printed.

    Returns:
        One status per model, in order: "ready", "manual", "failed" or (in a dry run) "would download"; after a failed
        model, the others are still downloaded.

    Raises:
        CogError: the root cannot be written to.
    """
    if not dry_run:
        files.ensure_writable_dir(models_root_dir, "<models_root_dir>")
    outcomes = []
    for spec in specs:
        try:
            status, detail = _prepare_model(spec, Path(models_root_dir), dry_run)
        except CogError as error:
            status, detail = FAILED, str(error)
            logger.error("%s: %s", spec.name, error)
        outcomes.append(CheckpointStatus(spec.name, status, detail))
    return outcomes


def _prepare_model(spec: PaperModel, root: Path, dry_run: bool) -> tuple[str, str]:
    """Bring one checkpoint into place; return status and detail."""
    target = ModelDir(root, spec.name).checkpoint
    if checkpoint_files(target):
        digest = sha256(target)
        published = spec.is_published(digest)
        if published is False:
            raise CogError(
                f"{target} exists but is not the published file (SHA-256 {digest}, expected {spec.sha256}); remove it "
                "to download it again"
            )
        return READY, f"already there, SHA-256 {'as published' if published else 'not known'}"
    if spec.browser:
        print(
            f"{spec.name} has to be downloaded with a browser:\n"
            f"  1. open\n     {spec.url}\n"
            f"  2. download the checkpoint (of a folder: the file that ends in .pth.tar or .pth) and save it as\n"
            f"     {target}\n"
            f"  3. check it:\n"
            f"     python -m cog.models check {shlex.quote(str(root))} {spec.name}",
            flush=True,
        )
        return MANUAL, f"open {spec.url} in a browser, save as {target}"
    if dry_run:
        return "would download", spec.url
    files.ensure_writable_dir(target.parent, "folder")
    with _part_files(target, len(spec.parts)) as parts:
        try:
            for suffix, part in zip(spec.parts, parts, strict=True):
                _download(spec.url + suffix, part)
            _check(spec, parts[0])
        except CogError as error:
            raise CogError(
                f"{error}; get {spec.url} otherwise, save it as {target} and check it with python -m cog.models check"
            ) from None
        for suffix, part in zip(spec.parts, parts, strict=True):
            # The index of a TensorFlow checkpoint comes last: without the index, the checkpoint does not exist.
            os.replace(part, target.with_name(f"{target.name}{suffix}"))
    return READY, f"downloaded from {spec.url}"


@contextlib.contextmanager
def _part_files(target: Path, n: int) -> Iterator[list[Path]]:
    """Provide new files beside ``target``, which are removed at the end unless they were moved."""
    with (
        os_errors_explained(f"cannot write {target}"),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder,
    ):
        yield [Path(folder, f"{number}{target.suffix}") for number in range(n)]


def _download(url: str, path: Path) -> None:
    """Download ``url`` to ``path``; continue after cut connections."""
    problem = version = ""
    attempt = longest = 0
    while attempt < _ATTEMPTS:
        if attempt:
            time.sleep(_RETRY_WAIT_S * 2 ** (attempt - 1))
            logger.warning("%s: %s; trying again (%d of %d)", url, problem, attempt + 1, _ATTEMPTS)
        attempt += 1
        size = path.stat().st_size if path.is_file() else 0
        if size > longest:  # only attempts without progress count
            longest, attempt = size, 1
        request = urllib.request.Request(url, headers=_HEADERS)
        if size and version:
            request.add_header("Range", f"bytes={size}-")
            request.add_header("If-Range", version)  # a file that has changed since is sent as a whole
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                version = answer.headers.get("ETag") or ""
                if version.startswith("W/"):  # does not imply equal bytes
                    version = ""
                _save(answer, path, url)
            return
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 425, 429):
                raise CogError(f"{url}: {problem}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            problem = f"the connection failed ({str(reason) or type(error).__name__})"
        except ValueError as error:
            raise CogError(f"{url} is not a usable link ({error})") from None
    raise CogError(f"{url}: {problem} ({_ATTEMPTS} attempts)")


def _save(answer: http.client.HTTPResponse, path: Path, url: str) -> None:
    """Append an answer to ``path``, or write it there if it is the whole file; a full disk is a CogError."""
    if "text/html" in (answer.headers.get("Content-Type") or "").lower():
        raise CogError(f"{url}: the server answers with a web page instead of the file")
    start = path.stat().st_size if answer.status == 206 else 0
    length = answer.headers.get("Content-Length") or ""
    total = start + int(length) if length.isdigit() else None
    n_units = None if total is None else -(-total // _MB)
    with (
        open(path, "ab" if start else "wb") as file,
        Progress(n_units, os.path.basename(url), unit="MB", interval=_PROGRESS_S) as progress,
    ):
        progress.skip(start // _MB)
        while chunk := answer.read(_MB):
            with os_errors_explained(f"cannot write {path}"):
                file.write(chunk)
            progress.update()
            if progress.done > _MAX_MB:
                raise CogError(f"{url}: more than {_MAX_MB} MB: not a checkpoint")
        file.flush()
        os.fsync(file.fileno())
    if total is not None and path.stat().st_size != total:
        raise http.client.IncompleteRead(b"", total - path.stat().st_size)


def _check(spec: PaperModel, path: Path) -> None:
    """Check the hash of a download, take the checkpoint out of its archive, and detect its container."""
    digest = files.sha256(path)
    if not digest.startswith(spec.sha256):
        raise CogError(f"{spec.url} is the wrong file: SHA-256 {digest}, expected {spec.sha256}")
    if spec.member:
        _unpack(path, spec.member)
    if len(spec.parts) == 1:
        detect(path)


def _unpack(path: Path, member: str) -> None:
    """Replace a zip archive by one of its members; the sizes of its directory and of the member are limited."""
    from cog.runtime.safe_load import require_small_directory  # imports numpy

    try:
        with open(path, "rb") as handle:
            require_small_directory(handle)
            with zipfile.ZipFile(handle) as archive:
                record = _find_member(archive, member)
                if record.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise CogError(f"{record.filename} is compressed in a way that checkpoints are not")
                if record.file_size > _MAX_EXPANSION * path.stat().st_size:
                    raise CogError(
                        f"{record.filename} would be {record.file_size / _MB:,.0f} MB, more than "
                        f"{_MAX_EXPANSION} times its archive: not a checkpoint"
                    )
                # zipfile reads no more bytes than the size that was checked above.
                with archive.open(record) as content, files.atomic_write(path) as out:
                    shutil.copyfileobj(content, out, _MB)
    except (UnsafeFileError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise CogError(f"the archive is damaged ({error})") from None


def _find_member(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    """Return the record of a member by path, else by file name: the archives of a release differ in their folders."""
    records = archive.infolist()
    matches = [r for r in records if r.filename == member] or [
        r for r in records if r.filename.rpartition("/")[2] == member.rpartition("/")[2]
    ]
    if len(matches) != 1:
        names = ", ".join(record.filename for record in records[:5])
        raise CogError(f"the archive does not contain {member} but {names}")
    return matches[0]
