"""Loading of a checkpoint file into a network: open by content, unwrap, load strictly."""

import contextlib
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

from cog.errors import CogError, some
from cog.models import containers, networks, renames
from cog.models.fetch import INDEX, no_weights, require_checkpoint
from cog.models.spec import PaperModel
from cog.runtime import files
from cog.runtime.safe_load import explained, load_safetensors, load_torch

logger = logging.getLogger(__name__)

State = dict[str, torch.Tensor]

#: Entries, or beginnings of names, below which files have averaged weights, and other weights.
_AVERAGES = ("state_dict_ema.", "model_ema.", "ema_state_dict.", "ema_model.", "ema.", "teacher.")
_ENTRIES = ("state_dict.", "model_state_dict.", "model.", "module.", "shadow.")
_HOLDERS = (*_AVERAGES, *_ENTRIES, "_orig_mod.", "backbone.", "visual.")


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
    if problem := no_weights(path):
        raise CogError(f"{path} holds {problem}, no weights; get it with a browser or `git lfs pull`")
    with files.open_regular(path) as handle:
        head = handle.read(len(_LEGACY_TORCH))
    if head.startswith(b"PK\x03\x04"):
        damaged = zipfile.BadZipFile, OSError, ValueError, NotImplementedError
        with contextlib.suppress(*damaged), zipfile.ZipFile(path) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                return containers.read_torchscript(path)
    if head.startswith((b"PK\x03\x04", _LEGACY_TORCH)):
        return load_torch(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= os.path.getsize(path) - 8:
        return load_safetensors(path)
    if head[:1] != b"\x80":
        formats = "torch.save, safetensors, TorchScript or pickle"
        raise CogError(f"{path} is no file of {formats}; is it the right one?")
    return containers.read_haiku(path)


def read_state(path: Path, expected: Collection[str]) -> State:
    """Return the parameters in a checkpoint of a library or of a user's training script.

    They may lie in entries of the file such as "state_dict", and their names may begin with ``module.``,
    ``_orig_mod.``, ``backbone.`` and the like, in any combination; ``expected``, the names of the network's
    parameters, decide about them. Averaged weights are taken if there are any.
    """
    return _tensors(_held(_flat(path), expected, path), path)


def load_paper_model(row: PaperModel, path: Path, *, classifier: bool = False) -> nn.Module:
    """Build a model's network and load its checkpoint, the authors' or of another form; else a CogError."""
    flat = _flat(path, row.prefix)
    network = networks.build(row, classifier=classifier)
    if row.rename and (theirs := _below(flat, row.prefix)):
        state = getattr(renames, row.rename)(theirs, network)
    else:
        state = _held(flat, network.state_dict(), path, (row.prefix,) if row.prefix else ())
    left_out = (*row.drop, *(f"{head}." for head in row.head if not classifier))
    state = {name: value for name, value in state.items() if not name.startswith(left_out)}
    load_strictly(network, _tensors(state, path), path)
    return network


def _flat(path: Path, prefix: str = "") -> dict[str, Any]:
    """Return the tensors and arrays of a checkpoint, named by their entries: ``state_dict.conv1.weight``."""
    data = read(path, prefix=prefix)
    with explained(path, "checkpoint"):
        leaves = dict(containers.leaves(data)) if isinstance(data, dict) else {}
    if state := {name: v for name, v in leaves.items() if isinstance(v, torch.Tensor | np.ndarray)}:
        return state
    held = f"entries {some(list(leaves))}" if leaves else f"a {type(data).__name__}"
    raise CogError(f"{path} holds {held}; expected a dict of parameter tensors; is it the right checkpoint?")


def _held(
    flat: dict[str, Any], expected: Collection[str], path: Path, holders: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the parameters below the beginning that leaves most of the expected names, averages first."""
    candidates = []
    for holder, state in _candidates(flat, (*_HOLDERS, *holders)):
        n_found = len({*expected} & state.keys())
        averaged = n_found > 0 and any(f".{average}" in f".{holder}" for average in _AVERAGES)
        candidates.append((averaged, n_found, holder, state))
    best = max(candidates, key=lambda found: found[:2])
    if best[0] and any(n_found for averaged, n_found, *_ in candidates if not averaged):
        logger.info("%s: %s is read, averaged weights, not the others", path, best[2])
    return best[3]


def _candidates(
    state: dict[str, Any], holders: tuple[str, ...], above: str = "", deep: int = 6
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parameters below each beginning of names."""
    yield above, state
    for holder in holders if deep else ():
        if inner := _below(state, holder):
            yield from _candidates(inner, holders, above + holder, deep - 1)


def _below(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _tensors(state: dict[str, Any], path: Path) -> State:
    """Return parameters as tensors; pickles hold NumPy arrays."""
    try:
        return {
            name: value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
            for name, value in state.items()
        }
    except TypeError as error:
        raise CogError(f"{path} holds arrays that are no numbers ({error})") from None


def load_strictly(module: nn.Module, state: State, origin: object) -> None:
    """Put ``state`` into ``module`` as float32: no parameter missing, none left over, equal shapes."""
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
            f"{origin} does not fit the architecture: parameters {' and '.join(parts)}; is it a file of this "
            "model? If so, rename them, or write a loader (--model_loader, docs/own-models.md)"
        )
    state_dict = OrderedDict((name, v.float() if v.is_floating_point() else v) for name, v in state.items())
    state_dict |= {name: torch.zeros((), dtype=torch.int64) for name in parameters if name not in state}
    # Some modules refuse parameters without the version that state_dict() writes, which equal names imply.
    state_dict._metadata = parameters._metadata  # type: ignore[attr-defined]
    try:
        module.load_state_dict(state_dict, assign=True)  # instead of copying: it may be on the meta device
    except RuntimeError as error:  # of parameters that are whole numbers
        raise CogError(f"{origin} does not fit the architecture: {str(error)[:400]}") from error
