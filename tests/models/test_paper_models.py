"""The rows of the paper's models, their preprocessing, and the command ``models``."""

from __future__ import annotations

import hollow
import pytest
import tiny
import torch
from golden import rules
from marks import first_quick
from PIL import Image
from plain_pixels import plain_input

import cog
from cog.commands.models import main
from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD
from cog.errors import CogError
from cog.models import networks
from cog.models.checkpoint import load_paper_model
from cog.models.choice import LIBRARIES, find_model
from cog.models.paper_models import MODELS
from cog.models.spec import CATEGORIES, PaperModel


def test_the_models_of_the_paper(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    assert [line.split()[1] for line in printed[2:]] == list(MODELS)
    assert [len(cog.list_models(category)) for category in CATEGORIES.values()] == [1, 10, 10, 6, 4, 3]
    assert not {name.partition("_")[0] for name in MODELS} & {*LIBRARIES}
    more = {name for name, row in MODELS.items() if row.pretraining != "IN-1K"} - {"clip_resnet50-trunk"}
    assert more == {*cog.list_models("web-data")}


#: Millions of parameters in the paper's table of models, where they are not those of a ResNet-50.
PAPER_PARAMETERS = {
    "sup_resnet152": 58.1,
    "sup_inception-v3": 21.8,  # the paper's 25.1 include the auxiliary classifier
    "sup_vgg19": 139.6,
    "deit_small": 21.7,
    "deit_small_distilled": 21.7,
    "deit_base_distilled_384": 86.1,
    "nat_m4": 7.6,
    "efficientnet_b1": 6.5,
    "efficientnet_b4": 17.5,
    "t2tvit_t14": 21.1,
    "clip_resnet50": 38.3,
}

#: A network of each kind.
QUICK = ("sup_resnet50", "sup_inception-v3", "sup_vgg19", "deit_small_distilled", "nat_m4")


@pytest.mark.parametrize("name", first_quick(len(QUICK), sorted(MODELS, key=lambda name: name not in QUICK)))
class TestEveryModel:
    """Holds for each row: a new one is tested by being declared."""

    def test_parameters_and_width_are_those_of_the_paper(self, name):
        row = MODELS[name]
        network = networks.build(row).eval()
        count = sum(parameter.numel() for parameter in network.parameters())
        assert round(count / 1e6, 1) == PAPER_PARAMETERS.get(name, 23.5)
        # One image: the original NAT loader lost the batch axis then.
        y = network(torch.empty(1, 3, row.size, row.size, device="meta"))
        assert tuple(y.shape) == (1, row.dim)

        assert ("model" in row.declared) == (row.top1 is not None)
        if row.top1 is not None:
            size = row.declared["model"].size
            x = torch.empty(2, 3, size, size, device="meta")
            assert tuple(networks.build(row, classifier=True).eval()(x).shape) == (2, 1000)

    def test_a_file_in_its_layout_loads(self, name, tmp_path):
        # Hollow files of other containers have no shapes; the golden tests load full ones.
        if name in rules.load_index() and hollow.container(name) in ("torch", "torchscript"):
            backbone = cog.load_backbone(name, hollow.write(name, tmp_path / "model.ckpt"))
            assert backbone.feature_dim == MODELS[name].dim


def test_preprocessing_is_that_of_the_weights():
    clip = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    other = {
        **{"sup_inception-v3": ((0.5,) * 3, (0.5,) * 3), "simclrv2_resnet50": ((0.0,) * 3, (1.0,) * 3)},
        **{"clip_resnet50": clip, "clip_resnet50-trunk": clip},
    }
    sizes = {"sup_inception-v3": 299, "deit_base_distilled_384": 384}
    sizes |= {"efficientnet_b1": 240, "efficientnet_b4": 380}
    for name, row in MODELS.items():
        pre = row.declared["protocol"]
        assert (pre.mean, pre.std) == other.get(name, (IMAGENET_MEAN, IMAGENET_STD))
        assert pre.size == sizes.get(name, 224) and pre == pre.protocol()
    assert MODELS["nat_m4"].declared["model"].size == 240


def test_hashes_of_published_files(tmp_path, caplog):
    assert MODELS["sup_resnet50"].is_published("0676ba61" + 56 * "0")
    assert MODELS["sup_resnet50"].is_published(64 * "0") is False
    assert MODELS["swav_resnet50"].is_published(64 * "0") is None
    path = hollow.write("deit_small", tmp_path / "model.ckpt")
    assert find_model("deit_small", checkpoint=path).identity()["source"] == "deit_small"
    assert "is not the published file: SHA-256 " in caplog.text and "expected cd65a155" in caplog.text


def test_unknown_names_and_rows_are_refused():
    with pytest.raises(CogError, match=r"did you mean mocov2_resnet50"):
        cog.load_backbone("mocov3_resnet50", "x")
    with pytest.raises(CogError, match="`python -m cog models list` lists the paper's"):
        find_model("tiny_net")
    with pytest.raises(CogError, match="pretraining 'JFT', expected IN-1K"):
        PaperModel("a_b", "", "", pretraining="JFT")
    for line, says in ("check . nothing_here", "is not known"), ("fetch x", "or --all"):
        with pytest.raises(CogError, match=says):
            main(line.split())


# ---- the command ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check(tmp_path, capsys):
    files = ("dino_resnet50", "dino/resnet50"), ("nat_m4", "swav/resnet50"), ("nat_m4", "nat/m4")
    for name, folder in files:
        (tmp_path / folder).mkdir(parents=True)
        hollow.write(name, tmp_path / folder / "model.ckpt")
    assert main(["check", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert {*lines[-1].split(", ")} == {"2 ok", "1 bad", f"{len(MODELS) - 3} absent"}
    by_model = {line.split()[0]: line for line in lines[:-1]}
    assert by_model.keys() == MODELS.keys()
    assert "23.5M parameters fit, features (2, 2048), rms " in by_model["dino_resnet50"]
    assert " bad " in by_model["swav_resnet50"] and "does not fit" in by_model["swav_resnet50"]
    assert main(["check", str(tmp_path), "clip_resnet50"]) == 2
    weights = torch.load(tmp_path / "nat/m4/model.ckpt", weights_only=True)
    weights["first_conv.conv.weight"] = torch.full((24, 3, 3, 3), float("nan"))
    torch.save(weights, tmp_path / "nat/m4/model.ckpt")
    assert main(["check", str(tmp_path), "nat_m4"]) == 2 and "NaN" in capsys.readouterr().out


@pytest.mark.slow
def test_top1(tmp_path, capsys):
    wnids = ("n01440764", "n02123045", "n15075141")  # labels 0, 281 and 999
    for wnid in wnids:
        for index in range(2):
            path = tmp_path / "val" / wnid / f"{index}.JPEG"
            tiny.write_image(path, size=(300, 280), seed=7 * wnids.index(wnid) + index)
    (tmp_path / "nat/m4").mkdir(parents=True)
    checkpoint = rules.write_checkpoint("nat_m4", "A", tmp_path / "nat/m4/model.ckpt")
    row = MODELS["nat_m4"]
    network = load_paper_model(row, checkpoint, classifier=True).eval()
    statistics = {"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)}
    paths = [path for wnid in wnids for path in sorted((tmp_path / "val" / wnid).iterdir())]
    batch = torch.stack([plain_input(Image.open(p), resize=274, crop=240, **statistics) for p in paths])
    # Bias the classifier so that some images are right and others wrong.
    with torch.inference_mode():
        logits = network(batch)
    state = torch.load(checkpoint, weights_only=True)
    state["classifier.linear.bias"][281] += (logits.max(1).values - logits[:, 281]).max() + 1
    torch.save(state, checkpoint)
    arguments = [str(tmp_path), "nat_m4", "--in1k_images_root", str(tmp_path), "--device", "cpu"]
    assert main(["top1", *arguments]) == 0
    assert "top-1 33.33 % on 6 images, published 80.50 % (difference -47.17)" in capsys.readouterr().out
    (tmp_path / "val" / wnids[0] / "2.JPEG").write_bytes(b"no image")
    with pytest.raises(CogError, match=r"cannot decode .*2\.JPEG"):
        main(["top1", *arguments])
