"""The declarations of data sets: every one of them works wherever data sets are named."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import tiny

from cog import constants, paths
from cog.commands import analyze_features, extract_features, finetune, image_flags, logreg, study
from cog.data import datasets
from cog.data.datasets import Counts, Dataset, ImageSources
from cog.errors import CogError
from cog.reporting.figures import panels
from cog.reporting.tables import accuracies
from cog.reporting.tables.layout import TableStyle
from cog.reporting.tables.pivot import Averages
from cog.results import labels
from cog.results.scores import SeedAverage, dataset_key
from cog.study import units

#: A data set that only these tests declare: all that they ask of the others holds for it.
NEW = Dataset(
    name="scenes",
    label="Scenes",
    title="365 scenes",
    root="scenes_images_root",
    layout="{learn,exam}/<class>/*.jpg",
    folders={"train": "learn", "test": "exam"},
    counts={"train": Counts(3, 12), "test": Counts(3, per_class=(2, 2))},
)
#: What tables and figures call them.
LABELS = {
    "in1k": "IN-1K",
    "in1k_blurred": "IN-1K-b",
    **{f"cog_l{level}": f"L{level}" for level in range(1, 6)},
    "scenes": "Scenes",
}


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setitem(datasets.DATASETS, NEW.name, NEW)
    return datasets.DATASETS


def help_of(command, capsys) -> str:
    with pytest.raises(SystemExit):
        command.parse_args(["--help"])
    return " ".join(capsys.readouterr().out.split())


def write_images(name: str, root) -> dict[str, str]:
    """Write two classes with two images per split in the layout of a data set; return the values of its flags."""
    declaration = datasets.find(name)
    values = {declaration.root: root / "images"}
    rows: dict[str, dict[str, np.ndarray]] = {}
    for wnid in ("n00000002", "n00000001"):
        for index, split in enumerate(constants.SPLITS):
            folder = values[declaration.root] / declaration.folders.get(split, "") / wnid
            folder.mkdir(parents=True, exist_ok=True)
            names = [f"{wnid}_{2 * index + i}.JPEG" for i in range(2)]
            for file in names:
                (folder / file).write_bytes(b"x")
            rows.setdefault(wnid, {})[split] = np.array([f"{wnid}/{file}" for file in names])
    if declaration.name == datasets.LEVELS:
        contents = {
            "cog_levels_mapping_file": [sorted(rows)] * 5,
            "cog_concepts_split_file": rows,
        }
        for flag, content in contents.items():
            values[flag] = root / f"{flag}.pkl"
            values[flag].write_bytes(pickle.dumps(content))
    return {flag: str(path) for flag, path in values.items()}


def test_the_declared_data_sets_are_those_with_a_label_here(declared):
    assert datasets.names() == list(LABELS)
    assert set(constants.DATASETS) < set(datasets.names())


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("name", list(LABELS))
class TestEveryDataset:
    """Holds for each declaration: a new one is tested by being declared."""

    def test_the_declaration_is_complete(self, name):
        declaration = datasets.find(name)
        assert constants.is_plain_name(name) and name in declaration.members
        assert declaration.title and declaration.layout
        assert all(re.fullmatch(r"[a-z0-9_]+_(root|file)", flag) for flag in declaration.flags)
        assert declaration.root.endswith("images_root")
        assert set(declaration.folders) in (set(), set(constants.SPLITS))
        assert set(declaration.counts) <= set(constants.SPLITS)

    def test_name_and_flags_are_in_the_help_of_every_command(self, name, capsys):
        declaration = datasets.find(name)
        for command in (extract_features, finetune, study):
            text = help_of(command, capsys)
            for flag, about in declaration.flags.items():
                assert f"--{flag} {flag.upper()} {about}" in text, command.__name__
        for command in (extract_features, finetune, logreg, analyze_features):
            assert re.search(rf"\b{name}\b", help_of(command, capsys)), command.__name__

    def test_a_flag_that_is_not_given_is_named(self, name, tmp_path):
        values = write_images(name, tmp_path)
        for flag in values:
            with pytest.raises(CogError, match=rf"^--dataset {name} needs --{flag}$"):
                ImageSources({**values, flag: None}).require(name)
            absent = {**values, flag: str(tmp_path / "absent")}
            with pytest.raises(CogError, match=rf"^--{flag} .*absent does not exist"):
                ImageSources(absent).require(name)

    def test_images_of_both_splits_are_listed_from_the_flags(self, name, tmp_path):
        values = write_images(name, tmp_path)
        parser = extract_features.parse_args(
            ["--model", "a_b", "--dataset", name, "--split", "test"]
            + [f"--{flag}={value}" for flag, value in values.items()]
        )
        sources = image_flags.sources(parser)
        for index, split in enumerate(constants.SPLITS):
            images = sources.list_images(name, split)
            assert (images.dataset, images.split) == (name, split)
            assert images.classes == ("n00000001", "n00000002") and images.labels.tolist() == [0, 0, 1, 1]
            for row, file in enumerate(map(images.file, range(4))):
                assert file.endswith(f"{images.classes[row // 2]}_{2 * index + row % 2}.JPEG")
                assert (images.root / file).is_file()

    def test_other_counts_than_the_official_are_reported(self, name):
        for split, official in datasets.find(name).counts.items():
            low, high = official.per_class or (1, 1)
            counts = [low] * (official.n_classes - 1) + [high]
            if official.n_images is not None:
                counts[0] += official.n_images - sum(counts)
            assert datasets.count_differences(tiny.empty_list(name, split, counts)) == []
            (line,) = datasets.count_differences(tiny.empty_list(name, split, [*counts[:-1], high + 1]))
            assert line.startswith(f"{name} {split}: expected ")
            fewer = datasets.count_differences(tiny.empty_list(name, split, counts[1:]))
            assert (
                f"expected {official.n_classes} " in fewer[0]
                and f"found {official.n_classes - 1}" in fewer[0]
            )

    def test_label_and_order_in_tables_and_figures(self, name):
        assert labels.dataset_label(name) == panels.dataset_label(name) == LABELS[name]
        others = ["birds", "cog_l7", "in1k_2", *reversed(LABELS)]
        after_levels = list(LABELS).index("cog_l5") + 1
        ordered = [*list(LABELS)[:after_levels], "cog_l7", *list(LABELS)[after_levels:], "birds", "in1k_2"]
        assert sorted(others, key=dataset_key) == ordered
        cells = [SeedAverage("a_b", dataset, "logreg", "top1", 0, 50.0, 0.5) for dataset in (*others, name)]
        averages = Averages(cells[:-1])
        assert averages.datasets == ordered
        view = accuracies.of_accuracies(
            averages, accuracies.accuracy, metrics=("top1",), layout="datasets", style=TableStyle()
        )
        assert list(view.tables[0].columns) == ordered

    def test_units_of_a_study(self, name, tmp_path):
        chosen = units.Study(tmp_path, ("a_net",), datasets=(name,), seeds=(1,), n_shots=(0,))
        folders = [
            unit.folder(tmp_path).relative_to(tmp_path / "a/net").as_posix() for unit in chosen.units()
        ]
        assert folders == [f"{name}/features_train", f"{name}/features_test", f"{name}/eval_logreg/seed-1"]
        for dataset in ("birds", name):
            paths.ModelDir(tmp_path, "a_net").features(dataset, "test").mkdir(parents=True)
        in_study = units.find_datasets(tmp_path, ["a_net"])
        assert in_study.index(name) < in_study.index("birds")


def test_a_name_that_is_not_declared_needs_images_root(tmp_path):
    with pytest.raises(
        CogError, match="--dataset birds is not one of in1k, .*, cog_l5; .* --images_root DIR"
    ):
        ImageSources({}).require("birds")
    values = {"images_root": str(tmp_path)}
    assert ImageSources(values).require("birds") == values
    both = ImageSources(values | {"in1k_images_root": str(tmp_path.parent)})
    assert both.require("in1k") == {"in1k_images_root": str(tmp_path.parent)}, (
        "declared ones keep their images"
    )
    with pytest.raises(CogError, match="--in1k_images_root; --images_root .* is for data sets of your own"):
        ImageSources(values).require("in1k")
