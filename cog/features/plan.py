"""The plan of an extraction: which images go through which network into which folders, and whether that can be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog.data import image_checks, root_layout
from cog.data.image_sources import ImageSources
from cog.data.wnids import class_list_digest
from cog.errors import CogError
from cog.features import shards
from cog.features.folder import FeatureFolder
from cog.models.formats.detect import detect
from cog.models.request import ModelRequest
from cog.models.sources import find_spec
from cog.runtime import machine_checks
from cog.runtime.check_report import Report
from cog.runtime.fingerprint import differences
from cog.runtime.locks import LockedError
from cog.runtime.output_folder import read_state
from cog.runtime.ranks import Rank

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.image_lists import ImageList

#: Bytes per row beside the features: label and path.
_ROW_BYTES = 64

_SHOWN = 3


@dataclass(frozen=True, eq=False)
class ExtractJob:
    """One data set and split to extract.

    Attributes:
        images: what to extract.
        folder: where the features go, and which these are.
        label: how messages call it.
    """

    images: ImageList
    folder: FeatureFolder
    label: str

    @property
    def identity(self) -> dict[str, Any]:
        """The part of features.json that says which features these are."""
        return self.folder.identity


@dataclass(frozen=True, eq=False)
class ExtractionPlan:
    """Everything that one call of ``extract_features.py`` does; most fields are the values of its flags.

    Properties are computed, and checked, when they are first asked for. An execution asks for :attr:`jobs` and ends at
    the first fault; ``--check`` asks for one part after the other and reports all faults.

    Attributes:
        rank: which process this is.
        since: when it was started (seconds since the epoch).
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
        return self.model.config(self.config_file, self.opts)

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
            "preprocessing": {
                "resize": fx.IMAGE_RESIZE_SIZE,
                "crop": fx.IMAGE_CROP_SIZE,
                "interpolation": "bicubic (Pillow)",
                "mean": list(fx.IMAGE_NORM.MEAN),
                "std": list(fx.IMAGE_NORM.STD),
                "load_truncated_images": fx.LOAD_TRUNCATED_IMAGES,
            },
            "profile": fx.PROFILE,
            "variant": fx.VARIANT,
            "precision": fx.PRECISION,
            "decode": fx.DECODE,
            "image_list_sha256": images.digest(),
            "images_root": str(images.root),
            "class_list_sha256": class_list_digest(images.classes),
            "n_classes": len(images.classes),
            "n_images": len(images),
        }
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
        self.model.check_variant(self.cfg)
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

    def check(self) -> int:
        """Look at every part of the plan and at the machine, print a summary, and return the exit code."""
        report = Report()
        with report.step("configuration") as configured:
            self.model.check_variant(self.cfg)
        with report.step("checkpoint") as known:
            self._check_model(report)
        folders: dict[tuple[str, str], FeatureFolder] = {}
        with report.step("output"):
            folders = self.folders if known.ok else {}
        for pair in self.pairs:
            with report.step(" ".join(pair)):
                self._check_images(report, pair)
        todo = []
        for pair, folder in folders.items():
            job = self.job(pair) if configured.ok and pair in self._lists else None
            written = False
            with report.step("output") as usable:
                written = self._check_output(report, folder, job, " ".join(pair))
            if usable.ok and written and pair in self._lists:
                todo.append((folder.path, len(self.images(pair))))
        fx = self.cfg.FT_EXTRACT if configured.ok else None
        dim = None
        if fx is not None and self.model.model_loader is None:
            dim = find_spec(self.model.model).resolve(fx.PROFILE, fx.VARIANT).feature_dim
        _check_space(report, todo, dim, half=fx is not None and fx.PRECISION == "fp16")
        with report.step("device"):
            precision = "" if fx is None else fx.PRECISION
            machine_checks.check_device(report, self.device, "FT_EXTRACT.PRECISION", precision)
        return report.finish()

    def _check_model(self, report: Report) -> None:
        checkpoint = self.model.checkpoint
        library_model = self.model.library_model
        if checkpoint is None and library_model is not None:
            if library_model.address is None:
                library_model.fetch(self.model.model_dir.checkpoint if self.model.model_dir else None)
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

    def _check_images(self, report: Report, pair: tuple[str, str]) -> None:
        label, images = " ".join(pair), self.images(pair)
        absent: list[str] = []
        if self.sources.declaration(pair[0]).list_images is not None:
            absent = image_checks.missing(images)  # other lists are made of the files in the folders
        total = f"{len(images):,} images of {len(images.classes):,} classes"
        if not absent:
            report.ok(label, total)
            return
        some = ", ".join(absent[:_SHOWN]) + (", ..." if len(absent) > _SHOWN else "")
        text = f"{len(absent):,} of {total} are missing under {images.root}: {some}"
        why = root_layout.hint(images.root)
        if len(absent) <= self.allow_failures:
            report.warn(label, f"{text} (--allow_failures {self.allow_failures} accepts that){why}")
        else:
            advice = why or f"; complete them, or accept it with --allow_failures {len(absent)}"
            report.problem(label, f"{text}{advice}")

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
            _check_unfinished(report, job, manifest, overwrite=self.overwrite)
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


def _check_unfinished(report: Report, job: ExtractJob, manifest: shards.Manifest, *, overwrite: bool) -> None:
    # The device and the images per pass are part of it, too, but are not known without taking a GPU.
    wanted = {key: value for key, value in job.identity.items() if key in manifest.identity}
    changed = differences({key: manifest.identity[key] for key in wanted}, wanted)
    work = shards.Shards(job.folder.path / shards.FOLDER, manifest)
    work.scan()
    state = f"{job.label}: {work.n_done():,} of {manifest.n_rows:,} images are done in {work.path}"
    if not changed:
        report.ok("output", f"{state}; continues from there")
    elif overwrite:
        report.warn("output", f"{state}, made differently; they would be discarded (--overwrite)")
    else:
        report.problem(
            "output",
            f"{state}, made differently ({'; '.join(changed)}); give the same settings to continue, or --overwrite",
        )


def _check_space(report: Report, todo: list[tuple[Path, int]], dim: int | None, *, half: bool) -> None:
    """Compare disk and memory with what the jobs need.

    Args:
        report: gets the findings.
        todo: output folder and number of images of each job.
        dim: number of features; None: not known.
        half: whether shards hold float16.
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
        finals = [(path, n * (4 * dim + _ROW_BYTES)) for path, n in todo]
        # Shards exist beside the file made of them until that is in place; one split after the other.
        path, rows = max(todo, key=lambda item: item[1])
        done = sum(_bytes_in(path / shards.FOLDER) for path, _ in todo)
        machine_checks.check_disk(report, [*finals, (path, rows * (2 if half else 4) * dim - done)])
    with report.step("memory"):
        most = max(n * 4 * dim for _, n in todo)
        machine_checks.check_memory(
            report, most, f"the largest split, {machine_checks.size(most)}, at its end"
        )


def _bytes_in(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError:
        return 0
