"""What ``python -m cog doctor`` finds, on a machine that works and on machines that do not."""

from __future__ import annotations

import json
import types

import pytest
import torch

from cog.commands import doctor, machine
from cog.errors import CogError
from cog.levels import wordnet
from cog.logreg.engine import Engine


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name, value in (("ROWS", 256), ("DIM", 32), ("CLASSES", 8), ("IMAGES", 2), ("NETWORK", "resnet18")):
        monkeypatch.setattr(machine, name, value)
    monkeypatch.setattr(wordnet, "load_wordnet", lambda: types.SimpleNamespace(wnids=["n00001740"]))


def run(capsys, *argv):
    """Return exit code, and texts by level and subject."""
    code = doctor.main(["--device", "cpu", "--format", "json", *argv])
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] == (code == 0)
    texts = {}
    for finding in shown["findings"]:
        texts.setdefault((finding["level"], finding["subject"]), []).append(finding["text"])
    return code, texts


def test_a_machine_that_works(capsys):
    code, texts = run(capsys)
    assert code == 0 and {level for level, _ in texts} <= {"ok", "warning"}
    subjects = {subject for _, subject in texts}
    assert subjects == {"software", "device", "decoders", "classifiers", "extraction"}
    assert (
        "fp32: weights within" in texts["ok", "classifiers"][0] and "steps/s" in texts["ok", "classifiers"][0]
    )
    assert "fp32: " in texts["ok", "extraction"][0] and "cosine 1.00000" in texts["ok", "extraction"][0]


def test_a_device_that_is_not_there(capsys):
    code, texts = run(capsys, "--device", "cuda:9")
    assert code == 2 and "cuda:9" in texts["problem", "device"][0]
    assert ("ok", "decoders") in texts  # the rest is looked at all the same


@pytest.mark.parametrize("subject", ["classifiers", "extraction", "decoders"])
def test_what_is_wrong_or_fails_is_a_problem(capsys, monkeypatch, subject):
    def fail(*args, **options):
        raise RuntimeError("CUDA error: unspecified launch failure\nmore lines")

    if subject == "classifiers":
        monkeypatch.setattr(Engine, "fit", fail)
    elif subject == "extraction":
        monkeypatch.setattr(machine, "extract_features", fail)
    else:
        monkeypatch.setattr(machine, "load_rgb", lambda path: machine.Image.new("RGB", (500, 375)))
    code, texts = run(capsys)
    assert code == 2 and [subject for level, subject in texts if level == "problem"] == [subject]
    told = (
        "PNG is decoded to other pixels"
        if subject == "decoders"
        else "CUDA error: unspecified launch failure"
    )
    (text,) = texts["problem", subject]
    assert told in text and "\n" not in text


def test_wrong_numbers_are_problems(monkeypatch):
    monkeypatch.setattr(machine, "WEIGHT_ERRORS", dict.fromkeys(machine.WEIGHT_ERRORS, -1.0))
    monkeypatch.setattr(machine, "COSINES", dict.fromkeys(machine.COSINES, 2.0))
    cpu = torch.device("cpu")
    for key, found in (("CLF", machine._classifiers(cpu)), ("FT_EXTRACT", machine._extraction(cpu))):
        for level, text in found:
            assert level == machine.PROBLEM and f": do not use {key}.PRECISION" in text.replace(
                "; do", ": do"
            )


def test_without_wordnet_or_memory_there_are_warnings(capsys, monkeypatch):
    def missing():
        raise CogError("WordNet 3.0 was not found")

    monkeypatch.setattr(wordnet, "load_wordnet", missing)
    monkeypatch.setattr(machine, "DIM", 2048)
    monkeypatch.setattr(machine, "available_memory", lambda: 1_000_000)
    text = "WordNet 3.0 was not found (only build_levels.py needs it)"
    assert (machine.WARNING, text) in list(machine._software(torch.device("cpu")))
    *_, (level, text) = machine._device(torch.device("cpu"))
    assert level == machine.WARNING and "9.01 GB" in text and "0.001 GB" in text


@pytest.mark.gpu
def test_on_a_gpu(capsys):
    code, texts = run(capsys, "--device", "cuda")
    assert code == 0, texts
    assert {"fp32", "bf16"} <= {text.partition(":")[0] for text in texts["ok", "classifiers"]}
