"""Frozen networks that map images to features, and the user's own loaders of such networks."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cog.data.pixels import Preprocess
from cog.errors import CogError, first_line
from cog.models.preprocessing import declared
from cog.runtime import files

logger = logging.getLogger(__name__)

#: Function from images to what :func:`features_of` takes.
Forward = Callable[[torch.Tensor], Any]

#: A function ``load_my_model(init_args)``. Its argument is a dict with ``model_name``, ``ckpt_file``,
#: ``model_dir``. It returns ``(backbone, forward)``, where a ``forward`` of None stands for the module
#: itself, or the same with a third value that declares the preprocessing
#: (:func:`cog.models.preprocessing.declared`), or the module alone.
Loader = Callable[[dict[str, Any]], Any]


class Backbone(nn.Module):
    """A frozen network: float32 ``(B, 3, H, W)`` in, float32 ``(B, D)`` out, always in eval mode.

    Attributes:
        network: the network.
        name: name of the model.
        feature_dim: D; None until it is known.
        declared: preprocessing of the model by value of ``FT_EXTRACT.PREPROCESS``; empty when nothing is
            declared.
    """

    def __init__(
        self,
        network: nn.Module,
        forward: Forward | None = None,
        *,
        name: str,
        feature_dim: int | None = None,
        pooling: str = "default",
        declared: Mapping[str, Preprocess] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.name, self.feature_dim = network, name, feature_dim
        self.declared = dict(declared or {})
        self._forward, self._pooling = forward, pooling
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Backbone:
        """Return the network, still in eval mode: the benchmark measures frozen features."""
        return super().train(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of normalized images, float32 ``(B, 3, H, W)`` -> ``(B, D)``.

        Raises:
            CogError: the network does not return one vector per image.
        """
        y = self.network(x) if self._forward is None else self._forward(x)
        n_prefix = getattr(self.network, "num_prefix_tokens", None)
        y = features_of(y, name=self.name, pooling=self._pooling, n_prefix=n_prefix)
        if y.ndim != 2 or len(y) != len(x) or not y.shape[1] or self.feature_dim not in (None, y.shape[1]):
            wanted = f"({len(x)}, {self.feature_dim or 'D'})"
            raise CogError(
                f"model {self.name} returned features of shape {tuple(y.shape)}, expected {wanted}"
            )
        return y

    def move(self, device: str | torch.device) -> Backbone:
        """Return the network on a device; one that cannot be used is a CogError."""
        try:
            return self.to(device)
        except (RuntimeError, AssertionError) as error:
            raise CogError(f"cannot use --device {device}: {first_line(error)}") from error

    def probe(self, size: int) -> Backbone:
        """Determine the number of features by a forward pass of one gray image of ``size`` x ``size`` pixels.

        Raises:
            CogError: the network does not accept the image.
        """
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        try:
            with torch.no_grad():
                self.feature_dim = self(torch.zeros(1, 3, size, size, device=device)).shape[1]
        except CogError:
            raise
        except Exception as error:  # a user's network may raise any error
            raise CogError(
                f"model {self.name} does not take images of {size} x {size} pixels ({type(error).__name__}: "
                f"{first_line(error)})"
            ) from error
        return self


# --- outputs of networks: one vector per image, tokens, a map, or an object with named fields


def features_of(
    output: Any, *, name: str, pooling: str = "default", n_prefix: int | None = None
) -> torch.Tensor:
    """Return the features ``(B, D)`` in the output of a network.

    Args:
        output: a tensor, or a dict or object with ``pooler_output``, ``last_hidden_state`` or ``logits``.
        name: name of the model, for messages.
        pooling: value of ``FT_EXTRACT.POOLING``.
        n_prefix: number of tokens before those of the patches; None: derived from the number of tokens.

    Raises:
        CogError: the output has no features, or no tokens to pool; the message has a remedy.
    """
    y = output if isinstance(output, torch.Tensor) else _field(output, name, pooling)
    shape = tuple(y.shape)
    if pooling != "default":
        if y.ndim == 3 and n_prefix is None:
            n_prefix = _prefix(shape[1], name)
        return pool([y], n_prefix or 0, pooling, name=name)
    if y.ndim == 3:
        raise CogError(
            f"model {name} returned tokens of shape {shape}, expected a tensor (B, D); give "
            "FT_EXTRACT.POOLING cls, mean or cls+mean, or return one vector per image, such as tokens[:, 0]"
        )
    if y.ndim == 4 and shape[2:] != (1, 1):
        raise CogError(
            f"model {name} returned features of shape {shape}, expected ({shape[0]}, D); average the map: "
            "y.mean((2, 3))"
        )
    return y.flatten(1) if y.ndim == 4 else y  # pooled features may keep their two spatial axes


def _field(output: Any, name: str, pooling: str) -> torch.Tensor:
    names = ("pooler_output",) if pooling == "default" else ()
    fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    for field in (*names, "last_hidden_state", "logits"):
        if isinstance(fields.get(field), torch.Tensor):
            if field == "logits":
                _warn_of_logits(name)
            return fields[field]
    has = f" with {', '.join(list(map(str, fields))[:5])}" if fields else ""
    raise CogError(
        f"model {name} returned {type(output).__name__}{has}, expected a tensor (B, D); return a forward "
        "that picks one, such as lambda x: backbone(x)[0]"
    )


@functools.cache  # one warning per model, not per batch
def _warn_of_logits(name: str) -> None:
    logger.warning("model %s returned logits, class scores: remove its classifier", name)


def _prefix(n_tokens: int, name: str) -> int:
    """Return the number of tokens before those of the patches, which form a square."""
    for n_prefix in (0, 1):
        if math.isqrt(n_tokens - n_prefix) ** 2 == n_tokens - n_prefix:
            return n_prefix
    raise CogError(
        f"model {name} returned {n_tokens} tokens, which are no square of patches with or without a class "
        "token; give your module the attribute num_prefix_tokens"
    )


def n_blocks(pooling: str) -> int:
    """Return the number of blocks whose tokens a pooling needs: 4 for "last4"."""
    return int(pooling.removeprefix("last")) if pooling.startswith("last") else 1


def pool(
    tokens: Sequence[torch.Tensor], n_prefix: int, pooling: str, *, name: str, norm: nn.Module | None = None
) -> torch.Tensor:
    """Return one vector per image.

    Args:
        tokens: tokens ``(B, N, D)`` of the last blocks of a network, last block last.
        n_prefix: number of tokens before those of the patches; the first of them is the class token.
        pooling: "cls", "mean" (of the patches' tokens), "cls+mean" (both, one after the other), or "last4":
            the class tokens of the last 4 blocks, one after the other, as DINOv2 is evaluated (Oquab et al.
            2023, section 7.1).
        name: name of the model, for messages.
        norm: normalization applied to each vector; None: no normalization.

    Raises:
        CogError: the model gives no tokens, no class token, or those of fewer blocks.
    """
    last = tokens[-1]
    if last.ndim != 3:
        raise CogError(
            f"FT_EXTRACT.POOLING {pooling} is for models that give tokens (B, N, D); model {name} returned "
            f"{tuple(last.shape)}; leave it out"
        )
    if pooling != "mean" and n_prefix < 1:
        raise CogError(f"model {name} has no class token for FT_EXTRACT.POOLING {pooling}; take mean")
    if len(tokens) != n_blocks(pooling):
        raise CogError(
            f"FT_EXTRACT.POOLING {pooling} is for ViTs of timm and transformers; model {name} gives the "
            "tokens of one block; take cls, mean or cls+mean"
        )
    if pooling.startswith("last"):
        vectors = [block[:, 0] for block in tokens]
    else:
        by_name = {"cls": last[:, 0], "mean": last[:, n_prefix:].mean(1)}
        vectors = [by_name[part] for part in pooling.split("+")]
    return torch.cat([vector if norm is None else norm(vector) for vector in vectors], dim=1)


# --- loaders of users


def load_own(
    loader: str | Loader,
    name: str,
    checkpoint: str | os.PathLike[str] | None,
    model_dir: str | os.PathLike[str] | None,
    pooling: str,
) -> Backbone:
    """Return the network of a user's loader: ``FILE.py:FUNCTION`` (the file is executed), or the function.

    Raises:
        CogError: a missing file or function, a failing import or loader, or another result.
    """
    function = _import(loader) if isinstance(loader, str) else loader
    if model_dir is None and checkpoint is not None:
        model_dir = Path(checkpoint).parent
    arguments = {
        "model_name": name,
        "ckpt_file": None if checkpoint is None else str(checkpoint),
        "model_dir": None if model_dir is None else str(model_dir),
    }
    try:
        loaded = function(arguments)
    except CogError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if checkpoint is None and model_dir is not None:
            hint = f"; there is no checkpoint in {model_dir}, so ckpt_file is None: check the model's name"
        elif checkpoint is not None and os.path.isfile(checkpoint) and not os.path.getsize(checkpoint):
            hint = f"; its checkpoint {checkpoint} is empty, download it again"
        raise CogError(
            f"the loader of model {name} failed with {type(error).__name__}: {first_line(error)}{hint} "
            "(COG_DEBUG=1 shows where)"
        ) from error
    parts = loaded if isinstance(loaded, tuple) else (loaded,)
    network, forward, preprocess = (*parts, None, None, None)[:3]
    if not isinstance(network, nn.Module) or not (forward is None or callable(forward)) or len(parts) > 3:
        found = ", ".join(type(value).__name__ for value in parts)
        expected = "expected (backbone, forward): a torch.nn.Module and a function or None"
        raise CogError(
            f"the loader of model {name} returned ({found}), {expected}, and by choice its preprocessing"
        )
    preprocess = getattr(network, "preprocess", None) if preprocess is None else preprocess
    pre = declared(preprocess, f"model {name}")
    return Backbone(network, forward, name=name, pooling=pooling, declared=pre)


def _import(loader: str) -> Loader:
    file, separator, function = loader.rpartition(":")
    if not separator or not file or not function.isidentifier():
        raise CogError(f"--model_loader {loader!r} is not of the form FILE.py:load_my_model")
    path = files.require_file(file, "--model_loader")
    name = f"cog_user_loader_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CogError(f"--model_loader {path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    # Registered before its execution, for dataclasses and pickling inside; it may import files beside it.
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # exit() in a user's file must not end the command as a success
        raise CogError(
            f"--model_loader {path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not callable(getattr(module, function, None)):
        raise CogError(f"--model_loader {path} has no function {function!r}")
    return getattr(module, function)
