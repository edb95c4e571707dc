"""Models of transformers, ``hf_<organization>--<name>``: AutoModel with its pooling, or the image tower of CLIP."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from cog.errors import CogError, first_line
from cog.models.checkpoint import read_state_dict
from cog.models.outputs import features_of
from cog.models.preprocessing import from_processor
from cog.models.sources import SAFETENSORS, LibraryModel, hub_link
from cog.models.spec import Preprocess
from cog.runtime import files

#: Parts of image-text models that images do not pass through.
_TEXT = ("text_model", "text_projection", "logit_scale", "logit_bias")

#: Parameters that hold one token each.
_TOKENS = ("cls_token", "class_embedding", "distillation_token")


class HuggingFaceModel(LibraryModel):
    """A model of the Hugging Face hub for which transformers has a class; code of the repository is never run."""

    @property
    def _repository(self) -> str:
        return self.architecture.replace("--", "/", 1)

    def check_name(self) -> None:
        """Accept any name: only the hub has the list of repositories."""

    def _file(self, file: str) -> Path:
        """Return a file of the repository: from the folder of the checkpoint, else downloaded from the hub.

        Raises:
            CogError: the folder does not have the file, and the download failed.
        """
        if self.folder is not None and (self.folder / file).is_file():
            return self.folder / file
        place = "give --models_root_dir"
        if self.folder is not None:
            place = (
                f"save it as {self.folder / file}, beside config.json, preprocessor_config.json and "
                "model.safetensors of the same place"
            )
        return self.obtain(hub_link(self._repository, file), f"{file} of {self.name}", place)

    @cached_property
    def _config(self) -> Any:
        path = self._file("config.json")
        try:
            values = {
                key: v for key, v in files.read_json(path).items() if key != "auto_map"
            }  # auto_map names code of the repository
            return transformers.AutoConfig.for_model(**values)
        except CogError:
            raise
        except Exception as error:  # transformers raises errors of many types on other files
            raise CogError(
                f"model {self.name}: {path} is of no model that transformers {transformers.__version__} knows "
                f"({first_line(error)}); code of the repository is not run"
            ) from error

    @cached_property
    def own_preprocess(self) -> Preprocess:
        """Preprocessing of the repository's ``preprocessor_config.json``."""
        path = self._file("preprocessor_config.json")
        return from_processor(files.read_object(path, "preprocessing of a model"), str(path))

    @property
    def address(self) -> str | None:
        """Link of the weights."""
        return hub_link(self._repository, SAFETENSORS)

    def build(self, size: int) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the network with random weights."""
        return transformers.AutoModel.from_config(self._config, trust_remote_code=False), ()

    def load(
        self, checkpoint: Path | None, *, size: int | None = None, pooling: str = "default"
    ) -> tuple[nn.Module, Callable[[torch.Tensor], Any] | None]:
        """Load a checkpoint with transformers' renaming; it must have all parameters that images pass through."""
        config = self._config
        if config.model_type == "vit_mae":
            config.mask_ratio = 0.0
        checkpoint = checkpoint or self.fetch()
        state = read_state_dict(checkpoint)
        state = {name: v.float() if v.is_floating_point() else v for name, v in state.items()}
        transformers.utils.logging.disable_progress_bar()
        dtype = "dtype" if int(transformers.__version__.partition(".")[0]) > 4 else "torch_dtype"
        try:
            with torch.device("meta"):
                kind: Any = type(self.build(size or 0)[0])
            network, info = kind.from_pretrained(
                None, config=config, state_dict=state, output_loading_info=True, **{dtype: torch.float32}
            )
        except Exception as error:  # transformers raises errors of many types
            raise CogError(f"{checkpoint} does not fit the architecture: {first_line(error)}") from error
        missing = [name for name in info["missing_keys"] if not name.startswith(_TEXT)]
        if missing and all(name.startswith("pooler.") for name in missing):
            network.pooler, missing = None, []  # the file of a classifier that does not use the pooler
        wrong = [*missing, *(str(key[0]) for key in info["mismatched_keys"])]
        if wrong:
            raise CogError(
                f"{checkpoint} does not fit the architecture: parameters missing or of another shape {len(wrong)} "
                f"({', '.join(sorted(wrong)[:3])})"
            )
        for part in _TEXT:
            if isinstance(getattr(network, part, None), nn.Module):
                setattr(network, part, None)
        return network.eval(), self._forward(network, size, pooling)

    def _forward(
        self, network: Any, size: int | None, pooling: str
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the forward pass of the image tower."""
        config = network.config
        inner = getattr(config, "vision_config", config)
        run = network
        if inner is not config:
            run = getattr(network, "get_image_features" if pooling == "default" else "vision_model", None)
            if run is None:
                raise CogError(f"model {self.name}: {type(network).__name__} has no known image tower")
        options: dict[str, Any] = {}
        other_size = size is not None and size != getattr(inner, "image_size", size)
        if (
            other_size
            and "interpolate_pos_encoding" in inspect.signature(getattr(run, "forward", run)).parameters
        ):
            options["interpolate_pos_encoding"] = True
        n_prefix = getattr(inner, "num_register_tokens", 0) or 0
        n_prefix += sum(name.rpartition(".")[2] in _TOKENS for name, _ in network.named_parameters())

        def forward(x: torch.Tensor) -> torch.Tensor:
            if config.model_type == "vit_mae":  # the model sorts the patches by this noise: keep their order
                n_patches = (x.shape[-1] // config.patch_size) ** 2
                options["noise"] = torch.arange(n_patches, device=x.device).float().expand(len(x), -1)
            output = run(pixel_values=x, **options)
            if isinstance(output, torch.Tensor):  # get_image_features of transformers 4
                return output
            kind = pooling
            if kind == "default" and getattr(output, "pooler_output", None) is None:
                kind = "cls" if n_prefix else "mean"
            return features_of(output, name=self.name, pooling=kind, n_prefix=n_prefix)

        return forward
