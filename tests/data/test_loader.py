"""Batches: the same whatever decodes them, bounded in number, and gone when the consumer stops."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from waiting import wait_for

from cog.data import datasets
from cog.data.loader import PREFETCH, Decoder, batches, usable_workers
from cog.data.pixels import decode_exact
from cog.errors import CogError

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
    import multiprocessing

    yield
    assert decoding_threads() == []
    assert multiprocessing.active_children() == []


def collect(decoder, **options):
    with contextlib.closing(batches(decoder, **{"batch_size": 5, "n_workers": 0} | options)) as stream:
        return list(stream)


WAYS = [(0, None), (1, None), (3, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("n_workers", "start_method"), WAYS)
def test_whoever_decodes(images, n_workers, start_method):
    found = collect(Decoder(images, **SIZE), n_workers=n_workers, start_method=start_method)
    assert [(batch.first, batch.n) for batch in found] == [(0, 5), (5, 5), (10, 5), (15, 5), (20, 3)]
    pixels = torch.cat([batch.pixels for batch in found]).numpy()
    assert pixels.shape == (25, 12, 12, 3) and pixels.dtype == np.uint8
    for row in range(23):
        assert (pixels[row] == decode_exact(images.root / images.file(row), **SIZE)).all()
    assert not pixels[23:].any()
    assert np.concatenate([batch.rows for batch in found]).tolist() == list(range(23))


@pytest.mark.parametrize(("n_workers", "start_method"), WAYS)
def test_broken_images_are_named_and_black(images, n_workers, start_method):
    for row in (3, 4, 12):
        (images.root / images.file(row)).write_bytes(b"broken")
    (images.root / images.file(20)).unlink()
    found = collect(Decoder(images, **SIZE), n_workers=n_workers, start_method=start_method)
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


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [0, 2])
def test_no_more_is_decoded_ahead_than_promised(images, n_workers):
    decoder = Counting(images, **SIZE)
    with contextlib.closing(batches(decoder, batch_size=4, n_workers=n_workers)) as stream:
        for number in range(1, 3):
            next(stream)
            time.sleep(0.2)  # time enough to decode everything, if nothing held the threads back
            ahead = PREFETCH if n_workers else 0
            assert sorted(decoder.rows) == list(range(4 * (number + ahead)))


def test_the_waiting_thread_helps(images):
    decoder = Counting(images, delay=0.01, **SIZE)
    collect(decoder, n_workers=1)
    assert len(decoder.threads) == 2 and threading.current_thread().name in decoder.threads


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


def test_a_fault_of_ours_in_a_thread_is_not_swallowed(images):
    class Wrong(Decoder):
        def __call__(self, row, **options):
            return np.zeros((3, 3, 3), np.uint8)

    with pytest.raises(ValueError, match="broadcast"):
        collect(Wrong(images, **SIZE), n_workers=2)


class Dying(Decoder):
    """Ends its process at one row, as the kernel does when memory runs out."""

    def __call__(self, row, **options):
        if row == 7:
            os._exit(9)
        return super().__call__(row, **options)


def test_a_process_that_dies_is_reported(images):
    with pytest.raises(
        CogError, match=r"a decoding process ended unexpectedly .*lower FT_EXTRACT\.N_WORKERS"
    ):
        collect(Dying(images, **SIZE), n_workers=1, start_method="fork")


def test_processes_end_when_the_consumer_stops(images):
    with contextlib.closing(
        batches(Decoder(images, **SIZE), batch_size=2, n_workers=2, start_method="fork")
    ) as stream:
        next(stream)


MAIN = """
import multiprocessing, sys, time
from cog.data import datasets, loader
images = datasets.OWN.images("birds", "test", {"images_root": sys.argv[1]})
decoder = loader.Decoder(images, resize=16, crop=12)
stream = loader.batches(decoder, batch_size=5, n_workers=2, start_method=sys.argv[2])
next(stream)
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_processes_end_when_the_main_process_is_killed(images, start_method):
    """A fork server, which may be their parent, lives as long as they do."""
    root = str(images.root.parent)
    main = subprocess.Popen([sys.executable, "-c", MAIN, root, start_method], stdout=subprocess.PIPE)
    workers = [int(pid) for pid in main.stdout.readline().split()]
    assert len(workers) == 2
    main.kill()
    main.wait()
    main.stdout.close()
    try:
        wait_for(lambda: not any(_is_running(pid) for pid in workers), seconds=20)
    finally:
        for pid in filter(_is_running, workers):
            os.kill(pid, signal.SIGKILL)


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_global_random_state_is_left_alone(images):
    for n_workers, start_method in ((0, None), (2, None), (1, "fork")):
        before = torch.random.get_rng_state()
        collect(Decoder(images, **SIZE), n_workers=n_workers, start_method=start_method)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_workers_are_at_most_one_per_processor(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert usable_workers(2) == 2
    assert usable_workers(0) == 0
    assert usable_workers(8) == 3
