"""What ``doctor`` tries: all that a study does, beside plain PyTorch in float32 on the CPU."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.nn import functional

from cog.data.pixels import load_rgb
from cog.errors import CogError, first_line
from cog.features.extract import extract_features
from cog.features.feature_files import FeatureSet
from cog.levels import wordnet
from cog.logreg.engine import Engine, cpu_has_bfloat16, learning_rate
from cog.logreg.mlp import initial_layers
from cog.logreg.settings import Settings
from cog.runtime.device import exact_float32, resolve_device
from cog.runtime.log import versions
from cog.runtime.memory import available_memory, n_processors
from cog.runtime.seeds import cpu_generator, torch_seed

OK, WARNING, PROBLEM = "ok", "warning", "problem"

#: Largest error of trained weights relative to their way, smallest cosine of features; by precision.
WEIGHT_ERRORS = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 5e-2}
COSINES = {"fp32": 0.9999, "tf32": 0.999, "fp16": 0.99, "bf16": 0.98}

N_TRAIN = 1_100_000  # images of a level (paper, Sec. 3)
ROWS, DIM, CLASSES, IMAGES, NETWORK = 4096, 2048, 1000, 8, "resnet50"  # of the trials


def examine(device_name: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield level, subject and text of what is found; an error of a part is a problem."""
    device = torch.device("cpu")
    for look in (_software, _device, _decoders, _classifiers, _extraction):
        subject = look.__name__.strip("_")
        try:
            if subject == "device":
                device = resolve_device(device_name)
            for level, text in look(device):
                yield level, subject, text
        except Exception as error:
            is_known = isinstance(error, CogError | OSError)
            yield PROBLEM, subject, str(error) if is_known else f"{type(error).__name__}: {first_line(error)}"


def _software(device: torch.device) -> Iterator[tuple[str, str]]:
    packages = ("torch", "torchvision", "timm", "optuna", "numpy", "scikit-learn", "scipy", "pillow")
    yield OK, ", ".join(f"{name} {version}" for name, version in versions(packages).items())
    yield OK, f"sbatch was {'found: study.sh slurm=...' if shutil.which('sbatch') else 'not found: no SLURM'}"
    try:
        yield OK, f"WordNet: {len(wordnet.load_wordnet().wnids):,} noun synsets"
    except CogError as error:
        yield WARNING, f"{error} (only build_levels.py needs it)"


def _device(device: torch.device) -> Iterator[tuple[str, str]]:
    yield OK, f"CPU: {torch.get_num_threads()} threads, bfloat16 instructions: {cpu_has_bfloat16()}"
    if device.type == "cuda":
        version = f"PyTorch for CUDA {torch.version.cuda or torch.version.hip}"
        yield OK, f"{device}: {torch.cuda.get_device_properties(device)}; {version}"
    elif not torch.cuda.is_available():
        yield WARNING, "no GPU is visible here: the full benchmark takes weeks on a CPU"
    needed, available = 4 * DIM * N_TRAIN, available_memory() or 0
    text = f"{needed / 1e9:.3g} GB for features of a level ({DIM} wide), {available / 1e9:.3g} GB are free"
    yield (OK, text) if available >= needed else (WARNING, f"{text}: ask for more memory")


def _decoders(device: torch.device) -> Iterator[tuple[str, str]]:
    with tempfile.NamedTemporaryFile(suffix=".JPEG") as file:
        _picture(0).save(file.name, quality=95)
        pixels = np.asarray(load_rgb(Path(file.name)), dtype=float)
    error = np.abs(pixels - np.asarray(_picture(0))).mean()
    yield _judge(error <= 8, "JPEG", f"pixels differ by {error:.1f} of 255 in the mean")


def _picture(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)


def _judge(is_good: bool, what: str, found: str) -> tuple[str, str]:
    return (OK, f"{what}: {found}") if is_good else (PROBLEM, f"{what}: {found}; do not use it here")


def _precisions(device: torch.device, known: dict[str, float]) -> list[str]:
    if device.type == "cpu":
        return ["fp32", *["bf16"] * cpu_has_bfloat16()]
    is_new = torch.cuda.get_device_capability(device) >= (8, 0)  # tf32 and bfloat16
    return [name for name in known if is_new or name in ("fp32", "fp16")]


def _classifiers(device: torch.device) -> Iterator[tuple[str, str]]:
    """Train in every precision on clouds around one center per class, beside ``torch.optim.SGD``."""
    y, settings = torch.arange(ROWS) % CLASSES, Settings(seed=0, n_epochs=2)
    x = torch.randn(CLASSES, DIM, generator=cpu_generator(0))[y]
    x = functional.normalize(x + 2 * torch.randn(ROWS, DIM, generator=cpu_generator(1)))
    train, test = FeatureSet(x, y, "doctor"), FeatureSet(-x[:CLASSES], y[:CLASSES], "doctor")
    start = initial_layers([DIM, CLASSES], torch_seed(0, "init"))[0]
    plain = [tensor.clone().requires_grad_() for tensor in start]
    sgd = torch.optim.SGD(plain, momentum=settings.momentum, weight_decay=1e-6)
    with exact_float32():
        generator = cpu_generator(torch_seed(0, "order"))
        for epoch in range(settings.n_epochs):
            sgd.param_groups[0]["lr"] = learning_rate(10.0, epoch, settings.n_epochs)
            for batch in torch.randperm(ROWS, generator=generator).split(settings.batch_size):
                sgd.zero_grad()
                functional.cross_entropy(functional.linear(x[batch], *plain), y[batch]).backward()
                sgd.step()
    rows, expected = torch.arange(ROWS)[None], plain[0].detach()
    many = rows.repeat(1, 1 if device.type == "cpu" else 64)
    for precision in _precisions(device, WEIGHT_ERRORS):
        engine, pairs, held_out = Engine(device, precision), [[(10.0, 1e-6)]], rows[:, :1]
        data = engine.prepare(train, test, settings)
        trained = engine.fit(data, [settings], rows, pairs, val_rows=held_out)
        weights = trained.learner.layers(0, 0)[0][0].cpu()
        error = float((weights - expected).norm() / (expected - start[0]).norm())
        for n_epochs in (1, 5):  # the first one compiles
            timed = Settings(seed=0, n_epochs=n_epochs)
            seconds = engine.fit(data, [timed], many, pairs, val_rows=held_out).seconds
        rate = 5 * -(-many.shape[1] // settings.batch_size) / seconds
        minutes = 100 * (30 * 0.8 + 1) * N_TRAIN / settings.batch_size / rate / 60
        found = f"weights within {error:.1g} of plain PyTorch on the CPU, {rate:.3g} steps/s: about "
        found += f"{minutes:.1f} minutes for a run on a level"
        yield _judge(error <= WEIGHT_ERRORS[precision], f"CLF.PRECISION {precision}", found)


def _extraction(device: torch.device) -> Iterator[tuple[str, str]]:
    """Extract features in every precision with a network of noise, and compare with float32 on the CPU."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = torchvision.models.get_model(NETWORK, weights=None)
        network.fc = torch.nn.Identity()
        network.train()(torch.randn(8, 3, 224, 224))  # statistics that give features of the usual scale
    n, n_workers = (IMAGES, 0) if device.type == "cpu" else (64 * IMAGES, n_processors())
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name, "train", "pictures")).mkdir(parents=True)
        for number in range(n):
            _picture(number % IMAGES).save(folder / f"{number:04d}.JPEG", quality=90)
            if number + 1 == IMAGES:  # the others are for the speed of a GPU
                expected = extract_features(network.eval(), folder.parent, device="cpu").x
        for precision in _precisions(device, COSINES):
            began, opts = time.monotonic(), ["FT_EXTRACT.PRECISION", precision]
            x = extract_features(network, folder.parent, device=str(device), n_workers=n_workers, opts=opts).x
            rate = n / (time.monotonic() - began)
            cosine = float(functional.cosine_similarity(x[:IMAGES], expected).min())
            found = f"cosine {cosine:.5f} to fp32 on the CPU, {rate:.3g} images/s: about "
            found += f"{7.1e6 / rate / 3600:.1f} hours for the 7.1 million images of a model"
            yield _judge(cosine >= COSINES[precision], f"FT_EXTRACT.PRECISION {precision}", found)
