"""Models on two levels, for analyses of their classifiers."""

from __future__ import annotations

from pathlib import Path

import pytest
from analyzed_models import LEVEL, write_features, write_levels_csv, write_run


@pytest.fixture
def models(tmp_path) -> Path:
    root = tmp_path / "models"
    root.mkdir()
    return root


@pytest.fixture
def levels(models, tmp_path):
    """Two levels of three concepts, two seeds; accuracy falls with similarity."""
    hits = {"cog_l1": ([10, 8, 7], [9, 9, 6]), "cog_l2": ([6, 5, 1], [5, 4, 2])}
    for dataset, wnids in LEVEL.items():
        write_features(models, dataset, "test", wnids, n=10)
        for seed, right in zip((22, 37), hits[dataset], strict=True):
            write_run(models, dataset, seed=seed, hits=right)
    similarities = zip([*LEVEL["cog_l1"], *LEVEL["cog_l2"]], [0.9, 0.8, 0.8, 0.5, 0.4, 0.1], strict=True)
    return models, write_levels_csv(tmp_path / "levels.csv", dict(similarities)), hits
