"""Output of the miniature's images and lists in the layout of the real data."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from cog import constants
from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.miniature.concepts import Concepts, choose_concepts
from cog.miniature.render import draw
from cog.miniature.traits import concept_traits
from cog.runtime import files
from cog.runtime.progress import Progress, duration
from cog.runtime.ranks import n_processors

logger = logging.getLogger(__name__)

SEEN_FILE = "seen_wnids.txt"
CONCEPTS_FILE = "concepts.txt"
COUNTS_FILE = "image_counts.csv"
WORLD_FILE = "world.json"
IN1K_DIR = "in1k"
IN21K_DIR = "in21k"

#: Version of the images, which is increased when the same seed gives other images than before.
_VERSION = 1
_CHUNK = 25  # number of images drawn at once: their arrays stay in the processor's cache


@dataclass(frozen=True)
class WorldSettings:
    """Settings that, together with WordNet, determine a world.

    Attributes:
        seed: seed of concepts, traits and images.
        n_train: number of training images per concept.
        n_test: number of test images per concept; for unseen concepts ``build_levels.py`` draws them from the
            ``n_train + n_test`` images.
    """

    seed: int = 0
    n_train: int = 80
    n_test: int = 50


#: A class folder to draw: path, number of the first image, number of images.
_Folder = tuple[Path, int, int]


def make_world(
    output_dir: Path, graph: NounGraph, settings: WorldSettings, *, n_workers: int | None = None
) -> None:
    """Draw the missing images of a world.

    Args:
        output_dir: folder for ``in1k/{train,val}/<wnid>/``, ``in21k/<wnid>/``, ``seen_wnids.txt`` (the seen
            concepts), ``concepts.txt`` (all concepts), ``image_counts.csv`` (of all concepts) and
            ``world.json`` (the settings).
        graph: the nouns.
        settings: settings of the world.
        n_workers: number of processes (default: one per available processor); it does not affect the images.

    Raises:
        CogError: the folder has another world or other images.
    """
    concepts = choose_concepts(graph, seed=settings.seed)
    _claim(output_dir, settings)
    n_each = settings.n_train + settings.n_test
    _write_lines(output_dir / SEEN_FILE, concepts.seen)
    _write_lines(output_dir / CONCEPTS_FILE, concepts.every)
    _write_lines(output_dir / COUNTS_FILE, ["wnid,count", *(f"{wnid},{n_each}" for wnid in concepts.every)])
    jobs = _jobs(output_dir, graph, concepts, settings)
    n_images = sum(count for _, _, folders in jobs for _, _, count in folders)
    if not jobs:
        logger.info("%s holds all images of %d concepts already", output_dir, len(concepts.every))
        return
    n_workers = min(n_workers or n_processors(), len(jobs))
    # Spawned, because forking a process with threads (a test runner, a notebook) can hang.
    context = multiprocessing.get_context("spawn")
    with (
        Progress(n_images, "drawing", interval=10) as progress,
        ProcessPoolExecutor(n_workers, mp_context=context) as pool,
    ):
        for future in as_completed([pool.submit(_draw, *job, settings.seed) for job in jobs]):
            progress.update(future.result())
    logger.info(
        "%s: drew %d images of %d concepts in %s", output_dir, n_images, len(jobs), duration(progress.seconds)
    )


def _claim(output_dir: Path, settings: WorldSettings) -> None:
    """Write the settings into the folder before any image, so that an interrupted call can be continued."""
    wanted = {"version": _VERSION, **asdict(settings)}
    path = output_dir / WORLD_FILE
    if path.exists():
        existing = files.read_json(path)
        if existing != wanted:
            raise CogError(
                f"{output_dir} holds a miniature made with other settings ({existing}), expected {wanted}; "
                "give another --output_dir or delete that folder"
            )
        return
    if output_dir.is_dir() and ((output_dir / IN1K_DIR).exists() or (output_dir / IN21K_DIR).exists()):
        raise CogError(
            f"{output_dir} holds {IN1K_DIR} or {IN21K_DIR} that is not part of a miniature; give another --output_dir"
        )
    files.ensure_writable_dir(output_dir, "--output_dir")
    files.write_json(path, wanted)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        files.write_text(path, text)


def _jobs(
    output_dir: Path, graph: NounGraph, concepts: Concepts, settings: WorldSettings
) -> list[tuple[str, np.ndarray, list[_Folder]]]:
    """Return id, traits and class folders of the concepts that are not drawn yet.

    An existing folder is complete, because a folder gets its name last.
    """
    n_train, n_test = settings.n_train, settings.n_test
    all_traits = concept_traits(graph, concepts.every, seed=settings.seed)
    jobs = []
    for wnid, traits in zip(concepts.every, all_traits, strict=True):
        if wnid in concepts.seen:
            in1k = output_dir / IN1K_DIR
            folders = [
                (in1k / constants.IN1K_FOLDERS["train"] / wnid, 0, n_train),
                (in1k / constants.IN1K_FOLDERS["test"] / wnid, n_train, n_test),
            ]
        else:
            folders = [(output_dir / IN21K_DIR / wnid, 0, n_train + n_test)]
        if missing := [folder for folder in folders if not folder[0].is_dir()]:
            jobs.append((wnid, traits, missing))
    return jobs


def _draw(wnid: str, traits: np.ndarray, folders: list[_Folder], seed: int) -> int:
    """Draw and write class folders of one concept, and return the number of images."""
    n_images = max(first + count for _, first, count in folders)
    pictures = concept_images(wnid, traits, n_images, seed=seed)
    for folder, first, count in folders:
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for k in range(first, first + count):
            path = partial / f"{wnid}_{k}.JPEG"
            Image.fromarray(pictures[k]).save(path, format="JPEG", quality=75 + (k * 7) % 20)
        partial.rename(folder)
    return sum(count for _, _, count in folders)


def concept_images(wnid: str, traits: np.ndarray, n_images: int, *, seed: int) -> np.ndarray:
    """Return the first images of a concept, uint8 (n_images, SIZE, SIZE, 3)."""
    chunks = []
    for chunk in range(-(-n_images // _CHUNK)):
        # Whole chunks are drawn, so that the first images do not depend on ``n_images``.
        rng = np.random.default_rng([seed, int(wnid[1:]), chunk + 1])
        chunks.append(draw(traits, _CHUNK, rng))
    return np.concatenate(chunks)[:n_images]
