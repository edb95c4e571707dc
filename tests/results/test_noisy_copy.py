"""A copy of a real network's features with a little noise: no verdict; a worse copy is told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from frames import means_of, rows

import cog
from cog.constants import DATASETS, SPLITS
from cog.results import compare
from cog.results.frame import average

#: Of each coordinate of a unit vector of 1280.
NOISE = 0.018


def test_a_copy_is_not_told_apart_and_three_points_are():
    """1000 concepts of 50 images, five seeds, six data sets."""
    generator = np.random.default_rng(0)
    groups = []
    for dataset in DATASETS:
        concepts = generator.beta(4, 2, 1000)
        for model, shift in (("a_net", 0.0), ("a_copy", 0.0), ("a_worse", -0.03)):
            correct = generator.binomial(50, np.clip(concepts + shift, 0, 1), (5, 1000))
            groups.append(rows(model, correct=correct, dataset=dataset))
    told = compare.relative_to(means_of(*groups), "a_net").groupby("model")["reading"].agg(set).to_dict()
    assert told == {"a_copy": {"cannot be told apart"}, "a_worse": {"lower"}}


@pytest.fixture(scope="module")
def features(shared_dir, tmp_path_factory):
    """Features of six data sets of 17 concepts by a trained MobileNet V2."""
    from cog.commands import extract_features
    from cog.features import feature_files

    miniature, root = shared_dir / "miniature", tmp_path_factory.mktemp("noisy")
    model = root / "mobilenet/v2_100"
    model.mkdir(parents=True)
    (model / "model.ckpt").symlink_to(miniature / "models/mobilenet/v2_100/model.ckpt")
    words = (
        f"--model mobilenet_v2_100 --models_root_dir {root} --split train test --dataset "
        f"{' '.join(DATASETS)} --model_loader {miniature / 'real_nets.py'}:load_my_model "
        f"--in1k_images_root {miniature / 'in1k'} --imagenet_images_root {miniature / 'in21k'} "
        f"--cog_levels_mapping_file {miniature / 'cog_levels_mapping_file_balanced.pkl'} "
        f"--cog_concepts_split_file {miniature / 'cog_concepts_split_file.pkl'} "
        "FT_EXTRACT.IMAGE_RESIZE_SIZE 128 FT_EXTRACT.IMAGE_CROP_SIZE 112 "
        "FT_EXTRACT.IMAGE_NORM.MEAN [0.5,0.5,0.5] FT_EXTRACT.IMAGE_NORM.STD [0.5,0.5,0.5]"
    )
    assert not extract_features.main(words.split())
    files = {name: [model / name / f"features_{split}/X_Y.pth" for split in SPLITS] for name in DATASETS}
    return {name: list(map(feature_files.load, pair)) for name, pair in files.items()}


def evaluated(features, noise, model):
    """Scores of five seeds."""
    import torch

    scores = []
    for number, (dataset, parts) in enumerate(features.items()):
        generator, noisy = torch.Generator().manual_seed(number), []
        for part in parts:
            x = torch.nn.functional.normalize(part.x.float())
            x = x + noise * torch.randn(x.shape, generator=generator)
            noisy.append(dataclasses.replace(part, x=x, name=model))
        scores.append(cog.evaluate(None, *noisy, dataset=dataset, device="cpu", n_trials=4, n_epochs=30))
    return pd.concat(scores).assign(model=model)


@pytest.mark.slow
def test_a_little_noise_is_not_told_and_a_lot_is(features):
    base = evaluated(features, 0.0, "mobilenet_v2")
    for noise, reading in ((NOISE, "cannot be told apart"), (10 * NOISE, "lower")):
        scores = pd.concat([base, evaluated(features, noise, "noisy_v2")])
        view = compare.relative_to(average(scores[scores["metric"] == "top1"]), "mobilenet_v2")
        assert set(view["reading"]) == {reading} and view["low"].notna().all()
        assert (view["common_seeds"] == "22 37 45 77 93").all() and len(view) == 6
