"""Batches: the same whatever decodes them, bounded in number, and gone when the consumer stops."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import numpy as np
import pytest
import tiny
import torch

from cog.data import datasets
from cog.data.loader import Decoder, batches, usable_workers
from cog.data.pixels import decode_exact

SIZE = {"resize": 16, "crop": 12}


@pytest.fixture
def images(tmp_path):
    """23 images of two classes."""
    tiny.write_class_folders(tmp_path / "birds/test", classes=("crow",), n_images=11, suffix=".png")
    tiny.write_class_folders(tmp_path / "birds/test", classes=("duck",), n_images=12, suffix=".JPEG", seed=1)
    return datasets.OWN.images("birds", "test", {"images_root": str(tmp_path / "birds")})


def decoding_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("cog-decode")]


@pytest.fixture(autouse=True)
def _nothing_left_behind():
    yield
    assert decoding_threads() == []


def collect(decoder, **options):
    with contextlib.closing(batches(decoder, **{"batch_size": 5, "n_workers": 0} | options)) as stream:
        return list(stream)


@pytest.mark.parametrize("n_workers", [0, 1, 3])
def test_whoever_decodes(images, n_workers):
    found = collect(Decoder(images, **SIZE), n_workers=n_workers)
    assert [(batch.first, batch.n) for batch in found] == [(0, 5), (5, 5), (10, 5), (15, 5), (20, 3)]
    pixels = torch.cat([batch.pixels for batch in found]).numpy()
    assert pixels.shape == (25, 12, 12, 3) and pixels.dtype == np.uint8
    for row in range(23):
        assert (pixels[row] == decode_exact(images.root / images.file(row), **SIZE)).all()
    assert not pixels[23:].any()
    assert np.concatenate([batch.rows for batch in found]).tolist() == list(range(23))


@pytest.mark.parametrize("n_workers", [0, 1, 3])
def test_broken_images_are_named_and_black(images, n_workers):
    for row in (3, 4, 12):
        (images.root / images.file(row)).write_bytes(b"broken")
    (images.root / images.file(20)).unlink()
    found = collect(Decoder(images, **SIZE), n_workers=n_workers)
    failures = [failure for batch in found for failure in batch.failures]
    assert [row for row, _ in failures] == [3, 4, 12, 20]
    assert failures[0][1].startswith("UnidentifiedImageError: ")
    assert failures[3][1] == "FileNotFoundError: No such file or directory"
    assert str(images.root) not in failures[0][1]
    assert not found[0].pixels[3:].any() and found[0].pixels[:3].any()
    assert found[0].rows.tolist() == [0, 1, 2]
    assert found[4].rows.tolist() == [21, 22]


class Counting(Decoder):
    """Notes which rows were decoded and by which thread."""

    def __init__(self, *arguments, delay=0.0, **options):
        super().__init__(*arguments, **options)
        self.rows = []
        self.threads = set()
        self.delay = delay

    def __call__(self, row, **options):
        self.rows.append(row)
        self.threads.add(threading.current_thread().name)
        time.sleep(self.delay)
        return super().__call__(row, **options)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_a_consumer_that_stops_stops_the_threads(images, stop):
    decoder = Counting(images, delay=0.05, **SIZE)
    with pytest.raises(stop), contextlib.closing(batches(decoder, batch_size=10, n_workers=2)) as stream:
        next(stream)
        assert len(decoding_threads()) == 2
        raise stop
    assert decoding_threads() == []
    assert len(decoder.rows) < 20  # of the batches ahead, only what was being decoded


def test_an_interrupt_while_helping_stops_the_threads(images):
    class Interrupted(Counting):
        def __call__(self, row, **options):
            if threading.current_thread() is threading.main_thread() and row > 4:
                raise KeyboardInterrupt
            return super().__call__(row, **options)

    decoder = Interrupted(images, delay=0.02, **SIZE)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        collect(decoder, n_workers=2)
    assert decoding_threads() == []
    assert time.monotonic() - start < 5
    assert len(decoder.rows) < 23


def test_global_random_state_is_left_alone(images):
    for n_workers in (0, 2):
        before = torch.random.get_rng_state()
        collect(Decoder(images, **SIZE), n_workers=n_workers)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_workers_are_at_most_one_per_processor(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert usable_workers(2) == 2
    assert usable_workers(0) == 0
    assert usable_workers(8) == 3
