"""An installed copy works away from the checkout and adds nothing but ``cog``; what it needs is declared."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import tomllib

import floors
import pytest
from marks import first_quick

import cog
from cog.commands import COMMANDS


def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


def test_every_requirement_has_a_floor_that_is_kept_here():
    for line in floors.floors():
        name, _, floor = line.partition("==")
        here = importlib.metadata.version(name).partition("+")[0]
        numbers = [[int(n) for n in re.findall(r"\d+", version)[:3]] for version in (here, floor)]
        assert numbers[0] >= numbers[1], f"{name} {here} is here, pyproject.toml declares {floor}"


@pytest.mark.parametrize("their_init", first_quick(1, ["from .config import Config\n", None]))
def test_another_package_called_cog_is_told_in_one_line(repository, python, tmp_path, their_init):
    site = tmp_path / "site"
    (site / "cog-0.9.5.dist-info").mkdir(parents=True)
    start = [python, "-c", "from cog.commands.print_results import cli; cli()", "--help"]

    def run(*folders):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        return subprocess.run(
            start, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60, check=False
        )

    beside = run(repository, site)
    assert beside.returncode == 0 and beside.stdout.startswith("usage: ")
    assert beside.stderr.count("\n") == 1
    assert beside.stderr.startswith(f"warning: another package called cog is installed in {site} (cog-0.9.5)")
    # Installed into one folder: the last one's files are there.
    shutil.copytree(repository / "cog", site / "cog", ignore=shutil.ignore_patterns("__pycache__"))
    if their_init:
        (site / "cog" / "__init__.py").write_text(their_init)
        (site / "cog" / "config.py").write_text("class Config: pass\n")
        (site / "cog" / "errors.py").write_text("class ConfigDoesNotExist(Exception): pass\n")
    mixed = run(site)
    assert mixed.returncode == 2 and mixed.stdout == ""
    assert mixed.stderr.count("\n") == 1 and "uninstall both" in mixed.stderr


@pytest.mark.slow
def test_installed_copy_has_its_configuration_and_no_stray_modules(repository, python, tmp_path):
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip(
            "pip builds the package with setuptools 77 or newer; would check what an installation holds"
        )
    source = tmp_path / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        if not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((repository / name).read_bytes())
    target = tmp_path / "site"
    subprocess.run(
        [
            python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target",
            str(target), ".",
        ],
        cwd=source,
        check=True,
    )  # fmt: skip
    top = {entry.name for entry in target.iterdir() if not entry.name.endswith(".dist-info")}
    assert top == {"cog", "bin"}
    assert {entry.name for entry in (target / "bin").iterdir()} == {command.script for command in COMMANDS}
    script = (
        "import cog, cog.config, cog.levels, pathlib\n"
        f"assert cog.__file__.startswith({str(target)!r}), cog.__file__\n"
        "assert cog.config.get_cfg().CLF.N_EPOCHS == 100\n"
        "assert 'sup_resnet50' in cog.list_models()\n"
        "from cog.results import published; from cog.reporting import html as report\n"
        "report.write('report.html', published=published.accuracies())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    subprocess.run([python, "-c", script], cwd=tmp_path, env=environment, check=True)

    def run(*words):
        done = subprocess.run(
            [python, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    # All scripts are written from the same text; each calls what it is declared to.
    (installed,) = importlib.metadata.distributions(path=[str(target)])
    assert {entry.name: entry.value for entry in installed.entry_points} == {
        command.script: f"{command.module}:cli" for command in COMMANDS
    }
    assert run(str(target / "bin" / COMMANDS[0].script), "--help").startswith("usage: ")
    overview = run("-m", "cog")
    assert all(command.help in overview for command in COMMANDS)
    assert run("-m", "cog", "print_results", "--version") == f"imagenet-cog {cog.__version__}\n"
