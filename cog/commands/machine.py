"""What ``doctor`` tries: all that a study does, beside plain PyTorch in float32 on the CPU."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image

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

#: Rows, width, classes, images and network of the trials.
ROWS, DIM, CLASSES, IMAGES, NETWORK = 4096, 2048, 1000, 8, "resnet50"


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
    with tempfile.TemporaryDirectory() as folder:
        _picture(0).save(path := Path(folder, "picture.JPEG"), quality=95)
        began = time.monotonic()
        error = np.abs(np.asarray(load_rgb(path), dtype=float) - np.asarray(_picture(0))).mean()
    if error > 8:
        raise CogError(f"JPEG is decoded to other pixels (mean difference {error:.1f} of 255)")
    yield OK, f"a JPEG file of 500 x 375 pixels takes {1000 * (time.monotonic() - began):.1f} ms"


def _picture(seed: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)


def _precisions(device: torch.device, known: dict[str, float]) -> list[str]:
    if device.type == "cpu":
        return ["fp32", *["bf16"] * cpu_has_bfloat16()]
    is_new = torch.cuda.get_device_capability(device) >= (8, 0)  # tf32 and bfloat16
    return [name for name in known if is_new or name in ("fp32", "fp16")]


def _classifiers(device: torch.device) -> Iterator[tuple[str, str]]:
    """Train in every precision on clouds around one center per class, beside ``torch.optim.SGD``."""
    y, settings = torch.arange(ROWS) % CLASSES, Settings(seed=0, n_epochs=2)
    x = torch.randn(CLASSES, DIM, generator=cpu_generator(0))[y]
    x = torch.nn.functional.normalize(x + 2 * torch.randn(ROWS, DIM, generator=cpu_generator(1)))
    train, test = FeatureSet(x, y, "doctor"), FeatureSet(-x[:CLASSES], y[:CLASSES], "doctor")
    start = initial_layers([DIM, CLASSES], torch_seed(0, "init"))[0]
    plain, generator = torch.nn.Linear(DIM, CLASSES), cpu_generator(torch_seed(0, "order"))
    for parameter, initial in zip(plain.parameters(), start, strict=True):
        parameter.data.copy_(initial)
    sgd = torch.optim.SGD(plain.parameters(), momentum=settings.momentum, weight_decay=1e-6)
    with exact_float32():
        for epoch in range(settings.n_epochs):
            sgd.param_groups[0]["lr"] = learning_rate(10.0, epoch, settings.n_epochs)
            for batch in torch.randperm(ROWS, generator=generator).split(settings.batch_size):
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(plain(x[batch]), y[batch]).backward()
                sgd.step()
    expected = plain.weight.detach()
    way, rows, pairs = (expected - start[0]).norm(), torch.arange(ROWS)[None], [[(10.0, 1e-6)]]
    for precision in _precisions(device, WEIGHT_ERRORS):
        engine = Engine(device, precision)
        data = engine.prepare(train, test, settings)
        trained = engine.fit(data, [settings], rows, pairs, val_rows=rows[:, :1])
        error = float((trained.learner.layers(0, 0)[0][0].cpu() - expected).norm() / way)
        many, times = rows.repeat(1, 1 if device.type == "cpu" else 64), []
        for n_epochs in (1, 1, 5):  # the first one compiles; the difference of the others has no start-up
            began, timed = time.monotonic(), dataclasses.replace(settings, n_epochs=n_epochs)
            engine.fit(data, [timed], many, pairs, val_rows=rows[:, :1])
            times.append(time.monotonic() - began)
        rate = 4 * -(-many.shape[1] // settings.batch_size) / max(times[2] - times[1], 1e-9)
        seconds = 100 * (30 * 0.8 + 1) * N_TRAIN / settings.batch_size / rate
        text = f"{precision}: weights within {error:.1g} of plain PyTorch on the CPU; {rate:.3g} steps/s"
        good = f"{text}: a run on a level takes about {seconds / 60:.1f} minutes"
        bad = f"{text}: do not use CLF.PRECISION {precision} here"
        yield (OK, good) if error <= WEIGHT_ERRORS[precision] else (PROBLEM, bad)


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
            cosine = float(torch.nn.functional.cosine_similarity(x[:IMAGES], expected).min())
            text = f"{precision}: {rate:.3g} images/s, cosine {cosine:.5f} to fp32 on the CPU"
            good = f"{text}: the 7.1 million images of a model take about {7.1e6 / rate / 3600:.1f} hours"
            bad = f"{text}: do not use FT_EXTRACT.PRECISION {precision} here"
            yield (OK, good) if cosine >= COSINES[precision] else (PROBLEM, bad)
