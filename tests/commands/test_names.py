"""Models and data sets by the labels of tables and figures."""

from __future__ import annotations

import argparse

import pytest

from cog.commands import (
    doctor,
    logreg,
    names,
    other_levels,
    pack,
    print_results,
    resplit_features,
    status,
)
from cog.data import datasets
from cog.errors import CogError
from cog.models.names import find_model
from cog.models.sources import find_spec
from cog.models.zoo import MODELS


def test_every_model_is_known_by_name_and_label():
    labels = [spec.paper.label for spec in MODELS.values()]
    for name, label in zip(MODELS, labels, strict=True):
        for text in (name, name.upper(), label, label.lower(), label.replace("-", " ")):
            assert find_model(text) == name
        short = label.partition("-")[2] if label[1:2] == "-" else label
        assert find_model(short) == name  # DINO of s-DINO
    assert find_spec("DINO").name == "dino_resnet50"


def test_every_data_set_is_known_by_name_and_label():
    for name in datasets.names():
        for text in (name, datasets.label(name), datasets.label(name).lower(), name.upper()):
            assert names.find_dataset(text) == name
    for name in ("birds", "L9", "cog_l7", "deit_*", "../x"):
        assert names.find_dataset(name) == name


def test_own_names_and_patterns_stay(workshop):
    for text in ("tiny_net", "mine_new", "timm_resnet18", "deit_*", "*", "deit_s", "resnet_50", "d_clip"):
        assert find_model(text, root=workshop.models) == text
    (workshop.models / "Sup" / "ResNet50").mkdir(parents=True)
    assert find_model("Sup_ResNet50") == "sup_resnet50"
    assert find_model("Sup_ResNet50", root=workshop.models) == "Sup_ResNet50"
    assert find_model("Sup_VGG19", has_loader=True) == "Sup_VGG19"
    (workshop.models / "tiny/net/L5").mkdir()
    assert names.find_dataset("L5", root=str(workshop.models)) == "L5"


def test_labels_of_a_models_file(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(
        "mine_vit: {label: My ViT}\nmine_dino: {label: DINO}\nmine_bad: 3\nmine_b: {label: My_B}\n"
    )
    assert find_model("my vit", models_file=file) == "mine_vit"
    assert find_model("my_b", models_file=file) == "mine_b"
    assert find_model("mine_bad", models_file=file) == "mine_bad"  # what is wrong with it stops no other
    several = "--model DINO may be dino_resnet50, mine_dino; give one of these names"
    with pytest.raises(CogError, match=several):
        find_model("DINO", models_file=file)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("DINX", "DINO"),
        ("resnet152x", "ResNet152"),
        ("barlow", "Barlow"),
        ("facebook/dinov2-small", "hf_facebook--dinov2-small?"),
        ("hf_facebook/dinov2-small", "hf_facebook--dinov2-small?"),
        ("hub_me/net.entry", "hub_me--net.entry?"),
    ],
)
def test_what_is_no_name_is_answered_by_the_nearest(text, meant):
    with pytest.raises(CogError, match="is not a model name") as raised:
        find_model(text)
    assert meant.lower() in str(raised.value).rpartition("did you mean")[2].lower()


def test_all_flags_that_name_models_and_data_sets():
    args = argparse.Namespace(
        model=["DINO", "deit_*", None], models=None, relative_to="ResNet50", baseline=None, compare=["CLIP", "SwAV"],
        dataset=["L5", None], trained_on="IN-1K", models_root_dir=None, opts=[],
    )  # fmt: skip
    resolved = names.understood(args)
    assert resolved.model == ["dino_resnet50", "deit_*", None]
    assert (resolved.relative_to, resolved.baseline) == ("sup_resnet50", None)
    assert resolved.compare == ["clip_resnet50", "swav_resnet50"]
    assert (resolved.dataset, resolved.trained_on) == (["cog_l5", None], "in1k")
    birds = argparse.Namespace(dataset=["L5"], images_root="x", models_root_dir=None, opts=[])
    assert names.understood(birds).dataset == ["L5"]
    assert not any(hasattr(resolved, flag) for flag in ("limit", "models_file"))


def test_a_command_takes_labels(workshop):
    with pytest.raises(CogError, match="dino/resnet50/cog_l5/features_train"):
        logreg.main(["--model", "DINO", "--dataset", "L5", "--models_root_dir", str(workshop.models)])
    with pytest.raises(CogError, match="tiny/net/cog_l5"):
        file = workshop.root / "models.yaml"
        file.write_text("tiny_net: {label: Tiny}\n")
        words = ["--model", "tiny", "--dataset", "l5", "--models_root_dir", str(workshop.models)]
        logreg.main([*words, "--models_file", str(file)])


def test_a_name_that_is_not_known_is_answered_by_the_nearest_wherever_it_is_looked_up(workshop, caplog):
    root = ["--models_root_dir", str(workshop.models)]
    for argv, meant in (
        (["--model", "dino_resnet5", "--dataset", "in1k"], "dino_resnet50"),
        (["--model", "tiny_nett", "--dataset", "in1k"], "tiny_net"),
        (["--model", "tiny_net", "--dataset", "cog_l6"], "cog_l"),
        (["--model", "tiny_net", "--dataset", "birdz"], "birds"),
    ):
        with pytest.raises(CogError, match=rf"there are no train features .*; did you mean {meant}\S*\?"):
            logreg.main([*root, *argv])
        with pytest.raises(CogError, match=rf"no finished run of .*; did you mean {meant}\S*\?"):
            print_results.main([*root, *argv])
    for model, dataset in (("dino_resnet50", "in1k"), ("tiny_net", "cog_l5")):
        for command in (logreg, print_results):
            with pytest.raises(CogError) as raised:
                command.main([*root, "--model", model, "--dataset", dataset])
            assert "did you mean" not in str(raised.value)
    assert status.main([*root, "--models", "dino_resnet5", "tiny_net", "sup_resnet50", "timm_resnet5"]) == 0
    assert caplog.messages == [
        f"dino_resnet5: no such model under {workshop.models}; did you mean dino_resnet50?"
    ]


def test_commands_beside_the_drivers_take_labels(tmp_path, capsys, caplog):
    root = ["--models_root_dir", str(tmp_path)]
    (tmp_path / "dino/resnet50/cog_l5").mkdir(parents=True)
    with pytest.raises(CogError, match="dino/resnet50/cog_l5/features_train"):
        resplit_features.main([*root, "--model", "DINO", "--dataset", "L5", "--split_seed", "1"])
    with pytest.raises(CogError, match="has no runs of dino_resnet50 on any levels"):
        other_levels.main([*root, "--model", "DINO", "--output_dir", str(tmp_path)])
    with pytest.raises(CogError, match="--output_dir .*nowhere does not exist"):
        other_levels.main([*root, "--model", "DINO", "--output_dir", str(tmp_path / "nowhere")])
    with pytest.raises(CogError, match="--models 'DINX' is not a model name.*did you mean DINO"):
        pack.main([*root, "--models", "DINX"])
    assert pack.main([*root, "--models", "DINO", "--datasets", "L5", "--check"]) == 0
    for command, words in ((doctor, ["--devise", "cpu"]), (pack, [*root, "--unpak"])):
        with pytest.raises(SystemExit, match="2"):
            command.main(words)
        assert f"did you mean {'--device' if command is doctor else '--unpack'}?" in capsys.readouterr().err
