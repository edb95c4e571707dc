"""Frozen networks that map images to features: from the zoo, or from a user's loader."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cog.constants import POOLINGS
from cog.errors import CogError, first_line
from cog.models.checkpoint import load_strictly, read_paper_model, remove_head
from cog.models.formats.detect import require_checkpoint
from cog.models.outputs import features_of
from cog.models.preprocessing import declared
from cog.models.sources import LibraryModel, find_spec
from cog.models.spec import PaperModel, Preprocess, import_target
from cog.paths import split_model_name
from cog.runtime import files

#: A function ``load_my_model(init_args)``. Its argument is a dict with ``model_name``, ``ckpt_file`` and ``model_dir``.
#: It returns ``(backbone, forward)``, where a ``forward`` of None stands for the module itself, or the same with a
#: third value that declares the preprocessing (:func:`cog.models.preprocessing.declared`), or the module alone.
Loader = Callable[[dict[str, Any]], Any]


class Backbone(nn.Module):
    """A frozen network: float32 ``(B, 3, H, W)`` in, float32 ``(B, D)`` out, always in eval mode.

    Args:
        network: the network.
        forward: function from images to features; None: the network itself.
        name: model name.
        feature_dim: declared D.
        pooling: value of ``FT_EXTRACT.POOLING``.

    Attributes:
        name: model name.
        feature_dim: declared D, or None when a user's loader does not declare it.
        preprocess: preprocessing that a user's loader declares; None otherwise.
    """

    preprocess: Preprocess | None = None

    def __init__(
        self,
        network: nn.Module,
        forward: Callable[[torch.Tensor], Any] | None = None,
        *,
        name: str,
        feature_dim: int | None = None,
        pooling: str = "default",
    ) -> None:
        super().__init__()
        self.network = network
        self.name = name
        self.feature_dim = feature_dim
        self._forward = forward
        self._pooling = pooling
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Backbone:
        """Return the network, still in eval mode: the benchmark measures frozen features."""
        return super().train(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of a batch.

        Args:
            x: normalized images, float32 ``(B, 3, H, W)``.

        Returns:
            Features ``(B, D)``, float32 unless autocast is on.

        Raises:
            CogError: the network does not return one vector per image.
        """
        y = self.network(x) if self._forward is None else self._forward(x)
        n_prefix = getattr(self.network, "num_prefix_tokens", None)
        y = features_of(y, name=self.name, pooling=self._pooling, n_prefix=n_prefix)
        if (
            y.ndim != 2
            or y.shape[0] != x.shape[0]
            or y.shape[1] == 0
            or self.feature_dim not in (None, y.shape[1])
        ):
            wanted = f"({x.shape[0]}, {self.feature_dim or 'D'})"
            raise CogError(
                f"model {self.name} returned features of shape {tuple(y.shape)}, expected {wanted}"
            )
        return y


def load_backbone(
    model_name: str,
    ckpt_file: str | os.PathLike[str] | None,
    device: str | torch.device = "cpu",
    loader: str | Loader | None = None,
    *,
    model_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    pooling: str = "default",
) -> Backbone:
    """Load a model and freeze it.

    Args:
        model_name: ``<model_title>_<architecture_name>``; unless ``loader`` is given one of :func:`cog.list_models`, or
            a model of a library of :data:`cog.models.sources.SOURCES`, such as timm_resnet18.
        ckpt_file: checkpoint of the model: a file, or the common prefix of a TensorFlow checkpoint's files. None: a
            custom loader gets no checkpoint, and a library's model takes the library's download.
        device: device of the network, such as ``"cuda:0"``.
        loader: loader of a model of your own: ``"FILE.py:load_my_model"`` or the function itself.
        model_dir: passed on to a custom loader (default: the folder of ``ckpt_file``).
        image_size: side of the images that the model gets, in pixels (default: the side for its weights).
        pooling: value of ``FT_EXTRACT.POOLING``, for models that give tokens.

    The weights need not be the published weights: a checkpoint in the same layout is enough.

    Returns:
        A module in eval mode that maps float32 ``(B, 3, H, W)`` to ``(B, D)``.

    Raises:
        CogError: unknown model or pooling, missing, unsafe or unfitting checkpoint, failing loader.
    """
    if pooling not in POOLINGS:
        raise CogError(f"pooling {pooling!r} is not known, expected one of {', '.join(POOLINGS)}")
    if loader is None:
        folder = None if model_dir is None else Path(model_dir)
        spec = find_spec(model_name, folder)
        if ckpt_file is not None:
            require_checkpoint(ckpt_file, "--ckpt_file")
        if isinstance(spec, LibraryModel):
            checkpoint = None if ckpt_file is None else Path(ckpt_file)
            network, forward = spec.load(checkpoint, size=image_size, pooling=pooling)
            backbone = Backbone(network, forward, name=spec.name)
            probe(backbone, image_size or spec.own_preprocess.crop)
        elif ckpt_file is None:
            raise CogError(f"model {model_name} needs a checkpoint file; give it with --ckpt_file")
        elif pooling != "default" and not spec.class_token:
            raise CogError(f"FT_EXTRACT.POOLING {pooling}: model {model_name} gives no tokens; leave it out")
        else:
            network, forward = load_network(spec, Path(ckpt_file)), None
            if spec.class_token:
                forward, pooling = network.forward_features, "cls" if pooling == "default" else pooling
            dim = spec.feature_dim * len(pooling.split("+"))
            backbone = Backbone(network, forward, name=spec.name, feature_dim=dim, pooling=pooling)
    else:
        split_model_name(model_name)
        backbone = _load_with(resolve_loader(loader), model_name, ckpt_file, model_dir, pooling)
    return move(backbone, device)


def move(backbone: Backbone, device: str | torch.device) -> Backbone:
    """Return the backbone on a device.

    Raises:
        CogError: the device cannot be used.
    """
    try:
        return backbone.to(device)
    except (RuntimeError, AssertionError) as error:
        raise CogError(f"cannot use --device {device}: {str(error).splitlines()[0]}") from error


def probe(backbone: Backbone, size: int) -> None:
    """Determine the number of features by a forward pass of one gray image of ``size`` x ``size`` pixels.

    Raises:
        CogError: the network does not accept the image.
    """
    device = next((parameter.device for parameter in backbone.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            backbone.feature_dim = backbone(torch.zeros(1, 3, size, size, device=device)).shape[1]
    except CogError:
        raise
    except Exception as error:  # a user's network may raise any error
        raise CogError(
            f"model {backbone.name} does not take images of {size} x {size} pixels ({type(error).__name__}: "
            f"{first_line(error)})"
        ) from error


def build_network(spec: PaperModel, *, classifier: bool = False) -> nn.Module:
    """Build a model's network on the meta device, without weights.

    Args:
        spec: declaration of the model.
        classifier: whether the network keeps its classifier.
    """
    with torch.device("meta"):  # no memory and no random values for weights that are loaded later
        network = import_target(spec.network)(**spec.args)
    if not classifier:
        for head in spec.head:
            remove_head(network, head)
    return network


def load_network(spec: PaperModel, path: Path, *, classifier: bool = False) -> Any:
    """Build a model's network and load its checkpoint, strictly.

    Args:
        spec: declaration of the model.
        path: checkpoint of the model.
        classifier: whether the network keeps its classifier, whose parameters the file must then hold.

    Raises:
        CogError: missing, unsafe or unfitting checkpoint.
    """
    network = build_network(spec, classifier=classifier)
    state = read_paper_model(path, spec, network)
    if not classifier:
        heads = tuple(f"{head}." for head in spec.head)
        state = {name: value for name, value in state.items() if not name.startswith(heads or ("\0",))}
    load_strictly(network, state, path)
    return network


def resolve_loader(loader: str | Loader) -> Loader:
    """Return the function behind ``FILE.py:function`` (or the function itself).

    The file is the user's own code: it is executed.

    Raises:
        CogError: wrong form, missing file, failing import, no such function.
    """
    if not isinstance(loader, str):
        return loader
    file, separator, function = loader.rpartition(":")
    if not separator or not file or not function.isidentifier():
        raise CogError(f"--model_loader {loader!r} is not of the form FILE.py:load_my_model")
    path = files.require_file(file, "--model_loader")
    module_name = f"cog_user_loader_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise CogError(f"--model_loader {path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    # The module is registered before its execution so that dataclasses and pickling inside the file work; its folder
    # is put on the path so that the module can import files beside it.
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # exit() in a user's file must not end the command as a success
        raise CogError(
            f"--model_loader {path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    loader_function = getattr(module, function, None)
    if not callable(loader_function):
        raise CogError(f"--model_loader {path} has no function {function!r}")
    return loader_function


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return True
    try:
        signature.bind({})
    except TypeError:
        return False
    return True


def _load_with(
    loader: Loader,
    name: str,
    ckpt_file: str | os.PathLike[str] | None,
    model_dir: str | os.PathLike[str] | None,
    pooling: str,
) -> Backbone:
    """Call a loader with the arguments of the original toolkit, and check the result."""
    if model_dir is None and ckpt_file is not None:
        model_dir = Path(ckpt_file).parent
    init_args = {
        "model_name": name,
        "ckpt_file": None if ckpt_file is None else str(ckpt_file),
        "model_dir": None if model_dir is None else str(model_dir),
    }
    if not _takes_one_argument(loader):
        function = getattr(loader, "__name__", "load_my_model")
        raise CogError(
            f"the loader of model {name}, {function}{inspect.signature(loader)}, cannot be called with one argument; "
            f"{function}(init_args) takes one argument, a dict"
        )
    try:
        loaded = loader(init_args)
    except CogError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if ckpt_file is None and model_dir is not None:
            hint = f"; there is no checkpoint in {model_dir}, so init_args['ckpt_file'] is None: check the model's name"
        elif ckpt_file is not None and os.path.isfile(ckpt_file) and not os.path.getsize(ckpt_file):
            hint = f"; its checkpoint {ckpt_file} is empty, download it again"
        raise CogError(
            f"the loader of model {name} failed with {type(error).__name__}: {first_line(error)}{hint} (COG_DEBUG=1 "
            "shows where)"
        ) from error
    network, forward, preprocess = (*(loaded if isinstance(loaded, tuple) else (loaded,)), None, None, None)[
        :3
    ]
    if not isinstance(network, nn.Module) or not (forward is None or callable(forward)):
        returned = type(loaded).__name__
        if isinstance(loaded, tuple):
            returned = f"({', '.join(type(value).__name__ for value in loaded)})"
        raise CogError(
            f"the loader of model {name} returned {returned}, expected (backbone, forward): "
            "a torch.nn.Module and a function or None, and by choice its preprocessing as the third"
        )
    _require_own_modules(network, forward, name)
    backbone = Backbone(network, forward, name=name, pooling=pooling)
    backbone.preprocess = declared(
        preprocess if preprocess is not None else getattr(network, "preprocess", None), f"model {name}"
    )
    return backbone


def _require_own_modules(network: nn.Module, forward: Callable[..., Any] | None, name: str) -> None:
    """Refuse a function that uses modules beside the network, which would be neither frozen nor moved."""
    used = {"self": getattr(forward, "__self__", None)}
    if inspect.isfunction(forward):
        with contextlib.suppress(ValueError):  # a variable without a value yet
            names = inspect.getclosurevars(forward)
            used = {**names.globals, **names.nonlocals}
    modules = set(network.modules())
    for variable, value in used.items():
        if isinstance(value, nn.Module) and value not in modules:
            raise CogError(
                f"the forward of model {name} uses {type(value).__name__} ({variable}), which is not part of the "
                "backbone; return it as the backbone, or make it one of its modules (backbone.neck = neck)"
            )
