"""The named data sets, one declaration each: flags and their help, folders, official counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cog import constants, paths
from cog.errors import CogError, did_you_mean

if TYPE_CHECKING:
    from cog.data.images import ImageList

logger = logging.getLogger(__name__)

LEVELS = "cog_l*"  # name of the declaration of all levels


class OfficialCounts(NamedTuple):
    """Numbers of classes and images of a split, and the smallest and largest number of images of a class."""

    n_classes: int
    n_images: int | None = None
    per_class: tuple[int, int] | None = None


@dataclass(frozen=True)
class Dataset:
    """The declaration of a named data set, or of all levels."""

    name: str  # value of --dataset; LEVELS for cog_l1, cog_l2, ...
    root: str  # flag, without --, of the folder of the images; data sets may share a flag
    layout: str  # files below that folder, unpacked
    folders: Mapping[str, str] = field(default_factory=dict)  # below the root by split, if any
    files: tuple[str, ...] = ()  # flags of the level files
    counts: Mapping[str, OfficialCounts] = field(default_factory=dict)  # by split, if known

    @property
    def flags(self) -> tuple[str, ...]:
        """Names, without ``--``, of the flags that the data set needs."""
        return self.root, *self.files

    def images(self, dataset: str, split: str, values: Mapping[str, str]) -> ImageList:
        """Return the images of a split, given the values of the flags by name."""
        from cog.data import images

        folder = Path(values[self.root]) / self.folders.get(split, "")
        if self.files:
            levels_file, split_file = (values[flag] for flag in self.files)
            return images.from_level(dataset, split, folder, levels_file=levels_file, split_file=split_file)
        return images.from_class_folders(dataset, split, folder, flag=f"--{self.root}")


def _in1k(name: str, root: str, n_train: int, n_test: int) -> Dataset:
    counts = {"train": OfficialCounts(1000, n_train), "test": OfficialCounts(1000, n_test)}
    return Dataset(name, root, "{train,val}/<wnid>/*", constants.IN1K_FOLDERS, counts=counts)


#: The declarations by name, in the order of tables, figures and flags.
DATASETS = {
    constants.IN1K: _in1k(constants.IN1K, "in1k_images_root", 1_281_167, 50_000),
    # The counts are those of Table 4 in supplement C.4 of the paper.
    constants.IN1K_BLURRED: _in1k(constants.IN1K_BLURRED, "images_root", 1_281_066, 49_997),
    LEVELS: Dataset(  # paper Sec. 3.2, 4.1, A.1
        *(LEVELS, "imagenet_images_root", "<wnid>/*.JPEG"),
        files=("cog_levels_mapping_file", "cog_concepts_split_file"),
        counts={s: OfficialCounts(1000, None, n) for s, n in (("train", (732, 1300)), ("test", (50, 50)))},
    ),
}

#: A data set of the user's own, under any name.
OWN = Dataset(
    "a data set of your own", "images_root", "{train,test}/<class>/*", {s: s for s in constants.SPLITS}
)


def find(name: str) -> Dataset:
    """Return the declaration of a data set, ``OWN`` for those of users."""
    return DATASETS.get(LEVELS if constants.cog_level(name) is not None else name, OWN)


def names() -> list[str]:
    """Return the names of all declared data sets, levels one by one."""
    return [n for name in DATASETS for n in (constants.COG_LEVELS if name == LEVELS else (name,))]


def flags() -> dict[str, str]:
    """Return the help of every flag that locates images, by name without ``--``."""
    texts: dict[str, list[str]] = {}
    for dataset in reversed((*DATASETS.values(), OWN)):
        for flag in dataset.flags:
            what = f"holds {dataset.layout}" if flag == dataset.root else f"{flag}.pkl"
            texts.setdefault(flag, []).append(f"for {dataset.name}: {what}")
    return {flag: "; ".join(several) for flag, several in texts.items()}


@dataclass(frozen=True)
class ImageSources:
    """Folders and files with images: the value of each flag of :func:`flags` by name; None: not given."""

    values: Mapping[str, str | None]
    limit: int = 0  # N: the first N images of the first N classes alone

    def require(self, dataset: str, *, why: str | None = None) -> dict[str, str]:
        """Return the values of the flags that a data set needs; ``why`` begins a message about one."""
        paths.check_dataset_name(dataset)
        if find(dataset) is OWN and self.values.get(OWN.root) is None:
            known = f"{', '.join(names())}{did_you_mean(dataset, names())}"
            advice = f"for a data set of your own give --{OWN.root} DIR with DIR/{OWN.layout}"
            raise CogError(f"--dataset {dataset} is not one of {known}; {advice}")
        given = {}
        for flag in find(dataset).flags:
            if (value := self.values.get(flag)) is None:
                raise CogError(f"{why or f'--dataset {dataset} needs'} --{flag}")
            check = paths.require_file if flag.endswith("_file") else paths.require_dir
            given[flag] = str(check(value, f"--{flag}"))
        return given

    def list_images(self, dataset: str, split: str) -> ImageList:
        """Return the images of a data set and split; log counts that differ from the official data."""
        found = find(dataset).images(dataset, split, self.require(dataset))
        for line in count_differences(found):
            logger.warning("%s", line)
        return found.first(self.limit) if self.limit else found


def count_differences(listed: ImageList) -> list[str]:
    """Return a line for each count that differs from the official data."""
    expected, counts = find(listed.dataset).counts.get(listed.split), listed.counts()
    if expected is None:
        return []
    low, high = expected.per_class or (0, len(listed))
    outside = int(((counts < low) | (counts > high)).sum())
    found = f"{counts.min()} to {counts.max()} ({outside} of {len(counts)} classes outside)"
    differing = {
        f"{expected.n_classes} classes, found {len(counts)}": len(counts) != expected.n_classes,
        f"{expected.n_images} images, found {len(listed)}": expected.n_images not in (None, len(listed)),
        f"{low} to {high} images per class, found {found}": outside > 0,
    }
    begin = f"{listed.dataset} {listed.split}: expected"
    return [f"{begin} {line}" for line, is_different in differing.items() if is_different]
