"""The output folder of an extraction: ``features_<split>/``.

::

    X_Y.pth            the features, contract of the benchmark; put in place last
    features.json      how they were made; "status" tells whether all images are in them
    image_paths.txt    one image path per row of X
    failed_images.txt  "<path>\\t<reason>" per image that could not be decoded (only when there are any)
    .resume/           what is finished of an extraction that is not, see cog/features/shards.py

When more images failed than were allowed, the features of the others are kept as ``X_Y.incomplete.pth``,
which nothing mistakes for a result; the same command with ``--allow_failures`` turns it into ``X_Y.pth``
without another extraction.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import constants
from cog.data import root_layout
from cog.errors import CogError, FailedImagesError
from cog.runtime import files
from cog.runtime.atomic_dir import Stage
from cog.runtime.fingerprint import differences

if TYPE_CHECKING:
    from cog.features.feature_files import FeatureSet

METADATA_FILE = "features.json"
PATHS_FILE = "image_paths.txt"
FAILURES_FILE = "failed_images.txt"
INCOMPLETE_FILE = "X_Y.incomplete.pth"

#: What tells readers that the folder is complete, and with which features.
MARKERS = (constants.FEATURES_FILE, METADATA_FILE)

#: Entries of features.json that must agree for two extractions to be the same.
IDENTITY = (
    "model",
    "checkpoint_sha256",
    "loader_sha256",
    "dataset",
    "split",
    "preprocessing",
    "profile",
    "variant",
    "precision",
    "decode",
    "image_list_sha256",
)

# What an entry was before it was recorded.
_BEFORE = {"decode": "exact"}


class FeatureFolder:
    """Reads and writes one such folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def features_file(self) -> Path:
        """``X_Y.pth``."""
        return self.path / constants.FEATURES_FILE

    def metadata(self) -> dict[str, Any] | None:
        """Return features.json, or None when there is none (features of the original toolkit)."""
        path = self.path / METADATA_FILE
        if not path.is_file():
            return None
        data = files.read_json(path)
        if not isinstance(data, dict):
            raise CogError(f"{path} holds {type(data).__name__}, expected a JSON object; remove the file")
        return data

    def is_complete(self) -> bool:
        """Whether ``X_Y.pth`` is there; it only ever appears whole."""
        return self.features_file.is_file()

    def has_incomplete(self) -> bool:
        """Whether features were kept that lack failed images."""
        return (self.path / INCOMPLETE_FILE).is_file() and not self.is_complete()

    def is_finished(self) -> bool:
        """Whether an extraction has ended here: it is complete, or says which images failed."""
        return self.is_complete() or (self.metadata() or {}).get("status") == "incomplete"

    def differences(self, identity: dict[str, Any]) -> list[str]:
        """Compare what is on disk with what is asked for; one ``key: old -> new`` per difference."""
        stored = self.metadata() or {}
        found = {key: stored.get(key, _BEFORE.get(key)) for key in IDENTITY}
        return differences(found, {key: identity[key] for key in IDENTITY})

    def check_usable(self, *, overwrite: bool, skip_complete: bool) -> None:
        """Find out, before anything else is looked at, that features cannot go here.

        Raises:
            CogError: when something is in the way, or there are features of unknown making and neither flag is given.
        """
        for name in (constants.FEATURES_FILE, METADATA_FILE, PATHS_FILE, FAILURES_FILE, INCOMPLETE_FILE):
            if (self.path / name).is_dir():
                raise CogError(f"{self.path / name} is a folder, and a file of that name has to go there")
        if overwrite:
            return
        if self.metadata() is None and self.is_complete() and not skip_complete:
            raise CogError(
                f"{self.features_file} exists, and no {METADATA_FILE} tells how it was made; add --overwrite to "
                "replace it, or --skip_complete to keep it"
            )

    def keeps(self, identity: dict[str, Any], *, overwrite: bool, skip_complete: bool) -> bool:
        """Whether complete features are there, made in the same way, so that nothing is to be done.

        Args:
            identity: the entries named in ``IDENTITY`` of what is asked for.
            overwrite: nothing is kept.
            skip_complete: features of unknown making (the original toolkit's) are kept, too.

        Raises:
            CogError: when there are features that were made differently.
        """
        self.check_usable(overwrite=overwrite, skip_complete=skip_complete)
        if overwrite or not self.is_complete():
            return False
        changed = self.differences(identity) if self.metadata() else []
        if changed:
            raise CogError(
                f"{self.features_file} was made differently ({'; '.join(changed)}); add --overwrite to replace it"
            )
        return True

    def accept_incomplete(
        self, identity: dict[str, Any], *, allow_failures: int, is_broken: Callable[[str], bool]
    ) -> dict[str, Any] | None:
        """Turn the kept features of an earlier run into the result, when they match and are now allowed.

        Args:
            identity: the entries named in ``IDENTITY`` of what is asked for.
            allow_failures: number of failed images that is acceptable.
            is_broken: whether an image (by its path in the list) still cannot be decoded; a fixed one
                deserves a new extraction.

        Returns:
            The metadata, or None when there is nothing to accept.
        """
        kept = self.path / INCOMPLETE_FILE
        stored = self.metadata() if self.has_incomplete() else None
        if not stored:
            return None
        failed = self._failed_files()
        if (
            self.differences(identity)
            or len(failed) != stored.get("n_failed")
            or len(failed) > allow_failures
        ):
            return None
        if not all(map(is_broken, failed)):
            return None
        stored |= {"status": "complete", "allow_failures": allow_failures}
        files.write_json(self.path / METADATA_FILE, stored)
        os.replace(kept, self.features_file)
        return stored

    def _failed_files(self) -> list[str]:
        try:
            lines = (self.path / FAILURES_FILE).read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        return [os.fsdecode(line.split(b"\t")[0]) for line in lines]

    def write(
        self,
        stage: Stage,
        feature_set: FeatureSet,
        *,
        metadata: dict[str, Any],
        image_paths: list[str],
        failures: list[tuple[str, str]],
        allow_failures: int,
    ) -> None:
        """Put everything into ``stage``, to be published together.

        Args:
            stage: see :func:`cog.runtime.atomic_dir.staged` (marker: ``MARKERS``).
            feature_set: the features, one row per decoded image.
            metadata: goes into features.json.
            image_paths: path of each row, relative to the images' root.
            failures: ``(path, reason)`` of the images that are missing from the features.
            allow_failures: how many of those are acceptable; with more, the features are called
                ``X_Y.incomplete.pth``.
        """
        from cog.features import feature_files  # imports torch, which --help must not wait for

        accepted = len(failures) <= allow_failures and bool(image_paths)  # no image at all is no result
        stage.replaces = [constants.FEATURES_FILE, INCOMPLETE_FILE, FAILURES_FILE]
        if failures:
            lines = "".join(f"{name}\t{reason}\n" for name, reason in failures)
            files.write_text(stage.path / FAILURES_FILE, lines)
        files.write_text(stage.path / PATHS_FILE, "".join(f"{path}\n" for path in image_paths))
        if image_paths:
            feature_files.save(
                feature_set, stage.path / (constants.FEATURES_FILE if accepted else INCOMPLETE_FILE)
            )
        status = "complete" if accepted else "incomplete"
        metadata = {"status": status, "n_failed": len(failures), "allow_failures": allow_failures} | metadata
        files.write_json(stage.path / METADATA_FILE, metadata)

    def require_complete(self) -> None:
        """Say what to do about images that could not be decoded.

        Raises:
            FailedImagesError: when more failed than were allowed.
        """
        stored = self.metadata() or {}
        if stored.get("status") != "incomplete":
            return
        kept = (self.path / INCOMPLETE_FILE).is_file()
        of_level = constants.cog_level(str(stored.get("dataset"))) is not None
        layout = root_layout.hint(stored["images_root"]) if of_level and "images_root" in stored else ""
        raise FailedImagesError(
            f"{stored['n_failed']} of {stored['n_images']} images could not be decoded (listed with the reason in "
            f"{self.path / FAILURES_FILE}); "
            + (f"the features of the others are kept in {INCOMPLETE_FILE}; " if kept else "")
            + "fix the images and run again"
            + (f", or accept the loss with --allow_failures {stored['n_failed']}" if kept else "")
            + layout
        )
