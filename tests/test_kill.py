"""Commands that are killed and repeated, or started twelve times at once, leave what one start leaves.

Each runs in a fork and is ended right before one of its file operations or at a random instant. No reader may
then take a part for a result, and the same command, given again, must leave the bytes of an undisturbed run.
Times and facts of one start are not compared.
"""

import builtins
import contextlib
import functools
import importlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forks
import pytest
import tiny
from forks import code_of, nothing

from cog.levels import wordnet

REPOSITORY = Path(__file__).resolve().parent.parent

#: Kills per command; 30 take half an hour on two cores (COG_KILLS=30 pytest --slow tests/test_kill.py).
KILLS = int(os.environ.get("COG_KILLS", "0"))

#: Functions that change files; those of ``os`` are also called by ``pathlib``, ``shutil`` and ``tempfile``.
OPERATIONS = ("open", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "fsync")

#: Entries of JSON files that tell how a start went.
OF_ONE_START = {"created", "started", "finished", "seconds", "images_per_second", "sessions"}

#: Files whose presence says that the folder is a complete result.
RECORDS = ("results.json", "features.json", "report.json")

#: Two seen leaves of WordNet, and others that become levels.
SEEN = ("n01530575", "n02123045")
UNSEEN = (
    *("n01531178", "n02122298", "n02084071", "n03001627"),
    *("n07739125", "n09193705", "n12102133", "n04530566"),
)

Act = Callable[[int], None]

#: WordNet, which all forks share when it was read once before them.
read_once = functools.cache(wordnet.load_wordnet)


@dataclass
class Command:
    """A command line with the place ``{out}`` of its output, and folders to copy there before it starts."""

    argv: str
    given: dict[str, Path] = field(default_factory=dict)

    def fresh(self, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for place, folder in self.given.items():
            shutil.copytree(folder, out / place)


def commands(work: Path) -> dict[str, Command]:
    """Return the commands, on inputs that are written into ``work``."""
    loader = tiny.write_loader(work / "my_net.py")
    for split, n_images in (("train", 24), ("test", 3)):
        classes = ("crow", "duck", "wren")
        tiny.write_class_folders(work / "images" / split, classes=classes, n_images=n_images, suffix=".png")
        x, y = tiny.make_xy(n_per_class=40, dim=8, seed=len(split), spread=2.5)
        tiny.write_features(work / f"features_{split}", x, y, name=f"tiny_net_birds_{split}")
    for wnid in (*SEEN, *UNSEEN):
        (work / "in21k" / wnid).mkdir(parents=True)
        for number in range(9):
            (work / "in21k" / wnid / f"{wnid}_{number}.JPEG").touch()
    (work / "seen.txt").write_text("\n".join(SEEN))
    pair = f"--train_features_dir {work}/features_train --test_features_dir {work}/features_test --device cpu"
    small = "FT_EXTRACT.IMAGE_RESIZE_SIZE 16 FT_EXTRACT.IMAGE_CROP_SIZE 16 FT_EXTRACT.N_WORKERS 0"
    of_images = f"--dataset birds --model_loader {loader}:load_my_model --images_root {work}/images {small}"
    training = "CLF.N_EPOCHS 3 CLF.BATCH_SIZE 16 CLF.N_TRIALS"
    in_root = {f"tiny/net/birds/features_{split}": work / f"features_{split}" for split in ("train", "test")}
    of_model = "--model tiny_net --dataset birds --models_root_dir {out} --device cpu"
    argvs = {
        "extraction": f"extract_features --model tiny_net --split train test --models_root_dir {{out}} "
        f"--device cpu {of_images} FT_EXTRACT.BATCH_SIZE 1",
        "run": f"logreg {pair} {training} 12 --output_dir {{out}}/run",
        "seeds and shots": f"logreg {of_model} --seeds 22 37 45 77 93 --n_shot 0 2 8 {training} 3",
        "levels": f"build_levels --imagenet_images_root {work}/in21k --seen_wnids {work}/seen.txt "
        "--n_levels 2 --level_size 3 --overwrite --output_dir {out}/levels LEVELS.MIN_IMAGES 6 "
        "LEVELS.N_TEST 2 LEVELS.MAX_TRAIN 5",
        "fine-tuning": f"finetune --model tiny_net --output_dir {{out}}/tuned {of_images} "
        "FINETUNE.N_EPOCHS 3 FINETUNE.BATCH_SIZE 24",
        "analysis": f"analyze_features {of_model} --analysis kmeans "
        "ANALYSIS.KMEANS_SEEDS [1,2] ANALYSIS.KMEANS_K 7",
        "study": f"study --model tiny_net --models_root_dir {{out}} --log_dir {work}/logs {of_images} "
        f"--seeds 22 --n_shot 2 {training} 2",
    }
    return {name: Command(argv, in_root if of_model in argv else {}) for name, argv in argvs.items()}


def count_operations(out: Path, act: Act) -> None:
    """Call ``act(k)`` right before the k-th operation of this process below ``out``."""
    number, process, inside = 0, os.getpid(), os.fspath(out)

    def counting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal number
            path = args[0] if args else ""
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
            flags = os.O_CREAT | os.O_WRONLY | os.O_RDWR
            writes = mode & flags if isinstance(mode, int) else {*str(mode)} & {*"wax+"}
            is_counted = (writes or name != "open") and os.fsdecode(path).startswith(inside)
            if is_counted and os.getpid() == process:
                number += 1
                act(number)
            return function(*args, **kwargs)

        return call

    for name in OPERATIONS:
        setattr(os, name, counting(getattr(os, name), name))
    builtins.open = io.open = counting(builtins.open, "open")


def start(command: Command, out: Path, log: Path, act: Act = nothing, note: Act = nothing) -> int:
    """Start a command in a fork that prints into ``log``, and calls ``note`` at its end; returns its pid."""

    def begin() -> None:
        os.chdir(REPOSITORY)
        if command.argv.startswith("logreg"):  # save after every epoch: something to continue from
            unfinished = importlib.import_module("cog.logreg.search").Unfinished
            unfinished.interval = 0.0
        wordnet.load_wordnet = read_once
        count_operations(out, act)

    return forks.start(command.argv.replace("{out}", str(out)).split(), log, begin, note)


def snapshot(folder: Path) -> dict[str, Any]:
    """Return what is compared of all files, by name."""
    texts: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.suffix == ".json":
            texts[name] = _compared(json.loads(path.read_text()))
        elif path.is_file() and path.name not in ("program.log", ".lock"):
            texts[name] = path.read_bytes()
    return texts


def _compared(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _compared(value) for key, value in data.items() if key not in OF_ONE_START}
    return [_compared(value) for value in data] if isinstance(data, list) else data


def differing(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


class Bench:
    """A place for commands, and what an undisturbed run of each leaves there."""

    def __init__(self, place: Path) -> None:
        self.place, self.out, self.log = place, place / "out", place / "log.txt"
        (place / "inputs").mkdir()
        self.commands = commands(place / "inputs")
        self.known: dict[str, tuple[dict[str, Any], int]] = {}

    def undisturbed(self, name: str) -> tuple[dict[str, Any], int]:
        """Return files and number of operations of an undisturbed run; what it imports is imported here."""
        if name not in self.known:
            told, counted = self.place / "note.json", list[int]()
            note = [sys.modules, counted]
            self.run(name, counted.append, lambda _: told.write_text(json.dumps([*map(list, note)])))
            modules, counted = json.loads(told.read_text())
            for module in modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
            if name == "levels":
                read_once()
            self.known[name] = snapshot(self.out), len(counted)
        return self.known[name]

    def run(self, name: str, act: Act = nothing, note: Act = nothing) -> float:
        """Run a command in an empty folder, and return its seconds."""
        began = time.monotonic()
        self.commands[name].fresh(self.out)
        assert code_of(start(self.commands[name], self.out, self.log, act, note)) == 0, self.log.read_text()
        return time.monotonic() - began

    def end(self, name: str, ending: Act, act: Act = nothing) -> None:
        """Start a command, end it, look at what readers see, repeat it, and compare the result."""
        command, (expected, _) = self.commands[name], self.undisturbed(name)
        command.fresh(self.out)
        pid = start(command, self.out, self.log, act)
        ending(pid)
        code = code_of(pid)
        assert code in (0, 75, -signal.SIGKILL, -signal.SIGTERM), (code, self.log.read_text())
        assert "Traceback" not in self.log.read_text()
        there = {name: text for name, text in snapshot(self.out).items() if "/." not in f"/{name}"}
        for folder in {name.rpartition("/")[0] for name in there if name.rpartition("/")[2] in RECORDS}:
            # a folder with the record of a result has all of the result, and nothing else
            both = [{k: v for k, v in of.items() if k.startswith(f"{folder}/")} for of in (there, expected)]
            assert differing(*both) == [], folder
        assert code_of(start(command, self.out, self.log)) == 0, self.log.read_text()
        assert differing(snapshot(self.out), expected) == []


@pytest.fixture(scope="module", params=["/dev/shm", *["/var/tmp"] * (KILLS > 0)])
def bench(request):
    """Yield a :class:`Bench` in memory (tmpfs), and with COG_KILLS=30 one on a disk."""
    folder = request.param if os.path.isdir(request.param) else None
    with tempfile.TemporaryDirectory(prefix="cog-kill-", dir=folder) as place:
        yield Bench(Path(place))


#: Commands that take seconds to start: by default, they are killed once, and three start at once.
LONG = ("levels", "study")

NAMES = ("extraction", "run", "seeds and shots", "levels", "fine-tuning", "analysis")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", ["run", *SLOW[:1], *SLOW[2:]])
def test_killed_before_every_kth_operation(bench, name):
    n_operations = bench.undisturbed(name)[1]
    n = min(KILLS or (1 if name in LONG else 2), n_operations)
    for operation in (1 + (2 * index + 1) * n_operations // (2 * n) for index in range(n)):

        def act(number: int, operation: int = operation) -> None:
            if number == operation:
                os.kill(os.getpid(), signal.SIGKILL)

        bench.end(name, nothing, act)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", SLOW)
def test_ended_at_random_instants(bench, name, number):
    """One instant in each n-th part of the time that the command takes."""
    n = KILLS or (1 if name in LONG else 2)
    n = n if number == signal.SIGKILL else min(n, 10)
    bench.undisturbed(name)
    seconds, rng = bench.run(name), random.Random(name)
    for index in range(n):

        def ending(pid: int, instant: float = (index + rng.random()) * seconds / n) -> None:
            time.sleep(instant)
            os.kill(pid, number)

        bench.end(name, ending)


@pytest.mark.parametrize("name", ["run", *SLOW[:1], *SLOW[2:], pytest.param("study", marks=pytest.mark.slow)])
def test_twelve_at_once_one_ends_well_and_every_output_is_made(bench, name):
    command, (expected, _) = bench.commands[name], bench.undisturbed(name)
    command.fresh(bench.out)
    logs = [bench.place / f"log-{number}.txt" for number in range(12 if KILLS or name not in LONG else 3)]
    codes = [code_of(pid) for pid in [start(command, bench.out, log) for log in logs]]
    assert 0 in codes and {*codes} <= {0, 2}, codes
    for code, log in zip(codes, logs, strict=True):
        lines = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
        # A study also tells of a task that another one did.
        assert name == "study" or len(lines) == (1 if code else 0)
        assert "Traceback" not in log.read_text()
    assert differing(snapshot(bench.out), expected) == []
