"""Rows of the long table of results, as runs give them."""

from array import array

import numpy as np

from cog.results.concept_counts import ConceptCounts
from cog.results.frame import average, scores_of


def rows(model, values=None, *, correct=None, images=50, image_list=None, seeds=None, **more):
    """Return a row per seed with these accuracies, or these numbers of correct predictions ``(S, C)``."""
    counts = [None] * len(values if correct is None else np.atleast_2d(correct))
    if correct is not None:
        correct = np.atleast_2d(correct)
        values = (100 * correct.mean(axis=1) / images).tolist()
        counts = [ConceptCounts(array("I", row.tolist()), images, image_list) for row in correct]
    place = {"source": "runs", "model": model, "dataset": "in1k", "evaluation": "logreg", "n_shot": 0}
    common = {**place, "metric": "top1", "pretraining": "IN-1K", **more}
    seeds = range(len(values)) if seeds is None else seeds
    triples = zip(seeds, values, counts, strict=True)
    return [{**common, "seed": seed, "value": value, "correct": count} for seed, value, count in triples]


def stated(model, value, std=None, **more):
    """Return the row of a mean without seeds."""
    return [{**row, "std": std, "seed": None} for row in rows(model, [value], **more)]


def means_of(*groups, seeds=()):
    """Return the means of rows."""
    return average(scores_of([row for group in groups for row in group]), seeds)
