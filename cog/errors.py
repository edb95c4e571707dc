"""Errors that a user can cause and fix.

A ``CogError`` message is one line: what was given, what was expected, what to do. Scripts print
that line and exit with ``exit_code``; library callers catch the exception.
"""

from __future__ import annotations


class CogError(Exception):
    """Input, configuration or environment that the toolkit cannot work with."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class UnsafeFileError(CogError):
    """A file asks to import or run something its format does not need."""


class FailedImagesError(CogError):
    """More images could not be decoded than ``--allow_failures`` covers."""

    exit_code = 3
