"""WordNet ids of nouns, and the 1000 ids of ImageNet-1K."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

IN1K_LIST = Path(__file__).parent / "in1k_wnids.txt"  # an id per line


def is_wnid(text: str) -> bool:
    """Return whether ``text`` has the form of a noun id: ``n`` and the 8 digits of a byte offset."""
    return re.fullmatch("n[0-9]{8}", text) is not None


def class_list_digest(classes: Iterable[str]) -> str:
    """Return the SHA-256 of the sorted names of classes, one per line; it does not depend on their order."""
    return hashlib.sha256("\n".join(sorted(classes)).encode(errors="surrogateescape")).hexdigest()
