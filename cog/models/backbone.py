"""Frozen networks that map images to features, and the user's own loaders of such networks."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cog.data.pixels import Preprocess
from cog.errors import CogError, first_line
from cog.models.preprocessing import declared

#: Function from images to what :func:`features_of` takes.
Forward = Callable[[torch.Tensor], Any]

#: A user's function ``load_my_model({"model_name", "ckpt_file", "model_dir"})``. It returns the network, or
#: ``(network, forward)`` (None: the network is called), or these with a third value that declares the
#: preprocessing (:func:`cog.models.preprocessing.declared`).
Loader = Callable[[dict[str, Any]], Any]


class Backbone(nn.Module):
    """A frozen network: float32 ``(B, 3, H, W)`` in, float32 ``(B, D)`` out, always in eval mode.

    ``declared`` is its preprocessing by value of ``FT_EXTRACT.PREPROCESS``, empty when nothing is declared;
    ``feature_dim`` is D, None until :meth:`probe`.
    """

    def __init__(
        self, network: nn.Module, forward: Forward | None = None, *, name: str, declared: Any = None
    ) -> None:
        super().__init__()
        self.network, self._forward, self.name, self.pooling = network, forward, name, "default"
        self.declared: dict[str, Preprocess] = dict(declared or {})
        self.feature_dim: int | None = None
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Backbone:
        """Return the network, still in eval mode: the benchmark measures frozen features."""
        return super().train(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of normalized images, float32 ``(B, 3, H, W)`` -> ``(B, D)``."""
        y = (self._forward or self.network)(x)
        n_prefix = getattr(self.network, "num_prefix_tokens", None)
        y = features_of(y, name=self.name, pooling=self.pooling, n_prefix=n_prefix)
        if y.ndim != 2 or len(y) != len(x) or not y.shape[1]:
            shape = tuple(y.shape)
            raise CogError(f"model {self.name} returned features of shape {shape}, expected ({len(x)}, D)")
        return y

    def sha256(self) -> str:
        """Return the SHA-256 of the parameters and buffers."""
        digest = hashlib.sha256()
        for name, value in [*self.named_parameters(), *self.named_buffers()]:
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.cpu().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def probe(self, size: int, device: torch.device) -> Backbone:
        """Return the network on a device, after an image of ``size`` x ``size`` pixels, which tells D."""
        try:
            self.to(device)
            with torch.no_grad():
                self.feature_dim = self(torch.zeros(1, 3, size, size, device=device)).shape[1]
        except CogError:
            raise
        except Exception as error:  # a user's network may raise any error
            raise CogError(
                f"model {self.name} does not take images of {size} x {size} pixels ({type(error).__name__}: "
                f"{first_line(error)}); their size is FT_EXTRACT.IMAGE_CROP_SIZE"
            ) from error
        return self


def features_of(
    output: Any, *, name: str, pooling: str = "default", n_prefix: int | None = None
) -> torch.Tensor:
    """Return the features ``(B, D)`` in a tensor, or a dict or object with ``pooler_output`` or tokens."""
    y = output if isinstance(output, torch.Tensor) else _field(output, name, pooling)
    shape = tuple(y.shape)
    if pooling != "default":
        if y.ndim == 3 and n_prefix is None:  # the patches form a square
            n_prefix = next((n for n in (0, 1) if math.isqrt(shape[1] - n) ** 2 == shape[1] - n), None)
            if n_prefix is None:
                raise CogError(
                    f"model {name} returned {shape[1]} tokens, no square of patches with or without a class "
                    "token; give your module the attribute num_prefix_tokens"
                )
        return pool([y], n_prefix or 0, pooling, name=name)
    if y.ndim == 3:
        raise CogError(
            f"model {name} returned tokens of shape {shape}, expected a tensor (B, D); give "
            "FT_EXTRACT.POOLING cls, mean or cls+mean, or return tokens[:, 0]"
        )
    if y.ndim == 4 and shape[2:] != (1, 1):
        found = f"model {name} returned features of shape {shape}"
        raise CogError(f"{found}, expected ({shape[0]}, D); average the map: y.mean((2, 3))")
    return y.flatten(1) if y.ndim == 4 else y  # pooled features may keep their two spatial axes


def _field(output: Any, name: str, pooling: str) -> torch.Tensor:
    names = ("pooler_output",) if pooling == "default" else ()
    fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    for field in (*names, "last_hidden_state"):
        if isinstance(fields.get(field), torch.Tensor):
            return fields[field]
    has = f" with {', '.join(list(map(str, fields))[:5])}" if fields else ""
    advice = "return a forward that picks one, such as lambda x: backbone(x)[0]"
    raise CogError(f"model {name} returned {type(output).__name__}{has}, expected a tensor (B, D); {advice}")


def n_blocks(pooling: str) -> int:
    """Return the number of blocks whose tokens a pooling needs: 4 for "last4"."""
    return int(pooling.removeprefix("last")) if pooling.startswith("last") else 1


def pool(
    tokens: Sequence[torch.Tensor], n_prefix: int, pooling: str, *, name: str, norm: nn.Module | None = None
) -> torch.Tensor:
    """Return one vector per image from the tokens ``(B, N, D)`` of the last blocks, last block last.

    ``n_prefix`` tokens, the class token first, come before those of the patches. "cls+mean" is both, "last4"
    the class tokens of the last 4 blocks, as DINOv2 is evaluated (Oquab et al. 2023, section 7.1).
    """
    last, problem = tokens[-1], ""
    if last.ndim != 3:
        problem = f"is for models that give tokens (B, N, D), not {tuple(last.shape)}"
    elif pooling != "mean" and n_prefix < 1:
        problem = "needs a class token, which it lacks; take mean"
    elif len(tokens) != n_blocks(pooling):
        problem = "is for ViTs of timm and transformers; take cls, mean or cls+mean"
    if problem:
        raise CogError(f"model {name}: FT_EXTRACT.POOLING {pooling} {problem}")
    if pooling.startswith("last"):
        vectors = [block[:, 0] for block in tokens]
    else:
        by_name = {"cls": last[:, 0], "mean": last[:, n_prefix:].mean(1)}
        vectors = [by_name[part] for part in pooling.split("+")]
    return torch.cat([vector if norm is None else norm(vector) for vector in vectors], dim=1)


def load_own(loader: str | Loader, name: str, checkpoint: Path | None, folder: Path | None) -> Backbone:
    """Return the network of a user's loader: ``FILE.py:FUNCTION`` (the file is executed), or the function."""
    beside = [str(Path(loader).resolve().parent)] if isinstance(loader, str) else []
    places = {"ckpt_file": checkpoint, "model_dir": folder or (checkpoint and checkpoint.parent)}
    arguments = {"model_name": name} | {key: path and str(path) for key, path in places.items()}
    sys.path[:0] = beside  # the file, and its function when it is called, may import files beside it
    try:
        function = _import(loader) if isinstance(loader, str) else loader
        loaded = function(arguments)
    except CogError:
        raise
    except (Exception, SystemExit) as error:
        given = f"no checkpoint in {folder}" if folder and not checkpoint else f"ckpt_file {checkpoint}"
        what = f"failed with {type(error).__name__}: {first_line(error)} (COG_DEBUG=1 shows where)"
        raise CogError(f"the loader of model {name}, given {given}, {what}") from error
    finally:
        for place in beside:
            sys.path.remove(place)
    parts = loaded if isinstance(loaded, tuple) else (loaded,)
    network, forward, preprocess = (*parts, None, None, None)[:3]
    if not isinstance(network, nn.Module) or not (forward is None or callable(forward)) or len(parts) > 3:
        found = f"returned ({', '.join(type(value).__name__ for value in parts)})"
        expected = "(backbone, forward[, preprocessing]), a torch.nn.Module and a function or None"
        raise CogError(f"the loader of model {name} {found}, expected {expected}")
    preprocess = getattr(network, "preprocess", None) if preprocess is None else preprocess
    return Backbone(network, forward, name=name, declared=declared(preprocess, f"model {name}"))


def _import(loader: str) -> Loader:
    file, _, function = loader.rpartition(":")
    name = f"cog_user_loader_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its execution, for dataclasses and pickling inside
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # exit() in a user's file must not end the command as a success
        reason = f"{type(error).__name__}: {error}"
        raise CogError(f"--model_loader {file} cannot be imported: {reason}") from error
    if not callable(getattr(module, function, None)):
        raise CogError(f"--model_loader {file} has no function {function!r}")
    return getattr(module, function)
