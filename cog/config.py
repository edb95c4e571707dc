"""The YACS configuration: defaults, the model's values, a file and the command line, merged and frozen."""

import copy
import functools
import itertools
import os
import re
import reprlib
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from cog import constants
from cog.constants import CLASSIFIERS, is_unset
from cog.errors import CogError, did_you_mean
from cog.paths import split_model_name

FINETUNE = "finetune"  # name of the runs of fine-tuning, where EVAL.NAME has its default
_executed = functools.cache(lambda file, contents: runpy.run_path(file))  # what a Python file defines


def check_values(cfg: CfgNode) -> None:
    """Raise a CogError when a value is out of range; it names the key, its value and the expected values."""
    values, defaults = flat(cfg), flat(default_cfg())
    expected = {key: _expected(values[key], defaults[key], of) for key, of in default_cfg("RANGES").items()}
    if values["LEVELS.MIN_IMAGES"] <= values["LEVELS.N_TEST"]:
        expected["LEVELS.MIN_IMAGES"] = f"more than LEVELS.N_TEST ({values['LEVELS.N_TEST']})"
    name = values["EVAL.NAME"]
    if not constants.is_plain_name(name) or re.search(r"(^|[_-])N[0-9]+$", name):
        expected["EVAL.NAME"] = "a plain folder name that does not end like those of few-shot runs (_N8)"
    for key in filter(expected.get, expected):
        raise CogError(f"{key} = {reprlib.repr(values[key])} is not valid, expected {expected[key]}")


def _expected(value: Any, default: Any, allowed: tuple[Any, ...]) -> str:
    """Return the values that are expected in place of a value; "" if it is one of them."""
    if isinstance(allowed[0], str):
        return "" if value in allowed else f"{', '.join(allowed[:-1])} or {allowed[-1]}"
    parts, usual = (list(v) if isinstance(v, list | tuple) else [v] for v in (value, default))
    is_good = all(type(v) in (int, type(usual[0])) and allowed[0] <= v <= allowed[1] for v in parts)
    is_formed = len(parts) == len(usual) and (isinstance(default, list) or parts == sorted(parts))
    if isinstance(default, list) and type(usual[0]) is int:
        is_formed = len({*parts}) == len(parts) > 0
    if len(parts) == len(usual) == 3 and all(type(v) in (int, float) and v > 1 for v in parts):
        default = [round(v / 255, 4) for v in parts]  # statistics of pixels from 0 to 255
    return "" if is_good and is_formed else f"a value such as {default}, from {allowed[0]} to {allowed[1]}"


def configs_dir() -> Path:
    """Return the folder of ``default.py``: that of the installed package, or else that of the checkout."""
    package = Path(__file__).resolve().parent
    return (package if (package / "configs").is_dir() else package.parent) / "configs"


def default_cfg(name: str = "_C") -> Any:
    """Return a fresh, unfrozen copy of the defaults in ``configs/default.py``, or another value there."""
    path = configs_dir() / "default.py"
    return copy.deepcopy(_executed(str(path), path.read_bytes())[name])


def get_cfg(
    *,
    declared: Mapping[str, Any] | None = None,
    model_name: str | None = None,
    opts: Sequence[str] = (),
    entry_values: Mapping[str, Any] | None = None,
    entry_source: str = "",
) -> CfgNode:
    """Return the configuration, merged from all sources in this order, checked and frozen.

    ``declared`` is the preprocessing of the model by value of ``FT_EXTRACT.PREPROCESS`` (empty: none),
    ``entry_values`` are those in the file ``entry_source`` of the user's models,
    ``configs/<model_name>.yaml`` applies, and ``opts`` is a flat ``[KEY, VALUE, ...]``.
    """
    values = [(key, value, entry_source) for key, value in (entry_values or {}).items()]
    if model_name is not None:
        split_model_name(model_name)  # it becomes part of a file name
        for path in sorted(configs_dir().glob("*.yaml")):
            if not constants.is_model_name(path.stem):
                raise CogError(f"{path} matches no model name (<title>_<architecture>): rename it")
            if path.stem == model_name:
                values += [(key, _parse(value), str(path)) for key, value in _flatten(read_yaml(path))]
    values += [(k, _parse(v), "the command line") for k, v in zip(opts[::2], opts[1::2], strict=True)]
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
        what = f"{model_name} declares no preprocessing of its authors; leave it out, or let the loader do so"
        raise CogError(f"FT_EXTRACT.PREPROCESS model: {what}")
    cfg.CLF.update(CLASSIFIERS.get(cfg.CLF.TYPE, {}))
    _merge(cfg, values)
    check_values(cfg)
    crop, resize = fx.IMAGE_CROP_SIZE, fx.IMAGE_RESIZE_SIZE
    if declared is not None and crop > resize:  # else, the model may declare another size
        raise CogError(f"FT_EXTRACT.IMAGE_CROP_SIZE = {crop}, expected at most IMAGE_RESIZE_SIZE ({resize})")
    cfg.freeze()
    return cfg


def flat(cfg: CfgNode) -> dict[str, Any]:
    """Return ``{"CLF.N_SHOT": 0, ...}`` with plain Python values."""
    return dict(_flatten(cfg))


def read_yaml(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """Return the mapping in a YAML file: plain values, no objects; a CogError says why it cannot be read."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > 1 << 20:
            raise CogError(f"cannot read {path}: expected a file of at most a megabyte")
        found = yaml.load(Path(path).read_text(encoding="utf-8"), _UniqueKeys) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: an impossible date
        raise CogError(f"cannot read {path}: {error}") from error  # of YAML errors with line and column
    if not isinstance(found, dict):
        raise CogError(f"{path} has {type(found).__name__}, expected a mapping such as NAME: {{KEY: 8}}")
    return found


class _UniqueKeys(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = sorted(str(key.value) for key, _ in node.value)
        if twice := next((name for name, other in itertools.pairwise(names) if name == other), None):
            raise yaml.MarkedYAMLError(problem=f"{twice} stands twice", problem_mark=node.start_mark)
        return node


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        is_inner = isinstance(value, dict) and prefix.count(".") < 3  # a mapping may contain itself
        yield from _flatten(value, f"{prefix}{key}.") if is_inner else [(f"{prefix}{key}", value)]


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
        default, given = known[key], (float, int) if isinstance(known[key], float) else ()
        if type(value) in given or (isinstance(default, list | tuple) and isinstance(value, list | tuple)):
            value = type(default)(value)
        elif isinstance(default, str):
            value = str(value)
        if type(value) is not type(default):
            found = f"{reprlib.repr(value)} (from {source}) is of type {type(value).__name__}"
            raise CogError(f"{key} = {found}, expected {type(default).__name__} such as {default!r}")
        *path, leaf = key.split(".")
        functools.reduce(getattr, path, cfg)[leaf] = value


def evaluation_name(cfg: CfgNode) -> str:
    """Return ``EVAL.NAME`` (or ``CLF.TYPE``), with a suffix for other training data: ``logreg_max732``."""
    name = cfg.CLF.TYPE if cfg.EVAL.NAME == default_cfg().EVAL.NAME else cfg.EVAL.NAME
    return f"{name}_max{cfg.CLF.MAX_PER_CLASS}" if cfg.CLF.MAX_PER_CLASS else name


def check_new_name(cfg: CfgNode, kind: str) -> None:
    """Refuse an ``EVAL.NAME`` under which runs of ``kind`` (``CLF.TYPE``, or FINETUNE) lie among others."""
    name = cfg.EVAL.NAME
    if name in {FINETUNE, *CLASSIFIERS} - {default_cfg().EVAL.NAME, kind} or re.search(r"_max[0-9]+$", name):
        raise CogError(f"EVAL.NAME {name} is the name of other runs than those of {kind}; take another name")
