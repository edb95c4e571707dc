"""Flags that several commands share: lists with spaces or commas, exported variables, copies for each."""

import pytest

from cog.commands import flags, print_results
from cog.errors import CogError


@pytest.fixture
def parse(monkeypatch):
    for name in flags.PLACES:
        monkeypatch.delenv(name, raising=False)

    def parse_(*words):
        parser = flags.parser("Do it.", "--model sup_resnet50", "--model dino_resnet50 --seeds 22")
        flags.add(parser, "model", required=True)
        flags.add(parser, "dataset", "n_shot", "seeds", "models_root_dir", "output_dir", *flags.IMAGES)
        return parser.parse_args(words)

    return parse_


@pytest.mark.parametrize("words", ["1 8 0", "1,8,all", "1, 8,, ALL 8", "1 None 8 0"])
def test_lists_have_spaces_or_commas(parse, words):
    args = parse("--model", "a_b,c_d", "e_f", "--n_shot", *words.split())
    assert (args.model, args.n_shot, args.seeds) == (["a_b", "c_d", "e_f"], [1, 8, 0], None)


def test_places_come_from_exported_variables_unless_given(parse, monkeypatch):
    monkeypatch.setenv("models_root_dir", "/models")
    monkeypatch.setenv("in1k_images_root", "None")
    args = parse("--model", "a_b", "--dataset", "in1k", "--models_root_dir", "None")
    assert (args.models_root_dir, flags.image_sources(args).values["in1k_images_root"]) == ("/models", None)
    assert parse("--model", "a_b", "--models_root_dir", "/other").models_root_dir == "/other"
    roots = [print_results.parse(words).models_root_dir for words in ([], ["--published"])]
    assert roots == ["/models", None], "exported, unless another source is named"


def test_each_combination_has_a_copy(parse):
    args = parse("--model", "a_b", "c_d", "--dataset", "x", "y")
    copies = flags.each(args, "model", "dataset", of_one=("output_dir",))
    assert [(copy.model, copy.dataset) for copy in copies] == [(m, d) for m in ("a_b", "c_d") for d in "xy"]
    args.output_dir = "out"
    with pytest.raises(CogError, match="--output_dir is of one output"):
        flags.each(args, "model", "dataset", of_one=("output_dir",))
