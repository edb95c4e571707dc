"""Features in the outputs of networks: one vector per image, tokens, a map, or an object with named fields."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch

from cog.errors import CogError

logger = logging.getLogger(__name__)

_SHOWN = 5


def features_of(
    output: Any, *, name: str, pooling: str = "default", n_prefix: int | None = None
) -> torch.Tensor:
    """Return the features in the output of a network.

    Args:
        output: a tensor, or a dict or object with ``pooler_output``, ``last_hidden_state`` or ``logits``.
        name: name of the model, for messages.
        pooling: value of ``FT_EXTRACT.POOLING``.
        n_prefix: number of tokens before those of the patches; None: derived from the number of tokens.

    Returns:
        Features ``(B, D)``; an output without 2, 3 or 4 axes is returned unchanged.

    Raises:
        CogError: the output has no features, or no tokens to pool; the message has a remedy.
    """
    y = output if isinstance(output, torch.Tensor) else _field(output, name, pooling)
    if pooling != "default":
        if y.ndim == 3 and n_prefix is None:
            n_prefix = _prefix(y.shape[1], name)
        return pool(y, n_prefix or 0, pooling, name=name)
    if y.ndim == 3:
        raise CogError(
            f"model {name} returned tokens of shape {tuple(y.shape)}, expected a tensor (B, D); give "
            "FT_EXTRACT.POOLING cls, mean or cls+mean, or return one vector per image, such as tokens[:, 0]"
        )
    if y.ndim == 4:
        if y.shape[2:] != (1, 1):
            raise CogError(
                f"model {name} returned features of shape {tuple(y.shape)}, expected ({y.shape[0]}, D); average the "
                "map: y.mean((2, 3))"
            )
        return y.flatten(1)  # globally pooled features that kept their two spatial axes
    return y


def _field(output: Any, name: str, pooling: str) -> torch.Tensor:
    names = ["pooler_output"] if pooling == "default" else []
    names += ["last_hidden_state", "logits"]
    fields = output if isinstance(output, Mapping) else vars(output) if hasattr(output, "__dict__") else {}
    for field in names:
        if isinstance(fields.get(field), torch.Tensor):
            if field == "logits":
                _warn_of_logits(name)
            return fields[field]
    has = f" with {', '.join(map(str, list(fields)[:_SHOWN]))}" if fields else ""
    raise CogError(
        f"model {name} returned {type(output).__name__}{has}, expected a tensor (B, D); return a forward that picks "
        "one, such as lambda x: backbone(x)[0]"
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
        f"model {name} returned {n_tokens} tokens, which are no square of patches with or without a class token; give "
        "your module the attribute num_prefix_tokens"
    )


def pool(
    tokens: torch.Tensor, n_prefix: int, pooling: str, *, name: str, norm: torch.nn.Module | None = None
) -> torch.Tensor:
    """Return one vector per image.

    Args:
        tokens: tokens of the images, ``(B, N, D)``.
        n_prefix: number of tokens before those of the patches; the first of them is the class token.
        pooling: "cls", "mean" (of the patches' tokens) or "cls+mean" (both vectors, one after the other).
        name: name of the model, for messages.
        norm: normalization applied to each vector; None: no normalization.

    Raises:
        CogError: the model gives no tokens, or no class token.
    """
    if tokens.ndim != 3:
        raise CogError(
            f"FT_EXTRACT.POOLING {pooling} is for models that give tokens (B, N, D); model {name} returned "
            f"{tuple(tokens.shape)}; leave it out"
        )
    if "cls" in pooling and n_prefix < 1:
        raise CogError(f"model {name} has no class token for FT_EXTRACT.POOLING {pooling}; take mean")
    vectors = {"cls": tokens[:, 0], "mean": tokens[:, n_prefix:].mean(1)}
    parts = [vectors[part] if norm is None else norm(vectors[part]) for part in pooling.split("+")]
    return torch.cat(parts, dim=1)
