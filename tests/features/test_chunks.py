"""Chunks: whatever happens, and whoever takes part, the result is that of one undisturbed process."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import extraction
import pytest
import torch
from marks import first_quick

from cog.commands import extract_features
from cog.data import loader
from cog.errors import CogError, FailedImagesError
from cog.features import run
from cog.features.extract import Extractor
from cog.runtime import memory, output, signals
from cog.runtime.memory import Rank

MODELS = ("placed_a", "placed_b", "placed_c")

#: Other mean, another precision, another crop: the third does not share decoded images with the others.
CONFIGS = {
    "placed_b": "FT_EXTRACT: {PRECISION: bf16, IMAGE_NORM: {MEAN: [0.5, 0.5, 0.5]}}",
    "placed_c": "FT_EXTRACT: {IMAGE_CROP_SIZE: 200}",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return extraction.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    shutil.copy(Path(__file__).parents[2] / "configs/default.py", folder)
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _small_chunks(configs, monkeypatch):
    monkeypatch.setattr(run, "CHUNK", 2)  # 8 rows: four chunks
    monkeypatch.setattr("cog.config.configs_dir", lambda: configs)


def arguments(root, models_root, *more, models=MODELS, workers=0):
    return [
        "--model",
        *models,
        "--dataset",
        "birds",
        "--split",
        "test",
        "--images_root",
        str(root / "birds"),
        "--model_loader",
        f"{root / 'net.py'}:load_my_model",
        "--models_root_dir",
        str(models_root),
        "FT_EXTRACT.N_WORKERS",
        str(workers),
        "FT_EXTRACT.BATCH_SIZE",
        "4",
        *more,
    ]


def extract(root, models_root, *more, rank=0, world=1, **options):
    """Run the command as process ``rank`` of ``world``."""
    models_root.mkdir(parents=True, exist_ok=True)
    args = extract_features.parse_args(arguments(root, models_root, *more, **options))
    with signals.deferred():
        plan, n = extract_features.plan(args), args.allow_failures
        run.extract(plan, allow_failures=n, rank=Rank(rank, world))


def place(models_root, model="placed_a", name="features_test"):
    return models_root / model.replace("_", "/") / "birds" / name


def chunks(models_root, model="placed_a"):
    return sorted(place(models_root, model, ".features_test.work").glob("chunks-*/rows-*"))


def content(models_root):
    """Return the results of all models; nothing may be left of the work."""
    assert not list(models_root.rglob("*.work"))
    folders = [path.parent for path in models_root.rglob("X_Y.pth")]
    return {str(folder.relative_to(models_root)): extraction.outcome(folder) for folder in folders}


@pytest.fixture(scope="module")
def expected(inputs, configs, tmp_path_factory):
    """Each model alone, in one chunk."""
    root = tmp_path_factory.mktemp("expected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cog.config.configs_dir", lambda: configs)
        for model in MODELS:
            extract(inputs, root, models=[model])
    return content(root)


# --- many models, many processes


@pytest.mark.parametrize("workers", [0, 2])
def test_models_in_one_pass_are_each_alone_and_images_are_decoded_once(
    inputs, expected, tmp_path, monkeypatch, workers
):
    counted, decode = [], loader.Decoder.decode

    def count(self, data, row):
        counted.append(row)
        return decode(self, data, row)

    monkeypatch.setattr(loader.Decoder, "decode", count)
    extract(inputs, tmp_path, workers=workers)
    assert content(tmp_path) == expected and len(expected) == 3
    if not workers:
        assert sorted(counted) == sorted([*range(30), *range(30)])  # placed_a and placed_b share theirs


@pytest.mark.parametrize("batch_size", first_quick(2, [3, 200, 1, 16]))
def test_batch_size_does_not_change_a_bit(inputs, expected, tmp_path, batch_size):
    extract(inputs, tmp_path, "FT_EXTRACT.BATCH_SIZE", str(batch_size), workers=2)
    assert content(tmp_path) == expected


@pytest.mark.parametrize("world", first_quick(1, [3, 2, 5]))
def test_any_number_of_processes_is_one(inputs, expected, tmp_path, world):
    for rank in reversed(range(world)):
        assert not list(tmp_path.rglob("X_Y.pth"))
        extract(inputs, tmp_path, rank=rank, world=world, workers=rank % 2)
    assert content(tmp_path) == expected


def test_a_model_is_not_run_on_chunks_that_it_has(inputs, expected, tmp_path, monkeypatch):
    extract(inputs, tmp_path, models=MODELS[:1])
    extract(inputs, tmp_path, models=MODELS[1:2], rank=0, world=2)
    rows, call = [], Extractor.__call__
    monkeypatch.setattr(Extractor, "__call__", lambda *args: rows.append(len(args[1])) or call(*args))
    extract(inputs, tmp_path)
    assert sum(rows) == (30 - 16) + 30
    assert content(tmp_path) == expected


@pytest.mark.parametrize("where", ["on a CPU", "in a pass"])
def test_what_does_not_fit_is_another_pass_said_in_one_line(
    inputs, expected, tmp_path, monkeypatch, caplog, where
):
    caplog.set_level("INFO", logger="cog")
    if where == "on a CPU":
        room = iter([100, 10, *[100] * 99])
        monkeypatch.setattr(memory, "available_memory", lambda: next(room))
    else:
        forward, calls = Extractor._forward, []

        def exhausted_once(self, pixels):
            calls.append(self)
            if len(calls) == 6:  # of the second model
                raise memory.explain(MemoryError(), "", "") from MemoryError()
            return forward(self, pixels)

        monkeypatch.setattr(Extractor, "_forward", exhausted_once)
    extract(inputs, tmp_path)
    assert "placed_b does not fit into memory beside 1 models: another pass follows" in caplog.text
    assert content(tmp_path) == expected


def test_a_model_that_fails_does_not_lose_the_others(inputs, expected, tmp_path, monkeypatch):
    forward = Extractor._forward

    def fail(self, pixels):
        if self._precision == "bf16":
            raise CogError("no memory left")
        return forward(self, pixels)

    says = "^placed_b on birds test: no memory left$"
    with monkeypatch.context() as patch, pytest.raises(CogError, match=says):
        patch.setattr(Extractor, "_forward", fail)
        extract(inputs, tmp_path)
    assert len(list(tmp_path.rglob("X_Y.pth"))) == 2
    state = output.state(place(tmp_path, "placed_b"), "features.json")
    assert state.word == output.FAILED and "no memory left" in state.detail
    extract(inputs, tmp_path)
    assert content(tmp_path) == expected


# --- interruptions


@pytest.mark.parametrize("n_batches", [3, 4])
def test_a_signal_keeps_the_finished_chunks(inputs, expected, tmp_path, monkeypatch, n_batches):
    answers = iter([*[None] * n_batches, *["SIGTERM"] * 9])  # a question before each batch
    with monkeypatch.context() as patch, pytest.raises(signals.Interrupted) as error:
        patch.setattr(signals, "requested", lambda: next(answers))
        extract(inputs, tmp_path, models=MODELS[:2])
    assert error.value.exit_code == 75 and "the same command continues" in str(error.value)
    assert len(chunks(tmp_path)) == len(chunks(tmp_path, "placed_b")) == n_batches // 2
    extract(inputs, tmp_path)
    assert content(tmp_path) == expected


def test_unfinished_work_of_other_settings_is_refused_with_the_difference(inputs, tmp_path):
    extract(inputs, tmp_path, rank=0, world=2)
    before = chunks(tmp_path)
    cases = ("IMAGE_CROP_SIZE", "190", "size: 224 -> 190"), ("PRECISION", "fp16", "precision: fp32 -> fp16")
    for key, value, says in cases:
        with pytest.raises(CogError, match=rf"unfinished work.*--overwrite.*{says}"):
            extract(inputs, tmp_path, f"FT_EXTRACT.{key}", value)
    assert chunks(tmp_path) == before and len(before) == 2
    extract(inputs, tmp_path, "FT_EXTRACT.IMAGE_CROP_SIZE", "190", "--overwrite", models=MODELS[:1])
    identity = json.loads((place(tmp_path) / "features.json").read_text())["identity"]
    assert identity["preprocessing"]["size"] == 190


def test_images_that_change_in_between_are_read_again(tmp_path):
    root = extraction.write_inputs(tmp_path / "in")
    extract(root, tmp_path / "models", models=MODELS[:1], rank=0, world=2)
    extraction.replace_image(root, 3)
    for name in ("models", "fresh"):
        extract(root, tmp_path / name, models=MODELS[:1])
    assert content(tmp_path / "models") == content(tmp_path / "fresh")


# --- failed images, decoding processes


def test_mended_images_are_read_and_the_loss_of_others_accepted(tmp_path):
    root, models = extraction.write_inputs(tmp_path / "in", broken=(0, 5, 6, 29)), tmp_path / "models"
    with pytest.raises(FailedImagesError, match=r"4 of 30.*--allow_failures 4"):
        extract(root, models, models=MODELS[:1], workers=2)
    failed = place(models, name=".features_test.work") / "failed_images.txt"
    assert len(failed.read_text().splitlines()) == 4
    extraction.replace_image(root, 6)
    extract(root, models, "--allow_failures", "3", models=MODELS[:1])
    lines = (place(models) / "failed_images.txt").read_text().splitlines()
    failed = [line.split("\t")[0] for line in lines]
    assert failed == ["crow/crow_0.png", "crow/crow_5.png", "wren/wren_9.png"]
    extract(extraction.write_inputs(tmp_path / "all"), tmp_path / "whole", models=MODELS[:1])
    x, whole = (
        torch.load(place(root) / "X_Y.pth", weights_only=True)["X"] for root in (models, tmp_path / "whole")
    )
    assert torch.equal(x[5:], whole[7:29]) and torch.equal(x[:4], whole[1:5])
    assert not any(str(root) in line for line in lines)


def test_a_small_shared_memory_is_told_in_the_first_second(inputs, tmp_path, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(loader.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CogError, match=r"/dev/shm has 1 MB free.*docker run --shm-size=2g.*N_WORKERS \(0:"):
        extract(inputs, tmp_path, models=MODELS[:1], workers=2)


def test_a_decoding_process_that_is_killed_ends_in_one_line(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(loader.Decoder, "decode", lambda *args: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(CogError, match="decoding stopped: .*worker"):
        extract(inputs, tmp_path, models=MODELS[:1], workers=2)


# --- kills, launchers (tests/test_kill.py has more)


def start(function, *args, **options):
    """Call a function in a forked process and return its id."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function(*args, **options)
            code = 0
        except CogError:
            code = 2
        finally:
            os._exit(code)
    return pid


def wait(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.slow
def test_killed_at_any_instant(inputs, expected, tmp_path):
    begin = time.monotonic()
    wait([start(extract, inputs, tmp_path / f"t{rank}", rank=rank, world=2) for rank in range(2)])
    duration, draw = time.monotonic() - begin, random.Random(0)
    for number in range(30):
        root = tmp_path / str(number)
        pids = [start(extract, inputs, root, rank=rank, world=2, workers=number % 2) for rank in range(2)]
        for pid in pids:
            time.sleep(draw.uniform(0, duration) / 2)
            os.kill(pid, signal.SIGKILL)
        wait(pids)
        assert wait([start(extract, inputs, root, rank=rank, world=2) for rank in range(2)]) == [0, 0]
        assert content(root) == expected, number


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_processes_of_launchers(inputs, expected, tmp_path, python, repository, launcher):
    words = [str(repository / "extract_features.py"), *arguments(inputs, tmp_path, models=MODELS[:1])]
    step = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    starts = [([python, *words], {**step, "SLURM_PROCID": str(number)}) for number in range(2)]
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        starts = [([python, *torchrun, *words], {})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, env=environment | more) for command, more in starts]
    assert [process.wait(timeout=180) for process in processes] == [0] * len(processes)
    assert extraction.outcome(place(tmp_path)) == expected["placed/a/birds/features_test"]
