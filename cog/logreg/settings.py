"""All that decides a classifier run beside the features."""

from __future__ import annotations

from dataclasses import dataclass

from cog.errors import CogError

#: Values of ``CLF.PRECISION``; see :mod:`cog.logreg.precision`.
PRECISIONS = ("auto", "fp32", "tf32", "bf16")

#: Values of ``CLF.TYPE``; see :mod:`cog.logreg.mlp_engine`.
TYPES = ("logreg", "mlp", "mlp_noact")

#: Configuration of a type where nobody says otherwise: intervals and unnormalised input of the MLPs as in the first
#: version of the paper (supplement C.3; its search intervals are those of its section B).
TYPE_DEFAULTS: dict[str, dict[str, object]] = {
    "logreg": {},
    "mlp": {"NORM_FTS": False, "LR_INTV": (1e-1, 1e2), "WD_INTV": (1e-8, 1e-4)},
    "mlp_noact": {"NORM_FTS": False, "LR_INTV": (1e-2, 1e1), "WD_INTV": (1e-8, 1e-4)},
}


@dataclass(frozen=True)
class Settings:
    """All that decides a run beside the features.

    Attributes:
        seed: of every random choice.
        n_shot: training images per class; 0 uses all.
        n_trials: hyper-parameter pairs to try; 0 needs ``lr`` and ``wd``.
        n_epochs: passes over the training rows.
        batch_size: samples per SGD step.
        momentum: of SGD.
        val_frac: fraction of each class held out in the search.
        lr_interval: ends of the log-uniform learning-rate interval.
        wd_interval: ends of the log-uniform weight-decay interval.
        normalize: whether the features were l2-normalised.
        lr: fixed learning rate (no search); of ``lbfgs``, which has none, 1.0.
        wd: fixed weight decay (no search).
        precision: of the matrix products in training, see :mod:`cog.logreg.precision`.
        search: ``"sequential"``, or ``"batched"``: rounds of suggestions that do not wait for each other.
        trials_per_round: suggestions per round of a batched search.
        solver: ``"sgd"``; ``"lbfgs"`` changes the protocol, see :mod:`cog.logreg.lbfgs`.
        pruner: ``"none"``; ``"median"`` changes the protocol: hopeless trials are stopped early.
        classifier: ``"logreg"``, ``"mlp"`` or ``"mlp_noact"``.
        mlp_hidden: units of each hidden layer of an MLP.
        mlp_layers: hidden layers of an MLP.
        pca_dim: principal components that the features were replaced by; 0: none.
        max_per_class: training images per class that were kept before anything else; 0: all.
        label: how log lines name this run among others; not part of the protocol.
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
    search: str = "sequential"
    trials_per_round: int = 5
    solver: str = "sgd"
    pruner: str = "none"
    classifier: str = "logreg"
    mlp_hidden: int = 2048
    mlp_layers: int = 2
    pca_dim: int = 0
    max_per_class: int = 0
    label: str = ""

    def __post_init__(self) -> None:
        if self.is_mlp and (self.solver != "sgd" or self.pruner != "none"):
            key, value = ("SOLVER", self.solver) if self.solver != "sgd" else ("PRUNER", self.pruner)
            raise CogError(
                f"CLF.{key} {value} is for logistic regression, and CLF.TYPE is {self.classifier}; leave one out"
            )
        if self.solver == "lbfgs":
            self._check_lbfgs()
        fixed = (self.lr is not None) + (self.wd is not None)
        if self.n_trials == 0 and fixed < 2:
            raise CogError("CLF.N_TRIALS 0 means no search: give both --lr and --wd")
        if self.n_trials and fixed:
            raise CogError("--lr and --wd replace the search: add CLF.N_TRIALS 0, or leave them out")

    @property
    def is_mlp(self) -> bool:
        """Whether the classifier has hidden layers."""
        return self.classifier != "logreg"

    def layer_sizes(self, dim: int, n_classes: int) -> list[int]:
        """Return the widths from the features to the logits: ``[d, C]`` without hidden layers."""
        return [dim, *([self.mlp_hidden] * self.mlp_layers if self.is_mlp else []), n_classes]

    def _check_lbfgs(self) -> None:
        if self.precision not in ("auto", "fp32"):
            raise CogError(
                f"CLF.SOLVER lbfgs computes in float32, and CLF.PRECISION is {self.precision}; leave that auto or fp32"
            )
        if self.pruner != "none":
            raise CogError(
                "CLF.SOLVER lbfgs has no epochs to prune at; leave CLF.PRUNER none, or use CLF.SOLVER sgd"
            )
        if self.lr not in (None, 1.0):
            raise CogError("CLF.SOLVER lbfgs has no learning rate; leave out --lr, and give --wd alone")
        if self.wd is not None:
            object.__setattr__(self, "lr", 1.0)  # what is recorded in its place
