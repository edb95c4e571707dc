"""Models of other libraries by name, ``<title>_<the library's name>``: one function per library.

The libraries load their own weights, inside a context in which torch reads nothing but weights from pickles.
"""

import contextlib
import dataclasses
import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cog.constants import CHECKPOINT_FILE
from cog.data.pixels import Preprocess
from cog.errors import CogError, first_line, nearest, some
from cog.models.backbone import Backbone, Forward, features_of, n_blocks, pool
from cog.models.checkpoint import load_strictly, read_state
from cog.models.preprocessing import from_mapping, from_processor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LibraryModel:
    """A model of a library that can be loaded."""

    preprocess: Preprocess  # the library's way from an image to the input of its weights
    #: From a checkpoint (None: the library's own weights) and the side of images to the network without
    #: classifier, and its forward pass (None: the network itself).
    load: Callable[[Path | None, int], tuple[nn.Module, Forward | None]]
    #: From the network, images and n to the tokens ``(B, N, D)`` of its last n blocks, normalized, and the
    #: number of tokens before those of the patches; None: it gives no tokens.
    tokens: Callable[[Any, torch.Tensor, int], tuple[list[torch.Tensor], int]] | None = None


def find(name: str, folder: Path | None = None) -> LibraryModel:
    """Return a model by its full name (timm_resnet18); ``folder`` may hold files beside its weights."""
    title, _, model = name.partition("_")
    function, package = LIBRARIES[title]
    try:
        return function(model, folder)
    except ImportError as error:
        raise CogError(f"--model {name} needs {package} ({error}); pip install {package}") from None


def load(name: str, checkpoint: Path | None, size: int | None, pooling: str, folder: Path | None) -> Backbone:
    """Load a model without its classifier; ``checkpoint`` and ``size`` None: those of the library."""
    model = find(name, folder)
    size = size or model.preprocess.size
    there = sorted(folder.glob("*.*")) if folder is not None and checkpoint is None else []
    if unread := [path for path in there if path.suffix in (".bin", ".ckpt", ".pt", ".pth", ".safetensors")]:
        logger.warning("%s: the library's own weights are taken, %s is not read", name, unread[0])
    try:
        with _only_weights():
            network, forward = model.load(checkpoint, size)
    except CogError:
        raise
    except Exception as error:  # the libraries raise errors of many types
        place = "give it as --ckpt_file" if folder is None else f"save it as {folder / CHECKPOINT_FILE}"
        raise CogError(
            f"model {name} cannot be loaded for images of {size} x {size} pixels ({type(error).__name__}: "
            f"{first_line(error)})" + f"; without a network, get its file and {place}" * (checkpoint is None)
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


def _require_known(title: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        near = nearest(name, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(f'{title}_{known}' for known in near)}?" if near else ""
        raise CogError(f"--model '{title}_{name}': {title} has no model {name!r}{hint}")


def _fit(network: nn.Module, checkpoint: Path, heads: Collection[str] = (), convert: Any = None) -> None:
    """Load parameters strictly, without classifiers, after the library's conversion if they do not fit."""
    expected = {name: value.shape for name, value in network.state_dict().items()}
    state = read_state(checkpoint, expected)
    if convert is not None and any(n not in state or state[n].shape != expected[n] for n in expected):
        with contextlib.suppress(Exception):  # what is for original releases fails on other files
            state = convert(dict(state), network)
    heads = tuple(f"{head}." for head in heads)
    state = {name: v for name, v in state.items() if name in expected or not name.startswith(heads)}
    load_strictly(network, state, checkpoint)


# --- timm: the input of the classifier, with timm's pooling


def _timm(name: str, folder: Path | None) -> LibraryModel:
    import timm

    _require_known("timm", name, [*timm.list_models(), *timm.list_models(pretrained=True)])
    entry = timm.get_pretrained_cfg(name)
    values = {} if entry is None else entry.to_dict(remove_source=False, remove_null=True)
    config = timm.data.resolve_data_config({}, pretrained_cfg=values or {"num_classes": 1000})
    if config["crop_mode"] == "border":
        logger.warning("timm_%s: timm pads its images; here their center is cropped", name)
    preprocess = from_mapping(config, f"timm_{name}")
    classifier = values.get("classifier") or ()
    layers = (classifier,) if isinstance(classifier, str) else classifier
    heads = {layer.partition(".")[0] for layer in layers}  # of some, also a normalization (head.bn)

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, None]:
        options: dict[str, Any] = {"pretrained": checkpoint is None, "num_classes": 0}
        try:
            sized: dict[str, Any] = {} if size == preprocess.size else {"img_size": size}
            network = timm.create_model(name, **options, **sized)
        except TypeError:  # img_size is no argument of networks that take any size
            network = timm.create_model(name, **options)
        if checkpoint is not None:
            convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
            _fit(network, checkpoint, heads, convert)
        return network, None

    return LibraryModel(preprocess, load, _timm_tokens)


def _timm_tokens(network: Any, x: torch.Tensor, n: int) -> tuple[list[torch.Tensor], int]:
    n_prefix = getattr(network, "num_prefix_tokens", 0)
    if n == 1:
        return [network.forward_features(x)], n_prefix
    options = {"return_prefix_tokens": True, "output_fmt": "NLC", "intermediates_only": True}
    blocks = network.forward_intermediates(x, indices=n, norm=True, **options)
    return [torch.cat([prefix, patches], 1) for patches, prefix in blocks], n_prefix


# --- torchvision: classifiers without their last layer


def _torchvision(name: str, folder: Path | None) -> LibraryModel:
    import torchvision.models as zoo

    model, _, tag = name.partition(".")
    _require_known("torchvision", model, zoo.list_models(module=zoo))
    register: Any = zoo.get_model_weights(model)
    _require_known("torchvision", name, [model, *(f"{model}.{known}" for known in register.__members__)])
    weights = register[tag] if tag else register.DEFAULT

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, None]:
        arguments: dict[str, Any] = {}
        if checkpoint is not None and model in ("inception_v3", "googlenet"):
            # Their weights expect pixels from -1 to 1; the network converts its input.
            arguments = {"transform_input": True, "aux_logits": False, "init_weights": False}
        network = zoo.get_model(model, weights=None if checkpoint else weights, **arguments)
        modules = network.named_modules()
        widths = {key: getattr(m, "out_features", getattr(m, "out_channels", 0)) for key, m in modules}
        head = [key for key, width in widths.items() if width == 1000][-1]
        network.set_submodule(head, nn.Identity())
        if checkpoint is not None:
            _fit(network, checkpoint, (head, "AuxLogits", "aux1", "aux2"))
        return network, None

    preset = weights.transforms()
    values = preset.crop_size[0], preset.resize_size[0], tuple(preset.mean), tuple(preset.std)
    return LibraryModel(Preprocess(*values, preset.interpolation.value), load)


# --- open_clip: image towers, with the output of ``encode_image``, not normalized


def _open_clip(name: str, folder: Path | None) -> LibraryModel:
    import open_clip

    model, _, tag = name.partition(".")
    released = [f"{architecture}.{weights}" for architecture, weights in open_clip.list_pretrained()]
    _require_known("openclip", name, [*released, *open_clip.list_models()])
    weights = open_clip.get_pretrained_cfg(model, tag) if tag else {}
    values = dataclasses.asdict(open_clip.transform.PreprocessCfg()) | weights
    declared = {key: values[key] for key in ("mean", "std", "interpolation")}
    declared["image_size"] = (open_clip.get_model_config(model) or {})["vision_cfg"].get("image_size", 224)
    declared["squash"] = values["resize_mode"] == "squash"
    preprocess = from_mapping(declared, f"openclip_{name}")

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, Forward]:
        if checkpoint is None and not tag:
            raise CogError(f"there are no weights of openclip_{name} to download; give a tag, or --ckpt_file")
        logging.disable(logging.WARNING)  # it warns that a network is random before its weights are loaded
        try:
            whole = open_clip.create_model(
                model,
                pretrained=tag if checkpoint is None else None,
                force_quick_gelu=weights.get("quick_gelu", False),  # weights that were trained with it get it
                force_image_size=None if size == preprocess.size else size,
            )
        finally:
            logging.disable(logging.NOTSET)
        network: Any = whole.visual
        if checkpoint is not None:
            _fit(network, checkpoint)

        def forward(x: torch.Tensor) -> torch.Tensor:
            features = network(x)
            return features[0] if isinstance(features, tuple) else features  # CoCa also gives tokens

        return network, forward

    return LibraryModel(preprocess, load)


# --- transformers: ``AutoModel`` with its pooling, or the image tower of CLIP; ``hf_<organization>--<name>``

#: Parts of image-text models that images do not pass through, names of tokens, and of last normalizations.
_TEXT = ("text_model", "text_projection", "logit_scale", "logit_bias")
_TOKENS = ("cls_token", "class_embedding", "distillation_token")
_NORMS = ("layernorm", "post_layernorm", "norm")


def _transformers(name: str, folder: Path | None) -> LibraryModel:
    import transformers

    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 2):  # normalize the last block twice
        raise ImportError(f"found {transformers.__version__}")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its reports of parameters have many lines
    repository, full_name = name.replace("--", "/", 1), f"hf_{name}"
    place = folder if folder is not None and (folder / "config.json").is_file() else repository
    try:
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        processor = transformers.AutoImageProcessor.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many types
        raise CogError(
            f"model hf_{name}: transformers cannot use {place} ({first_line(error)}); code of a repository "
            f"is not run; without a network, save config.json and preprocessor_config.json in {folder}"
        ) from error

    def load(checkpoint: Path | None, size: int) -> tuple[nn.Module, Forward]:
        if config.model_type == "vit_mae":
            config.mask_ratio = 0.0
        options: dict[str, Any] = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": True}
        options["output_loading_info"] = True  # with the mismatched sizes
        kind: Any = transformers.AutoModel
        if checkpoint is None:
            network, info = kind.from_pretrained(repository, trust_remote_code=False, **options)
        else:
            with torch.device("meta"):
                model = kind.from_config(config, trust_remote_code=False)
            names = [*model.state_dict(), *(f"{model.base_model_prefix}.{key}" for key in model.state_dict())]
            state = read_state(checkpoint, names)
            state = {key: v.float() if v.is_floating_point() else v for key, v in state.items()}
            network, info = type(model).from_pretrained(None, state_dict=state, **options)
        missing = [key for key in info["missing_keys"] if not key.startswith(_TEXT)]
        if missing and all(key.startswith("pooler.") for key in missing):
            network.pooler, missing = None, []  # the file of a classifier that does not use the pooler
        if wrong := sorted([*missing, *(str(key[0]) for key in info["mismatched_keys"])]):
            fault = "does not fit the architecture: parameters missing or of another shape"
            raise CogError(f"{checkpoint or repository} {fault} {len(wrong)} ({some(wrong)})")
        for part in _TEXT:
            if isinstance(getattr(network, part, None), nn.Module):
                setattr(network, part, None)

        def forward(x: torch.Tensor) -> torch.Tensor:
            output = _transformers_output(network, x, "get_image_features")
            if isinstance(output, torch.Tensor) or getattr(output, "pooler_output", None) is not None:
                return features_of(output, name=full_name)
            tokens, n_prefix = _transformers_tokens(network, x, 1)
            return pool(tokens, n_prefix, "cls" if n_prefix else "mean", name=full_name)

        return network, forward

    return LibraryModel(from_processor(processor.to_dict(), full_name), load, _transformers_tokens)


def _transformers_output(network: Any, x: torch.Tensor, part: str, **options: Any) -> Any:
    """Return the output of a network, or of ``part`` of a model of images and texts."""
    config = network.config
    inner = getattr(config, "vision_config", config)
    run = network if inner is config else getattr(network, part)
    parameters = inspect.signature(getattr(run, "forward", run)).parameters
    other_size = x.shape[-1] != getattr(inner, "image_size", x.shape[-1])
    if other_size and "interpolate_pos_encoding" in parameters:
        options["interpolate_pos_encoding"] = True
    if config.model_type == "vit_mae":  # the model sorts the patches by this noise: keep their order
        n_patches = (x.shape[-1] // config.patch_size) ** 2
        options["noise"] = torch.arange(n_patches, device=x.device).float().expand(len(x), -1)
    return run(pixel_values=x, **options)


def _transformers_tokens(network: Any, x: torch.Tensor, n: int) -> tuple[list[torch.Tensor], int]:
    output = _transformers_output(network, x, "vision_model", output_hidden_states=n > 1)
    config = getattr(network.config, "vision_config", network.config)
    n_prefix = getattr(config, "num_register_tokens", 0) or 0
    tokens = (value for key, value in network.named_parameters() if key.rpartition(".")[2] in _TOKENS)
    n_prefix += sum(value.shape[1] if value.ndim == 3 else 1 for value in tokens)
    if n == 1:
        return [output.last_hidden_state], n_prefix
    vision = getattr(network, "vision_model", network)
    norm = next(getattr(vision, key) for key in _NORMS if hasattr(vision, key))
    blocks = output.hidden_states[1:]  # the first is before the first block
    return [norm(tokens) for tokens in blocks[-n:]], n_prefix


#: Function and package of each library, by the first part of the models' names.
LIBRARIES: dict[str, tuple[Callable[[str, Path | None], LibraryModel], str]] = {
    "timm": (_timm, "timm"),
    "torchvision": (_torchvision, "torchvision"),
    "openclip": (_open_clip, "open_clip_torch"),
    "hf": (_transformers, "'transformers>=5.2'"),
}
