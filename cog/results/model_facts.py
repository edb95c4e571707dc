"""Facts about models: their pretraining data, and the names that users give them.

L1 to L5 are unseen only by models with no pretraining data beyond IN-1K (:mod:`cog.models.pretraining`). Models that
may have seen concepts of the levels are marked, and never called best on *unseen* concepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cog import constants
from cog.errors import some
from cog.models.pretraining import IN1K, UNKNOWN, pretraining
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS
from cog.results import published
from cog.results.scores import RUNS, SeedAverage
from cog.results.search_history import FeatureDescription

#: Mark after the name of a model that may have seen concepts of the levels.
MARK = "†"

#: Labels of the models of the zoo without published numbers.
_LABELS = {name: spec.label for name, spec in MODELS.items() if name not in published.MODELS}

_STATE = "State it as pretraining in the models.yaml of extract_features.py."
_LEVELS = "For a known set of concepts, build_levels.py --seen_wnids makes levels without them."


@dataclass(frozen=True)
class ModelFacts:
    """Pretraining data and display names of models, by name of the model.

    Recorded pretraining has priority over pretraining derived from the name of a model. Published numbers keep the
    names of their models, and have the pretraining of the published weights.

    Attributes:
        recorded: pretraining of models with runs on disk, from ``features.json``.
        labels: names of models with runs on disk, for figures and pages.
        groups: groups of models; the models of a group have the same color.
        imported: pretraining of models in imported files, by name and source.
    """

    recorded: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    imported: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, model: str, source: str = RUNS) -> str:
        """Return the pretraining of a model, one of :data:`cog.models.spec.PRETRAINING`."""
        return self._known(model, source) or pretraining(model)

    def not_in_name(self, model: str, source: str = RUNS) -> str | None:
        """Return the recorded pretraining of a model if it does not follow from the name, else None."""
        known = self._known(model, source)
        return None if known is None or known == pretraining(model) else known

    def _known(self, model: str, source: str) -> str | None:
        if source in published.SOURCES.values():
            return None
        return self.recorded.get(model) if source == RUNS else self.imported.get((model, source))

    def mark(self, model: str, source: str = RUNS) -> str:
        """Return the suffix of the name of a model: a mark, or ""."""
        return "" if self.of(model, source) == IN1K else f" {MARK}"

    def label(self, model: str, source: str = RUNS) -> str:
        """Return the display name of a model: the user's label, else the label in the zoo, else its name.

        Imported files contain no labels, which could be mistaken for those of other models.
        """
        name = _LABELS.get(model, model)
        if source == RUNS:
            return self.labels.get(model, name)
        return model if source in published.SOURCES.values() else name

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
    features: Mapping[tuple[str, str, str], FeatureDescription], stated: Iterable[SeedAverage] = ()
) -> ModelFacts:
    """Return the facts about models.

    Args:
        features: descriptions of the features of runs by model, data set and split.
        stated: averages in imported files, with the stated pretraining of their models.
    """
    recorded, labels, groups = (
        {model: value for (model, *_), made in features.items() if (value := getattr(made, name))}
        for name in ("pretraining", "label", "group")
    )
    return ModelFacts(
        recorded={model: text for model, text in recorded.items() if text in PRETRAINING},
        labels=labels,
        groups=groups,
        imported={(a.model, a.source): a.pretraining for a in stated if a.pretraining is not None},
    )


def shows_levels(datasets: Iterable[str]) -> bool:
    """Return whether one of the data sets is a level."""
    return any(constants.cog_level(dataset) is not None for dataset in datasets)
