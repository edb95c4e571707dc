"""Arguments that a study passes on to the scripts that it runs."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from cog import config
from cog.errors import CogError
from cog.runtime import cli

#: Function that parses the arguments of a script, and exits as argparse does for wrong arguments.
ParseArgs = Callable[[Sequence[str]], argparse.Namespace]

#: Keys of a configuration file that name an evaluation.
_EVALUATION_KEYS = ("EVAL.NAME", "CLF.TYPE", "CLF.PCA_DIM", "CLF.MAX_PER_CLASS")


@dataclass(frozen=True)
class PassthroughArgs:
    """Further arguments of the scripts, from the command line of a study.

    Attributes:
        extract: arguments of ``extract_features.py``.
        logreg: arguments of ``logreg.py``.
        opts: the classifiers' ``KEY VALUE`` pairs.
        config_file: value of ``--config``; or None.
    """

    extract: tuple[str, ...]
    logreg: tuple[str, ...]
    opts: tuple[str, ...]
    config_file: str | None

    def results_opts(self) -> list[str]:
        """Return the ``KEY VALUE`` pairs for ``print_results.py``, which takes no ``--config``."""
        named: list[str] = []
        if self.config_file is not None:
            flat = config.flat(config.get_cfg(config_file=self.config_file))
            default = config.flat(config.default_cfg())
            changed = [key for key in _EVALUATION_KEYS if flat.get(key) != default.get(key)]
            named = [word for key in changed for word in (key, str(flat[key]))]
        return [*named, *self.opts]


def split_passthrough_args(
    words: Sequence[str],
    *,
    extract_args: Sequence[str],
    logreg_args: Sequence[str],
    image_args: Sequence[str],
    parse_extract: ParseArgs,
    parse_logreg: ParseArgs,
) -> PassthroughArgs:
    """Split the words after ``--`` between the scripts, and parse the arguments of each script.

    ``FT_EXTRACT.*`` keys go to ``extract_features.py``, other keys to ``logreg.py``, flags to both.

    Args:
        words: command line after ``--``.
        extract_args: arguments of ``extract_features.py`` alone.
        logreg_args: arguments of ``logreg.py`` alone.
        image_args: flags of ``extract_features.py`` that name images and the loader of models.
        parse_extract: argument parsing of ``extract_features.py``.
        parse_logreg: argument parsing of ``logreg.py``.

    Raises:
        CogError: an argument is not one of any script, or would overwrite results.
    """
    flags, opts = cli.split_opts(list(words), _fail)
    extract_opts: list[str] = []
    logreg_opts: list[str] = []
    for key, value in zip(opts[::2], opts[1::2], strict=True):
        (extract_opts if key.startswith("FT_EXTRACT.") else logreg_opts).extend((key, value))
    extract = (*image_args, *flags, *extract_args, *extract_opts)
    logreg = (*flags, *logreg_args, *logreg_opts)
    if "--overwrite" in (*extract, *logreg):
        _fail("--overwrite would repeat finished work at every submission; use it with the script itself")
    common = ["--models_root_dir=.", "--model=a_b", "--dataset=in1k"]
    extraction = _parse("extract_features.py", parse_extract, [*common, "--split", "test", *extract])
    training = _parse("logreg.py", parse_logreg, [*common, *logreg])
    for flag, value in (
        ("--output_dir", extraction.output_dir),
        ("--output_dir", training.output_dir),
        ("--ckpt_file", extraction.ckpt_file),
        ("--train_features_dir", training.train_features_dir),
        ("--seeds", training.seeds),
        ("--n_shots", training.n_shots),
    ):
        if value is not None:
            _fail(f"{flag} is not for a study, whose results all lie under --models_root_dir; leave it out")
    return PassthroughArgs(extract, logreg, tuple(training.opts), training.config)


def _fail(message: str) -> NoReturn:
    raise CogError(message)


def _parse(script: str, parse: ParseArgs, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments of a script; an error now is better than one in each of a hundred jobs."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            return parse(arguments)
    except SystemExit as error:
        reason = stderr.getvalue().partition("error: ")[2].partition(" (see ")[0].strip()
        raise CogError(f"{script} would refuse its arguments: {reason or 'see its --help'}") from error
