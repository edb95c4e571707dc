"""Safetensors files, read with the format's own library."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from cog.errors import CogError
from cog.models.formats.detect import SHARDED_SUFFIX, weight_map
from cog.models.formats.errors import errors_explained

# Limit of the header in bytes. The library accepts 100 MB, the header of a million empty tensors, which takes two
# minutes; networks have a few thousand tensors, with 100 bytes of header each.
_MAX_HEADER = 1 << 20


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file, or of the files that an index names.

    Raises:
        CogError: a file is damaged, has an unknown element type, or holds other tensors than the index assigns to it.
    """
    if not path.name.endswith(SHARDED_SUFFIX):
        return _read_file(path)
    places = weight_map(path)
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(places.values())):
        part = _read_file(path.with_name(name))
        wanted = {tensor for tensor, place in places.items() if place == name}
        if differing := sorted(part.keys() ^ wanted):
            raise CogError(
                f"{path.with_name(name)} does not hold the tensors that {path.name} lists (as {differing[0][:80]}); "
                "do these files belong together?"
            )
        tensors |= part
    return tensors


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    with errors_explained(path, "safetensors file"):
        with open(path, "rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
        if n_header > _MAX_HEADER:
            raise ValueError(f"a header of {n_header} bytes, expected at most {_MAX_HEADER}")
        try:
            return load(path.read_bytes())
        except SafetensorError as error:
            raise ValueError(str(error)) from None
