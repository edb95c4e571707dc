"""The declarations of data sets: every one of them works wherever data sets are named."""

import os
import pickle
import subprocess

import pytest
import tiny

from cog import constants
from cog.data import datasets
from cog.data.datasets import ImageSources
from cog.errors import CogError


def write_images(name: str, root) -> dict[str, str]:
    """Write two classes with two images per split; return the values of the flags."""
    declaration = datasets.find(name)
    values = {declaration.root: root / "images"}
    rows: dict[str, dict[str, list[str]]] = {}
    for wnid in ("n00000002", "n00000001"):
        for index, split in enumerate(constants.SPLITS):
            folder = values[declaration.root] / declaration.folders.get(split, "") / wnid
            folder.mkdir(parents=True, exist_ok=True)
            names = [f"{wnid}_{2 * index + i}.JPEG" for i in range(2)]
            for file in names:
                (folder / file).write_bytes(file.encode())
            rows.setdefault(wnid, {})[split] = [f"{wnid}/{file}" for file in reversed(names)]
    levels = [list(rows) if name == f"cog_l{k}" else ["n00000009"] for k in range(1, 6)]
    for flag, content in zip(declaration.files, (levels, rows), strict=False):
        values[flag] = root / f"{flag}.pkl"
        values[flag].write_bytes(pickle.dumps(content))
    return {flag: str(path) for flag, path in values.items()}


@pytest.mark.parametrize("name", datasets.names())
def test_every_data_set_has_flags_and_images(name, tmp_path):
    values = write_images(name, tmp_path)
    for flag in values:
        with pytest.raises(CogError, match=rf"^--dataset {name} needs --{flag}$"):
            ImageSources({**values, flag: None}).require(name)
    for index, split in enumerate(constants.SPLITS):
        images = ImageSources(values).list_images(name, split)
        assert images.classes == ("n00000001", "n00000002") and images.labels.tolist() == [0, 0, 1, 1]
        expected = [f"{wnid}_{2 * index + i}.JPEG" for wnid in images.classes for i in range(2)]
        assert [os.path.basename(images.file(row)) for row in range(4)] == expected
        assert [images.read(row).decode() for row in range(4)] == expected
        assert len(images.first(10**9)) == 4


@pytest.mark.parametrize("name", ["in1k", "in1k_blurred", "cog_l1"])
def test_other_counts_than_the_official_are_reported(name):
    for split, official in datasets.find(name).counts.items():
        low, high = official.per_class or (1, 1)
        counts = [low] * (official.n_classes - 1) + [high]
        if official.n_images is not None:
            counts[0] += official.n_images - sum(counts)
        assert datasets.count_differences(tiny.empty_list(name, split, counts)) == []
        (line,) = datasets.count_differences(tiny.empty_list(name, split, [*counts[:-1], high + 1]))
        assert line.startswith(f"{name} {split}: expected ")
        fewer = datasets.count_differences(tiny.empty_list(name, split, counts[1:]))
        assert f"expected {official.n_classes} " in fewer[0] and f"{official.n_classes - 1}" in fewer[0]


NEW = """
from cog.data import datasets
row = datasets.Dataset("places", "places_root", "{train,val}/<class>/*", {"train": "train", "test": "val"})
datasets.DATASETS["places"] = row
from cog.commands import extract_features
extract_features.main()
"""


@pytest.mark.slow
def test_a_further_data_set_is_one_declaration(repository, python, workshop, tmp_path):
    for folder in ("train", "val"):
        tiny.write_class_folders(tmp_path / "places" / folder)
    words = f"--dataset places --models_root_dir {workshop.models} --model tiny_net --split train test"
    words += f" --model_loader {workshop.loader}:load_my_model FT_EXTRACT.N_WORKERS 0"
    places = {"PYTHONPATH": str(repository), "places_root": str(tmp_path / "places")}
    subprocess.run([python, "-c", NEW, *words.split()], env={**os.environ, **places}, check=True)
    assert (workshop.models / "tiny/net/places/features_test/X_Y.pth").is_file()


def test_official_counts_of_blurred_images(shared_dir):
    """Of the paper's Table 4."""
    published = (shared_dir / "paper/cog_v2_in1k_blurred_counts.csv").read_text()
    for split, counts in datasets.DATASETS["in1k_blurred"].counts.items():
        assert f"IN-1K-blurred,{'val' if split == 'test' else split},{counts.n_images}\n" in published
