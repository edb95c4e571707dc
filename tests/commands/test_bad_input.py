"""Wrong input to extract_features, logreg and print_results: one line, the right exit code, nothing changed.

Every case gets a copy of the same small workshop, changes something (``spoil``), runs a script, and states what
the message must name. The runner checks the rest: exit code, a single line on standard error (after warnings
where the case expects some), no traceback, no canary, and every file and folder as before.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import re
import shlex
import shutil
import subprocess
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import hostile
import numpy as np
import pytest
import tiny
import torch
from result_folders import make_logs, make_record, make_seed_folder

from cog.commands import extract_features, logreg, print_results
from cog.runtime import cli
from cog.runtime.output import FAILURE_FILE

SCRIPTS = {"extract_features": extract_features, "logreg": logreg, "print_results": print_results}


@dataclass(frozen=True)
class Case:
    """One wrong input.

    Attributes:
        name: what is wrong.
        script: which script.
        argv: its arguments; ``{w}`` stands for the workshop's folder.
        says: what the message must contain (``{w}`` as above).
        spoil: changes the workshop before the run.
        warns: how many warnings come before the message.
        slow: only run with --slow.
    """

    name: str
    script: str
    argv: tuple[str, ...]
    says: tuple[str, ...]
    spoil: Callable[[tiny.Workshop], None] | None = None
    warns: int = 0
    slow: bool = field(default_factory=lambda: _rest)


CASES: list[Case] = []
_rest = False  # whether cases that are made now are slow


def few(n, kinds):
    """Yield all; the default suite has the cases of the first n, since the others take the same way to the message."""
    global _rest
    for number, kind in enumerate(kinds):
        _rest = number >= n
        yield kind
    _rest = False


# --- a right command line for each script, of which every case changes something

EXTRACT = (
    "--model tiny_net --model_loader {w}/my_net.py:load_my_model --dataset birds --split test --images_root {w}/birds "
    "--output_dir {w}/out --device cpu"
)
FAST = "FT_EXTRACT.N_WORKERS 0 FT_EXTRACT.IMAGE_RESIZE_SIZE 16 FT_EXTRACT.IMAGE_CROP_SIZE 12"
LEVEL = (
    "--model tiny_net --model_loader {w}/my_net.py:load_my_model --dataset cog_l1 --split test --output_dir {w}/out "
    "--device cpu --imagenet_images_root {w}/in21k --cog_levels_mapping_file {w}/levels.pkl "
    "--cog_concepts_split_file {w}/split.pkl"
)
LOGREG = (
    "--train_features_dir {w}/models/tiny/net/birds/features_train "
    "--test_features_dir {w}/models/tiny/net/birds/features_test --output_dir {w}/out --device cpu"
)
SHORT = "CLF.N_EPOCHS 2 CLF.N_TRIALS 1"
PRINT = "--models_root_dir {w}/results"


def _argv(line, changes, more=""):
    """Return the words of a command line; a flag among the changes replaces that of the line, with ``-`` it goes."""
    words, changed = shlex.split(line), shlex.split(changes)
    kept = [w for flag, value in zip(words[::2], words[1::2]) if flag not in changed for w in (flag, value)]
    gone = {flag for flag, value in itertools.pairwise(changed) if value == "-"} | {"-"}
    return (*kept, *shlex.split(more), *(word for word in changed if word not in gone))


def no_flag_of(line):
    return " ".join(f"{flag} -" for flag in line.split()[::2])


def adder(prefix, script, line, more=""):
    """Return a function that adds a case: its name, changes of ``line``, and what the message must contain."""

    def add(name, changes, *says, spoil=None, warns=0):
        CASES.append(Case(f"{prefix}: {name}", script, _argv(line, changes, more), says, spoil, warns))

    return add


extract = adder("extract", "extract_features", EXTRACT, FAST)
level = adder("extract: level", "extract_features", LEVEL, FAST)
train = adder("logreg", "logreg", LOGREG, SHORT)
show = adder("print", "print_results", PRINT)


# --- ways to spoil a workshop


def write(path, content):
    def spoil(w):
        target = w.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content(w) if callable(content) else content)

    return spoil


def dump(path, value):
    return write(path, pickle.dumps(value))


def hostile_pickle(path, name):
    return write(path, lambda w: hostile.PICKLES[name](w.root / "canary"))


def hostile_torch(path, name):
    return write(path, lambda w: hostile.TORCH_FILES[name](w.root / "canary"))


def cut(path, fraction=0.5):
    def spoil(w):
        content = (w.root / path).read_bytes()
        (w.root / path).write_bytes(content[: int(len(content) * fraction)])

    return spoil


def remove(path):
    def spoil(w):
        target = w.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return spoil


def folder(path):
    def spoil(w):
        (w.root / path).mkdir(parents=True)

    return spoil


def link(path, target):
    def spoil(w):
        (w.root / path).symlink_to(target)

    return spoil


def save(path, value):
    def content(w):
        buffer = io.BytesIO()
        torch.save(value(w) if callable(value) else value, buffer)
        return buffer.getvalue()

    return write(path, content)


def both(*spoils):
    def spoil(w):
        for part in spoils:
            part(w)

    return spoil


def loader(source):
    return write("my_net.py", source.encode())


TRAIN_XY = "models/tiny/net/birds/features_train/X_Y.pth"
TEST_XY = "models/tiny/net/birds/features_test/X_Y.pth"


def features(path=TRAIN_XY, **changes):
    def value(w):
        x, y = tiny.make_xy()
        split = "test" if path == TEST_XY else "train"
        data = {"X": x, "Y": y, "name": f"tiny_net_birds_{split}"}
        for key, change in changes.items():
            data[key] = change(data[key])
        return {key: entry for key, entry in data.items() if entry is not None}

    return save(path, value)


def script_module(w):
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    return buffer.getvalue()


def legacy_tar(w):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"\x80\x02N."))
    return buffer.getvalue()


def state(**entries):
    return save("weights.pth", entries)


def x_with(value, *rows):
    def change(x):
        x = x.clone()
        for row in rows:
            x[row, row % x.shape[1]] = value
        return x

    return change


# fmt: off
# --- extract_features: flags

extract("no arguments", no_flag_of(EXTRACT), "required", "--model", "--dataset", "--split")
extract("unknown flag", "--modell x", "unrecognized", "--modell", "did you mean --model?")
extract("model without underscore", "--model tiny", "--model 'tiny'", "<model_title>_<architecture_name>")
extract("model that climbs", "--model ../tiny_net", "--model '../tiny_net'")
extract("empty model", "--model ''", "--model", "empty")
extract("model unknown without loader", "--model sup_resnet51 --model_loader -", "sup_resnet51", "sup_resnet50")
extract("data set that climbs", "--dataset ../birds", "--dataset '../birds'")
extract("data set with a space", "--dataset 'my birds'", "--dataset 'my birds'")
extract("data set unknown", "--dataset in2k --images_root -", "in2k", "in1k", "--images_root")
extract("data set level 0", "--dataset cog_l0 --images_root -", "cog_l0")
extract("split val", "--split val", "--split", "'val'", "'train', 'test'")
extract("device unknown", "--device tpux", "--device 'tpux'")
extract("device that computes nothing", "--device meta", "--device meta")
extract("GPU that is not there", "--device cuda:99", "--device cuda:99")
extract("allow_failures negative", "--allow_failures -1", "--allow_failures", "-1")
extract("allow_failures not a number", "--allow_failures all", "--allow_failures", "'all'")
extract("unknown configuration key", "FT_EXTRACT.WORKERS 1", "FT_EXTRACT.WORKERS", "FT_EXTRACT.N_WORKERS")
extract("key without value", "CLF.N_SHOT", "CLF.N_SHOT", "no value")
extract("key in lower case", "clf.n_shot 8", "clf.n_shot")
extract("value of a wrong type", "FT_EXTRACT.BATCH_SIZE many", "FT_EXTRACT.BATCH_SIZE", "'many'")
extract("config missing", "--config {w}/absent.yaml", "--config {w}/absent.yaml", "does not exist")
extract("config with an unknown key", "--config {w}/c.yaml", "CLF.EPOCHS", "c.yaml",
        spoil=write("c.yaml", b"CLF: {EPOCHS: 1}"))

# --- extract_features: model and loader

NO_LOADER = "--model sup_resnet50 --model_loader - "

extract("nowhere to write", "--output_dir -", "--models_root_dir", "--output_dir")
extract("no checkpoint", NO_LOADER, "--ckpt_file")
extract("checkpoint missing", NO_LOADER + "--ckpt_file {w}/absent.pth", "--ckpt_file {w}/absent.pth",
        "does not exist")
extract("checkpoint is a folder", NO_LOADER + "--ckpt_file {w}/models", "--ckpt_file {w}/models", "folder")
extract("checkpoint name too long", NO_LOADER + "--ckpt_file {w}/" + "x" * 300, "{w}/xxx")
extract("checkpoint link in a circle", NO_LOADER + "--ckpt_file {w}/loop", "--ckpt_file {w}/loop",
        spoil=link("loop", "loop"))
extract("checkpoint is a device", NO_LOADER + "--ckpt_file /dev/zero", "--ckpt_file /dev/zero")
extract("models root missing", "--models_root_dir {w}/absent --output_dir -", "--models_root_dir {w}/absent",
        "does not exist")
extract("models root is a file", "--models_root_dir {w}/my_net.py --output_dir -", "--models_root_dir {w}/my_net.py",
        "is a file")
extract("models root without this model", NO_LOADER + "--models_root_dir {w}/models --output_dir -",
        "{w}/models/sup/resnet50/model.ckpt")

WEIGHTS = "--ckpt_file {w}/weights.pth"


def checkpoint(name, spoil, *says):
    # one warning comes first: the file is not the published one
    extract(name, NO_LOADER + WEIGHTS, "{w}/weights.pth", *says, spoil=spoil, warns=1)


for kind, content, says in few(2, (
    ("empty", b"", "empty"),
    ("no torch file", b"<html>404 Not Found</html>", "weights.pth"),
    ("a zip of something else", b"PK\x05\x06" + b"\0" * 18, "weights.pth"),
    ("TorchScript of another network", script_module, "weights.pth"),
    ("torch 0.1 tar", legacy_tar, "download the re-released file"),
)):
    checkpoint(f"checkpoint: {kind}", write("weights.pth", content), says)
checkpoint("checkpoint of another network", state(weight=torch.zeros(2, 2)), "does not fit")
checkpoint("checkpoint truncated", both(state(a=torch.zeros(500)), cut("weights.pth")), "complete")
for kind, value in few(2, (
    ("a list", [torch.zeros(2)]),
    ("a tensor", torch.zeros(2)),
    ("empty dict", {}),
    ("numbers as names", {1: torch.zeros(2)}),
    ("values that are no tensors", {"conv1.weight": "abc"}),
    ("sparse tensors", {"conv1.weight": torch.eye(3).to_sparse()}),
)):
    checkpoint(f"checkpoint holds {kind}", save("weights.pth", value))
for kind in few(2, hostile.TORCH_FILES):
    checkpoint(f"hostile checkpoint, {kind}", hostile_torch("weights.pth", kind), "refused to read")
    extract(f"hostile checkpoint for a loader, {kind}", WEIGHTS, "loader of model tiny_net",
            spoil=hostile_torch("weights.pth", kind))
extract("empty checkpoint for a loader", WEIGHTS, "loader of model tiny_net", "{w}/weights.pth is empty",
        spoil=write("weights.pth", b""))

extract("a checkpoint that is not there, for a loader",
        "--model tiny_other --ckpt_file - --models_root_dir {w}/models --output_dir -",
        "there is no checkpoint in {w}/models/tiny/other",
        spoil=loader("import torch\n\n\ndef load_my_model(init_args):\n"
                     "    return torch.load(init_args['ckpt_file']), None\n"))
extract("loader without function", "--model_loader {w}/my_net.py", "--model_loader", "FILE.py:load_my_model")
extract("loader with a call", "--model_loader {w}/my_net.py:f()", "--model_loader", "FILE.py:load_my_model")
extract("loader missing", "--model_loader {w}/absent.py:f", "--model_loader {w}/absent.py", "does not exist")
extract("loader is a folder", "--model_loader {w}/birds:f", "--model_loader {w}/birds", "folder")
extract("loader is not Python", "--model_loader {w}/levels.pkl:f", "--model_loader {w}/levels.pkl")
extract("loader has no such function", "--model_loader {w}/my_net.py:load", "{w}/my_net.py", "'load'")
extract("loader names a value", "--model_loader {w}/my_net.py:x", "'x'", spoil=loader("x = 3"))
extract("loader with a syntax error", "", "{w}/my_net.py", "SyntaxError", spoil=loader("def load_my_model(:\n"))
extract("loader that imports what is absent", "", "{w}/my_net.py", "no_such_module",
        spoil=loader("import no_such_module"))
extract("loader that exits on import", "", "{w}/my_net.py", "SystemExit", spoil=loader("raise SystemExit(0)"))
DEF = "import torch\ndef load_my_model(a):\n    "
extract("loader that raises", "", "tiny_net", "ValueError: a message",
        spoil=loader(DEF + "raise ValueError('a message\\nof two lines')"))
extract("loader that exits", "", "tiny_net", "SystemExit", spoil=loader(DEF + "exit(0)"))
extract("loader that returns a module alone, which takes no images", "", "tiny_net",
        "images of 12 x 12 pixels (RuntimeError: ", spoil=loader(DEF + "return torch.nn.Linear(1, 1)"))
extract("loader that returns None", "", "tiny_net", "NoneType", spoil=loader(DEF + "return None"))
extract("loader whose forward is no function", "", "tiny_net", "(Identity, int)",
        spoil=loader(DEF + "return torch.nn.Identity(), 3"))
extract("loader that takes no argument", "", "tiny_net", "takes one argument",
        spoil=loader("def load_my_model():\n    pass"))
extract("features of a wrong shape", "", "tiny_net", ", 3, 12, 12)",
        spoil=loader(DEF + "return torch.nn.Identity(), None"))
extract("features without dimensions", "", "tiny_net", ", 0)",
        spoil=loader(DEF + "return torch.nn.Identity(), lambda x: x[:, :0, 0, 0]"))
extract("features that are no tensor", "", "tiny_net", "list",
        spoil=loader(DEF + "return torch.nn.Identity(), lambda x: [x]"))
extract("features not finite", "", "crow/crow_0.png", "NaN",
        spoil=loader(DEF + "return torch.nn.Identity(), lambda x: x.mean((2, 3)) / 0"))
extract("forward that fails", "", "tiny_net", "RuntimeError",
        spoil=loader(DEF + "return torch.nn.Conv2d(4, 1, 1), None"))
COUNTING = "n = []\n    def forward(x):\n        n.append(1)\n        return x.new_zeros(len(x), len(n))\n"
extract("width that changes between passes", "FT_EXTRACT.IMAGE_RESIZE_SIZE 224 FT_EXTRACT.IMAGE_CROP_SIZE 224",
        "tiny_net", "shape (4, 2), expected (4, 1)",
        spoil=loader(DEF + COUNTING + "    return torch.nn.Identity(), forward"))

# --- extract_features: images

extract("images root missing", "--images_root {w}/absent", "--images_root {w}/absent", "does not exist")
extract("images root is a file", "--images_root {w}/my_net.py", "--images_root {w}/my_net.py", "is a file")
extract("images root without split", "--images_root {w}/in21k", "{w}/in21k/test")
extract("split is a file", "", "{w}/birds/test", spoil=both(remove("birds/test"), write("birds/test", b"x")))
extract("split without classes", "", "{w}/birds/test", "no class folders",
        spoil=both(remove("birds/test"), folder("birds/test")))
extract("classes without images", "", "{w}/birds/test", "2 of 5", "empty",
        spoil=both(folder("birds/test/empty"), write("birds/test/notes/a.txt", b"x")))
extract("file name with a line break", "", "line break", spoil=write("birds/test/crow/a\nb.png", b""))
extract("in1k without its root", "--dataset in1k --images_root -", "in1k", "--in1k_images_root")
extract("in1k root of another layout", "--dataset in1k --images_root - --in1k_images_root {w}/birds", "{w}/birds/val")

for flag in ("--imagenet_images_root", "--cog_levels_mapping_file", "--cog_concepts_split_file"):
    level(f"without {flag}", f"{flag} -", "cog_l1", flag)
    level(f"{flag} missing", flag + " {w}/absent", flag, "{w}/absent", "does not exist")
level("level out of range", "--dataset cog_l3", "cog_l3", "{w}/levels.pkl", "2 levels")
level("level far out of range", "--dataset cog_l999999999999999999999", "cog_l999999999999999999999")
LEVELS, SPLIT = "levels.pkl", "split.pkl"
DOUBLED: list = []  # 2 ** 40 entries when written out, 40 in a file
for _ in range(40):
    DOUBLED = [DOUBLED, DOUBLED]
level("levels file empty", "", "{w}/levels.pkl", "empty", spoil=write(LEVELS, b""))
level("levels file truncated", "", "{w}/levels.pkl", "complete", spoil=cut(LEVELS))
level("levels file is text", "", "{w}/levels.pkl", "pickle", spoil=write(LEVELS, b"n01440764\nn01443537\n"))
level("levels file is a torch file", "", "{w}/levels.pkl", spoil=save(LEVELS, {"a": torch.zeros(1)}))
for kind, value in few(3, (
    ("an empty list", []),
    ("an empty level", [[], list(tiny.WNIDS)]),
    ("a dict", {"L1": list(tiny.WNIDS)}),
    ("a number", 5),
    ("numbers", [[1, 2]]),
    ("text", ["n01440764"]),
    ("names that are no ids", [["dog", "cat"]]),
    ("ids that climb", [["../n01440764"]]),
    ("the same id twice", [[tiny.WNIDS[0]] * 2]),
    ("objects", [[object]]),
    ("a list that prints without end", [[DOUBLED]]),
)):
    level(f"levels file holds {kind}", "", "{w}/levels.pkl", spoil=dump(LEVELS, value))
for kind in few(2, hostile.PICKLES):
    level(f"hostile levels file, {kind}", "", "refused to read {w}/levels.pkl", spoil=hostile_pickle(LEVELS, kind))
    level(f"hostile split file, {kind}", "", "refused to read {w}/split.pkl", spoil=hostile_pickle(SPLIT, kind))
GOOD = {"train": np.array(["n01440764/a.JPEG"]), "test": np.array(["n01440764/b.JPEG"])}
level("split file truncated", "", "{w}/split.pkl", "complete", spoil=cut(SPLIT))
for kind, value in few(3, (
    ("a list", [1]),
    ("nothing", {}),
    ("no parts", dict.fromkeys(tiny.WNIDS, 3)),
    ("one part", {wnid: {"train": GOOD["train"]} for wnid in tiny.WNIDS}),
    ("an empty part", dict.fromkeys(tiny.WNIDS, GOOD | {"test": np.array([], dtype="U1")})),
    ("numbers", dict.fromkeys(tiny.WNIDS, GOOD | {"test": np.arange(3)})),
    ("paths that climb", dict.fromkeys(tiny.WNIDS, GOOD | {"test": np.array(["../../etc/passwd"])})),
    ("a matrix", dict.fromkeys(tiny.WNIDS, GOOD | {"test": np.array([["a", "b"]])})),
    ("an image in both parts", dict.fromkeys(tiny.WNIDS, GOOD | {"test": GOOD["train"]})),
    ("line breaks", dict.fromkeys(tiny.WNIDS, GOOD | {"test": np.array(["n01440764/a\nb.JPEG"])})),
)):
    level(f"split file holds {kind}", "", "{w}/", spoil=dump(SPLIT, value))
level("concept missing in the split file", "", "{w}/split.pkl", "n01440764",
      spoil=dump(SPLIT, {"n01443537": GOOD, "n01484850": GOOD}))
level("folder of a concept missing", "", "{w}/in21k", "n01443537", spoil=remove("in21k/n01443537"))

# --- extract_features: output

DONE = save("out/X_Y.pth", {"X": torch.zeros(1, 1)})
extract("output exists, made differently", "", "{w}/out/X_Y.pth", "split: train -> test",
        spoil=both(DONE, write("out/features.json", b'{"split": "train", "status": "complete"}')))
extract("output exists, of other images", "", "other images: 3 -> 9",
        spoil=both(DONE, write("out/features.json", b'{"image_list_sha256": "00", "n_images": 3}')))
extract("output with broken metadata", "", "{w}/out/features.json",
        spoil=both(DONE, write("out/features.json", b"[1]")))
extract("output is a file", "--output_dir {w}/my_net.py", "--output_dir {w}/my_net.py")
extract("output below a file", "--output_dir {w}/my_net.py/a/b", "--output_dir {w}/my_net.py/a/b")
extract("output in /proc", "--output_dir /proc/cog/features", "--output_dir /proc/cog/features")
extract("output name too long", "--output_dir {w}/new/" + "x" * 300, "--output_dir {w}/new/xxx")
for name in few(2, ("X_Y.pth", "features.json", "image_paths.txt", "failed_images.txt")):
    extract(f"output holds a folder {name}", "", f"{{w}}/out/{name}", "folder",
            spoil=write(f"out/{name}/thesis.tex", b"years of work"))
extract("output holds a folder X_Y.pth, overwriting", "--overwrite", "{w}/out/X_Y.pth", "folder",
        spoil=write("out/X_Y.pth/thesis.tex", b"years of work"))

# --- logreg: flags

train("no arguments", no_flag_of(LOGREG), "--models_root_dir", "--train_features_dir")
train("one feature folder", "--test_features_dir -", "--train_features_dir", "--test_features_dir")
train("no output", "--output_dir -", "--output_dir")
train("momentum too large", "--mom 1", "--mom", "1")
train("momentum not a number", "--mom fast", "--mom", "'fast'")
train("no search without a pair", "CLF.N_TRIALS 0", "CLF.N_TRIALS 0", "CLF.LR_INTV")
train("no search with an interval", "CLF.N_TRIALS 0 CLF.LR_INTV (1,1)", "CLF.WD_INTV")
train("learning rate negative", "CLF.LR_INTV (-1,1)", "CLF.LR_INTV", "(-1, 1)")
train("print_freq negative", "--print_freq -1", "--print_freq")
train("unknown configuration key", "CLF.EPOCHS 3", "CLF.EPOCHS", "CLF.N_EPOCHS")
train("seed too large", "EVAL.SEED 4294967296", "EVAL.SEED", "4294967296")
train("model name that climbs", "--model ../x", "--model '../x'")
train("data set name that climbs", "--dataset ../x", "--dataset '../x'")
ROOT = "--train_features_dir - --test_features_dir - --output_dir - --models_root_dir {w}/models "
train("root without model", ROOT + "--dataset birds", "--model")
train("root without data set", ROOT + "--model tiny_net", "--dataset")
train("root missing", ROOT.replace("models ", "absent ") + "--model tiny_net --dataset birds",
      "--models_root_dir {w}/absent")
train("features of another model", ROOT + "--model other_net --dataset birds",
      "{w}/models/other/net/birds/features_train")
train("features missing", "--train_features_dir {w}/absent", "{w}/absent", "train")
train("features deleted", "", "no train features {w}/" + TRAIN_XY + ", deleted by --delete_features",
      "run extract_features.py again",
      spoil=both(remove(TRAIN_XY), write(TRAIN_XY.replace("X_Y.pth", "deleted.json"), b"{}")))
train("folder without features", "--test_features_dir {w}/birds", "{w}/birds/X_Y.pth", "test")
train("feature path too long", "--test_features_dir {w}/" + "x" * 300, "{w}/xxx", "test")

# --- logreg: features

train("features empty", "", "{w}/" + TRAIN_XY, "empty", spoil=write(TRAIN_XY, b""))
train("features truncated", "", "{w}/" + TRAIN_XY, "complete", spoil=cut(TRAIN_XY))
for text in (b"0.1 0.2 0.3", b"hello world\n"):
    train(f"features are text, {text[:5].decode()}", "", "{w}/" + TRAIN_XY, "a text file that begins with",
          spoil=write(TRAIN_XY, text))
train("features are TorchScript", "", "{w}/" + TRAIN_XY, "TorchScript", spoil=write(TRAIN_XY, script_module))
for kind in few(2, hostile.TORCH_FILES):
    train(f"hostile features, {kind}", "", "refused to read {w}/" + TEST_XY, spoil=hostile_torch(TEST_XY, kind))
train("features are a list", "", "{w}/" + TRAIN_XY, "list", spoil=save(TRAIN_XY, [torch.zeros(2)]))
train("no X", "", "{w}/" + TRAIN_XY, "Y", spoil=features(X=lambda x: None))
train("no Y", "", "{w}/" + TRAIN_XY, "X", spoil=features(Y=lambda y: None))
for kind, changes, says in few(5, (
    ("X is a list", {"X": lambda x: x.tolist()}, "list"),
    ("X has one axis", {"X": lambda x: x.flatten()}, "(240,)"),
    ("X has three axes", {"X": lambda x: x[None]}, "(1, 30, 8)"),
    ("Y has two axes", {"Y": lambda y: y[:, None]}, "(30, 1)"),
    ("fewer labels than rows", {"Y": lambda y: y[:-1]}, "(29,)"),
    ("no rows", {"X": lambda x: x[:0], "Y": lambda y: y[:0]}, "(0, 8)"),
    ("no columns", {"X": lambda x: x[:, :0]}, "(30, 0)"),
    ("whole-number features", {"X": lambda x: x.long()}, "torch.int64"),
    ("complex features", {"X": lambda x: x.to(torch.complex64)}, "torch.complex64"),
    ("true-or-false labels", {"Y": lambda y: y > 0}, "torch.bool"),
    ("labels with a fraction", {"Y": lambda y: y.float()}, "torch.float32"),
    ("sparse features", {"X": lambda x: x.to_sparse()}, "dense"),
    ("sparse features, by rows", {"X": lambda x: x.to_sparse_csr()}, "dense"),
    ("features without data", {"X": lambda x: x.to("meta")}, "dense"),
)):
    train(kind, "", says, "{w}/" + TRAIN_XY, spoil=features(**changes))
train("one class", "", "label", spoil=both(features(Y=lambda y: y * 0), features(TEST_XY, Y=lambda y: y * 0)), warns=1)
train("NaN", "", "{w}/" + TRAIN_XY, "2 of 30 rows", "rows 4, 17", spoil=features(X=x_with(float("nan"), 4, 17)))
train("infinite", "", "{w}/" + TEST_XY, "1 of 30 rows", "rows 29",
      spoil=features(TEST_XY, X=x_with(-float("inf"), 29)))
train("many NaN", "", "30 of 30 rows", "rows 0, 1, 2, 3, 4, ...", spoil=features(X=lambda x: x / 0))
train("too large for float32", "", "rows 3", spoil=features(X=lambda x: x_with(1e300, 3)(x.double())))
train("widths differ", "", "8", "6", "dimensions", spoil=features(TEST_XY, X=lambda x: x[:, :6]))
train("test labels never trained", "", "test labels 7", "(1 in all)",
      spoil=features(TEST_XY, Y=lambda y: y.where(y != 2, 7)), warns=1)
train("one image per class to search with", "", "CLF.N_TRIALS 0",
      spoil=features(X=lambda x: x[[0, 10, 20]], Y=lambda y: y[[0, 10, 20]]))
train("all trials diverge", "CLF.LR_INTV (1e37,1e38) CLF.NORM_FTS False CLF.BATCH_SIZE 4", "diverged in all 1 trials",
      "CLF.LR_INTV", spoil=features(X=lambda x: x * 1e6))

# --- logreg: output

train("output is a file", "--output_dir {w}/my_net.py", "{w}/my_net.py is a file")
train("output holds a run", "", "{w}/out", "--overwrite", spoil=write("out/results.json", b"{}"))
train("output holds a run of the original toolkit", "", "{w}/out", "--overwrite",
      spoil=write("out/final-lr-1.0_wd-0.0/logs.pkl", b""))
train("output holds a log", "", "{w}/out", "program.log", spoil=write("out/program.log", b"of another program"))
train("output holds another run", "", "{w}/out", "seed: None -> 22",
      spoil=write("out/results.json", b'{"status": "complete", "identity": {}}'))

# --- print_results

SEED = "results/tiny/net/birds/eval_logreg/seed-22"


def run_folder(path=SEED, **kwargs):
    def spoil(w):
        make_seed_folder(w.root / path, **kwargs)

    return spoil


def record(**kwargs):
    def spoil(w):
        make_record(make_seed_folder(w.root / SEED), **kwargs)

    return spoil


show("no arguments", "--models_root_dir -", "--logreg_root_dir", "--models_root_dir")
show("unknown flag", "--fromat csv", "unrecognized", "--fromat", "did you mean --format?", spoil=folder("results"))
show("unknown format", "--format html", "--format", "'html'", spoil=folder("results"))
show("root missing", "", "--models_root_dir {w}/results", "does not exist")
show("root is a file", "--models_root_dir {w}/split.pkl", "--models_root_dir {w}/split.pkl", "is a file")
show("root of runs missing", "--logreg_root_dir {w}/absent --models_root_dir -", "--logreg_root_dir {w}/absent")
show("nothing there", "", "{w}/results", spoil=folder("results"))
show("seed not a number", "--seeds first", "--seeds", "'first'", spoil=run_folder())
show("shots negative", "--n_shot -3", "--n_shot", spoil=run_folder())
show("model that climbs", "--model ../x", "--model '../x'", spoil=run_folder())
show("data set that climbs", "--dataset ../x", "--dataset '../x'", spoil=run_folder())
show("shots that disagree", "--n_shot 4 CLF.N_SHOT 8", "--n_shot", "CLF.N_SHOT", spoil=run_folder())
show("unknown configuration key", "CLF.SHOT 8", "CLF.SHOT", "CLF.N_SHOT", spoil=run_folder())
show("no such seed", "--seeds 23", "23", spoil=run_folder())
show("export is a folder", "--export {w}/birds", "--export {w}/birds", spoil=run_folder())
show("export folder missing", "--export {w}/absent/x.json", "--export {w}/absent/x.json", spoil=run_folder())
show("export is a device", "--export /dev/full", "--export /dev/full", spoil=run_folder())
LOGS = SEED + "/final-lr-10.5_wd-1e-06/logs.pkl"
show("logs missing", "", "{w}/results", spoil=both(run_folder(), remove(LOGS)), warns=1)
show("logs empty", "", "{w}/results", spoil=both(run_folder(), write(LOGS, b"")), warns=1)
show("logs truncated", "", "{w}/results", spoil=both(run_folder(), cut(LOGS)), warns=1)
show("logs are a folder", "", "{w}/results", spoil=both(run_folder(), remove(LOGS), folder(LOGS)), warns=1)
for kind in few(2, hostile.PICKLES):
    show(f"hostile logs, {kind}", "", "{w}/results", "1 could not be counted",
         spoil=both(run_folder(), hostile_pickle(LOGS, kind)), warns=1)
for kind, logs in few(3, (
    ("a list", [1.0]),
    ("no accuracies", {"train/loss": [1.0]}),
    ("empty lists", make_logs() | {"test/top1": []}),
    ("text", make_logs() | {"test/top1": ["high"]}),
    ("NaN", make_logs(top1=float("nan"))),
    ("more than 100 %", make_logs(top1=101.0)),
    ("a number", make_logs() | {"test/top1": 70.0}),
    ("lists of different lengths", make_logs() | {"test/top5": [1.0]}),
    ("lists that contain themselves", b"\x80\x04}\x8c\x09test/top1]\x94h\x00as."),
)):
    show(f"logs hold {kind}", "", "{w}/results", spoil=run_folder(logs=logs), warns=1)
show("record of another seed", "", "{w}/results", spoil=record(seed=37), warns=1)
show("record not complete", "", "{w}/results", spoil=record(status="running"), warns=1)
show("record names another folder", "", "{w}/results", spoil=record(folder="../../elsewhere"), warns=1)


# fmt: on
# --- the runner


@pytest.fixture
def run(workshop, capsys, monkeypatch):
    """Return a function that runs a script as from a shell; it returns exit code, standard output and error."""
    monkeypatch.chdir(workshop.root)
    monkeypatch.setattr("sys.argv", ["script.py"])

    def run_(script, argv):
        with pytest.raises(SystemExit) as stop:
            cli.run(SCRIPTS[script].main, [word.replace("{w}", str(workshop.root)) for word in argv])
        return stop.value.code, *capsys.readouterr()

    return run_


def check_message(error, case, w):
    lines = [line for line in error.splitlines() if not is_progress(line)]
    assert all(line.startswith("warning: ") for line in lines[:-1]), error
    assert len(lines) == 1 + case.warns, error
    assert re.match(r"(error|\w+\.py: error): ", lines[-1]), error
    for text in case.says:
        assert text.replace("{w}", str(w.root)) in lines[-1]
    assert len(lines[-1]) < 1500, "too long to read"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES],
)
def test_bad_input(case, workshop, run):
    if case.spoil is not None:
        case.spoil(workshop)
    before = tiny.snapshot(workshop.root)
    code, output, error = run(case.script, case.argv)
    assert code == 2, error
    assert not (workshop.root / "canary").exists()
    assert output == ""
    assert untouched(workshop.root, before)
    check_message(error, case, workshop)


def untouched(root, before):
    """Whether nothing has changed but for the note that the attempt failed (and a new folder for it)."""
    work = re.compile(r"(.*/)?\.[^/]+\.work(/.*)?")
    after = {name: entry for name, entry in tiny.snapshot(root).items() if not work.fullmatch(name)}
    noted = [Path(name) for name in set(after) - set(before) if Path(name).name == FAILURE_FILE]
    for path in noted:
        del after[str(path)]
        for folder_ in path.parents:
            new = str(folder_) in after and str(folder_) not in before
            if new and not any(Path(name).is_relative_to(folder_) for name in set(after) - {str(folder_)}):
                del after[str(folder_)]
    return after == before


def is_progress(line):
    """Whether a line reports the start of the work; the error may come later."""
    started = r"(tiny_net on |tiny_net: images of |tiny_net_birds_\w+: \d+ x \d+ training |plan: |seed |/.*: seeds )"
    return re.match(started, line) is not None


@pytest.mark.parametrize(
    ("script", "argv"),
    [
        *(("extract_features", _argv(EXTRACT, changes, FAST)) for changes in (
            "", "--ckpt_file {w}/models/tiny/net/model.ckpt",
            "--models_root_dir {w}/models --output_dir - --dataset b2",
            "--dataset in1k --images_root - --in1k_images_root {w}/in1k",
        )),
        ("extract_features", _argv(LEVEL, "--dataset cog_l2", FAST)),
        ("logreg", _argv(LOGREG, "", SHORT)),
        ("logreg", _argv(LOGREG, ROOT + "--model tiny_net --dataset birds", SHORT)),
        ("logreg", _argv(LOGREG, "CLF.LR_INTV (1,1) CLF.WD_INTV (1e-6,1e-6) CLF.N_EPOCHS 1 CLF.N_TRIALS 0")),
        ("print_results", _argv(PRINT, "")),
    ],
)  # fmt: skip
def test_control_the_commands_are_right_but_for_what_a_case_changes(script, argv, workshop, run):
    make_seed_folder(workshop.root / SEED)
    code, _, error = run(script, argv)
    assert code == 0, error


# --- images that cannot be decoded: exit code 3


UNREADABLE = {
    "empty": lambda image: b"",
    "text": lambda image: b"this is no image",
    "web page": lambda image: b"<html>404</html>",
    "zeros": lambda image: b"\0" * 5000,
    "truncated": lambda image: image[:200],
    "bomb": lambda image: b"P6 100000 100000 255\n",
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_unreadable_images(kind, workshop, run):
    broken = ["crow/crow_0.png", "wren/wren_2.png"]
    for name in broken:
        path = workshop.root / "birds/test" / name
        path.write_bytes(UNREADABLE[kind](path.read_bytes()))
    before = tiny.snapshot(workshop.root)
    code, output, error = run("extract_features", _argv(EXTRACT, "--allow_failures 1", FAST))
    assert code == 3, error
    assert output == ""
    assert "Traceback" not in error
    last = error.splitlines()[-1]
    assert last.startswith("error: 2 of 9 images could not be decoded")
    assert f"{workshop.root}/out/.resume/failed_images.txt" in last
    assert "--allow_failures 2" in last
    lines = (workshop.root / "out/.resume/failed_images.txt").read_text().splitlines()
    listed = [line.split("\t") for line in lines]
    assert [name for name, _ in listed] == broken
    assert all(reason for _, reason in listed)
    after = tiny.snapshot(workshop.root)
    written = sorted(set(after) - set(before))
    assert all(name == "out" or name.startswith(("out/.resume", f"out/{FAILURE_FILE}")) for name in written)
    assert {name: entry for name, entry in after.items() if name not in written} == before


def test_all_images_unreadable(workshop, run):
    for path in (workshop.root / "birds/test").glob("*/*.png"):
        path.write_bytes(b"broken")
    for more in ("", "--allow_failures 9"):
        code, _, error = run("extract_features", _argv(EXTRACT, more, FAST))
        assert code == 3, error
        assert "9 of 9 images" in error.splitlines()[-1]
        assert "Traceback" not in error
        assert not (workshop.root / "out/X_Y.pth").exists()


def test_images_that_are_listed_but_not_there(workshop, run):
    (workshop.root / "in21k/n01440764/n01440764_0.JPEG").unlink()
    code, _, error = run("extract_features", _argv(LEVEL, "", FAST))
    assert code == 3, error
    (line,) = (workshop.root / "out/.resume/failed_images.txt").read_text().splitlines()
    assert line.startswith("n01440764/n01440764_0.JPEG\tFileNotFoundError")


def test_names_that_are_not_utf_8(workshop, run):
    folder_ = os.fsencode(workshop.root / "birds/test/crow")
    source = workshop.root / "birds/test/crow/crow_0.png"
    with open(os.path.join(folder_, b"caf\xe9.png"), "wb") as handle:
        handle.write(source.read_bytes())
    with open(os.path.join(folder_, b"n\xf6.png"), "wb") as handle:
        handle.write(b"broken")
    code, _, error = run("extract_features", _argv(EXTRACT, "", FAST))
    assert code == 3, error
    code, _, error = run("extract_features", _argv(EXTRACT, "--allow_failures 1", FAST))
    assert code == 0, error
    assert (workshop.root / "out/failed_images.txt").read_bytes().startswith(b"crow/n\xf6.png\t")
    assert b"crow/caf\xe9.png\n" in (workshop.root / "out/image_paths.txt").read_bytes()


# --- the same through real processes

REAL = [
    "extract: no arguments", "extract: checkpoint: TorchScript of another network",
    "extract: level: hostile split file, inside a numpy object array", "extract: loader that exits",
    "logreg: hostile features, zip container", "logreg: NaN", "print: hostile logs, os.system",
]  # fmt: skip


@pytest.mark.parametrize("name", REAL)
@pytest.mark.slow
def test_through_a_real_process(name, workshop, python, repository):
    case = next(case for case in CASES if case.name == name)
    if case.spoil is not None:
        case.spoil(workshop)
    before = tiny.snapshot(workshop.root)
    argv = [word.replace("{w}", str(workshop.root)) for word in case.argv]
    process = subprocess.run(
        [python, str(repository / f"{case.script}.py"), *argv],
        cwd=workshop.root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    assert not (workshop.root / "canary").exists()
    assert tiny.snapshot(workshop.root) == before
    check_message(process.stderr, case, workshop)
