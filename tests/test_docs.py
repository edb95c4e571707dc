"""The documentation is true: commands run, names exist, links lead somewhere.

With --slow, ``bash`` blocks are executed on small inputs, except after ``<!-- needs: WHAT -->``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tiny

from cog import config, constants
from cog.commands import COMMANDS, analyze_features, extract_features, logreg, module_of
from cog.data import datasets
from cog.models import models_file

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = ["CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((REPOSITORY / "docs").glob("*.md")))]
PAGES = ["README.md", *DOCS]
BLOCK = re.compile(r"^(?P<needs><!-- needs: [^\n]+ -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

#: A Python that makes commands quick.
PYTHON = """#!/bin/bash
case "$*" in
    *logreg.py*) exec {python} "$@" --device cpu CLF.N_TRIALS 1 CLF.N_EPOCHS 2 CLF.MLP_HIDDEN 4 ;;
    *extract_features.py*) exec {python} "$@" FT_EXTRACT.N_WORKERS 0 ;;
    "-m pytest "*) exec {python} "$@" --collect-only ;;
    *) exec {python} "$@" ;;
esac
"""


#: Flags of pytest, torchrun, docker, sbatch and ruff.
OTHER_FLAGS = "--slow --collect-only --nproc_per_node --partition --gres --time --shm-size --check"


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language; of ``bash`` those that can be executed here."""
    found = BLOCK.finditer(read(page))
    return [each[3] for each in found if each[2] == language and (language != "bash" or not each["needs"])]


def block(page: str, language: str, part: str) -> str:
    """Return the only block of a page that contains a text."""
    return "".join(each for each in blocks(page, language) if part in each)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", read(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_pages_are_short_begin_with_a_command_and_are_reached_from_the_first():
    assert len(read("README.md").splitlines()) <= 200
    assert sum(len(read(page).split()) for page in DOCS) <= 9000
    for page in DOCS:
        assert re.match(r"# .+\n\n(<!-- needs: .+ -->\n)?```bash\n", read(page)), page
        assert f"]({page})" in read("README.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_paths_modules_and_keys_exist_and_python_is_python(page):
    text = read(page)
    for target in re.findall(r"\]\(([^)<>\s]+)\)|src=\"([^\"]+)\"", BLOCK.sub("", text)):
        file, _, anchor = "".join(target).partition("#")
        if not file.startswith("https://"):
            path = (REPOSITORY / page).parent / file if file else REPOSITORY / page
            assert path.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(os.path.relpath(path, REPOSITORY)), f"{page}: {target}"
    for code in blocks(page, "python"):
        compile(code, page, "exec")
    folders = r"(?<![\w/.$-])(?:cog|tests|configs|bash-scripts|prepare_models)"
    for path in re.findall(rf"{folders}/[\w./-]*\.\w+", text):
        assert (REPOSITORY / path).exists(), f"{page}: {path}"
    for name in set(re.findall(r"(?<![\w/.-])cog(?:\.[A-Za-z_]\w*)+(?!\w*/)", text)):
        assert name.endswith(".git") or pkgutil.resolve_name(name) is not None
    keys = set(config.flat(config.default_cfg()))
    sections = "|".join(config.default_cfg())
    assert set(re.findall(rf"\b(?:{sections})\.[A-Z_.]*[A-Z]", text)) <= keys | {"FT_EXTRACT.IMAGE_NORM"}


@pytest.fixture(scope="module")
def flags() -> set[str]:
    shown: list[str] = []
    for command in COMMANDS:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
            name = "argparse.ArgumentParser._print_message"
            patch.setattr(name, lambda self, text, file=None: shown.append(text))
            importlib.import_module(module_of(command)).main(["--help"])
    return set(re.findall(r"--[a-z][a-z0-9_]*", "".join(shown))) | set(OTHER_FLAGS.split())


@pytest.mark.parametrize("page", PAGES)
def test_flags_and_variables_of_the_drivers_exist(page, flags):
    assert set(re.findall(r"(?<![\w<!-])--[a-z][a-z0-9_-]*", read(page))) <= flags
    lines = read(page).replace("\\\n", " ")
    for script, words in re.findall(r"^bash (bash-scripts/\S+\.sh) (.*)", lines, re.MULTILINE):
        for name in re.findall(r"(?<![\w.-])([a-z][a-z0-9_]*)=", re.sub(r'"[^"]*"', "", words)):
            assert re.search(rf'^{name}="', read(script), re.MULTILINE), f"{page}: {script} has no {name}"


def test_the_models_file_of_the_page_is_one_and_the_table_of_data_sets_is_up_to_date(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(block("docs/own-models.md", "yaml", "# models.yaml\n"))
    assert [
        models_file.parse(file, name, entry).get("label") for name, entry in models_file.read(file).items()
    ]
    for dataset in datasets.DATASETS.values():
        first = "cog_l1" if dataset.name == datasets.LEVELS else dataset.name
        (row,) = re.findall(rf"^\| `{first}`.*", read("docs/data.md"), re.MULTILINE)
        assert all(f"`--{flag}`" in row for flag in dataset.flags) and f"`{dataset.layout}`" in row


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """A folder with the loader that the pages show, and a checkpoint for it."""
    import torch
    import torchvision

    folder = tmp_path_factory.mktemp("network")
    loaders = {block(page, "python", "# my_net.py\n") for page in ("README.md", "docs/own-models.md")}
    (folder / "my_net.py").write_text(*loaders)
    torch.save(torchvision.models.resnet18().state_dict(), folder / "my.ckpt")
    return folder


@pytest.fixture(scope="module")
def template(network, tmp_path_factory) -> Path:
    """A folder in which the pages' commands work: a checkout, small data, and results of two models."""
    root = tmp_path_factory.mktemp("documentation") / "checkout"
    root.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name != "cog-quickstart" and not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    world, models = root / "cog-quickstart", root / "models"
    unseen = [f"n1000000{i}" for i in range(10)]
    for split, n_images in (("train", 10), ("val", 3)):
        tiny.write_class_folders(world / "in1k" / split, n_images=n_images)
    tiny.write_class_folders(world / "in21k", classes=unseen, n_images=12)
    (world / "levels").mkdir()
    levels = world / "levels" / constants.LEVELS_FILE
    tiny.write_levels_file(levels, [unseen[i : i + 2] for i in range(0, 10, 2)])
    split_file = tiny.write_split_file(levels.with_name(constants.SPLIT_FILE), world / "in21k", n_test=3)
    for name, source in (("levels", levels), ("published", levels), ("split", split_file)):
        (root / f"{name}.pkl").symlink_to(source)
    for split in constants.SPLITS:
        tiny.write_class_folders(root / "data/birds" / split, classes=("crow", "duck"), n_images=6)
    for name in ("in1k", "in21k"):
        (root / "data" / name).symlink_to(world / name)
    (root / "models.yaml").write_text(block("docs/own-models.md", "yaml", "# models.yaml\n"))
    (models / "mine/net").mkdir(parents=True)
    for link in (root / "my.ckpt", models / "mine/net/model.ckpt"):
        link.symlink_to(network / "my.ckpt")
    shutil.copy(network / "my_net.py", root)
    tiny.write_loader(root / "their_net.py")
    common = f"--model sup_resnet50 dino_resnet50 --models_root_dir {models} --dataset cog_l5"
    both = f"{common} {' '.join(constants.DATASETS[:-1])}"
    images = f"--in1k_images_root {world}/in1k --imagenet_images_root {world}/in21k --split train test"
    files = f"--cog_levels_mapping_file {levels} --cog_concepts_split_file {split_file}"
    how = "--model_loader their_net.py:load_my_model FT_EXTRACT.N_WORKERS 0"
    with contextlib.chdir(root):
        extract_features.main(f"{both} {images} {files} {how}".split())
        logreg.main(f"{both} CLF.N_TRIALS 1 CLF.N_EPOCHS 2 --seeds 22 37 --n_shot 0 1".split())
        analyze_features.main(common.split())
    shutil.copytree(models, world / "models", symlinks=True)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page, template, tmp_path, python):
    root = tmp_path / "checkout"
    shutil.copytree(template, root, symlinks=True)
    program = tmp_path / "python"
    program.write_text(PYTHON.format(python=python))
    program.chmod(0o755)
    script = re.sub(r"(?<![\w./-])/(models|data)\b", rf"{root}/\1", "".join(blocks(page, "bash")))
    script = script.replace("bash bash-scripts/quickstart.sh\n", "")
    environment = {**os.environ, "COG_PYTHON": str(program), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = ["bash", "-exuo", "pipefail", "-c", script]
    subprocess.run(bash, cwd=root, env=environment, check=True, timeout=1200)
