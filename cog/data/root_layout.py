"""Recognition of other layouts of an images' root, when images are missing in the expected one.

The toolkit wants one folder per synset, ``<root>/<wnid>/*.JPEG``, as the Fall-2011 release has it. The Winter-2021
release comes as one tar file per synset; its processed form (ImageNet-21K-P) has the synset folders inside
``imagenet21k_train`` and ``imagenet21k_val``, with 50 images of every synset moved to the latter.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_WNID = re.compile(r"n[0-9]{8}")
_TAR = re.compile(r"(n[0-9]{8})\.tar(\.gz)?")
_PART = re.compile(r"(.*_)?(train|val|small_classes)")


def explain(root: str | os.PathLike[str]) -> str | None:
    """Return one line about why synset folders, or images in them, may be missing under ``root``.

    Args:
        root: value of ``--imagenet_images_root``.

    Returns:
        None when nothing is recognized (the root is laid out as it should be, or unlike anything known).
    """
    root = Path(root)
    synsets, tars, folders = _contents(root)
    parts = [name for name in folders if _PART.fullmatch(name) and _contents(root / name)[0]]
    want = f"expected {root}/<wnid>/*.JPEG"
    if parts:
        both = " and ".join(f"{name}/" for name in parts)
        return (
            f"{root} looks like the processed Winter-2021 release: the synset folders are inside {both}, the files of "
            f"a synset in more than one of them; {want}, so link the files of all parts into one folder per synset"
        )
    if tars and len(tars) > len(synsets):
        return (
            f"{root} holds {len(tars):,} tar files ({tars[0]}, ...) that are not unpacked; {want}, so unpack each into "
            "a folder of its name"
        )
    if synsets:
        beside = _split_off(root)
        if beside is not None:
            return (
                f"{root} and {beside} look like the two parts of the processed Winter-2021 release, with files of "
                "every synset in each; link the files of both into one folder per synset"
            )
        return None
    inside = next((name for name in folders if _contents(root / name)[0]), None)
    if inside is not None:
        return f"the synset folders are in {root / inside}, not in {root} itself; give that folder"
    return None


def hint(root: str | os.PathLike[str]) -> str:
    """Return :func:`explain` as the end of an error message: ``"; ..."``, or nothing."""
    text = explain(root)
    return f"; {text}" if text else ""


def _contents(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the synset folders, the tar files of synsets and the other folders, each sorted; nothing if unreadable."""
    synsets: list[str] = []
    tars: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _WNID.fullmatch(entry.name):
                    synsets.append(entry.name)
                elif _TAR.fullmatch(entry.name):
                    tars.append(entry.name)
                elif not entry.name.startswith(".") and len(folders) < 100 and entry.is_dir():
                    folders.append(entry.name)
    except OSError:
        pass
    return sorted(synsets), sorted(tars), sorted(folders)


def _split_off(root: Path) -> Path | None:
    """Return the folder beside ``root`` that has the other files of the same synsets."""
    match = _PART.fullmatch(root.resolve().name)
    if match is None:
        return None
    for part in ("train", "val"):
        beside = root.resolve().with_name(f"{match[1] or ''}{part}")
        if part != match[2] and _contents(beside)[0]:
            return beside
    return None
