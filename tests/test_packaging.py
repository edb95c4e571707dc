"""An installed copy works away from the checkout and adds nothing but ``cog``; what it needs is declared."""

import importlib.metadata
import os
import re
import subprocess

import floors
import pytest

from cog.commands import COMMANDS


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
    how = {"capture_output": True, "text": True}
    files = subprocess.run(["git", "ls-files", "-z"], cwd=repository, check=True, **how).stdout
    for name in files.split("\0"):
        if name and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((repository / name).read_bytes())
    pip = f"{python} -m pip install --quiet --no-deps --no-build-isolation --target {target} ."
    subprocess.run(pip.split(), cwd=source, check=True)
    top = {entry.name for entry in target.iterdir() if not entry.name.endswith(".dist-info")}
    assert top == {"cog", "bin"}
    (installed,) = importlib.metadata.distributions(path=[str(target)])
    scripts = {f"cog-{name.replace('_', '-')}": "cog.commands:cli" for name in COMMANDS}
    assert {entry.name: entry.value for entry in installed.entry_points} == scripts
    script = (
        "import cog, cog.config, cog.levels, pathlib\n"
        f"assert cog.__file__.startswith({str(target)!r}), cog.__file__\n"
        "assert cog.config.get_cfg().CLF.N_EPOCHS == 100\n"
        "from cog.results.read import read; from cog.reporting import report\n"
        "report.write('report.html', read(published='v2'))\n"
    )
    how |= {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(target)}}
    subprocess.run([python, "-c", script], check=True, **how)
    done = subprocess.run([python, target / "bin/cog-doctor", "--help"], check=True, **how)
    assert done.stdout.startswith("usage: ")
