"""Checkpoints in their authors' layouts with the right names and shapes but almost no data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from golden import containers, rules

Edit = Callable[[dict], None]


def container(name: str) -> str:
    return rules.load_schema(name)["container"]["type"]


def write(name: str, path: Path, *, edit: Edit | None = None, add: dict | None = None, variant=None) -> Path:
    """Write a hollow checkpoint: zeros, repeated by strides (torch), or axes of length 1 (other containers).

    ``edit`` changes its state dict (name -> array); ``add`` has further entries of the outer dict.
    """
    schema = rules.load_schema(name)
    schema["container"].setdefault("extras", {}).update(add or {})
    strided = container(name) in ("torch", "torchscript")

    def fill(group):
        filled = {
            key: rules.hollow(shape, dtype) if strided else np.zeros([1] * len(shape), dtype)
            for key, shape, dtype, *_ in schema["groups"][group]["tensors"]
        }
        if edit is not None and group == schema["weights_group"]:
            edit(filled)
        return filled

    path.parent.mkdir(parents=True, exist_ok=True)
    return containers.write(schema, fill, path, variant)


def backbone_key(name: str) -> str:
    """Return the name, in the file, of a tensor on which the feature depends."""
    schema = rules.load_schema(name)
    elsewhere = tuple(schema["not_part_of_the_feature"])
    prefix = schema["prefix"]
    keys = [row[0] for row in schema["groups"][schema["weights_group"]]["tensors"]]
    mine = [key for key in keys if key.startswith(prefix) and not key.startswith(elsewhere or ("\0",))]
    return [key for key in mine if not key.endswith(("num_batches_tracked", "Momentum"))][len(mine) // 3]
