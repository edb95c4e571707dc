"""Names of models and data sets from the texts that users write: ``DINO`` and ``L5`` as in the paper's tables,
``sup_ResNet50``, the label of a user's own model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from cog.constants import is_model_name, is_plain_name
from cog.data import datasets
from cog.errors import CogError, did_you_mean, some
from cog.models import models_file as own_models
from cog.models.zoo import MODELS
from cog.paths import ModelDir

#: Abbreviated groups before the paper's labels: a-, s-, r-, d- and t-.
_GROUP = re.compile("^[asrdt]-(?=[A-Z])")


def matching(text: str, labels: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names that a text may mean: the name or one of its labels has the same letters, digits and asterisks.

    Args:
        text: the user's text; upper and lower case are not distinguished.
        labels: labels by name.

    >>> matching("l5", {"cog_l1": ("L1",), "cog_l5": ("L5",)})
    ['cog_l5']
    """
    plain = _plain(text)
    return [name for name, words in labels.items() if plain in map(_plain, (name, *words))] if plain else []


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9*]", "", text.casefold())


def labels_of(models_file: str | os.PathLike[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Return the labels of the models of the zoo and of the user's file, by name.

    Raises:
        CogError: an unusable file.
    """
    labels: dict[str, tuple[str, ...]] = {
        spec.name: (spec.label, _GROUP.sub("", spec.label)) for spec in MODELS.values()
    }
    for name, entry in (own_models.read(models_file) if models_file is not None else {}).items():
        label = entry.get("label") if isinstance(entry, dict) else None
        labels[name] = (*labels.get(name, ()), *([label] if isinstance(label, str) else []))
    return labels


def find_model(
    text: str,
    *,
    models_file: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    has_loader: bool = False,
    flag: str = "--model",
) -> str:
    """Return the name of a model from a name or label; patterns and names of the user's models are returned unchanged.

    A text in the form of a name stands only for names and labels that differ from it in upper and lower case:
    ``deit_s`` may be the user's model, ``DeiT-S`` is a label.

    Args:
        text: the user's text.
        models_file: file of the user's models.
        root: folder of all models; a name with a folder there is returned unchanged.
        has_loader: whether the user's own loader is given; a text in the form of a name is then returned unchanged.
        flag: flag of the text, for messages.

    Raises:
        CogError: the text is a label of several models, or neither a name nor a label.
    """
    labels = labels_of(models_file)
    if text in labels:
        return text
    if is_model_name(text):
        if has_loader or (root is not None and ModelDir(root, text).path.is_dir()):
            return text
        matches = [
            name for name, words in labels.items() if text.casefold() in map(str.casefold, (name, *words))
        ]
    else:
        matches = matching(text, labels)
    if len(matches) > 1:
        raise CogError(f"{flag} {text} may be {some(matches, 6)}; give one of these names")
    if matches:
        return matches[0]
    if not is_model_name(text) and not re.search(r"[*?[]", text):  # neither a name nor a pattern
        words = {word: name for name, others in labels.items() for word in (name, *others)}
        hint = did_you_mean(text, words)
        # The form of names at the hub of transformers and in torch.hub.
        if re.fullmatch(r"[^/]+/[^/]+", text):
            name = text.replace("/", "--")
            name = name if name.startswith(("hf_", "hub_")) else f"hf_{name}"
            hint = f"; did you mean {name}?" if is_model_name(name) else hint
        raise CogError(
            f"{flag} {text!r} is not a model name, expected <model_title>_<architecture_name> such as sup_resnet50 "
            f"(letters, digits and ._+- only), or a label of the paper's such as DINO{hint}"
        )
    return text


def find_dataset(text: str, *, root: str | os.PathLike[str] | None = None) -> str:
    """Return the name of a data set from its name or label (``L5``, ``IN-1K``); other texts are returned unchanged.

    Args:
        text: the user's text.
        root: folder of all models; a text that is the name of a folder of results there is returned unchanged.
    """
    if datasets.find(text) is not None or not is_plain_name(text):
        return text
    matches = matching(text, {name: (datasets.label(name) or "",) for name in datasets.names()})
    if not matches or (root is not None and next(Path(root).glob(f"*/*/{text}"), None) is not None):
        return text
    return matches[0]
