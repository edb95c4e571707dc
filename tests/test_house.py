"""The rooms of the package: imports go down only, and libraries are declared."""

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "cog"

#: From the bottom up: a room imports itself and rooms before it.
ROOMS = (
    *("base", "runtime", "data", "levels", "models", "features", "results", "logreg", "finetune", "analysis"),
    *("reporting", "study", "miniature", "commands"),
)

#: Run as ``python -m cog``: it starts what is above it. ``cog`` itself has the functions for notebooks.
ENTRIES = ("cog", "cog.__main__")

#: Distributions whose import name is another.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "google_crc32c": "google-crc32c",
    "open_clip": "open_clip_torch",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the parsed modules of the package by name."""
    files = {file: file.relative_to(PACKAGE.parent).with_suffix("") for file in sorted(PACKAGE.rglob("*.py"))}
    names = {file: ".".join(path.parts).removesuffix(".__init__") for file, path in files.items()}
    return {name: ast.parse(file.read_text()) for file, name in names.items()}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "base"


@functools.cache
def imports(module: str) -> set[str]:
    """Return the names that a module imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in trees() else node.module)
    return names - {module}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_is_below(room):
    modules = [module for module in trees() if room_of(module) == room and module not in ENTRIES]
    above = ROOMS[ROOMS.index(room) + 1 :]
    upward = [(m, n) for m in modules for n in imports(m) if n in trees() and room_of(n) in above]
    assert (bool(modules), upward) == (True, [])


def test_no_circles_between_files():
    """Files can be put in an order in which each imports only files before it."""
    left = {module: imports(module) & trees().keys() - {"cog"} for module in trees()}
    while left:
        free = {module for module, others in left.items() if not others & left.keys()}
        assert free, f"these import each other: {sorted(left)}"
        left = {module: others for module, others in left.items() if module not in free}


def test_what_is_imported_is_declared(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"].get("hub", ())]
    declared = {re.match(r"[\w-]+", line)[0] for line in lines}
    used = {name.partition(".")[0] for module in trees() for name in imports(module)}
    used -= sys.stdlib_module_names | {"cog", "configs"}
    assert {DISTRIBUTIONS.get(name, name) for name in used} <= declared
