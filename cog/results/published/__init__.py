"""The published numbers of the ImageNet-CoG papers, as rows of the long table.

Sources of the files in ``data/``:

* ``models.csv``: the 31 models of "Concept Generalization in Visual Representation Learning" (Sariyildiz,
  Kalantidis, Larlus, Alahari; ICCV 2021): Table 1 (names, groups, parameters), Tables 5-10 (other spelling of
  names), the legend of Figs. 3 and 4 (colors, markers) and Fig. 4 (its eight models).
* ``v2_top1.csv``: Tables 5-10 of its supplement: top-1 accuracy, mean and deviation over five seeds, of
  31 models on six data sets with 1, 2, ..., 128 and all training images per class (1674 cells).
* ``v1_top1.csv``: Tables 2 and 4 of the first version (January 2021): seven models, no deviations. Its levels
  were built differently, so its numbers are comparable with those of the final version only on IN-1K.
* ``v1_other.csv``: Tables 3 (MLP), 5 (PCA) and 6 (clustering) of the first version.

This module imports neither torch nor matplotlib.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
from dataclasses import dataclass
from typing import Any

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

    name: str  # as everywhere in the toolkit
    label: str  # name in the paper without the letter of its group: DeiT-S-distilled
    table_label: str  # name in Tables 5-10: a-DeiT-S distilled
    category: str  # key of CATEGORY_LABELS (the spelling of cog.models.spec.CATEGORIES)
    #: Color of its group in the figures, for matplotlib; black for the reference, whose color is not stated.
    color: str
    marker: str  # for matplotlib
    in_fig4: bool
    #: Millions of parameters; None if the paper does not state them (every ResNet-50 but the reference).
    params_m: float | None
    order: int  # position in the tables of the paper, from 0


def _read(file: str) -> list[dict[str, str]]:
    path = importlib.resources.files(__package__) / "data" / file
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _models() -> dict[str, PublishedModel]:
    models = {}
    for order, row in enumerate(_read("models.csv")):
        letter, _, rest = row["paper_label"].partition("-")
        models[row["model"]] = PublishedModel(
            name=row["model"],
            label=rest if len(letter) == 1 else row["paper_label"],
            table_label=row["table_label"],
            category=row["category"],
            color=row["figure_color"] or "black",
            marker=row["marker"],
            in_fig4=row["in_fig4"] == "yes",
            params_m=float(row["params_m"]) if row["params_m"] else None,
            order=order,
        )
    return models


#: Models by name, in the order of the paper's tables.
MODELS: dict[str, PublishedModel] = _models()


# Metric of k-means with the same definition, by the quantity in Table 6 of the first version.
_CLUSTERING = {"purity": "purity_v1", "ami": "ami", "nmi": "nmi", "ari": "ari"}


def rows(version: str = "v2") -> list[dict[str, Any]]:
    """Return every published number as rows of :mod:`cog.results.frame`, in the order of the tables.

    Args:
        version: ``"v2"``, the final version (Tables 5-10), or ``"v1"``, the first version: Tables 2 and 4,
            whose columns for all images agree, then 3 (MLP, relative to logistic regression), 5 (PCA; its
            2048 components are all features, which are in Table 2) and 6 (clustering).

    Returns:
        Means without seeds; top-1 accuracies by data set, model (order of the paper) and number of shots (all
        images = 0 last). The first version states no deviations.

    Raises:
        ValueError: the version is unknown.

    >>> first = rows("v2")[0]
    >>> first["model"], first["dataset"], first["n_shot"], first["value"], first["std"]
    ('sup_resnet50', 'in1k', 1, 45.0, 0.7)
    """
    if version not in SOURCES:
        raise ValueError(f"version {version!r}, expected one of {', '.join(SOURCES)}")
    return [dict(row) for row in _rows(version)]


@functools.cache
def _rows(version: str) -> list[dict[str, Any]]:
    made: list[tuple[dict[str, str], tuple[Any, ...]]] = []
    for row in _read(f"{version}_top1.csv"):
        n_shot = 0 if row["n_shot"] == "all" else int(row["n_shot"])
        mean, std = (row["mean"], float(row["std"])) if version == "v2" else (row["top1"], None)
        made.append((row, ("logreg", "top1", n_shot, float(mean), std)))
    for row in _read("v1_other.csv") if version == "v1" else ():
        if key := _key(row["table"], row["quantity"]):
            made.append((row, (*key, 0, float(row["value"]), None)))
    names = ("evaluation", "metric", "n_shot", "value", "std")
    return [
        {
            "source": SOURCES[version],
            "model": row["model"],
            "dataset": row["dataset"],
            **dict(zip(names, numbers, strict=True)),
            "data": "benchmark",
            "pretraining": "web" if MODELS[row["model"]].category == "web-data" else "IN-1K",
        }
        for row, numbers in made
    ]


def _key(table: str, quantity: str) -> tuple[str, str] | None:
    """Return evaluation and metric of a number of the first version; None if it is in its Table 2, too."""
    if quantity in ("logreg", "pca_2048"):
        return None
    if table == "3":
        return quantity, "relative_to_logreg"
    return (
        (f"logreg_{quantity.replace('_', '')}", "top1") if table == "5" else ("kmeans", _CLUSTERING[quantity])
    )
