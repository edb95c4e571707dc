"""Downloads of checkpoints: mirrors in order, continued after cut connections, checked, moved into place as a whole.

Proxies are taken from the environment (``http_proxy``, ``https_proxy``, ``no_proxy``) by urllib.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from cog.errors import CogError, UnsafeFileError, os_errors_explained
from cog.models.check import CheckpointStatus
from cog.models.formats.detect import checkpoint_files, detect, sha256
from cog.models.spec import CheckpointSource, ModelSpec, abbreviated
from cog.paths import ModelDir
from cog.runtime import files
from cog.runtime.progress import Progress
from cog.runtime.zip_files import require_small_directory

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


class _SourceError(Exception):
    """The source does not deliver the checkpoint; the next source is tried."""


def prepare(
    specs: Sequence[ModelSpec], models_root_dir: str | os.PathLike[str], *, dry_run: bool = False
) -> list[CheckpointStatus]:
    """Bring the checkpoints of several models into place.

    Args:
        specs: declarations of the models.
        models_root_dir: root of the model folders; created when missing.
        dry_run: whether the downloads are only logged.

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


def _prepare_model(spec: ModelSpec, root: Path, dry_run: bool) -> tuple[str, str]:
    """Bring one checkpoint into place; return status and detail."""
    target = ModelDir(root, spec.name).checkpoint
    if checkpoint_files(target):
        return READY, _check_existing(spec, target)
    direct = [source for source in spec.release.sources if not source.manual]
    links = [source.url for source in spec.release.sources if source.manual]
    if dry_run and direct:
        urls = " or, if that fails, ".join(source.url for source in direct)
        logger.info("%s: would download %s to %s", spec.name, urls, target)
        return "would download", direct[0].url
    problems = []
    for source in direct:
        try:
            files.ensure_writable_dir(target.parent, "folder")
            _fetch(source, target)
            return READY, f"downloaded from {source.url}"
        except _SourceError as error:
            problems.append(f"{source.url}: {error}")
            logger.warning("%s: %s", spec.name, problems[-1])
    if not links:
        reasons = "; ".join(problems)
        raise CogError(
            f"no download of {spec.name} succeeded ({reasons}); get the file otherwise and save it as {target}"
        )
    print(
        f"{spec.name} has to be downloaded with a browser:\n"
        f"  1. open\n     " + "\n     ".join(links) + "\n"
        f"  2. download the checkpoint (of a folder: the file that ends in .pth.tar or .pth) and save it as\n"
        f"     {target}\n"
        f"  3. check it:\n"
        f"     python -m cog.models check --models_root_dir {root} --model {spec.name}",
        flush=True,
    )
    return MANUAL, f"open {links[0]} in a browser, save as {target}"


def _check_existing(spec: ModelSpec, target: Path) -> str:
    """Return one line about an existing checkpoint, which is never overwritten.

    Raises:
        CogError: the file is neither the published nor the downloaded file.
    """
    digest = sha256(target)
    published = spec.is_published(digest)
    downloaded = _read_strings(_record_file(target)).get("sha256")
    if downloaded is not None and digest != downloaded:
        raise CogError(
            f"{target} has changed since its download (SHA-256 {digest}, then {downloaded}); remove it to download "
            "it again"
        )
    if published is False and downloaded is None:
        raise CogError(
            f"{target} exists but is not the published file (SHA-256 {digest}, expected {spec.published_sha256}); "
            "remove it to download it again"
        )
    known = "unchanged since its download" if downloaded else "SHA-256 not known"
    detail = f"already there, {'SHA-256 as published' if published else known}"
    logger.info("%s: %s", spec.name, detail)
    return detail


def _record_file(target: Path) -> Path:
    """Return the file that keeps a checkpoint's link and SHA-256 at the time of its download."""
    return target.with_name(target.name + ".source.json")


def _read_strings(path: Path) -> dict[str, str]:
    """Return the entries of a JSON object as strings; no entries when the file is missing or damaged."""
    try:
        data = files.read_json(path)
    except CogError:
        return {}
    return {key: str(value) for key, value in data.items()} if isinstance(data, dict) else {}


def _fetch(source: CheckpointSource, target: Path) -> None:
    """Download the files of one source, check them, and move them to ``target``.

    Args:
        source: link of the checkpoint.
        target: final path (each of ``source.parts`` is appended); its folder must exist.

    Raises:
        _SourceError: the source does not deliver the file.
        CogError: the file cannot be written (full disk, permissions, another download of it is running).
    """
    lock = target.with_name(target.name + ".download.lock")
    partial = [target.with_name(f"{target.name}{part}.download") for part in source.parts]
    try:
        with FileLock(lock, timeout=0), contextlib.ExitStack() as stack:
            stack.callback(lock.unlink, missing_ok=True)
            for part, path in zip(source.parts, partial, strict=True):
                _download(source.url + part, path)
            try:
                _check(partial, source)
            except _SourceError:
                _discard(partial)
                raise
            for part, path in zip(source.parts, partial, strict=True):
                # The index of a TensorFlow checkpoint comes last: without the index, the checkpoint does not exist.
                os.replace(path, target.with_name(f"{target.name}{part}"))
            _discard(partial)
    except Timeout:
        raise CogError(f"another download is writing {target}; wait for it to end") from None
    # Most authors publish no hash; this hash reveals at least later changes of the file.
    files.write_json(_record_file(target), {"url": source.url, "sha256": sha256(target)})


def _state_file(path: Path) -> Path:
    """Return the file that keeps the URL and the version (ETag) of a partial download."""
    return path.with_name(path.name + ".json")


def _discard(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        _state_file(path).unlink(missing_ok=True)


def _download(url: str, path: Path) -> None:
    """Download ``url`` to ``path``; continue a partial download, and try again after cut connections."""
    problem = ""
    attempt = longest = 0
    while attempt < _ATTEMPTS:
        if attempt:
            time.sleep(_RETRY_WAIT_S * 2 ** (attempt - 1))
            logger.warning("%s: %s; trying again (%d of %d)", url, problem, attempt + 1, _ATTEMPTS)
        attempt += 1
        try:
            return _request(url, path)
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code == 416:  # the partial download does not belong to the file, or no longer does
                _discard([path])
            elif error.code < 500 and error.code not in (408, 425, 429):
                raise _SourceError(problem) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            problem = f"the connection failed ({str(reason) or type(error).__name__})"
            size = path.stat().st_size if path.is_file() else 0
            if size > longest:  # only attempts without progress count
                longest, attempt = size, 1
        except ValueError as error:
            raise _SourceError(f"not a usable link ({error})") from None
    raise _SourceError(f"{problem} ({_ATTEMPTS} attempts)")


def _request(url: str, path: Path) -> None:
    """Request the rest of a file, or the whole file, and append it to ``path``; a full disk is a CogError."""
    request = urllib.request.Request(url, headers=_HEADERS)
    state = _read_strings(_state_file(path))
    start = path.stat().st_size if path.is_file() and state.get("url") == url and state.get("version") else 0
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", state["version"])  # a file that has changed since is sent as a whole
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        if "text/html" in (answer.headers.get("Content-Type") or "").lower():
            raise _SourceError("the server answers with a web page instead of the file")
        content_range = answer.headers.get("Content-Range") or ""
        if answer.status != 206 or not content_range.startswith(f"bytes {start}-"):
            start = 0
        length = answer.headers.get("Content-Length") or ""
        total = start + int(length) if length.isdigit() else None
        if total is not None:
            _require_space(path, total - start)
        # A weak ETag does not imply equal bytes, so a download cannot be continued with it.
        etag = answer.headers.get("ETag") or ""
        version = "" if etag.startswith("W/") else etag or answer.headers.get("Last-Modified") or ""
        files.write_json(_state_file(path), {"url": url, "version": version})
        with os_errors_explained(f"cannot write {path}"):
            file = open(path, "ab" if start else "wb")  # noqa: SIM115 (closed below)
        n_units = None if total is None else -(-total // _MB)
        with file, Progress(n_units, path.name, unit="MB", interval=_PROGRESS_S) as progress:
            progress.skip(start // _MB)
            while chunk := answer.read(_MB):
                with os_errors_explained(f"cannot write {path}"):
                    file.write(chunk)
                progress.update()
                if progress.done > _MAX_MB:
                    raise _SourceError(f"more than {_MAX_MB} MB: not a checkpoint")
            with os_errors_explained(f"cannot write {path}"):
                file.flush()
                os.fsync(file.fileno())
    if total is not None and path.stat().st_size != total:
        raise http.client.IncompleteRead(b"", total - path.stat().st_size)


def _require_space(path: Path, n_bytes: int) -> None:
    """Refuse a file that does not fit on the disk, before it fills the disk."""
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise CogError(
            f"the disk of {path.parent} has {free / _MB:.0f} MB free, {path.name} needs {n_bytes / _MB:.0f} MB; "
            "make room"
        )


def _check(partial: Sequence[Path], source: CheckpointSource) -> None:
    """Check the hash of a download, take the checkpoint out of its archive, and detect its container."""
    digest = files.sha256(partial[0])
    if not digest.startswith(source.sha256):
        raise _SourceError(f"wrong file: SHA-256 {digest}, expected {abbreviated(source.sha256)}")
    if source.member:
        _unpack(partial[0], source.member)
    if len(partial) == 1:
        try:
            detect(partial[0])
        except CogError as error:
            raise _SourceError(str(error)) from None


def _unpack(path: Path, member: str) -> None:
    """Replace a zip archive by one of its members; the sizes of its directory and of the member are limited."""
    try:
        with open(path, "rb") as handle:
            require_small_directory(handle)
            with zipfile.ZipFile(handle) as archive:
                record = _find_member(archive, member)
                if record.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise _SourceError(f"{record.filename} is compressed in a way that checkpoints are not")
                if record.file_size > _MAX_EXPANSION * path.stat().st_size:
                    raise _SourceError(
                        f"{record.filename} would be {record.file_size / _MB:,.0f} MB, more than "
                        f"{_MAX_EXPANSION} times its archive: not a checkpoint"
                    )
                _require_space(path, record.file_size)
                # zipfile reads no more bytes than the size that was checked above.
                with archive.open(record) as content, files.atomic_write(path) as out:
                    shutil.copyfileobj(content, out, _MB)
    except (UnsafeFileError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise _SourceError(f"the archive is damaged ({error})") from None


def _find_member(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    """Return the record of a member by path, else by file name: the archives of a release differ in their folders."""
    records = archive.infolist()
    matches = [r for r in records if r.filename == member] or [
        r for r in records if r.filename.rpartition("/")[2] == member.rpartition("/")[2]
    ]
    if len(matches) != 1:
        names = ", ".join(record.filename for record in records[:5])
        raise _SourceError(f"the archive does not contain {member} but {names}")
    return matches[0]
