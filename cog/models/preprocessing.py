"""Conversion of the preprocessing of users and of other libraries to :class:`cog.data.pixels.Preprocess`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cog.config import check_statistics
from cog.constants import INTERPOLATIONS
from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from cog.errors import CogError, did_you_mean

#: Keys of a user's mapping.
KEYS = ("image_size", "resize_size", "mean", "std", "interpolation", "squash")

#: Names of Pillow's filters by their numbers, which files of transformers hold.
_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def from_mapping(values: Mapping[str, Any], source: str) -> Preprocess:
    """Return the preprocessing of a mapping with some of :data:`KEYS`, or of timm's ``resolve_data_config``.

    Args:
        values: the mapping; ``image_size`` is the side of the crop.
        source: origin of the mapping, for messages.

    Raises:
        CogError: an unknown key, or a value that cannot be used.
    """
    values = dict(values)
    if "input_size" in values:
        side = _square(values["input_size"][-2:], source)
        values = {
            "image_size": side,
            "resize_size": math.floor(side / values.get("crop_pct", 1)),
            "squash": values.get("crop_mode") == "squash",
            **{key: values[key] for key in ("mean", "std", "interpolation") if key in values},
        }
    check_keys(values, KEYS, f"preprocessing of {source}")
    size = values.get("image_size", 224)
    resize = values.get("resize_size", size)
    mean, std = values.get("mean", IMAGENET_MEAN), values.get("std", IMAGENET_STD)
    interpolation, squash = values.get("interpolation", "bicubic"), values.get("squash", False)
    good = {
        "image_size": _is_count(size),
        "resize_size": _is_count(resize) and (not _is_count(size) or resize >= size),
        "mean": _is_rgb(mean),
        "std": _is_rgb(std) and min(std) > 0,
        "interpolation": interpolation in INTERPOLATIONS,
        "squash": isinstance(squash, bool),
    }
    for key in (key for key in KEYS if not good[key]):
        raise CogError(
            f"preprocessing of {source}: {key} {values.get(key)!r} cannot be used; expected image_size and "
            "resize_size in pixels (resize_size at least image_size), mean and std of three numbers, squash "
            f"true or false, interpolation {', '.join(INTERPOLATIONS)}"
        )
    check_statistics(f"preprocessing of {source}: mean", mean)
    check_statistics(f"preprocessing of {source}: std", std)
    return Preprocess(size, resize, tuple(mean), tuple(std), interpolation, squash)  # type: ignore[arg-type]


def check_keys(values: Mapping[Any, Any], known: Sequence[str], source: str) -> None:
    """Refuse a mapping with an unknown key; the message names the nearest known one."""
    for key in (key for key in values if key not in known):
        hint = did_you_mean(str(key), known, cutoff=0.5) or f"; expected {', '.join(known)}"
        raise CogError(f"{source}: unknown key {key!r}{hint}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_rgb(value: Any) -> bool:
    is_list = isinstance(value, Sequence) and len(value) == 3
    return is_list and all(isinstance(v, int | float) and math.isfinite(v) for v in value)


def _square(size: Any, source: str) -> int:
    sides = list(size) if isinstance(size, Sequence) else [size]
    if not sides or any(side != sides[0] for side in sides):
        raise CogError(f"preprocessing of {source}: {tuple(sides)} is not square, and images here are square")
    return sides[0]


def from_preset(preset: Any, source: str) -> Preprocess:
    """Return the preprocessing of ``weights.transforms()`` of torchvision's classification models."""
    resize, size = (_square(value, source) for value in (preset.resize_size, preset.crop_size))
    return Preprocess(size, resize, tuple(preset.mean), tuple(preset.std), preset.interpolation.value)


def from_processor(values: Mapping[str, Any], source: str) -> Preprocess:
    """Return the preprocessing of an image processor of transformers, from its ``to_dict()``."""
    size, crop = values.get("size") or {}, values.get("crop_size") or {}
    squash = "height" in size
    side = size.get("shortest_edge") or (
        _square([size["height"], size.get("width")], source) if squash else None
    )
    if side is None:
        raise CogError(
            f"{source} has no size of images; give FT_EXTRACT.IMAGE_RESIZE_SIZE and the other keys yourself"
        )
    image_size = side
    if values.get("do_center_crop") and crop:
        image_size = _square([crop["height"], crop["width"]], source)
    elif values.get("crop_pct") and not squash:  # ConvNeXt
        side, squash = (int(side / values["crop_pct"]), False) if side < 384 else (side, True)
    normalizes = values.get("do_normalize", True)
    return from_mapping(
        {
            "image_size": image_size,
            "resize_size": side,
            "mean": values.get("image_mean") if normalizes else (0.0, 0.0, 0.0),
            "std": values.get("image_std") if normalizes else (1.0, 1.0, 1.0),
            "interpolation": _PILLOW.get(values.get("resample", 2), ""),
            "squash": squash,
        },
        source,
    )


def declared(value: Any, source: str) -> dict[str, Preprocess]:
    """Return what a user's loader declares, by value of ``FT_EXTRACT.PREPROCESS``; empty without one.

    Args:
        value: None, a mapping (see :func:`from_mapping`), a :class:`Preprocess`, or an image processor of
            transformers. Functions and methods are ignored: modules may have one of this name for another
            purpose.
        source: origin of the value, for messages.

    Raises:
        CogError: any other value.
    """
    if value is None or inspect.isroutine(value):
        return {}
    if isinstance(value, Mapping):
        value = from_mapping(value, source)
    elif hasattr(value, "image_mean") and hasattr(value, "to_dict"):
        value = from_processor(value.to_dict(), source)
    if not isinstance(value, Preprocess):
        raise CogError(
            f"preprocessing of {source}: {type(value).__name__} is not supported; give a dict with some of "
            f"{', '.join(KEYS)}"
        )
    return {"protocol": value.protocol(), "model": value}
