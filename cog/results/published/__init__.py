"""The published numbers of the ImageNet-CoG papers, as the same records that runs are read into.

Sources of the files in ``data/``:

* ``models.csv``: the 31 models of "Concept Generalization in Visual Representation Learning" (Sariyildiz,
  Kalantidis, Larlus, Alahari; ICCV 2021): Table 1 (names, groups, parameters, extra data), Tables 5-10 (their
  spelling of the names), Table 3 (feature dimensions), supplement B.1 (image sizes), the legend of Figs. 3
  and 4 (colours, markers) and Fig. 4 (which eight are in it).
* ``v2_top1.csv``: Tables 5-10 of its supplement: top-1 accuracy, mean and standard deviation over five seeds, of
  31 models on six data sets with 1, 2, ..., 128 and all training images per class (1674 cells).
* ``v1_top1.csv``: Tables 2 and 4 of the first version (January 2021): seven models, no deviations. Its levels
  were built differently, so its numbers are not comparable with the final version's beyond IN-1K.
* ``v1_other.csv``: Tables 3 (MLP), 5 (PCA) and 6 (clustering) of the first version.

No torch and no matplotlib here.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
from dataclasses import dataclass

from cog.results.cells import SeedAverage

#: Labels of :attr:`cog.results.cells.SeedAverage.source`; the keys are what :func:`cells` takes.
SOURCES = {"v2": "paper v2", "v1": "paper v1"}

#: Seeds behind each mean of the final version (Sec. 4.1); which ones is not said.
N_SEEDS = 5

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
    """One of the 31 models.

    Attributes:
        name: as everywhere in the toolkit.
        label: the paper's name without the letter of its group: ``DeiT-S-distilled``.
        paper_label: the name in Table 1: ``a-DeiT-S-distilled``.
        table_label: the name in Tables 5-10: ``a-DeiT-S distilled``.
        category: key of ``CATEGORY_LABELS`` (the spelling of :data:`cog.models.spec.CATEGORIES`).
        colour: of its group in the paper's figures, a matplotlib name; the reference's is not stated
            there: black.
        marker: of matplotlib.
        in_fig4: whether Fig. 4 shows it.
        params_m: millions of parameters; None where the paper does not say (all ResNet-50 but the first).
        feature_dim: dimensions of its features.
        image_size: side of the centre crop in pixels.
        extra_data: data set that it was trained on beside or instead of IN-1K, or "".
        order: position in the paper's tables, from 0.
    """

    name: str
    label: str
    paper_label: str
    table_label: str
    category: str
    colour: str
    marker: str
    in_fig4: bool
    params_m: float | None
    feature_dim: int
    image_size: int
    extra_data: str
    order: int


@dataclass(frozen=True)
class Value:
    """One number of a table of the first version that is not a top-1 accuracy of logistic regression.

    Attributes:
        table: its number in the first version: 3, 5 or 6.
        dataset: data set.
        model: name.
        quantity: ``logreg``, ``mlp``, ``mlp_noact`` (Table 3); ``pca_<components>`` (5); ``purity``, ``ami``,
            ``nmi``, ``ari`` (6).
        value: as printed.
        unit: ``top1_absolute`` (percent), ``relative_percent_vs_logreg`` or ``score_0_to_1``.
    """

    table: int
    dataset: str
    model: str
    quantity: str
    value: float
    unit: str


def _rows(file: str) -> list[dict[str, str]]:
    path = importlib.resources.files(__package__) / "data" / file
    text = path.read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _models() -> dict[str, PublishedModel]:
    models = {}
    for order, row in enumerate(_rows("models.csv")):
        letter, _, rest = row["paper_label"].partition("-")
        models[row["model"]] = PublishedModel(
            name=row["model"],
            label=rest if len(letter) == 1 else row["paper_label"],
            paper_label=row["paper_label"],
            table_label=row["table_label"],
            category=row["category"],
            colour=row["figure_color"] or "black",
            marker=row["marker"],
            in_fig4=row["in_fig4"] == "yes",
            params_m=float(row["params_m"]) if row["params_m"] else None,
            feature_dim=int(row["feature_dim"]),
            image_size=int(row["image_size"]),
            extra_data=row["extra_data"],
            order=order,
        )
    return models


#: By name, in the order of the paper's tables.
MODELS: dict[str, PublishedModel] = _models()


def cells(version: str = "v2") -> list[SeedAverage]:
    """Return every published top-1 accuracy as an average.

    Args:
        version: ``"v2"``, the final version (Tables 5-10), or ``"v1"``, the first one (Tables 2 and 4, whose
            columns for all images agree).

    Returns:
        New list; one per data set (in1k, cog_l1, ...), model (paper's order) and number of shots (rising,
        all images = 0 last), without seeds; the deviations of the first version, which it does not give, are None.

    Raises:
        ValueError: another version.
    """
    if version not in SOURCES:
        raise ValueError(f"version {version!r}, expected one of {', '.join(SOURCES)}")
    return list(_cells(version))


@functools.cache
def _cells(version: str) -> tuple[SeedAverage, ...]:
    return tuple(
        SeedAverage(
            model=row["model"],
            dataset=row["dataset"],
            evaluation="logreg",
            metric="top1",
            n_shot=0 if row["n_shot"] == "all" else int(row["n_shot"]),
            value=float(row["mean" if version == "v2" else "top1"]),
            std=float(row["std"]) if version == "v2" else None,
            source=SOURCES[version],
        )
        for row in _rows(f"{version}_top1.csv")
    )


def v1_values() -> list[Value]:
    """Return the first version's Tables 3, 5 and 6, in the order of the tables."""
    return [
        Value(int(r["table"]), r["dataset"], r["model"], r["quantity"], float(r["value"]), r["unit"])
        for r in _rows("v1_other.csv")
    ]
