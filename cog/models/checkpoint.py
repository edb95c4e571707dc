"""Loading of a checkpoint file into the backbone: open, unwrap, rename, drop, load strictly."""

from __future__ import annotations

import argparse
import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cog.errors import CogError
from cog.models.formats.detect import detect
from cog.models.spec import Unwrap, import_target
from cog.runtime.safe_load import load_torch

# Batch counters are optional: networks in eval mode never read them, and files from before
# torch 0.4.1 lack them.
_OPTIONAL_SUFFIX = ".num_batches_tracked"


_SCALAR = np.float64(0).__reduce__()[0]

#: Classes for torch by the names in :class:`~cog.models.spec.Unwrap`.
_ALLOWED: dict[str, list[Any]] = {
    "argparse.Namespace": [argparse.Namespace],
    "numpy.scalar": [
        (_SCALAR, "numpy.core.multiarray.scalar"),
        (_SCALAR, "numpy._core.multiarray.scalar"),
        np.dtype,
        type(np.dtype("float64")),
    ],
}


def read_state_dict(
    path: str | os.PathLike[str],
    layouts: Sequence[Unwrap],
    *,
    expected: Collection[str] = (),
    drop: Sequence[str] = (),
) -> dict[str, torch.Tensor]:
    """Read the backbone's parameters from a checkpoint.

    Args:
        path: a file in any container that :func:`cog.models.formats.detect.detect` recognizes.
        layouts: possible layouts of the file. The layout that gives most of the ``expected`` names is taken, the
            first one in a tie.
        expected: names of the architecture's parameters.
        drop: prefixes of parameters to leave out (the classifier), as the architecture names them.

    Returns:
        Parameter name -> tensor, as the architecture names them.

    Raises:
        CogError: unreadable or unsafe file, no layout applies, or unexpected parameters.
    """
    path = Path(path)
    expected = frozenset(expected)
    data = _open(path, layouts)
    best: tuple[dict[str, Any], list[str]] | None = None
    most = -1
    for layout in layouts:
        state = _unwrapped(data, layout, path)
        if state is None:
            continue
        kept, unexpected = _selected(state, layout)
        n_found = len(expected & kept.keys())
        if n_found > most:
            best, most = (kept, unexpected), n_found
    if best is None:
        raise CogError(
            f"{path} holds {_describe(data)}; expected {_expected(layouts)}; is it the right checkpoint?"
        )
    kept, unexpected = best
    if unexpected:
        raise CogError(
            f"{path} does not fit the architecture: parameters {_listed('unexpected', unexpected)}"
        )
    dropped = tuple(drop) or ("\0",)
    return {name: _tensor(value, name, path) for name, value in kept.items() if not name.startswith(dropped)}


def _tensor(value: torch.Tensor | np.ndarray, name: str, path: Path) -> torch.Tensor:
    """Return a parameter as a tensor; pickles may hold NumPy arrays."""
    if isinstance(value, torch.Tensor):
        return value
    try:
        return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise CogError(f"{path}: {name} is an array of {value.dtype}, expected numbers") from None


def _selected(state: dict[str, Any], layout: Unwrap) -> tuple[dict[str, Any], list[str]]:
    """Return the backbone's parameters under a layout, and the names of the parameters unknown to the layout."""
    kept: dict[str, Any] = {}
    unexpected: list[str] = []
    for name, value in state.items():
        if name.startswith(layout.prefix):
            kept[name[len(layout.prefix) :]] = value
        elif not name.startswith(layout.ignored_prefixes or ("\0",)):
            unexpected.append(name)
    kept = {name: value for name, value in kept.items() if not name.startswith(layout.drop or ("\0",))}
    return (import_target(layout.rename)(kept) if layout.rename else kept), unexpected


def _open(path: Path, layouts: Sequence[Unwrap]) -> Any:
    """Read the file with the reader of its container; no reader unpickles without restriction."""
    container = detect(path)
    if container == "torch":
        names = sorted({name for layout in layouts for name in layout.allow})
        return load_torch(path, allow=[kind for name in names for kind in _ALLOWED[name]])
    if container == "torchscript":
        from cog.models.formats import torchscript

        return torchscript.read(path)
    if container == "safetensors":
        from cog.models.formats import safetensors

        return safetensors.read(path)
    if container == "tensorflow":
        from cog.models.formats import tensorflow

        prefixes = tuple(layout.prefix for layout in layouts if layout.prefix)
        return tensorflow.read(
            path, wanted=lambda name: name.startswith(prefixes) and not name.endswith("/Momentum")
        )
    from cog.models.formats import haiku

    return haiku.read(path)


def _unwrapped(data: Any, layout: Unwrap, path: Path) -> dict[str, Any] | None:
    """Return the state dict that ``layout`` describes, or None when the file has another layout."""
    if layout.key is not None:
        if not isinstance(data, dict) or layout.key not in data:
            return None
        data = data[_better_key(data, layout)]
    if not isinstance(data, dict) or not data:
        return None
    state = {str(name): value for name, value in data.items()}
    if any(not _is_array(value) for value in state.values()):
        if layout.key is None:
            return None
        wrong = [name for name, value in state.items() if not _is_array(value)]
        raise CogError(
            f"{path}: entries {', '.join(wrong[:3])} are not tensors, expected a dict of parameter tensors"
        )
    return state if any(name.startswith(layout.prefix) for name in state) else None


def _better_key(data: dict[str, Any], layout: Unwrap) -> Any:
    """Return the key of the state dict, or of its moving average if this has the lower error in the file."""
    if layout.ema_alternative is None or layout.ema_alternative[0] not in data:
        return layout.key
    average, average_error, error = layout.ema_alternative
    return average if data.get(average_error, 100) < data.get(error, 100) else layout.key


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _describe(data: Any) -> str:
    if not isinstance(data, dict):
        return f"a {type(data).__name__}"
    keys = ", ".join(str(key) for key in list(data)[:5])
    return f"entries {keys}{', ...' if len(data) > 5 else ''}" if data else "nothing"


def _expected(layouts: Sequence[Unwrap]) -> str:
    """Return the contents that a file may have, as text."""
    keys_by_names: dict[str, list[str | None]] = {}
    for key in dict.fromkeys(layout.key for layout in layouts):
        prefixes = dict.fromkeys(layout.prefix for layout in layouts if layout.key == key)
        # Where one of the layouts has no prefix, all names are possible.
        names = "" if "" in prefixes else f" named {' or '.join(f'{prefix}*' for prefix in prefixes)}"
        keys_by_names.setdefault(names, []).append(key)
    forms = []
    for names, keys in keys_by_names.items():
        if entries := [repr(key) for key in keys if key is not None]:
            forms.append(f"an entry {' or '.join(entries)} with parameters{names}")
        if None in keys:
            forms.append(f"a dict of parameter tensors{names}")
    return ", or ".join(forms)


def _listed(label: str, names: Sequence[str]) -> str:
    return f"{label} {len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


class ShapeError(CogError):
    """Parameters of a checkpoint have other shapes than those of the network."""


def load_strictly(module: nn.Module, state: dict[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Put ``state`` into ``module`` as float32: no parameter missing, none left over, equal shapes.

    Args:
        module: the network, which may be on the meta device.
        state: parameter name -> tensor.
        path: file of the parameters, for messages.

    Raises:
        ShapeError: parameters of other shapes; the message names up to three.
        CogError: missing, unexpected or sparse parameters; the message names up to three.
    """
    parameters = module.state_dict()
    missing = [key for key in parameters if key not in state and not key.endswith(_OPTIONAL_SUFFIX)]
    unexpected = [key for key in state if key not in parameters]
    if missing or unexpected:
        parts = [
            _listed(label, names)
            for label, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ]
        raise CogError(f"{path} does not fit the architecture: parameters {' and '.join(parts)}")
    without_data = [key for key, value in state.items() if value.layout != torch.strided or value.is_meta]
    if without_data:
        raise CogError(
            f"{path}: {', '.join(without_data[:3])} are sparse or without data, expected dense tensors"
        )
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(parameters[key].shape)}"
        for key in state
        if state[key].shape != parameters[key].shape
    ]
    if shapes:
        raise ShapeError(f"{path} does not fit the architecture: {'; '.join(shapes[:3])}")
    # Absent batch counters get their initial value; all other parameters are in the file. Assignment instead of
    # copying permits networks on the meta device, without random weights.
    counters = {key: torch.zeros((), dtype=torch.int64) for key in parameters if key not in state}
    weights = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
    state_dict = OrderedDict({**weights, **counters})
    # Some modules refuse parameters without the version that state_dict() writes; equal names imply that version.
    state_dict._metadata = parameters._metadata  # type: ignore[attr-defined]
    module.load_state_dict(state_dict, assign=True)


def remove_head(module: nn.Module, head: str) -> None:
    """Replace the classifier with the dotted name ``head`` by an identity."""
    parent, _, leaf = head.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Identity())
