"""What tests of models share."""

from __future__ import annotations

from pathlib import Path

import pytest
import random_networks


@pytest.fixture(scope="module")
def quick_initial_values():
    """Networks begin with numbers at hand, since drawing them takes most of the time and all are replaced."""
    with random_networks.quick_initial_values():
        yield


@pytest.fixture
def extract(image_tree, tmp_path):
    """Return a function that runs extract_features.py on the test images of ``image_tree``, in ``tmp_path``.

    It takes the name of the model and further arguments, and returns the output folder.
    """
    from cog.commands import extract_features

    def run(model: str, *options: str) -> Path:
        command = [
            "--model",
            model,
            "--models_root_dir",
            str(tmp_path),
            "--dataset",
            "birds",
            "--split",
            "test",
            "--images_root",
            str(image_tree),
            "--device",
            "cpu",
            *options,
        ]
        assert extract_features.main(command) == 0
        return tmp_path / model.replace("_", "/", 1) / "birds/features_test"

    return run
