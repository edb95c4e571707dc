"""The networks of a study: their names, and whether what is finished was made of them in the same way.

Compared are model, checkpoint, loader, preprocessing, pooling and precision of features, and settings and
features of classifier runs. Images are not listed: that is what an extraction does.
"""

import contextlib
import dataclasses
import fnmatch
import functools
import json
import logging
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cog import config, constants, paths
from cog.errors import CogError, some
from cog.logreg import settings
from cog.models import models_file
from cog.runtime.output import DONE, State, differences
from cog.study.units import DELETED, OTHER, Study, Unit

logger = logging.getLogger(__name__)


def choose(root: Path, file: str | None, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the models of names and patterns such as ``deit_*``.

    None, and patterns: of those with a folder under the root or an entry in the models file.
    """
    home = root.parent if paths.limit_of(root) else root
    folders = sorted(path for path in home.glob("*/*") if path.is_dir())
    names = (f"{path.parent.name}_{path.name}" for path in folders if "_" not in path.parent.name)
    known = [name for name in names if constants.is_model_name(name) and not name.startswith("limit-")]
    known += models_file.read(file) if file is not None else ()
    chosen: list[str] = []
    for name in wanted or ["*"]:
        is_pattern = any(sign in name for sign in "*?[")
        matching = fnmatch.filter(known, name) if is_pattern else [name]
        if not matching:
            raise CogError(f"there is no model {name} under {root}; give --model NAME")
        chosen += matching
    for name in chosen:
        paths.split_model_name(name)
    return tuple(dict.fromkeys(chosen))


def in_processes(function: Callable[[Any], Any], values: Sequence[Any], n: int) -> Iterator[Any]:
    """Yield what a function returns for each value, in a fork of this process each, ``n`` at a time.

    None stands for a process that has crashed: a network may end it.
    """
    context = multiprocessing.get_context("fork")
    for first in range(0, len(values), n):
        started = []
        for value in values[first : first + n]:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=lambda s=sending, v=value: s.send(function(v)), daemon=True)
            process.start()
            sending.close()
            started.append((process, receiving))
        for process, receiving in started:
            try:
                yield receiving.recv()
            except EOFError:
                yield None
            process.join()


def describe(find: Callable[[str], Any], opts: Sequence[str], models: Sequence[str]) -> dict[str, Any]:
    """Return the parts of features' identities that do not depend on images; loaders are run."""
    from cog.features.extract import Model  # imports torch

    described = {}
    with contextlib.redirect_stdout(sys.stderr):  # what loaders print
        for model in models:
            with contextlib.suppress(Exception):  # told by its extraction
                choice = find(model)
                described[model] = Model(choice, choice.config(opts)).identity()
    return described


def compared(
    study: Study,
    states: Mapping[Unit, State],
    find: Callable[[str], Any],
    extract_opts: Sequence[str],
    opts: Sequence[str],
) -> dict[Unit, State]:
    """Return the states, ``other`` for finished outputs that are not what the study would make.

    ``find`` returns a :class:`cog.models.choice.ModelChoice` by name; the others are keys and values of
    extractions and classifiers.
    """
    made = [unit for unit, state in states.items() if state.word in (DONE, DELETED)]
    models = list(dict.fromkeys(unit.model for unit in made))
    of_all = functools.partial(describe, find, extract_opts)
    # In another process: this one must not import torch, which starts threads.
    networks = next(in_processes(of_all, [models], 1)) if models else {}
    if networks is None:
        raise CogError("memory is too small to load networks, or one is faulty; try each with --dry_run")
    if unknown := [model for model in models if model not in networks]:
        logger.warning(
            "finished results are kept as they are, of networks that cannot be loaded: %s", some(unknown)
        )
    cfgs = {model: config.get_cfg(model_name=model, opts=opts) for model in models}
    features: dict[Unit, dict[str, Any]] = {}
    other: dict[Unit, State] = {}
    for unit in made:
        network = networks.get(unit.model, {})
        record = study.record(unit)
        stored = record.get("identity") or {}
        changed: list[str] = []
        if unit.split:
            features[unit] = stored and stored | network | {"rows_sha256": record.get("rows_sha256")}
            changed = _changed(stored, network) if stored else []  # else: of the original toolkit
        elif stored:
            run = settings.from_config(cfgs[unit.model], seed=unit.seed)
            run = dataclasses.replace(run, n_shot=unit.n_shot)
            changed = _changed(stored, json.loads(json.dumps(dataclasses.asdict(run))))
            for split in constants.SPLITS:
                used = stored.get(f"{split}_features") or {}
                wanted = features.get(Unit(unit.model, unit.dataset, split), network)
                changed += _changed(used, wanted) if used.get("model") else []
        if changed:
            # The digest of other rows says nothing where the network differs.
            telling = [text for text in changed if not text.startswith("rows_sha256")] or changed
            text = "; ".join(dict.fromkeys(telling))
            other[unit] = State(OTHER, re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1", text))
    return {**states, **other}


def _changed(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences in the entries that are wanted."""
    return differences({key: stored.get(key) for key in wanted}, wanted)
