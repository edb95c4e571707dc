"""The plan of an extraction: which images go through which network into which folders, and whether that can be done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.data import image_checks, root_layout
from cog.data.image_sources import ImageSources
from cog.data.wnids import class_list_digest
from cog.errors import CogError, some
from cog.features import shards
from cog.features.folder import FeatureFolder
from cog.models.formats.detect import detect
from cog.models.request import ModelRequest
from cog.runtime import machine_checks
from cog.runtime.check_report import Report
from cog.runtime.locks import LockedError
from cog.runtime.output_folder import read_state
from cog.runtime.ranks import Rank

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList

#: Bytes per row beside the features: label and path.
_ROW_BYTES = 64

_SHOWN = 3

#: Computes the features of an image of a list; returns their number and a line about them.
TryNetwork = Callable[["ExtractionPlan", "ImageList"], tuple[int, str]]


@dataclass(frozen=True, eq=False)
class ExtractJob:
    """One data set and split to extract.

    Attributes:
        images: the images.
        folder: output folder, with the identity of the features.
        label: name in messages.
    """

    images: ImageList
    folder: FeatureFolder
    label: str


@dataclass(frozen=True, eq=False)
class ExtractionPlan:
    """A call of ``extract_features.py``; most fields are the values of its flags.

    Properties are computed, and checked, when they are first asked for. An execution asks for :attr:`jobs` and ends at
    the first fault; ``--check`` asks for one part after the other and reports all faults.

    Attributes:
        rank: this process among those of the start.
        since: start of the process (seconds since the epoch).
    """

    model: ModelRequest
    sources: ImageSources
    datasets: Sequence[str]
    splits: Sequence[str]
    device: str | None = None
    allow_failures: int = 0
    overwrite: bool = False
    skip_complete: bool = False
    config_file: str | None = None
    opts: Sequence[str] = ()
    rank: Rank = field(default_factory=Rank)
    since: float = 0.0
    _lists: dict[tuple[str, str], ImageList] = field(default_factory=dict, init=False)

    @cached_property
    def cfg(self) -> CfgNode:
        """The configuration."""
        records = self.folders.values() if self.model.model_loader is not None else ()
        return self.model.config(
            self.config_file, self.opts, records=(folder.metadata() or {} for folder in records)
        )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Data set and split of every job, in the order given, each once."""
        return list(dict.fromkeys((dataset, split) for dataset in self.datasets for split in self.splits))

    @cached_property
    def folders(self) -> dict[tuple[str, str], FeatureFolder]:
        """The output folder of every data set and split."""
        _, model_dir = self.model.paths
        if self.model.output_dir is not None:
            if len(self.pairs) > 1:
                raise CogError(
                    f"--output_dir takes the features of one data set and split, not of {len(self.pairs)}; give "
                    "--models_root_dir instead, or one --dataset and one --split at a time"
                )
            return {self.pairs[0]: self._folder(self.model.output_dir)}
        assert model_dir is not None
        return {pair: self._folder(model_dir.features(*pair)) for pair in self.pairs}

    def images(self, pair: tuple[str, str]) -> ImageList:
        """Return the images of a data set and split."""
        if pair not in self._lists:
            self._lists[pair] = self.sources.list_images(*pair)
        return self._lists[pair]

    def job(self, pair: tuple[str, str]) -> ExtractJob:
        """Return the job of a data set and split."""
        images, fx = self.images(pair), self.cfg.FT_EXTRACT
        identity = self.model.description | {
            "dataset": images.dataset,
            "split": images.split,
            "preprocessing": self.model.preprocessing(self.cfg),
            "profile": fx.PROFILE,
            "variant": fx.VARIANT,
            "precision": fx.PRECISION,
            "save_dtype": fx.SAVE_DTYPE,
            "decode": fx.DECODE,
            "image_list_sha256": images.digest(),
            "images_root": str(images.root),
            "class_list_sha256": class_list_digest(images.classes),
            "n_classes": len(images.classes),
            "n_images": len(images),
        }
        if self.sources.limit:
            identity["limit"] = self.sources.limit
        return ExtractJob(images, self._folder(self.folders[pair].path, identity), " ".join(pair))

    def _folder(self, path: str | Path, identity: dict[str, Any] | None = None) -> FeatureFolder:
        return FeatureFolder(
            path,
            identity,
            overwrite=self.overwrite,
            skip_complete=self.skip_complete,
            allow_failures=self.allow_failures,
        )

    @cached_property
    def jobs(self) -> list[ExtractJob]:
        """All jobs, complete ones included, after everything has been checked that needs no network.

        Raises:
            CogError: at the first fault.
        """
        self.model.check_variant(self.model.config(self.config_file, self.opts, records=None))
        for folder in self.folders.values():
            folder.require_usable()
        for pair in self.folders:
            self.images(pair)
        return [self.job(pair) for pair in self.folders]

    def pending(self) -> list[ExtractJob]:
        """Return the jobs whose features are not complete, and do not become so without the network.

        Raises:
            LockedError: when another start is at work on one.
            CogError: when there are features that were made differently.
        """
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

    def check(self, try_network: TryNetwork) -> int:
        """Look at every part of the plan and at the machine, print a summary, and return the exit code.

        Args:
            try_network: :func:`cog.features.runner.try_network`, or what imports it (it imports torch).
        """
        report = Report()
        precision = ""
        with report.step("configuration") as configured:
            cfg = self.model.config(self.config_file, self.opts, records=None)
            self.model.check_variant(cfg)
            precision = cfg.FT_EXTRACT.PRECISION
        with report.step("checkpoint") as known:
            self._check_model(report)
        folders: dict[tuple[str, str], FeatureFolder] = {}
        with report.step("output"):
            folders = self.folders if known.ok else {}
        from cog.data.image_lists import MissingClassesError

        for pair in self.pairs:
            with report.step(" ".join(pair)):
                listed = self.sources.declaration(pair[0]).list_images is not None
                lost: tuple[str, ...] = ()
                try:
                    images = self.images(pair)
                except MissingClassesError as error:
                    report.problem(" ".join(pair), str(error))
                    images, lost = error.images, error.classes
                check_images(
                    report,
                    images,
                    " ".join(pair),
                    allowed=self.allow_failures,
                    may_be_missing=listed,
                    lost=lost,
                )
        dim = None
        ready = configured.ok and known.ok
        if ready:
            with report.step("model") as tried:
                dim = self._check_network(report, try_network)
            ready = tried.ok or self.model.model_loader is None
        todo = []
        for pair, folder in folders.items():
            job = self.job(pair) if ready and pair in self._lists else None
            written = False
            with report.step("output") as usable:
                written = self._check_output(report, folder, job, " ".join(pair))
            if usable.ok and written and pair in self._lists:
                todo.append((folder.path, len(self.images(pair))))
        fx = self.cfg.FT_EXTRACT if ready else None
        if fx is not None and self.model.model_loader is None and dim is None:
            dim = self.model.spec.resolve(fx.PROFILE, fx.VARIANT).feature_dim
        value_bytes = 2 if fx is not None and fx.SAVE_DTYPE != "float32" else 4
        shard_bytes = 2 if fx is not None and fx.PRECISION == "fp16" else value_bytes
        _check_space(report, todo, dim, value_bytes=value_bytes, shard_bytes=shard_bytes)
        with report.step("device"):
            machine_checks.check_device(report, self.device, "FT_EXTRACT.PRECISION", precision)
        return report.finish()

    def _check_model(self, report: Report) -> None:
        checkpoint = self.model.checkpoint
        library_model = self.model.library_model
        if checkpoint is None and library_model is not None:
            self.model.check_weights()
            report.ok("checkpoint", f"none; the weights would be those of {library_model.address}")
            return
        if checkpoint is None:
            report.ok("checkpoint", f"none; {self.model.model_loader} does without")
            return
        detect(checkpoint)
        description = self.model.description
        published = ", the published file" if description.get("checkpoint_is_published") else ""
        report.ok(
            "checkpoint",
            f"{checkpoint}, {machine_checks.size(self.model.n_bytes)}, "
            f"SHA-256 {description['checkpoint_sha256'][:12]}...{published}",
        )

    def _check_network(self, report: Report, try_network: TryNetwork) -> int | None:
        """Run the network once, on the first image of a data set; returns the number of features, None: not known."""
        library_model = self.model.library_model
        if library_model is not None and self.model.checkpoint is None and not library_model.is_cached:
            report.ok("model", "not tried, because its weights would have to be downloaded")
            return None
        if not self._lists:
            report.warn("model", "not tried, for want of images")
            return None
        dim, text = try_network(self, next(iter(self._lists.values())))
        report.ok("model", text)
        return dim

    def _check_output(
        self, report: Report, folder: FeatureFolder, job: ExtractJob | None, label: str
    ) -> bool:
        """Report what would happen with an output folder; returns whether it would be written."""
        folder.require_usable()
        is_free = machine_checks.check_state(report, folder.path)
        if job is not None and job.folder.holds_result():
            report.ok("output", f"{label}: {folder.features_file} is complete and would be skipped")
            return False
        if not machine_checks.check_writable(report, folder.path):
            return False
        manifest = shards.read_manifest(folder.path)
        if not is_free:
            return False
        if manifest is not None and job is not None:
            work = shards.Shards(folder.path)
            work.manifest = manifest
            _check_unfinished(report, job, work)
        elif folder.is_complete() and self.overwrite:
            report.warn("output", f"{label}: {folder.features_file} would be replaced (--overwrite)")
        elif folder.is_complete():
            report.warn(
                "output",
                f"{label}: {folder.features_file} is complete; made for other images or not, is not known yet",
            )
        else:
            report.ok("output", f"{label}: {folder.path}")
        return True


def check_images(
    report: Report,
    images: ImageList,
    label: str,
    *,
    allowed: int,
    may_be_missing: bool = True,
    lost: Collection[str] = (),
) -> None:
    """Report how many images of a list are missing, and how many are empty.

    Args:
        report: gets a line for each.
        images: the images.
        label: of the lines.
        allowed: value of ``--allow_failures``.
        may_be_missing: False for a list that was made of the files in its folders.
        lost: classes that were reported already.
    """
    absent = image_checks.missing(images, without=lost) if may_be_missing else []
    empty = image_checks.empty(images)
    total = f"{len(images):,} images of {len(images.classes):,} classes"
    n_bad = len(absent) + len(empty)
    for names, what in ((absent, "missing"), (empty, "empty (0 bytes)")):
        if not names:
            continue
        text = f"{len(names):,} of {total} are {what} under {images.root}: {some(names, _SHOWN)}"
        why = root_layout.hint(images.root)
        if n_bad <= allowed:
            report.warn(label, f"{text} (--allow_failures {allowed} accepts that){why}")
        else:
            advice = why or f"; complete them, or accept it with --allow_failures {n_bad}"
            report.problem(label, f"{text}{advice}")
    if not (n_bad or lost):
        report.ok(label, total)


def _check_unfinished(report: Report, job: ExtractJob, work: shards.Shards) -> None:
    """Report whether unfinished work would be continued.

    Raises:
        CogError: when it was made differently.
    """
    # The device and the images per pass are part of it, too, but are not known without taking a GPU.
    changed = job.folder.check_unfinished(job.folder.identity)
    work.scan()
    text = f"{job.label}: {work.n_done():,} of {work.manifest.n_rows:,} images are done in {work.path}"
    if changed:
        report.warn("output", f"{text}, made differently; they would be discarded (--overwrite)")
    else:
        report.ok("output", f"{text}; continues from there")


def _check_space(
    report: Report, todo: list[tuple[Path, int]], dim: int | None, *, value_bytes: int, shard_bytes: int
) -> None:
    """Compare disk and memory with what the jobs need.

    Args:
        report: gets the findings.
        todo: output folder and number of images of each job.
        dim: number of features; None: not known.
        value_bytes: bytes of a value in X_Y.pth.
        shard_bytes: bytes of a value in a shard.
    """
    if not todo:
        return
    if dim is None:
        report.warn(
            "disk",
            "not estimated: the number of features of a model of your own, or of another library, is not known before "
            "it is loaded",
        )
        return
    with report.step("disk"):
        finals = [(path, n * (value_bytes * dim + _ROW_BYTES)) for path, n in todo]
        # Shards exist beside the file made of them until that is in place; one split after the other.
        path, rows = max(todo, key=lambda item: item[1])
        done = sum(_bytes_in(path / shards.FOLDER) for path, _ in todo)
        machine_checks.check_disk(report, [*finals, (path, rows * shard_bytes * dim - done)])
    with report.step("memory"):
        most = max(n * value_bytes * dim for _, n in todo)
        machine_checks.check_memory(
            report, most, f"the largest split, {machine_checks.size(most)}, at its end"
        )


def _bytes_in(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError:
        return 0
