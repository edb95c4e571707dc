"""Models of other libraries by name, ``<title>_<the library's name>``: one small file per library, imported on use."""

from __future__ import annotations

import difflib
import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cog.errors import CogError
from cog.models.spec import ModelSpec, Preprocess, Unwrap
from cog.models.zoo import get_spec
from cog.paths import split_model_name

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)

#: Layouts of files that the libraries and their training scripts write; of equals the first is taken.
LAYOUTS = tuple(
    Unwrap(key, prefix=prefix, allow=("argparse.Namespace", "numpy.scalar"))
    for prefix in ("", "module.")
    for key in ("state_dict_ema", "model_ema", "state_dict", "model", None)
)


@dataclass(frozen=True)
class ModelSource:
    """A library whose models are known by name.

    Attributes:
        title: first part of the model's names.
        target: ``"module:class"`` of its :class:`LibraryModel`.
        package: package that has to be installed.
    """

    title: str
    target: str
    package: str

    def model(self, name: str) -> LibraryModel:
        """Return the declaration of a model.

        Raises:
            CogError: the library is not installed, or has no such model.
        """
        module, _, attribute = self.target.partition(":")
        try:
            constructor = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise CogError(
                f"--model {name} needs {self.package}, which cannot be imported ({error}); pip install {self.package}"
            ) from None
        return constructor(name)


SOURCES = {
    source.title: source
    for source in (
        ModelSource("timm", "cog.models.sources.timm:TimmModel", "timm"),
        ModelSource("torchvision", "cog.models.sources.torchvision:TorchvisionModel", "torchvision"),
    )
}


class LibraryModel(ABC):
    """A model of another library: its preprocessing, network and weights.

    Attributes:
        name: ``<title>_<architecture>``.
        architecture: the library's name of the model, with the tag of its weights where one is given.

    Raises:
        CogError: when the library has no such model.
    """

    #: No SHA-256 is declared for other libraries' files.
    sha256_prefixes: tuple[str, ...] = ()
    #: Not known before the network is built.
    feature_dim: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.architecture = split_model_name(name)[1]
        self.check_name()

    @abstractmethod
    def check_name(self) -> None:
        """Check that the library has the model.

        Raises:
            CogError: it does not; names the nearest.
        """

    @property
    @abstractmethod
    def preprocess(self) -> Preprocess:
        """Input that the library's weights expect."""

    @property
    @abstractmethod
    def address(self) -> str | None:
        """Link of the library's weights; None when it has none."""

    @abstractmethod
    def download(self) -> Path:
        """Return the library's file of the weights, downloaded unless it is cached; any exception is a failure."""

    @abstractmethod
    def build(self) -> tuple[nn.Module, tuple[str, ...]]:
        """Build the network without classifier, with random weights, and name the classifier's modules."""

    def rename(self, state: dict[str, torch.Tensor], network: nn.Module) -> dict[str, torch.Tensor]:
        """Return parameters of an original release under the library's names."""
        return state

    def resolve(self, profile: str = "authors", variant: str = "") -> LibraryModel:
        """Return the model itself: profiles make no difference.

        Raises:
            CogError: for a variant; there are none.
        """
        if variant:
            raise CogError(f"model {self.name} has no variant {variant!r}; it has none")
        return self

    def unknown(self, names: Collection[str]) -> CogError:
        """Return the error for a name that is none of ``names``, with the nearest of them."""
        title = split_model_name(self.name)[0]
        near = difflib.get_close_matches(self.architecture, names, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(f'{title}_{name}' for name in near)}?" if near else ""
        return CogError(f"--model {self.name!r}: {title} has no model {self.architecture!r}{hint}")

    def fetch(self, checkpoint: Path | None) -> Path:
        """Return the library's file of the weights.

        Args:
            checkpoint: place where a file of the user's would have been taken; None: not known.

        Raises:
            CogError: no such file, or it cannot be downloaded.
        """
        place = "give it as --ckpt_file" if checkpoint is None else f"put it there as {checkpoint}"
        if self.address is None:
            raise CogError(
                f"there are no weights of {self.architecture} to download, and no checkpoint; {place}"
            )
        logger.info("weights of %s: %s", self.name, self.address)
        try:
            return self.download()
        except Exception as error:  # whatever the libraries' own downloads raise without a network
            first = (str(error).strip().splitlines() or [""])[0]
            raise CogError(
                f"the weights of {self.name} cannot be downloaded ({type(error).__name__}: {first}); "
                f"get {self.address} and {place}"
            ) from error

    def load(self, checkpoint: Path) -> nn.Module:
        """Build the network and load a checkpoint: every parameter but the classifier's, and nothing else.

        Raises:
            CogError: unsafe or unfitting checkpoint.
        """
        from cog.models.checkpoint import load_strictly, read_state_dict

        network, heads = self.build()
        expected = network.state_dict()
        state = _without(read_state_dict(checkpoint, LAYOUTS, expected=expected.keys()), heads, keep=expected)
        if state.keys() != expected.keys():
            try:
                state = _without(self.rename(dict(state), network), heads, keep=expected)
            except Exception as error:
                # The library's function for original releases meets a file of another model.
                logger.debug("%s: %s", checkpoint, error)
        load_strictly(network, state, checkpoint)
        return network.eval()


def _without(
    state: dict[str, torch.Tensor], heads: Sequence[str], *, keep: Collection[str]
) -> dict[str, torch.Tensor]:
    prefixes = tuple(f"{head}." for head in heads)
    return {name: value for name, value in state.items() if name in keep or not name.startswith(prefixes)}


def is_library_model(name: str) -> bool:
    """Return whether the name's title is that of a source."""
    return name.partition("_")[0] in SOURCES


def find_spec(name: str) -> ModelSpec | LibraryModel:
    """Return the declaration of a model of the zoo or of a library.

    Raises:
        CogError: an unknown model, or a library that is not installed.
    """
    if is_library_model(name):
        return SOURCES[name.partition("_")[0]].model(name)
    return get_spec(name)
