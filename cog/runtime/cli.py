"""The command lines of the scripts: flags, their types, and ``KEY VALUE`` options."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cog import __version__
from cog.constants import is_unset
from cog.errors import did_you_mean, printable

_CONFIG_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)+")

CONFIG_HELP = """KEY VALUE pairs anywhere override the configuration, such as `EVAL.SEED 55 CLF.N_SHOT 8`. All
keys and defaults: configs/default.py. An argument given as None or null counts as not given."""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations; ``KEY VALUE`` pairs, if a command has keys, become ``args.opts``.

    Flags given as ``None`` or ``null`` keep their defaults: bash drivers pass unset variables that way.
    """

    def __init__(self, description: str | None = None, *, has_keys: bool = True, **options: Any) -> None:
        options.setdefault("prog", os.path.basename(sys.argv[0]))  # Python 3.14: "python -m cog" for all
        options.setdefault("epilog", CONFIG_HELP if has_keys else None)
        super().__init__(description=description, allow_abbrev=False, **options)
        self._has_keys = has_keys
        self.add_argument("--version", action="version", version=f"imagenet-cog {__version__}")

    def parse_args(self, args: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse ``args`` (default: the command line) into a namespace with ``opts``."""
        flags, opts = self._split(sys.argv[1:] if args is None else args)
        namespace, unknown = self.parse_known_args(flags)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions, cutoff=0.7)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        namespace.opts = opts
        return namespace

    def _split(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Separate flags with their values (which may look like a key) from ``[KEY, VALUE, ...]``."""
        valued = {name for name, action in self._option_string_actions.items() if action.nargs in (None, "+")}
        flags, opts = list[str](), list[str]()
        words = iter(argv)
        for word in words:
            flag, is_joined, value = word.partition("=")
            if flag in valued:
                # Shells do not expand the ~ of --flag=~/folder.
                value = os.path.expanduser(value) if is_joined else next(words, "")
                if not value.strip():
                    self.error(f"argument {flag}: the value is empty; leave the flag out")
                given = [f"{flag}={value}"] if is_joined else [flag, value]
                flags += [] if is_unset(value) else given
            elif not (self._has_keys and _CONFIG_KEY.fullmatch(word)):
                flags.append(word)
            elif (text := next(words, None)) is not None:
                opts += [word, text]
            else:
                self.error(f"option {word} has no value; expected KEY VALUE pairs")
        return flags, opts

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {printable(' '.join(message.split()))} (see {self.prog} --help)\n")


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return an argparse type for integers from ``minimum``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum}")
        return int(text)

    return parse
