"""Detection of a checkpoint's container by its content; file names matter only for an index of several files."""

from __future__ import annotations

import glob
import os
import zipfile
from pathlib import Path

from cog.errors import CogError, os_errors_explained
from cog.runtime import files

#: First bytes of a file of ``torch.save`` before torch 1.6: its pickled magic number.
_LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

INDEX_SUFFIX = ".index"


def checkpoint_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a checkpoint: the file itself, or the parts of a TensorFlow checkpoint.

    Args:
        path: a file, or the common prefix of ``.index`` and ``.data-...-of-...`` (or the ``.index`` file).

    Returns:
        The existing files in a fixed order; empty when there is no such checkpoint.
    """
    path = Path(path)
    if path.is_file() and path.suffix != INDEX_SUFFIX:
        return [path]
    prefix = path.with_suffix("") if path.suffix == INDEX_SUFFIX else path
    index = prefix.with_name(prefix.name + INDEX_SUFFIX)
    if not index.is_file():
        return []
    return [index, *sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*-of-*"))]


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a checkpoint; of one in several files, that of the index followed by the data.

    Raises:
        CogError: the checkpoint is missing or cannot be read.
    """
    parts = checkpoint_files(path)
    if not parts:
        raise CogError(f"{path} does not exist or is not a file")
    return files.sha256(*parts)


def require_checkpoint(path: str | os.PathLike[str], flag: str) -> list[Path]:
    """Return the files of a checkpoint, see :func:`checkpoint_files`, after a check that all are readable.

    Raises:
        CogError: no such checkpoint, or an unreadable file; the message names ``flag``.
    """
    path = Path(path)
    parts = checkpoint_files(path)
    if not parts:
        if path.is_dir():
            raise CogError(f"{flag} {path} is a folder, expected a file")
        raise CogError(f"{flag} {path} does not exist; check the path")
    for file in parts:
        if not os.access(file, os.R_OK):
            raise CogError(f"{flag} {file} cannot be read; check its permissions")
    return parts


def detect(path: Path) -> str:
    """Return the container of a checkpoint.

    Returns:
        "torch", "torchscript", "safetensors", "tensorflow" or "pickle".

    Raises:
        CogError: a file that is no checkpoint (empty file, web page, other archive, torch 0.1), or a missing file.
    """
    parts = checkpoint_files(path)
    if not parts:
        raise CogError(f"{path} does not exist or is not a file")
    if parts[0].suffix == INDEX_SUFFIX:
        return "tensorflow"
    with os_errors_explained(f"cannot read {path}"), open(parts[0], "rb") as handle:
        size = parts[0].stat().st_size
        head = handle.read(512)
    if not head:
        raise CogError(f"{path} is empty; download it again")
    if head.startswith(b"PK\x03\x04"):
        return _detect_zip(path)
    if head[257:262] == b"ustar":
        from cog.runtime.safe_load import TORCH_0_1

        raise CogError(f"{path} {TORCH_0_1}")
    if head.startswith(_LEGACY_TORCH):
        return "torch"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    if head.startswith(b"version https://git-lfs"):
        raise CogError(f"{path} is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise CogError(
            f"{path} is a web page, not a checkpoint; open its link in a browser to download the file"
        )
    return "pickle"


def _detect_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CogError(f"{path} is not a readable torch file ({error}); is the download complete?") from None
    if any(name.endswith("/constants.pkl") for name in names):
        return "torchscript"
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    inside = [name for name in names if not name.endswith("/")]
    raise CogError(
        f"{path} is a zip archive with {', '.join(inside[:3]) or 'nothing'} inside, not a checkpoint; "
        "unpack it and give the checkpoint in it"
    )
