"""Settings of a classifier run."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from cog.errors import CogError

#: Packages on which the bits of a run depend.
PACKAGES = ("torch", "optuna", "numpy")

#: Keys of ``CLF`` whose names are not those of their settings in upper case.
_KEYS = {"classifier": "TYPE", "val_frac": "VAL_PERC", "normalize": "NORM_FTS"}
_KEYS |= {"lr_interval": "LR_INTV", "wd_interval": "WD_INTV"}


@dataclass(frozen=True)
class Settings:
    """The settings that determine a run, together with the features: seed, keys of ``CLF``, momentum of SGD.

    Without a search (``n_trials`` 0), the pair of the training is the single value of each interval.
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
    precision: str = "auto"
    classifier: str = "logreg"
    mlp_hidden: int = 2048
    mlp_layers: int = 2
    max_per_class: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.momentum, int | float) and 0 <= self.momentum < 1):
            raise CogError(f"momentum (--mom) = {self.momentum!r} is not valid, expected 0 <= momentum < 1")
        if not self.n_trials and any(low != high for low, high in (self.lr_interval, self.wd_interval)):
            raise CogError(
                "CLF.N_TRIALS 0 means no search: give one learning rate and one weight decay, such as "
                "CLF.LR_INTV (10,10) CLF.WD_INTV (1e-6,1e-6)"
            )

    def layer_sizes(self, dim: int, n_classes: int) -> list[int]:
        """Return the widths from the features to the logits: ``[d, C]`` without hidden layers."""
        return [dim, *([self.mlp_hidden] * self.mlp_layers if self.classifier != "logreg" else []), n_classes]


def keys() -> dict[str, str]:
    """Return the names that settings would have as keys of ``CLF``."""
    return {field.name: _KEYS.get(field.name, field.name.upper()) for field in dataclasses.fields(Settings)}


def from_config(cfg: Any, *, seed: int, momentum: float = 0.9) -> Settings:
    """Return the settings of a checked configuration."""
    # A setting without effect on a run keeps its default, so that other values of it do not make another run.
    unused = ("mlp_hidden", "mlp_layers") if cfg.CLF.TYPE == "logreg" else ()
    values = {name: cfg.CLF[key] for name, key in keys().items() if key in cfg.CLF and name not in unused}
    for name in ("lr_interval", "wd_interval"):
        values[name] = tuple(map(float, values[name]))
    return Settings(seed=seed, momentum=momentum, **values)
