"""The named data sets: one declaration each.

Flags and their help, labels and order in tables and figures, expected counts, variables of the bash scripts and the
table of ``docs/data.md`` derive from the declarations. Torch and NumPy are only imported when images are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cog import constants

if TYPE_CHECKING:
    from cog.data.image_lists import ImageList

#: Key of the declaration of all levels.
LEVELS = "cog_l*"


@dataclass(frozen=True)
class OfficialCounts:
    """The counts of one split in the official data.

    Attributes:
        n_classes: number of classes.
        n_images: number of images of all classes together; None: not known.
        per_class: smallest and largest number of images of a class; None: not known.
    """

    n_classes: int
    n_images: int | None = None
    per_class: tuple[int, int] | None = None


@dataclass(frozen=True)
class Dataset:
    """The declaration of a named data set, or of all levels.

    Attributes:
        name: value of ``--dataset``; :data:`LEVELS` for ``cog_l1``, ``cog_l2``, ...
        label: name in tables and figures; ``{level}`` stands for the number of a level.
        title: full name of the images, for help and documentation.
        note: source of the images, for the documentation (Markdown).
        root: flag, without ``--``, of the folder of the images; data sets may share a flag.
        layout: files below that folder, unpacked.
        folders: folder below the root by split; no entry when both splits share the root.
        files: further flags that the data set needs, and their help.
        counts: counts of the official data by split; empty when there are none.
        list_images: ``list_images(dataset, split, values)`` returns the images, given the values of the flags by
            name; None: a folder per class in the folder of the split.
    """

    name: str
    label: str
    title: str
    root: str
    layout: str
    note: str = ""
    folders: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, OfficialCounts] = field(default_factory=dict)
    list_images: Callable[[str, str, Mapping[str, str]], ImageList] | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the declared data sets: all levels, or the one name."""
        return constants.COG_LEVELS if self.name == LEVELS else (self.name,)

    @property
    def flags(self) -> dict[str, str]:
        """Help of every flag that the data set needs, by name without ``--``."""
        images = ", ".join(filter(None, (self.title, f"holds {self.layout}")))
        texts = {self.root: images, **self.files}
        return {flag: f"for {self.name}: {text}" for flag, text in texts.items()}

    def folder(self, root: str, split: str) -> Path:
        """Return the folder of the images of a split, below the root."""
        return Path(root) / self.folders.get(split, "")

    def images(self, dataset: str, split: str, values: Mapping[str, str]) -> ImageList:
        """Return the images of a split."""
        if self.list_images is not None:
            return self.list_images(dataset, split, values)
        from cog.data import image_lists

        folder = self.folder(values[self.root], split)
        return image_lists.from_class_folders(dataset, split, folder, flag=f"--{self.root}")


#: The declarations by name, in the order of tables, figures and flags.
DATASETS: dict[str, Dataset] = {}

#: A data set of the user's own, under any name.
OWN = Dataset(
    name="a data set of your own",
    label="",
    title="",
    root="images_root",
    layout="{train,test}/<class>/*",
    folders={"train": "train", "test": "test"},
)


def register(dataset: Dataset) -> None:
    """Add a declaration after the others.

    Raises:
        ValueError: the name is declared already.
    """
    if dataset.name in DATASETS:
        raise ValueError(f"{dataset.name} is declared twice")
    DATASETS[dataset.name] = dataset


def find(name: str) -> Dataset | None:
    """Return the declaration of a data set; None for a user's own data set."""
    return DATASETS.get(LEVELS if constants.cog_level(name) is not None else name)


def names() -> list[str]:
    """Return the names of all declared data sets, levels one by one."""
    return [name for dataset in DATASETS.values() for name in dataset.members]


def flags() -> dict[str, str]:
    """Return the help of every flag that locates images, by name without ``--``."""
    texts: dict[str, str] = {}
    for dataset in (*DATASETS.values(), OWN):
        texts |= {flag: text for flag, text in dataset.flags.items() if flag not in texts}
    return texts


def label(name: str) -> str | None:
    """Return the name of a data set in tables and figures; None for a user's own data set."""
    dataset = find(name)
    return None if dataset is None else dataset.label.format(level=constants.cog_level(name))


def position(name: str) -> tuple[int, int] | None:
    """Return the place of a data set in tables and figures: declaration, level; None for a user's own data set."""
    dataset = find(name)
    return None if dataset is None else (list(DATASETS).index(dataset.name), constants.cog_level(name) or 0)


def markdown() -> str:
    """Return the table of the declared data sets for the documentation."""
    lines = ["| data set | images | flags | layout below the first |", "| --- | --- | --- | --- |"]
    for dataset in DATASETS.values():
        members = dataset.members
        shown = f"`{members[0]}`" + (f" ... `{members[-1]}`" if len(members) > 1 else "")
        flags = ", ".join(f"`--{flag}`" for flag in dataset.flags)
        about = ", ".join(filter(None, (dataset.title, dataset.note)))
        lines.append(f"| {shown} | {about} | {flags} | `{dataset.layout}` |")
    return "\n".join(lines)


# ---- the declarations -----------------------------------------------------------------------------------


def _list_level(dataset: str, split: str, values: Mapping[str, str]) -> ImageList:
    from cog.data import image_lists

    return image_lists.cog_level(
        dataset,
        split,
        images_root=values["imagenet_images_root"],
        levels_file=values["cog_levels_mapping_file"],
        split_file=values["cog_concepts_split_file"],
    )


#: ILSVRC-2012.
register(
    Dataset(
        name=constants.IN1K,
        label="IN-1K",
        title="ILSVRC-2012",
        note="from [image-net.org](https://image-net.org/download-images.php), after registration",
        root="in1k_images_root",
        layout="{train,val}/<wnid>/*.JPEG",
        folders=constants.IN1K_FOLDERS,
        counts={"train": OfficialCounts(1000, 1_281_167), "test": OfficialCounts(1000, 50_000)},
    )
)
#: Paper supplement C.4; the counts are those of its Table 4.
register(
    Dataset(
        name=constants.IN1K_BLURRED,
        label="IN-1K-b",
        title="IN-1K with faces blurred",
        note="1,281,066 and 49,997 images (supplement C.4)",
        root="in1k_blurred_images_root",
        layout="{train,val}/<wnid>/*",
        folders=constants.IN1K_FOLDERS,
        counts={"train": OfficialCounts(1000, 1_281_066), "test": OfficialCounts(1000, 49_997)},
    )
)
#: Paper Sec. 3.2, 4.1, A.1.
register(
    Dataset(
        name=LEVELS,
        label="L{level}",
        title="ImageNet-21K",
        note="from image-net.org likewise; one folder or tar file per synset",
        root="imagenet_images_root",
        layout="<wnid>/*.JPEG",
        files={
            "cog_levels_mapping_file": "cog_levels_mapping_file.pkl",
            "cog_concepts_split_file": "cog_concepts_split_file.pkl",
        },
        counts={
            "train": OfficialCounts(1000, per_class=(732, 1300)),
            "test": OfficialCounts(1000, per_class=(50, 50)),
        },
        list_images=_list_level,
    )
)
