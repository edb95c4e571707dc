"""A models root as an earlier commit has left it, and what was printed of it.

::

    previous_root/root.tar.gz       images, levels, model, features, runs, analyses, and work that was interrupted
    previous_root/*.txt             what print_results.py printed of it
    previous_root/export.json       what print_results.py --export wrote of it
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(__file__).resolve().parent / "previous_root"


def call(script: str, *argv: object) -> tuple[int, str, str]:
    """Run a script of the checkout in this process; returns exit code, standard output and standard error."""
    words = [f"{script}.py", *map(str, argv)]
    out, errors, before = io.StringIO(), io.StringIO(), sys.argv
    code: Any = 0
    _detach_logging()
    try:
        sys.argv = words
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            runpy.run_path(str(REPOSITORY / words[0]), run_name="__main__")
    except SystemExit as error:
        code = error.code or 0
    finally:
        sys.argv = before
        _detach_logging()
    return int(code), out.getvalue(), errors.getvalue()


def _detach_logging() -> None:
    """Let the next command log to the standard error of its own time."""
    import logging

    logging.getLogger("cog").handlers = []


def tables(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is printed of the root, by the name of the file with the output."""
    own = ("print_results", "--models_root_dir", root / "models")
    one = (*own, "--model", "tiny_net", "--dataset", "in1k")
    return {
        "text": own,
        "markdown": (*own, "--format", "markdown"),
        "csv": (*own, "--format", "csv"),
        "latex": (*own, "--format", "latex"),
        "json": (*own, "--format", "json"),
        "shots": (*own, "--view", "shots", "--seeds", 22, 37),
        "overview": (*own, "--overview"),
        "analyses": (*own, "--analysis", "all"),
        "variants": (*own, "--variants", "all"),
        "one": one,
        "one_pca": (*one, "CLF.PCA_DIM", 2),
        "published": (*own, "--with_published", "--model", "tiny_net", "sup_resnet50", "--dataset", "in1k", "cog_l1"),
    }  # fmt: skip


def imported_tables(export: Path) -> dict[str, tuple[object, ...]]:
    """Return what is printed of an exported file."""
    own = ("print_results", "--import", export)
    return {
        "imported": own,
        "imported_overview": (*own, "--overview"),
        "imported_csv": (*own, "--format", "csv"),
    }


def without(text: str, root: Path) -> str:
    """Return text without the place of the root."""
    return text.replace(str(root), "ROOT")


def unpack(root: Path) -> Path:
    """Unpack the recorded root into an empty folder, which is returned."""
    with tarfile.open(FOLDER / "root.tar.gz") as archive:
        # Python 3.11.2, Debian 12's, has no filters yet.
        archive.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root
