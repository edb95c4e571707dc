"""Multi-layer perceptrons instead of logistic regression (``CLF.TYPE mlp`` and ``mlp_noact``).

The first version of the paper (supplement C.3) trains two hidden layers of 2048 units on the unnormalized features,
with ReLU and, as a control, without any activation. Everything else is the protocol's: search, seeds, splits, SGD with
momentum, cosine decay, batches.
"""

from __future__ import annotations

import torch

from cog.logreg.learners import Learner
from cog.logreg.matrix import FeatureMatrix
from cog.logreg.sgd import Layer, SgdConfig, TrainSpec, build_module, initial_layers


class MlpLearner(Learner):
    """One ``torch.nn.Sequential`` under autograd; with bfloat16 features under autocast, scores stay float32."""

    form = "mlp"

    def __init__(
        self, features: FeatureMatrix, y: torch.Tensor, spec: TrainSpec, config: SgdConfig, **options: bool
    ) -> None:
        super().__init__(features, y, spec, config, **options)
        assert len(spec.pairs) == 1
        sizes = [features.dim, *config.hidden, config.n_classes]
        self._module = build_module(sizes, relu=config.relu).to_empty(device=self.device)
        initial = [tensor for layer in initial_layers(sizes, spec.init_seed) for tensor in layer]
        self._parameters = list(self._module.parameters())
        self._velocities = [torch.zeros_like(parameter) for parameter in self._parameters]
        for parameter, values in zip(self._parameters, initial, strict=True):
            parameter.data.copy_(values)
        self.state = {f"parameter{i}": parameter.data for i, parameter in enumerate(self._parameters)} | {
            f"velocity{i}": velocity.data for i, velocity in enumerate(self._velocities)
        }
        self._x = torch.zeros(self.size, features.dim, dtype=features.dtype, device=self.device)

    def load(self, rows: torch.Tensor) -> None:
        """See :meth:`Learner.load`."""
        b = len(rows)
        self._features.batch(rows, out=self._x[:b])
        torch.index_select(self._y, 0, rows.to(self.device, non_blocking=True), out=self._y_batch[:b])

    def step(self, b: int) -> None:
        """See :meth:`Learner.step`."""
        x, y = self._x[: self._filled(b)], self._y_batch[:b]
        low = x.dtype != torch.float32
        with torch.enable_grad():
            # Without its cache: cast weights must not outlive the step, whose graph may be replayed.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=False):
                logits = self._module(x)
            logits = logits[:b].float()
            loss = torch.nn.functional.cross_entropy(logits, y)
            gradients = torch.autograd.grad(loss, self._parameters)
        self._record(logits.detach(), y)
        parameters = [parameter.data for parameter in self._parameters]
        self._update(0, parameters, [gradient.contiguous() for gradient in gradients], self._velocities)

    def layers(self, k: int) -> list[Layer]:
        """See :meth:`Learner.layers`."""
        parameters = [parameter.data for parameter in self._parameters]
        return list(zip(parameters[::2], parameters[1::2], strict=True))
