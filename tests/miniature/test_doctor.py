"""What ``python -m cog doctor`` finds, on a machine that works and on machines that do not."""

from __future__ import annotations

import dataclasses
import json
import types

import pytest
import torch

from cog.commands import doctor as command
from cog.data import loader
from cog.errors import CogError
from cog.features.extract import Extractor
from cog.levels import wordnet
from cog.logreg.engine import Engine
from cog.miniature import doctor
from cog.miniature.doctor import PROBLEM, WARNING, Findings

SMALL = doctor.Sizes(n_rows=256, dim=32, n_classes=8, batch_size=32, n_images=8, network="resnet18")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(doctor, "SIZES", SMALL)
    monkeypatch.setattr(doctor, "_CROP", 32)
    monkeypatch.setattr(doctor, "_RESIZE", 32)
    monkeypatch.setattr(wordnet, "load_wordnet", lambda: types.SimpleNamespace(wnids=["n00001740"]))


def run(capsys, *argv):
    """Return exit code and JSON."""
    code = command.main(["--device", "cpu", "--format", "json", *argv])
    return code, json.loads(capsys.readouterr().out)


def texts(shown, level):
    return {finding["subject"]: finding["text"] for finding in shown["findings"] if finding["level"] == level}


def test_a_machine_that_works(capsys):
    code, shown = run(capsys)
    assert code == 0 and shown["ok"] and not texts(shown, PROBLEM)
    subjects = {finding["subject"] for finding in shown["findings"]}
    assert subjects == {
        "software", "SLURM", "CPU", "device", "decoders", "WordNet", "classifiers", "extraction", "memory",
    }  # fmt: skip
    measured = shown["measured"]
    assert measured["classifiers"]["fp32"]["error"] < 1e-5
    assert measured["classifiers"]["fp32"]["steps_per_second"] > 1
    assert measured["images_per_second"]["decoding"] > measured["images_per_second"]["fp32"] / 100
    assert measured["memory"]["level"] == 4 * 32 * 1_150_000


@pytest.mark.slow
def test_a_page_of_text(capsys):
    assert command.main(["--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "a study can run here"
    assert all(line.split()[0] in ("ok", "warning") for line in lines[:-1])


def test_a_device_that_is_not_there(capsys):
    code, shown = run(capsys, "--device", "cuda:9")
    assert code == 2 and not shown["ok"]
    assert "cuda:9" in texts(shown, PROBLEM)["device"]
    assert "decoders" in texts(shown, "ok")  # the rest is looked at all the same


def problems(subject):
    """Return the problems that the trial of classifiers or extraction tells, each with the others."""
    report = Findings()
    getattr(doctor, f"_try_{subject}")(report, torch.device("cpu"), SMALL, {})
    return [finding.text for finding in report.findings if finding.level == PROBLEM]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_that_is_wrong(monkeypatch, precision):
    fit = Engine.fit

    def fit_otherwise(self, data, spec, config, **options):
        return fit(self, data, spec, dataclasses.replace(config, momentum=0.5), **options)

    monkeypatch.setattr(Engine, "fit", fit_otherwise)
    monkeypatch.setattr(doctor, "_precisions", lambda device: [precision])
    assert [text.partition(": do not use ")[2] for text in problems("classifiers")] == [
        f"CLF.PRECISION {precision} here"
    ]


@pytest.mark.slow
def test_features_that_are_wrong(monkeypatch):
    """Those that each precision gives, compared with the first ones, in float32."""
    stream = Extractor.stream

    def stream_otherwise(self, images, *args, **options):
        scale = -1.0 if calls else 1.0
        calls.append(self)
        for batch in stream(self, images, *args, **options):
            yield dataclasses.replace(batch, x=batch.x * scale)

    calls: list[Extractor] = []
    monkeypatch.setattr(Extractor, "stream", stream_otherwise)
    monkeypatch.setattr(doctor, "_extraction_precisions", lambda device: ["fp32", "bf16"])
    assert [text.partition(": do not use ")[2] for text in problems("extraction")] == [
        "FT_EXTRACT.PRECISION fp32", "FT_EXTRACT.PRECISION bf16",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "subject"),
    [(Engine, "fit", "classifiers"), (Extractor, "stream", "extraction"), (loader, "batches", "extraction")],
)
def test_any_failure_is_a_finding(capsys, monkeypatch, owner, name, subject):
    def fail(*args, **options):
        raise RuntimeError("CUDA error: unspecified launch failure\nmore lines")

    monkeypatch.setattr(owner, name, fail)
    code, shown = run(capsys)
    assert code == 2
    assert texts(shown, PROBLEM) == {subject: "RuntimeError: CUDA error: unspecified launch failure"}


@pytest.mark.slow
def test_decoders_that_give_other_pixels(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "load_rgb", lambda path: doctor.Image.new("RGB", (500, 375)))
    code, shown = run(capsys)
    assert code == 2
    assert "JPEG is decoded to other pixels" in texts(shown, PROBLEM)["decoders"]


@pytest.mark.slow
def test_without_wordnet_levels_alone_are_missing(capsys, monkeypatch):
    def missing():
        raise CogError("WordNet 3.0 was not found")

    monkeypatch.setattr(wordnet, "load_wordnet", missing)
    code, shown = run(capsys)
    assert code == 0
    assert texts(shown, WARNING)["WordNet"] == "WordNet 3.0 was not found (only build_levels.py needs it)"


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "available_memory", lambda: 1_000_000)
    report = Findings()
    doctor._look_at_memory(report, torch.device("cpu"), 2048, {})
    (finding,) = report.findings
    assert finding.level == WARNING and "9.42 GB" in finding.text and "1 MB" in finding.text


@pytest.mark.gpu
def test_on_a_gpu(capsys):
    code, shown = run(capsys, "--device", "cuda")
    assert code == 0, shown
    assert {"fp32", "bf16"} <= set(shown["measured"]["classifiers"])
    assert shown["measured"]["classifiers"]["fp32"]["cuda_graphs"]
