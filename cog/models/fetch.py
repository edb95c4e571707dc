"""The files of checkpoints, and their download.

Downloads are continued after cut connections and killed commands, checked, and moved into place as a whole.
Proxies are taken from the environment (``http_proxy``, ``https_proxy``, ``no_proxy``) by urllib.
"""

from __future__ import annotations

import glob
import http.client
import logging
import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from cog.errors import CogError, first_line, os_errors_explained
from cog.models.spec import PaperModel
from cog.paths import ModelDir
from cog.runtime import files

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_RETRY_WAIT_S = 2.0  # before the first repetition; it doubles with each further one
_MB = 1_000_000

#: Suffix of the index of a TensorFlow checkpoint.
INDEX = ".index"


def checkpoint_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a checkpoint: the file itself, or the parts of a TensorFlow checkpoint.

    Args:
        path: a file, or the common prefix of ``.index`` and ``.data-...-of-...`` (or the ``.index`` file).

    Returns:
        The existing files in a fixed order; empty when there is no such checkpoint.
    """
    path = Path(path)
    if path.is_file() and path.suffix != INDEX:
        return [path]
    prefix = path.with_suffix("") if path.suffix == INDEX else path
    index = prefix.with_name(prefix.name + INDEX)
    if not index.is_file():
        return []
    return [index, *sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))]


def require_checkpoint(path: str | os.PathLike[str], flag: str) -> list[Path]:
    """Return the files of a checkpoint, see :func:`checkpoint_files`, after a check that all are readable.

    Raises:
        CogError: no such checkpoint, or an unreadable file; the message names ``flag``.
    """
    parts = checkpoint_files(path) or [Path(path)]
    for part in parts:
        files.require_file(part, flag)
    return parts


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a checkpoint; of one in several files, that of the index followed by the data."""
    return files.sha256(*require_checkpoint(path, "checkpoint"))


# --- downloads


def fetch(
    models: Iterable[PaperModel], root: str | os.PathLike[str], *, dry_run: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Bring the checkpoints of models into place; with ``dry_run`` the downloads are only listed.

    Yields:
        Name of the model, "ready", "manual", "failed" or "would download", and an explanation, after each
        model.

    Raises:
        CogError: the root cannot be written to.
    """
    if not dry_run:
        files.ensure_writable_dir(root, "<models_root_dir>")
    for row in models:
        target = ModelDir(Path(root), row.name).checkpoint
        try:
            yield row.name, *_fetch(row, target, dry_run)
        except CogError as error:
            yield row.name, "failed", f"{error}; get {row.url} otherwise and save it as {target}"


def _fetch(row: PaperModel, target: Path, dry_run: bool) -> tuple[str, str]:
    targets = [target.with_name(f"{target.name}{suffix}") for suffix in row.parts]
    if all(path.is_file() for path in targets):
        if row.is_published(digest := files.sha256(*targets)) is False:
            raise CogError(
                f"{target} exists but is not the published file (SHA-256 {digest}, expected {row.sha256}); "
                "remove it to download it again"
            )
        return "ready", f"already there, SHA-256 {'as published' if row.sha256 else 'not known'}"
    if row.browser:
        how = f"open {row.url} in a browser (of a folder: the file .pth.tar or .pth), save it as {target}"
        return "manual", how
    if dry_run:
        return "would download", row.url
    files.ensure_writable_dir(target.parent, "folder")
    parts = [path.with_name(f".{path.name}.part") for path in targets]
    try:
        for suffix, part in zip(row.parts, parts, strict=True):
            if not row.sha256:
                part.unlink(missing_ok=True)  # a mixture of two versions of the file would not be noticed
            _download(row.url + suffix, part)
            digest = files.sha256(part)
            if row.is_published(digest) is False:
                part.unlink()
                raise CogError(f"{row.url} is the wrong file: SHA-256 {digest}, expected {row.sha256}")
            if row.member:
                _unpack(part, row.member)
        with os_errors_explained(f"cannot write {target}"):
            # The index of a TensorFlow checkpoint comes last: without the index, the checkpoint does not
            # exist.
            for part, path in zip(parts, targets, strict=True):
                os.replace(part, path)
    finally:
        for part in [] if row.sha256 else parts:
            part.unlink(missing_ok=True)
    return "ready", f"downloaded from {row.url}"


def _download(url: str, part: Path) -> None:
    """Download ``url`` to ``part``, from its end on; a file that changes is downloaded as a whole."""
    version = problem = ""
    attempt = 0
    while attempt < _ATTEMPTS:
        if attempt:
            time.sleep(_RETRY_WAIT_S * 2 ** (attempt - 1))
            logger.warning("%s: %s; trying again (%d of %d)", url, problem, attempt + 1, _ATTEMPTS)
        size = part.stat().st_size if part.is_file() else 0
        headers = {"User-Agent": "imagenet-cog", "Accept-Encoding": "identity"}
        if size:
            headers |= {"Range": f"bytes={size}-"} | ({"If-Range": version} if version else {})
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
                version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
                _save(answer, part, url)
            return
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code == 416:  # the part is no part of this file
                part.unlink()
            elif error.code < 500 and error.code not in (408, 425, 429):
                raise CogError(f"{url}: {problem}") from None
        except (OSError, http.client.HTTPException) as error:
            problem = f"the connection failed ({first_line(error)})"
        except ValueError as error:
            raise CogError(f"{url} is not a usable link ({error})") from None
        grown = part.is_file() and part.stat().st_size > size
        attempt = 1 if grown else attempt + 1  # only attempts without progress count
    raise CogError(f"{url}: {problem} ({_ATTEMPTS} attempts)")


def _save(answer: http.client.HTTPResponse, part: Path, url: str) -> None:
    with (
        os_errors_explained(f"cannot write {part}"),
        open(part, "ab" if answer.status == 206 else "wb") as file,
    ):
        total = file.tell() + int(answer.headers.get("Content-Length") or 0)
        logger.info("%s: %.0f of %.0f MB", url, file.tell() / _MB, total / _MB)
        shutil.copyfileobj(answer, file, _MB)
        file.flush()
        os.fsync(file.fileno())
        if file.tell() < total:
            raise http.client.IncompleteRead(b"", total - file.tell())
    head = part.read_bytes()[:99] if part.stat().st_size < _MB else b"large"
    if not head.strip() or head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        part.unlink()
        raise CogError(f"{url}: {'a web page' if head else 'nothing'} instead of the file")


def _unpack(path: Path, member: str) -> None:
    """Replace a zip archive by one of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            usual = [
                info
                for info in archive.infolist()
                if info.filename.rpartition("/")[2] == member
                and info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                and info.file_size < 20 * path.stat().st_size  # weights hardly compress
            ]
            if len(usual) != 1:
                raise CogError(f"the archive holds {len(usual)} usual files {member}, expected one")
            with archive.open(usual[0]) as content, files.atomic_write(path) as out:
                shutil.copyfileobj(content, out, _MB)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise CogError(f"the archive is damaged ({first_line(error)})") from None
