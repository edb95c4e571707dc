"""Names on command lines: models and data sets may also be given by their labels in tables and figures."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from cog.commands import limits
from cog.models.names import find_dataset, find_model

#: Flags that name models, and flags that name data sets.
_MODELS = ("model", "models", "relative_to", "baseline", "compare", "against")
_DATASETS = ("dataset", "datasets", "trained_on")


def add_models_file(group: argparse._ArgumentGroup) -> None:
    """Add the flag of a file of the user's models."""
    group.add_argument(
        "--models_file",
        metavar="MODELS.YAML",
        help="models of your own, one entry per name: source or loader, checkpoint, preprocess, pooling, pretraining, "
        "label, group (docs/own-models.md)",
    )


def understood(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags of a command with labels replaced by names, and with the folders and keys of ``--limit``.

    Raises:
        CogError: see :func:`resolve_labels` and :func:`cog.commands.limits.apply`.
    """
    return limits.apply(resolve_labels(args))


def resolve_labels(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags of a command with labels replaced by names.

    Raises:
        CogError: a label is that of several models, or ``--models_file`` cannot be used.
    """
    root, file = getattr(args, "models_root_dir", None), getattr(args, "models_file", None)
    has_loader = getattr(args, "model_loader", None) is not None
    how: dict[str, Any] = {"models_file": file, "root": root, "has_loader": has_loader}
    named: dict[str, Any] = {
        flag: _each(value, functools.partial(find_model, flag=f"--{flag}", **how))
        for flag in _MODELS
        if (value := getattr(args, flag, None)) is not None
    }
    # With --images_root, any name is that of the user's own data set.
    if getattr(args, "images_root", None) is None:
        named |= {
            flag: _each(value, lambda text: find_dataset(text, root=root))
            for flag in _DATASETS
            if (value := getattr(args, flag, None)) is not None
        }
    return argparse.Namespace(**vars(args) | named)


def _each(value: Any, find: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [None if text is None else find(text) for text in value]
    return find(value)
