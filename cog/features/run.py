"""Extraction: many models in one pass over the images of each split, cut into chunks of rows; a chunk is a file.

::

    features_train/           X_Y.pth, features.json, image_paths.txt: complete, or not there
    .features_train.work/     identity.json, chunks-<digest>/rows-0-2048.pth, ...; removed then

Process r of W takes chunks r, r + W, ...; whoever finds all chunks of a model publishes them. Each process looks after
its own last write, so the last one finds all. Computed twice, a chunk has equal bits: nothing is locked while images
are decoded, and a process that is killed loses the chunk that it worked on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
import logging
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cog import constants
from cog.data.loader import (
    Decoder,
    Facts,
    Failures,
    Piece,
    Span,
    decoded,
    usable_workers,
    worker_failures_explained,
)
from cog.data.pixels import Preprocess
from cog.data.wnids import class_list_digest
from cog.errors import CogError, FailedImagesError, some
from cog.features import feature_files, folder
from cog.features.extract import Extractor, batches, pass_sizes, pieces
from cog.features.extract import extract as run_on
from cog.features.feature_files import FeatureSet
from cog.features.rows import rows_digest, sampled_rows
from cog.models.choice import preprocess_of
from cog.runtime import files, log, memory, signals
from cog.runtime.device import device_name, require_precision, resolve_device
from cog.runtime.log import Progress
from cog.runtime.output import FAILURE_FILE, BusyError, OutputError, Work, differences
from cog.runtime.ranks import Rank
from cog.runtime.safe_load import load_torch

if TYPE_CHECKING:
    from yacs.config import CfgNode

    from cog.data.images import ImageList
    from cog.models.choice import ModelChoice

logger = logging.getLogger(__name__)

#: Batches in a chunk.
CHUNK = 16

#: A network on a CPU is loaded beside others if this multiple of the largest one's bytes is available.
_CPU_ROOM = 2


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
        """From an image to the input of the network."""
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
        return Extractor(
            backbone,
            self.preprocess,
            device,
            batch_size=fx.BATCH_SIZE,
            precision=fx.PRECISION,
            warns=True,
        )


@functools.lru_cache
def _list_digest(images: ImageList) -> str:
    return images.digest()


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
        damaged = self.overwrite and not folder.is_intact(file)
        if not changed and not damaged:
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
            missing = self.missing()
            if 0 < len(missing) < len(self.spans):
                logger.info(
                    "%s: continues, %d of %d chunks are done",
                    self.label,
                    len(self.spans) - len(missing),
                    len(self.spans),
                )
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
                decoder.decode(decoder.read(row), row)
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

    def write(
        self,
        span: Span,
        x: torch.Tensor,
        failures: Failures,
        facts: Facts,
        started: float,
        device: torch.device,
    ) -> None:
        """Write a chunk.

        Args:
            span: its rows.
            x: features of the rows without failure, float32 ``(n, D)``.
            failures: rows of the others, with reasons.
            facts: size and checksum of images, by row.
            started: time before they were read, in seconds since the epoch.
            device: device of the network.

        Raises:
            CogError: NaN, infinite values, or values beyond the range of the type of the features.
        """
        fx = self.model.cfg.FT_EXTRACT
        dtype = getattr(torch, fx.SAVE_DTYPE)
        x = x.cpu()
        saved = x.to(dtype)
        if len(bad := (~torch.isfinite(saved).all(dim=1)).nonzero()):
            failed = {row for row, _ in failures}
            file = self.images.file([row for row in range(*span) if row not in failed][bad[0]])
            if torch.isfinite(largest := x[bad[0]].abs().max()):
                raise CogError(
                    f"the network returned {largest:.6g} for {file}, and {fx.SAVE_DTYPE} ends at "
                    f"{torch.finfo(dtype).max:.6g}; set FT_EXTRACT.SAVE_DTYPE "
                    f"{'bfloat16 or float32' if dtype is torch.float16 else 'float32'}"
                )
            advice = f"try FT_EXTRACT.PRECISION fp32 instead of {fx.PRECISION}"
            if fx.PRECISION == "fp32":
                advice = "check the checkpoint and the input normalization"
            raise CogError(f"the network returned NaN or infinite features for {file}; {advice}")
        data = {"X": saved, "failures": failures, "facts": facts, "started": started}
        data |= {"seconds": time.time() - started, "device": device_name(device)}
        with self._until_published(), files.atomic_write(self.chunk(span)) as handle:
            torch.save(data, handle)

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
            files.write_text(work.folder / folder.FAILURES_FILE, lines)
            accept = (
                f", or accept the loss with --allow_failures {len(failures)}" if len(failures) < n else ""
            )
            raise FailedImagesError(
                f"{len(failures)} of {n} images of {images.dataset} {images.split} could not be decoded (listed with "
                f"the reason in {work.folder / folder.FAILURES_FILE}); the features of the others are saved there; fix "
                f"the images and run again{accept}"
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
        logger.info(
            "%s: %d x %d features, %d failed images, %.1f images/s",
            self.output.path,
            *x.shape,
            len(failures),
            record["images_per_second"],
        )


# --- passes over the images


def extract(
    extractions: Sequence[Extraction], *, device: str | None, allow_failures: int, rank: Rank
) -> None:
    """Extract what is missing: the chunks of this process, and the results whose chunks are all there.

    Models of equal :attr:`Model.sharing` share each decoded image; a model is not run on chunks that it has. Models
    that do not fit on the device together take several passes. What fails for one model is told, and the others go on.

    Args:
        extractions: extractions; those of the same images have the same list.
        device: value of ``--device``.
        allow_failures: number of images of a split that may fail.
        rank: number of this process among those that were started together.

    Raises:
        CogError: the error of a single extraction, or the number of those that failed.
        Interrupted: a signal has ended the work; the finished chunks stay.
    """
    todo = {
        extraction: sorted({*extraction.begin()} & {*extraction.spans[rank.number :: rank.size]})
        for extraction in [extraction for extraction in extractions if not extraction.is_done()]
    }
    work = _Passes(todo, device, allow_failures, rank)
    for extraction in [extraction for extraction, spans in todo.items() if not spans]:
        work.finish(extraction)
    groups = list(dict.fromkeys(extraction.model.sharing for extraction in todo))
    models = dict.fromkeys(extraction.model for extraction, spans in todo.items() if spans)
    waiting = sorted(models, key=lambda model: groups.index(model.sharing))
    with worker_failures_explained():
        while waiting:
            waiting = work.run(waiting)
    failed = work.failed
    if len(todo) == 1 and failed:
        raise failed[next(iter(todo))]
    if failed:
        for extraction, error in failed.items():
            logger.error("%s: %s", extraction.label, error)
        of_images = all(isinstance(error, FailedImagesError) for error in failed.values())
        hint = (
            " once these images are fixed or their loss is accepted (--allow_failures N)" if of_images else ""
        )
        raise (FailedImagesError if of_images else CogError)(
            f"{len(failed)} of {len(todo)} extractions failed ({some([each.label for each in failed])}), for the "
            f"reasons above; the others are complete, and the same command goes on from here{hint}"
        )


@dataclass(eq=False)
class _Passes:
    """Passes over the images: the spans left to do, what failed, and finished chunks that are not written yet."""

    todo: dict[Extraction, list[Span]]
    device_name: str | None
    allow_failures: int
    rank: Rank
    failed: dict[Extraction, CogError] = field(default_factory=dict)
    unwritten: deque[Callable[[], None]] = field(default_factory=deque)

    def run(self, models: Sequence[Model]) -> list[Model]:
        """Do one pass for as many of the models as fit on the device, and return the others."""
        chunks: dict[tuple[ImageList, Any, Span], list[Extraction]] = {}
        for extraction, spans in self.todo.items():
            for span in spans if extraction.model in models else ():
                chunks.setdefault((extraction.images, extraction.model.sharing, span), []).append(extraction)
        lists = list(dict.fromkeys(extraction.images for extraction in self.todo))
        groups = list(dict.fromkeys(model.sharing for model in models))
        order = sorted(chunks, key=lambda key: (lists.index(key[0]), groups.index(key[1]), key[2]))
        firsts = {
            key[:2]: chunks[key][0] for key in reversed(order)
        }  # decoders of images and way of decoding
        numbers = {pair: number for number, pair in enumerate(firsts)}
        # The processes are forked before the device is used.
        stream = decoded(
            [first.decoder() for first in firsts.values()],
            [
                piece
                for key in order
                for piece in pieces(numbers[key[:2]], key[2], firsts[key[:2]].batch_size)
            ],
            n_workers=max(usable_workers(model.cfg.FT_EXTRACT.N_WORKERS) for model in models),
            pin_memory=chunks[order[0]][0].device_type == "cuda",
        )
        device = resolve_device(self.device_name, self.rank)
        loaded, rest = self._load(models, device)
        with Progress(sum(stop - first for _, _, (first, stop) in order), "extraction") as progress:
            for number, key in enumerate(order):
                if not any(each.model in loaded and each not in self.failed for each in self.todo):
                    break
                live = [each for each in chunks[key] if each.model in loaded and each not in self.failed]
                if number == 0 or key[:2] != order[number - 1][:2]:
                    names = some([each.model.choice.name for each in live], 8)
                    images = (len(key[0]), len(key[0].classes))
                    split = f"{key[0].dataset} {key[0].split}"
                    logger.info("%s: %d images of %d classes, on %s, for %s", split, *images, device, names)
                self._do(key[2], firsts[key[:2]], live, loaded, stream, progress, device)
            while self.unwritten:
                self.unwritten.popleft()()
        return rest

    def _load(
        self, models: Sequence[Model], device: torch.device
    ) -> tuple[dict[Model, Extractor], list[Model]]:
        """Load networks while they fit on the device; return them and the models for another pass."""
        loaded: dict[Model, Extractor] = {}
        largest = 0
        gc.collect()  # the networks of the last pass
        if device.type == "cuda":
            torch.cuda.empty_cache()
        for number, model in enumerate(models):
            room = memory.available_memory() if device.type == "cpu" else None
            fits = not loaded or room is None or room >= _CPU_ROOM * largest
            try:
                if fits:
                    loaded[model] = model.load(device)
                    if device.type != "cpu" and len(models) > 1:
                        loaded[model].rehearse()
                    largest = max(largest, loaded[model].n_bytes)
            except CogError as error:
                loaded.pop(model, None)
                fits = not (loaded and memory.is_exhausted(error.__cause__ or error))
                for extraction in [each for each in self.todo if each.model is model] if fits else ():
                    self._fail(extraction, error)
            if not fits:
                names = some([each.choice.name for each in models[number:]])
                facts = len(loaded), len(models), device, names
                logger.info("%d of %d models fit on %s together; another pass follows for %s", *facts)
                return loaded, list(models[number:])
        return loaded, []

    def _do(
        self,
        span: Span,
        first: Extraction,
        group: Sequence[Extraction],
        loaded: Mapping[Model, Extractor],
        stream: Iterator[Piece],
        progress: Progress,
        device: torch.device,
    ) -> None:
        """Decode the images of a chunk, and compute their features for each model of the group."""
        started = time.time()
        parts: dict[Extraction, list[torch.Tensor]] = {each: [] for each in group}
        failures: Failures = []
        facts: Facts = {}
        for batch in batches(stream, span, first.batch_size, first.model.preprocess.size, device):
            failures += batch.failures
            facts |= batch.facts
            for each in [each for each in parts if each not in self.failed]:
                with self._noting_failure(each):
                    # Features stay on the device until the chunk is full: no synchronization per batch.
                    y = loaded[each.model](batch.pixels, batch.n)
                    parts[each].append(y[torch.from_numpy(batch.kept)] if batch.failures else y)
            progress.update(batch.n)
            if self.unwritten:  # one file per batch, while the device works
                self.unwritten.popleft()()
            signals.check("all complete chunks are saved")
        while self.unwritten:
            self.unwritten.popleft()()
        for each in [each for each in group if each not in self.failed]:
            given = span, torch.cat(parts[each]), failures, facts, started, device
            self.unwritten.append(functools.partial(self._write, each, *given))

    def _write(self, extraction: Extraction, span: Span, *given: Any) -> None:
        with self._noting_failure(extraction):
            extraction.write(span, *given)
            self.todo[extraction].remove(span)
            if not self.todo[extraction]:
                self.finish(extraction)

    def finish(self, extraction: Extraction) -> None:
        """Publish an extraction if all its chunks are there, also those of other processes."""
        with self._noting_failure(extraction):
            if not extraction.finish(self.allow_failures):
                logger.info(
                    "%s: %d of %d chunks are not there yet; other processes do them, or the same command",
                    extraction.label,
                    len(extraction.missing()),
                    len(extraction.spans),
                )

    @contextlib.contextmanager
    def _noting_failure(self, extraction: Extraction) -> Iterator[None]:
        try:
            yield
        except signals.Interrupted:
            raise
        except CogError as error:
            self._fail(extraction, error)

    def _fail(self, extraction: Extraction, error: CogError) -> None:
        self.failed[extraction] = error
        with contextlib.suppress(CogError):  # a full disk
            files.write_json(extraction.output.work / FAILURE_FILE, {"reason": str(error)})


#: Largest difference of an image's features in two passes of a sound network, in terms of their root mean square.
_ROUNDING = 1e-4


def try_model(extraction: Extraction) -> str:
    """Compute the features of the first image on the CPU, and return a line about them.

    They are computed three times: twice beside black images, and once beside the next images.

    Raises:
        CogError: a network that cannot be used, is random, or gives zeros; an image that cannot be decoded.
    """
    extractor, decoder = extraction.model.load(torch.device("cpu")), extraction.decoder()
    file = extraction.images.file(0)
    passes = [
        run_on(extractor, decoder, (0, n)) for n in (1, 1, min(len(extraction.images), extractor.batch_size))
    ]
    if failures := passes[0][1]:
        raise CogError(f"{file} could not be decoded ({failures[0][1]})")
    x, *others = (features[0] for features, _ in passes)
    rms = float(x.square().mean().sqrt())
    if rms == 0:
        raise CogError(f"tried on {file}: all features are 0; check the checkpoint and the loader")
    if any(float((other - x).abs().max()) > _ROUNDING * rms for other in others):
        raise CogError(
            f"tried on {file}: features of the same image differ between two passes: the network is random or depends "
            "on the other images of a pass; is something in training mode?"
        )
    return f"tried on {file}: {len(x)} features with a root mean square of {rms:.3g}"
