"""Settings of a classifier run, and the sizes of its parts."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cog.errors import CogError

if TYPE_CHECKING:
    from yacs.config import CfgNode

#: Keys of ``CLF`` whose names are not those of their settings in upper case.
KEYS = {
    "classifier": "TYPE",
    "val_frac": "VAL_PERC",
    "lr_interval": "LR_INTV",
    "wd_interval": "WD_INTV",
    "normalize": "NORM_FTS",
}

#: The settings that are flags, not keys of the configuration, which checks its own: lowest value, excluded end, words.
FLAGS = {
    "momentum": (0.0, 1.0, "a number from 0 to 1, 1 excluded"),
    "lr": (5e-324, math.inf, "a positive number"),
    "wd": (0.0, math.inf, "zero or a positive number"),
}


@dataclass(frozen=True)
class Settings:
    """The settings that determine a run, together with the features.

    Fields are keys of ``CLF`` in configs/default.py (with the names of :data:`KEYS`), and those of :data:`FLAGS`:
    momentum of SGD, and a fixed learning rate and weight decay instead of a search.

    Raises:
        CogError: values of flags out of range, or flags that do not fit together. The other values are those of a
            configuration, which checks them (:func:`cog.config.check_values`).
    """

    seed: int
    n_shot: int = 0
    n_trials: int = 30
    n_epochs: int = 100
    batch_size: int = 1024
    momentum: float = 0.9
    val_frac: float = 0.2
    lr_interval: tuple[float, float] = (1e-1, 1e2)
    wd_interval: tuple[float, float] = (1e-12, 1e-4)
    normalize: bool = True
    lr: float | None = None
    wd: float | None = None
    precision: str = "auto"
    classifier: str = "logreg"
    mlp_hidden: int = 2048
    mlp_layers: int = 2
    max_per_class: int = 0

    def __post_init__(self) -> None:
        for name, (low, end, wanted) in FLAGS.items():
            value = getattr(self, name)
            if value is None and name != "momentum":
                continue
            if not (isinstance(value, int | float) and low <= value < end):
                raise CogError(f"{name} = {value!r} is not valid, expected {wanted}")
        fixed = (self.lr is not None) + (self.wd is not None)
        if self.n_trials == 0 and fixed < 2:
            raise CogError(
                "CLF.N_TRIALS 0 means no search: give one learning rate and one weight decay, such as CLF.LR_INTV "
                "(10,10) CLF.WD_INTV (1e-6,1e-6)"
            )
        if self.n_trials and fixed:
            raise CogError("lr and wd replace the search: set n_trials (CLF.N_TRIALS) 0, or leave them out")

    @property
    def has_relu(self) -> bool:
        """Whether hidden layers have an activation."""
        return self.classifier != "mlp_noact"

    @property
    def is_mlp(self) -> bool:
        """Whether the classifier has hidden layers."""
        return self.classifier != "logreg"

    def layer_sizes(self, dim: int, n_classes: int) -> list[int]:
        """Return the widths from the features to the logits: ``[d, C]`` without hidden layers."""
        return [dim, *([self.mlp_hidden] * self.mlp_layers if self.is_mlp else []), n_classes]


def from_config(cfg: CfgNode, **others: Any) -> Settings:
    """Return the settings of a configuration.

    Args:
        cfg: checked configuration (:func:`cog.config.get_cfg`).
        others: the settings that are no keys of ``CLF``: ``seed`` and :data:`FLAGS`.
    """
    clf = cfg.CLF
    # A setting without effect on a run keeps its default, so that other values of it do not make another run.
    unused = ["mlp_hidden", "mlp_layers"] if clf.TYPE == "logreg" else []
    keys = {field.name: KEYS.get(field.name, field.name.upper()) for field in dataclasses.fields(Settings)}
    values = {name: clf[key] for name, key in keys.items() if key in clf and name not in unused}
    intervals = {name: tuple(map(float, values[name])) for name in ("lr_interval", "wd_interval")}
    if clf.N_TRIALS == 0:
        for name, (low, high) in zip(("lr", "wd"), intervals.values(), strict=True):
            if others.get(name) is None and low == high:
                others[name] = low
    return Settings(**values | intervals | others)
