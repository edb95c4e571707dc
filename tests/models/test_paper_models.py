"""The models of the paper: rows, features of synthetic files in the authors' layouts, the command."""

import hollow
import numpy as np
import pytest
import tiny
import torch
import torchvision
from golden import rules
from marks import first_quick

import cog
from cog.commands.models import main
from cog.constants import PRETRAINING
from cog.data.pixels import IMAGENET_MEAN, IMAGENET_STD
from cog.errors import CogError
from cog.models import networks
from cog.models.choice import find_model
from cog.models.paper_models import MODELS, list_models
from cog.models.spec import CATEGORIES, PaperModel
from cog.runtime.device import exact_float32


def test_the_models_of_the_paper(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    assert [line.split()[1] for line in printed[2:]] == list(MODELS)
    assert [len(list_models(category)) for category in CATEGORIES.values()][:5] == [1, 10, 10, 6, 4]
    assert {row.pretraining for row in MODELS.values()} < {*PRETRAINING}
    more = {name for name, row in MODELS.items() if row.pretraining != "IN-1K"} - {"clip_resnet50-trunk"}
    assert more == {*list_models("web-data")}
    # A row whose network and file are torchvision's or timm's own may do without golden features.
    assert INDEX.keys() <= MODELS.keys() and len(INDEX) >= 34


#: Millions of parameters in the paper's table of models, where they are not those of a ResNet-50.
PAPER_PARAMETERS = """
sup_resnet152 58.1, sup_vgg19 139.6, deit_small 21.7, deit_small_distilled 21.7, deit_base_distilled_384 86.1,
nat_m4 7.6, efficientnet_b1 6.5, efficientnet_b4 17.5, t2tvit_t14 21.1, clip_resnet50 38.3,
sup_inception-v3 21.8
"""  # of Inception, the paper's 25.1 include the auxiliary classifier

#: A model of each network.
NETWORKS = {row.network: name for name, row in reversed(MODELS.items())}


@pytest.mark.parametrize("name", sorted(NETWORKS.values()))
def test_parameters_and_width_are_those_of_the_paper(name, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "batch_norm", lambda x, *_, **__: x)  # slow without data
    row = MODELS[name]
    network = networks.build(row).eval()
    count = sum(parameter.numel() for parameter in network.parameters())
    expected = dict(line.split() for line in PAPER_PARAMETERS.split(","))
    assert row.category == "other" or f"{count / 1e6:.1f}" == expected.get(name, "23.5")
    # One image: the original NAT loader lost the batch axis then.
    y = network(torch.empty(1, 3, row.size, row.size, device="meta"))
    assert tuple(y.shape) == (1, row.dim)
    if row.top1 is not None:
        whole = networks.build(row, classifier=True)
        assert row.head and all(whole.get_submodule(head)(y).shape == (1, 1000) for head in row.head)


TOLERANCE = 1e-4
INDEX = rules.load_index()

#: The first is quick to write; the others are slow.
FILES = sorted({entry["schema"] for entry in INDEX.values()}, key=lambda file: (file != "nat_m4.json", file))


def error(network, name: str, device: str = "cpu") -> float:
    """``max |f - g| / rms(g)`` of the features of fixed images: two, or one of slow networks."""
    x = torch.from_numpy(rules.make_input(INDEX[name]["input_size"], "A")[: 1 + (name == "nat_m4")])
    with torch.inference_mode(), exact_float32():
        features = network(x.to(device)).cpu().numpy()
    golden = np.load(rules.HERE / f"seedA/{INDEX[name].get('golden', name)}.npy")[: len(x)]
    assert features.shape == golden.shape == (len(x), MODELS[name].dim)
    return float(np.abs(features - golden).max() / np.sqrt((golden**2).mean()))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("file", first_quick(1, FILES))
def test_golden_features(file, tmp_path):
    names = [name for name, entry in INDEX.items() if entry["schema"] == file]
    path = rules.write_checkpoint(names[0], "A", tmp_path / "model.ckpt")
    for name in names:
        network = cog.load_backbone(name, path)
        assert network.feature_dim == INDEX[name]["feature_dim"] and error(network, name) < TOLERANCE
    if name in ("simclrv2_resnet50", "byol_resnet50"):  # torchvision's names, in a file of torch.save
        state = network.network.state_dict()
        torch.save(state | {"fc.weight": torch.zeros(1000, 2048)}, tmp_path / "other.ckpt")
        loaded = cog.load_backbone(name, tmp_path / "other.ckpt").network.state_dict()
        assert loaded.keys() == state.keys() and all(torch.equal(loaded[key], state[key]) for key in state)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nat_m4", "deit_small"])
def test_golden_features_on_a_gpu(name, tmp_path):
    network = cog.load_backbone(name, rules.write_checkpoint(name, "A", tmp_path / "model.ckpt"), "cuda")
    assert error(network, name, device="cuda") < 10 * TOLERANCE


def test_a_further_model_is_one_row(monkeypatch, tmp_path, capsys):
    fields = {"network": "torchvision:mobilenet_v3_small", "dim": 1024, "head": ("classifier.3",)}
    row = PaperModel("sup_mobilenet", "MobileNet", "https://example.org/m-01234567.pth", **fields)
    monkeypatch.setitem(MODELS, row.name, row)
    assert main(["list"]) == 0 and "| sup_mobilenet | MobileNet | other |" in capsys.readouterr().out
    (tmp_path / "sup/mobilenet").mkdir(parents=True)
    weights = torchvision.models.mobilenet_v3_small().state_dict()
    torch.save(weights, tmp_path / "sup/mobilenet/model.ckpt")
    assert main(["check", str(tmp_path), row.name]) == 0 and "(2, 1024)" in capsys.readouterr().out
    torch.save(weights | {"\x1b[2J": torch.zeros(1)}, tmp_path / "sup/mobilenet/model.ckpt")
    assert main(["check", str(tmp_path), row.name]) == 2 and r"1 (\x1b[2J)" in capsys.readouterr().out


def test_preprocessing_is_that_of_the_weights():
    clip = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    other = {"sup_inception-v3": ((0.5,) * 3, (0.5,) * 3), "simclrv2_resnet50": ((0.0,) * 3, (1.0,) * 3)}
    other |= dict.fromkeys(("clip_resnet50", "clip_resnet50-trunk"), clip)
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
    assert find_model("deit_small", checkpoint=path).identity["source"] == "deit_small"
    assert "is not the published file: SHA-256 " in caplog.text and "expected cd65a155" in caplog.text


def test_unknown_names_are_refused():
    with pytest.raises(CogError, match=r"did you mean mocov2_resnet50"):
        cog.load_backbone("mocov3_resnet50", "x")
    with pytest.raises(CogError, match="`python -m cog models list` lists the paper's"):
        find_model("tiny_net")
    for line, says in ("check . nothing_here", "is not known"), ("fetch x", "or --all"):
        with pytest.raises(CogError, match=says):
            main(line.split())


@pytest.mark.slow
def test_check(tmp_path, capsys):
    files = ("dino_resnet50", "dino/resnet50"), ("nat_m4", "swav/resnet50"), ("nat_m4", "nat/m4")
    for name, folder in files:
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
    for number in range(6):
        place = tmp_path / "val" / wnids[number % 3]
        tiny.write_image(place / f"{number}.JPEG", size=(300, 280), seed=number)
    checkpoint = hollow.write("nat_m4", tmp_path / "nat/m4/model.ckpt")
    state = torch.load(checkpoint, weights_only=True)
    state["classifier.linear.bias"] = torch.eye(1000)[281]  # what every image is classified as
    torch.save(state, checkpoint)
    arguments = [str(tmp_path), "nat_m4", "--in1k_images_root", str(tmp_path), "--device", "cpu"]
    assert main(["top1", *arguments]) == 0
    assert "top-1 33.33 % on 6 images, published 80.50 % (difference -47.17)" in capsys.readouterr().out
    (tmp_path / "val" / wnids[0] / "2.JPEG").write_bytes(b"no image")
    with pytest.raises(CogError, match=r"cannot decode .*2\.JPEG"):
        main(["top1", *arguments])
