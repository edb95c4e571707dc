"""Data that a model has seen in pretraining, by its name: from its row, its library's tags, or the user's file.

``L1`` to ``L5`` are unseen only by models whose pretraining used nothing beyond IN-1K. Imports no torch and no library.
"""

from __future__ import annotations

import os
import re

from cog.models import models_file as own_models
from cog.models.models_file import ModelEntry
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS

IN1K, IN21K, IN1K_AND_OTHER, WEB, UNKNOWN = PRETRAINING

#: Words in names and tags of the libraries' models. DINOv2's and DINOv3's data (LVD) and EVA's (merged 30M and 38M)
#: hold IN-21K, and SSLD distills with images of it.
_IN21K = re.compile(r"in12k|inw?2[12]k|(pt|ft)?2[12]k|lvd\d+m|dinov[23]|m3[08]m|ssld")
_WEB = re.compile(
    r"laion\w*|openai|webli|datacomp\w*|commonpool|(m|mobile|meta|tiny)?clip[a2]?|dfn\w*|yfcc\w*|cc3m|cc12m|merged2b|siglip2?|"
    r"coca|s?wsl|ig\d\w*|jft\w*|seer|swag|sa1b|aimv2|fullcc|worldwide|sat493m|openclip"
)
_IN1K = re.compile(r"in1k|imagenet1k|1k|mae|fcmae|dino")

#: Owners whose names say IN-1K of models that saw nothing else; others train MAE and DINO on data of their own, or
#: fine-tune on IN-1K what saw more before.
_OWNERS = re.compile(r"hf_(facebook|timm|apple|shi-labs)--|hub_facebookresearch--")

#: Trained on IN-1K, with teachers that saw IN-21K (USI's, BiT's) or web data (BEiT v2's CLIP).
_TAUGHT = re.compile(r"beitv2|usi_in1k|goog_distilled")


def pretraining(name: str, models_file: str | os.PathLike[str] | None = None) -> str:
    """Return what a model has seen, one of :data:`cog.models.spec.PRETRAINING`.

    Args:
        name: its name: of the paper, of a library, or of an entry of ``models_file``.
        models_file: the user's models; what an entry says comes first.

    Raises:
        CogError: an unusable file, or entry of the model.
    """
    entry = own_models.find(models_file, name) if models_file is not None else None
    if entry is not None and (said := stated(entry)) is not None:
        return said
    known_as = entry.source if entry is not None and entry.source is not None else name
    return MODELS[known_as].pretraining if known_as in MODELS else _from_tags(known_as)


def stated(entry: ModelEntry) -> str | None:
    """Return what an entry of the user's says a model has seen, unknown of weights of its own; None: as its source."""
    if entry.pretraining is not None:
        return entry.pretraining
    return UNKNOWN if entry.loader is not None or entry.checkpoint is not None else None


def _from_tags(name: str) -> str:
    title = name.partition("_")[0]
    if title not in ("timm", "torchvision", "openclip", "hf", "hub"):
        return UNKNOWN
    words = _words(name)
    in21k, web = (any(map(words_of.fullmatch, words)) for words_of in (_IN21K, _WEB))
    if "sat493m" in words:  # DINOv3 on satellite images
        return WEB
    if in21k:
        return IN21K
    # Of a repository of torch.hub the name says nothing: the models of one saw different data.
    told = _words(name.rpartition(".")[2]) if title == "hub" else words
    known = title not in ("hf", "hub") or _OWNERS.match(name.lower()) is not None
    # torchvision's classification weights, SWAG's included, end on IN-1K.
    in1k = title == "torchvision" or (known and any(map(_IN1K.fullmatch, told)))
    if in1k and (web or _TAUGHT.search(name)):
        return IN1K_AND_OTHER
    if web:
        return WEB
    return IN1K if in1k else UNKNOWN


def _words(text: str) -> list[str]:
    return re.split(r"[._-]+", text.lower())
