"""Fetching checkpoints: mirrors in order, resumed after cut connections, checked, moved into place whole.

Only the standard library is used, and proxies are taken from the environment (``http_proxy``,
``https_proxy``, ``no_proxy``) as everywhere.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cog import files
from cog.errors import CogError
from cog.models.formats.detect import checkpoint_files, detect
from cog.models.hashes import abbreviated, is_published, sha256
from cog.models.spec import ModelSpec, Source
from cog.paths import ModelDir

logger = logging.getLogger(__name__)

READY, MANUAL, FAILED = "ready", "manual", "failed"

_CHUNK = 1 << 20
_TIMEOUT_S = 60
_ATTEMPTS = 5
_USER_AGENT = "imagenet-cog (checkpoint download)"


class _SourceError(Exception):
    """This source does not deliver; the next one may."""


@dataclass(frozen=True)
class Outcome:
    """What became of one model.

    Attributes:
        model: its name.
        status: "ready", "manual" or "failed".
        detail: one line for the reader.
    """

    model: str
    status: str
    detail: str


def prepare(
    specs: Sequence[ModelSpec],
    models_root_dir: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    retry_wait_s: float = 2.0,
) -> list[Outcome]:
    """Bring the checkpoints of several models into place.

    Args:
        specs: their declarations.
        models_root_dir: root of the model folders; created when missing.
        dry_run: only say what would be done.
        retry_wait_s: pause before the first repetition, in seconds; it doubles with each further one.

    Returns:
        One outcome per model, in order; no model stops the others.

    Raises:
        CogError: when the root cannot be written to.
    """
    if not dry_run:
        files.ensure_writable_dir(models_root_dir, "<models_root_dir>")
    outcomes = []
    for spec in specs:
        try:
            outcome = _prepare_one(spec, Path(models_root_dir), dry_run=dry_run, retry_wait_s=retry_wait_s)
        except CogError as error:
            outcome = Outcome(spec.name, FAILED, str(error))
            logger.error("%s: %s", spec.name, error)
        outcomes.append(outcome)
    return outcomes


def _prepare_one(spec: ModelSpec, root: Path, *, dry_run: bool, retry_wait_s: float) -> Outcome:
    target = ModelDir(root, spec.name).checkpoint
    if checkpoint_files(target):
        return _existing(spec, target)
    automatic = [source for source in spec.sources if not source.manual]
    if dry_run:
        if not automatic:
            return _manual(spec, target)
        first, *others = automatic
        logger.info(
            "%s: would download %s to %s%s",
            spec.name,
            " and ".join(first.url + part for part in first.parts),
            target,
            f" (or, if that fails, {' or '.join(other.url for other in others)})" if others else "",
        )
        return Outcome(spec.name, "would download", first.url)
    problems = []
    for source in automatic:
        try:
            files.ensure_writable_dir(target.parent, "folder")
            fetch(source, target, retry_wait_s=retry_wait_s)
        except _SourceError as error:
            problems.append(f"{source.url}: {error}")
            logger.warning("%s: %s: %s", spec.name, source.url, error)
            continue
        return Outcome(spec.name, READY, f"downloaded from {source.url}")
    if any(source.manual for source in spec.sources):
        return _manual(spec, target)
    raise CogError(
        f"no source delivers {spec.name} ({'; '.join(problems)}); put the file at {target} yourself"
    )


def _existing(spec: ModelSpec, target: Path) -> Outcome:
    """Check what is there already; nothing is ever overwritten."""
    digest = sha256(target)
    published = is_published(spec, digest)
    downloaded = downloaded_sha256(target)
    if downloaded is not None and digest != downloaded:
        raise CogError(
            f"{target} is no longer what was downloaded (SHA-256 {digest}, then {downloaded}); remove it to download "
            "it again"
        )
    if published is False and downloaded is None:
        raise CogError(
            f"{target} exists but is not the published file (SHA-256 {digest}, expected "
            f"{' or '.join(map(abbreviated, spec.sha256_prefixes))}); remove it to download it again"
        )
    if published:
        detail = "already there, SHA-256 as published"
    else:
        detail = (
            "already there, unchanged since its download"
            if downloaded
            else "already there, SHA-256 not known"
        )
    logger.info("%s: %s", spec.name, detail)
    return Outcome(spec.name, READY, detail)


def _record_file(target: Path) -> Path:
    """Where it is kept what was downloaded from where."""
    return target.with_name(target.name + ".source.json")


def downloaded_sha256(target: Path) -> str | None:
    """Return the SHA-256 that a checkpoint had when it was downloaded; None when it was not, or not by us."""
    try:
        return str(json.loads(_record_file(target).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def manual_steps(spec: ModelSpec, target: Path) -> str:
    """Return the steps for a checkpoint whose link needs a browser."""
    links = "\n".join(f"     {source.url}" for source in spec.sources if source.manual)
    root = target.parent.parent.parent
    return (
        f"{spec.name} has to be downloaded with a browser:\n"
        f"  1. open\n{links}\n"
        f"  2. download the checkpoint (of a folder: the file that ends in .pth.tar or .pth) and save it as\n"
        f"     {target}\n"
        f"  3. check it:\n"
        f"     python -m cog.models check --models_root_dir {root} --model {spec.name}"
    )


def _manual(spec: ModelSpec, target: Path) -> Outcome:
    print(manual_steps(spec, target), flush=True)
    links = [source.url for source in spec.sources if source.manual]
    return Outcome(spec.name, MANUAL, f"open {links[0]} in a browser, save as {target}")


def fetch(source: Source, target: Path, *, retry_wait_s: float = 2.0) -> None:
    """Download one source and move it to ``target``, whole and checked.

    Args:
        source: see :class:`~cog.models.spec.Source`.
        target: final path (each of ``source.parts`` is appended); its folder must exist.
        retry_wait_s: see :func:`prepare`.

    Raises:
        _SourceError: the source does not deliver the file.
        CogError: it cannot be written here (full disk, permissions, another download of it running).
    """
    partial = [target.with_name(f"{target.name}{part}.download") for part in source.parts]
    with contextlib.ExitStack() as locks:
        for part, path in zip(source.parts, partial, strict=True):
            locks.enter_context(_locked(path))
            _download(source.url + part, path, retry_wait_s=retry_wait_s)
        if source.sha256:
            digest = files.sha256(partial[0])
            if not digest.startswith(source.sha256):
                _discard(partial)
                raise _SourceError(f"wrong file: SHA-256 {digest}, expected {abbreviated(source.sha256)}")
        if source.member:
            _unpack(partial[0], source.member)
        if len(partial) == 1:
            try:
                detect(partial[0])
            except CogError as error:
                _discard(partial)
                raise _SourceError(str(error)) from None
        for part, path in zip(source.parts, partial, strict=True):
            # Last the index of a TensorFlow checkpoint: that is what makes it exist.
            os.replace(path, target.with_name(f"{target.name}{part}"))
            _state_file(path).unlink(missing_ok=True)
    # Most authors publish no hash; this one tells at least whether the file changes later.
    files.write_json(_record_file(target), {"url": source.url, "sha256": sha256(target)})


def _discard(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        _state_file(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep two downloads from writing the same file."""
    lock = path.with_name(path.name + ".lock")
    try:
        handle = open(lock, "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CogError(f"cannot write {lock}: {error.strerror or error}") from error
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except OSError:
            raise CogError(f"another download is writing {path}; wait for it to end") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        handle.close()


def _state_file(path: Path) -> Path:
    """Where the URL and the version of a partial download are kept."""
    return path.with_name(path.name + ".json")


def _resumable(path: Path, url: str) -> tuple[int, str]:
    """Return how many bytes of a partial download can be kept, and the version (ETag) they belong to."""
    try:
        state = json.loads(_state_file(path).read_text(encoding="utf-8"))
        if state["url"] == url and state["version"]:
            return path.stat().st_size, state["version"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _download(url: str, path: Path, *, retry_wait_s: float) -> None:
    """Download ``url`` to ``path``, resuming what is there and repeating after cut connections."""
    problem = ""
    attempt = longest = 0
    while attempt < _ATTEMPTS:
        if attempt:
            time.sleep(retry_wait_s * 2 ** (attempt - 1))
            logger.warning("%s: %s; trying again (%d of %d)", url, problem, attempt + 1, _ATTEMPTS)
        attempt += 1
        try:
            _request(url, path)
            return
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code} {error.reason}"
            if error.code == 416:  # what is there does not belong to the file (any more)
                _discard([path])
            elif error.code < 500 and error.code not in (408, 425, 429):
                raise _SourceError(problem) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            problem = f"the connection failed ({str(reason) or type(error).__name__})"
            size = path.stat().st_size if path.is_file() else 0
            if size > longest:  # got further than ever: only attempts without progress count
                longest, attempt = size, 1
        except ValueError as error:
            raise _SourceError(f"not a usable link ({error})") from None
    raise _SourceError(f"{problem} ({_ATTEMPTS} attempts)")


def _request(url: str, path: Path) -> None:
    start, version = _resumable(path, url)
    request = urllib.request.Request(url, headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version)  # the whole file is sent when it has changed since
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        if "text/html" in (answer.headers.get("Content-Type") or "").lower():
            raise _SourceError("the server answers with a web page instead of the file")
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(
            f"bytes {start}-"
        )
        if not resumed:
            start = 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        if total is not None:
            _require_space(path, total - start)
        # A weak ETag does not promise the same bytes, so a download cannot be resumed upon it.
        etag = answer.headers.get("ETag") or ""
        tag = "" if etag.startswith("W/") else etag or answer.headers.get("Last-Modified") or ""
        files.write_json(_state_file(path), {"url": url, "version": tag})
        _copy(answer, path, start, total)
    if total is not None and path.stat().st_size != total:
        raise http.client.IncompleteRead(b"", total - path.stat().st_size)


def _copy(answer: IO[bytes], path: Path, start: int, total: int | None) -> None:
    """Append the answer's body to the first ``start`` bytes of ``path``; a full disk is a CogError."""
    with _writing(path):
        file = open(path, "ab" if start else "wb")  # noqa: SIM115 (closed below)
    with file, _progress(path.name, start, total) as show:
        while chunk := answer.read(_CHUNK):
            with _writing(path):
                file.write(chunk)
            start += len(chunk)
            show(start)
        with _writing(path):
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell errors of this machine's disk from those of the connection."""
    try:
        yield
    except OSError as error:
        raise CogError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _progress(label: str, start: int, total: int | None) -> Iterator:
    """Show megabytes and speed: continuously on a terminal, every ten seconds in a log."""
    began = last = time.monotonic()
    terminal = sys.stderr.isatty()
    interval_s = 0.2 if terminal else 10.0
    shown = False

    def line(done: int) -> str:
        speed = (done - start) / max(time.monotonic() - began, 1e-9) / 1e6
        share = f" of {total / 1e6:.0f} MB ({100 * done / total:.0f} %)" if total else " MB"
        return f"{label}: {done / 1e6:.0f}{share}, {speed:.1f} MB/s"

    def show(done: int) -> None:
        nonlocal last, shown
        if time.monotonic() - last < interval_s:
            return
        last = time.monotonic()
        shown = True
        print(
            f"\r{line(done)}  " if terminal else line(done),
            end="" if terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    try:
        yield show
    finally:
        if terminal and shown:
            print(file=sys.stderr)


def _require_space(path: Path, n_bytes: int) -> None:
    """Refuse a download that cannot fit before it fills the disk."""
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise CogError(
            f"the disk of {path.parent} has {free / 1e6:.0f} MB free, {path.name} needs {n_bytes / 1e6:.0f} MB; "
            "make room"
        )


def _unpack(path: Path, member: str) -> None:
    """Replace a zip archive by one of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            # Archives of the same release differ in their folders; the file's own name decides.
            matches = [name for name in names if name.rsplit("/", 1)[-1] == member.rsplit("/", 1)[-1]]
            name = member if member in names else matches[0] if len(matches) == 1 else None
            if name is None:
                raise _SourceError(f"the archive does not contain {member} but {', '.join(names[:5])}")
            unpacked = path.with_name(path.name + ".unpacked")
            try:
                with archive.open(name) as source, open(unpacked, "wb") as out:
                    shutil.copyfileobj(source, out, _CHUNK)
                os.replace(unpacked, path)
            finally:
                unpacked.unlink(missing_ok=True)
    except (zipfile.BadZipFile, EOFError) as error:
        _discard([path])
        raise _SourceError(f"the archive is damaged ({error})") from None
    except OSError as error:
        raise CogError(f"cannot write {path}: {error.strerror or error}") from error


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return a table of the outcomes and a line that counts them."""
    width = max((len(outcome.model) for outcome in outcomes), default=0)
    status = max((len(outcome.status) for outcome in outcomes), default=0)
    lines = [f"{o.model:<{width}}  {o.status:<{status}}  {o.detail}" for o in outcomes]
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    lines.append(", ".join(f"{count} {name}" for name, count in counts.items()) or "no models")
    return "\n".join(lines)
