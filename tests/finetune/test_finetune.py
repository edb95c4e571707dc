"""Fine-tuning: the recipe, its random choices, a plain training loop beside it, processes, interruptions, bad input."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from marks import first_quick
from PIL import Image
from test_output_folder import taken_over_at
from torch import nn
from torchvision import transforms

from cog import config
from cog.commands import finetune
from cog.data import datasets
from cog.data.loader import Decoder, decoded
from cog.data.pixels import Preprocess
from cog.errors import CogError
from cog.features.extract import Extractor, extract
from cog.finetune import network, training
from cog.finetune.evaluation import evaluate
from cog.finetune.images import NO_LABEL, TrainingDecoder, random_box, training_pixels
from cog.finetune.parallel import Group
from cog.finetune.recipe import FineTuneRecipe
from cog.finetune.trainer import Position, Trainer
from cog.models.backbone import Backbone
from cog.results import runs
from cog.runtime import signals
from cog.runtime.locks import LockedError
from cog.runtime.ranks import Rank
from cog.runtime.resume_dir import ResumeFolder
from cog.runtime.state_file import StateFile

SMALL = ("FT_EXTRACT.IMAGE_RESIZE_SIZE", "12", "FT_EXTRACT.IMAGE_CROP_SIZE", "10")
CLASSES = ("crow", "duck", "wren")
CPU = torch.device("cpu")
ALONE = Group(Rank(), CPU)

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
def loader_with_norm(tmp_path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(LOADER)
    return path


def recipe(**changes) -> FineTuneRecipe:
    values = dict(
        seed=5, n_epochs=2, batch_size=8, per_pass=4, lr=0.05, momentum=0.9, weight_decay=1e-3, warmup_epochs=1.0,
        clip_norm=0.0, crop_scale=(0.3, 1.0), precision="fp32", resize=12, crop=10,
        mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4),
    )  # fmt: skip
    return FineTuneRecipe(**(values | changes))


def backbone(path: Path) -> Backbone:
    space: dict = {}
    exec(path.read_text(), space)
    model, forward = space["load_my_model"]({})
    return Backbone(model, forward, name="my_net")


def build(path: Path, **changes):
    steps = recipe(**changes)
    return network.build(backbone(path), steps, n_classes=3, device=CPU), steps


def lists(birds: Path):
    return [datasets.OWN.images("birds", split, {"images_root": str(birds)}) for split in ("train", "test")]


@pytest.fixture
def train(loader_with_norm, birds, tmp_path):
    """Return a function that trains in this process, and returns the network and the outcome."""

    def train_(*, n_workers=0, resume=None, **changes):
        model, steps = build(loader_with_norm, **changes)
        resume = resume or ResumeFolder(tempfile.mkdtemp(dir=tmp_path))
        trained = training.train(
            model, *lists(birds), steps, ALONE, n_workers=n_workers, allow_failures=0, resume=resume
        )
        return model, trained

    return train_


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for name, tensor in a.state_dict().items():
        assert torch.equal(tensor, b.state_dict()[name]), name


# --- recipe and random choices


def test_learning_rate_warms_up_and_decays_to_zero():
    steps = recipe(n_epochs=5, lr=2.0, warmup_epochs=1.0)
    rates = [steps.lr_at(step, 10) for step in range(50)]
    assert rates[:11] == pytest.approx([*(0.2 * k for k in range(1, 11)), 2.0])
    assert rates[30] == pytest.approx(1.0) and 0 < rates[49] < 0.01
    assert recipe(warmup_epochs=0.0).lr_at(0, 10) == 0.05


@pytest.mark.parametrize(
    ("changes", "n_processes", "words"),
    [
        ({"warmup_epochs": 2.0}, 1, "FINETUNE.WARMUP_EPOCHS"),
        ({"batch_size": 9}, 1, "no multiple"),
        ({"batch_size": 8, "per_pass": 8}, 2, "set FINETUNE.BATCH_PER_DEVICE 4"),
        ({"batch_size": 12, "per_pass": 4}, 2, "set FINETUNE.BATCH_PER_DEVICE 3"),
        ({"batch_size": 8, "per_pass": 4}, 3, "change FINETUNE.BATCH_SIZE"),
    ],
)
def test_batches_that_cannot_be_shared_are_refused(changes, n_processes, words):
    with pytest.raises(CogError, match=words):
        recipe(**changes).passes_per_process(n_processes)


def test_random_choices_depend_on_their_position_alone():
    steps = recipe(seed=1)
    first = steps.generator("image", 3, 7).random(4)
    steps.generator("image", 3, 8).random(100)
    assert (first == steps.generator("image", 3, 7).random(4)).all()
    assert not (first == recipe(seed=2).generator("image", 3, 7).random(4)).any()
    others = [("order", 3, 7), ("image", 4, 7), ("image", 3, 8), ("image", 3)]
    assert not any((first == steps.generator(*key).random(4)).any() for key in others)
    # As saved states and published runs have them: neither may change.
    assert steps.generator("order", 2).permutation(6).tolist() == [2, 4, 1, 0, 5, 3]
    assert steps.torch_seed("head") == 548229121858069098


def test_random_boxes_cover_what_they_should():
    rng = np.random.default_rng(0)
    areas, ratios = [], []
    for _ in range(2000):
        left, top, right, bottom = random_box(300, 200, scale=(0.1, 0.6), ratio=(0.5, 2.0), rng=rng)
        assert 0 <= left < right <= 300 and 0 <= top < bottom <= 200
        areas.append((right - left) * (bottom - top) / 60000)
        ratios.append(math.log((right - left) / (bottom - top)))
    assert 0.095 < min(areas) < 0.11 and 0.55 < max(areas) < 0.61
    assert np.mean(areas) == pytest.approx(0.335, abs=0.015)  # large tall ones do not fit into a wide image
    assert min(ratios) < -0.6 and max(ratios) > 0.6 and max(map(abs, ratios)) < math.log(2) + 0.02


@pytest.mark.parametrize("size", [(400, 20), (20, 400), (30, 30)])
def test_boxes_that_do_not_fit_fall_back_as_torchvision_does(size):
    width, height = size
    # Areas larger than the image: no attempt succeeds.
    top, left, h, w = transforms.RandomResizedCrop.get_params(
        Image.new("RGB", size), [2.0, 3.0], [0.75, 4 / 3]
    )
    box = random_box(width, height, scale=(2.0, 3.0), ratio=(0.75, 4 / 3), rng=np.random.default_rng(0))
    assert box == (left, top, left + w, top + h)


def test_training_pixels_are_those_of_torchvision(tmp_path):
    path = tiny.write_image(tmp_path / "a.png", size=(40, 30), seed=3)
    mirrored = 0
    steps = recipe(crop=16, crop_scale=(0.08, 1.0))
    for seed in range(10):
        found = training_pixels(path, steps, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        left, top, right, bottom = random_box(40, 30, scale=(0.08, 1.0), ratio=(0.75, 4 / 3), rng=rng)
        image = transforms.functional.resized_crop(
            Image.open(path).convert("RGB"), top, left, bottom - top, right - left, [16, 16],
            transforms.InterpolationMode.BICUBIC,
        )  # fmt: skip
        if rng.random() < 0.5:
            image = transforms.functional.hflip(image)
            mirrored += 1
        assert (found == np.asarray(image)).all()
    assert 0 < mirrored < 10


# --- a plain loop beside it


def plain_epochs(model: nn.Module, birds: Path, steps: FineTuneRecipe) -> None:
    """The same training written down without processes, decoders or trainers of the toolkit's."""
    images, _ = lists(birds)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (steps.mean, steps.std))
    optimizer = torch.optim.SGD(
        [parameter for name, parameter in model.named_parameters() if "network.fc" not in name],
        lr=1.0, momentum=steps.momentum, weight_decay=steps.weight_decay,
    )  # fmt: skip
    norm = model.backbone.network.norm
    n_steps = len(images) // steps.batch_size
    model.train()
    for epoch in range(steps.n_epochs):
        order = steps.generator("order", epoch).permutation(len(images))
        for step in range(n_steps):
            optimizer.param_groups[0]["lr"] = steps.lr_at(epoch * n_steps + step, n_steps)
            rows = order[step * steps.batch_size : (step + 1) * steps.batch_size]
            batch = []
            for row in rows:
                rng = steps.generator("image", epoch, int(row))
                pixels = training_pixels(images.root / images.file(row), steps, rng)
                batch.append((torch.tensor(pixels.copy()).permute(2, 0, 1) / 255 - mean) / std)
            x, y = torch.stack(batch), torch.from_numpy(images.labels[rows])
            optimizer.zero_grad()
            means, variances = [], []
            before = norm.running_mean.clone(), norm.running_var.clone()
            for part_x, part_y in zip(x.split(steps.per_pass), y.split(steps.per_pass), strict=True):
                norm.running_mean.copy_(before[0])
                norm.running_var.copy_(before[1])
                (nn.functional.cross_entropy(model(part_x), part_y) * len(part_y) / len(y)).backward()
                means.append(norm.running_mean.clone())
                variances.append(norm.running_var.clone())
            norm.running_mean.copy_(torch.stack(means).mean(0))
            norm.running_var.copy_(torch.stack(variances).mean(0))
            optimizer.step()


@pytest.mark.parametrize("per_pass", [8, 4, 2])
def test_training_equals_a_plain_loop(train, birds, loader_with_norm, per_pass):
    model, trained = train(per_pass=per_pass)
    expected, steps = build(loader_with_norm, per_pass=per_pass)
    start = {name: tensor.clone() for name, tensor in expected.state_dict().items()}
    plain_epochs(expected, birds, steps)
    for name, tensor in expected.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
    assert torch.equal(model.state_dict()["backbone.network.fc.weight"], start["backbone.network.fc.weight"])
    assert not torch.allclose(
        model.state_dict()["backbone.network.conv.weight"], start["backbone.network.conv.weight"]
    )
    assert int(model.backbone.network.norm.num_batches_tracked) == 4
    assert all(len(values) == 2 for values in trained.logs.values())


def test_test_scores_are_those_of_the_plain_preprocessing(train, birds):
    model, trained = train()
    _, test = lists(birds)
    steps = recipe()
    transform = transforms.Compose([
        transforms.Resize(steps.resize, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(steps.crop),
        transforms.ToTensor(), transforms.Normalize(steps.mean, steps.std),
    ])  # fmt: skip
    images = [Image.open(test.root / test.file(row)).convert("RGB") for row in range(len(test))]
    x = torch.stack(list(map(transform, images)))
    y = torch.from_numpy(test.labels)
    with torch.inference_mode():
        logits = model.eval()(x)
    assert trained.score.predictions.tolist() == logits.argmax(1).tolist()
    assert trained.logs["test/top1"][-1] == pytest.approx(100 * float((logits.argmax(1) == y).float().mean()))
    assert trained.logs["test/loss"][-1] == pytest.approx(
        float(nn.functional.cross_entropy(logits, y)), rel=1e-5
    )
    assert trained.logs["test/top5"][-1] == 100.0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_is_near_float32(train, precision):
    exact, _ = train()
    rounded, trained = train(precision=precision)
    name = "backbone.network.conv.weight"
    assert rounded.state_dict()[name].dtype == torch.float32
    torch.testing.assert_close(rounded.state_dict()[name], exact.state_dict()[name], rtol=0.1, atol=0.02)
    assert all(math.isfinite(value) for value in trained.logs["train/loss"])


def test_gradients_are_clipped(train, loader_with_norm):
    free, _ = train(n_epochs=2, weight_decay=0.0)
    clipped, _ = train(n_epochs=2, weight_decay=0.0, clip_norm=1e-3)
    start, _ = build(loader_with_norm)

    def moved(model):
        return max(
            float((a - b).detach().abs().max())
            for a, b in zip(model.parameters(), start.parameters(), strict=True)
        )

    assert moved(clipped) < 4 * 0.05 * 1e-3 * 4 < moved(free)


@pytest.mark.parametrize("n_processes", [1, 2, 4])
def test_processes_share_the_passes_of_a_step(n_processes):
    steps, groups = recipe(batch_size=16), [Group(Rank(k, n_processes), CPU) for k in range(n_processes)]
    shares = [list(training._passes(steps, group, [1])) for group in groups]
    assert {len(share) for share in shares} == {4 // n_processes}
    assert [part for share in shares for part in share] == [(first, first + 4) for first in range(16, 32, 4)]


def test_number_of_workers_changes_nothing(train):
    alone, _ = train()
    helped, _ = train(n_workers=3)
    assert_same(alone, helped)


# --- interruptions


@pytest.mark.parametrize(
    ("precision", "n_steps"),
    first_quick(2, [("fp32", 3), ("fp16", 3), ("fp16", 1), ("fp32", 1)]),
)
def test_an_interrupted_run_continues_bit_for_bit(train, tmp_path, monkeypatch, n_steps, precision):
    whole, expected = train(precision=precision)
    calls = []
    with monkeypatch.context() as patch:
        done = Trainer.step

        def step(self, *args):
            sums, _ = done(self, *args)
            calls.append(0)
            return sums, len(calls) == n_steps

        patch.setattr(Trainer, "step", step)
        with pytest.raises(signals.Interrupted, match=f"{n_steps // 2} of 2 epochs are saved"):
            train(resume=ResumeFolder(tmp_path), precision=precision)
    resumed, trained = train(resume=ResumeFolder(tmp_path), precision=precision)
    assert_same(whole, resumed)
    assert trained.logs == expected.logs


def test_the_scale_of_the_loss_is_restored(loader_with_norm, tmp_path):
    trainers = [Trainer(*build(loader_with_norm, precision="fp16"), ALONE) for _ in range(2)]
    saved, restored = (trainer._scaler for trainer in trainers)
    saved.load_state_dict(saved.state_dict() | {"scale": 4.0, "_growth_tracker": 3})
    trainers[0].save(StateFile(tmp_path / "state.pth"), Position())
    trainers[1].load(tmp_path / "state.pth")
    assert restored.state_dict() == saved.state_dict()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", None])
def test_a_damaged_state_is_refused(train, tmp_path, content):
    path = tmp_path / ".resume/state.pth"
    path.parent.mkdir()
    if content is None:
        torch.save({"epoch": torch.tensor(0)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(
        CogError, match=r"state\.pth is not a readable state of this run .*; remove the file to start"
    ):
        train(resume=ResumeFolder(tmp_path))
    path.unlink()
    train(resume=ResumeFolder(tmp_path))


# --- what cannot be decoded, what diverges, what does not fit


def test_broken_images_have_no_part_in_the_loss(birds):
    steps = recipe()
    train, _ = lists(birds)
    (birds / "train/duck/duck_2.png").write_bytes(b"no image")
    broken = next(row for row in range(len(train)) if train.file(row).endswith("duck_2.png"))
    decoder = TrainingDecoder(train, steps, epoch=0)
    place = decoder.order.tolist().index(broken)
    first = place - place % 3
    (part,) = decoded([decoder], [(0, first, first + 3)], n_workers=0)
    expected = train.labels[decoder.order[first : first + 3]].tolist()
    expected[place - first] = NO_LABEL
    assert decoder.labels(first, part).tolist() == expected and [row for row, _ in part.failures] == [place]
    assert [int(pixels.max()) > 0 for pixels in part.pixels] == [label != NO_LABEL for label in expected]


def test_evaluation_leaves_out_what_cannot_be_decoded(birds, loader_with_norm):
    model, steps = build(loader_with_norm)
    _, test = lists(birds)
    whole = evaluate(model, test, steps, ALONE, n_workers=0)
    (birds / "test/crow/crow_0.png").write_bytes(b"no image")
    less = evaluate(model, test, steps, ALONE, n_workers=2)
    assert less.predictions.tolist() == [-1, *whole.predictions.tolist()[1:]]
    assert less.n_failed == 1 and less.failures[0][0] == "crow/crow_0.png"
    right = (less.predictions == torch.from_numpy(test.labels)).sum()
    assert less.top1 == pytest.approx(100 * int(right) / 8)


def arguments(birds: Path, file: Path, output: Path, *more: str) -> list[str]:
    return [
        "--model", "my_net", "--dataset", "birds", "--images_root", str(birds), "--model_loader",
        f"{file}:load_my_model", "--output_dir", str(output), "--device", "cpu",
        *SMALL, "FT_EXTRACT.N_WORKERS", "0",
        "FINETUNE.N_EPOCHS", "2", "FINETUNE.BATCH_SIZE", "8", "FINETUNE.BATCH_PER_DEVICE", "4", "FINETUNE.LR", "1.6",
        *more,
    ]  # fmt: skip


@pytest.fixture
def fine_tune(birds, loader_with_norm, tmp_path):
    """Return a function that runs finetune.py on the birds, into ``tmp_path / "out"`` by default."""

    def fine_tune_(*more, output="out"):
        return finetune.main(arguments(birds, loader_with_norm, tmp_path / output, *more))

    return fine_tune_


@pytest.fixture
def in_models(birds, loader_with_norm, tmp_path):
    """Return a function that returns arguments with ``--models_root_dir``, where ``my_net`` has a folder."""
    (tmp_path / "models/my/net").mkdir(parents=True)

    def arguments_(*more):
        given = arguments(birds, loader_with_norm, tmp_path / "out", *more)
        place = given.index("--output_dir")
        return [*given[:place], "--models_root_dir", str(tmp_path / "models"), *given[place + 2 :]]

    return arguments_


def last(output: Path, name: str):
    (path,) = output.glob(f"final-*/{name}")
    return torch.load(path, weights_only=True)


def run_process(command, **environment) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["FINETUNE.BATCH_SIZE", "20", "FINETUNE.BATCH_PER_DEVICE", "20"], "18 training images"),
        (["CLF.MAX_PER_CLASS", "4"], "CLF.MAX_PER_CLASS is for classifiers of features"),
        (["CLF.TYPE", "mlp"], "CLF.TYPE"),
        (["EVAL.NAME", "mlp_noact"], "EVAL.NAME mlp_noact is the name of runs with CLF.TYPE mlp_noact"),
        (["FINETUNE.WARMUP_EPOCHS", "7"], "FINETUNE.WARMUP_EPOCHS 7"),
        (["FINETUNE.LR", "0"], "FINETUNE.LR"),
        (["FINETUNE.LR", "1e38"], "not finite in epoch 1, step "),
    ],
)
def test_bad_settings_end_in_one_line_and_leave_no_result(fine_tune, tmp_path, more, words):
    output = tmp_path / "out"
    with pytest.raises(CogError) as error:
        fine_tune(*more)
    assert words in str(error.value) and error.value.exit_code == 2
    assert not (output / "results.json").exists()


def test_a_single_class_and_classes_that_differ_are_refused(fine_tune, birds, loader_with_norm, tmp_path):
    (birds / "test/wren").rename(birds / "test/swan")
    with pytest.raises(CogError, match="differ in swan, wren"):
        fine_tune()
    one = tmp_path / "one"
    for split in ("train", "test"):
        tiny.write_class_folders(one / split, classes=("crow",), n_images=9, suffix=".png")
    with pytest.raises(CogError, match="single class crow"):
        finetune.main(arguments(one, loader_with_norm, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.nn.Flatten(), None", "has no parameters: nothing can be fine-tuned"),
        ("return torch.nn.Conv2d(3, 4, 3), None", "expected (1, D)"),
        (
            "return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(7, 4)), None",
            "does not take images of 10 x 10",
        ),
    ],
)  # fmt: skip
def test_networks_that_cannot_be_trained(birds, tmp_path, body, words):
    file = tmp_path / "bad.py"
    file.write_text(f"import torch\ndef load_my_model(init_args):\n    {body}\n")
    with pytest.raises(CogError) as error:
        finetune.main(arguments(birds, file, tmp_path / "out"))
    assert words in str(error.value)
    assert json.loads((tmp_path / "out/.failed.json").read_text())["message"] == str(error.value)


def test_failed_images_end_with_exit_code_3_unless_allowed(fine_tune, birds, tmp_path):
    for name in ("train/duck/duck_2.png", "test/crow/crow_1.png"):
        (birds / name).write_bytes(b"no image")
    few = ("FINETUNE.BATCH_SIZE", "6", "FINETUNE.BATCH_PER_DEVICE", "6")
    for allowed in ("0", "1"):
        with pytest.raises(CogError, match="cannot be decoded") as error:
            fine_tune(*few, "--allow_failures", allowed, "--overwrite")
        assert error.value.exit_code == 3
    assert fine_tune(*few, "--allow_failures", "2", "--overwrite") == 0
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert found["n_failed_images"] == {"train": 1, "test": 1}
    assert found["rows"]["final_train"] == 17 and found["rows"]["test"] == 8


def test_a_network_that_diverges_at_the_end_is_told(train, loader_with_norm):
    head = "def features(self, x):"
    loader_with_norm.write_text(LOADER.replace(head, f"{head}\n        x = x if self.training else x / 0"))
    with pytest.raises(CogError, match=r"not finite in the test after epoch 1: .* lower FINETUNE\.LR"):
        train()


# --- the command


def test_a_run_is_read_by_print_results(in_models, birds, loader_with_norm, tmp_path, capsys):
    for seed in ("22", "37"):
        assert finetune.main(in_models("EVAL.SEED", seed)) == 0
    folder = tmp_path / "models/my/net/birds/eval_finetune/seed-22"
    expected = {"results.json", "program.log"}
    assert {path.name for path in folder.iterdir()} >= expected
    assert not (folder / ".resume").exists() and not (folder / ".lock").exists()
    top1 = json.loads((folder / "results.json").read_text())["final"]["test_top1"]
    assert f"top-1: {top1:.2f}" in capsys.readouterr().out
    read = runs.find(tmp_path / "models", evaluations={"finetune"})
    found, problems = read.runs, read.skipped
    places = [(run.model, run.dataset, run.seed) for run in found]
    assert places == [("my_net", "birds", 22), ("my_net", "birds", 37)]
    assert found[0].top1 == pytest.approx(top1) and not problems
    # The saved network, frozen, with the saved classifier gives the saved predictions.
    saved, head = backbone(loader_with_norm), last(folder, "model.pth")["model"]
    saved.network.load_state_dict(last(folder, "backbone.pth")["state_dict"])
    fx = config.get_cfg(opts=SMALL).FT_EXTRACT
    preprocess = Preprocess(fx.IMAGE_CROP_SIZE, fx.IMAGE_RESIZE_SIZE)
    x = extract(Extractor(saved, preprocess, CPU), Decoder(lists(birds)[1], preprocess)).x
    (predictions,) = pickle.loads(next(folder.glob("final-*/preds.pkl")).read_bytes())
    assert (x @ head["weight"].T + head["bias"]).argmax(1).tolist() == predictions.tolist()


def test_several_data_sets_one_after_the_other(fine_tune, in_models, tmp_path, monkeypatch):
    two = ("--dataset", "crows", "ducks")
    with pytest.raises(CogError, match="--output_dir is of one data set, and --dataset names 2"):
        fine_tune(*two)
    assert finetune.main(in_models(*two)) == 0
    for name in ("crows", "ducks"):
        assert (tmp_path / f"models/my/net/{name}/eval_finetune/seed-22/results.json").is_file()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CogError, match="processes that torchrun starts work on one"):
        finetune.main(in_models(*two))


def test_complete_runs_are_skipped_and_others_refused(birds, loader_with_norm, tmp_path, caplog):
    output = tmp_path / "out"
    flags = arguments(birds, loader_with_norm, output)
    assert finetune.main(flags) == 0
    before = tiny.snapshot(output)
    assert finetune.main(flags) == 0
    assert tiny.snapshot(output) == before
    with pytest.raises(CogError, match=r"lr: 0\.05 -> 0\.025.*--overwrite"):
        finetune.main([*flags, "FINETUNE.LR", "0.8"])
    assert tiny.snapshot(output) == before
    assert finetune.main([*flags, "FINETUNE.LR", "0.8", "--overwrite"]) == 0
    assert len(list(output.glob("final-*"))) == 1
    assert json.loads((output / "results.json").read_text())["identity"]["lr"] == 0.025


def test_sigterm_saves_and_the_same_command_continues(fine_tune, tmp_path, monkeypatch):
    whole, output = tmp_path / "whole", tmp_path / "out"
    assert fine_tune(output="whole") == 0
    done = Trainer.step

    def step_and_signal(self, parts, lr, epoch, step):
        if (epoch, step) == (1, 0):
            os.kill(os.getpid(), signal.SIGTERM)
        return done(self, parts, lr, epoch, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", step_and_signal)
        with pytest.raises(signals.Interrupted, match="SIGTERM: 1 of 2 epochs are saved") as error:
            fine_tune()
    assert error.value.exit_code == 75
    assert sorted(os.listdir(output)) == [".resume"]
    # Another run must not continue it.
    with pytest.raises(CogError, match=r"beginning of different work.*seed: 22 -> 23"):
        fine_tune("EVAL.SEED", "23")
    assert fine_tune("FT_EXTRACT.N_WORKERS", "2") == 0
    for name in ("model.pth", "backbone.pth"):
        expected, found = (next(iter(last(folder, name).values())) for folder in (whole, output))
        assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert sorted(os.listdir(output)) == sorted(os.listdir(whole))


@pytest.mark.parametrize(
    ("late", "done"), [("trainer.Trainer.step", False), ("trainer.Trainer.save", True), ("job._write", True)]
)
def test_who_comes_late_writes_nothing(fine_tune, tmp_path, monkeypatch, late, done):
    """Another process has the folder by now: no state and no result of the one that stood still."""
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        before = taken_over_at(patch, f"cog.finetune.{late}", output, done=done)
        with pytest.raises(LockedError, match="taken over by .* on elsewhere"):
            fine_tune()
    after = tiny.snapshot(output)
    after.pop(".resume/program.log", None)  # open since before, it may tell of the end
    assert after == {name: entry for name, entry in before[0].items() if "program.log" not in name}
    (output / ".lock").unlink()
    assert fine_tune() == 0


@pytest.mark.slow
def test_two_processes_equal_one(repository, birds, loader_with_norm, tmp_path, python):
    """Same passes, shared: the same up to the order of sums."""
    script = str(repository / "finetune.py")
    starts = {
        "one": [python, script],
        "two": [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script],
    }  # fmt: skip
    found = {}
    for name, start in starts.items():
        command = [*start, *arguments(birds, loader_with_norm, tmp_path / name)]
        done = run_process(command, GLOO_SOCKET_IFNAME="lo")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("top-1:") == 1
        found[name] = last(tmp_path / name, "backbone.pth")["state_dict"]
    for key, tensor in found["one"].items():
        torch.testing.assert_close(found["two"][key], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_all_models_can_be_trained():
    """Every parameter of every registered backbone gets a gradient in training mode (shapes alone: no memory)."""
    from cog.models.networks import build
    from cog.models.paper_models import MODELS

    seen = set()
    for spec in MODELS.values():
        if spec.network in seen:
            continue
        seen.add(spec.network)
        model = build(spec).train()
        with torch.device("meta"):
            features = model(torch.empty(2, 3, spec.size, spec.size))
            features.sum().backward()
        assert features.shape == (2, spec.dim), spec.name
        assert all(parameter.grad is not None for parameter in model.parameters()), spec.name


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32"])
def test_a_gpu_trains_and_continues(birds, loader_with_norm, tmp_path, monkeypatch, precision):
    output = tmp_path / "out"
    flags = arguments(birds, loader_with_norm, output, "FINETUNE.PRECISION", precision)
    flags[flags.index("--device") + 1] = "cuda"
    with monkeypatch.context() as patch:
        patch.setattr(signals, "requested", lambda: "SIGTERM")
        with pytest.raises(signals.Interrupted):
            finetune.main(flags)
    assert finetune.main(flags) == 0
    found = json.loads((output / "results.json").read_text())
    assert math.isfinite(found["final"]["test_top1"]) and found["n_processes"] == 1
