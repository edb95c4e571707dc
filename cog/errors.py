"""Errors that a user can cause and fix, and helpers for their messages.

The message of a ``CogError`` is one line: the input, the expected input, and what to do. Scripts print
that line and exit with ``exit_code``; library callers catch the exception.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence

#: Shortest beginning, in letters, that is taken for an abbreviation of a name.
_SHORTEST = 3


class CogError(Exception):
    """Input, configuration or environment that the toolkit cannot work with."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UnsafeFileError(CogError):
    """A file asks to import or run code that its format does not need."""


class FailedImagesError(CogError):
    """More images could not be decoded than ``--allow_failures`` covers."""

    exit_code = 3


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or the name of its type when its message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def os_errors_explained(failed: str) -> Iterator[None]:
    """Turn an error of the operating system in the block into one line.

    Args:
        failed: description of the failure that begins the message, such as "cannot read /models/x.ckpt".

    Raises:
        CogError: the description and the reason that the operating system gives.
    """
    try:
        yield
    except OSError as error:
        raise CogError(f"{failed}: {error.strerror or error}") from error


def nearest(word: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to ``n`` known names that are close to an unknown word, closest first.

    Upper and lower case are the same. A name is close when it begins with the word, or the word begins with it
    (``memory``: ``mem``), or when both are keys with the same last part (``FT_EXTRACT.MEAN``:
    ``FT_EXTRACT.IMAGE_NORM.MEAN``).

    Args:
        word: unknown word.
        known: known names.
        n: largest number of names.
        cutoff: similarity (difflib) from which other names are close.

    >>> nearest("memory", ["cpus", "mem", "models_root_dir"])
    ['mem']
    """
    by_fold: dict[str, str] = {}
    for name in known:
        by_fold.setdefault(name.casefold(), name)
    folded = word.casefold()

    def begins(name: str) -> bool:
        short, long = sorted((name, folded), key=len)
        return len(short.strip("-")) >= _SHORTEST and long.startswith(short)

    def ends_alike(name: str) -> bool:
        return "." in folded and name.rpartition(".")[2] == folded.rpartition(".")[2]

    def ranked(names: Iterable[str]) -> list[str]:
        return difflib.get_close_matches(folded, list(names), n=n, cutoff=0.0)

    close = ranked(name for name in by_fold if begins(name) and name.startswith(folded))
    close += ranked(filter(ends_alike, by_fold)) + ranked(filter(begins, by_fold))
    close += difflib.get_close_matches(folded, list(by_fold), n=n, cutoff=cutoff)
    return [by_fold[name] for name in dict.fromkeys(close)][:n]


def did_you_mean(word: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> str:
    """Return ``; did you mean mem?`` for an unknown word, or "" when no name is close; see :func:`nearest`."""
    near = nearest(word, known, n=n, cutoff=cutoff)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def some(names: Sequence[str], n: int = 3) -> str:
    """Return the first ``n`` names and the number of the others: ``a, b, c and 12 more``."""
    more = f" and {len(names) - n:,} more" if len(names) > n else ""
    return ", ".join(names[:n]) + more
