"""The folders and files that locate images, and the list of images of one data set and split."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cog import paths
from cog.data import datasets
from cog.errors import CogError, did_you_mean
from cog.runtime import files

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageSources:
    """Folders and files with images.

    Attributes:
        values: value of each flag of :func:`cog.data.datasets.flags` by name; None: not given.
    """

    values: Mapping[str, str | None]

    def declaration(self, dataset: str) -> datasets.Dataset:
        """Return the declaration of a data set; with ``--images_root``, an undeclared name is a user's own data set."""
        paths.check_dataset_name(dataset)
        declared = datasets.find(dataset)
        if declared is None and self.values.get(datasets.OWN.root) is not None:
            return datasets.OWN
        if declared is None:
            raise CogError(
                f"--dataset {dataset} is not one of {', '.join(datasets.names())}"
                f"{did_you_mean(dataset, datasets.names())}; for a data set of your own give --{datasets.OWN.root} DIR "
                f"with DIR/{datasets.OWN.layout}"
            )
        return declared

    def require(self, dataset: str, *, why: str | None = None) -> dict[str, str]:
        """Return the values of the flags that a data set needs, by name.

        Args:
            dataset: name of the data set.
            why: beginning of the message about a missing value; default: ``--dataset <dataset> needs``.
        """
        given = {}
        for flag in self.declaration(dataset).flags:
            value = self.values.get(flag)
            if value is None:
                images_root = self.values.get(datasets.OWN.root)
                hint = (
                    f"; --{datasets.OWN.root} {images_root} is for data sets of your own, under another name"
                    if images_root
                    else ""
                )
                raise CogError(f"{why or f'--dataset {dataset} needs'} --{flag}{hint}")
            check = files.require_file if flag.endswith("_file") else files.require_dir
            given[flag] = str(check(value, f"--{flag}"))
        return given

    def list_images(self, dataset: str, split: str) -> ImageList:
        """Return the images of a data set and split; log counts that differ from the official data."""
        images = self.declaration(dataset).images(dataset, split, self.require(dataset))
        for line in count_differences(images):
            logger.warning("%s", line)
        return images


def count_differences(images: ImageList) -> list[str]:
    """Compare the counts of a list with the counts of the official data.

    Returns:
        One line per difference; empty when all counts are as expected, or no official counts are known.
    """
    declared = datasets.find(images.dataset)
    if declared is None or images.split not in declared.counts:
        return []
    expected, counts = declared.counts[images.split], images.counts()
    begin = f"{images.dataset} {images.split}: expected"
    differences = []
    if len(counts) != expected.n_classes:
        differences.append(f"{begin} {expected.n_classes} classes, found {len(counts)}")
    if expected.n_images not in (None, len(images)):
        differences.append(f"{begin} {expected.n_images} images, found {len(images)}")
    if expected.per_class is not None:
        low, high = expected.per_class
        outside = int(((counts < low) | (counts > high)).sum())
        if outside:
            differences.append(
                f"{begin} {_span(low, high)} images per class, found {_span(counts.min(), counts.max())} "
                f"({outside} of {len(counts)} classes outside)"
            )
    return differences


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
