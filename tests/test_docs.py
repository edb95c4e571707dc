"""The documentation is true: commands run, names exist, links lead somewhere, tables are up to date.

The pages are README.md, CONTRIBUTING.md and docs/*.md. Every command of a ``bash`` block is executed on inputs of a few
kilobytes; the bash drivers only with --slow. Of a block behind ``<!-- needs: WHAT -->`` the command lines are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import tiny

from cog import config, constants
from cog.commands import COMMANDS, analyze_features, extract_features, logreg
from cog.models import model_docs, models_file
from cog.runtime import cli

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")),
]
PARSED = {command.name: importlib.import_module(command.module) for command in COMMANDS}

#: Commands that another test runs, and that test.
ELSEWHERE = {
    "bash bash-scripts/quickstart.sh": (
        "tests/miniature/test_miniature.py",
        "test_quickstart_runs_and_runs_again",
    ),
}

#: Arguments that make a command quick, by the script that it is for.
_CLASSIFIER = ["--device", "cpu", "CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2", "CLF.MLP_HIDDEN", "4"]
QUICK = {
    "logreg.py": _CLASSIFIER,
    "logreg.sh": _CLASSIFIER,
    "fewshot.sh": _CLASSIFIER,
    "experiments.sh": [*_CLASSIFIER, "seeds=22"],
    "extract_features.py": ["--device", "cpu", "FT_EXTRACT.N_WORKERS", "0"],
    "extract_features.sh": ["--device", "cpu", "FT_EXTRACT.N_WORKERS", "0"],
    "analyze_features.py": ["--device", "cpu"],
    "test.sh": ["--collect-only", "-q", "tests/runtime/test_cli.py"],
    "pytest": ["--collect-only"],
}


@dataclasses.dataclass
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    needs: str | None

    def commands(self) -> list[list[str]]:
        """Return the words of every command."""
        commands, pending = [], ""
        for line in self.text.splitlines():
            pending = f"{pending}{line}\n"
            if line.endswith("\\"):
                continue
            try:
                words = shlex.split(pending.replace("\\\n", " "), comments=True)
            except ValueError:  # a quotation that ends in a later line
                continue
            pending = ""
            while "&&" in words:
                cut = words.index("&&")
                commands.append(words[:cut])
                words = words[cut + 1 :]
            commands.append(words)
        assert not pending, f"{self.page}:{self.line}: a quotation is not closed"
        return [words for words in commands if words]


def read(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    listed: list[Block] = []
    text = read(page)
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        needs = re.search(r"<!-- needs: (.+) -->\s*\Z", text[: match.start()])
        listed.append(Block(page, line, match[2], textwrap.dedent(match[3]), needs and needs[1]))
    return listed


def prose(page: str) -> str:
    """Return a page without its blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", read(page), flags=re.DOTALL | re.MULTILINE)


# --- form


def test_the_first_page_is_short():
    assert len(read("README.md").splitlines()) <= 250


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_pages_begin_with_what_to_type(page):
    assert blocks(page)[0].language == "bash"
    assert blocks(page)[0].line <= 5


@pytest.mark.parametrize("page", PAGES)
def test_fences_are_closed_and_nothing_is_left_to_fill_in(page):
    text = read(page)
    assert "@@" not in text and "TODO" not in text
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks(page))
    n_needs = sum(block.needs is not None for block in blocks(page))
    assert len(re.findall(r"^ *<!-- needs:", text, re.MULTILINE)) == n_needs


# --- links


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
    return set(kept)


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


def test_every_page_is_reached_from_the_first():
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", read("README.md")))
    assert {page for page in PAGES if page.startswith("docs/")} <= linked


def test_pictures_are_small():
    for path in (REPOSITORY / "docs/images").iterdir():
        assert path.stat().st_size <= 150_000, path
        assert any(path.name in read(page) for page in PAGES), f"{path} is shown nowhere"


# --- names


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_the_repository_exist(page):
    text = read(page)
    folders = "cog|tests|configs|bash-scripts|prepare_models"
    for path in set(re.findall(rf"(?<![\w/.$-])(?:{folders})/[\w./-]*\.\w+", text)):
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


def keys() -> set[str]:
    return set(config.flat(config.default_cfg()))


@pytest.mark.parametrize("page", PAGES)
def test_configuration_keys_exist(page):
    sections = "|".join({key.partition(".")[0] for key in keys()})
    mentioned = set(re.findall(rf"\b(?:{sections})\.[A-Z_.]*[A-Z]", read(page)))
    assert mentioned <= keys() | {"FT_EXTRACT.IMAGE_NORM"}, mentioned - keys()


@pytest.fixture(scope="module")
def flags() -> set[str]:
    known = {"--slow", "--collect-only", "--nproc_per_node"}  # of the test suite; of pytest; of torchrun
    for name, module in PARSED.items():
        for words in [["list"], ["check"], ["top1"], ["download"], ["docs"]] if name == "models" else [[]]:
            shown: list[str] = []
            with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
                patch.setattr(
                    "argparse.ArgumentParser._print_message", lambda self, text, file=None: shown.append(text)
                )
                module.main([*words, "--help"])
            assert stop.value.code == 0
            known |= set(re.findall(r"--[a-z][a-z0-9_]*", "".join(shown)))
    return known


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page, flags):
    mentioned = set(re.findall(r"(?<![\w<!-])--[a-z][a-z0-9_-]*", prose(page)))
    assert mentioned <= flags | {"--check"}, mentioned - flags


# --- command lines


class Parsed(Exception):
    """A command line was understood."""


def check_python(script: str, words: list[str]) -> None:
    """Parse the command line of a command, and do nothing."""

    def only_parse(parse):
        def parse_args(self, *args):
            parse(self, *args)
            raise Parsed

        return parse_args

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed):
        patch.setattr(
            cli.OneLineParser, "parse_args", only_parse(argparse.ArgumentParser.parse_args), raising=False
        )
        patch.setattr(cli.Parser, "parse_args", only_parse(cli.Parser.parse_args))
        PARSED[script].main(words)


def check_keys(words: list[str]) -> None:
    pairs = [word for word in words if re.fullmatch(r"[A-Z][A-Z_]*(\.[A-Z_]+)+", word)]
    assert set(pairs) <= keys(), set(pairs) - keys()


def check_driver(path: str, words: list[str]) -> None:
    """Compare the variables on the command line of a bash script with those that it knows."""
    assert (REPOSITORY / path).is_file(), path
    if path.startswith("prepare_models/") or path.endswith("test.sh"):
        return
    text = (REPOSITORY / path).read_text()
    for word in words:
        if match := re.fullmatch(r"([a-z][a-z0-9_]*)=.*", word, re.DOTALL):
            assert re.search(rf'^{match[1]}="', text, re.MULTILINE), f"{path} has no variable {match[1]}"


def check_line(words: list[str]) -> None:
    check_keys(words)
    words = list(words)
    while words and re.match(r"[A-Za-z_]+=", words[0]):
        words.pop(0)
    if not words or words[0] in ("export", "mkdir", "git", "cd", "pip", "ruff", "mypy"):
        return
    if words[0] in ("torchrun", "srun"):
        words = ["python", *words[next(i for i, word in enumerate(words) if word.endswith(".py")) :]]
    if words[0] == "bash":
        check_driver(words[1], words[2:])
        return
    assert words[0] == "python", words
    if words[1] == "-c":
        compile(words[2], "documentation", "exec")
    elif words[1] != "-m":
        assert (REPOSITORY / words[1]).is_file(), words[1]
        if "/" not in words[1]:
            check_python(words[1].removesuffix(".py"), words[2:])
    elif words[2] == "cog.models":
        check_python("models", words[3:])
    elif words[2:3] == ["cog"]:
        assert not words[3:] or words[3] in PARSED, words
    else:
        assert words[2] in ("pytest", "nltk.downloader"), words


BASH = [block for page in PAGES for block in blocks(page) if block.language == "bash"]


@pytest.mark.parametrize("block", BASH, ids=lambda block: f"{block.page}:{block.line}")
def test_command_lines_are_understood(block, capsys):
    for words in block.commands():
        try:
            check_line(words)
        except SystemExit:
            pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")


def test_what_is_not_executed_here_is_executed_elsewhere():
    said = {shlex.join(words) for block in BASH for words in block.commands()}
    for command, (file, test) in ELSEWHERE.items():
        assert command in said and f"def {test}(" in (REPOSITORY / file).read_text()


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
    assert [models_file.find(file, name).label for name in models_file.read(file)]


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder in which the pages' commands work: a checkout, small data, and results of two models."""
    import torch
    import torchvision

    root = tmp_path_factory.mktemp("documentation") / "checkout"
    root.mkdir()
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
    header = "rank,wnid,names,similarity,nearest_seen,nearest_seen_names,level,images\n"
    rows = [f"{i},{wnid},a b,{1 - i / 10},{seen[0]},dog,L{1 + i // 2},12\n" for i, wnid in enumerate(unseen)]
    (root / "levels.csv").write_text(header + "".join(rows))
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
                 "--model_loader", "my_net.py:load_my_model", *images,
                 "FT_EXTRACT.IMAGE_RESIZE_SIZE", size, "FT_EXTRACT.IMAGE_CROP_SIZE", size,
                 "FT_EXTRACT.N_WORKERS", "0"]
            )  # fmt: skip
            runs = [*common, *_CLASSIFIER[2:], "--seeds", "22", "37"]
            logreg.main([*runs, "--dataset", *constants.DATASETS, "--n_shots", "0", "1"])
            logreg.main([*runs, "--dataset", "cog_l5", "CLF.PCA_DIM", "8"])
            analyze_features.main([*common, "--dataset", "cog_l5"])
    shutil.copytree(models, world / "models", symlinks=True)
    return root


class Shell:
    """Runs the commands of a page."""

    def __init__(self, root: Path, python: str) -> None:
        self.root = root
        self.python = python
        self.variables: dict[str, str] = {}

    def run(self, words: list[str]) -> None:
        if shlex.join(words) in ELSEWHERE:
            return
        words = [re.sub(r"(?<![\w./-])/(models|data)\b", rf"{self.root}/\1", word) for word in words]
        words = [self._expand(word) for word in words]
        if words[0] == "export":
            words = words[1:]
        while words and (match := re.fullmatch(r"(\w+)=(.*)", words[0])):
            self.variables[match[1]] = match[2]
            words = words[1:]
        if not words:
            return
        if words[0] == "mkdir":
            Path(words[-1]).mkdir(parents=True)
        elif words[0] == "bash":
            self._bash([*words, *self._quick(words[1])])
        elif words[:2] == ["python", "-c"]:
            exec(compile(words[2], "documentation", "exec"), {})
        elif words[:3] == ["python", "-m", "pytest"]:
            self._bash([self.python, *words[1:], *QUICK["pytest"]])
        elif words[:3] == ["python", "-m", "cog"]:
            assert PARSED[words[3]].main(words[4:]) == 0
        elif words[:3] == ["python", "-m", "cog.models"]:
            assert PARSED["models"].main(words[3:]) == 0
        else:
            assert words[0] == "python" and words[1].endswith(".py"), f"no way to execute {words}"
            quick = self._quick(words[1])
            if "--figures" in words and "--figure_names" not in words:  # all of them take half a minute
                quick = ["--figure_names", "drop", "--figure_formats", "svg"]
            if "--diagnostics" in words:
                quick = ["--model", "sup_resnet50", "--dataset", "cog_l5"]
            assert PARSED[words[1].removesuffix(".py")].main([*words[2:], *quick]) in (0, None)

    def _expand(self, word: str) -> str:
        known = {**self.variables, "PWD": str(self.root)}
        return re.sub(r"\$(\w+)", lambda match: known.get(match[1], match[0]), word)

    def _quick(self, script: str) -> list[str]:
        return QUICK.get(script.rpartition("/")[2], [])

    def _bash(self, words: list[str]) -> None:
        environment = {**os.environ, **self.variables, "COG_PYTHON": self.python}
        done = subprocess.run(
            words, cwd=self.root, env=environment, capture_output=True, text=True, check=False, timeout=1200
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"


EXECUTED = sorted({block.page for block in BASH if block.needs is None})


@pytest.mark.slow
@pytest.mark.parametrize("page", EXECUTED)
def test_commands_run(page, template, tmp_path, monkeypatch, warm_python):
    root = tmp_path / "checkout"
    shutil.copytree(template, root, symlinks=True)
    monkeypatch.chdir(root)
    for entry in REPOSITORY.iterdir():
        if not (root / entry.name).exists() and not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    shell = Shell(root, warm_python)
    for block in blocks(page):
        if block.language == "python" and (match := re.match(r"# (\w+\.py)\n", block.text)):
            (root / match[1]).write_text(block.text)
        if block.language == "bash" and block.needs is None:
            for words in block.commands():
                shell.run(words)


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


# --- generated tables


def test_generated_tables_are_up_to_date():
    for page, tables in model_docs.pages().items():
        assert all(table in read(page) for table in tables), page
        assert model_docs.with_tables(read(page), tables) == read(page), page
