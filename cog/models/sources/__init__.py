"""Models of other libraries by name, ``<title>_<the library's name>``: one small file per library, imported on use."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.constants import CHECKPOINT_FILE
from cog.errors import CogError, did_you_mean, first_line, nearest
from cog.models.spec import PaperModel, Preprocess, import_target
from cog.models.zoo import MODELS, get_spec
from cog.paths import split_model_name

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

#: File of the weights in a repository of the Hugging Face hub.
SAFETENSORS = "model.safetensors"

#: Class of each source's models (``"module:class"``) and package that it needs, by the first part of the models' names.
SOURCES = {
    "timm": ("cog.models.sources.timm:TimmModel", "timm"),
    "torchvision": ("cog.models.sources.torchvision:TorchvisionModel", "torchvision"),
    "openclip": ("cog.models.sources.openclip:OpenClipModel", "open_clip_torch"),
    "hf": ("cog.models.sources.hf:HuggingFaceModel", "transformers"),
}


#: Beginning of the links to files in repositories of the Hugging Face hub, and the part between repository and file.
_HUB, _MAIN = "https://huggingface.co/", "/resolve/main/"

_TORCHVISION = "https://download.pytorch.org/"


def hub_link(repository: str, file: str) -> str:
    """Return the link of a file in a repository of the Hugging Face hub."""
    return f"{_HUB}{repository}{_MAIN}{file}"


def download(link: str) -> Path:
    """Return a file in the cache of huggingface_hub or torch.hub, downloaded unless it is there.

    Any exception may be raised. Older repositories of the hub have a pickle of weights, no safetensors. The names
    of torchvision's files hold the first digits of their SHA-256.
    """
    if not link.startswith(_HUB):
        import torch

        path = Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(link)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            prefix = path.stem.rpartition("-")[2] if link.startswith(_TORCHVISION) else None
            torch.hub.download_url_to_file(link, str(path), hash_prefix=prefix, progress=False)
        return path
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # without a network, it would print a dozen lines about attempts before the error message
    repository, _, file = link.removeprefix(_HUB).partition(_MAIN)
    try:
        return Path(hf_hub_download(repository, file))
    except EntryNotFoundError as error:
        if file != SAFETENSORS or isinstance(error, LocalEntryNotFoundError):  # the latter: no network
            raise
        return Path(hf_hub_download(repository, "pytorch_model.bin"))


class LibraryModel(ABC):
    """A model of another library: its preprocessing, network and weights.

    Attributes:
        name: ``<title>_<architecture>``.
        architecture: name of the model in the library, followed by the tag of its weights if one is given.
        model: part of ``architecture`` before the first dot, which is the name of the model in most libraries.
        tag: part of ``architecture`` after the first dot; empty without one.
        folder: folder of the checkpoint, which may hold further files of the model; None: not known.

    Raises:
        CogError: the library has no such model.
    """

    #: Not known before the network is built.
    feature_dim: int | None = None

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.name = name
        self.folder = folder
        self.architecture = split_model_name(name)[1]
        self.model, _, self.tag = self.architecture.partition(".")
        self.check_name()

    @abstractmethod
    def check_name(self) -> None:
        """Check that the library has the model.

        Raises:
            CogError: the library does not have the model; the message names the nearest models.
        """

    @property
    @abstractmethod
    def own_preprocess(self) -> Preprocess:
        """Preprocessing with which the library makes the input of its weights from an image."""

    @property
    @abstractmethod
    def address(self) -> str | None:
        """Link of the library's weights; None when the library has no weights."""

    @abstractmethod
    def build(self, size: int) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the network without classifier, with random weights, and name the classifier's modules.

        Args:
            size: side of the images, in pixels.
        """

    def convert(self, state: dict[str, torch.Tensor], network: nn.Module) -> dict[str, torch.Tensor]:
        """Return the parameters with the library's names and for the network's image size."""
        return state

    def tokens(self, network: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the tokens ``(B, N, D)`` of images, and the number of tokens before those of the patches.

        Raises:
            CogError: the model gives no tokens.
        """
        raise CogError(f"FT_EXTRACT.POOLING: model {self.name} gives no tokens; leave it out")

    def preprocess_for(self, geometry: str) -> Preprocess:
        """Return the preprocessing for a value of ``FT_EXTRACT.PREPROCESS``."""
        return self.own_preprocess.preprocess_for(geometry)

    def unknown(self, names: Collection[str]) -> CogError:
        """Return the error for an unknown name; its message has the nearest of ``names``."""
        title = split_model_name(self.name)[0]
        near = nearest(self.architecture, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(f'{title}_{name}' for name in near)}?" if near else ""
        return CogError(f"--model {self.name!r}: {title} has no model {self.architecture!r}{hint}")

    def fetch(self) -> Path:
        """Return the library's file of the weights.

        Raises:
            CogError: the library has no weights, or the download failed.
        """
        place = "give it as --ckpt_file"
        if self.folder is not None:
            place = f"save it as {self.folder / CHECKPOINT_FILE}"
        if self.address is None:
            raise CogError(
                f"there are no weights of {self.architecture} to download, and no checkpoint; {place}"
            )
        logger.info("weights of %s: %s", self.name, self.address)
        return self.obtain(self.address, f"the weights of {self.name}", place)

    def obtain(self, link: str, label: str, place: str) -> Path:
        """Return a file of the library, see :func:`download`.

        Args:
            link: link of the file.
            label: description of the file, for messages.
            place: instruction for a user who gets the file otherwise.

        Raises:
            CogError: the download failed; the message names the file, its link and its place.
        """
        try:
            return download(link)
        except Exception as error:  # the downloads of the libraries raise errors of many types
            raise CogError(
                f"{label} cannot be downloaded ({type(error).__name__}: {first_line(error)}); get {link} and {place}"
            ) from error

    def load(
        self, checkpoint: Path | None, *, size: int | None = None, pooling: str = "default"
    ) -> tuple[nn.Module, Callable[[torch.Tensor], Any] | None]:
        """Build the network and load a checkpoint strictly: all parameters, except those of the classifier.

        Args:
            checkpoint: file of the checkpoint; None: the library's file.
            size: side of the images, in pixels (default: that of the weights).
            pooling: value of ``FT_EXTRACT.POOLING``.

        Returns:
            The network and its forward pass; None stands for the network itself.

        Raises:
            CogError: unsafe or unfitting checkpoint, or an image size that the library does not build the model for.
        """
        from cog.models.checkpoint import ShapeError, load_strictly, read_state_dict

        checkpoint = checkpoint or self.fetch()
        side = size or self.own_preprocess.crop
        try:
            network, heads = self.build(side)
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            raise CogError(
                f"model {self.name} cannot be built for images of {side} x {side} pixels ({type(error).__name__}: "
                f"{first_line(error)})"
            ) from error
        expected = network.state_dict()
        state = _without(read_state_dict(checkpoint, expected.keys()), heads, keep=expected)
        if _shapes(state) != _shapes(expected):
            try:
                state = _without(self.convert(dict(state), network), heads, keep=expected)
            except Exception as error:
                # The library's function for original releases fails on a file of another model.
                logger.debug("%s: %s", checkpoint, error)
        try:
            load_strictly(network, state, checkpoint)
        except ShapeError as error:
            if side == self.own_preprocess.crop:
                raise
            raise CogError(
                f"{error}; they may be for images of {self.own_preprocess.crop} pixels alone, not of {side}"
            ) from error
        return network.eval(), self._forward(network, size, pooling)

    def _forward(
        self, network: nn.Module, size: int | None, pooling: str
    ) -> Callable[[torch.Tensor], Any] | None:
        """Return the forward pass; None stands for the network itself."""
        if pooling == "default":
            return None
        from cog.models.outputs import pool

        # Some networks normalize the pooled vector instead of the tokens.
        norm = getattr(network, "fc_norm", None)
        return lambda x: pool(*self.tokens(network, x), pooling, name=self.name, norm=norm)


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: value.shape for name, value in state.items()}


def _without(
    state: dict[str, torch.Tensor], heads: Sequence[str], *, keep: Collection[str]
) -> dict[str, torch.Tensor]:
    prefixes = tuple(f"{head}." for head in heads)
    return {name: value for name, value in state.items() if name in keep or not name.startswith(prefixes)}


def is_library_model(name: str) -> bool:
    """Return whether the title of a model's name is that of a source."""
    return name.partition("_")[0] in SOURCES


def did_you_mean_model(name: str, others: Iterable[str] = ()) -> str:
    """Return ``; did you mean dino_resnet50?`` for a name that is neither in the zoo nor in ``others``, else "".

    >>> did_you_mean_model("dino_resnet5"), did_you_mean_model("dino_resnet50")
    ('; did you mean dino_resnet50?', '')
    """
    if is_library_model(name):
        known = list(filter(is_library_model, others))
    else:
        known = [*others, *MODELS]
    return "" if name in known else did_you_mean(name, known)


def find_spec(name: str, folder: Path | None = None) -> PaperModel | LibraryModel:
    """Return the declaration of a model of the zoo or of a library.

    Args:
        name: name of the model.
        folder: folder that may hold files of a library's model.

    Raises:
        CogError: an unknown model, or a library that is not installed.
    """
    if is_library_model(name):
        target, package = SOURCES[name.partition("_")[0]]
        try:
            constructor = import_target(target)
        except ImportError as error:
            raise CogError(
                f"--model {name} needs {package}, which cannot be imported ({error}); pip install {package}"
            ) from None
        return constructor(name, folder)
    return get_spec(name)
