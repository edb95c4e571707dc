"""Models of timm, ``timm_<name>`` or ``timm_<name>.<tag>``, without classifier and with timm's default pooling."""

from __future__ import annotations

import logging
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import timm
from timm.data import resolve_data_config
from timm.models import get_pretrained_cfg
from torch import nn

from cog.errors import CogError
from cog.models.preprocessing import from_mapping
from cog.models.sources import SAFETENSORS, LibraryModel, hub_link
from cog.models.spec import Preprocess

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class TimmModel(LibraryModel):
    """A model of timm."""

    def check_name(self) -> None:
        """Check name and tag against timm's registers."""
        tagged = timm.list_models(pretrained=True)
        if not timm.is_model(self.architecture):
            raise self.unknown([*timm.list_models(), *tagged])
        try:
            get_pretrained_cfg(self.architecture)
        except RuntimeError:  # an unknown tag
            raise self.unknown([name for name in tagged if name.partition(".")[0] == self.model]) from None

    @cached_property
    def _cfg(self) -> dict[str, Any]:
        cfg = get_pretrained_cfg(self.architecture)
        return {} if cfg is None else cfg.to_dict(remove_source=False, remove_null=True)

    @cached_property
    def own_preprocess(self) -> Preprocess:
        """Preprocessing that timm resolves for the weights: size, mean, std, crop percentage and interpolation."""
        config = resolve_data_config({}, pretrained_cfg=self._cfg or {"num_classes": 1000})
        channels, height, width = config["input_size"]
        if channels != 3 or height != width:
            raise CogError(
                f"model {self.name} takes inputs of {channels} x {height} x {width}, expected square RGB images"
            )
        if config["crop_mode"] == "border":
            logger.warning("%s: timm pads its images; here their center is cropped", self.name)
        return from_mapping(config, self.name)

    @property
    def address(self) -> str | None:
        """Link of the weights."""
        if repository := self._cfg.get("hf_hub_id"):
            return hub_link(repository, self._cfg.get("hf_hub_filename") or SAFETENSORS)
        return self._cfg.get("url") or None

    def build(self, size: int) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the network with ``num_classes=0``, for the size of the images if the network depends on it."""
        options: dict[str, Any] = {"img_size": size} if size != self.own_preprocess.crop else {}
        try:
            network = timm.create_model(self.architecture, pretrained=False, num_classes=0, **options)
        except TypeError:  # img_size is no argument of networks that take any size
            network = timm.create_model(self.architecture, pretrained=False, num_classes=0)
        layers = self._cfg.get("classifier") or ()
        # Some classifiers consist of a normalization and a linear layer (head.bn, head.linear): both are left out.
        return network, tuple(
            {layer.partition(".")[0] for layer in ((layers,) if isinstance(layers, str) else layers)}
        )

    def tokens(self, network: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the tokens after the last block and its normalization."""
        return network.forward_features(x), getattr(network, "num_prefix_tokens", 0)

    def convert(self, state: dict[str, torch.Tensor], network: nn.Module) -> dict[str, torch.Tensor]:
        """Apply timm's function for files of the model's family, if any: names of authors, position embeddings."""
        convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
        return state if convert is None else convert(state, network)
