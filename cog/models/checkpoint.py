"""Loading of a checkpoint file into a network: open by content, unwrap, load strictly."""

from __future__ import annotations

import argparse
import logging
import os
import zipfile
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cog.errors import CogError, os_errors_explained, some
from cog.models import containers, networks, renames
from cog.models.fetch import INDEX, require_checkpoint
from cog.models.spec import PaperModel
from cog.runtime import files
from cog.runtime.safe_load import load_safetensors, load_torch

logger = logging.getLogger(__name__)

State = dict[str, torch.Tensor]

_AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "teacher")

#: Entries that hold a state dict in the files of training scripts; averaged weights come before others.
WRAPPERS = (*_AVERAGED, "state_dict", "model", "module", "backbone")

#: Beginnings of names: of averages, and those that DataParallel, torch.compile and training scripts add.
_OF_AVERAGES = ("teacher.", "model_ema.", "ema_model.", "ema.")
_PREFIXES = (*_OF_AVERAGES, "module.", "_orig_mod.", "backbone.", "visual.", "model.")
_MOST_WRAPPERS = 4  # a dict may hold itself

_SCALAR = np.float64(0).__reduce__()[0]

#: Classes that files may hold beside tensors: the options and the accuracy of the training.
_ALLOWED = (
    argparse.Namespace,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    np.dtype,
    type(np.dtype("float64")),
)

#: First bytes of a file of ``torch.save`` before torch 1.6: its pickled magic number.
_LEGACY_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def read(path: Path, *, prefix: str = "") -> Any:
    """Return the contents of a checkpoint; its first bytes say what it is, and no code of it is run.

    It is a file of torch.save, safetensors, TorchScript, a pickle, or the prefix of a TensorFlow checkpoint,
    of which only tensors whose names begin with ``prefix`` are read.
    """
    parts = require_checkpoint(path, "checkpoint")
    if parts[0].suffix == INDEX:
        return containers.read_tensorflow(path, *parts, prefix=prefix)
    with os_errors_explained(f"cannot read {path}"), files.open_regular(path) as handle:
        head = handle.read(512)
    if not head or head.lstrip().lower().startswith(
        (b"<!doctype", b"<html", b"<?xml", b"version https://git")
    ):
        raise CogError(
            f"{path} is {'a web page or a Git LFS pointer' if head else 'empty'}, not a checkpoint; get it "
            "with a browser, or by `git lfs pull`"
        )
    if head.startswith(b"PK\x03\x04"):
        return (
            containers.read_torchscript(path) if _is_torchscript(path) else load_torch(path, allow=_ALLOWED)
        )
    if head.startswith(_LEGACY_TORCH):
        return load_torch(path, allow=_ALLOWED)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= os.path.getsize(path) - 8:
        return load_safetensors(path)
    return containers.read_haiku(path)


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False  # torch tells what is wrong


def read_state(path: Path, expected: Collection[str]) -> State:
    """Return the parameters in a checkpoint of a library or of a user's training script.

    They may lie in entries of the file (:data:`WRAPPERS`), and their names may begin with ``module.``,
    ``_orig_mod.``, ``backbone.`` and the like, in any combination; ``expected``, the names of the network's
    parameters, decide about them. Averaged weights are taken if there are any.
    """
    return _tensors(_without_prefixes(_innermost(read(path), path), expected), path)


def load_paper_model(row: PaperModel, path: Path, *, classifier: bool = False) -> nn.Module:
    """Build a model's network, with its classifier on request, and load its checkpoint strictly.

    The file is the authors', or another in one of the usual wrappings.
    """
    network = networks.build(row, classifier=classifier)
    data = read(path, prefix=row.prefix)
    if row.key and isinstance(data, dict) and isinstance(data.get(row.key), dict):
        data = data[row.key]
    state = _innermost(data, path)
    expected = network.state_dict().keys()
    if theirs := _below(state, row.prefix):
        state = {name: v for name, v in theirs.items() if not name.startswith(row.drop or ("\0",))}
        if row.rename and not expected & state.keys():
            state = getattr(renames, row.rename)(state, network)
    state = _without_prefixes(state, expected)
    if not classifier:
        heads = tuple(f"{head}." for head in row.head)
        state = {name: value for name, value in state.items() if not name.startswith(heads or ("\0",))}
    load_strictly(network, _tensors(state, path), path)
    return network


def _innermost(data: Any, path: Path) -> dict[str, Any]:
    """Return the state dict inside the entries that training scripts wrap around it."""
    for _ in range(_MOST_WRAPPERS):
        if isinstance(data, dict):
            inner = [key for key in WRAPPERS if isinstance(data.get(key), dict) and data[key]]
            if len(inner) > 1 and inner[0] in _AVERAGED:
                logger.info("%s: %s is read, not %s: averaged weights", path, inner[0], some(inner[1:]))
            data = data[inner[0]] if inner else data
    entries = data if isinstance(data, dict) else {}
    others = [
        str(name) for name, value in entries.items() if not isinstance(value, torch.Tensor | np.ndarray)
    ]
    if not entries or others:
        held = f"entries {some(others)}" if entries else f"a {type(data).__name__}"
        raise CogError(
            f"{path} holds {held}; expected a dict of parameter tensors, or one in an entry "
            f"{', '.join(WRAPPERS)}; is it the right checkpoint?"
        )
    return {str(name): value for name, value in entries.items()}


def _without_prefixes(state: dict[str, Any], expected: Collection[str]) -> dict[str, Any]:
    """Return the parameters below the beginning that leaves most of the expected names, averages first."""

    def score(candidate: tuple[bool, dict[str, Any]]) -> tuple[bool, int]:
        averaged, names = candidate
        n_found = len({*expected} & names.keys())
        return averaged and n_found > 0, n_found

    return max(_below_all(state), key=score)[1]


def _below_all(
    state: dict[str, Any], averaged: bool = False, deep: int = _MOST_WRAPPERS
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Yield whether names say that they are of averages, and the parameters below each beginning of names."""
    yield averaged, state
    for prefix in _PREFIXES if deep else ():
        if inner := _below(state, prefix):
            yield from _below_all(inner, averaged or prefix in _OF_AVERAGES, deep - 1)


def _below(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _tensors(state: dict[str, Any], path: Path) -> State:
    """Return parameters as tensors; pickles may hold NumPy arrays, also of the other byte order."""
    try:
        return {
            name: value
            if isinstance(value, torch.Tensor)
            else torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
            for name, value in state.items()
        }
    except (TypeError, ValueError) as error:
        raise CogError(f"{path} holds arrays that are no numbers ({error})") from None


def load_strictly(module: nn.Module, state: State, origin: object) -> None:
    """Put ``state`` into ``module`` as float32: no parameter missing, none left over, equal shapes.

    Raises:
        CogError: parameters do not fit; the message names ``origin`` and up to three of them.
    """
    parameters = module.state_dict()
    # Networks in eval mode never read batch counters, and files from before torch 0.4.1 lack them.
    missing = [name for name in parameters if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in parameters]
    shapes = [
        f"{name} {tuple(value.shape)} instead of {tuple(parameters[name].shape)}"
        for name, value in state.items()
        if name in parameters and value.shape != parameters[name].shape
    ]
    lists = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    if parts := [f"{label} {len(names)} ({some(names)})" for label, names in lists.items() if names]:
        raise CogError(
            f"{origin} does not fit the architecture: parameters {' and '.join(parts)}; rename them, or load "
            "the file with a loader of your own (--model_loader, docs/own-models.md)"
        )
    counters = {name: torch.zeros((), dtype=torch.int64) for name in parameters if name not in state}
    weights = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    state_dict = OrderedDict({**weights, **counters})
    # Some modules refuse parameters without the version that state_dict() writes, which equal names imply.
    state_dict._metadata = parameters._metadata  # type: ignore[attr-defined]
    module.load_state_dict(state_dict, assign=True)  # instead of copying: it may be on the meta device
