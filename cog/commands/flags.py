"""Flags that several commands share, each declared once, and the variables that stand in for them.

``--model``, ``--dataset``, ``--split``, ``--n_shot`` and ``--seeds`` take one or several values, separated by spaces or
commas. Places (``--models_root_dir``, the folders of images ...) have the value of the exported variable of the same
name when they are not given.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from cog import constants
from cog.data import datasets
from cog.data.datasets import ImageSources
from cog.errors import CogError
from cog.runtime import cli


class Several(argparse.Action):
    """One or several values, separated by spaces or commas, each once; ``None`` and ``null`` are no values.

    Args:
        each: type of a value; it raises ``argparse.ArgumentTypeError``.
        among: allowed values; None: all.
    """

    def __init__(
        self, *args: Any, each: Callable[[str], Any] = str, among: Sequence[str] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options | {"nargs": "+"})
        self.each, self.among = each, among

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the list of values."""
        words = [word for value in values for word in value.split(",") if word.strip()]
        words = [word for word in words if not constants.is_unset(word)]
        try:
            chosen = list(dict.fromkeys(self.each(word) for word in words))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        for value in chosen if self.among else ():
            if value not in (self.among or ()):
                raise argparse.ArgumentError(
                    self, f"invalid choice: {value!r} (choose from {', '.join(self.among or ())})"
                )
        if not chosen and self.required:
            raise argparse.ArgumentError(self, "expected at least one value")
        setattr(namespace, self.dest, chosen or self.default)


def _shots(text: str) -> int:
    return 0 if text.lower() == "all" else cli.whole_number(0)(text)


def _several(metavar: str, text: str, **options: Any) -> dict[str, Any]:
    return {"action": Several, "metavar": metavar, "help": text, **options}


#: Options of the shared flags, by name without ``--``; those of the images are in :func:`cog.data.datasets.flags`.
FLAGS: dict[str, dict[str, Any]] = {
    "model": _several("NAME", "one or several <model_title>_<architecture_name>, such as sup_resnet50"),
    "dataset": _several("NAME", f"one or several of {', '.join(datasets.names())}, or names of your own"),
    "split": _several(
        "SPLIT", "train, test or both; test of in1k is its official val", among=constants.SPLITS
    ),
    "n_shot": _several("N", "training images per class, one or several numbers; 0 or all: all", each=_shots),
    "seeds": _several(
        "SEED",
        f"one or several; the protocol's are {' '.join(map(str, constants.SEEDS))}",
        each=cli.whole_number(0),
    ),
    "models_root_dir": {
        "metavar": "DIR",
        "help": "root of all models, <model_title>/<architecture_name>/...",
    },
    "ckpt_file": {"metavar": "FILE", "help": "checkpoint, instead of model.ckpt in the folder of the model"},
    "model_loader": {
        "type": cli.python_target,
        "metavar": "FILE.py:FUNCTION",
        "help": "a model of your own: load_my_model(init_args) -> (backbone, forward[, preprocessing])",
    },
    "models_file": {
        "metavar": "MODELS.YAML",
        "help": "models of your own, an entry each (docs/own-models.md)",
    },
    "train_features_dir": {"metavar": "DIR", "help": "folder (or X_Y.pth file) of the training features"},
    "test_features_dir": {"metavar": "DIR", "help": "folder (or X_Y.pth file) of the test features"},
    "output_dir": {"metavar": "DIR", "help": "folder of the output; default: below that of the model"},
    "allow_failures": {
        "type": cli.whole_number(0),
        "default": 0,
        "metavar": "N",
        "help": "accept up to N images per split that cannot be decoded (default: 0; with more, exit code 3)",
    },
    "device": {"help": "cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)"},
    "overwrite": {"action": "store_true", "help": "replace an existing output"},
}

#: Flags of places beside those of the images: without a value they have that of the exported variable.
_PLACES = ("models_root_dir", "model_loader", "models_file", "log_dir")


def parser(description: str, *examples: str, **options: Any) -> cli.Parser:
    """Return the parser of a command, whose help begins with examples of its arguments."""
    made = cli.Parser(description, **options)
    made.usage = "\n       ".join(f"%(prog)s {example}" for example in examples) or None
    return made


def add(group: argparse.ArgumentParser | argparse._ArgumentGroup, *names: str, **changes: Any) -> None:
    """Add shared flags.

    Args:
        group: parser or group of flags.
        names: names without ``--``.
        changes: options of ``add_argument`` that differ from the declaration, for each of the flags.
    """
    for name in names:
        options = {**FLAGS.get(name, {}), **changes}
        if name in (*_PLACES, *datasets.flags()) and (value := exported(name)) is not None:
            options |= {"default": value, "required": False}
        group.add_argument(f"--{name}", **options)


def exported(name: str) -> str | None:
    """Return the value of an exported variable; None if it is not set, empty, ``None`` or ``null``."""
    value = os.environ.get(name, "").strip()
    return None if not value or constants.is_unset(value) else value


def add_images(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flags that locate the images of all data sets."""
    for name, text in datasets.flags().items():
        add(group, name, metavar="PATH", help=text)


def image_sources(args: argparse.Namespace) -> ImageSources:
    """Return the values of the flags of :func:`add_images`."""
    return ImageSources({flag: getattr(args, flag) for flag in datasets.flags()})


def each(args: argparse.Namespace, *idea_flags: str, of_one: Sequence[str] = ()) -> list[argparse.Namespace]:
    """Return a copy of the flags for each combination of the values of ``idea_flags`` (``"model"``, ``"dataset"``).

    Args:
        args: flags; those named are lists, or None, which stays None.
        of_one: names of flags that belong to a single combination.

    Raises:
        CogError: such a flag is given for several.
    """
    copies = [args]
    for name in idea_flags:
        values = getattr(args, name) or [None]
        copies = [argparse.Namespace(**vars(copy) | {name: value}) for copy in copies for value in values]
    for flag in of_one:
        if len(copies) > 1 and getattr(args, flag) is not None:
            names = " and ".join(f"--{name}" for name in idea_flags)
            raise CogError(
                f"--{flag} is of one output, and {names} name {len(copies)}; give --models_root_dir alone, or one at "
                "a time"
            )
    return copies
