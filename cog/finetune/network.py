"""A registered backbone that is no longer frozen, with a new linear classifier."""

from __future__ import annotations

import logging

import torch
from torch import nn

from cog.errors import CogError, first_line
from cog.finetune.recipe import FineTuneRecipe
from cog.models.backbone import Backbone

logger = logging.getLogger(__name__)

#: Standard deviation of the classifier's initial weights; its bias starts at 0.
_INIT_STD = 0.01


class FineTuned(nn.Module):
    """A backbone with a linear classifier, from images ``(B, 3, H, W)`` to logits ``(B, C)``."""

    def __init__(self, backbone: Backbone, head: nn.Linear, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.name = backbone.name
        self.backbone, self.head, self.memory_format = backbone, head, memory_format

    def train(self, mode: bool = True) -> FineTuned:
        """Set training mode, also in the network of the backbone (a :class:`Backbone` itself stays in eval mode)."""
        super().train(mode)
        self.backbone.network.train(mode)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images."""
        return self.head(self.backbone(x))


def build(backbone: Backbone, recipe: FineTuneRecipe, *, n_classes: int, device: torch.device) -> FineTuned:
    """Return a backbone with a new classifier, in which all parameters that affect the features can be trained.

    One backward pass shows the width of the features, the parameters that affect them (a network may hold a classifier
    that features bypass; such parameters stay unchanged), and whether the network works with the channels innermost,
    which is faster for convolutions. The backbone is on ``device`` already.
    """
    parameters = dict(backbone.named_parameters())
    if not parameters:
        raise CogError(f"model {backbone.name} has no parameters: nothing can be fine-tuned")
    x = torch.zeros((2, 3, recipe.crop, recipe.crop), device=device)
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    backbone.requires_grad_(True)
    backbone.network.train()
    failure = Exception()
    for memory_format in (torch.channels_last, torch.contiguous_format):
        backbone.to(memory_format=memory_format)
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                y = backbone(x.contiguous(memory_format=memory_format))
                y.float().sum().backward()
            break
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            failure = error  # a network that uses x.view(...) cannot work on the first layout
    else:
        raise CogError(
            f"model {backbone.name} cannot be trained on images of {recipe.crop} x {recipe.crop}: "
            f"{type(failure).__name__}: {first_line(failure)}"
        ) from failure
    unused = [name for name, parameter in parameters.items() if parameter.grad is None]
    if len(unused) == len(parameters):
        raise CogError(
            f"model {backbone.name} has no parameter that its features depend on: nothing can be fine-tuned"
        )
    if unused:
        logger.info(
            "%s: %d parameter tensors have no part in the features and stay as they are (%s%s)",
            backbone.name, len(unused), ", ".join(unused[:3]), ", ..." if len(unused) > 3 else "",
        )  # fmt: skip
    for name in unused:
        parameters[name].requires_grad_(False)
    backbone.zero_grad(set_to_none=True)
    head = nn.Linear(y.shape[1], n_classes)
    with torch.no_grad():
        for name, buffer in backbone.named_buffers():
            buffer.copy_(buffers[name])
        rng = torch.Generator().manual_seed(recipe.torch_seed("head"))
        head.weight.normal_(0, _INIT_STD, generator=rng)
        head.bias.zero_()
    return FineTuned(backbone, head, memory_format).to(device).eval()
