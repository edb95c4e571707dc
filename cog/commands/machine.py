"""What ``doctor`` tries: all that a study does, beside plain PyTorch in float32 on the CPU."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from cog.data.pixels import load_rgb
from cog.errors import CogError
from cog.features.extract import extract_features
from cog.features.feature_files import FeatureSet
from cog.levels import wordnet
from cog.logreg.engine import Engine, cpu_has_bfloat16
from cog.logreg.settings import Settings
from cog.runtime import log, memory, seeds
from cog.runtime.device import exact_float32, resolve_device

LEVELS = {True: "ok", None: "warning", False: "problem"}  # of findings that are good, not needed, bad
#: Largest error of trained weights relative to their way, smallest cosine of features; by precision.
WEIGHT_ERRORS = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 5e-2}
COSINES = {"fp32": 0.9999, "tf32": 0.999, "fp16": 0.99, "bf16": 0.98}
N_TRAIN = 1_100_000  # images of a level (paper, Sec. 3)
ROWS, DIM, CLASSES, IMAGES, NETWORK = 8192, 2048, 1000, 8, "resnet50"  # of the trials


def examine(device_name: str | None) -> Iterator[tuple[str, str, str]]:
    """Yield level, subject and text of what is found; an error of a part is a problem."""
    device = torch.device("cpu")
    for look in (_software, _device, _classifiers, _extraction):
        subject = look.__name__[1:]
        try:
            device = resolve_device(device_name) if look is _device else device
            for is_good, text in look(device):
                yield LEVELS[is_good], subject, text + "; do not use it here" * (is_good is False)
        except Exception as error:
            yield LEVELS[False], subject, str(error) if isinstance(error, CogError | OSError) else repr(error)


def _software(device: torch.device) -> Iterator[tuple[bool | None, str]]:
    packages = ("torch", "torchvision", "timm", "optuna", "numpy", "scikit-learn", "scipy", "pillow")
    found = ", ".join(map(" ".join, log.versions(packages).items()))
    yield True, f"{found}; SLURM: {shutil.which('sbatch') or 'no sbatch'}"
    try:
        yield True, f"WordNet: {len(wordnet.load_wordnet().wnids):,} noun synsets"
    except CogError as error:
        yield None, f"{error} (only build_levels.py needs it)"


def _device(device: torch.device) -> Iterator[tuple[bool | None, str]]:
    yield True, f"CPU: {torch.get_num_threads()} threads, bfloat16 instructions: {cpu_has_bfloat16()}"
    if device.type == "cuda":
        yield True, f"{device}: {torch.cuda.get_device_properties(device)}; CUDA {torch.version.cuda}"
    elif not torch.cuda.is_available():
        yield None, "no GPU is visible here: the full benchmark takes weeks on a CPU"
    needed, free = 4e-9 * DIM * N_TRAIN, 1e-9 * (memory.available_memory() or 0)
    yield free >= needed or None, f"{free:.3g} GB are free, features of a level take {needed:.3g} GB"


def _precisions(device: torch.device, known: dict[str, float]) -> list[str]:
    if device.type == "cpu":
        return ["fp32", *["bf16"] * cpu_has_bfloat16()]
    is_new = torch.cuda.get_device_capability(device) >= (8, 0)  # tf32 and bfloat16
    return [name for name in known if is_new or name in ("fp32", "fp16")]


def _classifiers(device: torch.device) -> Iterator[tuple[bool, str]]:
    y, rows, once = torch.arange(ROWS) % CLASSES, torch.arange(ROWS)[None], Settings(seed=0, n_epochs=1)
    many, lr, wd = rows.repeat(1, 1 if device.type == "cpu" else 32), 10.0, 1e-6
    with torch.random.fork_rng(devices=[]), exact_float32():
        torch.manual_seed(seeds.torch_seed(0, "init"))
        plain = torch.nn.Linear(DIM, CLASSES)
        start = plain.weight.detach().clone()
        x = functional.normalize(torch.randn(CLASSES, DIM)[y] + 2 * torch.randn(ROWS, DIM))
        sgd = torch.optim.SGD(plain.parameters(), lr=lr, momentum=once.momentum, weight_decay=wd)
        torch.manual_seed(seeds.torch_seed(0, "order"))
        for batch in torch.randperm(ROWS).split(once.batch_size):
            sgd.zero_grad()
            functional.cross_entropy(plain(x[batch]), y[batch]).backward()
            sgd.step()
    for precision in _precisions(device, WEIGHT_ERRORS):
        engine, pairs, val = Engine(device, precision), [[(lr, wd)]], rows[:, :1]
        data = engine.prepare(FeatureSet(x, y, "train"), FeatureSet(-x[:CLASSES], y[:CLASSES], "test"), once)
        weights = engine.fit(data, [once], rows, pairs, val_rows=val).learner.layers(0, 0)[0][0].cpu()
        error = ((weights - plain.weight).norm() / (plain.weight - start).norm()).item()
        for n in (1, 5):  # epochs; the first one compiles
            seconds = engine.fit(data, [Settings(seed=0, n_epochs=n)], many, pairs, val_rows=val).seconds
        rate = 5 * -(-many.shape[1] // once.batch_size) / seconds
        minutes = 100 * (30 * 0.8 + 1) * N_TRAIN / once.batch_size / rate / 60  # all trials, the final run
        found = f"weights within {error:.1g} of plain PyTorch, {rate:.3g} steps/s: {minutes:.1f} minutes"
        yield error <= WEIGHT_ERRORS[precision], f"CLF.PRECISION {precision}: {found} for a run on a level"


def _extraction(device: torch.device) -> Iterator[tuple[bool, str]]:
    import timm

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = timm.create_model(NETWORK, num_classes=0, zero_init_last=False)
        network.train()(torch.randn(8, 3, 224, 224))  # statistics that give features of the usual scale
    n, n_workers = (IMAGES, 0) if device.type == "cpu" else (64 * IMAGES, memory.n_processors())
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name, "train", "pictures")).mkdir(parents=True)
        for number in range(n):  # those beyond IMAGES are for the speed of a GPU
            coarse = np.random.default_rng(number % IMAGES).integers(0, 256, (6, 8, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
            picture.save(folder / f"{number:04d}.JPEG", quality=95)
            if number + 1 == IMAGES:
                expected = extract_features(network.eval(), folder.parent, device="cpu").x
        error = np.abs(np.asarray(load_rgb(folder / f"{n - 1:04d}.JPEG"), float) - np.asarray(picture)).mean()
        yield bool(error <= 8), f"JPEG: decoded pixels differ by {error:.1f} of 255 in the mean"
        for precision in _precisions(device, COSINES):
            began, opts = time.monotonic(), ["FT_EXTRACT.PRECISION", precision]
            x = extract_features(network, folder.parent, device=str(device), n_workers=n_workers, opts=opts).x
            rate = n / (time.monotonic() - began)
            cosine = float(functional.cosine_similarity(x[:IMAGES], expected).min())
            found = f"cosine {cosine:.5f} to fp32, {rate:.3g} images/s: {7.1e6 / rate / 3600:.1f} hours"
            yield cosine >= COSINES[precision], f"FT_EXTRACT.PRECISION {precision}: {found} for all data sets"
