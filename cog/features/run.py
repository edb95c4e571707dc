"""Extraction: many models in one pass over the images of each split, cut into chunks of rows; a chunk is a file.

Process r of W takes chunks r, r + W, ...; whoever finds all chunks of a model publishes them. Each process looks after
its own last write, so the last one finds all. A process that is killed loses the chunk that it worked on.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from cog.data.loader import (
    Facts,
    Failures,
    Piece,
    Span,
    decoded,
    usable_workers,
    worker_failures_explained,
)
from cog.errors import CogError, FailedImagesError, some
from cog.features.chunks import Extraction, Model
from cog.features.extract import Extractor, batches, pieces
from cog.features.extract import extract as run_on
from cog.runtime import files, memory, signals
from cog.runtime.device import device_name, resolve_device
from cog.runtime.log import Progress
from cog.runtime.output import FAILURE_FILE
from cog.runtime.ranks import Rank

if TYPE_CHECKING:
    from cog.data.images import ImageList

logger = logging.getLogger(__name__)

#: A network on a CPU is loaded beside others if this multiple of the largest one's bytes is available.
_CPU_ROOM = 2


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
    for extraction, error in failed.items():
        logger.error("%s: %s", extraction.label, error)
    if failed:
        of_images = all(isinstance(error, FailedImagesError) for error in failed.values())
        hint = " once these images are fixed or their loss is accepted (--allow_failures N)"
        raise (FailedImagesError if of_images else CogError)(
            f"{len(failed)} of {len(todo)} extractions failed ({some([each.label for each in failed])}), for the "
            f"reasons above; the others are complete, and the same command goes on from here{hint if of_images else ''}"
        )


def _to_host(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin to copy features to the host; the returned function waits for the copy, not for what is queued later."""
    if x.device.type != "cuda":
        return x.cpu
    try:
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    except RuntimeError:  # no pinned memory: copied when it is written
        return x.cpu
    with torch.cuda.device(x.device):
        host.copy_(x, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

    def wait() -> torch.Tensor:
        copied.synchronize()
        return host

    return wait


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
        sources: dict[tuple[ImageList, Any], list[Extraction]] = {}
        for extraction, spans in self.todo.items():
            if spans and extraction.model in models:
                sources.setdefault((extraction.images, extraction.model.sharing), []).append(extraction)
        groups = list(sources.values())
        order = [
            (number, span)
            for number, group in enumerate(groups)
            for span in sorted({span for each in group for span in self.todo[each]})
        ]
        # The processes are forked before the device is used.
        stream = decoded(
            [group[0].decoder() for group in groups],
            [piece for number, span in order for piece in pieces(number, span, groups[number][0].batch_size)],
            n_workers=max(usable_workers(model.cfg.FT_EXTRACT.N_WORKERS) for model in models),
            pin_memory=groups[0][0].device_type == "cuda",
        )
        device = resolve_device(self.device_name)
        loaded, rest = self._load(models, device)
        told = None
        with Progress(sum(stop - first for _, (first, stop) in order), "extraction") as progress:
            for number, span in order:
                if not any(each.model in loaded and each not in self.failed for each in self.todo):
                    break
                networks = {
                    each: loaded[each.model]
                    for each in groups[number]
                    if span in self.todo[each] and each.model in loaded and each not in self.failed
                }
                if number != told:
                    told, images = number, groups[number][0].images
                    names = some([each.model.choice.name for each in networks], 8)
                    facts = images.dataset, images.split, len(images), len(images.classes), device, names
                    logger.info("%s %s: %d images of %d classes, on %s, for %s", *facts)
                self._do(groups[number][0], span, networks, stream, progress, device)
            self._write_queued(len(self.unwritten))
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
        first: Extraction,
        span: Span,
        networks: Mapping[Extraction, Extractor],
        stream: Iterator[Piece],
        progress: Progress,
        device: torch.device,
    ) -> None:
        """Decode the images of a chunk, and compute their features for each model of the group of ``first``."""
        started = time.time()
        parts: dict[Extraction, list[torch.Tensor]] = {each: [] for each in networks}
        failures: Failures = []
        facts: Facts = {}
        for batch in batches(stream, span, first.batch_size, first.model.preprocess.size, device):
            failures += batch.failures
            facts |= batch.facts
            for each in [each for each in parts if each not in self.failed]:
                with self._noting_failure(each):
                    # Features stay on the device until the chunk is full: no synchronization per batch.
                    y = networks[each](batch.pixels, batch.n)
                    parts[each].append(y[torch.from_numpy(batch.kept)] if batch.failures else y)
            progress.update(batch.n)
            self._write_queued(1)  # one file per batch, while the device works
            signals.check("all complete chunks are saved")
        self._write_queued(len(self.unwritten))
        for each in [each for each in networks if each not in self.failed]:
            given = span, _to_host(torch.cat(parts[each])), failures, facts, started, device
            self.unwritten.append(functools.partial(self._write, each, *given))

    def _write_queued(self, n: int) -> None:
        for _ in range(min(n, len(self.unwritten))):
            self.unwritten.popleft()()

    def _write(
        self,
        extraction: Extraction,
        span: Span,
        x: Callable[[], torch.Tensor],
        failures: Failures,
        facts: Facts,
        started: float,
        device: torch.device,
    ) -> None:
        with self._noting_failure(extraction):
            y, seconds = x(), time.time() - started
            times = {"started": started, "seconds": seconds, "device": device_name(device)}
            extraction.write(span, y, failures, facts, **times)
            self.todo[extraction].remove(span)
            if not self.todo[extraction]:
                self.finish(extraction)

    def finish(self, extraction: Extraction) -> None:
        """Publish an extraction if all its chunks are there, also those of other processes."""
        with self._noting_failure(extraction):
            if not extraction.finish(self.allow_failures):
                facts = extraction.label, len(extraction.missing()), len(extraction.spans)
                logger.info(
                    "%s: %d of %d chunks are not there yet; other processes do them, or the same command",
                    *facts,
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
