"""Extraction: many models in one pass over images, cut into chunks of rows.

A chunk is a file, ``.features_train.work/chunks-<digest>/rows-0-2048.pth``; if it exists, it is done.
Computed twice, it has equal bits, so only the publication is locked. Process r of W takes chunks r, r + W,
..., and then looks for all: the last one finds them, and publishes the result.
"""

import contextlib
import functools
import gc
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from cog.constants import FEATURES_FILE, FEATURES_RECORD
from cog.data.images import ImageList
from cog.data.loader import Decoder, Failures, Span, decoded, usable_workers, worker_failures_explained
from cog.data.wnids import class_list_digest
from cog.errors import CogError, FailedImagesError, os_errors_explained, some
from cog.features import feature_files, folder
from cog.features.extract import Extractor, Model, batches, decoded_places, extract_rows
from cog.models.choice import preprocess_of
from cog.runtime import files, log, memory, signals
from cog.runtime.device import device_name, resolve_device
from cog.runtime.memory import Rank
from cog.runtime.output import FAILURE_FILE, NOTE_FILE, BusyError, differences
from cog.runtime.safe_load import load_torch

logger = logging.getLogger(__name__)

CHUNK = 16  # batches

_list_digest = functools.lru_cache(ImageList.digest)
_contents_crc32 = functools.lru_cache(ImageList.contents_crc32)


class Extraction:
    """The features of one model on one split as files: chunks of rows, then the folder ``path``."""

    def __init__(self, model: Model, images: ImageList, path: Path, device: str | None, overwrite: bool):
        self.model, self.images, self.overwrite, self.fx = model, images, overwrite, model.cfg.FT_EXTRACT
        self.device = device  # it is used later: decoding processes are forked before
        self.on_cuda = (device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
        self.label = f"{model.choice.name} on {images.dataset} {images.split}"
        self.decoder = Decoder(images, preprocess_of(model.cfg), self.fx.LOAD_TRUNCATED_IMAGES)
        self.batch_size, per_pass = Extractor.sizes(model.cfg, self.on_cuda)
        self.sharing = self.decoder.preprocess.decoding(), self.batch_size, self.decoder.load_truncated
        identity = model.identity() | {"dataset": images.dataset, "split": images.split}
        identity["image_list_sha256"] = _list_digest(images)
        identity["image_contents_crc32"] = _contents_crc32(images)
        self.output = folder.FeatureOutput(path, identity)
        # Chunks of another computation are never taken for ours, whoever works at the same time.
        versions = log.versions(("torch", "torchvision", "pillow"))
        working = json.dumps([identity, versions, self.on_cuda, per_pass, self.batch_size])
        self.folder = self.output.work / f"chunks-{hashlib.sha256(working.encode()).hexdigest()[:12]}"
        spans = batches([(0, len(images))], CHUNK * self.batch_size)
        self.chunks = {span: self.folder / f"rows-{span[0]}-{span[1]}.pth" for span in spans}

    def missing(self, number: int = 0, size: int = 1) -> list[Span]:
        """Return the spans of a process of several whose chunks are not there; none if the result is."""
        own = [] if self.output.has_result(overwrite=True) else [*self.chunks][number::size]
        return [span for span in own if not self.chunks[span].exists()]

    def is_done(self) -> bool:
        """Return whether the result is there, and log that; another result is a CogError."""
        file = self.output.path / FEATURES_FILE
        if file.is_file() and not file.with_name(FEATURES_RECORD).is_file() and not self.overwrite:
            logger.warning("%s is kept, and no %s tells how it was made", file, FEATURES_RECORD)
        elif not self.output.is_done(overwrite=self.overwrite):
            return False
        logger.info("%s is complete, skipped", file)
        return True

    def begin(self) -> None:
        """Make the folder of chunks; unfinished work of other settings is a CogError."""
        identity, work = dict(self.output.identity), self.output.work
        with os_errors_explained(f"cannot write into {work}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            (work / FAILURE_FILE).unlink(missing_ok=True)
        note = work / NOTE_FILE
        stored = files.read_object(note) if note.exists() else {}
        changed = [text for text in differences(stored, identity) if not text.startswith("image_contents")]
        if stored and changed and not self.overwrite and any(work.glob("chunks-*/rows-*")):
            text = "unfinished work that was made differently; continue it, or discard it with --overwrite"
            raise CogError(f"{work} holds {text} ({'; '.join(changed)})")
        if stored != identity:
            files.write_json(note, identity)

    def write(self, span: Span, x: torch.Tensor, failures: Failures, **facts: Any) -> None:
        """Write a chunk: float32 ``(n, D)`` of the rows without failure; what is not finite is a CogError."""
        saved = x.to(getattr(torch, self.fx.SAVE_DTYPE))
        if len(bad := (~torch.isfinite(saved).all(dim=1)).nonzero()):
            row = span[0] + int(decoded_places(span, failures)[bad[0]])
            found = f"{float(x[bad[0]].abs().max()):.6g}, {self.fx.SAVE_DTYPE}, {self.fx.PRECISION}"
            advice = "take FT_EXTRACT.PRECISION fp32 and SAVE_DTYPE float32, or check the model"
            raise CogError(f"NaN or too large features of {self.images.file(row)} ({found}); {advice}")
        with files.atomic_write(self.chunks[span]) as handle:
            torch.save({"X": saved, "failures": failures, **facts}, handle)

    def finish(self, allow_failures: int) -> None:
        """Publish the result if all chunks are there; too many failed images are a FailedImagesError."""
        if not self.missing():
            with contextlib.suppress(BusyError), self.output.claimed():
                if not self.output.is_published:
                    self._publish(allow_failures)
        if not self.output.has_result(overwrite=True):
            logger.info("%s: other processes, or the same command, do the rest", self.label)

    def _publish(self, allow_failures: int) -> None:
        chunks = {span: load_torch(path, mmap=True) for span, path in self.chunks.items()}
        failures = [failure for chunk in chunks.values() for failure in chunk["failures"]]
        images, n, choice = self.images, len(self.images), self.model.choice
        lines = "".join(f"{images.file(row)}\t{reason}\n" for row, reason in failures)
        listed = self.output.work / folder.FAILURES_FILE
        if len(failures) > allow_failures or len(failures) == n:
            files.write_text(listed, lines)
            for span in [span for span, chunk in chunks.items() if chunk["failures"]]:
                self.chunks[span].unlink()  # the next start reads these images again
            text = f"could not be decoded (see {listed}); fix them and run again"
            accept = f"or accept the loss with --allow_failures {len(failures)}"
            raise FailedImagesError(f"{len(failures)} of {n} images {text}, {accept}")
        kept = decoded_places((0, n), failures)
        x, y = torch.cat([chunk["X"] for chunk in chunks.values()]), torch.from_numpy(images.labels)[kept]
        seconds = sum(chunk["seconds"] for chunk in chunks.values())
        record = {
            "identity": dict(self.output.identity),
            "class_list_sha256": class_list_digest(images.classes),
            "n_classes": len(images.classes),
            "n_images": n,
            "n_failed": len(failures),
            "pretraining": choice.pretraining,
            "images_root": str(images.root),
            "device": next(iter(chunks.values()))["device"],
            "threads": torch.get_num_threads(),  # the last bits depend on it on a CPU
            "versions": log.versions(("torch", "torchvision", "pillow", "numpy")),
            "images_per_second": round(n / max(seconds, 1e-9), 1),
            "finished": log.now(),
        }
        features = feature_files.FeatureSet(x, y, f"{choice.name}_{images.dataset}_{images.split}")
        with self.output.publish() as stage:
            if failures:
                files.write_text(stage / folder.FAILURES_FILE, lines)
            feature_files.write(stage, features, record, [images.file(row) for row in kept.tolist()])
        made = self.output.path, *x.shape, len(failures), record["images_per_second"]
        logger.info("%s: %d x %d features, %d failed images, %.1f images/s", *made)


def extract(extractions: Sequence[Extraction], *, allow_failures: int, rank: Rank) -> None:
    """Extract what is missing; what fails for a model is a CogError when the others have come to their end.

    Models of equal ``sharing`` share each decoded image; a model is not run on chunks that it has.
    """
    todo = [each for each in extractions if not each.is_done()]
    passes = _Passes(allow_failures, rank)
    groups: dict[Any, dict[ImageList, list[Extraction]]] = {}
    for each in todo:
        each.begin()
        groups.setdefault(each.sharing, {}).setdefault(each.images, []).append(each)
    with worker_failures_explained():
        for group in [group for of_sharing in groups.values() for group in of_sharing.values()]:
            while group:
                group = passes.run(group)
    if failed := passes.failed:
        kind = FailedImagesError if {*map(type, failed.values())} == {FailedImagesError} else CogError
        raise kind("; ".join(f"{each.label}: {error}" for each, error in failed.items()))


class _Passes:
    """Passes over images: networks on the device, what failed, finished chunks that are not written yet."""

    def __init__(self, allow_failures: int, rank: Rank) -> None:
        self.allow_failures, self.rank = allow_failures, rank[:2]
        self.networks: dict[Extraction, Extractor] = {}
        self.failed: dict[Extraction, CogError] = {}
        self.unwritten: list[tuple[Extraction, Callable[[], None]]] = []

    def run(self, group: list[Extraction]) -> list[Extraction]:
        """Do a pass over the images of a group for as many models as fit on the device; return the others."""
        if todo := {each: spans for each in group if (spans := each.missing(*self.rank))}:
            self._compute(todo)
        rest = [each for each in todo if each not in self.failed and each.missing(*self.rank)]
        for each in [each for each in group if each not in rest and each not in self.failed]:
            with self._noting_failure(each):
                each.finish(self.allow_failures)
        return rest

    def _compute(self, todo: dict[Extraction, list[Span]]) -> None:
        first, spans = next(iter(todo)), sorted({span for spans in todo.values() for span in spans})
        n_workers = max(usable_workers(each.fx.N_WORKERS) for each in todo)
        rows = batches(spans, first.batch_size)
        stream = decoded(first.decoder, rows, n_workers=n_workers, pin_memory=first.on_cuda)
        device, images = resolve_device(first.device), first.images
        n = sum(stop - start for start, stop in spans)
        self._load(todo, device)
        names = some([each.model.choice.name for each in self.networks], 8)
        facts = images.dataset, images.split, len(images), len(images.classes), n, device, names
        logger.info("%s %s: %d images of %d classes, %d to do, on %s, for %s", *facts)
        with log.progress_of(n, "extraction") as progress:
            for span in spans:
                if not self.networks:  # all have failed
                    break
                started, failures = time.monotonic(), []
                parts: dict[Extraction, list] = {each: [] for each in todo if span in todo[each]}
                for _ in range(*span, first.batch_size):
                    if signals.requested():
                        self._write(len(self.unwritten))
                        signals.check("all complete chunks are saved")
                    piece = next(stream)
                    failures += piece.failures
                    pixels = piece.pixels.to(device, non_blocking=True)
                    for each in [each for each in parts if each in self.networks]:
                        with self._noting_failure(each):
                            # They stay on the device until the chunk is full: no synchronization per batch.
                            parts[each].append(self.networks[each](pixels))
                    progress.update(len(pixels))
                    # Files of the last chunk, one per batch, while the device works.
                    self._write(1)
                self._write(len(self.unwritten))
                for each in [each for each in parts if each in self.networks]:
                    x = torch.cat(parts[each])
                    x = x[decoded_places(span, failures)] if failures else x
                    x = x.to("cpu", non_blocking=first.on_cuda)  # into pinned memory
                    times = {"seconds": time.monotonic() - started, "device": device_name(device)}
                    self.unwritten.append((each, functools.partial(each.write, span, x, failures, **times)))
                if first.on_cuda and self.unwritten:  # before the first is written, the copies have arrived
                    copied = torch.cuda.current_stream(device).record_event()
                    self.unwritten.insert(0, (self.unwritten[0][0], copied.synchronize))
        self._write(len(self.unwritten))

    def _load(self, todo: Iterable[Extraction], device: torch.device) -> None:
        """Load networks as long as the memory of a CPU suffices; that of a GPU shows in the first batch."""
        models = {each.model for each in todo}
        reserve = (memory.available_memory() or 0) / 4 if device.type == "cpu" else 0
        loaded = {each.model: network for each, network in self.networks.items() if each.model in models}
        if self.networks:
            self.networks = {}
            gc.collect()
        for each in todo:
            with self._noting_failure(each):
                if self.networks and (memory.available_memory() or 0) < reserve:
                    raise CogError("three quarters of the available memory are taken") from MemoryError()
                self.networks[each] = loaded.get(each.model) or each.model.load(device)

    def _write(self, n: int) -> None:
        for each, write in self.unwritten[:n]:
            with self._noting_failure(each):
                write()
        del self.unwritten[:n]

    @contextlib.contextmanager
    def _noting_failure(self, each: Extraction) -> Iterator[None]:
        """Note that an extraction failed; one that does not fit beside others waits for another pass."""
        try:
            yield
        except signals.Interrupted:
            raise
        except CogError as error:
            self.networks.pop(each, None)
            if self.networks and memory.is_exhausted(error.__cause__ or error):
                facts = each.model.choice.name, len(self.networks)
                logger.info("%s does not fit into memory beside %d models: another pass follows", *facts)
            elif not each.output.has_result(overwrite=True):  # else another process has removed the chunks
                self.failed[each] = type(error)(str(error))  # without frames, which hold the network
                with contextlib.suppress(CogError):  # a full disk
                    files.write_json(each.output.work / FAILURE_FILE, {"reason": str(error)})


def try_model(model: Model, images: ImageList) -> str:
    """Compute features of the first images on the CPU, and return a line; a bad network is a CogError."""
    extractor = model.load(torch.device("cpu"))
    decoder = Decoder(images, preprocess_of(model.cfg), model.cfg.FT_EXTRACT.LOAD_TRUNCATED_IMAGES)
    x = extract_rows(extractor, decoder, min(4, len(images)))
    told, rms = f"tried on {images.file(0)}", float(x.square().mean().sqrt())
    if reason := extractor.fault or ("" if rms else "gives zeros"):
        raise CogError(f"{told}: {model.choice.name} {reason}")
    return f"{told}: {x.shape[1]} features with a root mean square of {rms:.3g}"
