"""Output of the miniature's images and lists in the layout of the real data."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from PIL import Image

from cog import constants
from cog.errors import CogError
from cog.levels.wordnet import NounGraph
from cog.miniature.concepts import choose_concepts
from cog.miniature.render import draw
from cog.miniature.traits import concept_traits
from cog.runtime import files
from cog.runtime.log import Progress, duration
from cog.runtime.memory import n_processors

logger = logging.getLogger(__name__)

IN1K_DIR = "in1k"
IN21K_DIR = "in21k"

_WORK_DIR = ".drawing"
_CHUNK = 25  # number of images drawn at once: their arrays stay in the processor's cache


def make_world(
    output_dir: Path, graph: NounGraph, *, seed: int = 0, n_train: int = 80, n_test: int = 50
) -> None:
    """Draw the images of a world, one process per processor, unless the folder holds this world already.

    Args:
        output_dir: folder for ``in1k/{train,val}/<wnid>/``, ``in21k/<wnid>/``, ``seen_wnids.txt`` (the seen
            concepts), ``image_counts.csv`` (of all concepts) and, written last, ``world.json`` (the arguments).
        graph: the nouns.
        seed: seed of concepts, traits and images.
        n_train: number of training images per concept.
        n_test: number of test images per concept; for unseen concepts ``build_levels.py`` draws them from the
            ``n_train + n_test`` images.

    Raises:
        CogError: the folder has another world or other images.
    """
    settings = {"version": 1, "seed": seed, "n_train": n_train, "n_test": n_test}
    record, work = output_dir / "world.json", output_dir / _WORK_DIR
    images = (IN1K_DIR, IN21K_DIR)
    if record.exists():
        if (existing := files.read_json(record)) != settings:
            raise CogError(
                f"{output_dir} holds a miniature made with other settings ({existing}), expected {settings}; "
                "give another --output_dir or delete that folder"
            )
        logger.info("%s holds all images already", output_dir)
        return
    # While the images of an interrupted call are moved into place, the folder of its work is there.
    if not work.exists() and any((output_dir / name).exists() for name in images):
        raise CogError(
            f"{output_dir} holds {IN1K_DIR} or {IN21K_DIR} that is not part of a miniature; give another --output_dir"
        )
    concepts = choose_concepts(graph, seed=seed)
    files.ensure_writable_dir(output_dir, "--output_dir")
    shutil.rmtree(work, ignore_errors=True)
    n_each = n_train + n_test
    jobs = []
    for wnid, traits in zip(concepts.every, concept_traits(graph, concepts.every, seed=seed), strict=True):
        folders = {work / IN21K_DIR / wnid: range(n_each)}
        if wnid in concepts.seen:
            seen = work / IN1K_DIR
            folders = {
                seen / constants.IN1K_FOLDERS["train"] / wnid: range(n_train),
                seen / constants.IN1K_FOLDERS["test"] / wnid: range(n_train, n_each),
            }
        jobs.append((wnid, traits, folders))
    # Spawned, because forking a process with threads (a test runner, a notebook) can hang.
    context = multiprocessing.get_context("spawn")
    with (
        Progress(n_each * len(jobs), "drawing", interval=10) as progress,
        ProcessPoolExecutor(n_processors(), mp_context=context) as pool,
    ):
        for future in as_completed([pool.submit(_draw, *job, seed) for job in jobs]):
            progress.update(future.result())
    for name in images:
        if not (output_dir / name).exists():
            (work / name).rename(output_dir / name)
    files.write_text(output_dir / "seen_wnids.txt", "".join(f"{wnid}\n" for wnid in concepts.seen))
    counts = "".join(f"{wnid},{n_each}\n" for wnid in concepts.every)
    files.write_text(output_dir / "image_counts.csv", f"wnid,count\n{counts}")
    files.write_json(record, settings)
    shutil.rmtree(work)
    logger.info(
        "%s: drew %d images of %d concepts in %s",
        output_dir,
        n_each * len(jobs),
        len(jobs),
        duration(progress.seconds),
    )


def _draw(wnid: str, traits: np.ndarray, folders: dict[Path, range], seed: int) -> int:
    """Draw and write the images of a concept, given by their numbers in each folder; return how many."""
    pictures = concept_images(wnid, traits, max(numbers.stop for numbers in folders.values()), seed=seed)
    for folder, numbers in folders.items():
        folder.mkdir(parents=True)
        for k in numbers:
            path = folder / f"{wnid}_{k}.JPEG"
            Image.fromarray(pictures[k]).save(path, format="JPEG", quality=75 + (k * 7) % 20)
    return len(pictures)


def concept_images(wnid: str, traits: np.ndarray, n_images: int, *, seed: int) -> np.ndarray:
    """Return the first images of a concept, uint8 (n_images, SIZE, SIZE, 3)."""
    chunks = []
    for chunk in range(-(-n_images // _CHUNK)):
        # Whole chunks are drawn, so that the first images do not depend on ``n_images``.
        rng = np.random.default_rng([seed, int(wnid[1:]), chunk + 1])
        chunks.append(draw(traits, _CHUNK, rng))
    return np.concatenate(chunks)[:n_images]
