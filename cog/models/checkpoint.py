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


def read(path: str | os.PathLike[str], *, prefix: str = "") -> Any:
    """Return the contents of a checkpoint; its first bytes say what it is, and no code of it is run.

    It is a file of torch.save, safetensors, TorchScript, a pickle, or the prefix of a TensorFlow checkpoint, of
    which only tensors whose names begin with ``prefix`` are read.

    Raises:
        UnsafeFileError: a file that names a class or function that weights do not need.
        CogError: a missing, damaged or other file.
    """
    path = Path(path)
    parts = require_checkpoint(path, "checkpoint")
    if parts[0].suffix == INDEX:
        return containers.read_tensorflow(path, *parts, prefix=prefix)
    with os_errors_explained(f"cannot read {path}"), files.open_regular(path) as handle:
        head = handle.read(512)
    if not head:
        raise CogError(f"{path} is empty; download it again")
    if head[257:262] == b"ustar":
        raise CogError(
            f"{path} is in the container of torch 0.1 (tar), which is not read; load and save it again with a newer "
            "torch, or download the re-released file of the same weights"
        )
    if head.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"version https://git-lfs")):
        raise CogError(
            f"{path} is a web page or a Git LFS pointer, not a checkpoint; open its link in a browser to "
            "download the file, or run `git lfs pull`"
        )
    if head.startswith(b"PK\x03\x04"):
        return _read_zip(path)
    if head.startswith(_LEGACY_TORCH):
        return load_torch(path, allow=_ALLOWED)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= os.path.getsize(path) - 8:
        return load_safetensors(path)
    return containers.read_haiku(path)


def _read_zip(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CogError(f"{path} is not a readable torch file ({error}); is the download complete?") from None
    if any(name.endswith("/constants.pkl") for name in names):
        return containers.read_torchscript(path)
    if any(name.endswith("/data.pkl") for name in names):
        return load_torch(path, allow=_ALLOWED)
    raise CogError(
        f"{path} is a zip archive with {some(names) or 'nothing'} inside, not a checkpoint; unpack it and "
        "give the checkpoint in it"
    )


def read_state(path: str | os.PathLike[str], expected: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Return the parameters in a checkpoint of a library or of a user's training script.

    They may lie in entries of the file (:data:`WRAPPERS`), and their names may begin with ``module.``,
    ``_orig_mod.``, ``backbone.`` and the like, in any combination; ``expected``, the names of the network's
    parameters, decide about them. Averaged weights are taken if there are any.

    Raises:
        CogError: unreadable or unsafe file, or one that holds no parameters.
    """
    return _tensors(_without_prefixes(_innermost(read(path), path), expected), path)


def read_paper_model(
    path: str | os.PathLike[str], spec: PaperModel, network: nn.Module
) -> dict[str, torch.Tensor]:
    """Return the parameters of a model of the paper from its authors' file, or another."""
    data = read(path, prefix=spec.prefix)
    if spec.key and isinstance(data, dict) and isinstance(data.get(spec.key), dict):
        data = data[spec.key]
    state = _innermost(data, path)
    expected = network.state_dict().keys()
    if theirs := _below(state, spec.prefix):
        state = {name: v for name, v in theirs.items() if not name.startswith(spec.drop or ("\0",))}
        if spec.rename and not expected & state.keys():
            state = getattr(renames, spec.rename)(state, network)
    return _tensors(_without_prefixes(state, expected), path)


def load_paper_model(
    spec: PaperModel, path: str | os.PathLike[str], *, classifier: bool = False
) -> nn.Module:
    """Build a model's network, with its classifier on request, and load its checkpoint strictly."""
    network = networks.build(spec, classifier=classifier)
    state = read_paper_model(path, spec, network)
    if not classifier:
        heads = tuple(f"{head}." for head in spec.head)
        state = {name: value for name, value in state.items() if not name.startswith(heads or ("\0",))}
    load_strictly(network, state, path)
    return network


def _innermost(data: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state dict inside the entries that training scripts wrap around it."""
    for _ in range(_MOST_WRAPPERS):  # a dict may hold itself
        if isinstance(data, dict):
            inner = [key for key in WRAPPERS if isinstance(data.get(key), dict) and data[key]]
            if len(inner) > 1 and inner[0] in WRAPPERS[:5]:
                logger.info("%s: %s is read, not %s: averaged weights", path, inner[0], some(inner[1:]))
            data = data[inner[0]] if inner else data
    if not isinstance(data, dict) or not any(map(_is_array, data.values())):
        held = f"a {type(data).__name__}"
        if isinstance(data, dict):
            held = f"entries {some([str(key) for key in data], 5)}" if data else "nothing"
        raise CogError(
            f"{path} holds {held}; expected a dict of parameter tensors, or one in an entry "
            f"{', '.join(WRAPPERS)}; is it the right checkpoint?"
        )
    wrong = [str(name) for name, value in data.items() if not _is_array(value)]
    if wrong:
        raise CogError(f"{path}: entries {some(wrong)} are not tensors, expected a dict of parameter tensors")
    return {str(name): value for name, value in data.items()}


def _without_prefixes(state: dict[str, Any], expected: Collection[str]) -> dict[str, Any]:
    """Return the parameters below the beginning that leaves most of the expected names, averages first."""
    expected = frozenset(expected)

    def score(candidate: tuple[bool, dict[str, Any]]) -> tuple[bool, int]:
        averaged, names = candidate
        n_found = len(expected & names.keys())
        return averaged and n_found > 0, n_found

    return max(_stripped(state, expected), key=score)[1]


def _stripped(
    state: dict[str, Any], expected: Collection[str], averaged: bool = False, deep: int = _MOST_WRAPPERS
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Yield whether names say that they are of averages, and the parameters below each beginning of names."""
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


def _tensors(state: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return parameters as tensors; pickles may hold NumPy arrays, also of the other byte order."""
    tensors = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            try:
                value = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
            except (TypeError, ValueError):
                raise CogError(f"{path}: {name} is an array of {value.dtype}, expected numbers") from None
        tensors[name] = value
    return tensors


# --- into the network


def load_strictly(module: nn.Module, state: dict[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Put ``state`` into ``module`` as float32: no parameter missing, none left over, equal shapes.

    Raises:
        CogError: missing or unexpected parameters, or other shapes; the message names up to three.
    """
    parameters = module.state_dict()
    # Networks in eval mode never read batch counters, and files from before torch 0.4.1 lack them.
    missing = [name for name in parameters if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in parameters]
    if missing or unexpected:
        lists = {"missing": missing, "unexpected": unexpected}
        parts = [f"{label} {len(names)} ({some(names)})" for label, names in lists.items() if names]
        raise CogError(
            f"{path} does not fit the architecture: parameters {' and '.join(parts)}; rename them, or load "
            "the file with a loader of your own (--model_loader, docs/own-models.md)"
        )
    shapes = [
        f"{name} {tuple(value.shape)} instead of {tuple(parameters[name].shape)}"
        for name, value in state.items()
        if value.shape != parameters[name].shape
    ]
    if shapes:
        raise CogError(f"{path} does not fit the architecture: {'; '.join(shapes[:3])}")
    # Absent batch counters get their initial value. Assignment instead of copying permits networks on the
    # meta device, without random weights.
    counters = {name: torch.zeros((), dtype=torch.int64) for name in parameters if name not in state}
    weights = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    state_dict = OrderedDict({**weights, **counters})
    # Some modules refuse parameters without the version that state_dict() writes; equal names imply that
    # version.
    state_dict._metadata = parameters._metadata  # type: ignore[attr-defined]
    module.load_state_dict(state_dict, assign=True)
