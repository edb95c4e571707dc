"""What is said when memory does not suffice, and how much a GPU has left."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

from cog.analysis.base import resident
from cog.commands import analyze_features, logreg
from cog.features import pca
from cog.features.feature_files import FeatureSet, save
from cog.logreg.engine import Engine
from cog.runtime import cli, memory

GPU = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of ..."
)
HOST = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 9000 bytes. Error code 12 (Cannot allocate memory)"
)
NUMPY = (np._core if hasattr(np, "_core") else np.core)._exceptions._ArrayMemoryError((9,), np.dtype("f4"))


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


@pytest.fixture
def features(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        x, y = torch.randn(60, 8), torch.arange(60) % 3
        save(FeatureSet(x, y, split), tmp_path / split / "X_Y.pth")
    return [
        "--train_features_dir", str(tmp_path / "train"), "--test_features_dir", str(tmp_path / "test"),
        "--output_dir", str(tmp_path / "out"), "--device", "cpu",
    ]  # fmt: skip


def message(main, argv, caplog):
    """Run a script that ends with exit code 2; returns its one line."""
    with caplog.at_level(logging.ERROR, "cog"), pytest.raises(SystemExit) as ended:
        logging.getLogger("cog").propagate = True
        cli.run(main, argv)
    assert ended.value.code == 2
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "\n" not in line
    return line


@pytest.fixture(autouse=True)
def _visible(monkeypatch):
    monkeypatch.setattr(cli, "set_up_logging", lambda: None)


def check_message(line, error):
    """Advice and amount are those of a GPU if it is the GPU that has no memory."""
    assert "out of memory" in line
    assert ("--device cpu" in line) == (error is GPU)
    assert ("(20.00 GiB more were asked for)" in line) == (error is GPU)


@pytest.mark.parametrize(
    ("where", "error", "options", "task_and_advice"),
    [
        ((Engine, "fit"), GPU, "CLF.N_TRIALS 2", ("training classifiers of 3 classes", "take a smaller")),
        ((Engine, "validate"), HOST, "CLF.N_TRIALS 2", ("training classifiers of 3 classes", "take a smaller")),
        ((pca, "fit"), NUMPY, "CLF.PCA_DIM 2",
         ("computing the principal components of train (60 x 8)", "set CLF.PCA_DIM 0")),
    ],
    ids=["training", "validation", "principal components"],
)  # fmt: skip
def test_classifiers(features, tmp_path, monkeypatch, caplog, where, error, options, task_and_advice):
    monkeypatch.setattr(*where, raising(error))
    line = message(logreg.main, [*features, "CLF.N_EPOCHS", "2", *options.split()], caplog)
    check_message(line, error)
    task, advice = task_and_advice
    assert f"while {task}; end other programs that use it (the same command then continues), {advice}" in line
    if task.startswith("training"):  # whoever looks at the study reads the same
        assert json.loads((tmp_path / "out/.failed.json").read_text())["message"] == line


def test_an_analysis(features, monkeypatch, caplog):
    monkeypatch.setattr("cog.analysis.neighbors.class_means", raising(GPU))
    line = message(analyze_features.main, [*features, "--analysis", "ncm"], caplog)
    assert line.startswith("the GPU is out of memory (20.00 GiB more were asked for) while computing ncm")


@pytest.mark.parametrize("error", [GPU, HOST, MemoryError(), NUMPY], ids=["GPU", "host", "Python", "NumPy"])
def test_any_other_place(features, monkeypatch, caplog, error):
    monkeypatch.setattr("cog.features.feature_files.load", raising(error))
    check_message(message(logreg.main, features, caplog), error)


def test_what_is_no_lack_of_memory_stays_a_traceback():
    with pytest.raises(RuntimeError, match="shapes"):
        cli.run(raising(RuntimeError("shapes do not match")), [])
    with pytest.raises(RuntimeError, match="shapes"), memory.exhaustion_explained("training", "wait"):
        raise RuntimeError("shapes do not match")


def test_memory_that_pytorch_keeps_and_does_not_use_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 50)
    assert memory.free_on_gpu(torch.device("cuda", 0)) == 750
    moved = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *args, **kwargs: moved.append(args) or tensor)
    x = torch.zeros(10, 15)  # 600 bytes are 0.8 of those 750
    resident(x, torch.device("cuda", 0))
    assert moved


# ------------------------------------------------------------------------------------------------------------
# The machine and its control groups


def write_system(root, *, meminfo="MemTotal: 99 kB\nMemAvailable:    4000 kB\n", cgroup=""):
    (root / "proc/self").mkdir(parents=True)
    if meminfo is not None:
        (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(cgroup)
    return memory.available_memory(root / "proc", root / "control")


def test_memory_of_the_machine(tmp_path):
    assert write_system(tmp_path / "a") == 4000 * 1024
    assert write_system(tmp_path / "b", meminfo=None) is None
    assert write_system(tmp_path / "c", meminfo="nonsense\n") is None
    assert memory.available_memory() > 10**6  # here


def write_group(root, folder, limit, usage, stat):
    """Write the files of a control group; ``limit`` and ``usage`` are name and content of a file."""
    path = root / "control" / folder
    path.mkdir(parents=True, exist_ok=True)
    for name, content in (limit, usage):
        (path / name).write_text(f"{content}\n")
    (path / "memory.stat").write_text(stat)


@pytest.mark.parametrize(("most", "expected"), [("max", 4000 * 1024), (3_000_000, 2_600_000), (100_000, 0)])
def test_memory_of_a_control_group(tmp_path, most, expected):
    """Version 2: what is used counts, what is cached does not; the limit may be that of a group above."""
    write_group(tmp_path, "job/step", ("memory.max", "max"), ("memory.current", 1), "inactive_file 0\n")
    stat = "anon 7\ninactive_file 100000\n"
    write_group(tmp_path, "job", ("memory.max", most), ("memory.current", 500_000), stat)
    assert write_system(tmp_path, cgroup="0::/job/step\n") == expected
