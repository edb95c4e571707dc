"""The rooms of the package: what lies at its root, that imports go down only, and are of declared requirements."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "cog"

#: From the bottom up: a room imports itself and rooms before it.
ROOMS = (
    "base", "runtime", "data", "levels", "models", "features", "results", "logreg", "finetune", "analysis",
    "reporting", "study", "miniature", "commands",
)  # fmt: skip

#: Rooms whose modules import no torch when they are imported: tables and job lists are made on machines without a GPU,
#: in a blink.
WITHOUT_TORCH = ("base", "levels", "results", "study")

#: Run as ``python -m cog``: it starts what is above it.
ENTRY = "cog.__main__"


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "base"


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, wherever they stand: much faster than :func:`ast.walk`, which yields expressions, too."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            left += inner if isinstance(inner, list) else []


def imported_names(tree: ast.AST, module: str, *, is_package: bool) -> set[str]:
    """Return all names of modules and attributes that import statements mention, wherever they stand."""
    package = module if is_package else module.rpartition(".")[0]
    names: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                source = ".".join([*parents, source]).rstrip(".")
            names |= {source} | {f"{source}.{alias.name}" for alias in node.names}
    return names


def imports_of(module: str) -> set[str]:
    is_package = MODULES[module].name == "__init__.py"
    names = imported_names(tree_of(module), module, is_package=is_package)
    return {name for name in names if name in MODULES and name not in (module, "cog")}


@functools.cache
def graph() -> dict[str, set[str]]:
    return {module: imports_of(module) for module in MODULES}


def test_six_files_at_the_root():
    assert len(list(PACKAGE.glob("*.py"))) <= 6
    assert {room_of(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_is_below(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    upward = [
        (module, other)
        for module, others in graph().items()
        if room_of(module) == room and module not in ("cog", ENTRY)
        for other in others
        if room_of(other) not in allowed
    ]
    assert upward == []


def test_no_circles_between_files():
    """Files can be put in an order in which each imports only files before it."""
    left = dict(graph())
    while left:
        free = {module for module, others in left.items() if not others & left.keys()}
        assert free, f"these import each other: {sorted(left)}"
        left = {module: others for module, others in left.items() if module not in free}


def test_a_circle_and_an_upward_import_would_be_seen():
    tree = ast.parse(
        "def f():\n    if True:\n        from cog.commands import logreg\n    from . import errors\n"
    )
    assert {"cog.commands.logreg", "cog.runtime.errors"} <= imported_names(
        tree, "cog.runtime.x", is_package=False
    )


def top_level_imports(module: str) -> set[str]:
    """Return what is imported when the module is: not inside functions, not under TYPE_CHECKING."""
    body = [
        node
        for node in tree_of(module).body
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    flat = ast.Module([n for n in body if isinstance(n, ast.Import | ast.ImportFrom | ast.If | ast.Try)], [])
    return imported_names(flat, module, is_package=MODULES[module].name == "__init__.py")


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_light_rooms_import_no_torch(room):
    todo = [module for module in MODULES if room_of(module) == room and module != ENTRY]
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        names = top_level_imports(module)
        assert not {name for name in names if name.partition(".")[0] in ("torch", "torchvision")}, module
        todo += [name for name in names if name in MODULES]
    assert seen


#: Distributions whose import name is another.
DISTRIBUTIONS = {
    "PIL": "pillow", "google_crc32c": "google-crc32c", "open_clip": "open_clip_torch", "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # fmt: skip

#: Imported where it is wanted: pandas is for notebooks.
OPTIONAL = {"pandas"}

#: Libraries which may be missing, by the module that imports them.
EXTRAS = {
    "cog.models.sources": ("hub",),
    "cog.models.sources.openclip": ("hub",), "cog.models.sources.hf": ("hub",),
}  # fmt: skip


def test_what_is_imported_is_declared(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    requirements = {"": project["dependencies"], **project["optional-dependencies"]}
    declared = {
        name: {re.match(r"[\w-]+", line)[0] for line in lines} for name, lines in requirements.items()
    }
    configs = {file.stem: ast.parse(file.read_text()) for file in (repository / "configs").glob("*.py")}
    for module, tree in {**{module: tree_of(module) for module in MODULES}, **configs}.items():
        absolute = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
        ]
        names = imported_names(ast.Module(absolute, []), module, is_package=False)
        imported = {name.partition(".")[0] for name in names}
        imported -= sys.stdlib_module_names | OPTIONAL | {"cog", "configs"}
        allowed = declared[""].union(*(declared[extra] for extra in EXTRAS.get(module, ())))
        assert {DISTRIBUTIONS.get(name, name) for name in imported} <= allowed, module


def test_mains_are_short():
    long = {
        module: length
        for module, file in MODULES.items()
        if room_of(module) == "commands" and (length := len(file.read_text().splitlines())) >= 150
    }
    assert long == {}


def test_no_public_class_name_twice():
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    del places["Preprocess"]  # cog.models.spec gives way to cog.data.pixels
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


#: Names that say nothing about the value that they hold.
EMPTY_NAMES = {"found", "one", "own", "what", "where", "thing", "things"}


def bound_names(tree: ast.AST) -> set[str]:
    """Return the names of variables, arguments and fields that a tree binds."""
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def test_names_say_what_they_hold():
    assert {m: bad for m in MODULES if (bad := bound_names(tree_of(m)) & EMPTY_NAMES)} == {}


def test_an_empty_name_would_be_seen():
    tree = ast.parse("def rows(where):\n    for one in where:\n        own: int = one\n")
    assert bound_names(tree) & EMPTY_NAMES == {"where", "one", "own"}


#: What only :mod:`cog.runtime.output_folder` uses: claims, recovery, publication and notes of output folders.
PARTS_OF_OUTPUT_FOLDERS = (
    "staged", "recover", "needs_recovery", "live_holder", "locked", "read_failure", "FAILURE_FILE", "discard",
)  # fmt: skip

#: Locks that are not of output folders: of ranges of rows, of a study's log folder; and of
#: finished results on their way into an archive or away.
OTHER_LOCKS = {
    "cog.study.delete": {"locked"},
    "cog.features.sharing": {"locked", "live_holder"},
    "cog.commands.study": {"locked"},
}


def test_output_folders_have_one_life():
    """No room claims, recovers or publishes a folder by other means than the class."""
    others = []
    for module in MODULES:
        if room_of(module) == "runtime":
            continue
        for name in sorted(names_from_runtime(tree_of(module))):
            if name in PARTS_OF_OUTPUT_FOLDERS and name not in OTHER_LOCKS.get(module, ()):
                others.append((module, name))
    assert others == []


def names_from_runtime(tree: ast.AST) -> set[str]:
    """Return names that are imported from locks and stages, and attributes of these modules."""
    modules = {"atomic_dir", "locks", "resume_dir", "output_folder"}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in modules:
            names |= {alias.name for alias in node.names}
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
        ):
            names.add(node.attr)
    return names


def test_another_life_would_be_seen():
    text = "from cog.runtime.locks import locked\nfrom cog.runtime import atomic_dir\natomic_dir.recover(x)\n"
    assert {"locked", "recover"} <= names_from_runtime(ast.parse(text))
