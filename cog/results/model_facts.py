"""Facts about models: their pretraining data, and the names that users give them.

L1 to L5 are unseen only by models with no pretraining data beyond IN-1K (:mod:`cog.models.pretraining`). Models that
may have seen concepts of the levels are marked, and never called best on *unseen* concepts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cog import constants
from cog.errors import CogError, some
from cog.models import models_file as own_models
from cog.models.pretraining import IN1K, UNKNOWN, pretraining
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS
from cog.results import published
from cog.results.scores import RUNS, SeedAverage
from cog.results.search_history import FeatureDescription

logger = logging.getLogger(__name__)

#: Mark after the name of a model that may have seen concepts of the levels.
MARK = "†"

#: Labels of the models of the zoo without published numbers.
_LABELS = {name: spec.paper.label for name, spec in MODELS.items() if name not in published.MODELS}

_STATE = "State it as pretraining in --models_file."
_LEVELS = "For a known set of concepts, build_levels.py --seen_wnids makes levels without them."


@dataclass(frozen=True)
class ModelFacts:
    """Pretraining data and display names of models, by name of the model.

    Recorded or stated pretraining has priority over pretraining derived from the name of a model. Published numbers
    keep the names of their models, and have the pretraining of the published weights.

    Attributes:
        recorded: pretraining of models with runs on disk, from ``features.json``.
        stated: pretraining of models in the user's file; it has the highest priority.
        labels: names of models with runs on disk, for figures and pages.
        groups: groups of models; the models of a group have the same color.
        imported: pretraining of models in imported files, by name and source.
        stated_labels: names in the user's file, also for imported results. Imported files contain no names, which could
            be mistaken for those of other models.
    """

    recorded: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    imported: Mapping[tuple[str, str], str] = field(default_factory=dict)
    stated_labels: Mapping[str, str] = field(default_factory=dict)

    def of(self, model: str, source: str = RUNS) -> str:
        """Return the pretraining of a model, one of :data:`cog.models.spec.PRETRAINING`."""
        return self._known(model, source) or pretraining(model)

    def not_in_name(self, model: str, source: str = RUNS) -> str | None:
        """Return the recorded or stated pretraining of a model if it does not follow from the name, else None."""
        known = self._known(model, source)
        return None if known is None or known == pretraining(model) else known

    def _known(self, model: str, source: str) -> str | None:
        if source in published.SOURCES.values():
            return None
        if model in self.stated:
            return self.stated[model]
        return self.recorded.get(model) if source == RUNS else self.imported.get((model, source))

    def mark(self, model: str, source: str = RUNS) -> str:
        """Return the suffix of the name of a model: a mark, or ""."""
        return "" if self.of(model, source) == IN1K else f" {MARK}"

    def label(self, model: str, source: str = RUNS) -> str:
        """Return the display name of a model: the user's label, else the label in the zoo, else its name."""
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
        """Return the footnote that explains the mark; "" if no model is marked.

        Args:
            models: pairs of name and source.
            label: function that returns the display name of a model and source.
            advice: whether to add advice.
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
        return " ".join([text, *[_STATE] * (advice and UNKNOWN in kinds), *[_LEVELS] * advice])


def read_model_facts(
    features: Mapping[tuple[str, str, str], FeatureDescription],
    stated: Iterable[SeedAverage] = (),
    path: str | os.PathLike[str] | None = None,
) -> ModelFacts:
    """Return the facts about models.

    Args:
        features: descriptions of the features of runs by model, data set and split.
        stated: averages in imported files, with the stated pretraining of their models.
        path: file with the user's models; an unusable entry is left out with a warning.

    Raises:
        CogError: when the file is unusable.
    """
    recorded = {model: made for (model, *_), made in features.items()}
    of_user = {}
    for name, entry in (own_models.read(path) if path is not None else {}).items():
        try:
            of_user[name] = own_models.parse(path or "", name, entry)
        except CogError as error:
            logger.warning("%s; this entry is left out", error)

    def texts(key: str, *groups: Mapping[str, Any]) -> dict[str, str]:
        return {model: text for of in groups for model, facts in of.items() if (text := getattr(facts, key))}

    known = texts("pretraining", recorded)
    return ModelFacts(
        recorded={model: text for model, text in known.items() if text in PRETRAINING},
        stated={name: pretraining(name, path) for name in of_user},
        labels=texts("label", recorded, of_user),
        groups=texts("group", recorded, of_user),
        imported={(a.model, a.source): a.pretraining for a in stated if a.pretraining is not None},
        stated_labels=texts("label", of_user),
    )


def shows_levels(datasets: Iterable[str]) -> bool:
    """Return whether one of the data sets is a level."""
    return any(constants.cog_level(dataset) is not None for dataset in datasets)
