"""Concepts: the WordNet id of each label, names, and similarity to IN-1K."""

from __future__ import annotations

import csv
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cog import constants, paths
from cog.data.wnids import is_wnid
from cog.errors import CogError
from cog.runtime import files

logger = logging.getLogger(__name__)


# Prefix of the name of a class whose WordNet id is not known.
_UNNAMED = "class "


def class_names(
    dataset: str | None,
    *,
    n_classes: int,
    image_paths: Sequence[str] | None = None,
    labels: np.ndarray | None = None,
    levels_file: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Return the name (WordNet id) of each label 0..C-1.

    Names are those of the folders of the images where the images are known. Otherwise they follow from the definition
    of the data set: the levels file, or the ids of IN-1K, in sorted order. Without either, a name is ``class 17``.

    Args:
        dataset: name of the data set.
        n_classes: number of classes, C.
        image_paths: path of the image of each row.
        labels: label of each row, int64.
        levels_file: ``cog_levels_mapping_file.pkl``.

    Raises:
        CogError: a levels file with another number of concepts; images of several classes under one label.
    """
    if image_paths is not None and labels is not None and all("/" in path for path in image_paths[:1]):
        by_label: dict[int, str] = {}
        for label, path in zip(labels.tolist(), image_paths, strict=True):
            folder = path.split("/")[0]
            if by_label.setdefault(label, folder) != folder:
                raise CogError(
                    f"label {label} of {dataset} belongs to images of two classes, {by_label[label]} and {folder}; "
                    "extract the features again (--overwrite)"
                )
        return [by_label.get(label, f"{_UNNAMED}{label}") for label in range(max(n_classes, *by_label))]
    level = constants.cog_level(dataset) if dataset else None
    if level is not None and levels_file is not None:
        from cog.data.level_files import read_levels

        levels = read_levels(levels_file)
        if level > len(levels) or len(levels[level - 1]) != n_classes:
            size = f"{len(levels[level - 1])} concepts" if level <= len(levels) else "no such level"
            raise CogError(
                f"{levels_file}: {dataset} has {size}, and the features have {n_classes} classes; give "
                "the levels file of the features"
            )
        return sorted(levels[level - 1])
    if dataset == constants.IN1K:
        from cog.data.wnids import IN1K_LIST

        wnids = IN1K_LIST.read_text(encoding="utf-8").split()
        if len(wnids) == n_classes:
            return sorted(wnids)
    return [f"{_UNNAMED}{label}" for label in range(n_classes)]


def are_unnamed(names: Sequence[str]) -> bool:
    """Return whether all names are those of unknown classes, such as ``class 17``, from :func:`class_names`."""
    return all(name.startswith(_UNNAMED) for name in names)


class Words:
    """A function from WordNet ids to the words of concepts, if WordNet is installed.

    Args:
        wordnet_dir: folder of WordNet 3.0, where its absence is an error; None for the usual places.

    Raises:
        CogError: the folder does not have WordNet.
    """

    def __init__(self, wordnet_dir: str | None = None) -> None:
        from cog.levels.wordnet import load_wordnet

        self._graph = None
        try:
            self._graph = load_wordnet(wordnet_dir)
        except CogError as error:
            if wordnet_dir is not None:
                raise
            logger.info("concepts are shown by their ids alone: %s", error)

    def __call__(self, wnid: str) -> str:
        """Return the words of a synset; the id itself if WordNet does not have it."""
        if self._graph is None or wnid not in self._graph:
            return wnid
        return self._graph.words(self._graph.index(wnid))


@dataclass(frozen=True)
class Concept:
    """A row of ``levels.csv``.

    Attributes:
        wnid: WordNet id.
        names: words of the concept.
        similarity: similarity to the most similar seen concept.
        nearest: WordNet id of the most similar seen concept.
    """

    wnid: str
    names: str
    similarity: float
    nearest: str


def read_levels_csv(path: str | os.PathLike[str]) -> dict[str, Concept]:
    """Read the table of ``build_levels.py``, by WordNet id.

    Raises:
        CogError: a missing file or column, a similarity that is not finite, two rows of one concept, or a table of
            ``build_levels.py --limit``.
    """
    file = files.require_file(path, "--levels_csv")
    if limit := paths.limit_of(file):
        raise CogError(
            f"--levels_csv {file} was made with --limit {limit}: it is a test of build_levels.py, not levels; give a "
            "levels.csv made without --limit"
        )
    concepts: dict[str, Concept] = {}
    try:
        with open(file, encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            missing = {"wnid", "similarity", "level"} - set(reader.fieldnames or ())
            if missing:
                raise CogError(
                    f"--levels_csv {path} has no column {', '.join(sorted(missing))}; expected levels.csv of "
                    "build_levels.py"
                )
            for number, row in enumerate(reader, start=2):
                place = f"--levels_csv {path}, line {number}"
                concept = _concept(row, place)
                before = concepts.setdefault(concept.wnid, concept)
                if before.similarity != concept.similarity:
                    raise CogError(
                        f"{place}: {concept.wnid} has similarity {concept.similarity:g} here and "
                        f"{before.similarity:g} before, expected one row per concept"
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CogError(f"cannot read --levels_csv {path}: {error}") from error
    if not concepts:
        raise CogError(f"--levels_csv {path} has no rows")
    return concepts


def _concept(row: Mapping[str, str | None], place: str) -> Concept:
    text = row["similarity"] or ""
    try:
        similarity = float(text)
    except ValueError:
        similarity = math.nan
    if not math.isfinite(similarity) or not is_wnid(row["wnid"] or ""):
        hint = "; random levels have no similarities" if not text else ""
        raise CogError(
            f"{place}: {row['wnid']!r} with similarity {text!r}, expected an id and a number{hint}"
        )
    wnid = str(row["wnid"])
    return Concept(wnid, row.get("names") or wnid, similarity, row.get("nearest_seen") or "")
