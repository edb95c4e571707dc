"""Counts per concept in results.json: written, read, and refused when damaged."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from result_folders import make_record, make_seed_folder

from cog.results import concept_counts, runs


@pytest.mark.parametrize(
    ("correct", "images"),
    [
        ([3, 0, 50], [50, 50, 50]),
        ([1, 0], [2, 1]),
        ([300, 7], [70000, 9]),
        ([70000, 0], [70000, 1]),
        ([255], [256]),
    ],
)
def test_written_counts_are_read_again(correct, images):
    entries = json.loads(json.dumps(concept_counts.write(correct, images)))
    found = concept_counts.read(entries, n_classes=len(correct), top1=100 * sum(correct) / sum(images))
    assert found.correct.tolist() == correct and found.n_images == sum(images)
    assert isinstance(found.images, int) == (len(set(images)) == 1)


def test_the_form_is_as_documented():
    entries = concept_counts.write([1, 300], [400, 300])
    assert entries == {
        name: base64.b64encode(struct.pack("<2H", *numbers)).decode()
        for name, numbers in (("correct_per_class", (1, 300)), ("images_per_class", (400, 300)))
    }
    assert len(json.dumps(concept_counts.write([50] * 1000, [50] * 1000))) < 1400


def test_runs_without_counts():
    assert concept_counts.read({"test_top1": 50.0}, n_classes=None, top1=50.0) is None


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"correct_per_class": 7}, "no text with 2 numbers"),
        ({"correct_per_class": ""}, "no text with 2 numbers"),
        ({"correct_per_class": "AQ=="}, "1 bytes for 2 numbers"),
        ({"correct_per_class": "A" * 1_000_000}, "750000 bytes for 2 numbers"),
        ({"correct_per_class": "\u0661\u0662==", "images_per_class": 2}, "ASCII"),
        ({"correct_per_class": "AQ!="}, "base64"),
        ({"correct_per_class": "AQE="}, "no text with 2 numbers"),
        ({"correct_per_class": "AQE=", "images_per_class": True}, "no text with 2 numbers"),
        ({"correct_per_class": "AQE=", "images_per_class": 0}, "0 images per class"),
        ({"correct_per_class": "AQE=", "images_per_class": 10**30}, "images per class"),
        ({"correct_per_class": "AQM=", "images_per_class": 2}, "more right answers"),
        ({"correct_per_class": "AAA=", "images_per_class": "AAA="}, "more right answers"),
        ({"correct_per_class": "AQE=", "images_per_class": 4}, "25 % right answers, the accuracy is 50"),
    ],
)
def test_damaged_counts_are_one_line(entries, words, tmp_path):
    with pytest.raises(ValueError) as caught:
        concept_counts.read(entries, n_classes=2, top1=50.0)
    assert words in str(caught.value)
    make_record(make_seed_folder(tmp_path / "seed-22", 50.0), record={"n_classes": 2}, **entries)
    [skipped] = runs.read_folder(tmp_path).skipped
    assert "\n" not in skipped.reason and "--overwrite" in skipped.reason
