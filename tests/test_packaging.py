"""An installed copy works away from the checkout and adds nothing but ``cog``; what it needs is declared."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import tomllib

import floors
import pytest

import cog
from cog.commands import COMMANDS, module_of


def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


def script_of(command):
    return f"cog-{command.replace('_', '-')}"


def test_every_requirement_has_a_floor_that_is_kept_here():
    for line in floors.floors():
        name, _, floor = line.partition("==")
        here = importlib.metadata.version(name).partition("+")[0]
        numbers = [[int(n) for n in re.findall(r"\d+", version)[:3]] for version in (here, floor)]
        assert numbers[0] >= numbers[1], f"{name} {here} is here, pyproject.toml declares {floor}"


@pytest.mark.slow
def test_installed_copy_has_its_configuration_and_no_stray_modules(repository, python, tmp_path):
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.partition(".")[0]) < 77:
        pytest.skip("pip builds the package with setuptools 77 or newer")
    source, target = tmp_path / "source", tmp_path / "site"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True
    )
    for name in files.stdout.split("\0"):
        if name and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((repository / name).read_bytes())
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        target,
        ".",
    ]
    subprocess.run(pip, cwd=source, check=True)
    top = {entry.name for entry in target.iterdir() if not entry.name.endswith(".dist-info")}
    assert top == {"cog", "bin"}
    assert {entry.name for entry in (target / "bin").iterdir()} == {*map(script_of, COMMANDS)}
    script = (
        "import cog, cog.config, cog.levels, pathlib\n"
        f"assert cog.__file__.startswith({str(target)!r}), cog.__file__\n"
        "assert cog.config.get_cfg().CLF.N_EPOCHS == 100\n"
        "assert 'sup_resnet50' in cog.list_models()\n"
        "from cog.results.read import read; from cog.reporting import report\n"
        "report.write('report.html', read(published='v2'))\n"
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
        script_of(name): f"{module_of(name)}:cli" for name in COMMANDS
    }
    assert run(str(target / "bin" / script_of("doctor")), "--help").startswith("usage: ")
    overview = run("-m", "cog")
    assert all(text in overview for text in COMMANDS.values())
    assert run("-m", "cog", "print_results", "--version") == f"imagenet-cog {cog.__version__}\n"
