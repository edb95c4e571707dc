"""The pretraining data of a model by its name, from the row in the zoo, the library's tags, or the user's file.

The concepts of ``L1`` to ``L5`` are unseen only by models that were pretrained on IN-1K alone. This module imports
neither torch nor another library.
"""

from __future__ import annotations

import os
import re

from cog.models import models_file as own_models
from cog.models.models_file import ModelEntry
from cog.models.spec import PRETRAINING
from cog.models.zoo import MODELS

IN1K, IN21K, IN1K_AND_OTHER, WEB, UNKNOWN = PRETRAINING

#: Words in names and tags of the libraries' models. The data of DINOv2 and DINOv3 (LVD) and of EVA (merged 30M and 38M)
#: include IN-21K, and SSLD distills with images of IN-21K.
_IN21K = re.compile(r"in12k|inw?2[12]k|(pt|ft)?2[12]k|lvd\d+m|dinov[23]|m3[08]m|ssld")
_WEB = re.compile(
    r"laion\w*|openai|webli|datacomp\w*|commonpool|(m|mobile|meta|tiny)?clip[a2]?|dfn\w*|yfcc\w*|cc3m|cc12m|merged2b|siglip2?|"
    r"coca|s?wsl|ig\d\w*|jft\w*|seer|swag|sa1b|aimv2|fullcc|worldwide|sat493m|openclip"
)
_IN1K = re.compile(r"in1k|imagenet1k|1k|mae|fcmae|dino")

#: Owners whose models with IN-1K, MAE or DINO in their names were trained on IN-1K alone; other owners train MAE and
#: DINO on other data, or fine-tune on IN-1K after training on more data.
_OWNERS = re.compile(r"hf_(facebook|timm|apple|shi-labs)--|hub_facebookresearch--")

#: Models trained on IN-1K, with teachers trained on IN-21K (USI's, BiT's) or on web data (BEiT v2's CLIP).
_TAUGHT = re.compile(r"beitv2|usi_in1k|goog_distilled")


def pretraining(name: str, models_file: str | os.PathLike[str] | None = None) -> str:
    """Return the pretraining data of a model, one of :data:`cog.models.spec.PRETRAINING`.

    Args:
        name: name of the model in the paper, in a library, or in ``models_file``.
        models_file: file of the user's models; the model's entry there takes precedence.

    Raises:
        CogError: an unusable file, or an unusable entry of the model.
    """
    entry = own_models.find(models_file, name) if models_file is not None else None
    if entry is not None and (said := stated(entry)) is not None:
        return said
    known_as = entry.source if entry is not None and entry.source is not None else name
    return MODELS[known_as].pretraining if known_as in MODELS else _from_tags(known_as)


def stated(entry: ModelEntry) -> str | None:
    """Return the pretraining data of a user's entry, "unknown" for the user's weights; None: the data of its source."""
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
    # The name of a torch.hub repository is left out: its models were pretrained on different data.
    tags = _words(name.rpartition(".")[2]) if title == "hub" else words
    known = title not in ("hf", "hub") or _OWNERS.match(name.lower()) is not None
    # torchvision's classification weights, SWAG's included, were trained on IN-1K last.
    in1k = title == "torchvision" or (known and any(map(_IN1K.fullmatch, tags)))
    if in1k and (web or _TAUGHT.search(name)):
        return IN1K_AND_OTHER
    if web:
        return WEB
    return IN1K if in1k else UNKNOWN


def _words(text: str) -> list[str]:
    return re.split(r"[._-]+", text.lower())
