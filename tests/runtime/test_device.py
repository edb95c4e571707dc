"""Devices are accepted once they have computed; GPUs are imitated (there is none where tests run)."""

from __future__ import annotations

import pytest
import torch

from cog.errors import CogError
from cog.finetune import run as finetune
from cog.logreg.engine import products, resolve_precision
from cog.logreg.metrics import sum_dtype
from cog.runtime import device
from cog.runtime.device import exact_float32, has_float64, resolve_device
from cog.runtime.ranks import Rank

ARCHS = ["sm_75", "sm_80", "sm_90", "compute_90"]


class Gpus:
    """GPUs whose computations are done on the CPU, or fail."""

    def __init__(self, monkeypatch):
        self.n, self.n_files, self.works, self.capability = 4, 4, True, (8, 0)
        self.fault, self.used = None, []
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
            monkeypatch.delenv(name, raising=False)
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "is_available", lambda: self.works and self.n > 0)
        monkeypatch.setattr(cuda, "device_count", lambda: self.n)
        monkeypatch.setattr(cuda, "get_device_capability", lambda device: self.capability)
        monkeypatch.setattr(cuda, "get_device_name", lambda device: "Tesla X100")
        monkeypatch.setattr(cuda, "get_arch_list", lambda: ARCHS)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch, "arange", self.arange)
        monkeypatch.setattr(
            device.glob, "glob", lambda pattern: [f"/dev/nvidia{i}" for i in range(self.n_files)]
        )
        monkeypatch.setattr(device.os, "access", lambda path, mode: True)

    _arange = staticmethod(torch.arange)

    def arange(self, n, *, device):
        if device.type != "cpu":
            self.used.append(str(device))
            if isinstance(self.fault, str) or not self.works or not self.n:
                raise RuntimeError(
                    self.fault or "The NVIDIA driver on your system is too old (found version 11040)."
                )
        return self._arange(n) + (self.fault or 0 if device.type != "cpu" else 0)


@pytest.fixture
def gpus(monkeypatch):
    return Gpus(monkeypatch)


def refused(name, rank=None):
    """Return the one line that refuses a device."""
    with pytest.raises(CogError) as error:
        resolve_device(name, rank)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "expected"), [(None, "cuda:0"), ("cuda", "cuda:0"), ("cuda:2", "cuda:2"), ("cpu", "cpu")]
)
def test_a_gpu_has_an_index_and_has_computed(gpus, name, expected):
    assert str(resolve_device(name)) == expected
    assert gpus.used == [expected] * (expected != "cpu")


@pytest.mark.parametrize("name", [None, "cuda"])
def test_each_process_has_its_own_gpu(gpus, name):
    assert [str(resolve_device(name, Rank(8 + i, 16, i, local_size=4))) for i in range(4)] == [
        f"cuda:{i}" for i in range(4)
    ]
    assert "5 processes on this machine, and torch sees 4 GPUs" in refused(name, Rank(0, 5, local_size=5))
    gpus.n = 1  # as a scheduler shows it to each process
    assert str(resolve_device(name, Rank(3, 4, 3, local_size=4, n_own_gpus=1))) == "cuda:0"
    assert "4 processes on this machine, and torch sees 1 GPU:" in refused(name, Rank(3, 4, 3, local_size=4))


def test_without_being_told_the_environment_says_which_process_this_is(gpus, monkeypatch):
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert str(resolve_device("cuda")) == "cuda:2"


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("cuda:1", 1, "cuda:1 cannot be used: its matrix products are wrong"),
        ("cuda", "CUDA out of memory. Tried to allocate 2.00 MiB.", "CUDA out of memory"),
        (
            None,
            "CUDA error: no kernel image is available\nCUDA kernel errors ...",
            "no kernel image is available",
        ),
    ],
)
def test_a_gpu_that_cannot_compute(gpus, name, fault, message):
    gpus.fault = fault
    text = refused(name)
    assert (
        message in text and " ".join(ARCHS) in text and "CUDA 13.0" in text and "or give --device cpu" in text
    )


def test_gpus_that_pytorch_cannot_use_are_not_replaced_by_the_cpu(gpus, monkeypatch):
    gpus.works = False
    for name in (None, "cuda", "cuda:1"):
        assert "driver on your system is too old" in refused(name)
    assert resolve_device("cpu").type == "cpu"
    gpus.n = 0
    refused(None)
    monkeypatch.setattr(device.os, "access", lambda path, mode: False)  # those of other jobs
    assert resolve_device(None).type == "cpu"
    refused("cuda")


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_gpus_that_are_hidden_on_purpose(gpus, monkeypatch, visible):
    gpus.n = 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve_device(None).type == "cpu"


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_other_devices_pass_when_they_compute(gpus, name):
    assert resolve_device(name) == torch.device(name)
    assert gpus.used == [name]
    gpus.fault = "PyTorch is not linked with support for it"
    assert f"--device {name} cannot be used: PyTorch is not linked" in refused(name)


def test_float64_is_asked_for_where_it_is_needed(gpus, tmp_path, capsys):
    """Apple's GPUs have none, nor has a device that PyTorch cannot open at all: as here."""
    assert has_float64(torch.device("cpu")) and has_float64(torch.device("cuda", 0))
    assert not has_float64(torch.device("mps"))
    assert sum_dtype(torch.device("cpu")) == torch.float64
    says = "--device mps cannot be used: it has no float64, which this command needs; or give --device cpu"
    with pytest.raises(CogError, match=says):
        resolve_device("mps", float64=True)


def test_bfloat16_needs_ampere(gpus):
    gpu = torch.device("cuda", 0)
    assert resolve_precision("bf16", gpu) == "bf16"
    assert finetune.choose_precision("auto", gpu) == "bf16"
    gpus.capability = (7, 5)
    for choose, key in (
        (resolve_precision, "CLF.PRECISION"),
        (finetune.choose_precision, "FINETUNE.PRECISION"),
    ):
        with pytest.raises(CogError, match=rf"{key} bf16 needs .* found Tesla X100 \(7\.5\); use fp32"):
            choose("bf16", gpu)
    assert finetune.choose_precision("auto", gpu) == "fp16"


# ---- the two interfaces for TF32


def read(get):
    try:
        return get()
    except RuntimeError:
        return "unreadable"


def float32_settings():
    """Return everything that says how float32 matrices are multiplied, by both interfaces."""
    cudnn, mkldnn, matmul = torch.backends.cudnn, torch.backends.mkldnn, torch.backends.cuda.matmul
    newer = (torch.backends, cudnn, cudnn.conv, cudnn.rnn, matmul, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    older = (torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32, lambda: matmul.allow_tf32)
    return [settings.fp32_precision for settings in newer] + [read(get) for get in older]


def set_to(settings, value):
    return lambda: setattr(settings, "fp32_precision", value)


@pytest.fixture
def own_settings():
    """Let a test set what it wants."""
    with device.full_float32():
        yield


@pytest.mark.parametrize("context", [exact_float32, lambda: products(torch.device("cuda"), "fp32")])
@pytest.mark.parametrize(
    "choose",
    [
        lambda: setattr(torch.backends.cudnn, "allow_tf32", True),
        set_to(torch.backends, "tf32"),
        set_to(torch.backends.cuda.matmul, "tf32"),
        set_to(torch.backends.cudnn, "tf32"),
        set_to(torch.backends.cudnn.conv, "ieee"),
        set_to(torch.backends.mkldnn.matmul, "bf16"),
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    ],
)
def test_float32_is_exact_after_either_interface_and_is_put_back(own_settings, choose, context):
    choose()
    before = float32_settings()
    with context():
        inside = float32_settings()
        assert not {"tf32", "bf16", "high", "medium", True, "unreadable"} & set(inside)
        with context():
            assert float32_settings() == inside
    after = float32_settings()
    assert [b for b, a in zip(before, after, strict=True) if b not in (a, "unreadable")] == []
