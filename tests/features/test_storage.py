"""Whether features are read or stay in their file."""

from __future__ import annotations

import pytest
import torch

from cog.errors import CogError
from cog.features import feature_files, storage


@pytest.fixture
def files(feature_folders):
    return tuple(folder / "X_Y.pth" for folder in feature_folders)


def limit(monkeypatch, n_bytes):
    monkeypatch.setattr(storage, "available_memory", lambda: n_bytes)


def test_features_that_fit_are_read(files, monkeypatch):
    # 30 x 8 float32 each
    for available, mapped in ((None, False), (10**9, False), (2134, False), (2132, True), (1500, True)):
        limit(monkeypatch, available)
        assert storage.stays_in_file(*files) is mapped


def test_test_features_must_fit(files, monkeypatch):
    limit(monkeypatch, 1000)
    with pytest.raises(CogError, match=r"test/X_Y.pth takes .* kB, and 1 kB of memory are available"):
        storage.stays_in_file(*files)


@pytest.mark.parametrize(
    ("convert", "reason"),
    [
        (lambda x: x.double(), "X is torch.float64"),
        (lambda x: x.t().contiguous().t(), "not stored row by row"),
    ],
)
def test_what_cannot_be_mapped_must_fit(files, monkeypatch, convert, reason):
    data = torch.load(files[0], weights_only=True)
    torch.save(data | {"X": convert(data["X"])}, files[0])
    limit(monkeypatch, 1500)
    with pytest.raises(CogError, match=reason):
        storage.stays_in_file(*files)
    limit(monkeypatch, 10**9)
    assert storage.stays_in_file(*files) is False


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_features_can_be_mapped(files, monkeypatch, dtype):
    """They take as much memory as float32 ones when they are read, and half of it when they are kept as they are."""
    data = torch.load(files[0], weights_only=True)
    torch.save(data | {"X": data["X"].to(dtype)}, files[0])
    for rounded, available, mapped in (
        (False, 2134, False), (False, 2132, True), (True, 1601, False), (True, 1599, True),
    ):  # fmt: skip
        limit(monkeypatch, available)
        assert storage.stays_in_file(*files, rounded=rounded) is mapped


def test_old_format_cannot_be_mapped(files, monkeypatch):
    data = torch.load(files[0], weights_only=True)
    torch.save(data, files[0], _use_new_zipfile_serialization=False)
    limit(monkeypatch, 1500)
    with pytest.raises(CogError, match=r"older than torch 1\.6"):
        storage.stays_in_file(*files)


def test_broken_files_are_left_to_the_reader(files, monkeypatch):
    files[0].write_bytes(b"not torch")
    limit(monkeypatch, 10**9)
    assert storage.stays_in_file(*files) is False
    with pytest.raises(CogError):
        feature_files.load(files[0])
