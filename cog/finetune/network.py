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
    """A backbone with a linear classifier, from images ``(B, 3, H, W)`` to logits ``(B, C)``.

    Args:
        backbone: network from :func:`cog.models.backbone.load_backbone`; taken over.
        feature_dim: number of features.
        n_classes: C.
        seed: seed of the classifier's initial weights.

    Attributes:
        name: name of the backbone.
        memory_format: the best layout of images for the backbone.
    """

    def __init__(self, backbone: Backbone, *, feature_dim: int, n_classes: int, seed: int) -> None:
        super().__init__()
        self.name = backbone.name
        self.memory_format = torch.contiguous_format
        self.backbone = backbone
        self.head = nn.Linear(feature_dim, n_classes)
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.normal_(0, _INIT_STD, generator=rng)
            self.head.bias.zero_()

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
    which is faster for convolutions.

    Args:
        backbone: backbone on ``device``.
        recipe: recipe with the side of the images and the seed of the classifier's initial weights.
        n_classes: C.
        device: device of the backbone and of the network.

    Raises:
        CogError: a network that cannot be trained.
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
    with torch.no_grad():
        for name, buffer in backbone.named_buffers():
            buffer.copy_(buffers[name])
    network = FineTuned(backbone, feature_dim=y.shape[1], n_classes=n_classes, seed=recipe.torch_seed("head"))
    network.memory_format = memory_format
    return network.to(device).eval()
