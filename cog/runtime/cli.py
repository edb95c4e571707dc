"""Common parts of the scripts: flag types, ``KEY VALUE`` options, and errors in one line."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NoReturn

from cog import __version__
from cog.constants import is_unset
from cog.errors import CogError, did_you_mean
from cog.runtime import memory, signals
from cog.runtime.log import readable, set_up_logging

_CONFIG_KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)+")

_UNSET_HELP = "An argument given as None or null (any case) counts as not given."

CONFIG_HELP = (
    "KEY VALUE pairs anywhere on the command line override the configuration, for example "
    f"`EVAL.SEED 55 CLF.N_SHOT 8`. All keys and defaults: configs/default.py. {_UNSET_HELP}"
)


def started_as(module: str) -> str:
    """Return the command that started a package: ``python -m cog models``, ``cog-models``, or its module."""
    typed = os.path.basename(sys.argv[0])
    return typed if typed.startswith(("python -m cog ", "cog-")) else f"python -m {module}"


class OneLineParser(argparse.ArgumentParser):
    """An argument parser without abbreviations, with error messages of one line."""

    def __init__(self, *, prog: str | None = None, **options: Any) -> None:
        # Python 3.14 would name every command "python -m cog".
        super().__init__(prog=prog or os.path.basename(sys.argv[0]), **options, allow_abbrev=False)
        self.add_argument("--version", action="version", version=f"imagenet-cog {__version__}")

    def parse_args(self, args: Sequence[str] | None = None, namespace=None):  # type: ignore[override]
        """Parse ``args`` (default: the command line)."""
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions, cutoff=0.7)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return namespace

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {readable(' '.join(message.split()))} (see {self.prog} --help)\n")


class Parser(OneLineParser):
    """An argument parser that also accepts ``KEY VALUE`` options.

    ``KEY VALUE`` pairs are stored in ``args.opts`` (a flat list). Optional flags given as ``None`` or
    ``null`` keep their defaults, because bash drivers pass unset variables that way.

    Args:
        description: first paragraph of the help.
        prog: name of the command in messages; None: the file name of the running script.
        no_opts: end of the error message about ``KEY VALUE`` pairs of a command without them; None: accepted.
    """

    def __init__(self, description: str, prog: str | None = None, *, no_opts: str | None = None) -> None:
        epilog = CONFIG_HELP if no_opts is None else _UNSET_HELP
        super().__init__(prog=prog, description=description, epilog=epilog)
        self._no_opts = no_opts

    def parse_args(self, args: Sequence[str] | None = None, namespace=None):  # type: ignore[override]
        """Parse ``args`` (default: the command line) into a namespace with ``opts``."""
        actions = [action for action in self._actions if action.nargs in (None, "+")]
        valued = {option for action in actions for option in action.option_strings}
        flags, opts = self._split(sys.argv[1:] if args is None else args, valued)
        namespace = super().parse_args(flags, namespace)
        if opts and self._no_opts is not None:
            self.error(f"{opts[0]} and other KEY VALUE pairs {self._no_opts}")
        for name, value in vars(namespace).items():  # shells do not expand the ~ of --flag=~/folder
            at_home = [_at_home(v) for v in value] if isinstance(value, list) else _at_home(value)
            setattr(namespace, name, at_home)
        namespace.opts = opts
        return namespace

    def _split(self, argv: Sequence[str], valued: set[str]) -> tuple[list[str], list[str]]:
        """Separate flags with their values (which may look like a key) from ``[KEY, VALUE, ...]``.

        ``--flag None`` and ``--flag=null`` are left out; an empty value would be the current folder.
        """
        flags: list[str] = []
        opts: list[str] = []
        words = iter(argv)
        for word in words:
            flag, is_joined, value = word.partition("=")
            if flag in valued:
                given = [word] if is_joined else [word, *islice(words, 1)]
                value = value if is_joined else given[-1]
                if not value.strip():
                    self.error(f"argument {flag}: the value is empty; leave the flag out, or give None")
                flags += [] if is_unset(value) else given
            elif not _CONFIG_KEY.fullmatch(word):
                flags.append(word)
            elif (text := next(words, None)) is not None:
                opts += [word, text]
            else:
                self.error(f"option {word} has no value; expected KEY VALUE pairs")
        return flags, opts


def _at_home(value: Any) -> Any:
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return an argparse type for integers from ``minimum``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is too small, expected {minimum} or more")
        return value

    return parse


def python_target(text: str) -> str:
    """Return ``text`` unchanged if it has the form ``FILE.py:function`` (an argparse type)."""
    file, _, function = text.rpartition(":")
    if not file or not function.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form FILE.py:load_my_model")
    return text


def run(
    main: Callable[[Sequence[str] | None], int | None],
    argv: Sequence[str] | None = None,
    *,
    continues: bool = False,
) -> NoReturn:
    """Run the ``main`` of a script and exit: with code 0, or that of a ``CogError`` after its one line.

    Lack of memory and errors of the operating system end in one line and exit code 2, too. ``COG_DEBUG=1`` in
    the environment shows the traceback behind an error.

    Args:
        main: function of the script.
        argv: its arguments; None: those of the process.
        continues: whether the same command continues work that ^C has interrupted.
    """
    set_up_logging()
    logger = logging.getLogger("cog")
    if getattr(sys.stdout, "errors", None) == "strict" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may contain bytes that are not text
    try:
        code = main(argv) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        logger.error("interrupted%s", "; the same command continues" if continues else "")
        code = 130
    except BrokenPipeError:
        # The reader of the output (`| head`) has closed the pipe; exit without a message, as other tools do.
        _discard_output()
        code = 141
    except (CogError, MemoryError, RuntimeError, OSError) as error:
        explained = _explain(error)
        if os.environ.get("COG_DEBUG") == "1":
            traceback.print_exc()
        logger.error("%s", explained)
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        code = explained.exit_code
        if code == signals.EXIT_CODE:
            signals.requeue()
    sys.exit(code)


def _explain(error: Exception) -> CogError:
    """Return an error as a ``CogError`` of one line; raise it again when it is a fault of the program."""
    if isinstance(error, CogError):
        return error
    if isinstance(error, OSError):
        # Errors without a check of their own: permissions, circular links, full disks.
        failed = f"cannot access {error.filename}" if error.filename else "input or output failed"
        return CogError(f"{failed}: {error.strerror or error}")
    if not memory.is_exhausted(error):
        raise error
    todo = "do less at a time (fewer seeds and shots, smaller batches)"
    return memory.explain(error, task=f"{os.path.basename(sys.argv[0])} was running", todo=todo)


def _discard_output() -> None:
    """Send the rest of the output to /dev/null, so that Python can flush it at exit without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
