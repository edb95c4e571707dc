"""The safetensors format, https://huggingface.co/docs/safetensors: a JSON header and raw little-endian data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.models.formats.tensors import from_bytes, view

if TYPE_CHECKING:
    import torch

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}

_MAX_HEADER = 100_000_000  # bytes, the format's own limit


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file.

    Raises:
        CogError: when it is damaged or holds an unknown element type.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}
    try:
        with open(path, "rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            if n_header > _MAX_HEADER:
                raise ValueError("header too long")
            header = json.loads(file.read(n_header))
            start = 8 + n_header
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                dtype = getattr(torch, _DTYPES[entry["dtype"]])
                begin, end = entry["data_offsets"]
                if not 0 <= begin <= end <= path.stat().st_size - start:
                    raise ValueError(f"{name} reaches beyond the end of the file")
                file.seek(start + begin)
                flat = from_bytes(file.read(end - begin), dtype)
                shape = entry["shape"]
                strides = [1] * len(shape)
                for axis in range(len(shape) - 2, -1, -1):
                    strides[axis] = strides[axis + 1] * shape[axis + 1]
                tensors[name] = view(flat, 0, shape, strides)
    except OSError as error:
        raise CogError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise CogError(
            f"{path} is not a readable safetensors file ({type(error).__name__}: {error}); is it complete?"
        ) from None
    return tensors
