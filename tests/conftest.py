"""Settings and fixtures of all tests: selection of tests, one thread, and small inputs (see ``tiny.py``)."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tiny

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption(
        "--slow", action="store_true", help="run the tests marked slow as well (always when CI=true)"
    )
    parser.addoption(
        "--slurm",
        action="store_true",
        help="run the tests marked slurm as well (with --slow and CI=true, too)",
    )


def pytest_configure(config):
    # Without bytecode, each of the hundreds of processes that tests start would compile the package again.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not os.path.exists(importlib.util.cache_from_source(pytest.__file__)):
        # Libraries without bytecode may be in a read-only folder. Compiling all of them takes 15 seconds.
        sys.pycache_prefix = os.environ.setdefault(
            "PYTHONPYCACHEPREFIX", str(REPOSITORY / ".pytest_cache/bytecode")
        )
    if hasattr(config, "workerinput"):
        # Deleting the objects of thousands of modules takes seconds. All results have been sent at this point, because
        # functions run in reverse order of registration, so that this one runs after those that are registered later.
        atexit.register(os._exit, 0)
    # Child processes of tests inherit this variable; the number of threads in this process is set below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The objects of thousands of tests and of PyTorch are created once and kept: searching them for garbage is in vain.
    gc.disable()
    _use_memory_for_files()
    # A shell starts background jobs with ^C ignored, and their children inherit this, but some tests send ^C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under nohup, hangups are ignored.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


#: Bytes that must be free in memory; tests leave few files behind and delete large ones.
_ROOM_FOR_FILES = 8 << 30


def _use_memory_for_files():
    """Put temporary files into memory if it is large enough, because outputs are synced, which is slow on disks."""
    folder, memory = "/dev/shm", Path("/proc/meminfo")
    if os.environ.get("TMPDIR") or not os.access(folder, os.W_OK | os.X_OK) or not memory.is_file():
        return
    (available,) = (line.split()[1] for line in memory.read_text().splitlines() if "MemAvailable" in line)
    filesystem = os.statvfs(folder)
    free = min(filesystem.f_bavail * filesystem.f_frsize, 1024 * int(available))
    # The folder must allow execution, because tests execute scripts that they write.
    if free >= _ROOM_FOR_FILES and not filesystem.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = None


#: Files of the slowest tests, slowest first, so that no process waits for them at the end. The second mostly waits for
#: SLURM.
_LONGEST = (
    "test_miniature.py",
    "test_slurm.py",
    "test_docs.py",
    "test_models_golden.py",
    "test_chunks.py",
    "test_kill.py",
    "test_output.py",
    "test_bash_scripts.py",
    "test_faults.py",
    "test_libraries.py",
    "test_experiments_driver.py",
    "test_report_browser.py",
    "test_build_levels.py",
    "test_extract.py",
    "test_finetune.py",
    "test_noisy_copy.py",
)


def pytest_collection_modifyitems(config, items):
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    left_out = _left_out(config)
    # Deselected instead of skipped, because skipping more than a thousand tests takes seconds.
    config.hook.pytest_deselected(items=[item for item in items if left_out & item.keywords.keys()])
    items[:] = [item for item in items if not left_out & item.keywords.keys()]
    needs_gpu = [item for item in items if "gpu" in item.keywords]
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in needs_gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _left_out(config):
    """Return the markers of tests that do not run."""
    if config.getoption("--slow") or os.environ.get("CI", "").lower() in ("true", "1"):
        return set()
    return {"slow"} if config.getoption("--slurm") else {"slow", "slurm"}


def pytest_report_header(config):
    left_out = _left_out(config)
    return f"tests marked {' and '.join(sorted(left_out))} are left out: give --slow" if left_out else None


def pytest_collection_finish(session):
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # less often than by default, which took a tenth of the time
    gc.enable()
    # Unfreeze at exit, because libraries warn about objects that were never collected; not before, because pytest
    # collects several times at its end.
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Use one thread: sums are then the same on every machine, and other programs share the processors."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    """Write indexes of archives into a temporary folder, in child processes, too."""
    os.environ["COG_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _fresh_logging():
    """Reset the logger before and after each test, so that it logs to the test's standard error and to caplog.

    Fixtures of a module or a session run commands before this fixture. Their logging must be reset, too, because pytest
    adds its own handlers to loggers that do not propagate, and records would appear twice.
    """
    logger = logging.getLogger("cog")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    yield
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Return the folder of real inputs beside the checkout; without it, tests that need it are skipped."""
    path = REPOSITORY.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="session")
def wordnet():
    """Return WordNet 3.0 as a graph; if it is not installed, tests that need it are skipped."""
    from cog.errors import CogError
    from cog.levels.wordnet import load_wordnet

    try:
        return load_wordnet()
    except CogError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def python() -> str:
    """Return the interpreter for child processes."""
    return sys.executable


@pytest.fixture
def bash(repository, python):
    """Return a function that runs a driver of bash-scripts with arguments, and with variables of the environment."""

    def run(script, *arguments, **environment):
        return subprocess.run(
            ["bash", str(repository / "bash-scripts" / script), *arguments],
            env={**os.environ, "COG_PYTHON": python, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def _workshop_original(tmp_path_factory) -> tiny.Workshop:
    return tiny.build_workshop(tmp_path_factory.mktemp("workshop") / "original")


@pytest.fixture
def workshop(_workshop_original, tmp_path) -> tiny.Workshop:
    """Return a :class:`tiny.Workshop` for one test, in ``tmp_path / "workshop"``."""
    original = _workshop_original
    root = tmp_path / "workshop"
    shutil.copytree(original.root, root)
    return tiny.Workshop(
        root, *(root / Path(p).relative_to(original.root) for p in list(vars(original).values())[1:])
    )


@pytest.fixture
def image_tree(tmp_path) -> Path:
    """Write ``{train,test}/<class>/*.png``, 3 classes of 3 images in each split, and return the folder."""
    for split, seed in (("train", 1), ("test", 2)):
        tiny.write_class_folders(
            tmp_path / "images" / split, classes=("crow", "duck", "wren"), suffix=".png", seed=seed
        )
    return tmp_path / "images"


@pytest.fixture
def loader_file(tmp_path) -> Path:
    """Write a file with ``load_my_model`` that returns a network with 4 features and needs no checkpoint."""
    return tiny.write_loader(tmp_path / "my_net.py")


@pytest.fixture
def feature_folders(tmp_path) -> tuple[Path, Path]:
    """Return folders of training and test features: 3 classes, 10 images each, 8 dimensions, easy to separate."""
    return (
        tiny.write_features(tmp_path / "features_train", seed=0, name="tiny_net_birds_train"),
        tiny.write_features(tmp_path / "features_test", seed=1, name="tiny_net_birds_test"),
    )


@pytest.fixture
def seen_in1k_alone(monkeypatch):
    """Give all models the pretraining data IN-1K, so that tables and figures have neither mark nor footnote."""
    monkeypatch.setattr("cog.results.runs.pretraining", lambda *_: "IN-1K")


@pytest.fixture
def show(capsys):
    """Return a function that runs print_results.py in this process and returns its output."""
    from result_folders import print_results_as_user

    def show_(*argv):
        capsys.readouterr()
        print_results_as_user(*argv)
        return capsys.readouterr().out

    return show_


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Yield a headless browser. CI has Debian's Chromium; elsewhere, tests are skipped if no browser is installed."""
    from browser import Browser, find_chromium

    program = find_chromium()
    if program is None:
        in_ci = os.environ.get("CI", "").lower() in ("true", "1")
        assert not in_ci, "CI must have chromium: apt-get install chromium"
        pytest.skip("chromium is not installed")
    with Browser(program, tmp_path_factory.mktemp("profile")) as running:
        yield running
