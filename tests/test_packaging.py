"""An installed copy works away from the checkout and adds nothing but ``cog``."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.mark.slow
def test_installed_copy_has_its_configuration_and_no_stray_modules(repository, python, tmp_path):
    pytest.importorskip("setuptools")
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
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            str(target),
            ".",
        ],
        cwd=source,
        check=True,
    )
    top = {entry.name for entry in target.iterdir() if not entry.name.endswith(".dist-info")}
    assert top == {"cog", "bin"}
    assert {entry.name for entry in (target / "bin").iterdir()} == {
        "cog-extract-features", "cog-logreg", "cog-print-results", "cog-build-levels", "cog-models",
        "cog-analyze-features", "cog-finetune",
    }  # fmt: skip
    script = (
        "import cog, cog.config, cog.levels, pathlib\n"
        f"assert cog.__file__.startswith({str(target)!r}), cog.__file__\n"
        "assert cog.config.get_cfg().CLF.N_EPOCHS == 100\n"
        "assert 'sup_resnet50' in cog.list_models()\n"
        "from cog import published, report\n"
        "report.write('report.html', published=published.cells())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    subprocess.run([python, "-c", script], cwd=tmp_path, env=environment, check=True)
    for name in (
        "cog-extract-features", "cog-logreg", "cog-print-results", "cog-build-levels", "cog-analyze-features",
        "cog-finetune",
    ):  # fmt: skip
        shown = subprocess.run(
            [python, str(target / "bin" / name), "--help"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.startswith("usage: ")
