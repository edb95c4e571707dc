"""A test of this machine: each part of the toolkit that a study uses, on real sizes, compared with a known answer.

Classifiers are compared with ``torch.nn.Linear`` and ``torch.optim.SGD`` in float32 on the CPU, features with those of
the same network in float32 on the CPU. Rates and durations are measured on this machine.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.metadata
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features

import cog
from cog.data import image_lists, loader
from cog.data.image_lists import ImageList
from cog.data.pixels import load_rgb
from cog.errors import CogError, first_line
from cog.features.extract import Extractor
from cog.features.feature_files import FeatureSet
from cog.logreg.engine import (
    TRIALS_TOGETHER,
    Engine,
    TrainSpec,
    cpu_has_bfloat16,
    learning_rate,
    resolve_precision,
)
from cog.logreg.features import Data
from cog.logreg.mlp import initial_layers
from cog.logreg.settings import Settings
from cog.models.backbone import Backbone
from cog.models.spec import IMAGENET_MEAN, IMAGENET_STD
from cog.runtime import log
from cog.runtime.device import exact_float32, require_precision, resolve_device
from cog.runtime.log import size
from cog.runtime.memory import available_memory, free_on_gpu
from cog.runtime.seeds import cpu_generator

_PACKAGES = ("torch", "torchvision", "optuna", "numpy", "scikit-learn", "scipy", "matplotlib", "pillow")

#: Largest error of trained weights, relative to their distance from the initial weights, by precision.
_WEIGHT_TOLERANCE = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 5e-2}

#: Smallest cosine between the features of an image and those in float32 on the CPU, by precision.
_COSINES = {"fp32": 0.9999, "tf32": 0.999, "fp16": 0.99, "bf16": 0.98}

#: Number of training images, of classes, and of test images of a level of the benchmark (paper, Sec. 3).
_LEVEL = (1_100_000, 1000, 50_000)

#: Number of images of the six data sets, both splits.
_N_IMAGES = 7_100_000

_RESIZE = _CROP = 224

Measured = dict[str, Any]

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclasses.dataclass(frozen=True)
class Finding:
    """An observation on a part of the machine; a problem is one that prevents a study."""

    level: str
    subject: str
    text: str


class Findings:
    """The findings, in order."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def ok(self, subject: str, text: str) -> None:
        """Add a finding without a fault."""
        self.findings.append(Finding(OK, subject, text))

    def warn(self, subject: str, text: str) -> None:
        """Add a finding that the user should know."""
        self.findings.append(Finding(WARNING, subject, text))

    def problem(self, subject: str, text: str) -> None:
        """Add a finding that prevents a study."""
        self.findings.append(Finding(PROBLEM, subject, text))

    @contextlib.contextmanager
    def step(self, subject: str) -> Iterator[None]:
        """Turn any error of the block into a problem, because the same error would end a study."""
        try:
            yield
        except (CogError, OSError) as error:
            self.problem(subject, str(error))
        except Exception as error:
            self.problem(subject, f"{type(error).__name__}: {first_line(error)}")

    @property
    def n_problems(self) -> int:
        """Number of problems."""
        return sum(finding.level == PROBLEM for finding in self.findings)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the computations.

    Attributes:
        n_rows: number of training features.
        dim: width of the features.
        n_classes: number of classes.
        batch_size: number of features per step.
        n_images: number of images for the rates; the features of the first eight are compared.
        network: name of a model of ``torchvision.models``.
    """

    n_rows: int = 8192
    dim: int = 2048
    n_classes: int = 1000
    batch_size: int = 1024
    n_images: int = 16
    network: str = "resnet50"


#: Sizes of the paper's features and classifiers of a ResNet-50.
SIZES = Sizes()


def examine(report: Findings, device_name: str | None) -> Measured:
    """Test all parts that a study uses on this machine.

    Args:
        report: report for the findings; a problem is a finding that prevents a study.
        device_name: value of ``--device``.

    Returns:
        JSON values of the measurements, by name.
    """
    sizes = SIZES
    measured: Measured = {}
    _look_at_software(report, measured)
    device = _look_at_device(report, device_name, measured)
    with report.step("decoders"):
        _look_at_decoders(report)
    _look_at_wordnet(report)
    if device is None:
        return measured
    with report.step("classifiers"):
        _try_classifiers(report, device, sizes, measured)
    with report.step("extraction"):
        _try_extraction(report, device, sizes, measured)
    _look_at_memory(report, device, sizes.dim, measured)
    return measured


def _look_at_software(report: Findings, measured: Measured) -> None:
    versions = {"python": platform.python_version(), "imagenet-cog": cog.__version__}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    measured["versions"] = versions
    report.ok("software", ", ".join(f"{name} {version}" for name, version in versions.items()))
    if shutil.which("sbatch"):
        report.ok("SLURM", "sbatch was found: study.sh slurm=... submits a study")
    else:
        report.ok("SLURM", "sbatch was not found: study.sh runs a study on this machine")


def _look_at_device(report: Findings, name: str | None, measured: Measured) -> torch.device | None:
    """Return the device that a study would use; None when the device cannot be used."""
    n_threads = torch.get_num_threads()
    low = "" if cpu_has_bfloat16() else "no "
    report.ok("CPU", f"{platform.machine()}, {n_threads} threads, {low}bfloat16 instructions")
    measured["cpu"] = {"threads": n_threads, "bfloat16": cpu_has_bfloat16()}
    device = None
    with report.step("device"):
        device = resolve_device(name)
        if device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(device)
            gpu, cuda = torch.cuda.get_device_name(device), torch.version.cuda or torch.version.hip
            architectures = torch.cuda.get_arch_list()
            measured["gpu"] = {
                "name": gpu,
                "capability": f"{major}.{minor}",
                "cuda": cuda,
                "architectures": architectures,
            }
            report.ok(
                "device",
                f"{device}: {gpu}, compute capability {major}.{minor}; PyTorch for CUDA {cuda} with code for "
                f"{' '.join(architectures)}",
            )
        elif device.type == "cpu" and name is None:
            report.warn("device", "no GPU is visible here: a study runs on the CPU")
        else:
            report.ok("device", f"{device}, as asked for")
    return device


def _look_at_decoders(report: Findings) -> None:
    """Decode an image in each format of the data sets, and compare it with the original."""
    picture = _picture(np.random.default_rng(0))
    worst = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix, tolerance in (("JPEG", 8.0), ("PNG", 0.0)):
            path = Path(folder, f"picture.{suffix}")
            picture.save(path, quality=95) if suffix == "JPEG" else picture.save(path)
            decoded = np.asarray(load_rgb(path), dtype=np.float64)
            worst[suffix] = np.abs(decoded - np.asarray(picture)).mean()
            if worst[suffix] > tolerance:
                raise CogError(
                    f"{suffix} is decoded to other pixels (mean difference {worst[suffix]:.1f} of 255)"
                )
    turbo = features.version_feature("libjpeg_turbo")
    report.ok("decoders", f"JPEG ({f'libjpeg-turbo {turbo}' if turbo else 'libjpeg'}) and PNG")
    if not turbo:
        report.warn("decoders", "this Pillow is built without libjpeg-turbo: JPEG files are decoded slowly")


def _look_at_wordnet(report: Findings) -> None:
    from cog.levels.wordnet import load_wordnet

    try:
        report.ok("WordNet", f"{len(load_wordnet().wnids):,} noun synsets")
    except CogError as error:
        report.warn("WordNet", f"{error} (only build_levels.py needs it)")


# ------------------------------------------------------------------------------------------------------------
# Classifiers


def _precisions(device: torch.device) -> list[str]:
    """Return the values of ``CLF.PRECISION`` that are useful on a device."""
    listed = ["fp32"]
    for name in ("tf32", "bf16"):
        if device.type == "cpu" and not (name == "bf16" and cpu_has_bfloat16()):
            continue
        with contextlib.suppress(CogError):
            listed.append(resolve_precision(name, device))
    return listed


def _clouds(sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows of unit length around one center per class, float32 ``(n, d)``, and their labels, int64 ``(n,)``."""
    generator = cpu_generator(0)
    y = torch.arange(sizes.n_rows) % sizes.n_classes
    centers = torch.randn(sizes.n_classes, sizes.dim, generator=generator)
    x = centers[y] + 2 * torch.randn(sizes.n_rows, sizes.dim, generator=generator)
    return torch.nn.functional.normalize(x), y


def _train_plainly(x: torch.Tensor, y: torch.Tensor, spec: TrainSpec, settings: Settings) -> torch.Tensor:
    """Train ``torch.nn.Linear`` with ``torch.optim.SGD`` in float32 on the CPU, and return its weight ``(C, d)``."""
    ((base, decay),) = spec.pairs[0]
    dim, n_classes = x.shape[1], int(y.max()) + 1
    ((weight, bias),) = initial_layers([dim, n_classes], spec.init_seeds[0])
    linear = torch.nn.Linear(dim, n_classes)
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    sgd = torch.optim.SGD(linear.parameters(), lr=base, momentum=settings.momentum, weight_decay=decay)
    generator = cpu_generator(spec.order_seeds[0])
    with exact_float32():
        for epoch in range(settings.n_epochs):
            sgd.param_groups[0]["lr"] = learning_rate(base, epoch, settings.n_epochs)
            for rows in torch.randperm(spec.rows.shape[1], generator=generator).split(settings.batch_size):
                sgd.zero_grad()
                torch.nn.functional.cross_entropy(linear(x[rows]), y[rows]).backward()
                sgd.step()
    return linear.weight.detach()


def _try_classifiers(report: Findings, device: torch.device, sizes: Sizes, measured: Measured) -> None:
    """Train in every precision on a known data set, compare with plain PyTorch on the CPU, and measure the rate."""
    x, y = _clouds(sizes)
    settings = Settings(seed=0, n_epochs=2, batch_size=sizes.batch_size)
    spec = TrainSpec(torch.arange(len(x))[None], [[(10.0, 1e-6)]], init_seeds=[1], order_seeds=[2])
    expected = _train_plainly(x, y, spec, settings)
    start = initial_layers([sizes.dim, sizes.n_classes], 1)[0][0]
    measured["classifiers"] = {}
    # The test rows are no training rows.
    sets = FeatureSet(x, y, "doctor"), FeatureSet(-x[: sizes.batch_size], y[: sizes.batch_size], "doctor")
    for precision in _precisions(device):
        engine = Engine(device, precision)
        data, _ = engine.prepare(*sets, settings)
        trained = engine.fit(data, spec, settings)
        error = float(
            (trained.classifier(0).layers[0][0].cpu() - expected).norm() / (expected - start).norm()
        )
        text = f"{precision}: weights within {error:.1g} of plain PyTorch on the CPU"
        if not error <= _WEIGHT_TOLERANCE[precision]:
            report.problem(
                "classifiers",
                f"{text}, expected {_WEIGHT_TOLERANCE[precision]:g} at most: do not use CLF.PRECISION {precision} here",
            )
            continue
        rate, run = _time_of_run(engine, data, settings)
        measured["classifiers"][precision] = {
            "error": error,
            "steps_per_second": rate,
            "seconds_per_run": run,
        }
        report.ok(
            "classifiers",
            f"{text}; {rate:.3g} steps/s ({sizes.batch_size} x {sizes.dim}, {sizes.n_classes} classes); a run on all "
            f"images of a level takes about {log.duration(run)}",
        )


def _time_of_run(engine: Engine, data: Data, settings: Settings) -> tuple[float, float]:
    """Return the steps per second of one classifier, and the estimated seconds of a run on a level with its search."""
    n = data.train.n if engine.device.type == "cpu" else 8 * data.train.n
    rows = (torch.arange(n) % data.train.n)[None]
    n_steps, protocol = -(-n // settings.batch_size), Settings(seed=0, batch_size=settings.batch_size)
    n_rows, _, n_test = _LEVEL

    def seconds(n_trials: int, record: bool = False) -> float:
        """Return the seconds of an epoch: the difference of trainings of 1 and of 3 epochs."""
        spec = TrainSpec(rows, [[(10.0, 1e-6)] * n_trials], [1], [2], record)
        times = []
        for n_epochs in (1, 1, 3):  # the first one compiles
            times.append(
                _clock(lambda e=n_epochs: engine.fit(data, spec, dataclasses.replace(settings, n_epochs=e)))
            )
        return max(times[2] - times[1], 1e-9) / 2

    sets = [
        FeatureSet(torch.empty(n, data.train.dim, device="meta"), torch.empty(0), "")
        for n in (n_rows, n_test)
    ]
    width = engine.lockstep(*sets, protocol, n_classes=data.n_classes, n_seeds=1).trials
    alone, together, final = seconds(1), seconds(width) / width, seconds(1, record=True)
    trained = engine.fit(
        data, TrainSpec(rows, [[(10.0, 1e-6)]], [1], [2]), dataclasses.replace(settings, n_epochs=1)
    )
    engine.validate(data, rows, trained)
    scored = _clock(lambda: engine.validate(data, rows, trained)) / n
    per_row = (TRIALS_TOGETHER * together + (protocol.n_trials - TRIALS_TOGETHER) * alone) / n
    search = n_rows * (0.8 * protocol.n_epochs * per_row + 0.2 * protocol.n_trials * scored)
    return n_steps / alone, search + protocol.n_epochs * (n_rows * final / n + n_test * scored)


def _clock(function: Callable[[], object]) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start


# ------------------------------------------------------------------------------------------------------------
# Extraction


def _picture(rng: np.random.Generator) -> Image.Image:
    """Draw an image of smooth colors with the size of a photograph."""
    coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)


def _pictures(folder: Path, n: int) -> ImageList:
    """Save up to 64 images as JPEG, and return a list of ``n`` images that repeats them."""
    rng = np.random.default_rng(0)
    (folder / "class").mkdir()
    n_files = min(n, 64)
    for number in range(n_files):
        _picture(rng).save(folder / "class" / f"{number:02d}.JPEG", quality=90)
    images = image_lists.from_class_folders("doctor", "train", folder, flag="doctor")
    rows = np.arange(n) % n_files
    return dataclasses.replace(images, files=images.files[rows], labels=images.labels[rows])


def _network(name: str) -> Backbone:
    """Return an untrained network with batch norm statistics of noise, so that its features have the usual scale."""
    import torchvision

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torchvision.models.get_model(name, weights=None)
        network.fc = torch.nn.Identity()
        with torch.no_grad():
            network.train()(torch.randn(8, 3, _CROP, _CROP))
    return Backbone(network, name=name)


def _extractor(network: Backbone, device: torch.device, precision: str, n_workers: int) -> Extractor:
    on_device = copy.deepcopy(network).to(device)
    return Extractor(
        on_device,
        resize=_RESIZE,
        crop=_CROP,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        device=device,
        batch_size=64,
        precision=precision,
        n_workers=n_workers,
    )


def _extract(extractor: Extractor, images: ImageList) -> tuple[torch.Tensor, float]:
    """Return the features, float32 ``(n, d)``, and the duration of the extraction in seconds."""
    start = time.monotonic()
    x = extractor.extract(images).x.float()
    return x, time.monotonic() - start


def _try_extraction(report: Findings, device: torch.device, sizes: Sizes, measured: Measured) -> None:
    """Extract features in every precision, compare with float32 on the CPU; measure rates with and without network."""
    n_workers = loader.usable_workers(8)
    network = _network(sizes.network)
    with tempfile.TemporaryDirectory() as folder:
        n = sizes.n_images if device.type == "cpu" else 64 * sizes.n_images
        images = _pictures(Path(folder), n)
        first = dataclasses.replace(images, files=images.files[:8], labels=images.labels[:8])
        expected, _ = _extract(_extractor(network, torch.device("cpu"), "fp32", n_workers), first)
        decoder = loader.Decoder(images, resize=_RESIZE, crop=_CROP)
        start = time.monotonic()
        with contextlib.closing(loader.batches(decoder, batch_size=64, n_workers=n_workers)) as stream:
            n_decoded = sum(batch.n for batch in stream)
        decoding = n_decoded / (time.monotonic() - start)
        rates: dict[str, Any] = {"decoding": decoding}
        measured["images_per_second"] = rates
        report.ok(
            "extraction", f"{decoding:.3g} images/s are decoded ({n_workers} threads, 500 x 375 pixels)"
        )
        for precision in _extraction_precisions(device):
            extractor = _extractor(network, device, precision, n_workers)
            if device.type != "cpu":
                _extract(extractor, first)  # not measured: libraries initialize in the first call
            x, seconds = _extract(extractor, images)
            cosine = float(torch.nn.functional.cosine_similarity(x[: len(expected)], expected).min())
            rates[precision] = n / seconds
            text = f"{precision}: {rates[precision]:.3g} images/s, cosine {cosine:.5f} to fp32 on the CPU"
            if not cosine >= _COSINES[precision]:
                report.problem(
                    "extraction",
                    f"{text}, expected {_COSINES[precision]} at least: do not use FT_EXTRACT.PRECISION {precision}",
                )
                continue
            days = log.duration(_N_IMAGES / rates[precision])
            report.ok(
                "extraction", f"{text}; the {_N_IMAGES / 1e6:.1f} million images of a model take about {days}"
            )
    fastest = max(rate for name, rate in rates.items() if name != "decoding")
    if device.type != "cpu" and fastest > 0.8 * decoding:
        report.warn(
            "extraction",
            f"the device waits for images ({fastest:.3g} of {decoding:.3g} that can be decoded per second): give this "
            "process more processors and FT_EXTRACT.N_WORKERS",
        )


def _extraction_precisions(device: torch.device) -> list[str]:
    """Return the values of ``FT_EXTRACT.PRECISION`` that are useful on a device."""
    if device.type == "cpu":
        return ["fp32", "bf16"] if cpu_has_bfloat16() else ["fp32"]
    listed = ["fp32", "fp16"]
    for name in ("tf32", "bf16"):
        with contextlib.suppress(CogError):
            require_precision(device, "FT_EXTRACT.PRECISION", name)
            listed.append(name)
    return listed


# ------------------------------------------------------------------------------------------------------------


def _look_at_memory(report: Findings, device: torch.device, dim: int, measured: Measured) -> None:
    """Compare the size of the features of a level with the free memory."""
    needed = 4.0 * dim * (_LEVEL[0] + _LEVEL[2])
    available = available_memory()
    measured["memory"] = {"level": needed, "host": available}
    text = f"the features of a level take {size(needed)} ({dim} dimensions)"
    if available is not None and available < needed:
        report.warn(
            "memory",
            f"{text}, and {size(available)} are available: training features would be read from their file again and "
            "again; ask for more",
        )
    else:
        report.ok("memory", text if available is None else f"{text}, {size(available)} are available")
    if device.type != "cpu":
        room = free_on_gpu(device) if device.type == "cuda" else float("inf")
        measured["memory"]["device"] = room
        kept = "stay there" if needed <= 0.875 * room else "stay on the host, and batches are sent"
        report.ok("memory", f"{size(room)} are free on {device}: the features of a level {kept}")
