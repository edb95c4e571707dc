"""The output folder of an extraction: ``features_<split>/``.

::

    X_Y.pth            the features, contract of the benchmark; put in place last
    features.json      their description
    image_paths.txt    one image path per row of X
    failed_images.txt  "<path>\\t<reason>" per image that could not be decoded (only when there are any)
    .resume/           shards of an unfinished extraction, see cog/features/shards.py

When more images failed than were allowed, ``failed_images.txt`` is in ``.resume/``, and the shards stay there, so that
the same command with ``--allow_failures`` computes nothing again.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.data import datasets, root_layout
from cog.errors import CogError, FailedImagesError, did_you_mean, os_errors_explained
from cog.features.shards import Shards
from cog.models.choice import did_you_mean_model
from cog.runtime import files
from cog.runtime.fingerprint import differences
from cog.runtime.output_folder import FolderClaim, OutputFolder
from cog.runtime.resume_dir import sample_sha256

if TYPE_CHECKING:
    from cog.features.feature_files import FeatureSet

logger = logging.getLogger(__name__)

METADATA_FILE = "features.json"
PATHS_FILE = "image_paths.txt"
FAILURES_FILE = "failed_images.txt"

#: File that marks features as deleted by a study after its runs; their description stays beside it.
DELETED_FILE = "deleted.json"

#: Entries of features.json that must agree for training and test features.
NETWORK = ("model", "source", "checkpoint_sha256", "loader_sha256", "preprocessing")

#: Entries of features.json that tell how features were made.
ORIGIN = (*NETWORK, "precision", "save_dtype", "image_list_sha256")

#: Entries of features.json that must agree for two extractions to be the same.
IDENTITY = (*ORIGIN, "dataset", "split")


def no_features(file: Path, split: str = "") -> CogError:
    """Return the error about a missing ``X_Y.pth``, with advice."""
    dataset = (file if file.name.startswith("features_") else file.parent).parent
    if (file.parent / DELETED_FILE).is_file():
        why = f", deleted by --delete_features of a study ({DELETED_FILE}); run extract_features.py again"
    else:
        why = f"; run extract_features.py first, or check the path{_did_you_mean(dataset)}"
    return CogError(f"there are no {split} features {file}{why}")  # CogError joins two spaces


def _did_you_mean(dataset: Path) -> str:
    """Return a hint at the model or data set that was probably meant; "" when their folders exist."""
    model = dataset.parent
    if model.is_dir():
        known = {path.name for path in model.iterdir() if path.is_dir()} | {*datasets.names()}
        return "" if dataset.name in known else did_you_mean(dataset.name, known)
    root = model.parent.parent
    others = [f"{path.parent.name}_{path.name}" for path in root.glob("*/*") if path.is_dir()]
    return did_you_mean_model(f"{model.parent.name}_{model.name}", others) if root.is_dir() else ""


def with_class_list(features: FeatureSet, file: Path) -> FeatureSet:
    """Return the features in ``file`` with the digest of their class names, if features.json records it."""
    described = FeatureFolder(file.parent).metadata() or {}
    return dataclasses.replace(features, class_list=described.get("class_list_sha256"))


def read_image_paths(features: Path, *, n_rows: int | None = None) -> list[str] | None:
    """Return the image path of each row of a feature file; None without a list (the original toolkit wrote none)."""
    path = features.parent / PATHS_FILE
    lines = _lines(path)
    if lines is not None and n_rows is not None and len(lines) != n_rows:
        raise CogError(
            f"{path} names {len(lines)} images, and {features.name} has {n_rows} rows; extract the features again "
            "(--overwrite)"
        )
    return lines


def identify_input(file: Path) -> dict[str, Any]:
    """Return what identifies the features in a file as an input: origin, if known, and a sample of their bytes."""
    made = FeatureFolder(file.parent).metadata() or {}
    return {key: made.get(key) for key in ORIGIN} | {"sample_sha256": sample_sha256(file)}


def require_one_network(train: Path, test: Path) -> None:
    """Refuse feature files of both splits that different networks or preprocessing made, as far as that is known."""
    of_train, of_test = (FeatureFolder(file.parent).metadata() or {} for file in (train, test))
    changed = network_differences(of_train, of_test)
    if changed:
        raise CogError(
            f"training features {train} and test features {test} were made differently ({'; '.join(changed)}); extract "
            "both splits with the same model, checkpoint, loader and preprocessing"
        )


def network_differences(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences of the networks in two descriptions of features, each as ``key: old -> new``.

    Descriptions are contents of features.json or entries of :func:`identify_input`; those without a model (of the
    original toolkit) do not differ from others.
    """
    if not (made.get("model") and wanted.get("model")):
        return []
    before, after = ({key: each.get(key) for key in NETWORK} for each in (made, wanted))
    return differences(before, after)


def _lines(path: Path) -> list[str] | None:
    """Return the lines of a list of images; None without the file."""
    if not path.is_file():
        return None
    with os_errors_explained(f"cannot read {path}"):
        return [os.fsdecode(line) for line in path.read_bytes().split(b"\n")[:-1]]


class FeatureFolder(OutputFolder):
    """The output folder of one extraction, see :class:`~cog.runtime.output_folder.OutputFolder`.

    Its identity has the entries of features.json that are known before the extraction, including those of ``IDENTITY``.

    Args:
        allow_failures: acceptable number of failed images.
    """

    markers = (constants.FEATURES_FILE, METADATA_FILE)
    unfinished = (
        "{resume} holds unfinished work that was made differently ({changed}); give the same settings to continue it, "
        "or remove this folder to discard it (so does --overwrite, which also replaces complete features)"
    )
    damaged = None
    resume_kind = Shards
    resume: Shards

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: Mapping[str, Any] | None = None,
        *,
        allow_failures: int = 0,
        **options: bool,
    ) -> None:
        super().__init__(path, identity, **options)
        self.allow_failures = allow_failures

    @property
    def features_file(self) -> Path:
        """Path of ``X_Y.pth``."""
        return self.path / constants.FEATURES_FILE

    def metadata(self) -> dict[str, Any] | None:
        """Return the contents of features.json; None without the file (features of the original toolkit)."""
        path, repair = self.path / METADATA_FILE, "remove the file, or restore it from a copy"
        try:
            data = files.read_json(path) if path.is_file() else None
        except CogError as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise CogError(f"{error}; {repair}") from error
        if not isinstance(data, dict | None):
            raise CogError(f"{path} holds {type(data).__name__}, expected a JSON object; {repair}")
        return data

    def is_complete(self) -> bool:
        """Return whether ``X_Y.pth`` exists; it only appears whole."""
        return self.features_file.is_file()

    def compare(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
        """Return the differences in the entries named in ``IDENTITY``; for other images, their numbers if known."""
        before, after = ({key: known.get(key) for key in IDENTITY} for known in (stored, wanted))
        lists = [known.pop("image_list_sha256") for known in (before, after)]
        changed = differences(before, after)
        if lists[0] != lists[1]:
            numbers = [known["n_images"] for known in (stored, wanted) if "n_images" in known]
            changed.append(
                f"other images: {' -> '.join(map(str, numbers))}" if len(numbers) == 2 else "other images"
            )
        return changed

    def require_usable(self) -> None:
        """Refuse a folder that cannot take the features: one with folders that have the names of files."""
        for name in (*self.replaced(), METADATA_FILE, PATHS_FILE):
            if (self.path / name).is_dir():
                raise CogError(f"{self.path / name} is a folder, and a file of that name has to go there")

    def replaced(self) -> tuple[str, ...]:
        """Return the names of the files that new features replace."""
        return (constants.FEATURES_FILE, FAILURES_FILE, DELETED_FILE)

    def holds_result(self) -> bool:
        """Return whether the folder has complete features with this identity, or features without a description."""
        self.require_usable()
        if self.overwrite or not self.is_complete():
            return False
        stored = self.metadata()
        if stored is None:
            logger.warning("%s is kept, and no %s tells how it was made", self.features_file, METADATA_FILE)
            return True
        changed = self.compare(stored, self.identity)
        if changed:
            raise CogError(
                f"{self.features_file} was made differently ({'; '.join(changed)}); add --overwrite to replace it"
            )
        samples = [known.get("image_sample_sha256") for known in (stored, self.identity)]
        if None not in samples and samples[0] != samples[1]:
            raise CogError(
                f"images have changed since {self.features_file} was made: a sample of them has other contents; add "
                "--overwrite to extract them again"
            )
        return True

    def check_unfinished(
        self, identity: Mapping[str, Any], versions: Mapping[str, Any] | None = None
    ) -> list[str]:
        """Return the differences of unfinished work; with ``overwrite``, only work begun with it is continued.

        Job schedulers repeat the command of an interrupted job, which must come to an end also with ``--overwrite``.
        """
        changed = super().check_unfinished(identity, versions)
        stored = self.resume.read()
        if stored is not None and self.overwrite and not stored["replaces"]:
            changed.append("begun without --overwrite")
        return changed

    def has_leftovers(self) -> bool:
        """Return whether the shards of the features still exist."""
        stored = self.resume.read()
        return stored is not None and not self.compare(stored["identity"], self.identity)

    def announce_done(self) -> None:
        """Log that the features are complete, and whether the folder has unfinished work with other settings."""
        logger.info("%s is complete, skipped", self.features_file)
        if self.resume.path.is_dir() and not self.has_leftovers():
            logger.info("%s holds unfinished work of other settings", self.resume.path)

    def publish(
        self,
        claim: FolderClaim,
        feature_set: FeatureSet,
        *,
        metadata: dict[str, Any],
        image_paths: list[str],
        failures: list[tuple[str, str]],
    ) -> None:
        """Publish the features and their description; ``failures``: path and reason of each image that is missing."""
        from cog.features import feature_files  # imports torch, which --help must not wait for

        lines = "".join(f"{name}\t{reason}\n" for name, reason in failures)
        if len(failures) > self.allow_failures or not image_paths:
            files.write_text(self.resume.path / FAILURES_FILE, lines)
            accept = f", or accept the loss with --allow_failures {len(failures)}" if image_paths else ""
            layout = ""
            if constants.cog_level(self.identity["dataset"]) is not None:
                layout = root_layout.hint(self.identity["images_root"])
            raise FailedImagesError(
                f"{len(failures)} of {self.identity['n_images']} images could not be decoded (listed with the reason "
                f"in {self.resume.path / FAILURES_FILE}); the features of the others are saved there; fix the images "
                f"and run again{accept}{layout}"
            )
        counts: dict[str, Any] = {
            "status": "complete",
            "n_failed": len(failures),
            "allow_failures": self.allow_failures,
        }
        with claim.publish() as stage:
            if failures:
                files.write_text(stage / FAILURES_FILE, lines)
            files.write_text(stage / PATHS_FILE, "".join(f"{path}\n" for path in image_paths))
            feature_files.save(feature_set, stage / constants.FEATURES_FILE)
            counts["sample_sha256"] = sample_sha256(stage / constants.FEATURES_FILE)
            files.write_json(stage / METADATA_FILE, counts | self.identity | metadata)
