"""Counts per concept in results.json: written, read, and refused when damaged."""

from __future__ import annotations

import base64
import struct

import pytest

from cog.results import concept_counts


@pytest.mark.parametrize(
    ("correct", "images", "code"),
    [
        ([3, 0, 50], [50] * 3, "B"),
        ([1, 0], [2, 1], "B"),
        ([300, 7], [70000, 9], "H"),
        ([70000, 0], [70000, 1], "I"),
    ],
)
def test_written_counts_have_the_documented_form_and_are_read_again(correct, images, code):
    entries = concept_counts.write(correct, images)
    packed = struct.pack(f"<{len(correct)}{code}", *correct)
    assert entries["correct_per_class"] == base64.b64encode(packed).decode()
    found = concept_counts.read(entries, n_classes=len(correct), top1=100 * sum(correct) / sum(images))
    assert found.correct.tolist() == correct and found.n_images == sum(images)
    assert isinstance(entries["images_per_class"], int) == (len(set(images)) == 1)


@pytest.mark.parametrize(
    ("correct", "images", "words"),
    [
        (7, 2, "no text with 2 numbers"),
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
