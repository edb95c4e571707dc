"""The documentation is true: commands run, names exist, links lead somewhere.

With --slow, blocks of bash and Python are executed on small inputs, except after ``<!-- needs: WHAT -->``.
"""

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
import torch

from cog import config, constants
from cog.commands import COMMANDS, extract_features, logreg, module_of
from cog.data import datasets
from cog.models import models_file

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = sorted(f"docs/{path.name}" for path in REPOSITORY.glob("docs/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCS]
BLOCK = re.compile(r"^(<!-- needs: [^\n]+ -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

#: A Python that makes commands quick.
PYTHON = """#!/bin/bash
few="--model sup_resnet50 --dataset in1k cog_l5 --seeds 22"
case "$*" in
    *logreg.py*) exec {python} "$@" --device cpu CLF.N_TRIALS 1 CLF.N_EPOCHS 2 CLF.MLP_HIDDEN 4 ;;
    *extract_features.py*) exec {python} "$@" FT_EXTRACT.N_WORKERS 0 ;;
    *--figures* | *"--report report"*) exec {python} "$@" $few ;;
    *) exec {python} "$@" ;;
esac
"""

#: Flags of pytest, torchrun, docker, sbatch and ruff.
OTHER_FLAGS = "--slow --collect-only --nproc_per_node --partition --gres --time --shm-size --check"


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def block(page: str, first_line: str) -> str:
    """Return the block of a page that begins with a line."""
    (text,) = (text for _, _, text in BLOCK.findall(read(page)) if text.startswith(f"{first_line}\n"))
    return text


def script(page: str) -> str:
    """Return the blocks that can be executed here, as one script; a Python block with a name is a file."""
    found = ""
    for needs, language, text in BLOCK.findall(read(page)):
        named = re.match(r"# (\w+\.py)", text)
        program = f"cat > {named[1]}" if named else "python -"
        made = {"bash": text, "python": f"{program} << 'END'\n{text}END\n"}
        found += "" if needs else made.get(language, "")
    return found


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", read(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_pages_are_short_begin_with_a_command_and_are_reached_from_the_first():
    assert len(read("README.md").splitlines()) <= 200
    assert sum(len(read(page).split()) for page in PAGES) <= 9000
    for page in PAGES[1:]:
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
    for _, language, code in BLOCK.findall(text):
        assert language != "python" or compile(code, page, "exec")
    folders = r"(?<![\w/.$-])(?:cog|tests|configs|bash-scripts|prepare_models)"
    for path in re.findall(rf"{folders}/[\w./-]*\.\w+", text):
        assert (REPOSITORY / path).exists(), f"{page}: {path}"
    for name in set(re.findall(r"(?<![\w/.-])cog(?:\.[A-Za-z_]\w*)+(?!\w*/)", text)):
        assert pkgutil.resolve_name(name) is not None
    keys = set(config.flat(config.default_cfg()))
    sections = "|".join(config.default_cfg())
    assert set(re.findall(rf"\b(?:{sections})\.[A-Z_.]*[A-Z]", text)) <= keys | {"FT_EXTRACT.IMAGE_NORM"}


def test_flags_and_variables_of_the_drivers_exist(capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            importlib.import_module(module_of(command)).main(["--help"])
    flags = {*re.findall(r"--[a-z][a-z0-9_]*", capsys.readouterr().out), *OTHER_FLAGS.split()}
    for page in PAGES:
        assert set(re.findall(r"(?<![\w<!-])--[a-z][a-z0-9_-]*", read(page))) <= flags
        lines = read(page).replace("\\\n", " ")
        for driver, words in re.findall(r"^bash (bash-scripts/\S+\.sh) (.*)", lines, re.MULTILINE):
            for name in re.findall(r"(?<![\w.-])([a-z][a-z0-9_]*)=", re.sub(r'"[^"]*"', "", words)):
                assert re.search(rf'^{name}="', read(driver), re.MULTILINE), f"{page}: {driver} has no {name}"


def test_the_models_file_of_the_page_is_one_and_the_table_of_data_sets_is_up_to_date(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(block("docs/own-models.md", "# models.yaml"))
    assert [models_file.parse(file, name, entry)["cfg"] for name, entry in models_file.read(file).items()]
    for dataset in datasets.DATASETS.values():
        first = "cog_l1" if dataset.name == datasets.LEVELS else dataset.name
        (row,) = re.findall(rf"^\| `{first}`.*", read("docs/data.md"), re.MULTILINE)
        assert all(f"`--{flag}`" in row for flag in dataset.flags) and f"`{dataset.layout}`" in row


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A checkout in which the pages' commands work: a loader, small data, and results of two models."""
    root = tmp_path_factory.mktemp("documentation") / "checkout"
    data, models, unseen = root / "data", root / "models", [f"n1000000{i}" for i in range(10)]
    (data / "levels").mkdir(parents=True)
    models.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name != "cog-quickstart" and not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    for split, folder, n_images in (("train", "train", 10), ("test", "val", 3)):
        tiny.write_class_folders(data / "in1k" / folder, n_images=n_images)
        tiny.write_class_folders(data / "birds" / split, classes=("crow", "duck"), n_images=6)
    tiny.write_class_folders(data / "in21k", classes=unseen, n_images=12)
    levels = data / "levels" / constants.LEVELS_FILE
    tiny.write_levels_file(levels, [unseen[i : i + 2] for i in range(0, 10, 2)])
    split_file = tiny.write_split_file(levels.with_name(constants.SPLIT_FILE), data / "in21k", n_test=3)
    for name, source in (("levels", levels), ("published", levels), ("split", split_file)):
        shutil.copy(source, root / f"{name}.pkl")
    (root / "cog-quickstart").symlink_to("data")
    (data / "models").symlink_to("../models")
    (root / "models.yaml").write_text(block("docs/own-models.md", "# models.yaml"))
    tiny.write_loader(root / "my_net.py")
    torch.save({"mix": torch.tensor([1.0, 2.0, 3.0])}, root / "my.ckpt")
    common = f"--model sup_resnet50 dino_resnet50 --models_root_dir {models} --dataset cog_l5"
    images = f"--in1k_images_root {data}/in1k --imagenet_images_root {data}/in21k --split train test"
    files = f"--cog_levels_mapping_file {levels} --cog_concepts_split_file {split_file}"
    how = "--model_loader my_net.py:load_my_model FT_EXTRACT.N_WORKERS 0"
    with contextlib.chdir(root):
        extract_features.main(f"{common} in1k cog_l1 {images} {files} {how}".split())
        for which in (f"{common} in1k cog_l1", f"{common} --n_shot 1"):
            logreg.main(f"{which} --seeds 22 37 CLF.N_TRIALS 1 CLF.N_EPOCHS 2".split())
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page, template, tmp_path, python):
    root = tmp_path / "checkout"
    shutil.copytree(template, root, symlinks=True)
    program = tmp_path / "python"
    program.write_text(PYTHON.format(python=python))
    program.chmod(0o755)
    text = re.sub(r"(?<![\w./-])/(models|data)\b", rf"{root}/\1", script(page))
    text = text.replace("bash bash-scripts/quickstart.sh\n", "").replace("n = 256\n", "n = 2\n")
    text = text.replace("seeds=[22, 37])", "seeds=[22, 37], n_trials=1, n_epochs=2)")
    environment = {**os.environ, "COG_PYTHON": str(program), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = ["bash", "-exuo", "pipefail", "-c", text]
    subprocess.run(bash, cwd=root, env=environment, check=True, timeout=1200)
