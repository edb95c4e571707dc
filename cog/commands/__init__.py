"""The commands, one module each: ``python -m cog`` lists them, and every command has a console script.

The command ``print_results`` runs as ``python -m cog print_results ...`` or as the console script
``cog-print-results``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path


def _require_packages() -> None:
    """If this Python lacks the packages, start again with that of the quickstart, or exit with one line."""
    if importlib.util.find_spec("yacs") is not None:
        return
    python = Path(__file__).parents[2] / ".venv/bin/python"
    # Once: with "python -S", that Python lacks them, too.
    if os.access(python, os.X_OK) and os.environ.setdefault("COG_STARTED_BY", "") != str(python):
        os.environ["COG_STARTED_BY"] = str(python)
        os.execv(python, [str(python), *sys.orig_argv[1:]])
    sys.stderr.write(
        f"error: {sys.executable} lacks the toolkit's requirements; activate the environment it is installed in "
        "(source .venv/bin/activate), or set COG_PYTHON to its Python for the bash scripts\n"
    )
    raise SystemExit(2)


_require_packages()


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: word after ``python -m cog``.
        module: dotted name of the module whose function ``cli`` runs it.
        help: help of the command, one line.
    """

    name: str
    module: str
    help: str

    @property
    def script(self) -> str:
        """Name of the console script."""
        return f"cog-{self.name.replace('_', '-')}"


COMMANDS = (
    Command("doctor", "cog.commands.doctor", "check whether this machine, and its GPU, can run a study"),
    Command(
        "extract_features",
        "cog.commands.extract_features",
        "extract the features of data sets with a frozen model",
    ),
    Command("logreg", "cog.commands.logreg", "train and test classifiers on extracted features"),
    Command("print_results", "cog.commands.print_results", "tables, figures and report of the results"),
    Command(
        "study", "cog.commands.study", "run a whole study: submit it to SLURM, or run it on this machine"
    ),
    Command("status", "cog.commands.status", "show the progress of a study"),
    Command("analyze_features", "cog.commands.analyze_features", "clusters, neighbors, alignment and more"),
    Command("finetune", "cog.commands.finetune", "fine-tune a model on a data set, as a control"),
    Command(
        "build_levels", "cog.commands.build_levels", "build the concept generalization levels from WordNet"
    ),
    Command(
        "other_levels",
        "cog.commands.other_levels",
        "group extracted features into levels by other similarities, and compare the results",
    ),
    Command("models", "cog.commands.models", "list, download and check the 31 models of the paper"),
    Command(
        "miniature",
        "cog.miniature.__main__",
        "make the miniature of the quickstart: images, network, expected results",
    ),
)
