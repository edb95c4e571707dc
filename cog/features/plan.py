"""The plan of an extraction: the images, the network and the output folders, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.data.image_sources import ImageSources
from cog.data.wnids import class_list_digest
from cog.errors import CogError, some
from cog.features.folder import FeatureFolder
from cog.models.request import ModelRequest
from cog.paths import ModelDir, with_limit
from cog.runtime.locks import LockedError
from cog.runtime.output_folder import read_state
from cog.runtime.ranks import Rank

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList


@dataclass(frozen=True, eq=False)
class ExtractJob:
    """One data set and split to extract.

    Attributes:
        plan: plan of the extraction.
        images: the images.
        folder: output folder, with the identity of the features.
    """

    plan: ExtractionPlan
    images: ImageList
    folder: FeatureFolder

    @property
    def label(self) -> str:
        """Name of the job in messages."""
        return f"{self.images.dataset} {self.images.split}"


@dataclass(frozen=True, eq=False)
class ExtractionPlan:
    """A call of ``extract_features.py``; most fields are the values of its flags.

    Properties are computed and checked at their first use.

    Attributes:
        limit: value of ``--limit``: number of classes, and of images of each class, to extract, whose features lie in
            ``<models_root_dir>/limit-<limit>/``; 0: all.
        rank: rank of this process among those that were started together.
        since: start of this process, in seconds since the epoch.
    """

    model: ModelRequest
    sources: ImageSources
    datasets: Sequence[str]
    splits: Sequence[str]
    device: str | None = None
    allow_failures: int = 0
    overwrite: bool = False
    limit: int = 0
    config_file: str | None = None
    opts: Sequence[str] = ()
    rank: Rank = field(default_factory=Rank)
    since: float = 0.0
    _lists: dict[tuple[str, str], ImageList] = field(default_factory=dict, init=False)

    @cached_property
    def cfg(self) -> CfgNode:
        """The configuration."""
        return self.model.config(self.config_file, self.opts)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Data set and split of every job, in the order given, each once."""
        return list(dict.fromkeys((dataset, split) for dataset in self.datasets for split in self.splits))

    @cached_property
    def folders(self) -> dict[tuple[str, str], FeatureFolder]:
        """Output folders by data set and split."""
        _, model_dir = self.model.paths
        if self.model.output_dir is not None:
            if self.limit:
                raise CogError(f"--limit {self.limit} writes below --models_root_dir; leave out --output_dir")
            if len(self.pairs) > 1:
                raise CogError(
                    f"--output_dir takes the features of one data set and split, not of {len(self.pairs)}; give "
                    "--models_root_dir instead, or one --dataset and one --split at a time"
                )
            return {self.pairs[0]: self._folder(self.model.output_dir)}
        assert model_dir is not None
        if self.limit:
            model_dir = ModelDir(with_limit(model_dir.root, self.limit), model_dir.model)
        return {pair: self._folder(model_dir.features(*pair)) for pair in self.pairs}

    def images(self, pair: tuple[str, str]) -> ImageList:
        """Return the images of a data set and split."""
        if pair not in self._lists:
            images = self.sources.list_images(*pair)
            self._lists[pair] = images.first(self.limit) if self.limit else images
        return self._lists[pair]

    def require_same_classes(self) -> None:
        """Refuse a data set whose listed splits have different classes, so that labels do not agree."""
        for dataset in self.datasets:
            train, test = (self._lists.get((dataset, split)) for split in constants.SPLITS)
            if train is not None and test is not None and train.classes != test.classes:
                differing = sorted({*train.classes} ^ {*test.classes})
                raise CogError(
                    f"{dataset} has {len(train.classes)} classes for training and {len(test.classes)} for testing, "
                    f"which differ in {some(differing)}; labels are positions among them, so both need the same"
                )

    def job(self, pair: tuple[str, str]) -> ExtractJob:
        """Return the job of a data set and split."""
        images, fx = self.images(pair), self.cfg.FT_EXTRACT
        identity = self.model.description | {
            "dataset": images.dataset,
            "split": images.split,
            "preprocessing": self.model.preprocessing(self.cfg),
            "precision": fx.PRECISION,
            "save_dtype": fx.SAVE_DTYPE,
            "image_list_sha256": images.digest(),
            "image_sample_sha256": images.sample_digest() if self.rank.leads else None,
            "images_root": str(images.root),
            "class_list_sha256": class_list_digest(images.classes),
            "n_classes": len(images.classes),
            "n_images": len(images),
        }
        return ExtractJob(self, images, self._folder(self.folders[pair].path, identity))

    def _folder(self, path: str | Path, identity: dict[str, Any] | None = None) -> FeatureFolder:
        return FeatureFolder(path, identity, overwrite=self.overwrite, allow_failures=self.allow_failures)

    @cached_property
    def jobs(self) -> list[ExtractJob]:
        """All jobs, including complete ones, after all checks that need no network."""
        for folder in self.folders.values():
            folder.require_usable()
        _ = self.cfg  # bad keys and unknown models, before the images are listed
        for pair in self.folders:
            self.images(pair)
        self.require_same_classes()
        return [self.job(pair) for pair in self.folders]

    def pending(self) -> list[ExtractJob]:
        """Return the jobs whose features are not complete."""
        todo = []
        for job in self.jobs:
            if self.rank.leads:
                if job.folder.is_done():
                    continue
                if (holder := read_state(job.folder.path, complete=False).holder) is not None:
                    raise LockedError(f"{job.folder.path} is being written by {holder}; wait for it to end")
            elif job.folder.holds_result():
                job.folder.announce_done()
                continue
            todo.append(job)
        return todo
