"""What all commands have in common: version, help in a third of a second, a Python with the packages."""

import os
import re
import resource
import subprocess
import sys

import pytest

import cog
from cog import __main__
from cog.commands import COMMANDS


def run_cog(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["cog", *words])
    with pytest.raises(SystemExit) as stop:
        __main__.main()
        raise SystemExit(0)
    return stop.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_knows_its_version_and_refuses_unknown_flags(monkeypatch, capsys, name):
    assert run_cog(monkeypatch, name, "--version") == 0
    assert capsys.readouterr().out == f"imagenet-cog {cog.__version__}\n"
    assert run_cog(monkeypatch, name, "--no_such_flag") == 2
    assert capsys.readouterr().err.startswith(f"python -m cog {name}: error: ")
    assert run_cog(monkeypatch) == run_cog(monkeypatch, name, "--help") == 0
    listed, _, usage = capsys.readouterr().out.partition("usage: python -m cog " + name)
    assert f"  {name} " in listed and (usage.count(f"cog {name} ") > 1 or name in ("models", "miniature"))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_takes_less_than_a_third_of_a_second(repository, python, name):
    seconds = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([python, "-m", "cog", name, "--help"], cwd=repository, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the processor: the machine may be busy
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.3


@pytest.mark.parametrize("has_environment", [True, False])
def test_a_python_without_the_packages_uses_that_of_the_quickstart(tmp_path, repository, has_environment):
    (tmp_path / "cog").symlink_to(repository / "cog")
    (tmp_path / "logreg.py").write_text((repository / "logreg.py").read_text())
    if has_environment:
        python = tmp_path / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho "with $*"\n')
        python.chmod(0o755)
    line = [sys.executable, "-S", "logreg.py", "--model", "a b"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if has_environment:
        assert (done.returncode, done.stdout) == (0, "with -S logreg.py --model a b\n")
    else:
        assert done.returncode == 2 and re.fullmatch(r"error: .*lacks.*activate.*\n", done.stderr)
