"""Flags that say where the images of a data set are, and the images that they name."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from cog import files, names
from cog.errors import CogError
from cog.paths import check_dataset_name

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

logger = logging.getLogger(__name__)

#: Help of each flag, without ``--``.
FLAGS = {
    "in1k_images_root": "for in1k: holds {train,val}/<wnid>/*.JPEG",
    "in1k_blurred_images_root": "for in1k_blurred, IN-1K with faces blurred: holds {train,val}/<wnid>/*",
    "imagenet_images_root": "for cog_l*: ImageNet-21K, holds <wnid>/*.JPEG",
    "cog_levels_mapping_file": "for cog_l*: cog_levels_mapping_file.pkl",
    "cog_concepts_split_file": "for cog_l*: cog_concepts_split_file.pkl",
    "images_root": "for a data set of your own: holds {train,test}/<class>/*",
}


def add(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    for flag, text in FLAGS.items():
        group.add_argument(f"--{flag}", help=text)
    group.add_argument(
        "--strict_counts",
        action="store_true",
        help="stop when class or image counts differ from the official data (default: warn)",
    )


def needed(args: argparse.Namespace, dataset: str) -> tuple[str, ...]:
    """Return the flags that name the images of a data set.

    Raises:
        CogError: a name that is none, or that needs ``--images_root``.
    """
    check_dataset_name(dataset)
    if args.images_root is not None:
        return ("images_root",)
    if dataset in (names.IN1K, names.IN1K_BLURRED):
        return (f"{dataset}_images_root",)
    if names.cog_level(dataset) is not None:
        return ("imagenet_images_root", "cog_levels_mapping_file", "cog_concepts_split_file")
    raise CogError(
        f"--dataset {dataset} is not one of {', '.join((*names.DATASETS, names.IN1K_BLURRED))}; for a data set of "
        "your own give --images_root DIR with DIR/{train,test}/<class>/*"
    )


def require(args: argparse.Namespace, dataset: str, *, why: str = "") -> dict[str, str]:
    """Return the values of the flags that a data set needs, by flag.

    Args:
        args: parsed flags.
        dataset: name.
        why: beginning of the message about one that is not given.

    Raises:
        CogError: one is not given, or what it names does not exist.
    """
    found = {}
    for flag in needed(args, dataset):
        value = getattr(args, flag)
        if value is None:
            raise CogError(f"{why or f'--dataset {dataset} needs'} --{flag}")
        check = files.require_file if flag.endswith("_file") else files.require_dir
        found[flag] = str(check(value, f"--{flag}"))
    return found


def list_images(args: argparse.Namespace, dataset: str, split: str) -> ImageList:
    """Find the images of a data set and split; report counts that differ from the official data.

    Raises:
        CogError: missing flags, folders or files; with ``--strict_counts`` other counts.
    """
    from cog.data import image_lists

    given = require(args, dataset)
    if "images_root" in given:
        images = image_lists.image_folder(dataset, given["images_root"], split)
    elif "imagenet_images_root" in given:
        images = image_lists.cog_level(
            dataset,
            split,
            images_root=given["imagenet_images_root"],
            levels_file=given["cog_levels_mapping_file"],
            split_file=given["cog_concepts_split_file"],
        )
    else:
        images = image_lists.in1k(given[f"{dataset}_images_root"], split, dataset=dataset)
    differences = image_lists.count_differences(images)
    if differences and args.strict_counts:
        raise CogError(f"counts differ from the official data: {'; '.join(differences)} (--strict_counts)")
    for line in differences:
        logger.warning("%s", line)
    return images
