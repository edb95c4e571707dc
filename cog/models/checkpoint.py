"""From a checkpoint file to the backbone's parameters: open, unwrap, drop the head, load strictly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cog.errors import CogError
from cog.models.spec import Unwrap
from cog.safe_load import load_torch, tensor_dict

if TYPE_CHECKING:
    import torch
    from torch import nn

# Batch counters are no weights: networks in eval mode never read them, and files from before
# torch 0.4.1 lack them.
_OPTIONAL_SUFFIX = ".num_batches_tracked"


def allow_list(entries: tuple[str, ...]) -> list[Any]:
    """Resolve the allow-list names of :class:`~cog.models.spec.Unwrap` to what torch wants.

    Raises:
        CogError: for a name that is not one of the known ones.
    """
    resolved: list[Any] = []
    for entry in entries:
        if entry == "argparse.Namespace":
            import argparse

            resolved.append(argparse.Namespace)
        elif entry == "numpy.scalar":
            import numpy as np

            scalar = np.float64(0).__reduce__()[0]
            resolved += [
                (scalar, "numpy.core.multiarray.scalar"),
                (scalar, "numpy._core.multiarray.scalar"),
                np.dtype,
                type(np.dtype("float64")),
            ]
        else:
            raise CogError(f"{entry!r} is not a known allow-list entry")
    return resolved


def read_state_dict(path: str | os.PathLike[str], unwrap: Unwrap) -> dict[str, torch.Tensor]:
    """Read the backbone's parameters from a checkpoint file.

    Args:
        path: a file of ``torch.save``.
        unwrap: where in the file they lie and what to leave out.

    Returns:
        Parameter name -> tensor, as the architecture names them.

    Raises:
        CogError: unreadable or unsafe file, missing container key, no parameter with the prefix.
    """
    data = load_torch(path, allow=allow_list(unwrap.allow))
    if unwrap.key is not None:
        if not isinstance(data, dict) or unwrap.key not in data:
            found = ", ".join(map(str, list(data)[:5])) if isinstance(data, dict) else type(data).__name__
            raise CogError(
                f"{path} has no entry {unwrap.key!r} (found: {found}); is it the right checkpoint?"
            )
        data = data[unwrap.key]
    state = tensor_dict(data, path)
    if unwrap.prefix:
        state = {k.removeprefix(unwrap.prefix): v for k, v in state.items() if k.startswith(unwrap.prefix)}
        if not state:
            raise CogError(f"{path} has no parameter named {unwrap.prefix}*; is it the right checkpoint?")
    return {key: value for key, value in state.items() if not key.startswith(unwrap.drop or ("\0",))}


def load_strictly(module: nn.Module, state: dict[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Put ``state`` into ``module`` as float32: every parameter present, nothing left over, shapes equal.

    Args:
        module: may be on the meta device.
        state: parameter name -> tensor.
        path: file they come from, for the messages.

    Raises:
        CogError: naming up to three parameters that are missing, unexpected or of another shape.
    """
    import torch

    own = module.state_dict()
    missing = [key for key in own if key not in state and not key.endswith(_OPTIONAL_SUFFIX)]
    unexpected = [key for key in state if key not in own]
    if missing or unexpected:
        parts = [
            f"{label} {len(keys)} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
            for label, keys in (("missing", missing), ("unexpected", unexpected))
            if keys
        ]
        raise CogError(f"{path} does not fit the architecture: parameters {' and '.join(parts)}")
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(own[key].shape)}"
        for key in state
        if state[key].shape != own[key].shape
    ]
    if shapes:
        raise CogError(f"{path} does not fit the architecture: {'; '.join(shapes[:3])}")
    # Absent batch counters get their initial value; everything else is in the file. Assigning (not
    # copying) is what lets the architecture be built on the meta device, without random weights.
    counters = {key: torch.zeros((), dtype=torch.int64) for key in own if key not in state}
    weights = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
    module.load_state_dict({**weights, **counters}, assign=True)


def remove_head(module: nn.Module, head: str) -> None:
    """Replace the classifier with the dotted name ``head`` by an identity."""
    from torch import nn

    parent, _, leaf = head.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Identity())
