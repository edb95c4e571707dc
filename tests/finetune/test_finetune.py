"""Fine-tuning: the recipe, a plain training loop beside it, processes, interruptions, bad input."""

import json
import os
import pickle
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import tiny
import torch
from PIL import Image
from plain_pixels import plain_input
from torch import nn
from torchvision import transforms

from cog import config
from cog.commands import finetune
from cog.data import datasets
from cog.data.images import ImageList
from cog.data.pixels import Preprocess
from cog.errors import CogError
from cog.finetune.train import CROP_RATIO, STATE_FILE, FineTuned, Recipe, Training
from cog.models.backbone import Backbone
from cog.runtime import signals

#: A network with batch norm, and with a classifier that its features bypass.
LOADER = """
import torch
from torch import nn


def load_my_model(init_args):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU()
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5), nn.ReLU()
    model = nn.Sequential(nn.Sequential(*layers, *pooled), nn.Linear(5, 7))
    return model, model[0]
"""


@pytest.fixture
def birds(tmp_path) -> Path:
    """``{train,test}/<class>/*.png``: 3 classes of 6 training and 3 test images."""
    how, root = {"classes": ("crow", "duck", "wren"), "suffix": ".png"}, tmp_path / "birds"
    tiny.write_class_folders(root / "train", n_images=6, seed=1, **how)
    tiny.write_class_folders(root / "test", n_images=3, seed=2, **how)
    return root


@pytest.fixture
def net(tmp_path) -> Path:
    (tmp_path / "net.py").write_text(LOADER)
    return tmp_path / "net.py"


def recipe(**changes) -> Recipe:
    values = {"N_EPOCHS": 2, "BATCH_SIZE": 8, "BATCH_PER_DEVICE": 4, "LR": 1.6, "WEIGHT_DECAY": 1e-3}
    values |= {"CROP_SCALE": (0.3, 1.0)} | changes
    opts = [text for key, value in values.items() for text in (f"FINETUNE.{key}", str(value))]
    pre = Preprocess(size=10, resize=12, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    return Recipe(config.get_cfg(opts=[*opts, "EVAL.SEED", "5"]), pre, "fp32", 1)


def network(steps: Recipe):
    space: dict = {}
    exec(LOADER, space)
    model, forward = space["load_my_model"]({})
    return FineTuned(Backbone(model, forward, name="my_net"), steps, 3, torch.device("cpu"))


def lists(birds: Path):
    return [datasets.OWN.images("birds", split, {"images_root": str(birds)}) for split in ("train", "test")]


def test_learning_rate_warms_up_and_decays_to_zero():
    steps = recipe(N_EPOCHS=5, LR=64.0)
    rates = [steps.lr_at(step, 10) for step in range(50)]
    assert rates[:11] == pytest.approx([*(0.2 * k for k in range(1, 11)), 2.0])
    assert rates[30] == pytest.approx(1.0) and 0 < rates[49] < 0.01
    assert recipe(WARMUP_EPOCHS=0.0).lr_at(0, 10) == pytest.approx(0.05)


def training_image(images: ImageList, steps: Recipe, epoch: int, row: int) -> torch.Tensor:
    """Return the input of the network that torchvision makes with the same seed."""
    torch.manual_seed(steps.seed("image", epoch, row))
    crop = transforms.RandomResizedCrop(10, (0.3, 1.0), CROP_RATIO, transforms.InterpolationMode.BICUBIC)
    image = transforms.RandomHorizontalFlip()(crop(Image.open(images.root / images.file(row))))
    statistics = steps.preprocess.mean, steps.preprocess.std
    return transforms.Normalize(*statistics)(transforms.ToTensor()(image))


def images_of_test(birds: Path, pre: Preprocess) -> torch.Tensor:
    """Return the input of the network for the test images, by torchvision."""
    test, how = lists(birds)[1], {"resize": pre.resize, "crop": pre.size, "mean": pre.mean, "std": pre.std}
    return torch.stack([plain_input(Image.open(test.root / test.file(i)), **how) for i in range(len(test))])


def plain_epochs(model: nn.Module, birds: Path, steps: Recipe) -> None:
    """The same training written down without the toolkit's decoders and passes."""
    images, _ = lists(birds)
    parameters = [parameter for name, parameter in model.named_parameters() if "network.1" not in name]
    optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.9, weight_decay=1e-3)
    n_steps = len(images) // 8
    model.train()
    for epoch in range(2):
        order = steps.order(epoch, len(images))
        for step in range(n_steps):
            optimizer.param_groups[0]["lr"] = steps.lr_at(epoch * n_steps + step, n_steps)
            rows = order[step * 8 : (step + 1) * 8]
            x = torch.stack([training_image(images, steps, epoch, int(row)) for row in rows])
            y = torch.from_numpy(images.labels[rows])
            optimizer.zero_grad()
            for part_x, part_y in zip(x.split(steps.per_pass), y.split(steps.per_pass), strict=True):
                (nn.functional.cross_entropy(model(part_x), part_y) / steps.n_passes).backward()
            optimizer.step()


@pytest.mark.parametrize("per_pass", [8, 2])
def test_training_equals_a_plain_loop(birds, tmp_path, per_pass):
    steps = recipe(BATCH_PER_DEVICE=per_pass)
    run = Training(network(steps), steps, 0, 0, 0)
    model, done = run.network, run.run(*lists(birds), tmp_path / "state.pth")
    expected = network(steps)
    plain_epochs(expected, birds, steps)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    logits = model.eval()(images_of_test(birds, steps.preprocess))
    y = torch.from_numpy(lists(birds)[1].labels)
    assert done.predictions.tolist() == logits.argmax(1).tolist()
    assert done.logs["test/top1"][1] == pytest.approx(100 * float((logits.argmax(1) == y).float().mean()))
    assert done.logs["test/loss"][1] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)


def arguments(birds: Path, file: Path, output: Path | None, *more: str) -> list[str]:
    flags = f"--model my_net --dataset birds --images_root {birds} --model_loader {file}:load_my_model"
    flags += f" --output_dir {output}"
    keys = "FINETUNE.N_EPOCHS 2 FINETUNE.BATCH_SIZE 8 FINETUNE.BATCH_PER_DEVICE 4 FINETUNE.LR 1.6"
    size = "FT_EXTRACT.IMAGE_RESIZE_SIZE 12 FT_EXTRACT.IMAGE_CROP_SIZE 10 FT_EXTRACT.N_WORKERS 0"
    return [*flags.split(), *more, *size.split(), *keys.split()]


@pytest.fixture
def fine_tune(birds, net, tmp_path):
    """Return a function that runs finetune.py on the birds, into ``tmp_path / "out"`` by default."""

    def fine_tune_(*more, output="out", flags=()):
        return finetune.main([*arguments(birds, net, tmp_path / output, *flags), *more])

    return fine_tune_


def last(output: Path, name: str):
    (path,) = output.glob(f"final-*/{name}")
    return pickle.loads(path.read_bytes()) if path.suffix == ".pkl" else torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["FINETUNE.BATCH_SIZE", "20", "FINETUNE.BATCH_PER_DEVICE", "20"], "the 18 training images"),
        (["CLF.N_SHOT", "4"], "CLF.N_SHOT is for classifiers of features"),
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


def write_network(net: Path, body: str) -> None:
    net.write_text(f"import torch.nn as n\ndef load_my_model(init_args):\n    return {body}\n")


def test_classes_and_networks_that_cannot_be_trained(fine_tune, birds, net):
    for body in ("n.Flatten(), None", "n.Linear(3, 4), lambda x: x.mean((2, 3))"):
        write_network(net, body)
        with pytest.raises(CogError, match="affects its features, nothing can be fine-tuned"):
            fine_tune()
    write_network(net, "n.Sequential(n.AdaptiveAvgPool2d(1), n.Flatten(), n.BatchNorm1d(3)), None")
    with pytest.raises(CogError, match=r"fails for a batch of shape \(1, 3, .*more than 1 value per channel"):
        fine_tune("FINETUNE.BATCH_PER_DEVICE", "1")
    model = network(recipe())
    model.head.forward = lambda x: bytearray(1 << 62)
    with pytest.raises(MemoryError):  # with the advice of all commands
        model(torch.zeros(1, 3, 10, 10))
    shutil.rmtree(birds / "test/wren")
    with pytest.raises(CogError, match="differ in wren"):
        fine_tune()
    for folder in ("train/wren", "train/duck", "test/duck"):
        shutil.rmtree(birds / folder)
    with pytest.raises(CogError, match="single class crow"):
        fine_tune()


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
    assert found["rows"] == {"final_train": 17, "test": 8}
    assert last(tmp_path / "out", "preds.pkl")[0].tolist().index(-1) == 1


def test_a_run_has_the_files_of_a_classifier_run(birds, net, tmp_path, capsys):
    (tmp_path / "models/my/net").mkdir(parents=True)
    words = f"--models_root_dir {tmp_path}/models --model my_net my_other --dataset crows".split()
    with pytest.raises(CogError, match="--images_root is of one data set, .*crows, in1k_blurred"):
        finetune.main(arguments(birds, net, None, *words, "in1k_blurred"))
    with pytest.raises(CogError, match="above the 4 training images"):
        finetune.main(arguments(birds, net, None, "--models_root_dir", f"{tmp_path}/limit-2"))
    assert finetune.main(arguments(birds, net, None, *words)) == 0
    folders = [tmp_path / f"models/my/{name}/crows/eval_finetune/seed-22" for name in ("net", "other")]
    for folder in folders:
        record = json.loads((folder / "results.json").read_text())
        assert {"results.json", "program.log"} < set(os.listdir(folder)) and record["status"] == "complete"
        assert f"top-1: {record['final']['test_top1']:.2f}" in capsys.readouterr().out or folder == folders[1]
        assert {len(values) for values in last(folder, "logs.pkl").values()} == {2}
    # The saved network, frozen, with the saved classifier gives the saved predictions.
    model = network(recipe()).backbone.network
    model.load_state_dict(last(folder, "backbone.pth")["state_dict"])
    head = last(folder, "model.pth")["model"]
    x = model.eval()[0](images_of_test(birds, Preprocess(size=10, resize=12)))
    (predictions,) = last(folder, "preds.pkl")
    assert (x @ head["weight"].T + head["bias"]).argmax(1).tolist() == predictions.tolist()


def test_complete_runs_are_skipped_and_others_refused(fine_tune, tmp_path):
    assert fine_tune() == 0
    before = tiny.snapshot(tmp_path / "out")
    assert fine_tune("FT_EXTRACT.N_WORKERS", "2") == 0
    with pytest.raises(CogError, match=r"lr: 1\.6 -> 0\.8.*--overwrite"):
        fine_tune("FINETUNE.LR", "0.8")
    assert tiny.snapshot(tmp_path / "out") == before
    tiny.write_image(tmp_path / "birds/test/crow/crow_0.png", size=(30, 30))
    with pytest.raises(CogError, match="test_contents_crc32: "):
        fine_tune()
    assert fine_tune("FINETUNE.LR", "0.8", flags=("--overwrite",)) == 0
    assert json.loads((tmp_path / "out/results.json").read_text())["identity"]["lr"] == 0.8


@pytest.mark.parametrize("precision", ["fp32", "fp16"])  # with loss scaling
def test_sigterm_saves_and_the_same_command_continues(fine_tune, net, tmp_path, monkeypatch, precision):
    net.write_text(LOADER.replace("nn.Linear(6, 5)", "nn.Dropout(0.3), nn.Linear(6, 5)"))
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
def test_two_processes_train_together(repository, birds, net, tmp_path, python, fine_tune):
    """The gradients are those of one process; each has the statistics of its own passes in batch norm."""
    net.write_text(LOADER.replace("nn.BatchNorm2d(6)", "nn.GroupNorm(2, 6)"))
    assert fine_tune() == 0
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(repository / "finetune.py"), *arguments(birds, net, tmp_path / "two")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top-1:") == 1 and done.stderr.count("epoch 2 of 2") == 1
    found = last(tmp_path / "two", "backbone.pth")["state_dict"]
    for key, tensor in last(tmp_path / "out", "backbone.pth")["state_dict"].items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32"])
def test_a_gpu_trains_and_continues(fine_tune, tmp_path, monkeypatch, precision):
    with monkeypatch.context() as patch, pytest.raises(signals.Interrupted):
        patch.setattr(signals, "requested", lambda: "SIGTERM")
        fine_tune("FINETUNE.PRECISION", precision)
    assert fine_tune("FINETUNE.PRECISION", precision) == 0
    assert 0 <= json.loads((tmp_path / "out/results.json").read_text())["final"]["test_top1"] <= 100
