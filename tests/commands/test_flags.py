"""Flags that several commands share: lists with spaces or commas, exported variables, one output at a time."""

import pytest

from cog.commands import flags
from cog.errors import CogError


@pytest.fixture
def parser(monkeypatch):
    for name in ("models_root_dir", "in1k_images_root"):
        monkeypatch.delenv(name, raising=False)

    def make():
        made = flags.parser("Do it.", "--model sup_resnet50", "--model dino_resnet50 --seeds 22")
        flags.add(made, "model", "split", required=True)
        flags.add(made, "dataset", "n_shot", "seeds", "models_root_dir", "output_dir")
        flags.add_images(made)
        return made

    return make


@pytest.mark.parametrize("words", ["1 8 0", "1,8,all", "1, 8,, ALL 8", "1 None 8 0"])
def test_lists_have_spaces_or_commas(parser, words):
    args = parser().parse_args(["--model", "a_b,c_d", "e_f", "--split", "test", "--n_shot", *words.split()])
    assert (args.model, args.n_shot, args.seeds) == (["a_b", "c_d", "e_f"], [1, 8, 0], None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--split tset", "--split: invalid choice: 'tset'"),
        ("--split ,", "--split: expected at least one value"),
        ("--split test --seeds 22,x", "--seeds: 'x' is not a whole number"),
        ("--split test --n_shot -1", "--n_shot: '-1' is not a whole number"),
    ],
)
def test_bad_value_is_one_line(parser, capsys, words, says):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--model", "a_b", *words.split()])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and says in error and error.count("\n") == 1


def test_places_come_from_exported_variables_unless_given(parser, monkeypatch):
    monkeypatch.setenv("models_root_dir", "/models")
    monkeypatch.setenv("in1k_images_root", "None")
    words = ["--model", "a_b", "--split", "test"]
    args = parser().parse_args([*words, "--models_root_dir", "None"])
    assert (args.models_root_dir, flags.image_sources(args).values["in1k_images_root"]) == ("/models", None)
    assert parser().parse_args([*words, "--models_root_dir", "/other"]).models_root_dir == "/other"


def test_help_begins_with_examples(parser):
    lines = parser().format_help().splitlines()
    assert "--model sup_resnet50" in lines[0] and "--model dino_resnet50 --seeds 22" in lines[1]


def test_each_combination_has_a_copy(parser):
    args = parser().parse_args(["--model", "a_b", "c_d", "--dataset", "x", "y", "--split", "test"])
    copies = flags.each(args, "model", "dataset", of_one=("output_dir",))
    assert [(copy.model, copy.dataset) for copy in copies] == [
        ("a_b", "x"),
        ("a_b", "y"),
        ("c_d", "x"),
        ("c_d", "y"),
    ]
    args.output_dir = "out"
    with pytest.raises(CogError, match="--output_dir is of one output"):
        flags.each(args, "model", "dataset", of_one=("output_dir",))
