"""What README.md says exists, exists: links, flags, configuration keys, commands, the custom-model example."""

from __future__ import annotations

import re

import pytest

import cog
from cog import config
from cog.commands import (
    analyze_features,
    build_levels,
    extract_features,
    finetune,
    logreg,
    print_results,
    status,
)
from cog.models import __main__ as models


@pytest.fixture(scope="module")
def readme(repository):
    return (repository / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def flags():
    known = {"--help", "--slow", "--check"}  # of every script; of the test suite; of ruff
    known |= {"--dry_run", "--nproc_per_node"}  # of the drivers of studies; of torchrun
    scripts = (analyze_features, build_levels, extract_features, finetune, logreg, print_results, status)
    commands = [(command.main, []) for command in scripts]
    commands += [(models.main, [name]) for name in ("list", "check", "top1", "download")]
    for main, arguments in commands:
        lines: list[str] = []
        with pytest.raises(SystemExit) as done, pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "argparse.ArgumentParser._print_message", lambda self, text, file=None: lines.append(text)
            )
            main([*arguments, "--help"])
        assert done.value.code == 0
        known |= set(re.findall(r"--[a-z][a-z0-9_]*", "".join(lines)))
    return known


def test_relative_links_exist(readme, repository):
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
        for line in readme.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", readme):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert (repository / target).exists(), target


def test_flags_exist(readme, flags):
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_]*", readme))
    assert mentioned <= flags, mentioned - flags


def test_configuration_keys_exist(readme):
    known = set(config.flat(config.default_cfg()))
    mentioned = set(re.findall(r"\b(?:FT_EXTRACT|EVAL|CLF|LEVELS|ANALYSIS|FINETUNE)\.[A-Z_.]*[A-Z]", readme))
    assert mentioned <= known, mentioned - known


def test_scripts_exist(readme, repository):
    for script in set(re.findall(r"(?:bash|python) ([\w/-]+\.(?:sh|py))\b", readme)):
        assert (repository / script).is_file(), script


def test_custom_model_example_works(readme, tmp_path):
    import torch
    import torchvision

    (code,) = re.findall(r"```python\n(# my_net\.py\n.*?)```", readme, re.DOTALL)
    (tmp_path / "my_net.py").write_text(code)
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "my.ckpt")
    backbone = cog.load_backbone(
        "mine_resnet18", tmp_path / "my.ckpt", loader=f"{tmp_path / 'my_net.py'}:load_my_model"
    )
    with torch.inference_mode():
        assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, 512)


def test_no_placeholder_is_left(readme):
    assert "@@" not in readme
