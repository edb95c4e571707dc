"""Preprocessing that users, timm and transformers declare, as :class:`cog.data.pixels.Preprocess`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from yacs.config import CfgNode

from cog import config
from cog.errors import CogError, did_you_mean

if TYPE_CHECKING:
    from cog.data.pixels import Preprocess  # imports Pillow

#: Keys of a user's mapping, and of the configuration.
KEYS = {
    "image_size": "FT_EXTRACT.IMAGE_CROP_SIZE",
    "resize_size": "FT_EXTRACT.IMAGE_RESIZE_SIZE",
    "mean": "FT_EXTRACT.IMAGE_NORM.MEAN",
    "std": "FT_EXTRACT.IMAGE_NORM.STD",
    "interpolation": "FT_EXTRACT.IMAGE_INTERPOLATION",
    "squash": "FT_EXTRACT.IMAGE_SQUASH",
}

#: Names of Pillow's filters by their numbers, which files of transformers hold.
_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def preprocess_of(cfg: CfgNode) -> Preprocess:
    """Return the preprocessing in a configuration."""
    from cog.data.pixels import Preprocess

    fx = cfg.FT_EXTRACT
    mean, std = tuple(fx.IMAGE_NORM.MEAN), tuple(fx.IMAGE_NORM.STD)
    geometry = fx.IMAGE_CROP_SIZE, fx.IMAGE_RESIZE_SIZE
    return Preprocess(*geometry, mean, std, fx.IMAGE_INTERPOLATION, fx.IMAGE_SQUASH)


def check_keys(values: Mapping[Any, Any], known: Collection[str], source: str) -> None:
    """Refuse a mapping with an unknown key; the message names the nearest known one."""
    for key in (key for key in values if key not in known):
        hint = did_you_mean(str(key), known, cutoff=0.5) or f"; expected {', '.join(known)}"
        raise CogError(f"{source}: unknown key {key!r}{hint}")


def keys_of(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return configuration keys for a mapping with some of :data:`KEYS`; images are resized to the crop."""
    check_keys(values, KEYS, source)
    if "image_size" in values:
        values = {"resize_size": values["image_size"], **values}
    return {KEYS[key]: value for key, value in values.items()}


def from_mapping(values: Mapping[str, Any], source: str) -> Preprocess:
    """Return that of a mapping with some of :data:`KEYS`, or of timm's ``resolve_data_config``."""
    if "input_size" in values:
        try:
            side = _square(values["input_size"][-2:], source)
            resize = math.floor(side / values.get("crop_pct", 1))
        except (TypeError, LookupError, ArithmeticError, ValueError):
            found = {key: values.get(key) for key in ("input_size", "crop_pct")}
            raise CogError(f"preprocessing of {source}: {found}, expected (3, 224, 224) and 0.9") from None
        values = {
            "image_size": side,
            "resize_size": resize,
            "squash": values.get("crop_mode") == "squash",
            **{key: values[key] for key in ("mean", "std", "interpolation") if key in values},
        }
    source = f"preprocessing of {source}"
    if missing := [key for key, value in values.items() if value is None]:
        raise CogError(f"{source} has no {missing[0]}")
    keys = keys_of(values, source)
    try:
        return preprocess_of(config.get_cfg(declared={}, entry_values=keys, entry_source=source))
    except CogError as error:
        raise CogError(f"{source}: {error}") from None


def _square(sides: Any, source: str) -> Any:
    if sides[0] != sides[1]:
        raise CogError(f"preprocessing of {source}: {tuple(sides)} is not square, and images here are square")
    return sides[0]


def from_processor(values: Mapping[str, Any], source: str) -> Preprocess:
    """Return the preprocessing of an image processor of transformers, from its ``to_dict()``."""
    size, crop = values.get("size") or {}, values.get("crop_size") or {}
    squash = "height" in size
    side = _square([size["height"], size.get("width")], source) if squash else size.get("shortest_edge")
    image_size = side
    if crops := bool(values.get("do_center_crop") and crop):
        image_size = _square([crop.get("height"), crop.get("width")], source)
    share = values.get("crop_pct") or ("Levit" in str(values.get("image_processor_type")) and 224 / 256)
    if share and side and not squash:  # ConvNeXt, PoolFormer, LeViT
        squash = side >= 384 and not crops
        side = side if squash else int(side / share)
    factor, normalizes = values.get("rescale_factor") or 1 / 255, values.get("do_normalize")
    others = ("rescale_offset", "do_flip_channel_order", "resize_short")  # the last one: PP-LCNet, BGR
    if any(map(values.get, others)) or abs(255 * factor - 1) > 1e-3:
        how = "reverses the channels, or does not scale pixels to [0, 1]; write a loader that does"
        raise CogError(f"preprocessing of {source} {how}")
    std = values.get("image_std")
    if values.get("include_top") and std:  # EfficientNet: the division is done twice
        std = [each * each for each in std]
    declared = {
        "image_size": image_size,
        "resize_size": side,
        "mean": values.get("image_mean") if normalizes else (0.0, 0.0, 0.0),
        "std": std if normalizes else (1.0, 1.0, 1.0),
        "interpolation": _PILLOW.get(values.get("resample", 2)),
        "squash": squash,
    }
    return from_mapping(declared, source)


def declared(value: Any, source: str) -> dict[str, Preprocess]:
    """Return what a user's loader declares by value of ``FT_EXTRACT.PREPROCESS``; empty without it."""
    if value is None or inspect.isroutine(value):  # modules may have a function of this name
        return {}
    if hasattr(value, "image_mean") and hasattr(value, "to_dict"):
        pre = from_processor(value.to_dict(), source)
    elif isinstance(value, Mapping):
        pre = from_mapping(value, source)
    else:
        expected = f"give a dict with some of {', '.join(KEYS)}"
        raise CogError(f"preprocessing of {source}: {type(value).__name__} is not supported; {expected}")
    return {"protocol": pre.protocol(), "model": pre}
