"""The features of one model on one split as files: chunks of rows, then the result.

::

    features_train/           X_Y.pth, features.json, image_paths.txt: complete, or not there
    .features_train.work/     identity.json, chunks-<digest>/rows-0-2048.pth, ...; removed then

A chunk that exists is done. Computed twice, it has equal bits, so nothing is locked but the publication.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import math
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cog import constants
from cog.data.loader import Decoder, Facts, Failures, Span
from cog.data.pixels import Preprocess
from cog.data.wnids import class_list_digest
from cog.errors import CogError, FailedImagesError
from cog.features import feature_files, folder
from cog.features.extract import Extractor, pass_sizes
from cog.features.feature_files import FeatureSet
from cog.features.rows import rows_digest, sampled_rows
from cog.models.choice import preprocess_of
from cog.runtime import files, log
from cog.runtime.device import require_precision
from cog.runtime.output import FAILURE_FILE, BusyError, OutputError, Work, differences
from cog.runtime.safe_load import load_torch

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.images import ImageList
    from cog.models.choice import ModelChoice

logger = logging.getLogger(__name__)

#: Batches in a chunk.
CHUNK = 16


@dataclass(frozen=True, eq=False)
class Model:
    """A model with the settings of its extraction.

    Attributes:
        choice: the model.
        cfg: its configuration.
    """

    choice: ModelChoice
    cfg: CfgNode

    @property
    def preprocess(self) -> Preprocess:
        """Way from an image to the input of the network."""
        return preprocess_of(self.cfg)

    @property
    def sharing(self) -> tuple[Preprocess, int, bool]:
        """What must be equal for models to share decoded images."""
        fx = self.cfg.FT_EXTRACT
        return self.preprocess.decoding(), fx.BATCH_SIZE, fx.LOAD_TRUNCATED_IMAGES

    def identity(self) -> dict[str, Any]:
        """Return what determines the features of an image."""
        fx = self.cfg.FT_EXTRACT
        preprocessing = dataclasses.asdict(self.preprocess) | {"load_truncated": fx.LOAD_TRUNCATED_IMAGES}
        return self.choice.identity() | {
            "preprocessing": json.loads(json.dumps(preprocessing)),  # lists, as in the record
            "pooling": fx.POOLING,
            "precision": fx.PRECISION,
            "save_dtype": fx.SAVE_DTYPE,
        }

    def load(self, device: torch.device) -> Extractor:
        """Load the network, and log a line about it."""
        fx = self.cfg.FT_EXTRACT
        require_precision(device, "FT_EXTRACT.PRECISION", fx.PRECISION)
        backbone = self.choice.load(device, self.cfg)
        logger.info("%s", self.choice.summary(backbone, self.cfg))
        return Extractor(backbone, self.preprocess, device, batch_size=fx.BATCH_SIZE, precision=fx.PRECISION)


@functools.lru_cache
def _list_digest(images: ImageList) -> str:
    return images.digest()


def _is_damaged(file: Path, rows_sha256: str | None) -> bool:
    with contextlib.suppress(CogError):
        stored = feature_files.open_file(file, mapped=True)
        return rows_digest(stored.x, stored.y) != rows_sha256
    return True


class Extraction:
    """The features of one model on one split as files: chunks of rows, then the result.

    Args:
        model: the model.
        images: the images.
        path: folder of the result.
        device_name: value of ``--device``.
        overwrite: whether to replace a result of another identity, or of images that have changed.
    """

    def __init__(
        self, model: Model, images: ImageList, path: Path, *, device_name: str | None, overwrite: bool = False
    ) -> None:
        self.model, self.images, self.overwrite = model, images, overwrite
        # The device itself is looked at later: decoding processes are forked before CUDA is used.
        kind = device_name or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device_type = kind.partition(":")[0]
        self.batch_size, per_pass = pass_sizes(
            self.device_type, size=model.preprocess.size, batch_size=model.cfg.FT_EXTRACT.BATCH_SIZE
        )
        n, rows = len(images), CHUNK * self.batch_size
        self.spans = [(first, min(first + rows, n)) for first in range(0, n, rows)]
        identity = model.identity() | {
            "dataset": images.dataset,
            "split": images.split,
            "image_list_sha256": _list_digest(images),
        }
        self.output = folder.FeatureOutput(path, identity)
        # Chunks of another computation are never taken for ours, whoever works at the same time.
        versions = log.versions(("torch", "torchvision", "pillow"))
        working = [identity, versions, self.device_type, per_pass, rows]
        digest = hashlib.sha256(json.dumps(working).encode()).hexdigest()[:12]
        self.folder = self.output.work / f"chunks-{digest}"

    @property
    def label(self) -> str:
        """Model, data set and split, for messages."""
        return f"{self.model.choice.name} on {self.images.dataset} {self.images.split}"

    def chunk(self, span: Span) -> Path:
        """Return the file of a chunk."""
        return self.folder / f"rows-{span[0]}-{span[1]}.pth"

    def missing(self) -> list[Span]:
        """Return the spans whose chunks are not there."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()
        return [span for span in self.spans if self.chunk(span).name not in names]

    def is_done(self) -> bool:
        """Return whether the result is there, and log that.

        Raises:
            OutputError: the folder has another result, or features of images that have changed since.
        """
        path, file = self.output.path, self.output.path / constants.FEATURES_FILE
        if file.is_file() and not (path / folder.METADATA_FILE).is_file() and not self.overwrite:
            logger.warning("%s is kept, and no %s tells how it was made", file, folder.METADATA_FILE)
            return True
        if not self.output.is_done(overwrite=self.overwrite):
            return False
        record = self.output.read() or {}
        facts = {row: (size, crc) for row, size, crc in zip(*record["image_sample"].values(), strict=True)}
        changed = folder.changed_images(self.images, facts, record["started"])
        if not changed and not (self.overwrite and _is_damaged(file, record.get("rows_sha256"))):
            logger.info("%s is complete, skipped", file)
            return True
        if not self.overwrite:
            raise OutputError(
                f"images have changed since {file} was made, such as {self.images.file(changed[0])} ({len(changed)} of "
                f"{len(facts)} looked at); add --overwrite to extract them again"
            )
        self.output = dataclasses.replace(self.output, outdated=record["started"])
        return False

    def begin(self) -> list[Span]:
        """Make the folder of chunks, and return the spans to do; the result must not be there.

        Raises:
            OutputError: there is unfinished work with other settings.
        """
        identity = dict(self.output.identity)
        with self._until_published():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.output.work / FAILURE_FILE).unlink(missing_ok=True)
            stored = self.output.unfinished()
            done = any(self.output.work.glob("chunks-*/rows-*"))
            if not stored or (stored != identity and (self.overwrite or not done)):
                files.write_json(self.output.work / "identity.json", identity)
                stored = identity
            if changed := differences(stored, identity):
                raise OutputError(
                    f"{self.output.work} holds unfinished work that was made differently ({'; '.join(changed)}); give "
                    "the same settings to continue it, or remove this folder to discard it (so does --overwrite)"
                )
            for span in self.spans:
                if self.chunk(span).exists() and (reason := self._is_outdated(self.chunk(span))):
                    logger.warning("%s: rows %d to %d are extracted again: %s", self.label, *span, reason)
                    self.chunk(span).unlink()
            missing, n = self.missing(), len(self.spans)
            if 0 < len(missing) < n:
                logger.info("%s: continues, %d of %d chunks are done", self.label, n - len(missing), n)
            return missing
        return []

    def _is_outdated(self, chunk: Path) -> str:
        """Return why a chunk has to be computed again: its images changed, or failed and can be decoded now."""
        try:
            data = load_torch(chunk, mmap=True)
        except CogError as error:
            return str(error)
        decoder = self.decoder()
        for row, _ in data["failures"]:
            with contextlib.suppress(Exception):
                decoder.decode(self.images.read(row), row)
                return f"{self.images.file(row)} can be decoded now"
        changed = folder.changed_images(self.images, data["facts"], data["started"])
        return f"{self.images.file(changed[0])} has changed" if changed else ""

    def decoder(self) -> Decoder:
        """Return the decoder of the images."""
        return Decoder(
            self.images,
            self.model.preprocess,
            self.model.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES,
            frozenset(sampled_rows(len(self.images)).tolist()),
        )

    def write(self, span: Span, x: torch.Tensor, failures: Failures, facts: Facts, **times: Any) -> None:
        """Write a chunk.

        Args:
            span: its rows.
            x: features of the rows without failure, float32 ``(n, D)`` on the CPU.
            failures: rows of the others, with reasons.
            facts: size and checksum of images, by row.
            times: ``started`` (before they were read) and ``seconds`` since, in seconds, and ``device``.

        Raises:
            CogError: NaN, infinite values, or values beyond the range of the type of the features.
        """
        saved = x.to(getattr(torch, self.model.cfg.FT_EXTRACT.SAVE_DTYPE))
        if len(bad := (~torch.isfinite(saved).all(dim=1)).nonzero()):
            failed = {row for row, _ in failures}
            row = [row for row in range(*span) if row not in failed][bad[0]]
            raise self._not_finite(self.images.file(row), float(x[bad[0]].abs().max()), saved.dtype)
        data = {"X": saved, "failures": failures, "facts": facts, **times}
        with self._until_published(), files.atomic_write(self.chunk(span)) as handle:
            torch.save(data, handle)

    def _not_finite(self, file: str, largest: float, dtype: torch.dtype) -> CogError:
        fx = self.model.cfg.FT_EXTRACT
        if math.isfinite(largest):
            return CogError(
                f"the network returned {largest:.6g} for {file}, and {fx.SAVE_DTYPE} ends at "
                f"{torch.finfo(dtype).max:.6g}; set FT_EXTRACT.SAVE_DTYPE "
                f"{'bfloat16 or float32' if dtype is torch.float16 else 'float32'}"
            )
        advice = "check the checkpoint and the input normalization"
        if fx.PRECISION != "fp32":
            advice = f"try FT_EXTRACT.PRECISION fp32 instead of {fx.PRECISION}"
        return CogError(f"the network returned NaN or infinite features for {file}; {advice}")

    @contextlib.contextmanager
    def _until_published(self) -> Iterator[None]:
        """Accept in the block that another process publishes the result and removes the chunks: as good."""
        try:
            yield
        except (CogError, FileNotFoundError) as error:
            gone = isinstance(error.__cause__ or error, FileNotFoundError)
            if not (gone and self.output.is_done(overwrite=True)):
                raise

    def finish(self, allow_failures: int) -> bool:
        """Publish the result if all chunks are there, and return whether the result is there.

        Raises:
            FailedImagesError: more images failed than are allowed; nothing is published.
        """
        while self.output.work.exists() and (
            self.output.is_done(overwrite=True) or (self.folder.is_dir() and not self.missing())
        ):
            # Another process may publish at this moment: then look again.
            with contextlib.suppress(BusyError, FileNotFoundError), self.output.claimed() as work:
                if not work.published:
                    self._publish(work, allow_failures)
                old = work.folder / f"stage-chunks-{secrets.token_hex(8)}"
                with contextlib.suppress(FileNotFoundError):
                    self.folder.rename(old)  # at once: a late process cannot write into it
                shutil.rmtree(old, ignore_errors=True)
            time.sleep(0.02)
        return self.output.is_done(overwrite=True)

    def _publish(self, work: Work, allow_failures: int) -> None:
        chunks = [load_torch(self.chunk(span), mmap=True) for span in self.spans]
        failures = [(int(row), str(reason)) for chunk in chunks for row, reason in chunk["failures"]]
        images, n = self.images, len(self.images)
        lines = "".join(f"{images.file(row)}\t{reason}\n" for row, reason in failures)
        if len(failures) > allow_failures or len(failures) == n:
            listed, accept = work.folder / folder.FAILURES_FILE, ""
            files.write_text(listed, lines)
            if len(failures) < n:
                accept = f", or accept the loss with --allow_failures {len(failures)}"
            raise FailedImagesError(
                f"{len(failures)} of {n} images of {images.dataset} {images.split} could not be decoded (listed with "
                f"the reason in {listed}); the features of the others are saved there; fix the images and run "
                f"again{accept}"
            )
        x = torch.cat([chunk["X"] for chunk in chunks if len(chunk["X"])])
        kept = np.delete(np.arange(n), [row for row, _ in failures])
        y = torch.from_numpy(images.labels[kept])
        facts = {row: pair for chunk in chunks for row, pair in chunk["facts"].items()}
        seconds = sum(chunk["seconds"] for chunk in chunks)
        choice = self.model.choice
        record = {
            "identity": dict(self.output.identity),
            "rows_sha256": rows_digest(x, y),
            "class_list_sha256": class_list_digest(images.classes),
            "n_rows": len(x),
            "n_classes": len(images.classes),
            "n_images": n,
            "n_failed": len(failures),
            "feature_dim": x.shape[1],
            "pretraining": choice.pretraining,
            **{key: value for key in ("label", "group") if (value := getattr(choice, key))},
            "checkpoint": str(choice.checkpoint) if choice.checkpoint else None,
            "loader": choice.loader,
            "images_root": str(images.root),
            "device": chunks[0]["device"],
            "threads": torch.get_num_threads(),  # the last bits depend on it on a CPU
            "versions": log.versions(("torch", "torchvision", "pillow", "numpy")),
            "started": min(chunk["started"] for chunk in chunks),
            "seconds": round(seconds, 3),
            "images_per_second": round(n / max(seconds, 1e-9), 1),
            "finished": log.now(),
            "image_sample": {
                "rows": list(facts),
                "bytes": [size for size, _ in facts.values()],
                "crc32": [crc for _, crc in facts.values()],
            },
        }
        name = f"{choice.name}_{images.dataset}_{images.split}"
        with work.publish() as stage:
            if failures:
                files.write_text(stage / folder.FAILURES_FILE, lines)
            paths = "".join(f"{images.file(int(row))}\n" for row in kept)
            files.write_text(stage / folder.PATHS_FILE, paths)
            feature_files.save(FeatureSet(x, y, name), stage / constants.FEATURES_FILE)
            files.write_json(stage / folder.METADATA_FILE, record)
        made = self.output.path, *x.shape, len(failures), record["images_per_second"]
        logger.info("%s: %d x %d features, %d failed images, %.1f images/s", *made)
