"""Averages over seeds with given values, as computed from runs."""

from __future__ import annotations

import dataclasses
from array import array

import numpy as np

from cog.results.concept_counts import ConceptCounts
from cog.results.scores import SeedAverage


def paired_cell(model, values, *, dataset="in1k", n_shot=0, seeds=None, source="runs"):
    """Return an average of seeds with these values."""
    seeds = tuple(seeds or range(len(values)))
    mean, std = float(np.mean(values)), float(np.std(values))
    return SeedAverage(
        model, dataset, "logreg", "top1", n_shot, mean, std, seeds, by_seed=tuple(values), source=source
    )


def counted_cell(model, correct, *, images=50, dataset="in1k", seeds=None):
    """Return an average of runs with these numbers of correct predictions ``(S, C)``."""
    correct = np.atleast_2d(correct)
    values = 100 * correct.mean(axis=1) / images
    cell = paired_cell(model, values.tolist(), dataset=dataset, seeds=seeds)
    counts = (ConceptCounts(array("I", row.tolist()), images) for row in correct)
    return dataclasses.replace(cell, concepts=tuple(counts))
