"""Conversion of the preprocessing of other libraries and of users to :class:`cog.models.spec.Preprocess`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cog.config import check_statistics
from cog.constants import INTERPOLATIONS
from cog.errors import CogError, did_you_mean, some
from cog.models.spec import IMAGENET_MEAN, IMAGENET_STD, Preprocess

#: Keys of a user's mapping.
KEYS = ("image_size", "resize_size", "mean", "std", "interpolation", "squash")

#: Names of Pillow's filters by their numbers, which files of transformers hold.
_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

#: Beginnings of the names of transformers' classes that take a single number, in older files, for the shortest side.
_SHORTEST = ("CLIP", "ConvN", "Bit", "Levit", "PoolFormer")


#: Steps of transforms that change the form of images to what they have here anyway: RGB, pixels in [0, 1].
_WITHOUT_EFFECT = (
    "ToTensor",
    "MaybeToTensor",
    "ToImage",
    "PILToTensor",
    "ToPureTensor",
    "ToDtype",
    "ConvertImageDtype",
    "Identity",
    "RGB",
    "_convert_to_rgb",
    "_convert_image_to_rgb",
)

_ACCEPTED = (
    f"give a dict with some of {', '.join(KEYS)}, or torchvision's Compose of Resize, CenterCrop, ToTensor and "
    "Normalize"
)


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
        side, _ = _square(values["input_size"][-2:], "input_size", source)
        values = {
            "image_size": side,
            "resize_size": math.floor(side / values.get("crop_pct", 1)),
            "squash": values.get("crop_mode") == "squash",
            **{key: values[key] for key in ("mean", "std", "interpolation") if key in values},
        }
    check_keys(values, KEYS, f"preprocessing of {source}")
    crop = values.get("image_size", 224)
    resize = values.get("resize_size", crop)
    mean, std = values.get("mean", IMAGENET_MEAN), values.get("std", IMAGENET_STD)
    interpolation, squash = values.get("interpolation", "bicubic"), values.get("squash", False)
    problems = {
        "image_size": not _is_count(crop),
        "resize_size": not _is_count(resize) or (_is_count(crop) and resize < crop),
        "mean": not _is_rgb(mean),
        "std": not _is_rgb(std) or min(std) <= 0,
        "interpolation": interpolation not in INTERPOLATIONS,
        "squash": not isinstance(squash, bool),
    }
    for key, bad in problems.items():
        if bad:
            raise CogError(
                f"preprocessing of {source}: {key} {values.get(key)!r} cannot be used; expected image_size and "
                "resize_size in pixels (resize_size at least image_size), mean and std of three numbers, squash true "
                f"or false, interpolation {', '.join(INTERPOLATIONS)}"
            )
    for key, statistics in (("mean", mean), ("std", std)):
        check_statistics(f"preprocessing of {source}: {key}", statistics)
    return Preprocess(resize, crop, tuple(mean), tuple(std), interpolation, squash)  # type: ignore[arg-type]


def check_keys(values: Mapping[Any, Any], known: Sequence[str], source: str) -> None:
    """Check that a mapping has only known keys.

    Raises:
        CogError: an unknown key; the message names the nearest known key, and other unknown keys.
    """
    unknown = [key for key in values if key not in known]
    if unknown:
        hint = did_you_mean(str(unknown[0]), known, cutoff=0.5) or f"; expected {', '.join(known)}"
        others = f" (also unknown: {some(list(map(repr, unknown[1:])))})" if unknown[1:] else ""
        raise CogError(f"{source}: unknown key {unknown[0]!r}{hint}{others}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_rgb(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 3
        and all(isinstance(v, int | float) and math.isfinite(v) for v in value)
    )


def _square(size: Any, label: str, source: str) -> tuple[Any, bool]:
    """Return the side of a square, and whether both sides are given.

    Raises:
        CogError: two different sides.
    """
    sides = list(size) if isinstance(size, Sequence) else [size]
    if not sides or any(side != sides[0] for side in sides):
        raise CogError(
            f"preprocessing of {source}: {label} {tuple(sides)} is not square, and images here are square"
        )
    return sides[0], len(sides) == 2


def from_transforms(transforms: Any, source: str = "the weights") -> Preprocess:
    """Return the preprocessing of torchvision's transforms.

    Args:
        transforms: the transforms of weights, or a ``Compose`` with Resize, CenterCrop and Normalize (v1 or v2).
        source: origin of the transforms, for messages.

    Raises:
        CogError: other transforms.
    """
    if all(hasattr(transforms, name) for name in ("resize_size", "crop_size", "mean", "std")):
        (resize, _), (crop, _) = (
            _square(size, "size", source) for size in (transforms.resize_size, transforms.crop_size)
        )
        return Preprocess(
            resize, crop, tuple(transforms.mean), tuple(transforms.std), transforms.interpolation.value
        )
    values: dict[str, Any] = {}
    steps = list(_steps(transforms))
    for step in steps:
        kind, size = _name(step), getattr(step, "size", None)
        if kind == "Resize" and not values and getattr(step, "max_size", None) is None:
            values["resize_size"], values["squash"] = _square(size, "the size of Resize", source)
            values["interpolation"] = getattr(step.interpolation, "value", step.interpolation)
            values["image_size"] = values["resize_size"]
        elif kind == "CenterCrop":
            values["image_size"], _ = _square(size, "the size of CenterCrop", source)
        elif kind == "Normalize":
            values["mean"], values["std"] = (tuple(map(float, v)) for v in (step.mean, step.std))
        elif kind not in _WITHOUT_EFFECT:
            raise CogError(
                f"preprocessing of {source}: step {step if kind == 'Resize' else kind} is not supported; {_ACCEPTED}"
            )
    if not steps:
        raise CogError(
            f"preprocessing of {source}: {type(transforms).__name__} is not supported; {_ACCEPTED}"
        )
    missing = [step for key, step in (("image_size", "Resize"), ("mean", "Normalize")) if key not in values]
    if missing:
        raise CogError(
            f"preprocessing of {source}: {type(transforms).__name__} has no {' and no '.join(missing)}; {_ACCEPTED}"
        )
    return from_mapping(values, source)


def _steps(transforms: Any) -> Iterator[Any]:
    """Yield the steps of a ``Compose``, also of those inside it."""
    for step in getattr(transforms, "transforms", ()):
        if hasattr(step, "transforms"):
            yield from _steps(step)
        else:
            yield step


def _name(step: Any) -> str:
    """Return the name of a step's class, or of a function."""
    return step.__name__ if inspect.isfunction(step) else type(step).__name__


def from_processor(values: Mapping[str, Any], source: str) -> Preprocess:
    """Return the preprocessing of a ``preprocessor_config.json`` of transformers.

    Raises:
        CogError: unknown or missing entries.
    """
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "")
    size, crop = _side(values.get("size"), kind), _side(values.get("crop_size"), kind)
    if not values.get("do_center_crop", crop is not None):
        crop = None
    side, squash = size if size is not None else crop if crop is not None else (None, False)
    if side is None:
        raise CogError(
            f"{source} has no size of images; give FT_EXTRACT.IMAGE_RESIZE_SIZE and the other keys yourself"
        )
    image_size = side if crop is None else crop[0]
    if "crop_pct" in values and crop is None and not squash:  # ConvNeXt
        side, squash = (int(side / values["crop_pct"]), False) if side < 384 else (side, True)
    normalizes = values.get("do_normalize", True)
    return from_mapping(
        {
            "image_size": image_size,
            "resize_size": side,
            "mean": values.get("image_mean", IMAGENET_MEAN) if normalizes else (0.0, 0.0, 0.0),
            "std": values.get("image_std", IMAGENET_STD) if normalizes else (1.0, 1.0, 1.0),
            "interpolation": _PILLOW.get(values.get("resample", 2), ""),
            "squash": squash,
        },
        source,
    )


def _side(size: Any, kind: str) -> tuple[int, bool] | None:
    """Return the side of images and whether resizing changes their shape, from one of transformers' forms of a size."""
    if isinstance(size, Mapping):
        if "shortest_edge" in size:
            return size["shortest_edge"], False
        if "height" in size and size["height"] == size.get("width"):
            return size["height"], True
        return None
    return (size, not kind.startswith(_SHORTEST)) if isinstance(size, int) else None


def declared(value: Any, source: str) -> Preprocess | None:
    """Return the preprocessing that a user's loader returns or a module declares as ``preprocess``; None without one.

    Args:
        value: a mapping (see :func:`from_mapping`), transforms, or an image processor of transformers. Functions and
            methods are ignored: modules may have one of this name for another purpose.
        source: origin of the value, for messages.

    Raises:
        CogError: any other value.
    """
    if value is None or inspect.isroutine(value):
        return None
    if isinstance(value, Preprocess):
        return value
    if isinstance(value, Mapping):
        return from_mapping(value, source)
    if hasattr(value, "image_mean") and hasattr(value, "to_dict"):
        return from_processor(value.to_dict(), source)
    return from_transforms(value, source)
