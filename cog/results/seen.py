"""Which models may have seen concepts of the levels in pretraining: they are marked, and never best on *unseen* ones.

L1 to L5 are unseen only by models whose pretraining used nothing beyond IN-1K (:mod:`cog.models.pretraining`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cog import constants
from cog.models import models_file as own_models
from cog.models.pretraining import IN1K, UNKNOWN, pretraining
from cog.models.spec import PRETRAINING
from cog.results import published
from cog.results.scores import RUNS

#: Stands after the name of a model that may have seen concepts of the levels.
MARK = "†"

# Of many models, those that the footnote names.
_NAMED = 3

_ADVICE = (
    "State it as pretraining in --models_file; for a known set of concepts, build_levels.py --seen_wnids makes levels "
    "without them."
)


@dataclass(frozen=True)
class Pretraining:
    """What models have seen.

    Attributes:
        recorded: of models with runs on disk, as ``features.json`` says, by name.
        stated: of models in the user's file, by name; these come first.
    """

    recorded: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)

    def of(self, model: str, source: str = RUNS) -> str:
        """Return what a model has seen, one of :data:`cog.models.spec.PRETRAINING`."""
        if source not in published.SOURCES.values() and model in self.stated:
            return self.stated[model]
        return (self.recorded.get(model) if source == RUNS else None) or pretraining(model)

    def mark(self, model: str, source: str = RUNS) -> str:
        """Return what follows the name of a model: a mark, or ""."""
        return "" if self.of(model, source) == IN1K else f" {MARK}"

    def footnote(self, models: Iterable[tuple[str, str]], *, advice: bool = True) -> str:
        """Return what the mark says of models, given with their sources; "" when none has one.

        Args:
            models: with their sources.
            advice: whether to say what can be done.
        """
        kinds: dict[str, list[str]] = {}
        for model, source in dict.fromkeys(models):
            kinds.setdefault(self.of(model, source), []).append(model)
        parts = [
            f"{'not stated' if kind == UNKNOWN else kind}: {_listing(list(dict.fromkeys(kinds[kind])))}"
            for kind in PRETRAINING
            if kind in kinds and kind != IN1K
        ]
        if not parts:
            return ""
        text = f"{MARK} pretraining may have held concepts of L1 to L5, which are then not unseen ({'; '.join(parts)})."
        return f"{text} {_ADVICE}" if advice else text


def read(recorded: Mapping[str, str | None], path: str | os.PathLike[str] | None = None) -> Pretraining:
    """Return what models have seen.

    Args:
        recorded: by model; unknown words and None are left out.
        path: the user's models; None: there is no such file.

    Raises:
        CogError: an unusable file or entry.
    """
    known = {model: text for model, text in recorded.items() if text in PRETRAINING}
    names = own_models.read(path) if path is not None else ()
    return Pretraining(known, {name: pretraining(name, path) for name in names})


def shows_levels(datasets: Iterable[str]) -> bool:
    """Whether one of the data sets is a level."""
    return any(constants.cog_level(dataset) is not None for dataset in datasets)


def _listing(models: list[str]) -> str:
    more = f" and {len(models) - _NAMED} more" if len(models) > _NAMED else ""
    return ", ".join(models[:_NAMED]) + more
