"""The YACS configuration: defaults, the model's values, a file and the command line, merged and frozen."""

from __future__ import annotations

import functools
import math
import os
import re
import reprlib
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from cog import constants
from cog.constants import CLASSIFIERS, is_unset
from cog.errors import CogError, did_you_mean
from cog.paths import split_model_name

#: Largest number of dots in a key: a mapping in a file may contain itself. Largest YAML file in bytes.
_MOST_DOTS, _LARGEST_YAML = 3, 1 << 20

#: Name of the runs of fine-tuning, used where EVAL.NAME has its default.
FINETUNE = "finetune"


def _numbers(value: Any, n: int, low: float, high: float) -> bool:
    """Return whether a value has ``n`` finite numbers above ``low`` and up to ``high``."""
    kinds = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    return len(value) == n and kinds and all(low < v <= high for v in value)


def _interval(value: Any, high: float = math.inf) -> bool:
    return _numbers(value, 2, 0, high) and value[0] <= value[1]


def _distinct(values: Any, low: int) -> bool:
    return len({*values}) == len(values) > 0 and all(type(v) is int and low <= v < 2**32 for v in values)


def _is_new_name(name: str) -> bool:
    return constants.is_plain_name(name) and not re.search(r"(^|[_-])N[0-9]+$", name)


_COUNT, _UNSIGNED, _NOT_NEGATIVE = (1, 2**31 - 1), (0, 2**32 - 1), (0.0, 1e300)
_INTERVAL = (_interval, "(low, high) with 0 < low <= high")

#: Allowed values by key: (lowest, highest), names, or a function with its words; types as of the defaults.
RANGES: dict[str, tuple[Any, ...]] = {
    "FT_EXTRACT.IMAGE_RESIZE_SIZE": _COUNT,
    "FT_EXTRACT.IMAGE_CROP_SIZE": _COUNT,
    "FT_EXTRACT.IMAGE_INTERPOLATION": constants.INTERPOLATIONS,
    "FT_EXTRACT.PREPROCESS": constants.GEOMETRIES,
    "FT_EXTRACT.POOLING": constants.POOLINGS,
    "FT_EXTRACT.IMAGE_NORM.MEAN": (lambda v: _numbers(v, 3, -math.inf, math.inf), "three numbers"),
    "FT_EXTRACT.IMAGE_NORM.STD": (lambda v: _numbers(v, 3, 0, math.inf), "three positive numbers"),
    "FT_EXTRACT.BATCH_SIZE": _COUNT,
    "FT_EXTRACT.N_WORKERS": (-1, 2**15),
    "FT_EXTRACT.PRECISION": ("fp32", "tf32", "fp16", "bf16"),
    "FT_EXTRACT.SAVE_DTYPE": ("float32", "float16", "bfloat16"),
    "EVAL.NAME": (_is_new_name, "a plain folder name that does not end like those of few-shot runs (_N8)"),
    "EVAL.SEED": _UNSIGNED,
    "CLF.TYPE": tuple(CLASSIFIERS),
    "CLF.MLP_HIDDEN": (1, 2**16 - 1),
    "CLF.MLP_LAYERS": (1, 2**16 - 1),
    "CLF.MAX_PER_CLASS": (0, 2**31 - 1),
    "CLF.BATCH_SIZE": _COUNT,
    "CLF.N_EPOCHS": _COUNT,
    "CLF.N_TRIALS": _UNSIGNED,
    "CLF.N_SHOT": _UNSIGNED,
    "CLF.VAL_PERC": (lambda v: 0 < v < 1, "a fraction between 0 and 1, both excluded"),
    "CLF.LR_INTV": _INTERVAL,
    "CLF.WD_INTV": _INTERVAL,
    "CLF.PRECISION": constants.PRECISIONS,
    "FINETUNE.N_EPOCHS": _COUNT,
    "FINETUNE.BATCH_SIZE": _COUNT,
    "FINETUNE.BATCH_PER_DEVICE": _COUNT,
    "FINETUNE.LR": (lambda v: 0 < v < math.inf, "a positive number"),
    "FINETUNE.MOMENTUM": (lambda v: 0 <= v < 1, "a number from 0 to 1, 1 excluded"),
    "FINETUNE.WEIGHT_DECAY": _NOT_NEGATIVE,
    "FINETUNE.WARMUP_EPOCHS": _NOT_NEGATIVE,
    "FINETUNE.CLIP_NORM": _NOT_NEGATIVE,
    "FINETUNE.CROP_SCALE": (lambda v: _interval(v, 1), "(low, high) with 0 < low <= high <= 1"),
    "FINETUNE.PRECISION": ("auto", "fp32", "bf16", "fp16"),
    "LEVELS.MIN_IMAGES": _COUNT,
    "LEVELS.N_TEST": _COUNT,
    "LEVELS.MAX_TRAIN": _COUNT,
    "LEVELS.EXCLUDED_ROOTS": (
        lambda v: all(isinstance(w, str) for w in v),
        "a list of ids such as ['n00007846']",
    ),
    "ANALYSIS.KMEANS_K": (0, 2**31 - 1),
    "ANALYSIS.KMEANS_SEEDS": (lambda v: _distinct(v, 0), "a list of different whole numbers"),
    "ANALYSIS.KNN_K": (lambda v: _distinct(v, 1), "a list of different whole numbers from 1"),
}


def check_values(cfg: CfgNode) -> None:
    """Raise a CogError when a value is out of range; it names the key, its value and the expected values."""
    values = flat(cfg)
    resize, n_test = values["FT_EXTRACT.IMAGE_RESIZE_SIZE"], values["LEVELS.N_TEST"]
    relations = {
        "FT_EXTRACT.IMAGE_CROP_SIZE": (lambda v: v <= resize, f"at most IMAGE_RESIZE_SIZE ({resize})"),
        "LEVELS.MIN_IMAGES": (lambda v: v > n_test, f"more than LEVELS.N_TEST ({n_test})"),
    }
    for key, allowed in [*RANGES.items(), *relations.items()]:
        if isinstance(allowed[0], str):
            is_good, words = values[key] in allowed, f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        elif isinstance(allowed[0], Callable):  # type: ignore[arg-type]
            is_good, words = allowed[0](values[key]), allowed[1]
        else:
            low, high = allowed
            is_good, words = low <= values[key] <= high, f"a number from {low} to {high}"
        if not is_good:
            raise CogError(f"{key} = {reprlib.repr(values[key])} is not valid, expected {words}")
    for key in ("FT_EXTRACT.IMAGE_NORM.MEAN", "FT_EXTRACT.IMAGE_NORM.STD"):
        check_statistics(key, values[key])


def check_statistics(label: str, values: Sequence[float]) -> None:
    """Raise a CogError when means or standard deviations of pixels are beyond [0, 1]."""
    if any(not 0 <= value <= 1 for value in values):
        divided = ", ".join(f"{value / 255:.4g}" for value in values)
        raise CogError(
            f"{label} {list(values)} is not valid: pixels are in [0, 1] here; divided by 255 it is [{divided}]"
        )


def configs_dir() -> Path:
    """Return the folder of ``default.py``: that of the installed package, or else that of the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def default_cfg() -> CfgNode:
    """Return a fresh, unfrozen copy of the defaults in ``configs/default.py``."""
    return runpy.run_path(str(configs_dir() / "default.py"))["_C"]


def get_cfg(
    *,
    declared: Mapping[str, Any] | None = None,
    model_name: str | None = None,
    opts: Sequence[str] = (),
    entry_values: Mapping[str, Any] | None = None,
    entry_source: str = "",
) -> CfgNode:
    """Return the configuration, merged from all sources in this order, checked and frozen.

    Args:
        declared: preprocessing (:class:`cog.data.pixels.Preprocess`) that the model declares, by value of
            ``FT_EXTRACT.PREPROCESS``. Empty: it declares none.
        entry_values: values of the model's entry in a file of the user's models.
        entry_source: the file of that entry, for messages.
        model_name: name whose ``configs/<model_name>.yaml`` applies.
        opts: flat ``[KEY, VALUE, ...]`` list of strings.

    Raises:
        CogError: unknown key, value of a wrong type or out of range, unreadable file, or a file in
            ``configs/`` that is not named like a model (it would be ignored in silence, as the original
            toolkit's ``clip.yaml`` was).
    """
    values = [(key, value, entry_source) for key, value in (entry_values or {}).items()]
    if model_name is not None:
        split_model_name(model_name)  # it becomes part of a file name
        for path in sorted(configs_dir().glob("*.yaml")):
            if not constants.is_model_name(path.stem):
                raise CogError(f"{path} matches no model name (<title>_<architecture>): rename it")
            tree = read_yaml(path) if path.stem == model_name else None
            if not isinstance(tree, dict | None):
                expected = "a YAML mapping such as CLF: {N_EPOCHS: 100}"
                raise CogError(f"{path} has {type(tree).__name__}, expected {expected}")
            values += [(key, _parse(value), str(path)) for key, value in _flatten(tree or {})]
    pairs = zip(opts[::2], opts[1::2], strict=True)
    values += [(key, _parse(text), "the command line") for key, text in pairs]
    cfg = default_cfg()
    # Any source can choose geometry and type of the classifier, which decide about defaults of other keys.
    _merge(cfg, values)
    fx = cfg.FT_EXTRACT
    if declared is not None and fx.PREPROCESS in declared:
        own = declared[fx.PREPROCESS]
        fx.IMAGE_RESIZE_SIZE, fx.IMAGE_CROP_SIZE = own.resize, own.size
        fx.IMAGE_NORM.MEAN, fx.IMAGE_NORM.STD = list(own.mean), list(own.std)
        fx.IMAGE_INTERPOLATION, fx.IMAGE_SQUASH = own.interpolation, own.squash
    elif declared is not None and (declared or fx.PREPROCESS == "model"):
        raise CogError(
            f"FT_EXTRACT.PREPROCESS model: {model_name} declares no preprocessing of its authors; leave it "
            "out, or let your loader declare it (docs/own-models.md)"
        )
    cfg.CLF.update(CLASSIFIERS.get(cfg.CLF.TYPE, {}))
    _merge(cfg, values)
    check_values(cfg)
    cfg.freeze()
    return cfg


def flat(cfg: CfgNode) -> dict[str, Any]:
    """Return ``{"CLF.N_SHOT": 0, ...}`` with plain Python values."""
    return dict(_flatten(cfg))


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the contents of a YAML file: plain values, no objects; a CogError says why it cannot be read."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST_YAML:
            raise CogError(f"cannot read {path}: expected a file of at most {_LARGEST_YAML:,} bytes")
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: an impossible date
        raise CogError(f"cannot read {path}: {error}") from error  # of YAML errors with line and column


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name.count(".") < _MOST_DOTS:
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


def _parse(text: Any) -> Any:
    """Return the value of a Python literal; any other text, and what is no text, is returned as it is."""
    if not isinstance(text, str) or is_unset(text):
        return text
    try:
        return CfgNode._decode_cfg_value(text)
    except Exception:  # ast.literal_eval fails in many ways: {[]: 1}, thousands of brackets or digits
        return text


def _merge(cfg: CfgNode, values: Sequence[tuple[str, Any, str]]) -> None:
    """Set keys and keep their types (whole numbers become floats where a float is expected)."""
    known = flat(cfg)
    for key, value, source in values:
        if key not in known:
            hint = did_you_mean(key, known, cutoff=0.7) or "; configs/default.py lists all keys"
            raise CogError(f"unknown configuration key {key} (from {source}){hint}")
        if value is None or (isinstance(value, str) and is_unset(value)):
            continue  # `CLF.N_SHOT None` means that the key is not given
        default = known[key]
        if isinstance(default, float) and isinstance(value, int | float) and not isinstance(value, bool):
            value = float(value)
        elif isinstance(default, list | tuple) and isinstance(value, list | tuple):
            value = type(default)(value)
        elif isinstance(default, str) and not isinstance(value, str):
            value = str(value)
        if type(value) is not type(default):
            raise CogError(
                f"{key} = {reprlib.repr(value)} (from {source}) is of type {type(value).__name__}, expected "
                f"{type(default).__name__} such as {default!r}"
            )
        *path, leaf = key.split(".")
        functools.reduce(getattr, path, cfg)[leaf] = value


def variant_name(name: str, *, max_per_class: int) -> str:
    """Return a name with the suffix of ``CLF.MAX_PER_CLASS``, if that is not 0."""
    return f"{name}_max{max_per_class}" if max_per_class else name


def evaluation_name(cfg: CfgNode) -> str:
    """Return the name of an evaluation, the argument of :func:`cog.paths.evaluation_folder`.

    The name is ``EVAL.NAME`` (``CLF.TYPE`` where ``EVAL.NAME`` has its default), with a suffix for an option
    that changes the training data, so that such results never lie among the protocol's: ``logreg_max732``.
    """
    name = cfg.CLF.TYPE if cfg.EVAL.NAME == default_cfg().EVAL.NAME else cfg.EVAL.NAME
    return variant_name(name, max_per_class=cfg.CLF.MAX_PER_CLASS)


def check_new_name(cfg: CfgNode, kind: str) -> None:
    """Refuse an ``EVAL.NAME`` under which runs of ``kind`` (``CLF.TYPE``, or :data:`FINETUNE`) lie among others."""
    name = cfg.EVAL.NAME
    if name in {FINETUNE, *CLASSIFIERS} - {default_cfg().EVAL.NAME, kind}:
        raise CogError(f"EVAL.NAME {name} is the name of other runs than those of {kind}; take another name")
    if re.search(r"_max[0-9]+$", name):
        raise CogError(f"EVAL.NAME {name} ends like the folders of CLF.MAX_PER_CLASS; take another name")
