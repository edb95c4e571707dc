"""Models of torch.hub, ``hub_<owner>--<repository>.<entry>`` or ``hub_<folder>.<entry>``, whose code the user trusts.

A repository's ``hubconf.py`` is code, which is executed. Therefore only the repositories in the environment variable
``COG_TRUST_HUB`` are used; it holds, separated by commas, folders of local checkouts, or ``owner/repository[:ref]``,
which torch.hub downloads.
"""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cog.errors import CogError, did_you_mean, first_line
from cog.models.outputs import features_of
from cog.models.preprocessing import declared
from cog.models.sources import LibraryModel
from cog.models.spec import Preprocess

logger = logging.getLogger(__name__)

TRUST = "COG_TRUST_HUB"


class HubModel(LibraryModel):
    """An entry point of a trusted repository, called without ``pretrained`` if it has no such argument."""

    why_untried = (
        "its entry point loads its weights by itself, and may download them; only extraction tries it"
    )

    #: Assumed until a call fails because of the argument.
    _takes_pretrained = True

    def check_name(self) -> None:
        """Check that the repository is trusted, without running its code."""
        repository, _, entry = self.architecture.rpartition(".")
        if not repository or not entry.isidentifier():
            raise CogError(f"--model {self.name!r} is not of the form hub_<owner>--<repository>.<entry>")
        trusted = [name.strip() for name in os.environ.get(TRUST, "").split(",") if name.strip()]
        places = {_short(name): name for name in trusted}
        if repository not in places:
            online = repository.replace("--", "/", 1)
            words = f"{TRUST}={online} or " if "/" in online else ""
            raise CogError(
                f"model {self.name} would run code of {online}, which is not trusted; if you trust it, set {words}"
                f"{TRUST}=/path/to/{repository} (a checkout)"
            )
        self._repository, self._entry = places[repository], entry
        if _is_path(self._repository) and not os.path.isdir(self._repository):
            raise CogError(f"{TRUST} names {self._repository}, which is not a folder; check the path")
        if not _is_path(self._repository) and "/" not in self._repository:
            raise CogError(
                f"{TRUST} names {self._repository}, expected owner/repository, or the path of a checkout beginning "
                "with / or ."
            )

    @cached_property
    def _made(self) -> Any:
        """The network that the entry point makes, without weights."""
        return self._call(pretrained=False)

    def _call(self, *, pretrained: bool) -> Any:
        options: dict[str, Any] = {"trust_repo": True, "verbose": False}
        if os.path.isdir(self._repository):
            options = {"source": "local"}
        given = {"pretrained": pretrained} if self._takes_pretrained else {}
        links: list[str] = []
        try:
            with _only_weights(), _noting_downloads(links):
                entry = torch.hub.load(self._repository, self._entry, **options, **given)
        except CogError:
            raise
        except (Exception, SystemExit) as error:
            if given and isinstance(error, TypeError) and "keyword argument 'pretrained'" in str(error):
                self._takes_pretrained = False
                return self._call(pretrained=pretrained)
            place = f"; get {links[-1]} and {self.place}" if links and isinstance(error, OSError) else ""
            raise CogError(
                f"model {self.name}: {self._words(pretrained)} failed with {type(error).__name__}: "
                f"{first_line(error)}{place}{did_you_mean(self._entry, self._entries())}"
            ) from error
        return entry

    def _entries(self) -> list[str]:
        """Return the functions in the hubconf.py of a local checkout without the given one; empty for repositories."""
        try:
            module = ast.parse(Path(self._repository, "hubconf.py").read_bytes())
        except (OSError, SyntaxError, ValueError):
            return []
        names: list[str] = []
        for node in module.body:
            if isinstance(node, ast.FunctionDef):
                names.append(node.name)
            elif isinstance(node, ast.ImportFrom):
                names += [alias.asname or alias.name for alias in node.names]
        return [] if self._entry in names else [name for name in names if not name.startswith("_")]

    def _words(self, pretrained: bool) -> str:
        """Return the call of the entry point as text, for messages."""
        given = f"pretrained={pretrained}" if self._takes_pretrained else ""
        return f"{self._entry}({given}) of {self._repository}"

    @cached_property
    def own_preprocess(self) -> Preprocess:
        """Preprocessing in the network's attribute ``preprocess``; without it, ImageNet's at 224 pixels."""
        return declared(getattr(self._made, "preprocess", None), f"model {self.name}") or Preprocess()

    @property
    def address(self) -> str | None:
        """Call of the entry point, which downloads its weights itself."""
        _ = self._made  # the call finds out whether the entry point takes ``pretrained``
        return self._words(pretrained=True)

    @property
    def is_cached(self) -> bool:
        """Whether the entry point has no argument ``pretrained``: its first call has then loaded the weights."""
        _ = self._made
        return not self._takes_pretrained

    def download(self) -> Path:
        """Raise a CogError: the entry point loads its weights itself, so no file is known."""
        raise CogError(f"model {self.name} has no known file of weights")

    def build(self, size: int) -> tuple[nn.Module, tuple[str, ...]]:
        """Return the entry point's network; where a classifier was, its code leaves an identity."""
        heads = [name for name, module in self._made.named_children() if type(module) is nn.Identity]
        return self._made, tuple(heads)

    def n_features(self, size: int, pooling: str) -> int | None:
        """Return None: the number of features is not known before the entry point is called."""
        return None

    def load(
        self, checkpoint: Path | None, *, size: int | None = None, pooling: str = "default"
    ) -> tuple[nn.Module, Callable[[torch.Tensor], Any] | None]:
        """Load a checkpoint, or let the entry point load its weights."""
        if checkpoint is not None:
            network, _ = super().load(checkpoint, size=size)
        else:
            network = self._call(pretrained=True)
            if not isinstance(network, nn.Module):
                raise CogError(
                    f"model {self.name}: {self._entry} returned {type(network).__name__}, expected a module"
                )
            if not self._takes_pretrained:
                logger.warning(
                    "%s: %s takes no argument pretrained; the weights are those that it makes by itself",
                    self.name, self._entry,
                )  # fmt: skip
        return network, lambda x: features_of(network(x), name=self.name, pooling=pooling)


def _short(name: str) -> str:
    """Return the name of a trusted repository or folder in the form that names of models have."""
    if _is_path(name):
        return os.path.basename(os.path.abspath(name))
    return name.partition(":")[0].replace("/", "--", 1)


def _is_path(name: str) -> bool:
    return os.path.isabs(name) or name.startswith(".")


@contextmanager
def _noting_downloads(links: list[str]) -> Iterator[None]:
    """Append to ``links`` the links that torch.hub downloads, since errors of the connection do not name them."""
    download = torch.hub.download_url_to_file

    def noting(url: str, *args: Any, **options: Any) -> None:
        links.append(url)
        download(url, *args, **options)

    torch.hub.download_url_to_file = noting
    try:
        yield
    finally:
        torch.hub.download_url_to_file = download


@contextmanager
def _only_weights() -> Iterator[None]:
    """Make ``torch.load`` refuse all objects but weights, even when the repository's code allows more."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before
