"""Safetensors files, read with the format's own library."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from cog.models.formats.errors import errors_explained
from cog.runtime import files

# Limit of the header in bytes. The library accepts 100 MB, the header of a million empty tensors, which takes two
# minutes; networks have a few thousand tensors, with 100 bytes of header each.
_MAX_HEADER = 1 << 20


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file.

    Raises:
        CogError: the file is damaged, or has an unknown element type.
    """
    with errors_explained(path, "safetensors file"):
        with files.open_regular(path) as file:
            n_header = int.from_bytes(file.read(8), "little")
        if n_header > _MAX_HEADER:
            raise ValueError(f"a header of {n_header} bytes, expected at most {_MAX_HEADER}")
        try:
            return load(files.contents(path, "safetensors file"))
        except SafetensorError as error:
            raise ValueError(str(error)) from None
