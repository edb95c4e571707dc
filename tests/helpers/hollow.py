"""Checkpoints in their authors' layouts with the right names and shapes but almost no data.

A tensor is a zero, repeated by strides of 0 (torch containers), or has axes of length 1 (other containers).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from golden import containers, rules

Edit = Callable[[dict], None]


def container(name: str) -> str:
    return rules.load_schema(name)["container"]["type"]


def write(name: str, path: Path, *, edit: Edit | None = None, add: dict | None = None, variant=None) -> Path:
    """Write a hollow checkpoint.

    ``edit`` changes its state dict (name -> array); ``add`` has further entries of the outer dict.
    """
    schema = rules.load_schema(name)
    strided = container(name) in ("torch", "torchscript")
    weights = schema["weights_group"]

    def fill(schema, seed, group=None):
        filled = {}
        for key, shape, dtype, *_ in schema["groups"][group or weights]["tensors"]:
            zero = np.zeros((), dtype)
            filled[key] = np.broadcast_to(zero, shape) if strided else np.zeros([1] * len(shape), dtype)
        if edit is not None and (group or weights) == weights:
            edit(filled)
        return filled

    original = containers.torch_object

    def torch_object(*arguments):
        return {**original(*arguments), **(add or {})}

    with (
        mock.patch.object(containers, "fill", fill),
        mock.patch.object(containers, "torch_object", torch_object),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # about read-only arrays, and the deprecation of torch.jit
        return Path(containers.write(schema, "A", path, variant))


def backbone_key(name: str) -> str:
    """Return the name, in the file, of a tensor on which the feature depends."""
    schema = rules.load_schema(name)
    elsewhere = tuple(schema["not_part_of_the_feature"])
    prefix = schema["prefix"]
    keys = [row[0] for row in schema["groups"][schema["weights_group"]]["tensors"]]
    mine = [key for key in keys if key.startswith(prefix) and not key.startswith(elsewhere or ("\0",))]
    return [key for key in mine if not key.endswith(("num_batches_tracked", "Momentum"))][len(mine) // 3]
