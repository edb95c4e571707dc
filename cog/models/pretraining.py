"""The pretraining data of a model by name."""

from __future__ import annotations

from cog.models.paper_models import MODELS

IN1K, UNKNOWN = "IN-1K", "unknown"


def pretraining(name: str) -> str:
    """Return the pretraining data of a model, one of :data:`cog.models.spec.PRETRAINING`: a row's, else "unknown"."""
    return MODELS[name].pretraining if name in MODELS else UNKNOWN
