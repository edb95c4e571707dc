"""The published numbers of the ImageNet-CoG papers, as rows of the long table.

* ``models.csv``: the 31 models of "Concept Generalization in Visual Representation Learning" (Sariyildiz,
  Kalantidis, Larlus, Alahari; ICCV 2021): Table 1 (names without the letter of the group, parameters),
  Tables 5-10 (other spelling of names), the legend of Figs. 3 and 4 (colors, markers) and Fig. 4 (its eight).
* ``v2.csv``: Tables 5-10 of its supplement: top-1 accuracy, mean and deviation over five seeds, of 31 models
  on six data sets with 1, 2, ..., 128 and all (0) training images per class (1674 cells).
* ``v1.csv``: the first version (January 2021): seven models, no deviations; its levels are other ones.
  Tables 2 and 4 (logreg), 3 (MLP, relative to logistic regression), 5 (PCA; its 2048 components are all
  features, which are in Table 2) and 6 (clustering).
"""

import csv
import functools
import importlib.resources
from dataclasses import dataclass
from typing import Any

from cog.errors import CogError

#: ``source`` of the numbers by version, the argument of :func:`rows`.
SOURCES = {"v2": "paper v2", "v1": "paper v1"}

#: The paper's reference model.
REFERENCE = "sup_resnet50"

#: The groups of Table 1 in the order of the paper's Fig. 3, with their names in the legend.
CATEGORY_LABELS = {
    "reference": "ResNet",
    "self-supervision": "Self-supervision",
    "regularization": "Regularization",
    "web-data": "Web data",
    "architecture": "Architecture",
}


@dataclass(frozen=True)
class PublishedModel:
    """One of the 31 models of the paper."""

    order: int  # position in the tables of the paper, from 0
    name: str  # as everywhere in the toolkit
    label: str  # DeiT-S-distilled
    table_label: str  # name in Tables 5-10: a-DeiT-S distilled
    category: str  # key of CATEGORY_LABELS
    color: str  # of its group in the figures; black for the reference, whose color is not stated
    marker: str  # for matplotlib
    in_fig4: str  # "yes" or ""
    params_m: str  # millions; stated for the reference and for models that are no ResNet-50, else ""
    pretraining: str  # one of cog.constants.PRETRAINING


def _read(file: str) -> list[dict[str, str]]:
    path = importlib.resources.files(__package__) / "data" / file
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


#: Models by name, in the order of the paper's tables.
MODELS = {row["name"]: PublishedModel(order, **row) for order, row in enumerate(_read("models.csv"))}


def pretraining(model: str) -> str:
    """Return the pretraining data of a model of the paper, "unknown" for others."""
    return MODELS[model].pretraining if model in MODELS else "unknown"


@functools.cache
def rows(version: str = "v2") -> tuple[dict[str, Any], ...]:
    """Return every published number as rows of :mod:`cog.results.frame`, which must not be changed."""
    if version not in SOURCES:
        raise CogError(f"published {version!r} is not known, expected {' or '.join(SOURCES)}")
    return tuple(
        {
            **row,
            "source": SOURCES[version],
            "n_shot": int(row["n_shot"]),
            "value": float(row["value"]),
            "std": float(row["std"]) if "std" in row else None,
            "data": "benchmark",
            "pretraining": pretraining(row["model"]),
        }
        for row in _read(f"{version}.csv")
    )
