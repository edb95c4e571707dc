"""Tables and contact sheet of the test images for which classifiers of another data set are confident."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cog.analysis import concepts, contact_sheet
from cog.analysis.confidences import Applied, confident_anywhere
from cog.analysis.task import AnalysisContext
from cog.data.root_layout import open_store
from cog.runtime.csv_text import write_csv

logger = logging.getLogger(__name__)

_BINS = 100

#: First columns of the tables of images.
_HEADER = ("image", "wnid", "names", "predicted_wnid", "predicted_names", "confidence", "log_odds")


@dataclass(frozen=True, eq=False)
class Images:
    """The test images with the predictions of classifiers of S seeds, and the names of their concepts.

    Attributes:
        labels: true class of each image, int64 ``(n,)``.
        image_paths: path of each image; None when unknown.
        true_names: concept of each label.
        predicted_names: concept of each output of the classifiers.
        applied: confidences and predictions of the classifiers.
        lists: images with a confident prediction of each classifier, by seed, most confident first.
        words: words of concepts by WordNet id.
    """

    labels: np.ndarray
    image_paths: list[str] | None
    true_names: list[str]
    predicted_names: list[str]
    applied: Applied
    lists: dict[int, np.ndarray]
    words: concepts.Words

    @property
    def n_seeds(self) -> np.ndarray:
        """Number of classifiers with a confident prediction for each image, int64 ``(n,)``."""
        return np.bincount(np.concatenate(list(self.lists.values())), minlength=len(self.labels))

    def describe(self, image: int, row: int) -> tuple[object, ...]:
        """Return the first cells of a table row: image, concept, and prediction of the classifier ``row``."""
        true = self.true_names[self.labels[image]]
        answer = self.predicted_names[self.applied.predicted[row, image]]
        path = self.image_paths[image] if self.image_paths is not None else f"row {image}"
        return path, true, self.words(true), answer, self.words(answer)

    def same_concept_percent(self, row: int, images: np.ndarray) -> float | None:
        """Return the percentage of predictions that are the true concept; None when the data sets share no concept."""
        if not set(self.true_names) & set(self.predicted_names) or not len(images):
            return None
        pairs = zip(self.labels[images], self.applied.predicted[row, images], strict=True)
        return 100 * float(np.mean([self.true_names[a] == self.predicted_names[b] for a, b in pairs]))


def write_lists(stage: Path, images: Images) -> list[str]:
    """Write one list of confidently predicted images per classifier, and return the names of the files."""
    names, applied = [], images.applied
    for row, (seed, confident) in enumerate(images.lists.items()):
        names.append(f"confident_seed-{seed}.csv")
        cells = [
            (
                *images.describe(image, row),
                repr(float(applied.confidence[row, image])),
                f"{applied.log_odds[row, image]:.3f}",
            )
            for image in confident
        ]
        write_csv(stage / names[-1], _HEADER, cells)
    return names


def write_confident_in_any(path: Path, images: Images) -> list[tuple[object, ...]]:
    """Write the images with a confident prediction of any classifier, and return the rows of the table."""
    mean = images.applied.confidence[:-1].mean(axis=0)
    log_odds = images.applied.log_odds[:-1].mean(axis=0)
    n_seeds = images.n_seeds
    cells = [
        (*images.describe(image, -1), repr(float(mean[image])), f"{log_odds[image]:.3f}", int(n_seeds[image]))
        for image in confident_anywhere(images.applied, n_seeds)
    ]
    write_csv(path, (*_HEADER, "n_seeds"), cells)
    return cells


def write_histogram(path: Path, applied: Applied, seeds: Sequence[int]) -> list[float]:
    """Write the number of images per bin of confidence, and return the means over seeds."""
    edges = np.linspace(0, 1, _BINS + 1)
    counts = [np.histogram(row, bins=edges)[0] for row in applied.confidence]
    mean = np.mean(counts[:-1], axis=0)
    write_csv(
        path,
        ("low", "high", *(f"seed_{seed}" for seed in seeds), "mean", "averaged_probabilities"),
        [
            (
                f"{edges[k]:.2f}",
                f"{edges[k + 1]:.2f}",
                *(int(c[k]) for c in counts[:-1]),
                mean[k],
                int(counts[-1][k]),
            )
            for k in range(_BINS)
        ],
    )
    return [float(value) for value in mean]


def write_sheet(
    job: AnalysisContext,
    images: Images,
    rows: Sequence[tuple[object, ...]],
    root: Path,
    trained_on: str | None,
) -> int | None:
    """Write a contact sheet of the first ``rows``, and return the number of unreadable images; None without a sheet."""
    if images.image_paths is None:
        logger.warning("%sno contact sheet: the test features have no list of their images", job.label)
        return None

    def first_word(words: object) -> str:
        return str(words).split(",")[0]

    request, n_runs = job.request, len(images.lists)
    tiles = []
    for image, _, true, _, predicted, confidence, _, n_seeds in rows[: request.args.sheet_images]:
        seeds = f", {n_seeds} of {n_runs} seeds" if n_runs > 1 else ""
        caption = (first_word(true), f"-> {first_word(predicted)}", f"{float(str(confidence)):.4f}{seeds}")
        tiles.append(contact_sheet.Tile(str(image), caption))
    title = (
        f"{request.model or ''} {request.dataset or ''} under the classifier of {trained_on or 'another data set'}: "
        f"{len(tiles)} of {len(rows)} images with confidence above {request.args.confidence:g}"
    ).strip()
    unreadable = contact_sheet.write(job.stage, tiles, open_store(root), title=title)
    if unreadable:
        logger.warning(
            "%s%d images of the contact sheet cannot be read below %s", job.label, unreadable, root
        )
    return unreadable
