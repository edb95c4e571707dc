"""Settings and fixtures of all tests: selection of tests, one thread, and small inputs (see ``tiny.py``)."""

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

IN_CI = os.environ.get("CI", "").lower() in ("true", "1")

#: Files that take longest, by all their tests; begun first, so that all processors have work until the end.
LONGEST = (
    *("test_slurm", "test_local", "test_docs", "test_kill", "test_faults", "test_miniature", "test_output"),
    *("test_paper_models", "test_chunks", "test_protocol", "test_libraries", "test_figures"),
)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well (or CI=true)")
    parser.addoption("--slurm", action="store_true", help="run the tests marked slurm (so does --slow)")


def pytest_configure(config):
    # Child processes of tests inherit this variable; the number of threads in this process is set below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the package again
    # Temporary files lie in memory if it is large enough: outputs are synced, which is slow on disks.
    memory = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    if memory and memory.f_bavail * memory.f_frsize > 8 << 30 and not memory.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("TMPDIR", "/dev/shm")
        tempfile.tempdir = None
    # A shell starts background jobs with ^C ignored, nohup with hangups ignored; some tests send them.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(config, items):
    import torch

    everything = config.getoption("--slow") or IN_CI
    left_out = set() if everything else {"slow"} if config.getoption("--slurm") else {"slow", "slurm"}
    # Deselected instead of skipped, because skipping more than a thousand tests takes seconds.
    config.hook.pytest_deselected(items=[item for item in items if left_out & item.keywords.keys()])
    items[:] = [item for item in items if not left_out & item.keywords.keys()]
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    for item in items if not torch.cuda.is_available() else ():
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _process(tmp_path_factory):
    """Use one thread (sums are then the same on every machine), and a cache of the tests (children, too)."""
    import torch

    torch.set_num_threads(1)
    os.environ["COG_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _fresh_logging():
    """Reset the logger, so that it logs to the test's standard error and to caplog, once."""
    logger = logging.getLogger("cog")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def repository() -> Path:
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
    return sys.executable


@pytest.fixture
def bash(repository, python):
    """Return a function that runs a driver of bash-scripts with arguments and variables."""

    def run(script, *arguments, **environment):
        line = ["bash", str(repository / "bash-scripts" / script), *arguments]
        env = {**os.environ, "COG_PYTHON": python, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.run(line, env=env, capture_output=True, text=True, timeout=3600, check=False)

    return run


@pytest.fixture(scope="session")
def _workshop_original(tmp_path_factory) -> tiny.Workshop:
    return tiny.build_workshop(tmp_path_factory.mktemp("workshop") / "original")


@pytest.fixture
def workshop(_workshop_original, tmp_path) -> tiny.Workshop:
    """Return a :class:`tiny.Workshop` for one test, in ``tmp_path / "workshop"``."""
    original, root = _workshop_original.root, tmp_path / "workshop"
    shutil.copytree(original, root)
    return tiny.Workshop(*(root / path.relative_to(original) for path in vars(_workshop_original).values()))


@pytest.fixture
def image_tree(tmp_path) -> Path:
    """Write ``{train,test}/<class>/*.png``, 3 classes of 3 images in each split, and return the folder."""
    for split, seed in (("train", 1), ("test", 2)):
        classes = "crow", "duck", "wren"
        tiny.write_class_folders(tmp_path / "images" / split, classes=classes, suffix=".png", seed=seed)
    return tmp_path / "images"


@pytest.fixture
def loader_file(tmp_path) -> Path:
    """Write a file with ``load_my_model`` that returns a network with 4 features and needs no checkpoint."""
    return tiny.write_loader(tmp_path / "my_net.py")


@pytest.fixture
def feature_folders(tmp_path) -> tuple[Path, Path]:
    """Return folders of training and test features: 3 classes of 10 images, 8 dimensions."""
    train, test = (
        tiny.write_features(tmp_path / f"features_{split}", seed=seed, name=f"tiny_net_birds_{split}")
        for seed, split in enumerate(("train", "test"))
    )
    return train, test


@pytest.fixture
def seen_in1k_alone(monkeypatch):
    """Give all models the pretraining data IN-1K: tables and figures have no footnote then."""
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
