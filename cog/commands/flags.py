"""Flags that several commands share, each declared once, and the variables that stand in for them.

Places (``--models_root_dir``, the folders of images ...) that are not given have the value of the exported
variable of the same name.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from cog import constants, paths
from cog.data import datasets
from cog.errors import CogError, some
from cog.runtime import cli


class Several(argparse.Action):
    """One or several values of the type ``each``, separated by spaces or commas, each once."""

    def __init__(self, *args: Any, each: Callable[[str], Any] = str, **options: Any) -> None:
        super().__init__(*args, **options | {"nargs": "+"})
        self.each = each

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        """Store the list of values; ``None`` and ``null`` are no values."""
        words = [word for value in values for word in value.split(",") if word.strip()]
        try:
            chosen = [self.each(word) for word in words if not constants.is_unset(word)]
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        if not chosen and self.required:
            raise argparse.ArgumentError(self, "expected at least one value")
        setattr(namespace, self.dest, list(dict.fromkeys(chosen)) or self.default)


def _shots(text: str) -> int:
    return 0 if text.lower() == "all" else cli.whole_number(0)(text)


def _split(text: str) -> str:
    if text not in constants.SPLITS:
        raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from train, test)")
    return text


def _several(metavar: str, text: str, each: Callable[[str], Any] = str) -> dict[str, Any]:
    return {"action": Several, "metavar": metavar, "help": text, "each": each}


_FAILURES = "accept up to N images per split that cannot be decoded (default: 0; with more, exit code 3)"
_LOADER = "a model of your own: load_my_model(init_args) -> (backbone, forward[, preprocessing])"

#: Options of the shared flags, by name without ``--``.
FLAGS: dict[str, dict[str, Any]] = {
    "model": _several("NAME", "one or several <model_title>_<architecture_name>, such as sup_resnet50"),
    "dataset": _several("NAME", f"one or several of {', '.join(datasets.names())}, or names of your own"),
    "split": _several("SPLIT", "train, test or both; test of in1k is its official val", _split),
    "n_shot": _several("N", "training images per class, one or several numbers; 0 or all: all", _shots),
    "seeds": _several("SEED", f"of the protocol: {str(constants.SEEDS)[1:-1]}", cli.whole_number(0)),
    "models_root_dir": dict(metavar="DIR", help="root of all models, <model_title>/<architecture_name>/..."),
    "ckpt_file": dict(metavar="FILE", help="checkpoint, instead of model.ckpt in the folder of the model"),
    "model_loader": dict(metavar="FILE.py:FUNCTION", help=_LOADER),
    "models_file": dict(metavar="MODELS.YAML", help="models of your own, an entry each (docs/own-models.md)"),
    "log_dir": dict(metavar="DIR", help="logs, tasks and tables (default: <models_root_dir>/study-logs)"),
    "train_features_dir": dict(metavar="DIR", help="folder (or X_Y.pth file) of the training features"),
    "test_features_dir": dict(metavar="DIR", help="folder (or X_Y.pth file) of the test features"),
    "output_dir": dict(metavar="DIR", help="folder of the output; default: below that of the model"),
    "allow_failures": dict(metavar="N", help=_FAILURES, type=cli.whole_number(0), default=0),
    "device": {"help": "cpu, cuda or cuda:<index> (default: cuda if there is one, else cpu)"},
    "overwrite": {"action": "store_true", "help": "replace an existing output"},
    "format": {"choices": ("text", "json"), "default": "text", "help": "default: text"},
}
FLAGS |= {name: dict(metavar="PATH", help=text) for name, text in datasets.flags().items()}

#: Flags that locate images; flags of places, which have the value of the exported variable when not given.
IMAGES = tuple(datasets.flags())
PLACES = ("models_root_dir", "model_loader", "models_file", "log_dir", *IMAGES)


def parser(description: str | None, *examples: str, **options: Any) -> cli.Parser:
    """Return the parser of a command, whose help begins with examples of its arguments."""
    made = cli.Parser(description, **options)
    made.usage = "\n       ".join(f"%(prog)s {example}" for example in examples) or None
    return made


def add(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Add shared flags by their names without ``--``; ``changes`` replace options of their declarations."""
    for name in names:
        options, value = {**FLAGS[name], **changes}, os.environ.get(name, "").strip()
        if name in PLACES and value and not constants.is_unset(value):
            options |= {"default": value, "required": False}
        parser.add_argument(f"--{name}", **options)


def image_sources(args: argparse.Namespace) -> datasets.ImageSources:
    """Return where images are, and how many count; two data sets of one folder are a CogError."""
    root = datasets.OWN.root
    if len(own := [name for name in args.dataset if datasets.find(name).root == root]) > 1:
        raise CogError(f"--{root} is of one data set, and --dataset names {some(own)}; take one at a time")
    limit = vars(args).get("limit") or paths.limit_of(args.models_root_dir or "")
    return datasets.ImageSources({flag: getattr(args, flag) for flag in IMAGES}, limit)


def each(args: argparse.Namespace, *ideas: str, of_one: Sequence[str] = ()) -> list[argparse.Namespace]:
    """Return a copy of the flags for each combination of the values of ``ideas``, such as ``"model"``.

    Without values, an idea stays None. A CogError names a flag of ``of_one`` that is given for several.
    """
    copies = [args]
    for name in ideas:
        values = getattr(args, name) or [None]
        copies = [argparse.Namespace(**vars(copy) | {name: value}) for copy in copies for value in values]
    for flag in of_one:
        if len(copies) > 1 and getattr(args, flag) is not None:
            names = " and ".join(f"--{name}" for name in ideas)
            raise CogError(f"--{flag} is of one output, and {names} name {len(copies)}; leave it out")
    return copies
