"""Arguments that a study passes on to the scripts that it runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from cog import config
from cog.commands import extract_features, image_flags, logreg
from cog.errors import CogError
from cog.runtime import cli

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


def split(args: argparse.Namespace, words: Sequence[str]) -> PassthroughArgs:
    """Split the words after ``--`` between the scripts, and parse the arguments of each script.

    ``FT_EXTRACT.*`` keys go to ``extract_features.py``, other keys to ``logreg.py``, flags to both.

    Args:
        args: flags of the study, of which those on images and models go to ``extract_features.py``.
        words: command line after ``--``.

    Raises:
        CogError: an argument is not one of any script, or would overwrite results.
    """
    flags, opts = cli.split_opts(list(words), _fail)
    extract_opts: list[str] = []
    logreg_opts: list[str] = []
    for key, value in zip(opts[::2], opts[1::2], strict=True):
        (extract_opts if key.startswith("FT_EXTRACT.") else logreg_opts).extend((key, value))
    extract = (*_image_args(args), *flags, *args.extract_args, *extract_opts)
    logreg_args = (*flags, *args.logreg_args, *logreg_opts)
    if "--overwrite" in (*extract, *logreg_args):
        _fail("--overwrite would repeat finished work at every submission; use it with the script itself")
    common = ["--models_root_dir=.", "--model=a_b", "--dataset=in1k"]
    extraction = _parse(
        "extract_features.py", extract_features.parse_args, [*common, "--split", "test", *extract]
    )
    training = _parse("logreg.py", logreg.parse_args, [*common, *logreg_args])
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
    return PassthroughArgs(extract, logreg_args, tuple(training.opts), training.config)


def _image_args(args: argparse.Namespace) -> list[str]:
    """Return the flags of a study that are flags of ``extract_features.py``, with absolute paths."""
    places = {**image_flags.sources(args).values, "models_file": args.models_file}
    image_args = [f"--{flag}={os.path.abspath(value)}" for flag, value in places.items() if value]
    if args.model_loader is not None:
        file, _, function = args.model_loader.rpartition(":")
        image_args.append(f"--model_loader={os.path.abspath(file)}:{function}")
    return image_args


def _fail(message: str) -> NoReturn:
    raise CogError(message)


def _parse(
    script: str, parse: Callable[[Sequence[str]], argparse.Namespace], arguments: Sequence[str]
) -> argparse.Namespace:
    """Return the parsed arguments of a script; an error now is better than one in each of a hundred jobs."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            return parse(arguments)
    except SystemExit as error:
        reason = stderr.getvalue().partition("error: ")[2].partition(" (see ")[0].strip()
        raise CogError(f"{script} would refuse its arguments: {reason or 'see its --help'}") from error
