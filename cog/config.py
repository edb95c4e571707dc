"""The YACS configuration: defaults, values of the model, a user's file and the command line, merged and frozen."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from cog import constants
from cog.constants import (
    CLASSIFIERS,
    GEOMETRIES,
    INTERPOLATIONS,
    POOLINGS,
    PRECISIONS,
    is_unset,
)
from cog.errors import CogError, did_you_mean
from cog.paths import split_model_name

#: Largest number of dots in a key: a mapping in a file may contain itself.
_MOST_DOTS = 3

#: Largest YAML file in bytes.
LARGEST_YAML = 1 << 20


def configs_dir() -> Path:
    """Return the folder of ``default.py``: that of the installed package, or else that of the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def default_cfg() -> CfgNode:
    """Return a fresh, unfrozen copy of the defaults in ``configs/default.py``."""
    path = configs_dir() / "default.py"
    spec = importlib.util.spec_from_file_location("cog._default_config", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._C.clone()


def get_cfg(
    *,
    declared: Mapping[str, Any] | None = None,
    model_name: str | None = None,
    config_file: str | os.PathLike[str] | None = None,
    opts: Sequence[str] = (),
    entry_values: Mapping[str, Any] | None = None,
    entry_source: str = "",
) -> CfgNode:
    """Return the configuration, merged from all sources, checked and frozen.

    Args:
        declared: preprocessing (:class:`cog.data.pixels.Preprocess`) that the model declares, by value of
            ``FT_EXTRACT.PREPROCESS``; it comes before the files. Empty: the model declares none. None: no model.
        model_name: name whose ``configs/<model_name>.yaml`` applies.
        config_file: the user's YAML file.
        opts: flat ``[KEY, VALUE, ...]`` list of strings.
        entry_values: values of the model's entry in a file of the user's models, by key; they come before the files.
        entry_source: the file of that entry, for messages.

    Raises:
        CogError: unknown key, key without a value, value of a wrong type or out of range, unreadable file, or a file
            in ``configs/`` that is not named like a model (it would be ignored in silence).
    """
    cfg = default_cfg()
    if model_name is not None:
        split_model_name(model_name)  # it becomes part of a file name
    if model_name:
        check_config_names()
    model_file = configs_dir() / f"{model_name}.yaml"

    def merge() -> None:
        for key, value in (entry_values or {}).items():
            _set(cfg, key, value, source=entry_source)
        if model_name and model_file.is_file():
            _merge_file(cfg, model_file)
        if config_file is not None:
            if not os.path.isfile(config_file):
                kind = (
                    "is a folder, expected a file"
                    if os.path.isdir(config_file)
                    else "does not exist; check the path"
                )
                raise CogError(f"--config {config_file} {kind}")
            _merge_file(cfg, Path(config_file))
        if len(opts) % 2:
            raise CogError(f"option {opts[-1]} has no value; expected KEY VALUE pairs")
        for key, text in zip(opts[::2], opts[1::2], strict=True):
            _set(cfg, key, text if is_unset(text) else _parse(text), source="the command line")

    merge()
    if declared is not None:
        # Any of the sources can choose the geometry, which decides the model's values. The model's values come
        # first, so that the sources can also override them.
        fx = cfg.FT_EXTRACT
        if fx.PREPROCESS in declared:
            pre = declared[fx.PREPROCESS]
            fx.IMAGE_RESIZE_SIZE, fx.IMAGE_CROP_SIZE = pre.resize, pre.size
            fx.IMAGE_NORM.MEAN, fx.IMAGE_NORM.STD = list(pre.mean), list(pre.std)
            fx.IMAGE_INTERPOLATION, fx.IMAGE_SQUASH = pre.interpolation, pre.squash
            merge()
        elif declared or fx.PREPROCESS == "model":
            raise CogError(
                f"FT_EXTRACT.PREPROCESS model: {model_name} declares no preprocessing of its authors; leave it out, or "
                "let your loader declare it (docs/own-models.md)"
            )
    if CLASSIFIERS.get(cfg.CLF.TYPE):  # any source can choose the type, too
        for key, value in CLASSIFIERS[cfg.CLF.TYPE].items():
            cfg.CLF[key] = value
        merge()
    check_values(cfg)
    cfg.freeze()
    return cfg


def evaluation_name(cfg: CfgNode) -> str:
    """Return the name of an evaluation, the argument of :func:`cog.paths.evaluation_folder`.

    The name is ``EVAL.NAME`` (``CLF.TYPE`` where ``EVAL.NAME`` has its default), with a suffix for each option that
    changes the training data, so that such results never lie among the protocol's: ``logreg_max732``.
    """
    name = cfg.EVAL.NAME
    if name == default_cfg().EVAL.NAME:
        name = cfg.CLF.TYPE
    return variant_name(name, max_per_class=cfg.CLF.MAX_PER_CLASS)


def variant_name(name: str, *, max_per_class: int) -> str:
    """Return a name with the suffix of ``CLF.MAX_PER_CLASS``, if that is not 0."""
    return f"{name}_max{max_per_class}" if max_per_class else name


#: Name of the runs of fine-tuning, used where EVAL.NAME has its default.
FINETUNE = "finetune"


def check_new_name(cfg: CfgNode, kind: str) -> None:
    """Refuse a name that is spelled like that of a variant: the new results would lie among those of the variant.

    Args:
        cfg: configuration with the name of the evaluation.
        kind: kind of the new runs: ``CLF.TYPE``, or :data:`FINETUNE`.

    Raises:
        CogError: an ``EVAL.NAME`` that ends like a suffix of :func:`evaluation_name`, or that is the name of
            another kind.
    """
    name = cfg.EVAL.NAME
    default = default_cfg().EVAL.NAME
    if name in {FINETUNE, *CLASSIFIERS} - {default, kind}:
        whose = "runs of finetune.py" if name == FINETUNE else f"runs with CLF.TYPE {name}"
        this = "fine-tuning" if kind == FINETUNE else f"CLF.TYPE {kind}"
        raise CogError(f"EVAL.NAME {name} is the name of {whose}, and this is {this}; take another name")
    match = re.search(r"_max([0-9]+)$", name)
    if match:
        raise CogError(
            f"EVAL.NAME {name} ends like the evaluation folders of CLF.MAX_PER_CLASS {match[1]}: "
            + ("take another name" if kind == FINETUNE else "set CLF.MAX_PER_CLASS instead")
        )


def check_config_names() -> None:
    """Check the names of the YAML files in ``configs/``: each file applies only to the model of its name.

    The original toolkit shipped ``clip.yaml`` for a model named ``clip_resnet50``, and never read the file.

    Raises:
        CogError: a file is not named like any model.
    """
    for path in sorted(configs_dir().glob("*.yaml")):
        if not constants.is_model_name(path.stem):
            raise CogError(
                f"{path} matches no model name (<title>_<architecture>), so it would never apply; rename it, or move "
                "it elsewhere and give it with --config"
            )


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the contents of a YAML file: plain values, no objects.

    Raises:
        CogError: the file cannot be read.
    """
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > LARGEST_YAML:
            raise CogError(f"cannot read {path}: expected a file of at most {LARGEST_YAML:,} bytes")
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: an impossible date
        raise CogError(f"cannot read {path}: {yaml_fault(error)}") from error


def yaml_fault(error: Exception) -> str:
    """Return the fault of a YAML text in one line, with the number of its line where that is known.

    Args:
        error: error raised while the text was read.
    """
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        began = f" (from line {error.context_mark.line + 1})" if error.context_mark is not None else ""
        parts = [f"{error.context}{began}"] if error.context else []
        return f"line {error.problem_mark.line + 1}: {', '.join([*parts, str(error.problem)])}"
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"line {line}: not UTF-8; save it in that encoding"
    return " ".join(str(error).split())


def _merge_file(cfg: CfgNode, path: Path) -> None:
    tree = read_yaml(path)
    if tree is None:
        return
    if not isinstance(tree, dict):
        raise CogError(
            f"{path} holds {type(tree).__name__}, expected a YAML mapping such as CLF: {{N_EPOCHS: 100}}"
        )
    for key, value in _flatten(tree):
        _set(cfg, key, _parse(value) if isinstance(value, str) else value, source=str(path))


def _flatten(tree: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name.count(".") < _MOST_DOTS:
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


def flat(cfg: CfgNode) -> dict[str, Any]:
    """Return ``{"CLF.N_SHOT": 0, ...}`` with plain Python values."""
    return dict(_flatten(cfg))


def _parse(text: str) -> Any:
    """Return the value of a Python literal; any other text is returned as it is."""
    try:
        return CfgNode._decode_cfg_value(text)
    except Exception:  # ast.literal_eval fails in many ways: {[]: 1}, thousands of brackets or digits
        return text


def _set(cfg: CfgNode, key: str, value: Any, *, source: str) -> None:
    """Set one key and keep its type (whole numbers become floats where a float is expected)."""
    known = flat(cfg)
    if key not in known:
        hint = did_you_mean(key, known, cutoff=0.7) or "; configs/default.py lists all keys"
        raise CogError(f"unknown configuration key {key} (from {source}){hint}")
    if value is None or (isinstance(value, str) and is_unset(value)):
        return  # `CLF.N_SHOT None` means that the key is not given
    default = known[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, float) and number:
        value = float(value)
    elif isinstance(default, list | tuple) and isinstance(value, list | tuple):
        value = type(default)(value)
    elif isinstance(default, str) and not isinstance(value, str):
        value = str(value)
    if type(value) is not type(default):
        raise CogError(
            f"{key} = {reprlib.repr(value)} (from {source}) is {_article(type(value).__name__)}, expected "
            f"{_article(type(default).__name__)} such as {default!r}"
        )
    node = cfg
    *path, leaf = key.split(".")
    for part in path:
        node = node[part]
    node[leaf] = value


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(value: Any, *, n: int | None = None, low: float = -math.inf) -> bool:
    """Return whether a value has ``n`` finite numbers, all above ``low``."""
    return (n is None or len(value) == n) and all(_finite(number) and number > low for number in value)


def _ascending(value: Any, most: float = math.inf) -> bool:
    return _numbers(value, n=2, low=0) and value[0] <= value[1] <= most


def _distinct(values: Any, low: int) -> bool:
    return len({*values}) == len(values) > 0 and all(type(v) is int and low <= v < 2**32 for v in values)


_Range = tuple[Callable[[Any], bool], str]


def _one_of(*choices: str) -> _Range:
    return lambda value: value in choices, f"{', '.join(choices[:-1])} or {choices[-1]}"


_AT_LEAST_1: _Range = lambda v: 1 <= v < 2**31, "a whole number of at least 1"
_OR_NONE: _Range = lambda v: 0 <= v < 2**31, "a whole number, 0 for none"
_UNSIGNED: _Range = lambda v: 0 <= v < 2**32, "a whole number from 0 to 4294967295"
_POSITIVE: _Range = lambda v: _finite(v) and v > 0, "a positive number"
_NOT_NEGATIVE: _Range = lambda v: _finite(v) and v >= 0, "zero or a positive number"
_INTERVAL: _Range = _ascending, "(low, high) with 0 < low <= high"

#: Ranges of the values, by key; the types are those of the defaults.
_RANGES: dict[str, _Range] = {
    "FT_EXTRACT.IMAGE_RESIZE_SIZE": _AT_LEAST_1,
    "FT_EXTRACT.IMAGE_CROP_SIZE": _AT_LEAST_1,
    "FT_EXTRACT.IMAGE_INTERPOLATION": _one_of(*INTERPOLATIONS),
    "FT_EXTRACT.PREPROCESS": _one_of(*GEOMETRIES),
    "FT_EXTRACT.POOLING": _one_of(*POOLINGS),
    "FT_EXTRACT.IMAGE_NORM.MEAN": (lambda v: _numbers(v, n=3), "three numbers"),
    "FT_EXTRACT.IMAGE_NORM.STD": (lambda v: _numbers(v, n=3, low=0), "three positive numbers"),
    "FT_EXTRACT.BATCH_SIZE": _AT_LEAST_1,
    "FT_EXTRACT.N_WORKERS": _UNSIGNED,
    "FT_EXTRACT.PRECISION": _one_of("fp32", "tf32", "fp16", "bf16"),
    "FT_EXTRACT.SAVE_DTYPE": _one_of("float32", "float16", "bfloat16"),
    "FT_EXTRACT.SHARD_ROWS": _AT_LEAST_1,
    "EVAL.NAME": (
        lambda v: constants.is_plain_name(v) and not re.search(r"(^|[_-])N[0-9]+$", v),
        "a plain folder name (letters, digits and ._+-) that does not end like those of few-shot runs (_N8)",
    ),
    "EVAL.SEED": _UNSIGNED,
    "CLF.TYPE": _one_of(*CLASSIFIERS),
    "CLF.MLP_HIDDEN": (lambda v: 1 <= v < 2**16, "a whole number from 1 to 65535"),
    "CLF.MLP_LAYERS": (lambda v: 1 <= v < 2**16, "a whole number from 1 to 65535"),
    "CLF.MAX_PER_CLASS": _OR_NONE,
    "CLF.BATCH_SIZE": _AT_LEAST_1,
    "CLF.N_EPOCHS": _AT_LEAST_1,
    "CLF.N_TRIALS": _UNSIGNED,
    "CLF.N_SHOT": _UNSIGNED,
    "CLF.VAL_PERC": (lambda v: 0 < v < 1, "a fraction between 0 and 1, both excluded"),
    "CLF.LR_INTV": _INTERVAL,
    "CLF.WD_INTV": _INTERVAL,
    "CLF.PRECISION": _one_of(*PRECISIONS),
    "FINETUNE.N_EPOCHS": _AT_LEAST_1,
    "FINETUNE.BATCH_SIZE": _AT_LEAST_1,
    "FINETUNE.BATCH_PER_DEVICE": _AT_LEAST_1,
    "FINETUNE.LR": _POSITIVE,
    "FINETUNE.MOMENTUM": (lambda v: 0 <= v < 1, "a number from 0 to 1, 1 excluded"),
    "FINETUNE.WEIGHT_DECAY": _NOT_NEGATIVE,
    "FINETUNE.WARMUP_EPOCHS": _NOT_NEGATIVE,
    "FINETUNE.CLIP_NORM": _NOT_NEGATIVE,
    "FINETUNE.CROP_SCALE": (lambda v: _ascending(v, 1), "(low, high) with 0 < low <= high <= 1"),
    "FINETUNE.PRECISION": _one_of("auto", "fp32", "bf16", "fp16"),
    "LEVELS.MIN_IMAGES": _AT_LEAST_1,
    "LEVELS.N_TEST": _AT_LEAST_1,
    "LEVELS.MAX_TRAIN": _AT_LEAST_1,
    "LEVELS.EXCLUDED_ROOTS": (
        lambda v: all(isinstance(wnid, str) for wnid in v),
        "a list of ids such as ['n00007846']",
    ),
    "ANALYSIS.KMEANS_K": (lambda v: 0 <= v < 2**31, "a whole number, 0 for the number of classes"),
    "ANALYSIS.KMEANS_SEEDS": (
        lambda v: _distinct(v, 0),
        "a list of different whole numbers such as [22, 37, 45]",
    ),
    "ANALYSIS.KMEANS_ITERATIONS": _AT_LEAST_1,
    "ANALYSIS.KMEANS_TOLERANCE": _NOT_NEGATIVE,
    "ANALYSIS.KNN_K": (lambda v: _distinct(v, 1), "a list of different whole numbers such as [1, 5, 10]"),
}


def check_statistics(label: str, values: Sequence[float]) -> None:
    """Check that means or standard deviations of pixels are on the scale of pixels here.

    Raises:
        CogError: a value beyond [0, 1]; the message has the values divided by 255.
    """
    if any(not 0 <= value <= 1 for value in values):
        divided = ", ".join(f"{value / 255:.4g}" for value in values)
        raise CogError(
            f"{label} {list(values)} is not valid: pixels are in [0, 1] here; divided by 255 it is [{divided}]"
        )


def check_values(cfg: CfgNode) -> None:
    """Check the range of every value.

    Raises:
        CogError: a value out of range; the message names the key, its value and the expected values.
    """
    values = flat(cfg)
    resize, n_test = values["FT_EXTRACT.IMAGE_RESIZE_SIZE"], values["LEVELS.N_TEST"]
    relations: list[tuple[str, _Range]] = [
        ("FT_EXTRACT.IMAGE_CROP_SIZE", (lambda v: v <= resize, f"at most IMAGE_RESIZE_SIZE ({resize})")),
        ("LEVELS.MIN_IMAGES", (lambda v: v > n_test, f"more than LEVELS.N_TEST ({n_test})")),
    ]
    for key, (good, wanted) in [*_RANGES.items(), *relations]:
        try:
            fine = good(values[key])
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise CogError(f"{key} = {reprlib.repr(values[key])} is not valid, expected {wanted}")
    for key in ("FT_EXTRACT.IMAGE_NORM.MEAN", "FT_EXTRACT.IMAGE_NORM.STD"):
        check_statistics(key, values[key])
