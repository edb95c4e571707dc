"""Counts per concept in results.json: written, read, and refused when damaged."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from cog.results import concept_counts


@pytest.mark.parametrize(
    ("correct", "images"),
    [
        ([3, 0, 50], [50] * 3),
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
    assert concept_counts.read({"test_top1": 50.0}, n_classes=None, top1=50.0) is None


def test_the_form_is_as_documented():
    texts = [base64.b64encode(struct.pack("<2H", *numbers)).decode() for numbers in ((1, 300), (400, 300))]
    expected = dict(zip(("correct_per_class", "images_per_class"), texts))
    assert concept_counts.write([1, 300], [400, 300]) == expected


@pytest.mark.parametrize(
    ("correct", "images", "words"),
    [
        (7, 2, "no text with 2 numbers"),
        ("\u0661\u0662==", 2, "ASCII"),
        ("AQE=", True, "no text with 2 numbers"),
        ("AQE=", 10**30, "images per class"),
        ("AQM=", 2, "more right answers"),
        ("AQE=", 4, "25 % right answers, the accuracy is 50"),
    ],
)
def test_damaged_counts_are_refused(correct, images, words):
    entries = {"correct_per_class": correct, "images_per_class": images}
    with pytest.raises(ValueError, match=words):
        concept_counts.read(entries, n_classes=2, top1=50.0)
