"""Kill commands at many instants, restart them, and compare what they leave with an uninterrupted run, bit for bit.

::

    python tests/crash_matrix.py [--kills 30] [--what extraction logreg] [--seed 0]

Each kill begins with an empty output folder (or, for ``... --overwrite``, with an older result in it), ends the command
at one instant, looks at what is there, and gives the same command again. A line of the matrix says when the command was
ended, how the output looked then, and whether the result is identical.

Instants are of two kinds: a time drawn from the whole duration (the parent sends the signal), and the k-th operation on
the output (``write``, ``fsync``, ``replace``, ``link``, ``unlink``, ...), where the process kills itself right before
it, right after it, or in the middle of a write. The latter hit the short moments in which files change their places.

A process that has imported everything forks for each attempt, and the fork runs the command's own ``main`` with its
command line; a few attempts (``script``) run the scripts themselves. In the forks trainings save their state after
every epoch instead of every two minutes, so that there is something to lose. Compared are all files of the output, but
for the story of the run: ``program.log``, times of trials, and the entries of JSON files that say when, how long, and
in how many sessions.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "helpers")]

import tiny  # noqa: E402
from PIL import Image  # noqa: E402

#: Operations of the module ``os`` that change the output; see also ``write``.
OPERATIONS = ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "utime", "open")

#: Entries of JSON files that tell how a run went: when, how long, with how many interruptions.
_TIMES = {"created", "started", "finished", "seconds", "images_per_second", "sessions"}

_PATIENCE = 600.0

_WHAT = ("extraction", "logreg", "kmeans", "finetune", "levels")

#: What a command imports in the middle of its work, and takes longest.
_USES = {
    "levels": ("matplotlib.backends.backend_agg", "matplotlib.figure"),
    "kmeans": ("sklearn.metrics",),
    "finetune": ("torch._dynamo",),
}

#: Leaves of WordNet far apart: two seen ones, then those that become levels.
_SEEN = ("n01530575", "n02123045")
_UNSEEN = (
    "n01531178", "n02122298", "n02084071", "n03001627", "n07739125", "n09193705", "n12102133", "n04530566",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------------
# Commands under test


@dataclass(frozen=True)
class Task:
    """A command with its output.

    Attributes:
        name: in the matrix.
        script: file name of the script.
        argv: its command line.
        output: what it writes.
        marker: the file that says that the output is complete.
        prepare: puts into an empty output folder what is there beforehand; None: nothing.
    """

    name: str
    script: str
    argv: tuple[str, ...]
    output: Path
    marker: str
    prepare: Callable[[Path], None] | None = None

    def fresh(self) -> None:
        """Bring the output into the state before the first start."""
        shutil.rmtree(self.output, ignore_errors=True)
        if self.prepare is not None:
            self.prepare(self.output)


def tasks(work: Path) -> dict[str, Task]:
    """Return the commands, on inputs that are written into ``work``."""
    import torch

    loader = tiny.write_loader(work / "my_net.py")
    images = work / "images"
    for split, n_images in (("train", 24), ("test", 3)):
        tiny.write_class_folders(
            images / split, classes=("crow", "duck", "wren"), n_images=n_images, suffix=".png"
        )
    (images / "train/duck/duck_5.png").write_bytes(b"no image")
    extraction = (
        "--model", "tiny_net", "--dataset", "birds", "--split", "train", "--model_loader",
        f"{loader}:load_my_model", "--images_root", str(images), "--allow_failures", "1", "--device", "cpu",
        "FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16", "FT_EXTRACT.BATCH_SIZE", "8",
        "FT_EXTRACT.N_WORKERS", "1", "FT_EXTRACT.SHARD_ROWS", "16",
    )  # fmt: skip
    for split, seed in (("train", 0), ("test", 1)):
        x, y = tiny.make_xy(n_per_class=40, dim=8, seed=seed, spread=2.5)
        tiny.write_features(work / f"features_{split}", x, y, name=f"tiny_net_birds_{split}")
    logreg = (
        "--train_features_dir", str(work / "features_train"), "--test_features_dir", str(work / "features_test"),
        "--device", "cpu", "CLF.N_EPOCHS", "3", "CLF.BATCH_SIZE", "16", "CLF.N_TRIALS",
    )  # fmt: skip

    kmeans = (
        *logreg[: logreg.index("CLF.N_EPOCHS")], "--analysis", "kmeans", "ANALYSIS.KMEANS_SEEDS", "[1, 2]",
        "ANALYSIS.KMEANS_ITERATIONS", "8", "ANALYSIS.KMEANS_K", "7",
    )  # fmt: skip
    # no value twice: in pickles of the flags equal texts are one object here, and several in a process of its own
    finetune = (
        "--model", "tiny_net", "--dataset", "birds", "--model_loader", f"{loader}:load_my_model", "--images_root",
        str(images), "--allow_failures", "1", "--device", "cpu", "FT_EXTRACT.IMAGE_RESIZE_SIZE", "18",
        "FT_EXTRACT.IMAGE_CROP_SIZE", "16", "FT_EXTRACT.N_WORKERS", "0", "FINETUNE.N_EPOCHS", "3",
        "FINETUNE.BATCH_SIZE", "24", "FINETUNE.BATCH_PER_DEVICE", "12",
    )  # fmt: skip

    def old_features(folder: Path) -> None:
        folder.mkdir(parents=True)
        torch.save({"X": torch.ones(2, 3), "Y": torch.arange(2), "name": "old"}, folder / "X_Y.pth")

    def old_run(folder: Path) -> None:
        (folder / "final-lr-1.0_wd-0.1").mkdir(parents=True)
        (folder / "final-lr-1.0_wd-0.1/logs.pkl").write_bytes(b"old")
        (folder / "results.json").write_text('{"old": true}')

    def task(name: str, script: str, argv: Sequence[str], marker: str, prepare=None) -> Task:
        output = work / "out" / name.partition(" ")[0]
        extra = ("--overwrite",) if prepare else ()
        return Task(name, script, (*argv, *extra, "--output_dir", str(output)), output, marker, prepare)

    for wnid in (*_SEEN, *_UNSEEN):
        (work / "in21k" / wnid).mkdir(parents=True)
        for k in range(9):
            (work / "in21k" / wnid / f"{wnid}_{k}.JPEG").touch()
    (work / "seen.txt").write_text("\n".join(_SEEN))
    levels = (
        "--imagenet_images_root", str(work / "in21k"), "--seen_wnids", str(work / "seen.txt"), "--n_levels", "2",
        "--level_size", "3", "--overwrite", "LEVELS.MIN_IMAGES", "6", "LEVELS.N_TEST", "2", "LEVELS.MAX_TRAIN", "5",
    )  # fmt: skip

    found = [
        task("levels", "build_levels.py", levels, "report.json"),
        task("extraction", "extract_features.py", extraction, "X_Y.pth"),
        task("extraction --overwrite", "extract_features.py", extraction, "X_Y.pth", old_features),
        task("logreg", "logreg.py", (*logreg, "14"), "results.json"),
        task("logreg --overwrite", "logreg.py", (*logreg, "14"), "results.json", old_run),
        task("finetune", "finetune.py", finetune, "results.json"),
        task("finetune --overwrite", "finetune.py", finetune, "results.json", old_run),
    ]
    clusters = work / "out/kmeans"
    kmeans = (*kmeans, "--output_dir", str(clusters))
    found.append(Task("kmeans", "analyze_features.py", kmeans, clusters / "analysis_kmeans", "results.json"))
    return {one.name: one for one in found}


# ------------------------------------------------------------------------------------------------------------
# Running them


@dataclass(frozen=True)
class Kill:
    """When and how a command is ended.

    Attributes:
        number: the signal.
        after: seconds after the start; -1: at an operation.
        operation: 1 for the first.
        where: ``before``, ``after`` or ``within`` it.
        script: whether the script itself is run.
    """

    number: signal.Signals
    after: float = -1.0
    operation: int = 0
    where: str = ""
    script: bool = False


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Attributes:
        code: exit code; negative: by this signal.
        seconds: duration.
        log: what it printed.
        operations: what it did to the output, in order: name and path.
        pid: its number.
    """

    code: int
    seconds: float
    log: str
    operations: tuple[str, ...]
    pid: int = 0


class _Writer:
    """A file whose writes are operations, too."""

    def __init__(self, handle: Any, label: str, operation: Callable[..., Any]) -> None:
        self._handle = handle
        self._label = label
        self._operation = operation

    def write(self, data: Any) -> Any:
        view = data if isinstance(data, (bytes, str)) else memoryview(data).cast("B")
        half = view[: len(view) // 2]

        def within() -> None:
            self._handle.write(half)
            self._handle.flush()

        return self._operation(self._label, lambda: self._handle.write(data), within)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def _count_operations(folder: Path, note: int, kill: Kill | None) -> None:
    """Make this process count what it does to files in ``folder``, and kill itself where it shall."""
    counted = 0
    inside = os.fspath(folder)

    def label_of(name: str, path: str) -> str:
        return f"{name} {os.path.relpath(path, inside)}"

    def operation(label: str, call: Callable[[], Any], within: Callable[[], None] | None = None) -> Any:
        nonlocal counted
        counted += 1
        os.write(note, f"{label}\n".encode())
        here = kill is not None and kill.operation == counted
        if here and kill is not None:
            if kill.where == "before":
                os.kill(os.getpid(), kill.number)
            if kill.where == "within" and within is not None and kill.number == signal.SIGKILL:
                within()
                os.kill(os.getpid(), kill.number)
        result = call()
        if here and kill is not None and kill.where != "before":
            os.kill(os.getpid(), kill.number)
        return result

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else ""
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}")
            if name == "open" and not (len(args) > 1 and args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)):
                return function(*args, **kwargs)
            path = os.fsdecode(path)
            if not path.startswith(inside):
                return function(*args, **kwargs)
            return operation(label_of(name, path), lambda: function(*args, **kwargs))

        return call

    for name in OPERATIONS:
        setattr(os, name, counting(name, getattr(os, name)))
    real_fdopen = os.fdopen

    def fdopen(descriptor: int, *args: Any, **kwargs: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        handle = real_fdopen(descriptor, *args, **kwargs)
        return _Writer(handle, label_of("write", path), operation) if path.startswith(inside) else handle

    os.fdopen = fdopen  # type: ignore[assignment]


def run(task: Task, work: Path, kill: Kill | None = None) -> Ended:
    """Run a command to its end, or until it is killed."""
    log, note = work / "log.txt", work / "note"
    note.write_bytes(b"")
    start = time.monotonic()
    pid = _start_script(task, log) if kill is not None and kill.script else fork(task, log, note, kill)
    code = _wait(pid, start, kill)
    seconds = time.monotonic() - start
    return Ended(code, seconds, log.read_text(errors="replace"), tuple(note.read_text().splitlines()), pid)


def fork(
    task: Task, log: Path, note: Path, kill: Kill | None = None, prepare: Callable[[], None] = lambda: None
) -> int:
    """Fork a process that runs a command, after ``prepare`` there; returns its number."""
    pid = os.fork()
    if pid == 0:
        _be_command(task, log, note, kill, prepare)
    return pid


def _start_script(task: Task, log: Path) -> int:
    with log.open("wb") as handle:
        process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / task.script), *task.argv],
            stdout=handle,
            stderr=subprocess.STDOUT,
        )
    process.returncode = 0  # waited for by its number
    return process.pid


def _be_command(
    task: Task, log: Path, note: Path, kill: Kill | None, prepare: Callable[[], None]
) -> NoReturn:
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.argv = [str(REPOSITORY / task.script), *task.argv]
        main = import_everything()[task.script]
        _save_often()
        _spare_what_writes_nothing()
        _count_operations(task.output, os.open(note, os.O_WRONLY | os.O_APPEND | os.O_CREAT), kill)
        prepare()
        from cog.runtime import cli

        try:
            cli.run(main, list(task.argv))
        except SystemExit as error:
            code = int(error.code or 0)
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def import_everything() -> dict[str, Callable[..., int]]:
    """Import all that the commands need; returns the ``main`` of each script."""
    import optuna  # noqa: F401
    import torch

    from cog.analysis import registry  # noqa: F401
    from cog.commands import analyze_features, build_levels, extract_features, finetune, logreg
    from cog.features import extract, feature_files  # noqa: F401
    from cog.features import runner as extraction_runner  # noqa: F401
    from cog.finetune import job  # noqa: F401
    from cog.levels import inputs, report  # noqa: F401
    from cog.logreg import protocol, train  # noqa: F401

    torch.set_num_threads(1)
    commands = (analyze_features, build_levels, extract_features, finetune, logreg)
    return {f"{command.__name__.rpartition('.')[2]}.py": command.main for command in commands}


def warm_up(task: Task) -> None:
    """Import and read what this command would import and read in every fork."""
    what = task.name.partition(" ")[0]
    for name in _USES.get(what, ()):
        importlib.import_module(name)
    Image.init()
    if what == "levels":
        _wordnet()


@functools.cache
def _wordnet() -> Any:
    from cog.levels import wordnet

    return wordnet.load_wordnet()


def _save_often() -> None:
    from cog.runtime import state_file

    state_file.SAVE_SECONDS = 0.0
    state_file._MAX_SHARE = 1e9


def _spare_what_writes_nothing() -> None:
    """WordNet has been read already: instants are for what comes then."""
    from cog.levels import wordnet

    if _wordnet.cache_info().currsize:
        graph = _wordnet()
        wordnet.load_wordnet = lambda wordnet_dir=None: graph


def _wait(pid: int, start: float, kill: Kill | None) -> int:
    """Wait for a process; kill it when it is time. Returns the exit code, negative for a signal."""
    with open(os.pidfd_open(pid)) as process:

        def ends_within(seconds: float) -> bool:
            return bool(select.select([process], [], [], max(0.0, start + seconds - time.monotonic()))[0])

        if kill is not None and kill.after >= 0 and not ends_within(kill.after):
            os.kill(pid, kill.number)
        in_time = ends_within(_PATIENCE)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not in_time:
        raise TimeoutError(f"process {pid} did not end in {_PATIENCE:.0f} s")
    return code


# ------------------------------------------------------------------------------------------------------------
# Comparing


def snapshot(folder: Path) -> dict[str, Any]:
    """Return the contents of all files that say what the result is, by name."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name == "program.log":
            continue
        if path.suffix == ".json":
            found[name] = _without_times(json.loads(path.read_text()))
        else:
            found[name] = path.read_bytes()
    return found


def _without_times(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_times(value) for key, value in data.items() if key not in _TIMES}
    if isinstance(data, list):
        return [_without_times(value) for value in data]
    return data


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the names of files that differ, are missing or too many."""
    return sorted(
        name
        for name in {*found, *expected}
        if name not in found or name not in expected or found[name] != expected[name]
    )


def state_of(task: Task) -> str:
    """Describe the output as it is found by the next start."""
    names = sorted(os.listdir(task.output)) if task.output.is_dir() else []
    parts = [
        word
        for word, there in (
            ("complete", task.marker in names),
            ("resumable", ".resume" in names),
            ("staged", any(name.startswith(".partial-") for name in names)),
            ("lock", ".lock" in names),
        )
        if there
    ]
    return ", ".join(parts) or "empty"


# ------------------------------------------------------------------------------------------------------------
# The matrix


@dataclass(frozen=True)
class Row:
    """One kill and what came of it.

    Attributes:
        when: how the command was ended, in words.
        state: of the output then.
        problem: "" when all is as it should be.
    """

    when: str
    state: str
    problem: str


def attempt(task: Task, work: Path, kill: Kill, expected: dict[str, Any], old: dict[str, Any]) -> Row:
    """Kill a command once, look at what is there, and restart it to completion."""
    task.fresh()
    ended = run(task, work, kill)
    if kill.after >= 0:
        when = f"{kill.number.name} after {ended.seconds:.3f} s" + (" (script)" if kill.script else "")
    else:
        what = ended.operations[-1] if ended.operations else "?"
        what = what if len(what) < 60 else f"{what[:30]}...{what[-26:]}"
        when = f"{kill.number.name} {kill.where} {what} ({kill.operation})"
    state = f"exit {ended.code}: {state_of(task)}"
    return Row(when, state, _judge(task, work, kill, ended, expected, old))


def _judge(
    task: Task, work: Path, kill: Kill, ended: Ended, expected: dict[str, Any], old: dict[str, Any]
) -> str:
    fine = {0, -kill.number} | ({75} if kill.number == signal.SIGTERM else set())
    if ended.code not in fine:
        return f"exit code {ended.code}: {ended.log[-300:]}"
    if "Traceback" in ended.log:
        return f"traceback: {ended.log[-300:]}"
    if (task.output / task.marker).exists():
        there = {name: value for name, value in snapshot(task.output).items() if not name.startswith(".")}
        if differing(there, expected) and differing(there, old):
            # being replaced: what readers take for a result must not be a mixture of both
            marker = task.marker
            if there[marker] not in (expected[marker], old.get(marker)):
                return f"looks complete and is not: {differing(there, expected)}"
            if kill.number == signal.SIGKILL and not any(
                name.startswith(".partial-") for name in os.listdir(task.output)
            ):
                return f"half published, and nothing to finish it with: {differing(there, expected)}"
    again = run(task, work)
    if again.code != 0 or "Traceback" in again.log:
        return f"restart: exit code {again.code}: {again.log[-300:]}"
    different = differing(snapshot(task.output), expected)
    return f"differs: {', '.join(different)}" if different else ""


def instants(
    n: int, operations: Sequence[str], seconds: float, rng: random.Random, *, number: signal.Signals
) -> list[Kill]:
    """Return ``n`` ways to be killed.

    A tenth of scripts at a time; half of the others at a time, a quarter at operations of all kinds, and a quarter at
    those that put the result together and in its place; each spread over all of them.
    """
    n_scripts = n // 10
    n_times = (n - n_scripts) // 2
    last = max((i for i, label in enumerate(operations) if " .resume" in label), default=0)
    publishing = [
        i
        for i, label in enumerate(operations)
        if ".partial-" in label or (i > last - 10 and " .lock" not in label) or "X_Y" in label
    ]
    kills = []
    n_publishing = (n - n_scripts - n_times) // 2
    for pool, count in (
        (range(len(operations)), n - n_scripts - n_times - n_publishing),
        (publishing, n_publishing),
    ):
        kills += [
            Kill(
                number,
                operation=1 + pool[int((index + rng.random()) * len(pool) / count)],
                where=rng.choice(("before", "after", "within")),
            )
            for index in range(count)
        ]
    kills += [Kill(number, after=(index + rng.random()) * seconds / n_times) for index in range(n_times)]
    return kills + [Kill(number, after=rng.random(), script=True) for _ in range(n_scripts)]


def matrix(
    task: Task,
    work: Path,
    *,
    n: int,
    number: signal.Signals,
    rng: random.Random,
    show: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Kill a command ``n`` times.

    Args:
        task: the command.
        work: folder for everything.
        n: number of kills.
        number: the signal.
        rng: draws the instants.
        show: is given a line per kill.

    Returns:
        One row per kill.
    """
    warm_up(task)
    task.fresh()
    old = snapshot(task.output) if task.output.is_dir() else {}
    complete = run(task, work)
    if complete.code != 0:
        raise SystemExit(f"{task.name} does not even run: {complete.log}")
    expected = snapshot(task.output)
    if n >= 10:
        task.fresh()
        script = _whole_script(task, work)
        if differing(snapshot(task.output), expected):
            raise SystemExit(f"the script and its main give different results: {script.log}")
    else:
        script = complete
    show(
        f"{task.name}: {len(complete.operations)} operations, {complete.seconds:.2f} s in a fork, "
        f"{script.seconds:.2f} s as a script; {n} kills by {number.name}"
    )
    rows = []
    for kill in instants(n, complete.operations, complete.seconds, rng, number=number):
        if kill.script:
            kill = Kill(number, after=script.seconds * (0.3 + 0.7 * kill.after), script=True)
        row = attempt(task, work, kill, expected, old)
        rows.append(row)
        show(f"  {row.when:<84} {row.state:<43} {row.problem or 'identical'}")
    return rows


def _whole_script(task: Task, work: Path) -> Ended:
    start = time.monotonic()
    log = work / "log.txt"
    code = _wait(_start_script(task, log), start, None)
    if code:
        raise SystemExit(f"{task.script} fails: {log.read_text()}")
    return Ended(code, time.monotonic() - start, log.read_text(), ())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the matrix; exit code 0 when every result is identical."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=30, help="of each command by each signal (default: 30)")
    parser.add_argument("--what", nargs="+", choices=_WHAT, default=_WHAT)
    parser.add_argument("--seed", type=int, default=0, help="of the instants (default: 0)")
    args = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    rng = random.Random(args.seed)
    totals = []
    with tempfile.TemporaryDirectory(prefix="crash-matrix-") as folder:
        work = Path(folder)
        everything = tasks(work)
        import_everything()
        for what in args.what:
            for task in (everything[name] for name in (what, f"{what} --overwrite") if name in everything):
                for number in (signal.SIGKILL, signal.SIGTERM):
                    n = args.kills if task.prepare is None else -(-args.kills // 3)
                    rows = matrix(
                        task, work, n=n, number=number, rng=rng, show=lambda line: print(line, flush=True)
                    )
                    good = sum(not row.problem for row in rows)
                    totals.append((good, len(rows), f"{task.name}, {number.name}"))
    print()
    for good, all_of_them, label in totals:
        print(f"{label:<36} {good}/{all_of_them} identical")
    return 0 if all(good == all_of_them for good, all_of_them, _ in totals) else 1


if __name__ == "__main__":
    sys.exit(main())
