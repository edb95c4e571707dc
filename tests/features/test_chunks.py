"""Chunks: whatever happens, and whoever takes part, the result is that of one undisturbed process."""

import gc
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
import weakref
from pathlib import Path

import extraction
import pytest
import tiny
from marks import first_quick

from cog.commands import extract_features
from cog.data import loader
from cog.errors import CogError
from cog.features import run
from cog.features.extract import Extractor
from cog.runtime import memory, output, signals
from cog.runtime.memory import Rank

MODELS = ("placed_a", "placed_b", "placed_c")

#: Other mean, another precision, another crop: the third does not share decoded images with the others.
CONFIGS = {
    "placed_b": "FT_EXTRACT: {PRECISION: bf16, IMAGE_NORM: {MEAN: [0.5, 0.5, 0.5]}}",
    "placed_c": "FT_EXTRACT: {IMAGE_CROP_SIZE: 200}",
    "wrong_key": "FT_EXTRACT: {SIZE: 200}",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return extraction.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module", autouse=True)
def _settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    shutil.copy(Path(__file__).parents[2] / "configs/default.py", folder)
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)
    gc.freeze()  # of all objects until here, which each of the forked processes would look at, and copy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CHUNK", 2)  # 8 rows: four chunks
        patch.setattr("cog.config.configs_dir", lambda: folder)
        yield


def arguments(root, models_root, *more, models=MODELS, workers=0):
    words = f"--dataset birds --split test --images_root {root}/birds --models_root_dir {models_root}"
    words += f" --model_loader {root}/net.py:load_my_model FT_EXTRACT.BATCH_SIZE 4"
    words += f" FT_EXTRACT.N_WORKERS {workers}"
    return ["--model", *models, *words.split(), *more]


def extract(root, models_root, *more, rank=0, world=1, **options):
    """Run the command as process ``rank`` of ``world``."""
    models_root.mkdir(parents=True, exist_ok=True)
    given = extract_features.parse_args(arguments(root, models_root, *more, **options))
    plan, _ = extract_features.plan(given)
    with signals.deferred():
        run.extract(plan, allow_failures=0, rank=Rank(rank, world))


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
def expected(inputs, tmp_path_factory):
    """Each model alone, in one chunk."""
    root = tmp_path_factory.mktemp("expected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CHUNK", 16)
        for model in MODELS:
            extract(inputs, root, models=[model])
    return content(root)


def test_models_in_one_pass_are_each_alone_and_decode_once(inputs, expected, tmp_path, monkeypatch):
    counted, decode = [], loader.Decoder.decode
    monkeypatch.setattr(loader.Decoder, "decode", lambda *args: counted.append(args[2]) or decode(*args))
    extract(inputs, tmp_path)
    assert content(tmp_path) == expected and len(expected) == 3
    assert sorted(counted) == sorted([*range(30), *range(30)])  # placed_a and placed_b share theirs


@pytest.mark.parametrize(("batch_size", "world"), first_quick(2, [(200, 1), (3, 3), (4, 3), (1, 2), (16, 5)]))
def test_batch_size_and_number_of_processes_change_no_bit(inputs, expected, tmp_path, batch_size, world):
    for rank in reversed(range(world)):
        assert not list(tmp_path.rglob("X_Y.pth"))
        how = {"rank": rank, "world": world, "workers": 2 * (rank % 2 == 0)}
        extract(inputs, tmp_path, "FT_EXTRACT.BATCH_SIZE", str(batch_size), **how)
    assert content(tmp_path) == expected


def test_a_model_is_not_run_on_chunks_that_it_has(inputs, expected, tmp_path, monkeypatch):
    extract(inputs, tmp_path, models=MODELS[:1])
    extract(inputs, tmp_path, models=MODELS[1:2], rank=0, world=2)
    rows, call = [], Extractor.__call__
    monkeypatch.setattr(Extractor, "__call__", lambda *args: rows.append(len(args[1])) or call(*args))
    extract(inputs, tmp_path)
    assert sum(rows) == (30 - 16) + 30 and content(tmp_path) == expected


@pytest.mark.parametrize("where", ["on a CPU", "in a pass"])
def test_what_does_not_fit_is_another_pass_and_told(inputs, expected, tmp_path, monkeypatch, caplog, where):
    caplog.set_level("INFO", logger="cog")
    room, forward, calls = itertools.chain([100, 10], itertools.repeat(100)), Extractor._forward, []

    def exhausted_once(self, pixels):
        calls.append(self)
        if len(calls) == 6:  # of the second model
            raise CogError("out of memory") from MemoryError()
        return forward(self, pixels)

    if where == "on a CPU":
        monkeypatch.setattr(memory, "available_memory", lambda: next(room))
    else:
        monkeypatch.setattr(Extractor, "_forward", exhausted_once)
    extract(inputs, tmp_path)
    assert "placed_b does not fit into memory beside 1 models: another pass follows" in caplog.text
    assert content(tmp_path) == expected


def test_a_model_that_fails_does_not_lose_the_others(inputs, expected, tmp_path, monkeypatch):
    forward, failed = Extractor._forward, []

    def fail(self, pixels):
        if self._precision == "bf16":
            failed.append(weakref.ref(self))
            raise CogError("no memory left")
        assert not any(one() for one in failed)  # its memory is free again
        return forward(self, pixels)

    says, counted, decode = "^placed_b on birds test: no memory left$", [], loader.Decoder.decode
    for models, n_decoded in ((MODELS[1:2], 8), (MODELS, 60)):  # alone, it ends with the first chunk
        with monkeypatch.context() as patch, pytest.raises(CogError, match=says):
            patch.setattr(Extractor, "_forward", fail)
            patch.setattr(loader.Decoder, "decode", lambda *args: counted.append(args[2]) or decode(*args))
            extract(inputs, tmp_path, models=models)
        assert len(counted) == n_decoded + 8 * (models == MODELS)
    assert len(list(tmp_path.rglob("X_Y.pth"))) == 2
    state = output.state(place(tmp_path, "placed_b"), "features.json")
    assert state.word == output.FAILED and "no memory left" in state.detail
    with pytest.raises(CogError, match="no features of wrong_key, nameless: .*SIZE"):
        extract_features.main(arguments(inputs, tmp_path, models=("wrong_key", "nameless", *MODELS)))
    assert content(tmp_path) == expected


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
    extract(inputs, tmp_path, "FT_EXTRACT.PRECISION", "fp32", "--overwrite", models=MODELS[:1])


def test_images_that_change_in_between_are_read_again(tmp_path):
    root = extraction.write_inputs(tmp_path / "in")
    extract(root, tmp_path / "models", models=MODELS[:1], rank=0, world=2)
    tiny.write_image(root / "birds/test/crow/crow_3.png", seed=99)
    for name in ("models", "fresh"):
        extract(root, tmp_path / name, models=MODELS[:1])
    assert content(tmp_path / "models") == content(tmp_path / "fresh")


# --- decoding processes


def test_decoding_that_cannot_go_on_ends_in_one_line(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(loader.Decoder, "decode", lambda *args: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(CogError, match="decoding stopped: .*worker"):
        extract(inputs, tmp_path, models=MODELS[:1], workers=2)
    usage = shutil.disk_usage("/")._replace(free=1_000_000)  # told in the first second
    monkeypatch.setattr(loader.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CogError, match=r"/dev/shm has 1 MB free.*docker run --shm-size=2g.*N_WORKERS \(0:"):
        extract(inputs, tmp_path, models=MODELS[:1], workers=2)


# --- launchers, kills (tests/test_kill.py has more)


@pytest.mark.parametrize(
    "variables",
    [
        "RANK= LOCAL_RANK= WORLD_SIZE=2 LOCAL_WORLD_SIZE=2",
        "SLURM_PROCID= SLURM_LOCALID= SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_ID=0",
    ],
    ids=["torchrun", "srun"],
)
def test_processes_of_launchers(inputs, expected, tmp_path, monkeypatch, variables):
    for rank in "10":
        assert not list(tmp_path.rglob("X_Y.pth"))
        with monkeypatch.context() as patch:
            for name, _, value in (each.partition("=") for each in variables.split()):
                patch.setenv(name, value or rank)
            assert extract_features.main(arguments(inputs, tmp_path, models=MODELS[:1])) == 0
    assert content(tmp_path) == {"placed/a/birds/features_test": expected["placed/a/birds/features_test"]}


@pytest.mark.slow
def test_killed_at_any_instant(inputs, expected, tmp_path):
    process, draw, begin = multiprocessing.get_context("fork").Process, random.Random(0), time.monotonic()
    extract(inputs, tmp_path / "whole", workers=1)
    duration = time.monotonic() - begin
    for number in range(12):
        root, both = tmp_path / str(number), []
        for rank in range(2):
            how = {"rank": rank, "world": 2, "workers": number % 2}
            both.append(process(target=extract, args=(inputs, root), kwargs=how))
            both[-1].start()
        for each in both:
            time.sleep(draw.uniform(0, duration))
            each.kill()
        for each in both:
            each.join()
        extract(inputs, root)
        assert content(root) == expected, number
