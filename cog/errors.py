"""Errors that a user can cause and fix, and helpers for their messages.

Their messages are one line: found, expected, what to do. Scripts print it and exit with ``exit_code``.
"""

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence


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
    """Turn an error of the system in the block into a CogError: what ``failed``, and why."""
    try:
        yield
    except OSError as error:
        raise CogError(f"{failed}: {error.strerror or error}") from error


def nearest(word: str, known: Iterable[str], *, n: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to ``n`` known names that are close to a word, closest first; case does not count."""
    by_fold = {name.casefold(): name for name in known}
    return [by_fold[name] for name in difflib.get_close_matches(word.casefold(), by_fold, n, cutoff)]


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``; did you mean mem?`` for an unknown word, or "" when no name is close."""
    return "".join(f"; did you mean {name}?" for name in nearest(word, known, cutoff=cutoff))


def some(names: Sequence[str], n: int = 3) -> str:
    """Return the first ``n`` names and the number of the others: ``a, b, c and 12 more``."""
    more = f" and {len(names) - n:,} more" if len(names) > n else ""
    return ", ".join(names[:n]) + more


def printable(text: str) -> str:
    """Return text of others on one line and encodable: what could control a terminal becomes escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
