"""Image towers of open_clip, ``openclip_<architecture>.<tag>``: the output of ``encode_image``, not normalized."""

from __future__ import annotations

import copy
import dataclasses
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import open_clip
from open_clip.model import _build_vision_tower, resize_pos_embed
from open_clip.pretrained import get_pretrained_cfg
from torch import nn

from cog.errors import CogError
from cog.models.sources import LibraryModel, hub_link
from cog.models.spec import Preprocess

if TYPE_CHECKING:
    import torch


class OpenClipModel(LibraryModel):
    """The image tower of a model of open_clip; the text tower is never built."""

    def check_name(self) -> None:
        """Check architecture and tag against open_clip's registers; a name without tag has no weights to download."""
        known = [f"{model}.{tag}" for model, tag in open_clip.list_pretrained()]
        if self.model not in open_clip.list_models() or (self.tag and self.architecture not in known):
            raise self.unknown([*known, *open_clip.list_models()])

    @cached_property
    def _weights(self) -> dict[str, Any]:
        return get_pretrained_cfg(self.model, self.tag) if self.tag else {}

    @cached_property
    def _config(self) -> dict[str, Any]:
        config = open_clip.get_model_config(self.model)
        assert config is not None
        return copy.deepcopy(config)

    @cached_property
    def own_preprocess(self) -> Preprocess:
        """Preprocessing with the size of the tower, and mean, standard deviation and interpolation of the weights."""
        wanted = dataclasses.asdict(open_clip.transform.PreprocessCfg()) | self._weights
        size = self._config["vision_cfg"].get("image_size", 224)
        if not isinstance(size, int):
            raise CogError(f"model {self.name} takes images of {size} pixels, expected square ones")
        mode = wanted["resize_mode"]
        return Preprocess(
            size, size, tuple(wanted["mean"]), tuple(wanted["std"]), wanted["interpolation"], mode == "squash"
        )

    @property
    def address(self) -> str | None:
        """Link of the weights."""
        repository, _, file = (self._weights.get("hf_hub") or "").rpartition("/")
        if repository:
            return hub_link(repository, file or "open_clip_model.safetensors")
        return self._weights.get("url") or None

    def build(self, size: int) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the image tower, with QuickGELU where the weights were trained with it."""
        vision = {**self._config["vision_cfg"], "image_size": size}
        if "timm_model_name" in vision:
            vision["timm_model_pretrained"] = False  # otherwise timm would download weights
        if vision.get("output_tokens"):
            vision["output_tokens"] = False  # only CoCa's text decoder uses the tokens
        quick = self._weights.get("quick_gelu", self._config.get("quick_gelu", False))
        tower = _build_vision_tower(self._config["embed_dim"], vision, quick)
        if "timm_model_name" in vision and size != self.own_preprocess.crop:
            tower.set_input_size(size)
        return tower, ()

    def convert(self, state: dict[str, torch.Tensor], network: nn.Module) -> dict[str, torch.Tensor]:
        """Resize position embeddings with the function of open_clip, or of timm for its towers."""
        if hasattr(network, "trunk"):
            import sys

            trunk = {name[6:]: value for name, value in state.items() if name.startswith("trunk.")}
            resize = sys.modules[type(network.trunk).__module__].checkpoint_filter_fn  # type: ignore[attr-defined]
            return state | {f"trunk.{name}": value for name, value in resize(trunk, network.trunk).items()}
        whole = {f"visual.{name}": value for name, value in state.items()}
        resize_pos_embed(whole, SimpleNamespace(visual=network))
        return {name.removeprefix("visual."): value for name, value in whole.items()}

    def tokens(self, network: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the tokens after the last block and its normalization, before the projection."""
        if hasattr(network, "trunk"):
            return network.trunk.forward_features(x), getattr(network.trunk, "num_prefix_tokens", 0)
        if not hasattr(network, "transformer") or network.attn_pool is not None:
            return super().tokens(network, x)
        tokens = network.transformer(network._embeds(x))
        return network.ln_post(tokens), 1
