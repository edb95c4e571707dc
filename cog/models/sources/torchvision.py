"""Classifiers of torchvision without their last layer, ``torchvision_<name>`` or ``torchvision_<name>.<weights>``."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import cached_property
from typing import Any

import torch
import torchvision.models as zoo
from torch import nn

from cog.models.checkpoint import remove_head
from cog.models.preprocessing import from_transforms
from cog.models.sources import LibraryModel
from cog.models.spec import Preprocess

#: Classifiers in the middle of a network, which only training uses.
_AUXILIARY = ("AuxLogits", "aux1", "aux2")

_N_CLASSES = 1000

#: Names of parameters in the files of DenseNets, which were written before torch 0.4.
_DENSENET = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)")


class TorchvisionModel(LibraryModel):
    """A classification model of torchvision, with its default weights or those named at the end of its name."""

    def check_name(self) -> None:
        """Check name and weights against torchvision's registers."""
        names = zoo.list_models(module=zoo)
        if self.model not in names:
            raise self.unknown(names)
        known = [weights.name for weights in zoo.get_model_weights(self.model)]
        if self.tag and self.tag not in known:
            raise self.unknown([f"{self.model}.{weights}" for weights in known])

    @cached_property
    def _weights(self) -> Any:
        register = zoo.get_model_weights(self.model)
        return register[self.tag] if self.tag else register.DEFAULT

    @cached_property
    def own_preprocess(self) -> Preprocess:
        """Preprocessing of the weights' transforms."""
        return from_transforms(self._weights.transforms())

    @property
    def address(self) -> str | None:
        """Link of the weights."""
        return self._weights.url

    def build(self, size: int) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the network of the weights; the last layer with 1000 outputs is the classifier."""
        builder = zoo.get_model_builder(self.model)
        arguments: dict[str, Any] = {}
        if self.model in ("inception_v3", "googlenet"):
            # The weights come from another framework and expect pixels from -1 to 1; the network converts its input.
            arguments = {"transform_input": True, "aux_logits": False, "init_weights": False}
        elif self.model.startswith("vit_"):
            arguments = {"image_size": size}
        network = builder(weights=None, **arguments)
        head = [
            name
            for name, module in network.named_modules()
            if getattr(module, "out_features", getattr(module, "out_channels", None)) == _N_CLASSES
        ][-1]
        remove_head(network, head)
        return network, (head, *_AUXILIARY)

    def tokens(self, network: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the tokens after the encoder of a ViT; the first one is the class token."""
        if not isinstance(network, zoo.VisionTransformer):
            return super().tokens(network, x)
        patches = network._process_input(x)
        return network.encoder(torch.cat([network.class_token.expand(len(x), -1, -1), patches], 1)), 1

    def convert(self, state: dict[str, torch.Tensor], network: Any) -> dict[str, torch.Tensor]:
        """Rename the parameters of DenseNets (``norm.1``) and resize position embeddings, as torchvision does."""
        if isinstance(network, zoo.VisionTransformer):
            from torchvision.models.vision_transformer import interpolate_embeddings

            return dict(interpolate_embeddings(network.image_size, network.patch_size, OrderedDict(state)))
        return {_DENSENET.sub(r"\1\2", name): value for name, value in state.items()}
