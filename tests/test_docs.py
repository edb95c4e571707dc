"""The documentation is true: commands run, names exist, links lead somewhere.

The pages are README.md, CONTRIBUTING.md and docs/*.md. With --slow, every ``bash`` block is executed on inputs of a few
kilobytes, unless ``<!-- needs: WHAT -->`` stands before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tiny

from cog import config, constants
from cog.commands import COMMANDS, analyze_features, extract_features, logreg
from cog.data import datasets
from cog.models import models_file

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")),
]

#: Commands that another test runs, or that are no commands of this toolkit.
NOT_HERE = ("bash bash-scripts/quickstart.sh\n", "ruff check")

#: A Python that makes commands quick.
PYTHON = """#!/bin/bash
classifier=(--device cpu CLF.N_TRIALS 1 CLF.N_EPOCHS 2 CLF.MLP_HIDDEN 4)
case "$*" in
    *logreg.py*) exec {python} "$@" "${{classifier[@]}}" ;;
    *extract_features.py*) exec {python} "$@" --device cpu FT_EXTRACT.N_WORKERS 0 ;;
    *analyze_features.py*) exec {python} "$@" --device cpu ;;
    "-m pytest "*) exec {python} "$@" --collect-only -q tests/runtime/test_cli.py ;;
    *) exec {python} "$@" ;;
esac
"""


@dataclasses.dataclass
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    needs: str | None


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    listed = []
    text = read(page)
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        needs = re.search(r"<!-- needs: (.+) -->\s*\Z", text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        listed.append(Block(page, line, match[1], match[2], needs and needs[1]))
    return listed


def prose(page: str) -> str:
    """Return a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)


# --- form and links


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_their_form(page):
    text = read(page)
    assert "TODO" not in text
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(page))
    assert len(re.findall(r"^<!-- needs:", text, re.MULTILINE)) == sum(
        block.needs is not None for block in blocks(page)
    )
    if page == "README.md":
        assert len(text.splitlines()) <= 250
    else:  # it begins with what to type
        assert blocks(page)[0].language == "bash" and blocks(page)[0].line <= 5


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)<>\s]+)\)|src=\"([^\"]+)\"", prose(page)):
        link = "".join(target)
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        path = (REPOSITORY / page).parent / file if file else REPOSITORY / page
        assert path.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(os.path.relpath(path, REPOSITORY)), f"{page}: {link}"


def test_every_page_is_reached_from_the_first_and_every_picture_is_shown():
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", read("README.md")))
    assert {page for page in PAGES if page.startswith("docs/")} <= linked
    for path in (REPOSITORY / "docs/images").iterdir():
        assert path.stat().st_size <= 150_000, path
        assert any(path.name in read(page) for page in PAGES), f"{path} is shown nowhere"


# --- names


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_the_repository_exist(page):
    folders = "cog|tests|configs|bash-scripts|prepare_models"
    for path in set(re.findall(rf"(?<![\w/.$-])(?:{folders})/[\w./-]*\.\w+", read(page))):
        assert (REPOSITORY / path).exists() or path == "configs/clip.yaml", f"{page}: {path}"  # an example


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module: object = importlib.import_module("cog")
    parts = name.split(".")
    for position, part in enumerate(parts[1:], 2):
        try:
            module = importlib.import_module(".".join(parts[:position]))
        except ModuleNotFoundError:
            if not hasattr(module, part):
                return False
            module = getattr(module, part)
    return True


@pytest.mark.parametrize("page", PAGES)
def test_dotted_names_exist(page):
    for name in set(re.findall(r"(?<![\w/.-])cog(?:\.[A-Za-z_]\w*)+(?!\w*/)", read(page))):
        assert name.endswith(".git") or resolves(name), f"{page}: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_configuration_keys_exist(page):
    keys = set(config.flat(config.default_cfg()))
    sections = "|".join({key.partition(".")[0] for key in keys})
    mentioned = set(re.findall(rf"\b(?:{sections})\.[A-Z_.]*[A-Z]", read(page)))
    assert mentioned <= keys | {"FT_EXTRACT.IMAGE_NORM"}, mentioned - keys


@pytest.fixture(scope="module")
def flags() -> set[str]:
    # of pytest and its suite; of torchrun; of venv and pip; of sbatch
    known = {
        "--slow",
        "--collect-only",
        "--nproc_per_node",
        "--upgrade",
        "--partition",
        "--account",
        "--shm-size",
        "--time",
    }
    for command in COMMANDS:
        module = importlib.import_module(command.module)
        for words in [["list"], ["check"], ["top1"], ["fetch"]] if command.name == "models" else [[]]:
            shown: list[str] = []
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
                patch.setattr(
                    "argparse.ArgumentParser._print_message", lambda self, text, file=None: shown.append(text)
                )
                module.main([*words, "--help"])
            known |= set(re.findall(r"--[a-z][a-z0-9_]*", "".join(shown)))
    return known


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page, flags):
    text = re.sub(r"^ruff .*$", "", read(page), flags=re.MULTILINE)
    mentioned = set(re.findall(r"(?<![\w<!-])--[a-z][a-z0-9_-]*", text))
    assert mentioned <= flags, mentioned - flags


@pytest.mark.parametrize("page", PAGES)
def test_variables_of_the_drivers_exist(page):
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            if match := re.match(r"bash (bash-scripts/\S+\.sh) (.*)", line):
                variables = (REPOSITORY / match[1].replace("slurm/submit_", "")).read_text()
                for name in re.findall(r"(?<![\w.-])([a-z][a-z0-9_]*)=", re.sub(r'"[^"]*"', "", match[2])):
                    assert re.search(rf'^{name}="', variables, re.MULTILINE), (
                        f"{page}: {match[1]} has no {name}"
                    )


# --- execution

_NETWORK = """
import torch


def load_my_model(init_args):
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(3), torch.nn.Flatten()), None
"""


def own_models() -> str:
    """Return the file of models that the documentation shows."""
    (text,) = (b.text for b in blocks("docs/own-models.md") if b.text.startswith("# models.yaml\n"))
    return text


def test_the_models_file_of_the_page_is_one(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(own_models())
    assert [models_file.parse(file, name, entry).label for name, entry in models_file.read(file).items()]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder in which the pages' commands work: a checkout, small data, and results of two models."""
    import torch
    import torchvision

    root = tmp_path_factory.mktemp("documentation") / "checkout"
    root.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name != "cog-quickstart" and not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    (root / "my_net.py").write_text(_NETWORK)
    (root / "models.yaml").write_text(own_models())
    world = root / "cog-quickstart"
    seen = [f"n0000000{i}" for i in range(3)]
    unseen = [f"n1000000{i}" for i in range(10)]
    for split, n_images, seed in (("train", 10, 1), ("val", 3, 2)):
        tiny.write_class_folders(world / "in1k" / split, classes=seen, n_images=n_images, seed=seed)
    tiny.write_class_folders(world / "in21k", classes=unseen, n_images=12, seed=3)
    (world / "levels").mkdir()
    levels = world / "levels" / constants.LEVELS_FILE
    tiny.write_levels_file(levels, [unseen[i : i + 2] for i in range(0, 10, 2)])
    tiny.write_split_file(world / "levels" / constants.SPLIT_FILE, world / "in21k", n_test=3)
    for name in ("levels.pkl", "published.pkl"):
        shutil.copy(levels, root / name)
    shutil.copy(world / "levels" / constants.SPLIT_FILE, root / "split.pkl")
    for split, seed in (("train", 4), ("test", 5)):
        folder, birds = root / "data/birds" / split, ("crow", "duck", "wren")
        tiny.write_class_folders(folder, classes=birds, n_images=6, suffix=".png", seed=seed)
    for name in ("in1k", "in21k"):
        (root / "data" / name).symlink_to(world / name)
    models = root / "models"
    checkpoint = root.with_name("my.ckpt")  # outside, because it is large and the folder is copied
    torch.save(torchvision.models.resnet18().state_dict(), checkpoint)
    (models / "mine/net").mkdir(parents=True)
    for link in (root / "my.ckpt", models / "mine/net/model.ckpt"):
        link.symlink_to(checkpoint)
    images = [
        "--in1k_images_root", str(world / "in1k"), "--imagenet_images_root", str(world / "in21k"),
        "--cog_levels_mapping_file", str(levels),
        "--cog_concepts_split_file", str(world / "levels" / constants.SPLIT_FILE),
    ]  # fmt: skip
    with contextlib.chdir(root):
        for model, size in (("sup_resnet50", "16"), ("dino_resnet50", "12")):
            (models / model.replace("_", "/")).mkdir(parents=True)
            common = ["--model", model, "--models_root_dir", str(models), "--device", "cpu"]
            extract_features.main(
                [*common, "--dataset", *constants.DATASETS, "--split", *constants.SPLITS,
                 "--model_loader", "my_net.py:load_my_model", *images, "FT_EXTRACT.N_WORKERS", "0",
                 "FT_EXTRACT.IMAGE_RESIZE_SIZE", size, "FT_EXTRACT.IMAGE_CROP_SIZE", size]
            )  # fmt: skip
            runs = [*common, "CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2", "--seeds", "22", "37"]
            logreg.main([*runs, "--dataset", *constants.DATASETS, "--n_shot", "0", "1"])
            analyze_features.main([*common, "--dataset", "cog_l5"])
    shutil.copytree(models, world / "models", symlinks=True)
    return root


def executable(page: str) -> str:
    """Return the commands of a page as a script."""
    chosen = [block for block in blocks(page) if block.language == "bash" and block.needs is None]
    return "".join(
        line + "\n"
        for block in chosen
        for line in block.text.splitlines()
        if not f"{line}\n".startswith(NOT_HERE)
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if executable(page)])
def test_commands_run(page, template, tmp_path, python):
    root = tmp_path / "checkout"
    shutil.copytree(template, root, symlinks=True)
    for block in blocks(page):
        if block.language == "python" and (match := re.match(r"# (\w+\.py)\n", block.text)):
            (root / match[1]).write_text(block.text)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/python"
    program.write_text(PYTHON.format(python=python))
    program.chmod(0o755)
    script = re.sub(r"(?<![\w./-])/(models|data)\b", rf"{root}/\1", executable(page))
    environment = {**os.environ, "COG_PYTHON": str(program), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-exuo", "pipefail", "-c", script], cwd=root, env=environment, capture_output=True, text=True,
        check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"


def write_network(page: str) -> None:
    """Write the loader that a page shows, and a checkpoint for it, into the current folder."""
    import torch
    import torchvision

    (loader,) = (block.text for block in blocks(page) if block.text.startswith("# my_net.py\n"))
    Path("my_net.py").write_text(loader)
    torch.save(torchvision.models.resnet18().state_dict(), "my.ckpt")


@pytest.mark.parametrize("page", ["README.md", "docs/own-models.md"])
def test_loaders_in_the_pages_work(page, tmp_path, monkeypatch):
    import torch

    import cog

    monkeypatch.chdir(tmp_path)
    write_network(page)
    backbone = cog.load_backbone("mine_resnet18", "my.ckpt", loader="my_net.py:load_my_model")
    with torch.inference_mode():
        assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, 512)


@pytest.mark.slow
def test_a_network_is_evaluated_in_a_notebook(tmp_path, monkeypatch, capsys):
    (code,) = (block.text for block in blocks("docs/own-models.md") if "cog.evaluate" in block.text)
    monkeypatch.chdir(tmp_path)
    write_network("docs/own-models.md")
    for split, n_images in (("train", 4), ("test", 2)):
        tiny.write_class_folders(tmp_path / "birds" / split, classes=("crow", "duck"), n_images=n_images)
    exec(compile(code, "own-models.md", "exec"), {})
    assert re.search(r"^all +[\d.]+ ± [\d.]+ ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_are_python(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


def test_the_table_of_data_sets_is_up_to_date():
    page = read("docs/data.md")
    for dataset in datasets.DATASETS.values():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{dataset.members[0]}`")]
        assert all(f"`--{flag}`" in row for flag in dataset.flags) and f"`{dataset.layout}`" in row
