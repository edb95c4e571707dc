"""Chunks: whatever happens and when, and whoever takes part, the result is that of one undisturbed process."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import time

import extraction
import pytest
from marks import first_quick

from cog.commands import extract_features
from cog.data import loader
from cog.errors import CogError, FailedImagesError
from cog.features import chunks as chunk_files
from cog.features import run
from cog.features.extract import Extractor
from cog.runtime import memory, signals
from cog.runtime.ranks import Rank

MODELS = ("placed_a", "placed_b", "placed_c")

#: Other mean and std, another precision, another crop: the third does not share decoded images with the others.
CONFIGS = {
    "placed_b": "FT_EXTRACT: {PRECISION: bf16, IMAGE_NORM: {MEAN: [0.5, 0.5, 0.5]}}",
    "placed_c": "FT_EXTRACT: {IMAGE_CROP_SIZE: 200}",
}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(chunk_files, "CHUNK", 2)  # 8 rows: four chunks


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return extraction.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    shutil.copy(chunk_files.Path(__file__).parents[2] / "configs/default.py", folder)
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _own_configs(configs, monkeypatch):
    monkeypatch.setattr("cog.config.configs_dir", lambda: configs)


def arguments(root, models_root, *more, models=MODELS, workers=0):
    words = extraction.arguments(root, models_root, *more, workers=workers)
    words[words.index("--output_dir")] = "--models_root_dir"
    words[1:2] = models
    return words


def extract(root, models_root, *more, rank=0, world=1, **options):
    """Run the command as process ``rank`` of ``world``."""
    models_root.mkdir(parents=True, exist_ok=True)
    args = extract_features.parse_args(arguments(root, models_root, *more, **options))
    with signals.deferred():
        run.extract(
            extract_features.plan(args),
            device="cpu",
            allow_failures=args.allow_failures,
            rank=Rank(rank, world),
        )


def result(models_root, model="placed_a"):
    return models_root / model.replace("_", "/") / "birds/features_test"


def work(models_root, model="placed_a"):
    return models_root / model.replace("_", "/") / "birds/.features_test.work"


def chunks(models_root, model="placed_a"):
    return sorted(work(models_root, model).glob("chunks-*/rows-*"))


def content(models_root):
    """Return the results of all models; nothing may be left of the work."""
    assert not list(models_root.rglob("*.work"))
    folders = [path.parent for path in models_root.rglob("X_Y.pth")]
    return {str(folder.relative_to(models_root)): extraction.outcome(folder) for folder in folders}


def same(models_root, expected):
    return content(models_root) == expected


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
    inputs, expected, tmp_path, monkeypatch, workers, caplog
):
    caplog.set_level("INFO", logger="cog")
    counted, decode = [], loader.Decoder.decode
    monkeypatch.setattr(
        loader.Decoder, "decode", lambda self, data, row: counted.append(row) or decode(self, data, row)
    )
    extract(inputs, tmp_path, workers=workers)
    assert same(tmp_path, expected)
    assert len(expected) == 3
    if not workers:
        assert sorted(counted) == sorted([*range(30), *range(30)])  # placed_a and placed_b share theirs
    assert "for placed_a, placed_b" in caplog.text and "on cpu, for placed_c" in caplog.text


@pytest.mark.parametrize("world", first_quick(2, [2, 3, 5]))
def test_any_number_of_processes_is_one(inputs, expected, tmp_path, world, caplog):
    caplog.set_level("INFO", logger="cog")
    for rank in reversed(range(world)):
        assert not list(tmp_path.rglob("X_Y.pth"))
        extract(inputs, tmp_path, rank=rank, world=world, workers=rank % 2)
    assert same(tmp_path, expected)
    assert "chunks are not there yet; other processes do them" in caplog.text


def test_a_model_is_not_run_on_chunks_that_it_has(inputs, expected, tmp_path, monkeypatch):
    extract(inputs, tmp_path, models=MODELS[:1])
    extract(inputs, tmp_path, models=MODELS[1:2], rank=0, world=2)
    rows, call = [], Extractor.__call__
    monkeypatch.setattr(Extractor, "__call__", lambda *args: rows.append(args[2]) or call(*args))
    extract(inputs, tmp_path)
    assert sum(rows) == (30 - 16) + 30
    assert same(tmp_path, expected)


def test_what_does_not_fit_is_a_second_pass_said_in_one_line(inputs, expected, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="cog")
    monkeypatch.setattr(Extractor, "n_bytes", 10)
    monkeypatch.setattr(memory, "available_memory", lambda: 15)
    extract(inputs, tmp_path)
    assert "1 of 3 models fit on cpu together; another pass follows for placed_b, placed_c" in caplog.text
    assert same(tmp_path, expected)


def test_a_model_that_fails_does_not_lose_the_others(inputs, expected, tmp_path, monkeypatch):
    call = Extractor.__call__

    def fail(self, pixels, n):
        if self.precision == "bf16":
            raise CogError("no memory left")
        return call(self, pixels, n)

    with (
        monkeypatch.context() as patch,
        pytest.raises(CogError, match=r"1 of 3 extractions failed \(placed_b"),
    ):
        patch.setattr(Extractor, "__call__", fail)
        extract(inputs, tmp_path)
    assert len(list(tmp_path.rglob("X_Y.pth"))) == 2
    extract(inputs, tmp_path)
    assert same(tmp_path, expected)


def test_several_models_have_no_single_checkpoint(inputs, tmp_path):
    with pytest.raises(CogError, match="--ckpt_file is the checkpoint of one model, and --model names 3"):
        extract(inputs, tmp_path, "--ckpt_file", "x.ckpt")


# --- interruptions


@pytest.mark.parametrize("n_batches", [3, 5])
def test_a_signal_keeps_the_finished_chunks(inputs, expected, tmp_path, monkeypatch, n_batches, caplog):
    caplog.set_level("INFO", logger="cog")
    answers = iter([*[None] * (n_batches - 1), *["SIGTERM"] * 9])
    with monkeypatch.context() as patch, pytest.raises(signals.Interrupted) as error:
        patch.setattr(signals, "requested", lambda: next(answers))
        extract(inputs, tmp_path, models=MODELS[:1])
    assert error.value.exit_code == 75 and "the same command continues" in str(error.value)
    n_done = len(chunks(tmp_path))
    assert 0 < n_done < 4
    extract(inputs, tmp_path)
    assert f"continues, {n_done} of 4 chunks are done" in caplog.text
    assert same(tmp_path, expected)


@pytest.fixture
def unfinished(inputs, tmp_path):
    """Models of which two of four chunks are done."""
    extract(inputs, tmp_path, rank=0, world=2)
    return tmp_path


def test_other_settings_are_refused_with_the_difference(inputs, unfinished):
    before = chunks(unfinished)
    for more, says in (
        (["FT_EXTRACT.IMAGE_CROP_SIZE", "190"], "size: 224 -> 190"),
        (["FT_EXTRACT.PRECISION", "fp16"], "precision: fp32 -> fp16"),
    ):
        with pytest.raises(CogError, match=rf"unfinished work.*{says}.*--overwrite"):
            extract(inputs, unfinished, *more)
    assert chunks(unfinished) == before
    extract(inputs, unfinished, "FT_EXTRACT.IMAGE_CROP_SIZE", "190", "--overwrite", models=MODELS[:1])
    assert (
        json.loads((result(unfinished) / "features.json").read_text())["identity"]["preprocessing"]["size"]
        == 190
    )


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-9]), os.unlink])
def test_damaged_chunks_are_computed_again(inputs, expected, unfinished, damage):
    damage(chunks(unfinished)[0])
    extract(inputs, unfinished)
    assert same(unfinished, expected)


def test_images_that_change_in_between_are_read_again(tmp_path, caplog):
    root = extraction.write_inputs(tmp_path / "in")
    extract(root, tmp_path / "models", models=MODELS[:1], rank=0, world=2)
    extraction.replace_image(root, 3)
    extract(root, tmp_path / "models", models=MODELS[:1])
    assert "rows 0 to 8 are extracted again: crow/crow_3.png has changed" in caplog.text
    extract(root, tmp_path / "fresh", models=MODELS[:1])
    assert extraction.outcome(result(tmp_path / "models")) == extraction.outcome(result(tmp_path / "fresh"))


def test_work_on_other_settings_beside_a_result_stays(inputs, tmp_path):
    extract(inputs, tmp_path, models=MODELS[:1])
    other = ("FT_EXTRACT.PRECISION", "bf16", "--overwrite")
    extract(inputs, tmp_path, *other, models=MODELS[:1], rank=0, world=2)
    before = chunks(tmp_path)
    extract(inputs, tmp_path, models=MODELS[:1])
    assert len(before) == 2 and chunks(tmp_path) == before
    extract(inputs, tmp_path, *other, models=MODELS[:1])
    assert not work(tmp_path).exists()


# --- failed images


def test_accepted_failures_compute_nothing_again_and_mended_images_are_read(tmp_path, monkeypatch, caplog):
    root = extraction.write_inputs(tmp_path / "in", broken=(0, 5, 6, 29))
    models = tmp_path / "models"
    with pytest.raises(FailedImagesError, match=r"4 of 30.*--allow_failures 4"):
        extract(root, models, models=MODELS[:1], workers=2)
    assert len((work(models) / "failed_images.txt").read_text().splitlines()) == 4
    with monkeypatch.context() as patch:
        patch.setattr(Extractor, "__call__", None)
        extract(root, models, "--allow_failures", "4", models=MODELS[:1])
    lines = (result(models) / "failed_images.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        "crow/crow_0.png",
        "crow/crow_5.png",
        "crow/crow_6.png",
        "wren/wren_9.png",
    ]
    assert not any(str(root) in line for line in lines)
    with pytest.raises(FailedImagesError):
        extract(root, tmp_path / "b", models=MODELS[:1])
    extraction.replace_image(root, 6)
    extract(root, tmp_path / "b", "--allow_failures", "4", models=MODELS[:1])
    assert "rows 0 to 8 are extracted again: crow/crow_6.png can be decoded now" in caplog.text
    assert len((result(tmp_path / "b") / "failed_images.txt").read_text().splitlines()) == 3


# --- decoding processes


def test_a_small_shared_memory_is_told_in_the_first_second(inputs, tmp_path, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(loader.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CogError, match=r"/dev/shm has 1 MB free.*docker run --shm-size=2g.*N_WORKERS \(0:"):
        extract(inputs, tmp_path, models=MODELS[:1], workers=2)


def test_a_decoding_process_that_is_killed_ends_in_one_line(inputs, expected, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(CogError, match="decoding stopped: .*worker"):
        patch.setattr(loader.Decoder, "decode", lambda *args: os.kill(os.getpid(), signal.SIGKILL))
        extract(inputs, tmp_path, workers=2)
    extract(inputs, tmp_path, workers=2)
    assert same(tmp_path, expected)


# --- kills and races


OPERATIONS = ("rename", "replace", "mkdir", "unlink", "fsync", "open", "rmdir", "listdir", "scandir", "stat")


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


def die_before(k, *args, **options):
    """Extract, and die before file operation ``k``."""
    count = 0

    def dying(function):
        def call(*given, **more):
            nonlocal count
            count += 1
            if count == k:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **more)

        return call

    for name in OPERATIONS:
        setattr(os, name, dying(getattr(os, name)))
    io.open = dying(io.open)
    extract(*args, **options)


@pytest.mark.parametrize("number", first_quick(8, range(60)))
def test_killed_before_any_file_operation(inputs, expected, tmp_path, number):
    draw = random.Random(number)
    world = 1 + number % 2
    codes = wait(
        [
            start(die_before, draw.randrange(1, 900 // world), inputs, tmp_path, rank=rank, world=world)
            for rank in range(world)
        ]
    )
    assert set(codes) <= {0, -9}
    extract(inputs, tmp_path, workers=number % 3 // 2)
    assert same(tmp_path, expected)


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
        assert same(root, expected), number


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 4])
def test_simultaneous_starts(inputs, expected, tmp_path, world):
    for number in range(5):
        root = tmp_path / str(number)
        codes = wait([start(extract, inputs, root, rank=each % world, world=world) for each in range(12)])
        assert codes.count(0) >= 1 and set(codes) <= {0, 2}
        assert same(root, expected)


def torchrun(python):
    return [[python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]], [{}]


def srun(python):
    variables = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    return [[python]] * 2, [{**variables, "SLURM_PROCID": str(number)} for number in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [torchrun, srun])
def test_processes_of_launchers(inputs, expected, tmp_path, python, repository, launcher):
    words = [str(repository / "extract_features.py"), *arguments(inputs, tmp_path, models=MODELS[:1])]
    processes = [
        subprocess.Popen([*command, *words], env={**os.environ, "OMP_NUM_THREADS": "1"} | more)
        for command, more in zip(*launcher(python), strict=True)
    ]
    assert [process.wait(timeout=180) for process in processes] == [0] * len(processes)
    assert extraction.outcome(result(tmp_path)) == expected["placed/a/birds/features_test"]
