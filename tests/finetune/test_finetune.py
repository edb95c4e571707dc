"""Fine-tuning: the recipe, a plain training loop beside it, processes, interruptions, bad input."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
from pathlib import Path

import pytest
import tiny
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

from cog import config
from cog.commands import finetune
from cog.data import datasets
from cog.data.pixels import Preprocess
from cog.errors import CogError
from cog.finetune.train import CROP_RATIO, STATE_FILE, FineTuned, Recipe, Training
from cog.models.backbone import Backbone
from cog.runtime import signals

CLASSES = ("crow", "duck", "wren")
CPU = torch.device("cpu")

#: A network with batch norm, and with a classifier that its features bypass.
LOADER = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 6, 3, 2, 1, bias=False)
        self.norm = torch.nn.BatchNorm2d(6)
        self.mix = torch.nn.Linear(6, 5)
        self.fc = torch.nn.Linear(5, 7)

    def features(self, x):
        return torch.relu(self.mix(torch.relu(self.norm(self.conv(x))).mean((2, 3))))

    def forward(self, x):
        return self.fc(self.features(x))


def load_my_model(init_args):
    model = Net()
    return model, model.features
"""


@pytest.fixture
def birds(tmp_path) -> Path:
    """``{train,test}/<class>/*.png``: 3 classes of 6 training and 3 test images."""
    root = tmp_path / "birds"
    tiny.write_class_folders(root / "train", classes=CLASSES, n_images=6, suffix=".png", seed=1)
    tiny.write_class_folders(root / "test", classes=CLASSES, n_images=3, suffix=".png", seed=2)
    return root


@pytest.fixture
def net(tmp_path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(LOADER)
    return path


def recipe(**changes) -> Recipe:
    values = {"N_EPOCHS": 2, "BATCH_SIZE": 8, "BATCH_PER_DEVICE": 4, "LR": 1.6, "WEIGHT_DECAY": 1e-3}
    values |= {"CROP_SCALE": (0.3, 1.0)} | changes
    opts = [text for key, value in values.items() for text in (f"FINETUNE.{key}", str(value))]
    pre = Preprocess(size=10, resize=12, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    return Recipe(config.get_cfg(opts=[*opts, "EVAL.SEED", "5"]), pre, "fp32", 1)


def network(path: Path, steps: Recipe):
    space: dict = {}
    exec(path.read_text(), space)
    model, forward = space["load_my_model"]({})
    return FineTuned(Backbone(model, forward, name="my_net"), steps, 3, CPU)


def lists(birds: Path):
    return [datasets.OWN.images("birds", split, {"images_root": str(birds)}) for split in ("train", "test")]


# --- recipe and random choices


def test_learning_rate_warms_up_and_decays_to_zero():
    steps = recipe(N_EPOCHS=5, LR=64.0)
    rates = [steps.lr_at(step, 10) for step in range(50)]
    assert rates[:11] == pytest.approx([*(0.2 * k for k in range(1, 11)), 2.0])
    assert rates[30] == pytest.approx(1.0) and 0 < rates[49] < 0.01
    assert recipe(WARMUP_EPOCHS=0.0).lr_at(0, 10) == pytest.approx(0.05)


def training_image(path: Path, steps: Recipe, epoch: int, row: int) -> Image.Image:
    """Return the training image that torchvision makes with the same seed."""
    torch.manual_seed(steps.seed("image", epoch, row))
    crop = transforms.RandomResizedCrop(10, (0.3, 1.0), CROP_RATIO, transforms.InterpolationMode.BICUBIC)
    return transforms.RandomHorizontalFlip()(crop(Image.open(path).convert("RGB")))


# --- a plain loop beside it


def images_of_test(birds: Path, pre: Preprocess) -> torch.Tensor:
    """Return the input of the network for the test images, by torchvision."""
    bicubic, test = transforms.InterpolationMode.BICUBIC, lists(birds)[1]
    steps = [transforms.Resize(pre.resize, bicubic), transforms.CenterCrop(pre.size), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize(pre.mean, pre.std)])
    paths = [test.root / test.file(row) for row in range(len(test))]
    return torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])


def plain_epochs(model: nn.Module, birds: Path, steps: Recipe) -> None:
    """The same training written down without the toolkit's decoders and passes."""
    images, _ = lists(birds)
    statistics = steps.preprocess.mean, steps.preprocess.std
    normalize = transforms.Compose([transforms.ToTensor(), transforms.Normalize(*statistics)])
    parameters = [parameter for name, parameter in model.named_parameters() if "network.fc" not in name]
    optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.9, weight_decay=1e-3)
    n_steps = len(images) // 8
    model.train()
    for epoch in range(2):
        order = steps.order(epoch, len(images))
        for step in range(n_steps):
            optimizer.param_groups[0]["lr"] = steps.lr_at(epoch * n_steps + step, n_steps)
            rows = order[step * 8 : (step + 1) * 8]
            paths = [images.root / images.file(row) for row in rows]
            drawn = [training_image(p, steps, epoch, int(row)) for p, row in zip(paths, rows)]
            x = torch.stack([normalize(image) for image in drawn])
            y = torch.from_numpy(images.labels[rows])
            optimizer.zero_grad()
            for part_x, part_y in zip(x.split(steps.per_pass), y.split(steps.per_pass), strict=True):
                (nn.functional.cross_entropy(model(part_x), part_y) / steps.n_passes).backward()
            optimizer.step()


@pytest.mark.parametrize("per_pass", [8, 2])
def test_training_equals_a_plain_loop(birds, net, tmp_path, per_pass):
    steps = recipe(BATCH_PER_DEVICE=per_pass)
    run = Training(network(net, steps), steps, 0, 0, 0)
    model, done = run.network, run.run(*lists(birds), tmp_path / "state.pth")
    expected = network(net, steps)
    start = {name: tensor.clone() for name, tensor in expected.state_dict().items()}
    plain_epochs(expected, birds, steps)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    unused, used = "backbone.network.fc.weight", "backbone.network.conv.weight"
    assert torch.equal(model.state_dict()[unused], start[unused])
    assert not torch.allclose(model.state_dict()[used], start[used])
    logits = model.eval()(images_of_test(birds, steps.preprocess))
    y = torch.from_numpy(lists(birds)[1].labels)
    assert done.predictions.tolist() == logits.argmax(1).tolist()
    assert done.logs["test/top1"][1] == pytest.approx(100 * float((logits.argmax(1) == y).float().mean()))
    assert done.logs["test/loss"][1] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)


# --- the command


def arguments(birds: Path, file: Path, *more: str) -> list[str]:
    flags = f"--model my_net --dataset birds --images_root {birds} --model_loader {file}:load_my_model"
    keys = "FINETUNE.N_EPOCHS 2 FINETUNE.BATCH_SIZE 8 FINETUNE.BATCH_PER_DEVICE 4 FINETUNE.LR 1.6"
    size = "FT_EXTRACT.IMAGE_RESIZE_SIZE 12 FT_EXTRACT.IMAGE_CROP_SIZE 10 FT_EXTRACT.N_WORKERS 0"
    return [*flags.split(), *more, *size.split(), *keys.split()]


@pytest.fixture
def fine_tune(birds, net, tmp_path):
    """Return a function that runs finetune.py on the birds, into ``tmp_path / "out"`` by default."""

    def fine_tune_(*more, output="out", flags=()):
        return finetune.main([*arguments(birds, net, "--output_dir", str(tmp_path / output), *flags), *more])

    return fine_tune_


def last(output: Path, name: str):
    (path,) = output.glob(f"final-*/{name}")
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["FINETUNE.BATCH_SIZE", "20", "FINETUNE.BATCH_PER_DEVICE", "20"], "the 18 training images"),
        (["CLF.N_SHOT", "4"], "CLF.N_SHOT is for classifiers of features"),
        (["CLF.TYPE", "mlp"], "CLF.TYPE"),
        (["EVAL.NAME", "mlp_noact"], "EVAL.NAME mlp_noact is the name of "),
        (["FINETUNE.WARMUP_EPOCHS", "7"], "FINETUNE.WARMUP_EPOCHS 7"),
        (["FINETUNE.BATCH_SIZE", "9"], "no multiple of 1 process(es) x FINETUNE.BATCH_PER_DEVICE"),
        (["FINETUNE.LR", "1e38"], "not finite in epoch 1, step "),
    ],
)
def test_bad_settings_end_in_one_line_and_leave_no_result(fine_tune, tmp_path, more, words):
    with pytest.raises(CogError) as error:
        fine_tune(*more)
    assert words in str(error.value) and error.value.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_classes_and_networks_that_cannot_be_trained(fine_tune, birds, image_tree, net, tmp_path):
    (birds / "test/wren").rename(birds / "test/swan")
    with pytest.raises(CogError, match="differ in swan, wren"):
        fine_tune()
    for split in ("train", "test"):
        tiny.write_class_folders(tmp_path / "one" / split, classes=("crow",), n_images=9, suffix=".png")
    with pytest.raises(CogError, match="single class crow"):
        finetune.main(arguments(tmp_path / "one", net, "--output_dir", str(tmp_path / "out")))
    for body in ("torch.nn.Flatten(), None", "torch.nn.Linear(3, 4), lambda x: x.mean((2, 3))"):
        net.write_text(f"import torch\ndef load_my_model(init_args):\n    return {body}\n")
        with pytest.raises(CogError, match="affects its features, nothing can be fine-tuned") as error:
            finetune.main(arguments(tmp_path / "images", net, "--output_dir", str(tmp_path / "out")))
        reason = json.loads((tmp_path / ".out.work/failed.json").read_text())["reason"]
        assert reason == str(error.value)


def test_a_network_that_fails_in_training_is_one_line(fine_tune, net):
    body = "n.Sequential(n.AdaptiveAvgPool2d(1), n.Flatten(), n.BatchNorm1d(3)), None"
    net.write_text(f"import torch.nn as n\ndef load_my_model(init_args):\n    return {body}\n")
    with pytest.raises(CogError, match=r"fails for a batch of shape \(1, 3, .*more than 1 value per channel"):
        fine_tune("FINETUNE.BATCH_PER_DEVICE", "1")


def test_failed_images_end_with_exit_code_3_unless_allowed(fine_tune, birds, tmp_path):
    for name in ("train/duck/duck_2.png", "test/crow/crow_1.png"):
        (birds / name).write_bytes(b"no image")
    few = ("FINETUNE.BATCH_SIZE", "6", "FINETUNE.BATCH_PER_DEVICE", "6")
    for allowed in ("0", "1"):
        with pytest.raises(CogError, match="cannot be decoded") as error:
            fine_tune(*few, flags=("--allow_failures", allowed))
        assert error.value.exit_code == 3
    assert fine_tune(*few, flags=("--allow_failures", "2")) == 0
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert found["n_failed_images"] == {"train": 1, "test": 1}
    assert found["rows"]["final_train"] == 17 and found["rows"]["test"] == 8
    (path,) = (tmp_path / "out").glob("final-*/preds.pkl")
    assert pickle.loads(path.read_bytes())[0].tolist().index(-1) == 1


def test_a_run_has_the_files_of_a_classifier_run(birds, net, tmp_path, capsys):
    (tmp_path / "models/my/net").mkdir(parents=True)
    root = ("--models_root_dir", str(tmp_path / "models"))
    with pytest.raises(CogError, match="--output_dir is of one output, and --model and --dataset name 2"):
        finetune.main(arguments(birds, net, "--output_dir", "x", "--dataset", "crows", "ducks"))
    assert finetune.main(arguments(birds, net, *root, "--dataset", "crows", "ducks")) == 0
    folders = [tmp_path / f"models/my/net/{name}/eval_finetune/seed-22" for name in ("crows", "ducks")]
    for folder in folders:
        record = json.loads((folder / "results.json").read_text())
        assert {"results.json", "program.log"} < set(os.listdir(folder)) and record["status"] == "complete"
        assert f"top-1: {record['final']['test_top1']:.2f}" in capsys.readouterr().out or folder == folders[1]
        assert not folder.with_name(f".{folder.name}.work").exists()
        logs = pickle.loads(next(folder.glob("final-*/logs.pkl")).read_bytes())
        assert {len(values) for values in logs.values()} == {2} and "test/top5" in logs
    # The saved network, frozen, with the saved classifier gives the saved predictions.
    model = network(net, recipe()).backbone.network
    model.load_state_dict(last(folder, "backbone.pth")["state_dict"])
    head = last(folder, "model.pth")["model"]
    x = model.eval().features(images_of_test(birds, Preprocess(size=10, resize=12)))
    (predictions,) = pickle.loads(next(folder.glob("final-*/preds.pkl")).read_bytes())
    assert (x @ head["weight"].T + head["bias"]).argmax(1).tolist() == predictions.tolist()


def test_complete_runs_are_skipped_and_others_refused(fine_tune, tmp_path):
    output = tmp_path / "out"
    assert fine_tune() == 0
    before = tiny.snapshot(output)
    assert fine_tune("FT_EXTRACT.N_WORKERS", "2") == 0
    with pytest.raises(CogError, match=r"lr: 1\.6 -> 0\.8.*--overwrite"):
        fine_tune("FINETUNE.LR", "0.8")
    assert tiny.snapshot(output) == before
    tiny.write_image(tmp_path / "birds/test/crow/crow_0.png", size=(30, 30))
    with pytest.raises(CogError, match="test_contents_crc32: "):
        fine_tune()
    assert fine_tune("FINETUNE.LR", "0.8", flags=("--overwrite",)) == 0
    assert len(list(output.glob("final-*"))) == 1
    assert json.loads((output / "results.json").read_text())["identity"]["lr"] == 0.8


@pytest.mark.parametrize("precision", ["fp32", "fp16"])  # with loss scaling
def test_sigterm_saves_and_the_same_command_continues(fine_tune, tmp_path, monkeypatch, precision):
    keys, done, calls = ("FINETUNE.PRECISION", precision), Training._update, []

    def update_and_signal(self):
        calls.append(0)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        done(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_update", update_and_signal)
        with pytest.raises(signals.Interrupted, match="SIGTERM: 1 of 2 epochs are saved") as error:
            fine_tune(*keys)
    assert error.value.exit_code == 75 and not (tmp_path / "out").exists()
    assert (tmp_path / ".out.work" / STATE_FILE).is_file()
    assert fine_tune(*keys, "FT_EXTRACT.N_WORKERS", "2") == fine_tune(*keys, output="whole") == 0
    for name in ("backbone.pth", "model.pth", "logs.pkl", "preds.pkl"):
        found, expected = (next((tmp_path / run).glob(f"final-*/{name}")) for run in ("out", "whole"))
        assert found.read_bytes() == expected.read_bytes()


@pytest.mark.slow
def test_two_processes_train_together(repository, birds, net, tmp_path, python):
    """The gradients are those of one process; each has the statistics of its own passes in batch norm."""
    net.write_text(LOADER.replace("torch.nn.BatchNorm2d(6)", "torch.nn.GroupNorm(2, 6)"))
    script, found = str(repository / "finetune.py"), {}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for name, start in {"one": [], "two": torchrun}.items():
        command = [python, *start, script, *arguments(birds, net, "--output_dir", str(tmp_path / name))]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("top-1:") == 1 and done.stderr.count("epoch 2 of 2") == 1
        found[name] = last(tmp_path / name, "backbone.pth")["state_dict"]
    for key, tensor in found["one"].items():
        torch.testing.assert_close(found["two"][key], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32"])
def test_a_gpu_trains_and_continues(birds, net, tmp_path, monkeypatch, precision):
    flags = arguments(birds, net, "--output_dir", str(tmp_path / "out"))
    flags += ["FINETUNE.PRECISION", precision]
    with monkeypatch.context() as patch:
        patch.setattr(signals, "requested", lambda: "SIGTERM")
        with pytest.raises(signals.Interrupted):
            finetune.main(flags)
    assert finetune.main(flags) == 0
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert math.isfinite(found["final"]["test_top1"])
