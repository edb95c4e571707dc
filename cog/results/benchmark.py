"""Is a result on the benchmark's data, made with the paper's settings? Columns ``data`` and ``protocol``.

Data are judged by numbers of classes and images, for IN-1K also by the list of classes.
"""

import functools
from collections.abc import Mapping
from typing import Any

from cog import constants
from cog.config import default_cfg
from cog.data.wnids import IN1K_LIST, class_list_digest
from cog.errors import printable
from cog.results.frame import BENCHMARK, CLASSIFIER, LOGREG, UNKNOWN
from cog.runtime import files

# Classes, training and test images (ILSVRC-2012; paper Sec. 3.2, 4.1, A.1): 50 test and 732 to 1300 training
# images per concept of a level.
_N_CLASSES, _N_TEST = 1000, 50_000
_N_TRAIN_IN1K, _N_TRAIN_LEVEL = (1_281_167, 1_281_167), (732_000, 1_300_000)

_NEARLY = 0.002  # a few unreadable images do not make another data set

#: Settings of the paper's protocol (Sec. 4.1, supplement B.3; epochs and intervals: configuration of the
#: original toolkit): the name in the records of runs, the value, and the key of the configuration, if any.
PROTOCOL: dict[str, tuple[Any, str]] = {
    "n_trials": (30, "CLF.N_TRIALS"),
    "n_epochs": (100, "CLF.N_EPOCHS"),
    "batch_size": (1024, "CLF.BATCH_SIZE"),
    "momentum": (0.9, ""),
    "val_frac": (0.2, "CLF.VAL_PERC"),
    "lr_interval": ([0.1, 100.0], "CLF.LR_INTV"),
    "wd_interval": ([1e-12, 1e-4], "CLF.WD_INTV"),
    "normalize": (True, "CLF.NORM_FTS"),
    "classifier": ("logreg", "CLF.TYPE"),
    "max_per_class": (0, "CLF.MAX_PER_CLASS"),
    "mlp_hidden": (2048, "CLF.MLP_HIDDEN"),
    "mlp_layers": (2, "CLF.MLP_LAYERS"),
}


@functools.cache
def in1k_class_list() -> str:
    """Return the digest of the 1000 classes of IN-1K (:func:`cog.data.wnids.class_list_digest`)."""
    return class_list_digest(IN1K_LIST.read_text(encoding="utf-8").split())


def data_of(
    dataset: str,
    *,
    n_classes: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    classes: str | None = None,
) -> str:
    """Return the column ``data`` of a result; what is None is not recorded, ``classes`` is a digest."""
    is_named = dataset in constants.DATASETS
    low, high = _N_TRAIN_IN1K if dataset == constants.IN1K else _N_TRAIN_LEVEL
    expected = {
        "classes": (n_classes, _N_CLASSES, _N_CLASSES),
        "training images": (n_train, low * (1 - _NEARLY), high * (1 + _NEARLY)),
        "test images": (n_test, _N_TEST * (1 - _NEARLY), _N_TEST * (1 + _NEARLY)),
    }
    other = [
        f"{count:,} {noun}"
        for noun, (count, least, most) in expected.items()
        if count is not None and not (is_named and least <= count <= most)
    ]
    if not other and dataset == constants.IN1K and classes not in (None, in1k_class_list()):
        other = [f"list of classes {str(classes)[:8]}"]
    return ", ".join(other) or (UNKNOWN if n_classes is None else BENCHMARK)


def unlike_protocol(settings: Mapping[str, Any], evaluation: str, *, diverged: bool = False) -> str:
    """Return the column ``protocol`` of a run: settings (in types of JSON) unlike the paper's, or ""."""
    usual = _usual(evaluation).items()
    words = [f"{name} {_in_words(settings[name])}" for name, v in usual if settings.get(name, v) != v]
    return ", ".join([*words, *["training diverged"] * diverged])


@functools.cache
def _usual(evaluation: str) -> dict[str, Any]:
    """Return the settings of the paper for a classifier, in the types of JSON."""
    match = CLASSIFIER.fullmatch(evaluation)
    kind = match["type"] if match else LOGREG
    usual = {name: value for name, (value, _) in PROTOCOL.items()} | {"classifier": kind}
    of_kind = constants.CLASSIFIERS.get(kind, {})
    usual |= {name: of_kind[key[4:]] for name, (_, key) in PROTOCOL.items() if key[4:] in of_kind}
    if match:
        usual["max_per_class"] = int(match["max"] or 0)
    if kind == "finetune":  # ours: the paper gives none
        usual = {key.lower(): value for key, value in default_cfg().FINETUNE.items() if key != "PRECISION"}
    return {name: files.plain(value) for name, value in usual.items()}


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_in_words, value[:2]))
    return f"{value:g}" if isinstance(value, float) else printable(str(value)[:40])
