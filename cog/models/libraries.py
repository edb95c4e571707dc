"""Models of other libraries by name, ``<title>_<the library's name>``: one function per library.

The libraries load their own weights, inside a context in which torch reads nothing but weights from pickles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cog.constants import CHECKPOINT_FILE
from cog.data.pixels import Preprocess
from cog.errors import CogError, first_line, nearest
from cog.models.backbone import Backbone, Forward, features_of, n_blocks, pool
from cog.models.checkpoint import load_strictly, read_state
from cog.models.preprocessing import from_mapping, from_preset, from_processor

logger = logging.getLogger(__name__)

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class LibraryModel:
    """A model of a library that can be loaded.

    Attributes:
        preprocess: preprocessing with which the library makes the input of its weights from an image.
        link: address of the library's weights, for messages; empty without weights.
        load: function from a checkpoint (None: the library's own weights) and the side of images in pixels to
            the network without classifier and its forward pass (None: the network itself). It may raise any
            exception.
        tokens: function from the network, images and n to the tokens ``(B, N, D)`` of its last n blocks,
            normalized, last block last, and the number of tokens before those of the patches; None: it gives
            no tokens.
    """

    preprocess: Preprocess
    link: str
    load: Callable[[Path | None, int], tuple[nn.Module, Forward | None]]
    tokens: Callable[[Any, torch.Tensor, int], tuple[list[torch.Tensor], int]] | None = None


def find(name: str, folder: Path | None = None) -> LibraryModel:
    """Return a model by its full name, such as timm_resnet18; ``folder`` may hold files beside its weights.

    Raises:
        CogError: a library that is not installed, or that has no such model.
    """
    title, _, model = name.partition("_")
    function, package = LIBRARIES[title]
    try:
        return function(model, folder)
    except ImportError as error:
        raise CogError(
            f"--model {name} needs {package}, which cannot be imported ({error}); pip install {package}"
        ) from None


def load(name: str, checkpoint: Path | None, size: int | None, pooling: str, folder: Path | None) -> Backbone:
    """Load a model of a library, without its classifier; ``checkpoint`` None: the library's own weights.

    Raises:
        CogError: unsafe or unfitting checkpoint, failed download, or a size for which the library has no
            network.
    """
    model = find(name, folder)
    own_size = model.preprocess.size
    size = size or own_size
    place = "give it as --ckpt_file" if folder is None else f"save it as {folder / CHECKPOINT_FILE}"
    if checkpoint is None and not model.link:
        raise CogError(f"there are no weights of {name} to download, and no checkpoint; {place}")
    try:
        with _only_weights():
            network, forward = model.load(checkpoint, size)
    except CogError as error:
        if size == own_size:
            raise
        raise CogError(f"{error}; are the weights for images of {own_size} pixels alone?") from error
    except Exception as error:  # the libraries raise errors of many types
        rest = f"; without a network, get {model.link} and {place}" if checkpoint is None else ""
        raise CogError(
            f"model {name} cannot be loaded for images of {size} x {size} pixels ({type(error).__name__}: "
            f"{first_line(error)}){rest}"
        ) from error
    if pooling != "default":
        if (tokens := model.tokens) is None:
            raise CogError(f"FT_EXTRACT.POOLING {pooling}: model {name} gives no tokens; leave it out")
        # Some networks normalize the pooled vector instead of the tokens.
        norm = getattr(network, "fc_norm", None)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return pool(*tokens(network, x, n_blocks(pooling)), pooling, name=name, norm=norm)

    pre = {"protocol": model.preprocess.protocol(), "model": model.preprocess}
    return Backbone(network.eval(), forward, name=name, declared=pre)


@contextlib.contextmanager
def _only_weights() -> Iterator[None]:
    """Let torch.load read only weights, also where a library asks for more."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Print no warnings: open_clip warns that a network is random before its weights are loaded."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _unknown(title: str, name: str, names: Collection[str]) -> CogError:
    near = nearest(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(f'{title}_{known}' for known in near)}?" if near else ""
    return CogError(f"--model '{title}_{name}': {title} has no model {name!r}{hint}")


def _fit(
    network: nn.Module,
    state: State,
    origin: object,
    *,
    heads: Collection[str] = (),
    convert: Callable[[State, nn.Module], State] | None = None,
) -> None:
    """Load parameters strictly, without classifiers, after the library's conversion if they do not fit."""
    expected = {name: value.shape for name, value in network.state_dict().items()}
    beginnings = tuple(f"{head}." for head in heads)

    def without(full: State) -> State:
        return {name: v for name, v in full.items() if name in expected or not name.startswith(beginnings)}

    state = without(state)
    if convert is not None and {name: value.shape for name, value in state.items()} != expected:
        try:
            state = without(convert(dict(state), network))
        except Exception as error:  # a function for original releases fails on a file of another model
            logger.debug("%s: %s", origin, error)
    load_strictly(network, state, str(origin))


def _converter(network: nn.Module) -> Any:
    """Return timm's conversion of files for a network: names of authors, position embeddings; or None."""
    return getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)


# --- timm: the input of the classifier, with timm's pooling


def _timm(name: str, folder: Path | None) -> LibraryModel:
    import timm

    tagged = timm.list_models(pretrained=True)
    if not timm.is_model(name):
        raise _unknown("timm", name, [*timm.list_models(), *tagged])
    try:
        entry = timm.get_pretrained_cfg(name)
    except RuntimeError:  # an unknown tag
        same = [known for known in tagged if known.partition(".")[0] == name.partition(".")[0]]
        raise _unknown("timm", name, same) from None
    values = {} if entry is None else entry.to_dict(remove_source=False, remove_null=True)
    config = timm.data.resolve_data_config({}, pretrained_cfg=values or {"num_classes": 1000})
    if config["input_size"][0] != 3:
        raise CogError(f"model timm_{name} takes inputs of {config['input_size']}, expected RGB images")
    if config["crop_mode"] == "border":
        logger.warning("timm_%s: timm pads its images; here their center is cropped", name)
    preprocess = from_mapping(config, f"timm_{name}")
    repository = values.get("hf_hub_id")
    link = f"https://huggingface.co/{repository}" if repository else values.get("url") or ""

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, None]:
        options: dict[str, Any] = {"pretrained": checkpoint is None, "num_classes": 0}
        sized: dict[str, Any] = {} if size == preprocess.size else {"img_size": size}
        try:
            network = timm.create_model(name, **options, **sized)
        except TypeError:  # img_size is no argument of networks that take any size
            network = timm.create_model(name, **options)
        if checkpoint is not None:
            layers = values.get("classifier") or ()
            # Some classifiers consist of a normalization and a linear layer (head.bn, head.linear).
            heads = {layer.partition(".")[0] for layer in ((layers,) if isinstance(layers, str) else layers)}
            state = read_state(checkpoint, network.state_dict())
            _fit(network, state, checkpoint, heads=heads, convert=_converter(network))
        return network, None

    return LibraryModel(preprocess, link, load, _timm_tokens)


def _timm_tokens(network: Any, x: torch.Tensor, n: int) -> tuple[list[torch.Tensor], int]:
    n_prefix = getattr(network, "num_prefix_tokens", 0)
    if n == 1:
        return [network.forward_features(x)], n_prefix
    options = {"return_prefix_tokens": True, "output_fmt": "NLC", "intermediates_only": True}
    try:
        blocks = network.forward_intermediates(x, indices=n, norm=True, **options)
    except (TypeError, AttributeError, AssertionError) as error:
        raise CogError(
            f"FT_EXTRACT.POOLING last{n}: {type(network).__name__} of timm does not give the tokens of {n} "
            f"blocks ({first_line(error)}); leave it out"
        ) from error
    return [torch.cat([prefix, patches], 1) for patches, prefix in blocks], n_prefix


# --- torchvision: classifiers without their last layer

#: Names of parameters in the files of DenseNets, which were written before torch 0.4.
_DENSENET = re.compile(r"(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.\w+)")


def _torchvision(name: str, folder: Path | None) -> LibraryModel:
    import torchvision.models as zoo

    model, _, tag = name.partition(".")
    if model not in (names := zoo.list_models(module=zoo)):
        raise _unknown("torchvision", name, names)
    register: Any = zoo.get_model_weights(model)
    if tag and tag not in register.__members__:
        raise _unknown("torchvision", name, [f"{model}.{known}" for known in register.__members__])
    weights = register[tag] if tag else register.DEFAULT

    def convert(state: State, network: Any) -> State:
        if isinstance(network, zoo.VisionTransformer):
            interpolate: Any = zoo.vision_transformer.interpolate_embeddings
            return dict(interpolate(network.image_size, network.patch_size, state))
        return {_DENSENET.sub(r"\1\2", key): value for key, value in state.items()}

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, None]:
        arguments: dict[str, Any] = {}
        if model in ("inception_v3", "googlenet"):
            # The weights come from another framework and expect pixels from -1 to 1; the network converts its
            # input.
            arguments = {"transform_input": True, "aux_logits": False, "init_weights": False}
        elif model.startswith("vit_"):
            arguments = {"image_size": size}
        network = zoo.get_model(model, weights=None, **arguments)
        head = [
            key
            for key, module in network.named_modules()
            if getattr(module, "out_features", getattr(module, "out_channels", None)) == 1000
        ][-1]
        network.set_submodule(head, nn.Identity())
        if checkpoint is None:
            state, origin = weights.get_state_dict(progress=False, check_hash=True), weights.url
        else:
            state, origin = read_state(checkpoint, network.state_dict()), checkpoint
        _fit(network, state, origin, heads=(head, "AuxLogits", "aux1", "aux2"), convert=convert)
        return network, None

    return LibraryModel(from_preset(weights.transforms(), f"torchvision_{name}"), weights.url, load)


# --- open_clip: image towers, with the output of ``encode_image``, not normalized


def _open_clip(name: str, folder: Path | None) -> LibraryModel:
    import open_clip

    model, _, tag = name.partition(".")
    known = [f"{architecture}.{weights}" for architecture, weights in open_clip.list_pretrained()]
    if model not in open_clip.list_models() or (tag and name not in known):
        raise _unknown("openclip", name, [*known, *open_clip.list_models()])
    weights = open_clip.get_pretrained_cfg(model, tag) if tag else {}
    values = dataclasses.asdict(open_clip.transform.PreprocessCfg()) | weights
    preprocess = from_mapping(
        {
            "image_size": (open_clip.get_model_config(model) or {})["vision_cfg"].get("image_size", 224),
            "mean": tuple(values["mean"]),
            "std": tuple(values["std"]),
            "interpolation": values["interpolation"],
            "squash": values["resize_mode"] == "squash",
        },
        f"openclip_{name}",
    )

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, Forward]:
        with _quiet():
            whole = open_clip.create_model(
                model,
                pretrained=tag if checkpoint is None else None,
                # Weights that were trained with QuickGELU get it.
                force_quick_gelu=weights.get("quick_gelu", False),
                force_image_size=None if size == preprocess.size else size,
            )
        network: Any = whole.visual

        def convert(state: State, tower: Any) -> State:
            if hasattr(tower, "trunk"):
                trunk = {key[6:]: value for key, value in state.items() if key.startswith("trunk.")}
                trunk = _converter(tower.trunk)(trunk, tower.trunk)
                return state | {f"trunk.{key}": value for key, value in trunk.items()}
            full = {f"visual.{key}": value for key, value in state.items()}
            open_clip.model.resize_pos_embed(full, whole)
            return {key.removeprefix("visual."): value for key, value in full.items()}

        if checkpoint is not None:
            _fit(network, read_state(checkpoint, network.state_dict()), checkpoint, convert=convert)

        def forward(x: torch.Tensor) -> torch.Tensor:
            features = network(x)
            return features[0] if isinstance(features, tuple) else features  # CoCa also gives tokens

        return network, forward

    return LibraryModel(preprocess, weights.get("hf_hub") or weights.get("url") or "", load)


# --- transformers: ``AutoModel`` with its pooling, or the image tower of CLIP; ``hf_<organization>--<name>``

#: Parts of image-text models that images do not pass through, and parameters that hold one token each.
_TEXT = ("text_model", "text_projection", "logit_scale", "logit_bias")
_TOKENS = ("cls_token", "class_embedding", "distillation_token")


def _transformers(name: str, folder: Path | None) -> LibraryModel:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its reports of parameters have many lines
    repository, full_name = name.replace("--", "/", 1), f"hf_{name}"

    def read(kind: Any, file: str) -> Any:
        place = str(folder) if folder is not None and (folder / file).is_file() else repository
        try:
            return kind.from_pretrained(place, trust_remote_code=False)
        except Exception as error:  # transformers raises errors of many types
            remedy = "" if folder is None else f"; without a network, save it as {folder / file}"
            raise CogError(
                f"model {full_name}: {file} of {place} is of no model that transformers "
                f"{transformers.__version__} knows ({first_line(error)}); code of the repository is not "
                f"run{remedy}"
            ) from error

    config = read(transformers.AutoConfig, "config.json")
    processor = read(transformers.AutoImageProcessor, "preprocessor_config.json")

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, Forward]:
        if config.model_type == "vit_mae":
            config.mask_ratio = 0.0
        options: dict[str, Any] = {"config": config, "dtype": torch.float32, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # they are in the loading info
        if checkpoint is None:
            kind: Any = transformers.AutoModel
            network, info = kind.from_pretrained(repository, trust_remote_code=False, **options)
        else:
            state = {k: v.float() if v.is_floating_point() else v for k, v in read_state(checkpoint).items()}
            with torch.device("meta"):
                kind = type(transformers.AutoModel.from_config(config, trust_remote_code=False))
            network, info = kind.from_pretrained(None, state_dict=state, **options)
        missing = [key for key in info["missing_keys"] if not key.startswith(_TEXT)]
        if missing and all(key.startswith("pooler.") for key in missing):
            network.pooler, missing = None, []  # the file of a classifier that does not use the pooler
        if wrong := sorted([*missing, *(str(key[0]) for key in info["mismatched_keys"])]):
            raise CogError(
                f"{checkpoint or repository} does not fit the architecture: parameters missing or of another "
                f"shape {len(wrong)} ({', '.join(wrong[:3])})"
            )
        for part in _TEXT:
            if isinstance(getattr(network, part, None), nn.Module):
                setattr(network, part, None)

        def forward(x: torch.Tensor) -> torch.Tensor:
            output = _transformers_output(network, x, "get_image_features")
            if isinstance(output, torch.Tensor):  # of transformers 4
                return output
            if getattr(output, "pooler_output", None) is not None:
                return features_of(output, name=full_name)
            tokens, n_prefix = _transformers_tokens(network, x, 1)
            return pool(tokens, n_prefix, "cls" if n_prefix else "mean", name=full_name)

        return network, forward

    preprocess = from_processor(processor.to_dict(), full_name)
    return LibraryModel(preprocess, f"https://huggingface.co/{repository}", load, _transformers_tokens)


def _transformers_output(network: Any, x: torch.Tensor, part: str, **options: Any) -> Any:
    """Return the output of a network, or of ``part`` of a model of images and texts."""
    config = network.config
    inner = getattr(config, "vision_config", config)
    run = network if inner is config else getattr(network, part, None)
    if run is None:
        raise CogError(f"{type(network).__name__} of transformers has no known image tower")
    parameters = inspect.signature(getattr(run, "forward", run)).parameters
    other_size = x.shape[-1] != getattr(inner, "image_size", x.shape[-1])
    if other_size and "interpolate_pos_encoding" in parameters:
        options["interpolate_pos_encoding"] = True
    if config.model_type == "vit_mae":  # the model sorts the patches by this noise: keep their order
        n_patches = (x.shape[-1] // config.patch_size) ** 2
        options["noise"] = torch.arange(n_patches, device=x.device).float().expand(len(x), -1)
    return run(pixel_values=x, **options)


def _transformers_tokens(network: Any, x: torch.Tensor, n: int) -> tuple[list[torch.Tensor], int]:
    states = {"output_hidden_states": True} if n > 1 else {}
    output = _transformers_output(network, x, "vision_model", **states)
    config = getattr(network.config, "vision_config", network.config)
    n_prefix = getattr(config, "num_register_tokens", 0) or 0
    n_prefix += sum(key.rpartition(".")[2] in _TOKENS for key, _ in network.named_parameters())
    if n == 1:
        return [output.last_hidden_state], n_prefix
    vision = getattr(network, "vision_model", network)
    norms = [getattr(vision, key) for key in ("layernorm", "post_layernorm", "norm") if hasattr(vision, key)]
    blocks = list(output.hidden_states or ())  # before the first block, and after each
    if not norms or len(blocks) <= n or blocks[0].ndim != 3:
        raise CogError(
            f"FT_EXTRACT.POOLING last{n}: {type(network).__name__} of transformers does not give the tokens "
            f"of {n} blocks; leave it out"
        )
    return [norms[0](tokens) for tokens in blocks[-n:]], n_prefix


#: Function and package of each library, by the first part of the models' names.
LIBRARIES: dict[str, tuple[Callable[[str, Path | None], LibraryModel], str]] = {
    "timm": (_timm, "timm"),
    "torchvision": (_torchvision, "torchvision"),
    "openclip": (_open_clip, "open_clip_torch"),
    "hf": (_transformers, "transformers"),
}
