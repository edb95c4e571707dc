"""What ``python -m cog doctor`` finds, on a machine that works and on machines that do not."""

import json
import types

import pytest

from cog.commands import doctor, machine
from cog.errors import CogError
from cog.levels import wordnet
from cog.logreg.engine import Engine


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name, value in {"ROWS": 2100, "DIM": 32, "CLASSES": 8, "IMAGES": 2, "NETWORK": "test_resnet"}.items():
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
    assert {subject for _, subject in texts} == {"software", "device", "classifiers", "extraction"}
    assert "CLF.PRECISION fp32: weights within" in texts["ok", "classifiers"][0]
    assert "FT_EXTRACT.PRECISION fp32: cosine 1.00000" in texts["ok", "extraction"][1]


@pytest.mark.slow
def test_what_is_wrong_or_fails_is_a_problem_and_the_rest_is_looked_at(capsys, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("CUDA error: unspecified launch failure\nmore lines")

    def missing():
        raise CogError("WordNet 3.0 was not found")

    monkeypatch.setattr(Engine, "fit", fail)
    monkeypatch.setattr(machine, "load_rgb", lambda path: machine.Image.new("RGB", (500, 375)))
    monkeypatch.setattr(machine, "COSINES", dict.fromkeys(machine.COSINES, 2.0))
    monkeypatch.setattr(wordnet, "load_wordnet", missing)
    code, texts = run(capsys, "--device", "cuda:9")
    problems = {subject: found for (level, subject), found in texts.items() if level == "problem"}
    assert code == 2 and problems.keys() == {"device", "classifiers", "extraction"}
    assert "cuda:9" in problems["device"][0] and "unspecified launch failure" in problems["classifiers"][0]
    assert "pixels differ by" in problems["extraction"][0]
    assert problems["extraction"][1].startswith("FT_EXTRACT.PRECISION fp32: ")
    assert problems["extraction"][1].endswith("; do not use it here")
    assert texts["warning", "software"] == ["WordNet 3.0 was not found (only build_levels.py needs it)"]


@pytest.mark.gpu
def test_on_a_gpu(capsys):
    code, texts = run(capsys, "--device", "cuda")
    assert code == 0, texts
    assert {"fp32", "bf16"} <= {text.split()[1].strip(":") for text in texts["ok", "classifiers"]}
