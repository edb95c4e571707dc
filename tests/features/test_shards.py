"""Interrupted extractions: whatever happens and when, the result is that of an undisturbed one."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess

import extraction
import numpy as np
import pytest
import torch
from marks import first_quick
from waiting import wait_for

from cog.commands import extract_features
from cog.data.image_sources import ImageSources
from cog.errors import CogError, FailedImagesError
from cog.features import runner, shards
from cog.features.extract import FeatureBatch
from cog.runtime import locks, provenance, signals
from cog.runtime.resume_dir import ResumeFolder

MARKERS = "rows-*.json"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return extraction.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def extract(inputs):
    """Return a function that extracts the images into a folder."""

    def extract_(out, *more, root=inputs, **options):
        return extract_features.main(extraction.arguments(root, out, *more, **options))

    return extract_


@pytest.fixture(scope="module")
def undisturbed(extract, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert extract(out, shard_rows=8192) == 0
    return extraction.outcome(out)


@pytest.fixture
def interrupt(inputs):
    """Return a function that extracts until a signal comes after ``n_passes`` passes, and returns the message."""

    def interrupt_(n_passes, out, *more, root=inputs, **options):
        # The signal is looked for after each pass and after each batch, which has one pass.
        signal_after = itertools.chain(itertools.repeat(None, 2 * n_passes - 1), itertools.repeat("SIGTERM"))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(signals.Interrupted) as error:
            patch.setattr(signals, "requested", lambda: next(signal_after))
            extract_features.main(extraction.arguments(root, out, *more, **options))
        assert error.value.exit_code == 75
        return str(error.value)

    return interrupt_


@pytest.fixture
def assert_continues(extract, undisturbed):
    """Return a function that extracts to the end and compares all files with those of an undisturbed extraction."""

    def assert_continues_(out, *more, **options):
        assert extract(out, *more, **options) == 0
        assert extraction.outcome(out) == undisturbed

    return assert_continues_


@pytest.mark.parametrize("n_passes", first_quick(3, [1, 4, 7, 2, 3, 5, 6]))
def test_an_interruption_after_any_pass_changes_nothing(
    assert_continues, tmp_path, interrupt, caplog, n_passes
):
    caplog.set_level("INFO", logger="cog")
    message = interrupt(n_passes, tmp_path / "out")
    n_done = min(n_passes * 4, 30)
    assert f"{n_done} of 30 images of birds test are saved" in message
    assert os.listdir(tmp_path / "out") == [".resume"]
    assert_continues(tmp_path / "out")
    assert f"continues, {n_done} of 30 images are done" in caplog.text


def test_interrupted_again_and_again_with_other_workers_and_sizes(assert_continues, tmp_path, interrupt):
    """Neither the workers, nor on a CPU the batch size, nor the rows per file have to be the same when it goes on."""
    out = tmp_path / "out"
    for more, workers, shard_rows in (
        ([], 0, 8192),
        (["FT_EXTRACT.BATCH_SIZE", "16"], 2, 4),
        ([], 1, 1),
        ([], 2, 9),
    ):
        interrupt(1, out, *more, workers=workers, shard_rows=shard_rows)
    assert len(list((out / ".resume").glob(MARKERS))) >= 4
    assert_continues(out, workers=1)


def test_an_error_keeps_what_is_done(extract, assert_continues, tmp_path, monkeypatch):
    original = shards.Shards.save

    def save(self, piece, blocks):
        if piece.first == 12:
            raise CogError("cannot write rows: No space left on device")
        original(self, piece, blocks)

    with monkeypatch.context() as patch:
        patch.setattr(shards.Shards, "save", save)
        with pytest.raises(CogError, match="No space left"):
            extract(tmp_path / "out")
    assert (tmp_path / "out/.failed.json").is_file()
    assert len(pieces(tmp_path / "out")) >= 3
    assert_continues(tmp_path / "out")


def test_nothing_done_leaves_nothing(extract, tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_compute_all", broken)
    with pytest.raises(KeyboardInterrupt):
        extract(tmp_path / "a/b/out")
    assert os.listdir(tmp_path) == []


# --- what may not be put together


@pytest.fixture
def unfinished(tmp_path, interrupt):
    """An output folder where 12 of 30 images are done."""
    out = tmp_path / "out"
    interrupt(3, out)
    return out


def pieces(out):
    return sorted((out / ".resume").glob(MARKERS))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["FT_EXTRACT.IMAGE_CROP_SIZE", "200"], r"preprocessing.crop: 224 -> 200"),
        (["FT_EXTRACT.PRECISION", "bf16"], "precision: fp32 -> bf16"),
    ],
)
def test_other_settings_are_refused_with_the_difference(extract, unfinished, more, says):
    before = sorted(os.listdir(unfinished / ".resume"))
    with pytest.raises(CogError, match=rf"unfinished work.*{says}.*--overwrite") as error:
        extract(unfinished, *more)
    assert error.value.exit_code == 2
    assert sorted(os.listdir(unfinished / ".resume")) == before


def test_other_images_checkpoints_and_versions_are_refused(
    extract, assert_continues, unfinished, tmp_path, monkeypatch
):
    original = provenance.versions
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "versions", lambda packages: original(packages) | {"pillow": "0.1"})
        with pytest.raises(CogError, match=r"pillow: .* -> 0\.1"):
            extract(unfinished)
    more = extraction.write_inputs(tmp_path / "more")
    extraction.replace_image(more, 3)
    (more / "birds/test/crow/crow_90.png").write_bytes(extraction.path_of(more, 0).read_bytes())
    with pytest.raises(CogError, match=r"made differently \(other images\)"):
        extract(unfinished, root=more)
    checkpoint = tmp_path / "model.ckpt"
    torch.save({}, checkpoint)
    with pytest.raises(CogError, match="checkpoint_sha256: None -> "):
        extract(unfinished, "--ckpt_file", str(checkpoint))
    assert_continues(unfinished)


def test_work_without_a_finished_row_is_no_obstacle(extract, unfinished):
    for path in pieces(unfinished):
        path.unlink()
    assert extract(unfinished, "FT_EXTRACT.PRECISION", "bf16") == 0


def test_overwrite_discards_other_work_and_continues_its_own(assert_continues, unfinished, interrupt, caplog):
    """A job that is repeated with the same command line, --overwrite included, must come to an end."""
    caplog.set_level("INFO", logger="cog")
    interrupt(1, unfinished, "--overwrite")
    assert len(pieces(unfinished)) == 1  # the three ranges of the work without --overwrite are gone
    interrupt(1, unfinished, "--overwrite")
    assert len(pieces(unfinished)) == 2
    assert_continues(unfinished, "--overwrite")
    assert "continues, 8 of 30 images are done" in caplog.text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_features_continue_bit_for_bit(extract, tmp_path, interrupt, undisturbed, dtype):
    """X is the float32 features rounded to the nearest value; shards take half the room, too."""
    (tmp_path / "undisturbed.pth").write_bytes(undisturbed["X_Y.pth"])
    exact = torch.load(tmp_path / "undisturbed.pth", weights_only=True)
    interrupt(2, tmp_path / "out", "FT_EXTRACT.SAVE_DTYPE", dtype)
    arrays = [np.load(path) for path in sorted((tmp_path / "out/.resume").glob("*.npy"))]
    assert {array.itemsize for array in arrays} == {2}
    with pytest.raises(CogError, match=rf"save_dtype: {dtype} -> float32.*--overwrite"):
        extract(tmp_path / "out")
    assert extract(tmp_path / "out", "FT_EXTRACT.SAVE_DTYPE", dtype) == 0
    rounded = torch.load(tmp_path / "out/X_Y.pth", weights_only=True)
    assert rounded["X"].dtype == getattr(torch, dtype)
    assert torch.equal(rounded["X"], exact["X"].to(rounded["X"].dtype))
    assert torch.equal(rounded["Y"], exact["Y"]) and rounded["name"] == exact["name"]
    assert json.loads((tmp_path / "out/features.json").read_text())["save_dtype"] == dtype


# --- damage


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [truncate, os.unlink])
def test_damaged_data_are_named(extract, assert_continues, unfinished, damage):
    damage(sorted((unfinished / ".resume").glob("*.npy"))[1])
    with pytest.raises(CogError, match="rows-000000004-000000008.npy"):
        extract(unfinished)
    shutil.rmtree(unfinished / ".resume")
    assert_continues(unfinished)


def empty(path):
    path.write_bytes(b"")


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", first_quick(1, [halve, empty, os.unlink]))
@pytest.mark.parametrize("file", ["rows-000000004-000000008.json", "manifest.json"])
def test_damaged_notes(assert_continues, unfinished, caplog, damage, file):
    damage(unfinished / ".resume" / file)
    assert_continues(unfinished)
    assert ("discarded the beginning of work" in caplog.text and "(unreadable)" in caplog.text) == (
        file == "manifest.json"
    )


def test_ranges_of_other_work_are_not_used(assert_continues, unfinished):
    """A process that stood still while its work was discarded may still write."""
    for path in pieces(unfinished):
        array = np.load(path.with_suffix(".npy")) + 1
        np.save(path.with_suffix(".npy"), array)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"work": "another"}))
    assert_continues(unfinished)


# --- failed images


@pytest.fixture
def spoiled(tmp_path):
    return extraction.write_inputs(tmp_path / "spoiled", broken=(0, 5, 6, 29))


def test_failed_images_are_remembered(extract, spoiled, tmp_path, interrupt, monkeypatch):
    accept = ("--allow_failures", "4")
    assert extract(tmp_path / "a", *accept, root=spoiled) == 0
    expected = extraction.outcome(tmp_path / "a")
    interrupt(2, tmp_path / "b", *accept, root=spoiled)
    assert extract(tmp_path / "b", *accept, root=spoiled) == 0
    assert extraction.outcome(tmp_path / "b") == expected
    assert len(expected["failed_images.txt"].splitlines()) == 4

    interrupt(2, tmp_path / "c", root=spoiled)
    with pytest.raises(FailedImagesError, match="4 of 30"):
        extract(tmp_path / "c", root=spoiled)
    assert len((tmp_path / "c/.resume/failed_images.txt").read_text().splitlines()) == 4
    monkeypatch.setattr(runner, "_compute", None)  # nothing is computed again
    assert extract(tmp_path / "c", *accept, root=spoiled) == 0
    assert extraction.outcome(tmp_path / "c") == expected


def test_images_mended_in_between_are_extracted(extract, spoiled, tmp_path, interrupt, caplog):
    accept = ("--allow_failures", "4")
    interrupt(3, tmp_path / "b", *accept, root=spoiled)
    extraction.replace_image(spoiled, 6)
    assert extract(tmp_path / "b", *accept, root=spoiled) == 0
    assert "rows 4 to 7" in caplog.text and "crow_6.png can be decoded" in caplog.text
    assert "duck" not in caplog.text
    assert extract(tmp_path / "a", *accept, root=spoiled) == 0
    assert extraction.outcome(tmp_path / "b") == extraction.outcome(tmp_path / "a")


def test_a_folder_that_vanishes_is_no_failed_image(extract, tmp_path, monkeypatch):
    root = extraction.write_inputs(tmp_path / "in")
    listed = ImageSources.list_images

    def and_unmount(*args):
        images = listed(*args)
        (root / "birds/test/duck").rename(root / "away")
        return images

    with monkeypatch.context() as patch:
        patch.setattr(ImageSources, "list_images", and_unmount)
        with pytest.raises(CogError, match="birds/test/duck cannot be read any more"):
            extract(tmp_path / "out", root=root)
    assert len(pieces(tmp_path / "out")) == 2  # rows 8 to 11 have ducks in them
    (root / "away").rename(root / "birds/test/duck")
    assert extract(tmp_path / "out", root=root) == 0
    assert not (tmp_path / "out/failed_images.txt").exists()


# --- locks and publication


def test_a_second_start_fails_at_once(extract, tmp_path):
    out = tmp_path / "out"
    with locks.locked(out, flag="--output_dir"):
        before = os.listdir(out)
        with pytest.raises(locks.LockedError, match=rf"process {os.getpid()}, since") as error:
            extract(out)
        assert error.value.exit_code == 2
        assert os.listdir(out) == before
    assert not out.exists()


def test_killed_between_publication_and_removal(extract, assert_continues, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResumeFolder, "discard", killed)
        with pytest.raises(KeyboardInterrupt):
            extract(out)
    assert (out / "X_Y.pth").is_file() and (out / ".resume").is_dir()
    written = (out / "X_Y.pth").stat().st_mtime_ns
    assert_continues(out)
    assert (out / "X_Y.pth").stat().st_mtime_ns == written


def test_unfinished_work_beside_complete_features_of_other_settings(extract, tmp_path, interrupt):
    out = tmp_path / "out"
    assert extract(out) == 0
    other = ("FT_EXTRACT.PRECISION", "bf16", "--overwrite")
    interrupt(2, out, *other)
    assert extract(out) == 0  # what is complete is untouched, and so is the other work
    assert len(pieces(out)) == 2
    assert extract(out, *other) == 0
    assert not (out / ".resume").exists()


# --- the store itself


def begin(folder, n_rows):
    store = shards.Shards(folder)
    store.begin(shards.Manifest("w", {}, n_rows, 10, False, "", ""))
    return store


def features(first, n, *, dtype=torch.float32, failed=()):
    rows = np.array([row for row in range(first, first + n) if row not in failed], dtype=np.int64)
    x = torch.from_numpy(rows[:, None] * np.ones((1, 3))).to(dtype)
    return FeatureBatch(first, n, x, rows, [(row, "bad") for row in failed if first <= row < first + n])


def record_all(store, found):
    with shards.ShardWriter(store, max_rows=10) as writer:
        for one in found:
            writer.add(one)


def test_float16_output_is_stored_as_it_is_and_comes_back_as_float32(tmp_path):
    store = begin(tmp_path, 20)
    record_all(store, [features(first, 4, dtype=torch.float16, failed=(1, 9)) for first in range(0, 20, 4)])
    store.scan()
    assert {np.load(path).dtype.name for path in store.path.glob("*.npy")} == {"float16"}
    x = store.merge()
    assert x.dtype == np.float32 and x[:, 0].tolist() == [row for row in range(20) if row not in (1, 9)]


# --- real signals


@pytest.fixture
def start(python, repository, inputs, tmp_path):
    processes = []

    def begin(out, *more, sleep="0.1", workers=0, python=python):
        arguments = extraction.arguments(inputs, out, *more, workers=workers)
        process = subprocess.Popen(
            [python, str(repository / "extract_features.py"), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COG_TEST_SLEEP": sleep},
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "n_pieces"),
    [
        (signal.SIGTERM, 2),
        (signal.SIGKILL, 3),
        *(
            (number, n)
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL, signal.SIGINT)
            for n in (1, 5)
        ),
    ],
)
def test_signals(assert_continues, tmp_path, start, number, n_pieces, python):
    out = tmp_path / "out"
    # Of those who are killed nothing must be left when the next one begins.
    process = start(out, python=python)
    wait_for(lambda: len(pieces(out)) >= n_pieces)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    if number in (signal.SIGTERM, signal.SIGUSR1):
        assert process.returncode == 75
        assert f"error: ended by {number.name}: " in error and "the same command continues" in error
    else:
        assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in error
    assert not (out / "X_Y.pth").exists()
    assert_continues(out)
