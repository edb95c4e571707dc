"""What is known of models: what they have seen in pretraining, and how their user calls them.

Those that may have seen concepts of the levels are marked, and never called best on *unseen* ones.

L1 to L5 are unseen only by models whose pretraining used nothing beyond IN-1K (:mod:`cog.models.pretraining`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cog import constants
from cog.errors import CogError, some
from cog.models import models_file as own_models
from cog.models.pretraining import IN1K, UNKNOWN, pretraining
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS
from cog.results import published
from cog.results.scores import RUNS

logger = logging.getLogger(__name__)

#: Stands after the name of a model that may have seen concepts of the levels.
MARK = "†"

#: Labels of the zoo's models that the paper has no numbers of.
_LABELS = {name: spec.paper.label for name, spec in MODELS.items() if name not in published.MODELS}

_STATE = "State it as pretraining in --models_file."
_LEVELS = "For a known set of concepts, build_levels.py --seen_wnids makes levels without them."


@dataclass(frozen=True)
class ModelFacts:
    """What models have seen, and how they are called; by name of the model.

    What is known of a model's pretraining comes before what its name tells. Published numbers are of published weights.

    Attributes:
        recorded: pretraining of models with runs on disk, as ``features.json`` says.
        stated: pretraining of models in the user's file; these come first.
        labels: names in figures and on the page, of models with runs on disk.
        groups: models of a group have a color in common.
        imported: pretraining of models in imported files, by name and source.
        stated_labels: names in the user's file, of imported results, too. Imported files have none: a stranger's name
            could be taken for another model's.
    """

    recorded: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    imported: Mapping[tuple[str, str], str] = field(default_factory=dict)
    stated_labels: Mapping[str, str] = field(default_factory=dict)

    def of(self, model: str, source: str = RUNS) -> str:
        """Return what a model has seen, one of :data:`cog.models.spec.PRETRAINING`."""
        return self._said(model, source) or pretraining(model)

    def not_in_name(self, model: str, source: str = RUNS) -> str | None:
        """Return what a model has seen where its name does not tell it, or tells another; None elsewhere."""
        said = self._said(model, source)
        return None if said is None or said == pretraining(model) else said

    def _said(self, model: str, source: str) -> str | None:
        if source in published.SOURCES.values():
            return None
        if model in self.stated:
            return self.stated[model]
        return self.recorded.get(model) if source == RUNS else self.imported.get((model, source))

    def mark(self, model: str, source: str = RUNS) -> str:
        """Return what follows the name of a model: a mark, or ""."""
        return "" if self.of(model, source) == IN1K else f" {MARK}"

    def label(self, model: str, source: str = RUNS) -> str:
        """Return how the user calls a model of theirs, or how others are known; all other models keep their name."""
        name = _LABELS.get(model, model)
        if source == RUNS:
            return self.labels.get(model, name)
        return model if source in published.SOURCES.values() else self.stated_labels.get(model, name)

    def footnote(
        self,
        models: Iterable[tuple[str, str]],
        *,
        label: Callable[[str, str], str] = lambda model, source: model,
        advice: bool = True,
    ) -> str:
        """Return what the mark says of models, given with their sources; "" when none has one.

        Args:
            models: with their sources.
            label: how tables or figures call a model and source.
            advice: whether to say what can be done.
        """
        kinds: dict[str, list[str]] = {}
        for model, source in dict.fromkeys(models):
            kinds.setdefault(self.of(model, source), []).append(label(model, source))
        parts = [
            f"{'not stated' if kind == UNKNOWN else kind}: {some(list(dict.fromkeys(kinds[kind])))}"
            for kind in PRETRAINING
            if kind in kinds and kind != IN1K
        ]
        if not parts:
            return ""
        text = f"{MARK} pretraining may have held concepts of L1 to L5, which are then not unseen ({'; '.join(parts)})."
        if not advice:
            return text
        return " ".join([text, *[_STATE] * (UNKNOWN in kinds), _LEVELS])


def read_model_facts(
    recorded: Mapping[str, Mapping[str, str | None]],
    path: str | os.PathLike[str] | None = None,
    imported: Mapping[tuple[str, str], str] | None = None,
) -> ModelFacts:
    """Return what is known of models.

    Args:
        recorded: ``pretraining``, ``label`` and ``group`` of each model; None and unknown words of the first count as
            absent.
        path: the user's models, which come first; None: there is no such file. An entry that cannot be used is left
            out with a warning.
        imported: pretraining of models in imported files, by name and source.

    Raises:
        CogError: an unusable file.
    """
    own = {}
    for name, entry in (own_models.read(path) if path is not None else {}).items():
        try:
            own[name] = own_models.parse(path or "", name, entry)
        except CogError as error:
            logger.warning("%s; this entry is left out", error)

    def texts(key: str) -> dict[str, str]:
        found = {model: text for model, facts in recorded.items() if (text := facts.get(key))}
        return found | {name: text for name, entry in own.items() if (text := getattr(entry, key))}

    known = {
        model: text for model, facts in recorded.items() if (text := facts.get("pretraining")) in PRETRAINING
    }
    stated = {name: pretraining(name, path) for name in own}
    stated_labels = {name: entry.label for name, entry in own.items() if entry.label}
    return ModelFacts(known, stated, texts("label"), texts("group"), imported or {}, stated_labels)


def shows_levels(datasets: Iterable[str]) -> bool:
    """Whether one of the data sets is a level."""
    return any(constants.cog_level(dataset) is not None for dataset in datasets)
