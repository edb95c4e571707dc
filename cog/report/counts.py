"""Whether results were made on the official data, judged by the numbers of classes and images.

Only then can they be compared with published numbers. Equal counts do not prove equal images; other counts
prove that the images differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from cog import names
from cog.report.records import Features
from cog.results import Run

_N_CLASSES = 1000

# Images (ILSVRC-2012; paper Sec. 3.2, 4.1, A.1): 50 test and 732 to 1300 training images per concept of a level.
_N_TEST = 50_000
_N_TRAIN_IN1K = (1_281_167, 1_281_167)
_N_TRAIN_LEVEL = (732_000, 1_300_000)

# A few unreadable images, or the paper's IN-1K-blurred (101 fewer), do not make another data set.
_NEARLY = 0.002


class Match(Enum):
    """How the data of a result compare with the official data."""

    OFFICIAL = "official counts"
    NEARLY = "nearly the official counts"
    DIFFERENT = "not the official data"
    UNKNOWN = "counts not recorded"
    NONE = "no published results on this data set"

    @property
    def comparable(self) -> bool:
        """Whether to compare with published numbers; counts that nobody recorded get the benefit of the doubt."""
        return self in (Match.OFFICIAL, Match.NEARLY, Match.UNKNOWN)


@dataclass(frozen=True)
class Counts:
    """The verdict on one model and data set.

    Attributes:
        match: the verdict.
        differences: one line per count that is not the official one.
    """

    match: Match
    differences: tuple[str, ...] = ()


def judge(dataset: str, runs: Iterable[Run], features: Mapping[str, Features]) -> Counts:
    """Compare the counts of one model on one data set with the official ones.

    Args:
        dataset: name.
        runs: of that model and data set, any number of shots and seeds.
        features: descriptions of the features they used, by split; may lack any.
    """
    if dataset not in names.DATASETS:
        return Counts(Match.NONE)
    train = _N_TRAIN_IN1K if dataset == names.IN1K else _N_TRAIN_LEVEL
    found: dict[str, set[int]] = {"classes": set(), "training images": set(), "test images": set()}
    for run in runs:
        details = run.details
        if details.n_classes is not None:
            found["classes"].add(details.n_classes)
        if "test" in details.rows:
            found["test images"].add(details.rows["test"])
        if run.n_shot == 0 and details.rows.get("final_train"):
            found["training images"].add(details.rows["final_train"])
    for split, made in features.items():
        if made.n_classes is not None:
            found["classes"].add(made.n_classes)
        if made.n_images is not None:
            found["training images" if split == "train" else "test images"].add(
                made.n_images - (made.n_failed or 0)
            )
    differences: list[str] = []
    far = False
    for what, (low, high), slack in (
        ("classes", (_N_CLASSES, _N_CLASSES), 0.0),
        ("training images", train, _NEARLY),
        ("test images", (_N_TEST, _N_TEST), _NEARLY),
    ):
        for count in sorted(found[what]):
            if not low <= count <= high:
                wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
                differences.append(f"{count:,} {what} instead of {wanted}")
                far = far or not low * (1 - slack) <= count <= high * (1 + slack)
    if differences:
        return Counts(Match.DIFFERENT if far else Match.NEARLY, tuple(differences))
    return Counts(Match.OFFICIAL if found["classes"] else Match.UNKNOWN)
