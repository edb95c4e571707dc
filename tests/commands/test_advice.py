"""The advice at the end of error messages: whoever follows it literally gets on, and loses nothing else.

Each test provokes a message with a real command on the files of :mod:`tiny`, does what the message says, and runs the
command again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from marks import first_quick

from cog.commands import analyze_features, extract_features, finetune, logreg
from cog.errors import CogError
from cog.features import extract as extract_module
from cog.finetune.train import Training

IMAGES = [
    "FT_EXTRACT.N_WORKERS", "0", "FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "12",
]  # fmt: skip
FINETUNE = [
    "FINETUNE.N_EPOCHS", "2", "FINETUNE.BATCH_SIZE", "4", "FINETUNE.WARMUP_EPOCHS", "0",
]  # fmt: skip


def model(workshop: tiny.Workshop) -> list[str]:
    return [
        "--models_root_dir", str(workshop.models), "--model", "tiny_net", "--dataset", "birds", "--device", "cpu",
    ]  # fmt: skip


def images(workshop: tiny.Workshop) -> list[str]:
    loader = f"{workshop.loader}:load_my_model"
    return [*model(workshop), "--model_loader", loader, "--images_root", str(workshop.birds)]


def extract(workshop: tiny.Workshop, *extra: str) -> int:
    return extract_features.main([*images(workshop), "--split", "train", "test", *extra, *IMAGES])


def train(workshop: tiny.Workshop, *extra: str) -> int:
    short = ["CLF.N_EPOCHS", "2", "CLF.N_TRIALS", "2"]
    return logreg.main([*model(workshop), "--seeds", "22", "37", *short, *extra])


def fine_tune(workshop: tiny.Workshop, *extra: str) -> int:
    return finetune.main([*images(workshop), *IMAGES, *FINETUNE, *extra])


def cluster(workshop: tiny.Workshop, *extra: str) -> int:
    return analyze_features.main([*model(workshop), "--analysis", "kmeans", "ncm", *extra])


def refused(command, workshop: tiny.Workshop, *extra: str) -> str:
    """Run a command that must be refused, and return its message."""
    with pytest.raises(CogError) as error:
        command(workshop, *extra)
    assert error.value.exit_code == 2
    return str(error.value)


def seed_folder(workshop: tiny.Workshop, seed: int = 22) -> Path:
    return workshop.models / f"tiny/net/birds/eval_logreg/seed-{seed}"


def interrupt(monkeypatch, where, name: str, after: int = 1) -> None:
    """Let the ``after``-th call of a function do its work, and then end like ^C."""
    original, calls = getattr(where, name), iter(range(1, 1000))

    def call(*args):
        original(*args)
        if next(calls) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(where, name, call)


# --- runs


def test_parts_of_a_run_are_not_to_be_kept(workshop, tmp_path):
    """An interrupted run of the original toolkit."""
    folder = seed_folder(workshop)
    folder.mkdir(parents=True)
    (folder / "arguments.json").write_text("{}")
    message = refused(train, workshop)
    assert "arguments.json, and no results.json" in message and "--overwrite" in message
    folder.rename(tmp_path / "aside")
    assert train(workshop) == 0


@pytest.mark.parametrize("content", first_quick(1, ["{", "", "[]"]))
def test_a_damaged_record_is_replaced(workshop, content):
    train(workshop)
    record = seed_folder(workshop) / "results.json"
    record.write_text(content)
    assert "; add --overwrite to replace " in refused(train, workshop)
    assert train(workshop, "--overwrite") == 0
    assert json.loads(record.read_text())["status"] == "complete"


@pytest.mark.parametrize(
    ("normalized", "advice", "remedy"),
    [
        ("False", "lower CLF.LR_INTV or set CLF.NORM_FTS True", ["CLF.NORM_FTS", "True"]),
        ("True", "lower CLF.LR_INTV", ["CLF.LR_INTV", "(0.1, 1.0)"]),
    ],
)
def test_a_search_without_a_finite_trial(workshop, normalized, advice, remedy):
    for split in ("train", "test"):
        x, y = tiny.make_xy(seed=1)
        tiny.write_features(workshop.features(split), x * 1e20, y)
    rates = "(0.1, 1.0)" if normalized == "False" else "(1e37, 1e38)"
    flags = ["CLF.NORM_FTS", normalized, "CLF.LR_INTV", rates]
    assert refused(train, workshop, *flags).endswith(f"; {advice}")
    assert train(workshop, *flags, *remedy) == 0


# --- features


def test_damaged_features_are_extracted_again(workshop):
    """Extraction skips complete features, whatever is in the file: the advice names the flag."""
    extract(workshop, "--overwrite")
    file = workshop.features("train") / "X_Y.pth"
    data = torch.load(file)
    data["X"][3, 2] = float("nan")
    torch.save(data, file)
    for damage in (
        lambda: None,
        lambda: file.write_bytes(file.read_bytes()[:-100]),
        lambda: file.write_bytes(b""),
    ):
        damage()
        assert refused(train, workshop).endswith("again (--overwrite)")
    assert extract(workshop) == 0, "nothing to do"
    refused(train, workshop)
    assert extract(workshop, "--overwrite") == 0
    assert train(workshop) == 0


@pytest.mark.parametrize("content", first_quick(1, ["{", "", "[]"]))
def test_a_damaged_description_of_features_is_removed(workshop, content):
    extract(workshop, "--overwrite")
    description = workshop.features("train") / "features.json"
    description.write_text(content)
    for command in (train, cluster):
        assert refused(command, workshop).endswith("; remove the file, or restore it from a copy")
    assert "add --overwrite to replace" in refused(extract, workshop)
    description.unlink()
    assert train(workshop) == 0
    assert cluster(workshop) == 0
    assert extract(workshop, "--overwrite") == 0


# --- lack of memory, values that are not finite


def test_lack_of_memory_on_a_cpu_from_the_start(workshop, monkeypatch):
    """Passes on a CPU have 64 images at most: only a larger batch is to be lowered."""

    def run_out(*args, **options):
        raise MemoryError

    (workshop.features("train") / "X_Y.pth").unlink()
    monkeypatch.setattr(extract_module, "to_input", run_out)
    for size, advice in (("64", "run this where there is more"), ("128", "lower FT_EXTRACT.BATCH_SIZE")):
        message = refused(extract, workshop, "--split", "train", "FT_EXTRACT.BATCH_SIZE", size)
        assert message.startswith("out of memory while extracting") and message.endswith(advice)


def test_fine_tuning_that_fails_after_an_epoch(workshop, monkeypatch):
    passes, failures = iter(range(100)), {3: MemoryError(), 5: None}

    def one_pass(*args, original=Training._one_pass, **options):
        number = next(passes)
        if isinstance(failures.get(number), MemoryError):
            raise MemoryError
        return original(*args, **options) * (float("nan") if number in failures else 1)

    monkeypatch.setattr(Training, "_one_pass", one_pass)
    assert "out of memory" in refused(fine_tune, workshop)
    assert refused(fine_tune, workshop).endswith("diverged; lower FINETUNE.LR")
    assert fine_tune(workshop, "FINETUNE.LR", "1e-5") == 0
