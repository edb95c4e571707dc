"""Wrong input: one clear line, exit code 2, no code of the input is run, and nothing is written or changed.

Each row of the tables changes a right command line and a workshop of files, and says what the line names.
"""

import io
import itertools
import pickle
import re
import shlex
import shutil

import hostile
import numpy as np
import pytest
import tiny
import torch
from result_folders import make_logs, make_seed_folder

from cog.commands import extract_features, logreg, print_results, start

SCRIPTS = {"extract_features": extract_features, "logreg": logreg, "print_results": print_results}

#: Right command lines; "{w}" is the folder of the workshop.
LINES = {
    "extract": "extract_features --model tiny_net --model_loader {w}/my_net.py:load_my_model --split test "
    "--dataset birds --images_root {w}/birds --output_dir {w}/out",
    "level": "extract_features --model tiny_net --model_loader {w}/my_net.py:load_my_model --split test "
    "--dataset cog_l1 --output_dir {w}/out --imagenet_images_root {w}/in21k "
    "--cog_levels_mapping_file {w}/levels.pkl --cog_concepts_split_file {w}/split.pkl",
    "logreg": "logreg --train_features_dir {w}/models/tiny/net/birds/features_train "
    "--test_features_dir {w}/models/tiny/net/birds/features_test --output_dir {w}/out",
    "root": "logreg --models_root_dir {w}/models --model tiny_net --dataset birds --device cpu",
    "print": "print_results --models_root_dir {w}/results",
}

#: Keys at the end of the lines.
KEYS = {
    "extract_features": "FT_EXTRACT.N_WORKERS 0 FT_EXTRACT.IMAGE_RESIZE_SIZE 16 "
    "FT_EXTRACT.IMAGE_CROP_SIZE 12",
    "logreg": "CLF.N_EPOCHS 2 CLF.N_TRIALS 1",
    "print_results": "",
}

TRAIN_XY = "models/tiny/net/birds/features_train/X_Y.pth"
TEST_XY = "models/tiny/net/birds/features_test/X_Y.pth"
SEED = "results/tiny/net/birds/eval_logreg/seed-22"
LOGS = SEED + "/final-lr-10.5_wd-1e-06/logs.pkl"

#: Line | flags that change (the value - takes a flag away) | what the message names | changes of files.
FLAGS = """
extract | --model - --dataset - --split - | required; --model; --dataset; --split
extract | --model sup_resnet51 --model_loader - | sup_resnet51; sup_resnet50
extract | --dataset ../birds | --dataset '../birds'
extract | --dataset in2k --images_root - | in2k; in1k; --images_root
extract | --dataset birds in1k crows --output_dir - --models_root_dir {w} | --images_root; names birds, crows
extract | --split val | --split; 'val'; train, test
extract | --split , | --split; at least one value
extract | --output_dir - | --models_root_dir; --output_dir
extract | --output_dir {w}/my_net.py | {w}/my_net.py is a file
extract | --output_dir /proc/cog/features | /proc/cog
extract | --models_root_dir {w}/absent --output_dir - | --models_root_dir {w}/absent; does not exist
extract | --model sup_resnet50 --model_loader - --models_root_dir {w}/models --output_dir - | sup/resnet50
extract | --model sup_resnet50 --model_loader - --ckpt_file {w}/absent.pth | absent.pth; does not exist
extract | --model sup_resnet50 --model_loader - --ckpt_file /dev/zero | --ckpt_file /dev/zero
extract | --model_loader {w}/my_net.py | --model_loader; FILE.py:load_my_model
extract | --dataset in1k --images_root - --in1k_images_root {w}/birds | {w}/birds/val
level | --cog_levels_mapping_file {w}/absent | --cog_levels_mapping_file; {w}/absent; does not exist
level | --cog_concepts_split_file - | cog_l1; --cog_concepts_split_file
level | --dataset cog_l3 | cog_l3; {w}/levels.pkl; cog_l1 to cog_l2
logreg | --train_features_dir - --test_features_dir - --output_dir - | --models_root_dir; --train_features_dir
logreg | --output_dir - | --output_dir
logreg | --output_dir {w}/my_net.py | {w}/my_net.py; Not a directory
logreg | --seeds 22,x | --seeds; 'x'
logreg | CLF.N_TRIALS 0 | CLF.N_TRIALS 0; CLF.LR_INTV
logreg | CLF.EPOCHS 3 | CLF.EPOCHS; CLF.N_EPOCHS
logreg | --n_shot 2 CLF.N_SHOT 2 | --n_shot and CLF.N_SHOT are both given
logreg | EVAL.NAME mlp | EVAL.NAME mlp is the name of other runs
root | --model other_net | {w}/models/other/net/birds/features_train
print | | --models_root_dir {w}/results; does not exist
print | --n_shot 4 CLF.N_SHOT 8 | --n_shot; CLF.N_SHOT | run
print | --export {w}/absent/x.json | --export {w}/absent/x.json | run
print | --models_root_dir - | --import or --published
print | --models_root_dir - --logreg_root_dir {w}/birds | no result of any model; under {w}/birds
print | --seeds 1 2 | with seeds 1 2 | run
print | --model nounderscore | --model 'nounderscore' | run
print | --dataset ../x | on ../x | run
print | --model sup_resnet5 | did you mean sup_resnet50? | run
print | --relative_to clip_resnet50 | --published to read the paper's | run
print | --show drop | --show drop needs results on in1k | run
print | --import {w}/absent.json | {w}/absent.json | run
print | --export {w}/birds | is a folder | run
print | --report {w}/split.pkl | add --overwrite | run
print | --figures {w}/split.pkl | is a file | run
print | --figures {w}/birds | add --overwrite | run
"""

FILES = """
extract | --ckpt_file {w}/weights.pth | loader of model tiny_net; {w}/weights.pth | write weights.pth b''
extract | | {w}/my_net.py; SyntaxError | write my_net.py b'def load_my_model(:'
extract | | tiny_net; ValueError: a message | loader raise ValueError('a message\\nof two lines')
extract | | tiny_net; images of 12 x 12 pixels (RuntimeError: | loader return torch.nn.Linear(1, 1)
extract | | tiny_net; , 0) | loader return torch.nn.Identity(), lambda x: x[:, :0, 0, 0]
extract | | crow/crow_0.png; NaN | loader return torch.nn.Identity(), lambda x: x.mean((2, 3)) / 0
extract | | {w}/birds/test; 2 of 5; empty | folder birds/test/empty; write birds/test/notes/a.txt b'x'
extract | | line break | write birds/test/crow/a\\nb.png b''
extract | | {w}/out; X_Y.pth/ | write out/X_Y.pth/thesis.tex b'years of work'
extract | | split: train -> test | write out/X_Y.pth b''; write JSON b'{"identity": {"split": "train"}}'
level | | {w}/levels.pkl; complete | cut levels.pkl
level | | {w}/levels.pkl | pickle levels.pkl [["../n01440764"]]
level | | {w}/levels.pkl | pickle levels.pkl [[DOUBLED]]
level | | {w}/levels.pkl | pickle levels.pkl [np.array("n01440764")]
level | | {w}/ | pickle split.pkl dict.fromkeys(tiny.WNIDS, {"train": ONE, "test": np.arange(3)})
level | | {w}/split.pkl; n01440764 | pickle split.pkl {"n01443537": {"train": ONE, "test": OTHER}}
level | | {w}/in21k; n01443537 | remove in21k/n01443537
logreg | | {w}/XY; complete | cut XY
logreg | | {w}/XY; not a readable torch file | write XY b'hello world'
logreg | | {w}/XY; (240,) | features XY dict(X=x.flatten())
logreg | | {w}/XY; dense | features XY dict(X=x.to_sparse())
logreg | | {w}/XY; in 32 bytes; every value | features XY dict(X=x[:1].clone().expand(len(y), 8))
logreg | | {w}/XY; 30 of 30 rows; row 0 | features XY dict(X=x / 0)
logreg | | 8; 6; dimensions | features TEST dict(X=x[:, :6])
logreg | | test labels 7; no training features | features TEST dict(Y=y.where(y != 2, 7))
logreg | | CLF.N_TRIALS 0 | features XY dict(X=x[[0, 10, 20]], Y=y[[0, 10, 20]])
logreg | CLF.LR_INTV (1e37,1e38) CLF.NORM_FTS False CLF.BATCH_SIZE 4 | diverged | features XY dict(X=x*1e6)
logreg | | {w}/out; --overwrite | write out/final-lr-1.0_wd-0.0/logs.pkl b''
logreg | | {w}/out; seed: None -> 22 | write out/results.json b'{"status": "complete", "identity": {}}'
print | | {w}/results | run; remove LOGS
print | | {w}/results | run; pickle LOGS make_logs(top1=101.0)
"""

#: Files that would run code when they are read without restriction; tests/runtime has all kinds.
HOSTILE = """
print | | {w}/results; 1 folders could not be counted | run; pickles LOGS
level | | refused to read {w}/split.pkl | pickles split.pkl
level | | refused to read {w}/levels.pkl | pickles levels.pkl
logreg | | refused to read {w}/TEST | torches TEST
extract | --ckpt_file {w}/weights.pth | loader of model tiny_net | torches weights.pth
"""


def rows(table: str) -> list[tuple[str, ...]]:
    return [(*map(str.strip, line.split("|", 3)), "")[:4] for line in table.strip().splitlines()]


NAMES = {"XY": TRAIN_XY, "TEST": TEST_XY, "LOGS": LOGS, "JSON": "out/features.json"}


def spoil(w: tiny.Workshop, text: str) -> None:
    """Change the workshop: ``VERB PATH REST``, several separated by ``; ``."""
    for part in filter(None, text.split("; ")):
        verb, _, rest = part.partition(" ")
        if verb == "run":
            make_seed_folder(w.root / SEED)
            continue
        if verb == "loader":
            (w.root / "my_net.py").write_text(f"import torch\ndef load_my_model(a):\n    {rest}")
            continue
        name, _, value = rest.partition(" ")
        path = w.root / NAMES.get(name, name.replace("\\n", "\n"))
        if verb == "folder":
            path.mkdir(parents=True)
        elif verb == "remove":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif verb == "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(w, verb, value))


def content(w: tiny.Workshop, verb: str, value: str) -> bytes:
    if verb in ("pickles", "torches"):
        kinds = hostile.PICKLES if verb == "pickles" else hostile.TORCH_FILES
        return next(iter(kinds.values()))(w.root / "canary")
    doubled: list = []  # 2 ** 40 entries when written out, 40 in a file
    for _ in range(40):
        doubled = [doubled, doubled]
    x, y = tiny.make_xy()
    one, other = np.array(["n01440764/a.JPEG"]), np.array(["n01440764/b.JPEG"])
    names = {"DOUBLED": doubled, "ONE": one, "OTHER": other, "x": x, "y": y}
    made = eval(value, {"np": np, "tiny": tiny, "torch": torch, "make_logs": make_logs} | names)
    if verb == "features":
        made = {"X": x, "Y": y, "name": "tiny_net_birds_train"} | made
        torch.save({key: entry for key, entry in made.items() if entry is not None}, buffer := io.BytesIO())
        return buffer.getvalue()
    return pickle.dumps(made) if verb == "pickle" else made


def command(w, line: str, changes: str) -> list[str]:
    """Return the words of a command line after its changes."""
    changed, (script, *words) = shlex.split(changes), shlex.split(LINES[line])
    gone = {flag for flag, value in itertools.pairwise(changed) if value == "-"} | {"-"}
    kept = [pair for pair in zip(words[::2], words[1::2], strict=True) if pair[0] not in changed]
    words = [*itertools.chain(*kept), *KEYS[script].split(), *(word for word in changed if word not in gone)]
    return [script, *(word.replace("{w}", str(w.root)) for word in words)]


@pytest.fixture
def run(workshop, capsys, monkeypatch):
    """Return a function that runs a command as from a shell, and returns exit code, output and errors."""
    monkeypatch.chdir(workshop.root)
    monkeypatch.setattr("sys.argv", ["script.py"])

    def run_(script, *argv):
        with pytest.raises(SystemExit) as stop:
            start.run(SCRIPTS[script].main, list(argv))
        return stop.value.code, *capsys.readouterr()

    return run_


def check(w, before, says: str, code: int, output: str, error: str) -> None:
    lines = error.splitlines()
    told = [line for line in lines if re.match(r"(error|\w+\.py: error): ", line)]
    assert code == 2 and told == lines[-1:] and "Traceback" not in error and len(lines[-1]) < 1500, error
    for text in says.split("; "):
        text = text.replace("{w}", str(w.root))
        for name, path in NAMES.items():
            text = text.replace(f"/{name}", f"/{path}") if text.endswith(f"/{name}") else text
        assert text in lines[-1], (text, lines[-1])
    assert output == "" and not (w.root / "canary").exists()
    after = tiny.snapshot(w.root)
    new = {name for name in after if name not in before}
    assert all(name.partition("/")[0] == ".out.work" for name in new), new  # the note that the attempt failed
    assert {name: entry for name, entry in after.items() if name not in new} == before


@pytest.mark.parametrize(("line", "changes", "says", "spoiled"), [*rows(FLAGS), *rows(FILES), *rows(HOSTILE)])
def test_bad_input_is_one_line(line, changes, says, spoiled, workshop, run):
    spoil(workshop, spoiled)
    before = tiny.snapshot(workshop.root)
    check(workshop, before, says, *run(*command(workshop, line, changes)))


@pytest.mark.parametrize("line", LINES)
def test_control_the_lines_are_right(line, workshop, run):
    make_seed_folder(workshop.root / SEED)
    code, _, error = run(*command(workshop, line, ""))
    assert code == 0, error
