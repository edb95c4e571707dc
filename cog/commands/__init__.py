"""The commands, one module each; ``python -m cog`` lists them."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn


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
        f"error: {sys.executable} lacks the toolkit's requirements; activate the environment that has them "
        "(source .venv/bin/activate), or set COG_PYTHON to its Python for the bash scripts\n"
    )
    raise SystemExit(2)


_require_packages()

#: Help of the commands by name, the word after ``python -m cog``.
COMMANDS = {
    "doctor": "check whether this machine, and its GPU, can run a study",
    "extract_features": "extract the features of data sets with a frozen model",
    "logreg": "train and test classifiers on extracted features",
    "print_results": "tables, figures and report of the results",
    "study": "run a whole study: submit it to SLURM, or run it on this machine",
    "status": "show the progress of a study",
    "analyze_features": "clusters, neighbors, alignment and more",
    "finetune": "fine-tune a model on a data set, as a control",
    "build_levels": "build the concept generalization levels from WordNet",
    "other_levels": "group features into levels by other similarities, and compare the results",
    "models": "list, download and check the 31 models of the paper",
    "miniature": "make the miniature of the quickstart: images, network, expected results",
}


def module_of(name: str) -> str:
    """Return the module whose ``main`` runs a command."""
    return "cog.miniature.command" if name == "miniature" else f"cog.commands.{name}"


def cli(name: str = "") -> NoReturn:
    """Run a command and exit; by default the one that the started script is named after, ``cog-logreg``."""
    from cog.commands import start

    name = name or Path(sys.argv[0]).stem.removeprefix("cog-").replace("-", "_")
    start.run(importlib.import_module(module_of(name)).main)
