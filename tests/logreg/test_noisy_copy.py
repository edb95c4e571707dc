"""A copy of a real network's features with a little noise: no verdict on any data set; a worse copy is told."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import cog
from cog.commands import extract_features
from cog.features import feature_files
from cog.results.comparison import difference, judge
from cog.results.scores import average

DATASETS = ("in1k", "cog_l1", "cog_l2", "cog_l3", "cog_l4", "cog_l5")

#: Of each coordinate of a unit vector of 1280.
NOISE = 0.018

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def features(shared_dir, tmp_path_factory):
    """Features of six data sets of 17 concepts by a trained MobileNet V2."""
    miniature, root = shared_dir / "miniature", tmp_path_factory.mktemp("noisy")
    model = root / "mobilenet/v2_100"
    model.mkdir(parents=True)
    (model / "model.ckpt").symlink_to(miniature / "models/mobilenet/v2_100/model.ckpt")
    extract_features.main(
        ["--model", "mobilenet_v2_100", "--models_root_dir", str(root), "--dataset", *DATASETS,
         "--split", "train", "test", "--model_loader", f"{miniature / 'real_nets.py'}:load_my_model",
         "--in1k_images_root", str(miniature / "in1k"), "--imagenet_images_root", str(miniature / "in21k"),
         "--cog_levels_mapping_file", str(miniature / "cog_levels_mapping_file_balanced.pkl"),
         "--cog_concepts_split_file", str(miniature / "cog_concepts_split_file.pkl"), "--device", "cpu",
         "FT_EXTRACT.IMAGE_NORM.MEAN", "[0.5, 0.5, 0.5]", "FT_EXTRACT.IMAGE_NORM.STD", "[0.5, 0.5, 0.5]",
         "FT_EXTRACT.IMAGE_RESIZE_SIZE", "128", "FT_EXTRACT.IMAGE_CROP_SIZE", "112"]
    )  # fmt: skip
    return {
        dataset: [feature_files.load(model / dataset / f"features_{split}") for split in ("train", "test")]
        for dataset in DATASETS
    }


def evaluated(features, noise, model):
    """Averages over five seeds, by data set."""
    scores = []
    for number, (dataset, parts) in enumerate(features.items()):
        generator = torch.Generator().manual_seed(number)
        noisy = []
        for part in parts:
            x = torch.nn.functional.normalize(part.x.float())
            x = x + noise * torch.randn(x.shape, generator=generator)
            noisy.append(dataclasses.replace(part, x=x, name=model))
        scores += cog.evaluate(None, *noisy, dataset=dataset, device="cpu", n_trials=4, n_epochs=30)
    return {a.dataset: a for a in average(scores) if a.metric == "top1"}


def test_a_little_noise_is_not_told_and_a_lot_is(features):
    base = evaluated(features, 0.0, "mobilenet_v2")
    found = {
        noise: judge(difference(a, base[name]) for name, a in evaluated(features, noise, "noisy_v2").items())
        for noise in (NOISE, 10 * NOISE)
    }
    assert all(item.seeds and len(item.seeds) == 5 and item.low is not None for item in found[NOISE])
    assert {item.reading for item in found[NOISE]} == {"cannot be told apart"}
    assert {item.reading for item in found[10 * NOISE]} == {"lower"}
