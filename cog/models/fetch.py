"""The files of checkpoints, and their download: continued, checked, and moved into place as a whole."""

import glob
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from cog.errors import CogError, first_line
from cog.models.spec import PaperModel
from cog.paths import ModelDir, require_file
from cog.runtime import files

_ATTEMPTS, _RETRY_WAIT_S = 5, 1.0  # without progress; the wait doubles with each

#: Suffix of the index of a TensorFlow checkpoint.
INDEX = ".index"


def checkpoint_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the existing files of a file, or of the common prefix of ``.index`` and ``.data-...-of-...``."""
    path = Path(path)
    if path.is_file() and path.suffix != INDEX:
        return [path]
    prefix = str(path).removesuffix(INDEX)
    found = sorted(path.parent.glob(f"{glob.escape(os.path.basename(prefix))}.data-*-of-*"))
    return [Path(prefix + INDEX), *found] if os.path.isfile(prefix + INDEX) else []


def require_checkpoint(path: str | os.PathLike[str], flag: str) -> list[Path]:
    """Return the files of a checkpoint after a check that all are readable; a CogError names ``flag``."""
    return [require_file(part, flag) for part in checkpoint_files(path) or [Path(path)]]


def no_weights(path: Path) -> str:
    """Return what a failed download left in a file, such as "nothing"; "" for other files."""
    with files.open_regular(path) as file:
        head = file.read(512).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"version https://git")):
        return "a web page or a Git LFS pointer"
    return "" if head else "nothing"


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a checkpoint; of one in several files, that of the index followed by the data."""
    return files.sha256(*require_checkpoint(path, "checkpoint"))


def fetch(
    models: Iterable[PaperModel], root: str | os.PathLike[str], *, dry_run: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Download, and yield name, "ready", "manual", "failed" or "would download", and an explanation."""
    for row in models:
        target = ModelDir(Path(root), row.name).checkpoint
        try:
            yield row.name, *_fetch(row, target, dry_run)
        except CogError as error:
            yield row.name, "failed", f"{error}; get {row.url} otherwise and save it as {target}"


def _fetch(row: PaperModel, target: Path, dry_run: bool) -> tuple[str, str]:
    targets = [target.with_name(f"{target.name}{suffix}") for suffix in row.parts]
    if all(path.is_file() for path in targets):
        _check(row, targets)
        return "ready", f"already there, SHA-256 {'as published' if row.sha256 else 'not known'}"
    if row.browser:
        return "manual", f"open {row.url} in a browser (in a folder: .pth.tar or .pth), save it as {target}"
    if dry_run:
        return "would download", row.url
    target.parent.mkdir(parents=True, exist_ok=True)
    parts = [path.with_name(f".{path.name}.part") for path in targets]
    # Without a known hash, a part of another version of the file would not be noticed.
    for suffix, part in zip(row.parts, parts, strict=True):
        if not row.sha256:
            part.unlink(missing_ok=True)
        _download(row.url + suffix, part)
    try:
        _check(row, parts)
        if row.member:
            _unpack(parts[0], row.member)
    except CogError:
        for part in parts:
            part.unlink()
        raise
    # The index of a TensorFlow checkpoint comes last: without it, the checkpoint does not exist.
    for part, path in zip(parts, targets, strict=True):
        os.replace(part, path)
    return "ready", f"downloaded from {row.url}"


def _check(row: PaperModel, paths: list[Path]) -> None:
    """Refuse a file that is not the published one, or a page in its place."""
    if row.is_published(digest := files.sha256(*paths)) is False:
        raise CogError(f"{paths[0]} is not the published file: SHA-256 {digest}, not {row.sha256}; remove it")
    if problem := no_weights(paths[0]):
        raise CogError(f"{row.url} gave {problem} instead of the file")


def _download(url: str, part: Path) -> None:
    """Download ``url`` to ``part``, from its end on; a file that changes is downloaded as a whole."""
    version = problem = ""
    attempt, size = 0, -1
    while attempt < _ATTEMPTS:
        if problem:
            time.sleep(_RETRY_WAIT_S * 2**attempt)
        before, size = size, part.stat().st_size if part.is_file() else 0
        attempt = 0 if size > before else attempt + 1  # only attempts without progress count
        headers = {"User-Agent": "imagenet-cog", "Accept-Encoding": "identity"}
        if size:
            headers |= {"Range": f"bytes={size}-"} | ({"If-Range": version} if version else {})
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer, open(part, "ab") as file:
                if answer.status != 206:
                    file.truncate(file.seek(0))
                version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                total = file.tell() + int(answer.headers.get("Content-Length") or 0)
                shutil.copyfileobj(answer, file, 1 << 20)
                os.fsync(file.fileno())
                if file.tell() >= total:
                    return
                problem = f"cut at {file.tell():,} of {total:,} bytes"
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code == 416:  # the part is no part of this file
                part.unlink()
            elif error.code < 500 and error.code not in (408, 425, 429):
                break
        except (OSError, http.client.HTTPException) as error:
            problem = first_line(error)
    raise CogError(f"cannot download {url}: {problem}")


def _unpack(path: Path, member: str) -> None:
    """Replace a zip archive by one of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            (info,) = (info for info in archive.infolist() if info.filename.rpartition("/")[2] == member)
            usual = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if not usual or info.file_size > 20 * path.stat().st_size:  # weights hardly compress
                raise ValueError(f"{member} would grow to {info.file_size:,} bytes")
            with archive.open(info) as content, files.atomic_write(path) as out:
                shutil.copyfileobj(content, out, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise CogError(f"the archive is damaged, or without one {member} ({first_line(error)})") from None
