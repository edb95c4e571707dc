"""Where the images of data sets are, and the list of images of one data set and split."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.errors import CogError
from cog.paths import check_dataset_name
from cog.runtime import files

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

logger = logging.getLogger(__name__)


def _place(help_text: str) -> Any:
    return field(default=None, metadata={"help": help_text})


@dataclass(frozen=True)
class ImageSources:
    """Folders and files with images, each the value of the flag of its name; None: not given.

    Attributes:
        strict_counts: counts that differ from the official data are an error, not a warning.
    """

    in1k_images_root: str | None = _place("for in1k: holds {train,val}/<wnid>/*.JPEG")
    in1k_blurred_images_root: str | None = _place(
        "for in1k_blurred, IN-1K with faces blurred: holds {train,val}/<wnid>/*"
    )
    imagenet_images_root: str | None = _place("for cog_l*: ImageNet-21K, holds <wnid>/*.JPEG")
    cog_levels_mapping_file: str | None = _place("for cog_l*: cog_levels_mapping_file.pkl")
    cog_concepts_split_file: str | None = _place("for cog_l*: cog_concepts_split_file.pkl")
    images_root: str | None = _place("for a data set of your own: holds {train,test}/<class>/*")
    strict_counts: bool = False

    def needed(self, dataset: str) -> tuple[str, ...]:
        """Return the names of the fields that locate the images of a data set.

        Raises:
            CogError: an unknown data set without ``images_root``, or an unusable name.
        """
        check_dataset_name(dataset)
        if self.images_root is not None:
            return ("images_root",)
        if dataset in (constants.IN1K, constants.IN1K_BLURRED):
            return (f"{dataset}_images_root",)
        if constants.cog_level(dataset) is not None:
            return ("imagenet_images_root", "cog_levels_mapping_file", "cog_concepts_split_file")
        raise CogError(
            f"--dataset {dataset} is not one of {', '.join((*constants.DATASETS, constants.IN1K_BLURRED))}; for a data "
            "set of your own give --images_root DIR with DIR/{train,test}/<class>/*"
        )

    def require(self, dataset: str, *, why: str = "") -> dict[str, str]:
        """Return the values of the fields that a data set needs, by name.

        Args:
            dataset: name of the data set.
            why: beginning of the message about a missing value.

        Raises:
            CogError: a value is missing, or the folder or file that it names.
        """
        given = {}
        for flag in self.needed(dataset):
            value = getattr(self, flag)
            if value is None:
                raise CogError(f"{why or f'--dataset {dataset} needs'} --{flag}")
            check = files.require_file if flag.endswith("_file") else files.require_dir
            given[flag] = str(check(value, f"--{flag}"))
        return given

    def list_images(self, dataset: str, split: str) -> ImageList:
        """Return the images of a data set and split; report counts that differ from the official data.

        Raises:
            CogError: missing values, folders or files; with ``strict_counts`` other counts.
        """
        from cog.data import image_lists

        given = self.require(dataset)
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
        if differences and self.strict_counts:
            raise CogError(
                f"counts differ from the official data: {'; '.join(differences)} (--strict_counts)"
            )
        for line in differences:
            logger.warning("%s", line)
        return images


#: Help of each field that locates images.
PLACES = {item.name: item.metadata["help"] for item in fields(ImageSources) if "help" in item.metadata}
