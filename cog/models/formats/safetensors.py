"""Safetensors files, read with the format's own library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cog.errors import CogError

if TYPE_CHECKING:
    import torch


# The library takes 100 MB: a million empty tensors, two minutes. Networks have a few thousand tensors of 100 bytes.
_MAX_HEADER = 1 << 20


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file.

    Raises:
        CogError: when it is damaged or holds an unknown element type.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        with open(path, "rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
        if n_header > _MAX_HEADER:
            raise ValueError(f"a header of {n_header} bytes, expected at most {_MAX_HEADER}")
        return load(path.read_bytes())
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CogError(
            f"{path} is not a readable safetensors file ({type(error).__name__}: {error}); is it complete?"
        ) from None
