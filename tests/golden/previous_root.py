"""A models root as an earlier commit has left it, with complete results and interrupted work, and what became of both.

::

    previous_root/root.tar.gz       images, levels, model, features, runs, analyses, and work that was interrupted
    previous_root/*.txt             what print_results.py printed of it
    previous_root/export.json       what print_results.py --export wrote of it
    previous_root/finished.json     the results of the interrupted work after the same command was given again

``python tests/golden/previous_root.py`` records all of it with the code that is there, and replaces what an earlier
commit has left: a record is made by the commit before a rearrangement, never by the one that is to be tested.

Commands are the scripts of the checkout, by file name; nothing here knows where their code lives.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.metadata
import io
import json
import os
import pickle
import runpy
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(__file__).resolve().parent / "previous_root"

#: Of all files in the archive: 2026-01-01. Locks of killed processes are old by it.
_TIME = 1767225600

CLASSES = ("n01440764", "n01443537", "n01484850", "n01491361")
LEVELS = (("n02000001", "n02000002", "n02000003"), ("n02000004", "n02000005", "n02000006"))


# ------------------------------------------------------------------------------------------------------------
# Commands


def call(script: str, *argv: object) -> tuple[int, str, str]:
    """Run a script of the checkout in this process; returns exit code, standard output and standard error."""
    words = [f"{script}.py", *map(str, argv)]
    out, errors, before = io.StringIO(), io.StringIO(), sys.argv
    code: Any = 0
    _detach_logging()
    try:
        sys.argv = words
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            runpy.run_path(str(REPOSITORY / words[0]), run_name="__main__")
    except SystemExit as error:
        code = error.code or 0
    finally:
        sys.argv = before
        _detach_logging()
    return int(code), out.getvalue(), errors.getvalue()


def _detach_logging() -> None:
    """Let the next command log to the standard error of its own time."""
    import logging

    logging.getLogger("cog").handlers = []


CLASSIFIER = (
    "--device", "cpu", "CLF.N_EPOCHS", 6, "CLF.BATCH_SIZE", 16, "CLF.VAL_PERC", 0.25,
    "CLF.PRECISION", "fp32",
)  # fmt: skip


def model(root: Path) -> tuple[object, ...]:
    """Return the flags that name the model."""
    return ("--model", "tiny_net", "--models_root_dir", root / "models")


def images(root: Path) -> tuple[object, ...]:
    """Return the flags that say where images are, and how they are read."""
    return (
        "--model_loader", f"{root / 'my_net.py'}:load_my_model", "--device", "cpu",
        "--in1k_images_root", root / "images/in1k", "--imagenet_images_root", root / "images/in21k",
        "--cog_levels_mapping_file", root / "levels.pkl", "--cog_concepts_split_file", root / "split.pkl",
        "FT_EXTRACT.N_WORKERS", 0, "FT_EXTRACT.BATCH_SIZE", 4, "FT_EXTRACT.SHARD_ROWS", 4,
    )  # fmt: skip


def tuning(name: str) -> tuple[object, ...]:
    """Return the flags of the fine-tuning of a data set."""
    return (
        "--dataset", name, "FINETUNE.N_EPOCHS", 3, "FINETUNE.BATCH_SIZE", 8, "FINETUNE.BATCH_PER_DEVICE", 4,
        "FINETUNE.LR", 0.5, "FT_EXTRACT.IMAGE_RESIZE_SIZE", 16, "FT_EXTRACT.IMAGE_CROP_SIZE", 16,
    )  # fmt: skip


def complete_commands(root: Path) -> list[tuple[object, ...]]:
    """Return the commands that fill the models root, in order."""
    both = ("--dataset", "in1k", "cog_l1", "--split", "train", "test")
    small = (*CLASSIFIER, "CLF.N_TRIALS", 3)
    commands: list[tuple[object, ...]] = [("extract_features", *model(root), *both, *images(root))]
    for name in ("in1k", "cog_l1"):
        seeds = ("--dataset", name, "--seeds", 22, 37)
        commands.append(("logreg", *model(root), *seeds, "--n_shots", 0, 1, *small))
    for variant in (("CLF.PCA_DIM", 2), ("CLF.TYPE", "mlp", "CLF.MLP_HIDDEN", 8)):
        commands.append(("logreg", *model(root), "--dataset", "in1k", "--seeds", 22, *small, *variant))
    analyses = ("kmeans", "alignment", "knn", "ncm")
    commands.append(
        ("analyze_features", *model(root), "--dataset", "cog_l1", "--analysis", *analyses, *ANALYSES)
    )
    commands.append(
        ("analyze_features", *model(root), "--dataset", "in1k", "--analysis", *analyses[1:], *ANALYSES)
    )
    commands.append(("finetune", *model(root), *tuning("cog_l1"), *images(root)))
    return commands


ANALYSES = (
    "--device", "cpu", "ANALYSIS.KNN_K", "[1, 5]", "ANALYSIS.KMEANS_SEEDS", "[22, 37]", "ANALYSIS.KMEANS_K", 6,
    "ANALYSIS.KMEANS_TOLERANCE", 0.0,
)  # fmt: skip


def load(path: Path) -> Any:
    """Read a file of tensors."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


@dataclass(frozen=True)
class Interrupted:
    """Work that a process did not finish.

    Attributes:
        command: script and its arguments, as a function of the root.
        output: folder of the result in the root.
        number: the signal that ended it.
        ready: whether a process has come so far that it may be ended.
        until: whether what an ended process has left is what is to be recorded.
        mark: changes what is saved (or what it was made of), so that only who goes on from it gets the recorded result.
        step: attempts are so many calls of functions apart.
    """

    command: Callable[[Path], tuple[object, ...]]
    output: str
    number: signal.Signals
    ready: Callable[[Path], bool]
    until: Callable[[Path], bool]
    mark: Callable[[Path, Path], None]
    step: int = 1


def _classifier(seed: int) -> Callable[[Path], tuple[object, ...]]:
    return lambda root: (
        "logreg", *model(root), "--dataset", "in1k", *CLASSIFIER, "CLF.N_TRIALS", 12, "EVAL.SEED", seed,
    )  # fmt: skip


def _n_trials(folder: Path) -> int:
    journal = folder / ".resume/study.journal"
    return journal.read_bytes().count(b"\n") - 1 if journal.is_file() else 0


def _clustering(folder: Path) -> bool:
    path = folder / ".resume/seed-37.pt"
    return path.is_file() and load(path)["iterations"] >= 1


def _tuning(folder: Path) -> bool:
    path = folder / ".resume/state.pth"
    return path.is_file() and load(path)["position"].tolist()[0] == 1


def _other_images(root: Path, folder: Path) -> None:
    """Make white the images whose features are saved."""
    from PIL import Image

    manifest = json.loads((folder / ".resume/manifest.json").read_text())
    done = max(json.loads(path.read_text())["stop"] for path in (folder / ".resume").glob("rows-*.json"))
    assert 0 < done < manifest["n_rows"]
    split = pickle.loads((root / "split.pkl").read_bytes())
    files = [file for name in LEVELS[1] for file in split[name]["train"]]
    for file in files[:done]:
        Image.new("RGB", (10, 8), "white").save(root / "images/in21k" / file, format="PNG")


def _other_seconds(root: Path, folder: Path) -> None:
    """Let every trial of the search have taken minutes."""
    path = folder / ".resume/study.journal"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    trials = [line for line in lines if "seconds" in line.get("user_attrs", {})]
    assert len(trials) == 11
    for number, trial in enumerate(trials):
        trial["user_attrs"]["seconds"] = 100.0 + number
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _other_loss(root: Path, folder: Path) -> None:
    """Change the training loss of the first epoch, which nothing is computed from."""
    path = folder / ".resume/checkpoint.pt"
    data = load(path)
    (state,) = data["states"]
    state["logs"]["train/loss"][0] = 123.0
    _save(data, path)


def _more_iterations(root: Path, folder: Path) -> None:
    """Let k-means have done 100 iterations more."""
    path = folder / ".resume/seed-37.pt"
    _save(load(path) | {"iterations": 100 + load(path)["iterations"]}, path)


def _other_tuning_loss(root: Path, folder: Path) -> None:
    """The same as ``_other_loss``."""
    path = folder / ".resume/state.pth"
    data = load(path)
    data["logs"]["train/loss"][0] = 123.0
    _save(data, path)


def _save(data: Any, path: Path) -> None:
    import torch

    torch.save(data, path)


INTERRUPTED = {
    "extraction": Interrupted(
        lambda root: (
            "extract_features", *model(root), "--dataset", "cog_l2", "--split", "train", *images(root),
        ),
        "models/tiny/net/cog_l2/features_train",
        signal.SIGKILL,
        lambda folder: len(list((folder / ".resume").glob("rows-*.json"))) >= 2,
        lambda folder: 2 <= len(list((folder / ".resume").glob("rows-*.json"))) <= 4,
        _other_images,
    ),
    "search": Interrupted(
        _classifier(45),
        "models/tiny/net/in1k/eval_logreg/seed-45",
        signal.SIGKILL,
        lambda folder: _n_trials(folder) == 11,
        lambda folder: _n_trials(folder) == 11,
        _other_seconds,
    ),
    "final training": Interrupted(
        _classifier(77),
        "models/tiny/net/in1k/eval_logreg/seed-77",
        signal.SIGTERM,
        lambda folder: _n_trials(folder) == 12,
        lambda folder: _n_trials(folder) == 12 and any((folder / ".resume").glob("*.pt*")),
        _other_loss,
        step=31,
    ),
    "k-means": Interrupted(
        lambda root: (
            "analyze_features", *model(root), "--dataset", "in1k", "--analysis", "kmeans", *ANALYSES,
        ),
        "models/tiny/net/in1k/analysis_kmeans",
        signal.SIGTERM,
        lambda folder: (folder / ".resume/seed-22.done.pt").is_file(),
        _clustering,
        _more_iterations,
        step=24,
    ),
    "fine-tuning": Interrupted(
        lambda root: ("finetune", *model(root), *tuning("in1k"), *images(root)),
        "models/tiny/net/in1k/eval_finetune/seed-22",
        signal.SIGTERM,
        lambda folder: (folder / ".resume/state.pth").is_file(),
        _tuning,
        _other_tuning_loss,
        step=40,
    ),
}  # fmt: skip


def tables(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is printed of the root, by the name of the file with the output."""
    own = ("print_results", "--models_root_dir", root / "models")
    one = (*own, "--model", "tiny_net", "--dataset", "in1k")
    return {
        "text": own,
        "markdown": (*own, "--format", "markdown"),
        "csv": (*own, "--format", "csv"),
        "latex": (*own, "--format", "latex"),
        "json": (*own, "--format", "json"),
        "shots": (*own, "--view", "shots", "--seeds", 22, 37),
        "overview": (*own, "--overview"),
        "analyses": (*own, "--analysis", "all"),
        "variants": (*own, "--variants", "all"),
        "one": one,
        "one_pca": (*one, "CLF.PCA_DIM", 2),
        "published": (*own, "--with_published", "--model", "tiny_net", "sup_resnet50", "--dataset", "in1k", "cog_l1"),
    }  # fmt: skip


def imported_tables(export: Path) -> dict[str, tuple[object, ...]]:
    """Return what is printed of an exported file."""
    own = ("print_results", "--import", export)
    return {
        "imported": own,
        "imported_overview": (*own, "--overview"),
        "imported_csv": (*own, "--format", "csv"),
    }


# ------------------------------------------------------------------------------------------------------------
# Reading results


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """Return the numbers of a finished result, as JSON has them."""
    if name == "extraction":
        data = load(folder / "X_Y.pth")
        return {"X": data["X"].double().tolist(), "Y": data["Y"].tolist(), "name": data["name"]}
    results = json.loads((folder / "results.json").read_text())
    if name == "k-means":
        runs = {
            seed: {key: value for key, value in run.items() if "second" not in key}
            for seed, run in results["details"]["runs"].items()
        }
        return {"values": results["values"], "per_seed": results["per_seed"], "runs": runs}
    (final,) = folder.glob("final*")
    logs = pickle.loads((final / "logs.pkl").read_bytes())
    found = {"final": final.name, "logs": {key: list(map(float, values)) for key, values in logs.items()}}
    if name != "fine-tuning":
        found["trials"] = results["trials"]
    return found


def without(text: str, root: Path) -> str:
    """Return text without the place of the root."""
    return text.replace(str(root), "ROOT")


# ------------------------------------------------------------------------------------------------------------
# Recording


def unpack(root: Path) -> Path:
    """Unpack the recorded root into an empty folder, which is returned."""
    with tarfile.open(FOLDER / "root.tar.gz") as archive:
        # Python 3.11.2, Debian 12's, has no filters yet.
        archive.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root


def of_now(root: Path) -> None:
    """Say of unfinished work that it was begun with the packages that are installed here: others are refused."""
    for path in (
        path for pattern in ("manifest.json", "identity.json") for path in root.rglob(f".resume/{pattern}")
    ):
        data = json.loads(path.read_text())
        for part in (data["identity"], data.get("versions", {})):
            for package in ("torch", "torchvision", "pillow", "optuna", "numpy"):
                if part.get(package):
                    part[package] = importlib.metadata.version(package)
        path.write_text(json.dumps(data))


def _pack(root: Path) -> None:
    for path in root.rglob("program.log"):
        path.write_text(path.read_text().replace(f"{REPOSITORY}/", ""))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(root)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = _TIME
            entry.mode = 0o755 if path.is_dir() else 0o644
            if path.is_dir():
                archive.addfile(entry)
            else:
                with path.open("rb") as handle:
                    archive.addfile(entry, handle)
    (FOLDER / "root.tar.gz").write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def _write_inputs(root: Path) -> None:
    import numpy as np
    import tiny
    import torch
    from PIL import Image

    def write(folder: Path, n: int, seed: int) -> None:
        """Write images of a color of their class and much noise; PNG data decode to the same pixels everywhere."""
        rng = np.random.default_rng([seed, 7])
        color = rng.integers(95, 160, 3)
        folder.mkdir(parents=True)
        for index in range(n):
            pixels = color + rng.normal(0, 25, 3) + rng.normal(0, 4, (8, 10, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
                folder / f"{folder.name}_{index}.JPEG", format="PNG"
            )

    for row, name in enumerate(CLASSES):
        write(root / "images/in1k/train" / name, 12, row)
        write(root / "images/in1k/val" / name, 5, row)
    for row, name in enumerate(name for level in LEVELS for name in level):
        write(root / "images/in21k" / name, 10, 10 + row)
    tiny.write_loader(root / "my_net.py")
    tiny.write_levels_file(root / "levels.pkl", LEVELS)
    tiny.write_split_file(root / "split.pkl", root / "images/in21k", n_test=3)
    checkpoint = root / "models/tiny/net/model.ckpt"
    checkpoint.parent.mkdir(parents=True)
    torch.save({"mix": torch.tensor([1.0, -2.0, 0.5])}, checkpoint)


def _must(code: int, errors: str, command: Sequence[object]) -> None:
    if code:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {code}: {errors}")


def _interrupt(root: Path, work: Interrupted) -> None:
    """Give the command, and end it at later and later calls of functions, until it leaves what is wanted."""
    command, output = work.command(root), root / work.output
    calls = 0
    while not work.until(output):
        calls += work.step
        shutil.rmtree(output, ignore_errors=True)
        pid = os.fork()
        if pid == 0:
            _end_after(calls, work.number, lambda: work.ready(output))
            try:
                code, _, errors = call(*command)  # type: ignore[arg-type]
            except BaseException as error:
                code, errors = 70, repr(error)
            if code not in (0, 75):
                print(errors, flush=True)
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (75, -work.number):
            raise SystemExit(f"{work.output}: exit code {code} after {calls} calls: never as wanted")
    print(f"{work.output}: {work.number.name} after {calls} calls")
    work.mark(root, output)
    for lock in output.rglob(".lock"):  # of a process that is gone, on a machine that nobody knows
        data = json.loads(lock.read_text())
        lock.write_text(json.dumps(data | {"host": "node-17", "boot": "0" * 32}))


def _end_after(calls: int, number: signal.Signals, ready: Callable[[], bool]) -> None:
    """Send this process a signal at the n-th call of a function of the package since it is ready."""
    counted = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal counted
        code = frame.f_code
        if event == "call" and "/cog/" in code.co_filename and code.co_name != "<module>":
            counted += counted > 0 or ready()
            if counted == calls:
                os.kill(os.getpid(), number)

    sys.setprofile(count)


def record() -> None:
    """Replace the folder of the record."""
    import torch

    torch.set_num_threads(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with tempfile.TemporaryDirectory(prefix="previous-root-") as name:
        root, again = Path(name) / "root", Path(name) / "again"
        root.mkdir()
        _write_inputs(root)
        for command in complete_commands(root):
            code, _, errors = call(*command)  # type: ignore[arg-type]
            _must(code, errors, command)
        for work in INTERRUPTED.values():
            _interrupt(root, work)
        _pack(root)
        export = FOLDER / "export.json"
        code, _, errors = call("print_results", "--models_root_dir", root / "models", "--export", export)
        _must(code, errors, ("--export",))
        for title, command in (tables(root) | imported_tables(export)).items():
            code, out, errors = call(*command)  # type: ignore[arg-type]
            _must(code, errors, command)
            (FOLDER / f"{title}.txt").write_text(without(out, root))
        unpack(again)
        finished: dict[str, Any] = {"optuna": importlib.metadata.version("optuna")}
        for title, work in INTERRUPTED.items():
            code, _, errors = call(*work.command(again))  # type: ignore[arg-type]
            _must(code, errors, work.command(again))
            print(f"--- {title}\n{errors}")
            finished[title] = outcome(title, again / work.output)
        (FOLDER / "finished.json").write_text(json.dumps(finished, indent=1) + "\n")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "helpers")]
    record()
