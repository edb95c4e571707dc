"""``models.yaml``: a user's models in one file, one entry per name.

::

    mine_dinov2:                                     # <title>_<architecture>: folder of its features
      source: timm_vit_base_patch14_dinov2.lvd142m   # a model of a library or of the paper, or:
      loader: nets.py:load_my_model                  # a loader; paths are relative to this file's folder
      checkpoint: weights/vit.pth
      preprocess: model                              # or protocol, or some of preprocessing.KEYS
      pooling: cls+mean
      pretraining: IN-21K
      label: DINOv2 (cls+mean)
      group: self-supervised
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cog import config
from cog.constants import GEOMETRIES, POOLINGS, is_model_name
from cog.errors import CogError
from cog.models.spec import PRETRAINING


@dataclass(frozen=True)
class ModelEntry:
    """The entry of one model; ``cfg`` has the configuration keys of its preprocess and pooling."""

    name: str
    source: str | None = None
    loader: str | None = None
    checkpoint: str | None = None
    cfg: dict[str, Any] = field(default_factory=dict)
    pretraining: str | None = None
    label: str | None = None
    group: str | None = None


_FIELDS = ("source", "loader", "checkpoint", "preprocess", "pooling", "pretraining", "label", "group")

_KEYS = {
    "image_size": "FT_EXTRACT.IMAGE_CROP_SIZE",
    "resize_size": "FT_EXTRACT.IMAGE_RESIZE_SIZE",
    "mean": "FT_EXTRACT.IMAGE_NORM.MEAN",
    "std": "FT_EXTRACT.IMAGE_NORM.STD",
    "interpolation": "FT_EXTRACT.IMAGE_INTERPOLATION",
    "squash": "FT_EXTRACT.IMAGE_SQUASH",
}


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the entries by name, unchecked.

    Raises:
        CogError: a file that cannot be read, is no YAML, or does not hold entries by name.
    """
    if not os.path.isfile(path):
        raise CogError(f"--models_file {path} does not exist or is not a file; check the path")
    tree = config.read_yaml(path)
    if not isinstance(tree, dict):
        raise CogError(
            f"--models_file {path} holds {type(tree).__name__}, expected models by name, such as "
            "mine_vit: {source: timm_vit_small_patch16_224}"
        )
    return {str(name): entry for name, entry in tree.items()}


def parse(path: str | os.PathLike[str], name: str, entry: Any) -> ModelEntry:
    """Return the checked entry of a model.

    Raises:
        CogError: an ill-formed name, an unknown key or a value that cannot be used.
    """
    from cog.models.preprocessing import KEYS, check_keys, from_mapping  # imports Pillow

    place = f"{path}: {name}"
    if not is_model_name(name):
        raise CogError(f"{place} is not a model name, expected <model_title>_<architecture_name>")
    entry = {} if entry is None else entry
    if not isinstance(entry, dict):
        raise CogError(f"{place} is {type(entry).__name__}, expected keys such as {', '.join(_FIELDS[:3])}")
    check_keys(entry, _FIELDS, place)
    values = {key: value for key, value in entry.items() if value is not None}
    for key, value in values.items():
        if key != "preprocess" and not (isinstance(value, str) and value.strip() and len(value) < 1000):
            raise CogError(f"{place}: {key} {value!r} is not text, expected a string")
    for key, known in (("pooling", POOLINGS), ("pretraining", PRETRAINING)):
        if values.get(key, known[0]) not in known:
            raise CogError(f"{place}: {key} {values[key]!r} is not known, expected {', '.join(known)}")
    if "source" in values and "loader" in values:
        raise CogError(f"{place} has a source and a loader; give one of them")
    cfg: dict[str, Any] = {}
    given = values.pop("preprocess", "protocol")
    if isinstance(given, dict):
        from_mapping(given, place)
        given = {"resize_size": given["image_size"], **given} if "image_size" in given else given
        cfg = {_KEYS[key]: value for key, value in given.items()}
    elif given in GEOMETRIES:
        cfg = {"FT_EXTRACT.PREPROCESS": given} if given != GEOMETRIES[0] else {}
    else:
        raise CogError(
            f"{place}: preprocess {given!r} is not known, expected {', '.join(GEOMETRIES)} or some of "
            f"{', '.join(KEYS)}"
        )
    if "pooling" in values:
        cfg["FT_EXTRACT.POOLING"] = values.pop("pooling")
    folder = Path(path).resolve().parent
    for key in values.keys() & {"loader", "checkpoint"}:
        values[key] = str(folder / values[key])
    return ModelEntry(name, cfg=cfg, **values)
