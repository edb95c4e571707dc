"""Decoded images: the same whatever decodes them."""

import os

import numpy as np
import pytest
import tiny
import torch

from cog.data import datasets, loader
from cog.data.loader import Decoder, decoded, usable_workers
from cog.data.pixels import Preprocess, load_rgb, resize_and_crop


@pytest.fixture
def images(tmp_path):
    """23 images of two classes, of which four are damaged or missing."""
    tiny.write_class_folders(tmp_path / "birds/test", classes=("crow",), n_images=11, suffix=".png")
    tiny.write_class_folders(tmp_path / "birds/test", classes=("duck",), n_images=12, suffix=".JPEG", seed=1)
    listed = datasets.OWN.images("birds", "test", {"images_root": str(tmp_path / "birds")})
    for row in (3, 4, 12):
        (listed.root / listed.file(row)).write_bytes(b"broken")
    (listed.root / listed.file(20)).unlink()
    return listed


@pytest.mark.parametrize("n_workers", [0, 1, 3])
@pytest.mark.parametrize("preprocess", [Preprocess(size=12, resize=16), Preprocess(14, 14, squash=True)])
def test_whoever_decodes_images_that_fail_are_named_and_black(images, n_workers, preprocess):
    before = torch.random.get_rng_state()
    spans = [(0, 5), (5, 10), (20, 23), (10, 15)]
    pieces = list(decoded(Decoder(images, preprocess), spans, n_workers=n_workers))
    assert [len(piece.pixels) for piece in pieces] == [5, 5, 3, 5]
    for (first, _), piece in zip(spans, pieces, strict=True):
        failed = [row for row, _ in piece.failures]
        for row, pixels in enumerate(piece.pixels, start=first):
            if row not in failed:
                image = load_rgb(images.root / images.file(row))
                assert np.array_equal(pixels, resize_and_crop(image, preprocess))
            assert pixels.dtype == torch.uint8 and bool(pixels.any()) == (row not in failed)
    failures = [failure for piece in pieces for failure in piece.failures]
    assert [row for row, _ in failures] == [3, 4, 20, 12]
    assert failures[0][1] == "UnidentifiedImageError: cannot identify image file"
    assert failures[2][1] == "FileNotFoundError: No such file or directory"
    assert torch.equal(torch.random.get_rng_state(), before)


def test_workers_are_at_most_one_per_processor(monkeypatch):
    monkeypatch.setenv("PYTHON_CPU_COUNT", "4")
    assert [usable_workers(n) for n in (2, 0, 8, -1)] == [2, 0, 4, 4]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert usable_workers(-1) == 2  # its share of the machine


@pytest.mark.parametrize("parent_lives", [True, False])
def test_a_decoding_process_ends_when_its_parent_was_killed_right_after_the_fork(parent_lives):
    parent = os.getpid() if parent_lives else os.getppid()
    pid = os.fork()
    if pid == 0:
        loader._begin_worker(parent, 0)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (7 if parent_lives else 1)
