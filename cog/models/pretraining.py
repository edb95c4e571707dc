"""The pretraining data of a model, from the row in the zoo or from the user's file.

The concepts of ``L1`` to ``L5`` are unseen only by models that were pretrained on IN-1K alone.
"""

from __future__ import annotations

import os

from cog.models import models_file as own_models
from cog.models.models_file import ModelEntry
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS

IN1K, UNKNOWN = PRETRAINING[0], PRETRAINING[-1]


def pretraining(name: str, models_file: str | os.PathLike[str] | None = None) -> str:
    """Return the pretraining data of a model, one of :data:`cog.models.spec.PRETRAINING`.

    Args:
        name: name of the model in the paper, in a library, or in ``models_file``.
        models_file: file of the user's models; the model's entry there takes precedence.

    Raises:
        CogError: an unusable file, or an unusable entry of the model.
    """
    entry = own_models.find(models_file, name) if models_file is not None else None
    return of_entry(name, entry)


def of_entry(name: str, entry: ModelEntry | None) -> str:
    """Return the pretraining data of a model with an entry in the user's file, "unknown" for the user's weights."""
    if entry is not None:
        if entry.pretraining is not None:
            return entry.pretraining
        if entry.loader is not None or entry.checkpoint is not None:
            return UNKNOWN
        name = entry.source or name
    return MODELS[name].pretraining if name in MODELS else UNKNOWN
