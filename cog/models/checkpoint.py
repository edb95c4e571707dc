"""Loading of a checkpoint file into a network: open, unwrap, load strictly."""

from __future__ import annotations

import argparse
import os
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cog.errors import CogError, some
from cog.models.formats.detect import detect
from cog.models.spec import PaperModel, import_target
from cog.runtime.safe_load import load_torch

#: Entries that hold a state dict in the files of training scripts; averaged weights come before others.
WRAPPERS = (
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema",
    "teacher",
    "state_dict",
    "model",
    "module",
    "backbone",
)
_MOST_WRAPPERS = 4

#: Beginnings of names that DataParallel and torch.compile add.
_ADDED = ("module.", "_orig_mod.")

#: Beginnings of names where a training script holds the network; averaged weights come before others.
_AVERAGES = ("teacher.", "model_ema.", "ema_model.", "ema.")
_HOLDERS = (*_AVERAGES, "backbone.", "visual.", "model.")

# Batch counters are optional: networks in eval mode never read them, and files from before
# torch 0.4.1 lack them.
_OPTIONAL_SUFFIX = ".num_batches_tracked"

_SCALAR = np.float64(0).__reduce__()[0]

#: Classes that files may hold beside tensors: the options and the accuracy of the training.
_ALLOWED = (
    argparse.Namespace,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    np.dtype,
    type(np.dtype("float64")),
)


def read_paper_model(path: Path, spec: PaperModel, network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters of a model of the paper from its authors' file, or from any file of :func:`unwrapped`.

    Args:
        path: a file in any container that :func:`cog.models.formats.detect.detect` recognizes.
        spec: declaration of the model, with the place of the weights in the authors' file.
        network: the network of the model.

    Raises:
        CogError: unreadable or unsafe file, or one that holds no parameters.
    """
    data = _open(path, prefix=spec.prefix)
    if spec.key and isinstance(data, dict) and isinstance(data.get(spec.key), dict):
        data = data[spec.key]
    state = _innermost(data, path)
    expected = network.state_dict().keys()
    is_authors = any(name.startswith(spec.prefix) for name in state)
    if is_authors:
        state = _below(state, spec.prefix)
        state = {n: v for n, v in state.items() if not n.startswith(spec.drop or ("\0",))}
    if is_authors and spec.rename and not expected & state.keys():
        state = import_target(spec.rename)(state, network)
    return _tensors(_without_prefixes(state, expected), path)


def read_state_dict(path: str | os.PathLike[str], expected: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Return the parameters in a checkpoint of a library or of a user's training script.

    They may lie in entries of the file (:data:`WRAPPERS`), and their names may begin with ``module.``, ``_orig_mod.``,
    ``backbone.`` and the like, in any combination. Averaged weights are taken if there are any.

    Args:
        path: a file in any container that :func:`cog.models.formats.detect.detect` recognizes.
        expected: names of the network's parameters, which decide about beginnings of names; empty: not known.

    Raises:
        CogError: unreadable or unsafe file, or one that holds no parameters.
    """
    path = Path(path)
    return _tensors(_without_prefixes(_innermost(_open(path), path), expected), path)


def _open(path: Path, *, prefix: str = "") -> Any:
    """Read the file with the reader of its container; no reader unpickles without restriction."""
    container = detect(path)
    if container == "torch":
        return load_torch(path, allow=_ALLOWED)
    if container == "torchscript":
        from cog.models.formats import torchscript

        return torchscript.read(path)
    if container == "safetensors":
        from cog.models.formats import safetensors

        return safetensors.read(path)
    if container == "tensorflow":
        from cog.models.formats import tensorflow

        return tensorflow.read(
            path, wanted=lambda name: name.startswith(prefix) and not name.endswith("/Momentum")
        )
    from cog.models.formats import haiku

    return haiku.read(path)


def _innermost(data: Any, path: Path) -> dict[str, Any]:
    """Return the state dict inside the entries that training scripts wrap around it."""
    for _ in range(_MOST_WRAPPERS):  # a dict may hold itself
        if isinstance(data, dict):
            inner = (data[key] for key in WRAPPERS if isinstance(data.get(key), dict) and data[key])
            data = next(inner, data)
    if not isinstance(data, dict) or not any(map(_is_array, data.values())):
        held = f"a {type(data).__name__}"
        if isinstance(data, dict):
            held = f"entries {some([str(key) for key in data], 5)}" if data else "nothing"
        raise CogError(
            f"{path} holds {held}; expected a dict of parameter tensors, or one in an entry {', '.join(WRAPPERS)}; is "
            "it the right checkpoint?"
        )
    wrong = [str(name) for name, value in data.items() if not _is_array(value)]
    if wrong:
        raise CogError(f"{path}: entries {some(wrong)} are not tensors, expected a dict of parameter tensors")
    return {str(name): value for name, value in data.items()}


def _without_prefixes(state: dict[str, Any], expected: Collection[str]) -> dict[str, Any]:
    """Return the parameters under the beginning of names that leaves most of the expected names, averages first."""
    expected = frozenset(expected)

    def score(candidate: tuple[bool, dict[str, Any]]) -> tuple[bool, int]:
        averaged, names = candidate
        n_found = len(expected & names.keys())
        return averaged and n_found > 0, n_found

    return max(_stripped(state, expected), key=score)[1]


def _stripped(
    state: dict[str, Any], expected: Collection[str], averaged: bool = False, deep: int = _MOST_WRAPPERS
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Yield whether the names say that they are of averages, and the parameters below each beginning of names."""
    for prefix in _ADDED * 2:
        if not any(name.startswith(prefix) for name in expected):
            state = _below(state, prefix) or state
    yield averaged, state
    for prefix in _HOLDERS:
        if deep and (inner := _below(state, prefix)):
            yield from _stripped(inner, expected, averaged or prefix in _AVERAGES, deep - 1)


def _below(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _tensors(state: dict[str, Any], path: Path) -> dict[str, torch.Tensor]:
    """Return parameters as tensors; pickles may hold NumPy arrays."""
    tensors = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            try:
                value = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
            except (TypeError, ValueError):
                raise CogError(f"{path}: {name} is an array of {value.dtype}, expected numbers") from None
        tensors[name] = value
    return tensors


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
        CogError: missing or unexpected parameters; the message names up to three.
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
        hint = ""
        if missing and unexpected:
            hint = "; rename them, or load the file with a loader of your own (--model_loader, docs/own-models.md)"
        raise CogError(f"{path} does not fit the architecture: parameters {' and '.join(parts)}{hint}")
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


def _listed(label: str, names: Sequence[str]) -> str:
    return f"{label} {len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def remove_head(module: nn.Module, head: str) -> None:
    """Replace the classifier with the dotted name ``head`` by an identity."""
    parent, _, leaf = head.rpartition(".")
    setattr(module.get_submodule(parent), leaf, nn.Identity())
