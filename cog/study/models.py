"""The models of a study by name, and a trial of each on one image."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cog import constants, paths
from cog.errors import CogError, nearest
from cog.models import models_file
from cog.study.tasks import REPOSITORY


def list_models(root: Path, file: str | None) -> tuple[list[str], dict[str, CogError]]:
    """Return the models with a folder under a root or an entry in a models file, and the unusable entries."""
    folders = sorted(path for path in root.glob("*/*") if path.is_dir() and not paths.limit_of(path.parent))
    names = [f"{path.parent.name}_{path.name}" for path in folders if "_" not in path.parent.name]
    faults: dict[str, CogError] = {}
    for name, entry in (models_file.read(file) if file is not None else {}).items():
        try:
            models_file.parse(file or "", name, entry)
            names.append(name)
        except CogError as error:
            faults[name] = error
    return [name for name in dict.fromkeys(names) if constants.is_model_name(name)], faults


def choose(known: Sequence[str], wanted: Sequence[str] | None, *, must_exist: bool) -> tuple[str, ...]:
    """Return the models of names and patterns such as ``deit_*``; all known ones if none are given.

    Args:
        must_exist: whether other names than the known ones are errors.

    Raises:
        CogError: a name is malformed or unknown, or a pattern matches nothing.
    """
    chosen: list[str] = []
    for name in known if wanted is None else wanted:
        is_pattern = any(sign in name for sign in "*?[")
        matching = fnmatch.filter(known, name) if is_pattern else [name]
        if not is_pattern:
            paths.split_model_name(name)
        if not matching or (must_exist and not {*matching} <= {*known}):
            near = nearest(name, known, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise CogError(f"--model {name}: there is no such model here{hint}")
        chosen += matching
    if not chosen:
        raise CogError(
            "there is no <model_title>/<architecture_name> folder under --models_root_dir; give --model"
        )
    return tuple(dict.fromkeys(chosen))


def try_models(commands: Mapping[str, Sequence[str]]) -> bool:
    """Compute the features of one image with each model, in a process of its own, and print a line each.

    Args:
        commands: command line of an extraction by model, see :func:`cog.study.tasks.command_of`.

    Returns:
        Whether all succeeded.
    """

    def try_one(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "cog.commands.try_model", *command[2:]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            words, check=False, capture_output=True, text=True, cwd=REPOSITORY, env=environment
        )

    succeeded = True
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for model, done in zip(commands, pool.map(try_one, commands.values()), strict=True):
            lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
            print(f"# {model}: {lines[-1] if lines else f'exit code {done.returncode}'}", flush=True)
            succeeded &= done.returncode == 0
    return succeeded
