"""The plan of building levels: inputs, options and output folder, and whether the folder has the result already."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cog import config, constants, paths
from cog.data import datasets
from cog.data.image_stores import ImageStore
from cog.data.level_files import Levels, read_levels
from cog.data.root_layout import open_store
from cog.data.wnids import IN1K_LIST
from cog.errors import CogError, some
from cog.levels import image_folders, outputs, wordnet
from cog.levels.builder import LevelInputs, LevelOptions
from cog.levels.selection import DISCARDED_LIST, read_wnids
from cog.levels.wordnet.graph import NounGraph
from cog.runtime import files, machine_checks
from cog.runtime.check_report import Report
from cog.runtime.fingerprint import plain
from cog.runtime.output_folder import OutputFolder

if TYPE_CHECKING:
    from yacs.config import CfgNode

logger = logging.getLogger(__name__)

#: Largest size of all outputs together, in bytes: the split file of 5000 concepts has 680 MB.
_MOST_BYTES = 800 << 20

#: Keys that become N with ``--limit N``; ``KEY VALUE`` pairs and ``--max_train`` override them.
_LIMITED_KEYS = ("LEVELS.N_TEST", "LEVELS.MAX_TRAIN")

#: With ``--limit``, number of concepts to select from for each concept of a level: every fourth of 21,841 is eligible.
_LIMITED_CHOICE = 20

#: Flags that name an input file.
_FILES = ("image_counts", "concepts", "seen_wnids", "discarded_wnids", "rerank", "embeddings")


@dataclass(frozen=True)
class LevelsPlan:
    """The plan of one call of ``build_levels.py``; its fields are the values of the flags.

    Properties are computed, and checked, when they are first used.
    """

    imagenet_images_root: str | None
    in1k_images_root: str | None
    image_counts: str | None
    concepts: str | None
    seen_wnids: str | None
    discarded_wnids: str | None
    rerank: str | None
    wordnet_dir: str | None
    protocol: str
    similarity: str
    embeddings: str | None
    n_levels: int | None
    level_size: int | None
    ties: str | None
    max_train: int | None
    seed: int
    verify_images: bool
    output_dir: str | None
    overwrite: bool
    dry_run: bool
    limit: int | None
    config: str | None
    opts: Sequence[str]

    @cached_property
    def cfg(self) -> CfgNode:
        """The configuration."""
        opts = list(self.opts)
        limits = [word for key in _LIMITED_KEYS if self.limit for word in (key, str(self.limit))]
        if self.max_train is not None:
            if "LEVELS.MAX_TRAIN" in opts[::2]:
                raise CogError("--max_train and LEVELS.MAX_TRAIN set the same value; give one of them")
            opts += ["LEVELS.MAX_TRAIN", str(self.max_train)]
        return config.get_cfg(config_file=self.config, opts=[*limits, *opts])

    @cached_property
    def folder(self) -> LevelsFolder | None:
        """The output folder, after a check that no file would be lost; None in a dry run."""
        if self.dry_run:
            return None
        if self.output_dir is None:
            raise CogError("no --output_dir was given; add it, or --dry_run to only see the numbers")
        if paths.limit_of(self.output_dir) and not self.limit:
            raise CogError(
                f"--output_dir {self.output_dir} is a folder of outputs of --limit; choose another folder or add "
                "--limit"
            )
        path = paths.with_limit(self.output_dir, self.limit) if self.limit else self.output_dir
        folder = LevelsFolder(str(path), self)
        folder.require_usable()
        return folder

    @cached_property
    def files(self) -> dict[str, Path]:
        """The input files by flag, after a check of flags that need each other."""
        if self.embeddings is not None and self.similarity != "embedding":
            raise CogError(
                f"--embeddings has no effect with --similarity {self.similarity}; add --similarity embedding"
            )
        if self.embeddings is None and self.similarity == "embedding":
            raise CogError("--similarity embedding needs a file of word vectors: give --embeddings FILE")
        if self.imagenet_images_root is None and self.image_counts is None and self.rerank is None:
            raise CogError(
                "nothing to build from: give --imagenet_images_root DIR, --image_counts FILE.csv, or "
                "--rerank LEVELS.pkl"
            )
        if self.verify_images and self.imagenet_images_root is None:
            raise CogError("--verify_images needs the images: give --imagenet_images_root DIR")
        given = {flag: getattr(self, flag) for flag in _FILES if getattr(self, flag) is not None}
        return {flag: files.require_file(path, f"--{flag}") for flag, path in given.items()}

    @cached_property
    def root(self) -> Path | None:
        """The folder of the images; None if it is not given."""
        if self.imagenet_images_root is None:
            return None
        return files.require_dir(self.imagenet_images_root, "--imagenet_images_root")

    @cached_property
    def store(self) -> ImageStore | None:
        """The images; None if their folder is not given."""
        return None if self.root is None else open_store(self.root)

    @cached_property
    def in1k_root(self) -> Path | None:
        """The folder of IN-1K; None if it is not given."""
        if self.in1k_images_root is None:
            return None
        return files.require_dir(self.in1k_images_root, "--in1k_images_root")

    @cached_property
    def in1k_counts(self) -> list[int] | None:
        """The number of training and test images of each concept of IN-1K; None if its folder is not given."""
        if self.in1k_root is None:
            return None
        in1k, values = datasets.DATASETS[constants.IN1K], {"in1k_images_root": str(self.in1k_root)}
        counts: Counter[str] = Counter()
        for split in constants.SPLITS:
            images = in1k.images(constants.IN1K, split, values)
            counts.update(dict(zip(images.classes, images.counts().tolist(), strict=True)))
        return list(counts.values())

    def check_flags(self) -> None:
        """Check the configuration, the flags, and that the inputs exist, before any input is read."""
        _ = self.cfg, self.files, self.root, self.in1k_root

    @cached_property
    def graph(self) -> NounGraph:
        """The nouns of WordNet."""
        return wordnet.load_wordnet(self.wordnet_dir)

    @cached_property
    def given_levels(self) -> Levels | None:
        """The levels of ``--rerank``; None without this flag."""
        return None if self.rerank is None else read_levels(self.rerank)

    @cached_property
    def options(self) -> LevelOptions:
        """The options of the construction."""
        wanted_size = self.level_size or self.limit
        n_levels, level_size = self.n_levels or 5, wanted_size or 1000
        if self.given_levels is not None:
            sizes = sorted({len(level) for level in self.given_levels})
            if wanted_size is None and len(sizes) > 1:
                raise CogError(
                    f"the levels of --rerank {self.rerank} have {sizes[0]:,} to {sizes[-1]:,} concepts; "
                    f"give --level_size"
                )
            n_levels, level_size = self.n_levels or len(self.given_levels), wanted_size or sizes[0]
        discarded = read_wnids(self.files.get("discarded_wnids", DISCARDED_LIST))
        is_v2 = self.protocol == "v2"
        return LevelOptions(
            protocol=self.protocol,
            similarity=self.similarity,
            ties=self.ties or ("introsort" if is_v2 else "wnid"),
            n_levels=n_levels,
            level_size=level_size,
            min_images=self.cfg.LEVELS.MIN_IMAGES,
            excluded_roots=tuple(self.cfg.LEVELS.EXCLUDED_ROOTS),
            discarded=tuple(discarded) if is_v2 else (),
            embeddings=self.files.get("embeddings"),
            seed=self.seed,
        )

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """The settings and the inputs in the form of the report."""
        used = {"seen_wnids": IN1K_LIST, "discarded_wnids": DISCARDED_LIST} | self.files
        if self.protocol != "v2" or self.rerank is not None:
            del used["discarded_wnids"]
        hidden = ("discarded", "embeddings")  # they come from files, which are listed with the inputs
        return {
            "options": {
                **{key: value for key, value in asdict(self.options).items() if key not in hidden},
                "verify_images": self.verify_images,
                **({"limit": self.limit} if self.limit else {}),
                "config": {
                    key: value for key, value in config.flat(self.cfg).items() if key.startswith("LEVELS.")
                },
            },
            "inputs": {
                "wordnet": {
                    "version": "3.0",
                    "files": {str(path): {"sha256": files.sha256(path)} for path in self.graph.files},
                },
                **{
                    flag: {"path": str(path), "sha256": files.sha256(path)}
                    for flag, path in sorted(used.items())
                },
                **{
                    flag: {"path": str(path)}
                    for flag, path in (
                        ("imagenet_images_root", self.root),
                        ("in1k_images_root", self.in1k_root),
                    )
                    if path is not None
                },
            },
        }

    @cached_property
    def inputs(self) -> LevelInputs:
        """The contents of all inputs; files that are quick to read are read before images are counted."""
        _ = self.made_from
        seen = read_wnids(self.files.get("seen_wnids", IN1K_LIST))
        if not seen:
            raise CogError(f"--seen_wnids {self.seen_wnids} lists no ids, expected at least one")
        self.graph.indices(seen, f"--seen_wnids {self.seen_wnids or IN1K_LIST.name}")
        concepts = read_wnids(self.files["concepts"]) if "concepts" in self.files else None
        if concepts is not None:
            if not concepts:
                raise CogError(f"--concepts {self.concepts} lists no ids, expected at least one")
            self.graph.indices(concepts, f"--concepts {self.concepts}")
        self.graph.indices(self.cfg.LEVELS.EXCLUDED_ROOTS, "LEVELS.EXCLUDED_ROOTS")
        pool = None
        if self.given_levels is not None:
            pool = self._few(sorted({wnid for level in self.given_levels for wnid in level}))
            self.graph.indices(pool, f"--rerank {self.rerank}")
        if "image_counts" in self.files:
            return LevelInputs(self._given_counts(concepts or []), concepts, seen, pool, scanned=False)
        if self.store is not None:
            counts = self._scanned_counts(self.store, concepts or [], pool or [])
            return LevelInputs(counts, concepts, seen, pool, scanned=not self.limit)
        return LevelInputs(None, concepts, seen, pool, scanned=False)

    def _few(self, wnids: list[str]) -> list[str]:
        """Return the concepts that ``--limit`` selects from, spread evenly over all; without the flag, all concepts."""
        if not self.limit:
            return wnids
        wanted = _LIMITED_CHOICE * self.options.n_levels * self.options.level_size
        return wnids[:: max(1, len(wnids) // wanted)]

    def _given_counts(self, concepts: list[str]) -> dict[str, int]:
        counts = image_folders.read_counts(self.files["image_counts"])
        self.graph.indices(counts, f"--image_counts {self.image_counts}")
        absent = [wnid for wnid in concepts if wnid not in counts]
        if absent:
            raise CogError(
                f"--image_counts {self.image_counts} has no row for {len(absent):,} of the {len(concepts):,} "
                f"--concepts ({some(absent)}); add rows, with 0 where there are no images"
            )
        return counts

    def _scanned_counts(self, store: ImageStore, concepts: list[str], pool: list[str]) -> dict[str, int]:
        def choose(wnids: list[str]) -> list[str]:
            if not self.limit:
                return wnids
            wanted = set(concepts or wnids)
            few = self._few([wnid for wnid in wnids if wnid in wanted])
            return sorted({*few, *(set(pool) & set(wnids))})

        root = store.root
        counts, others = image_folders.count_images(store, n_workers=self.cfg.LEVELS.N_WORKERS, choose=choose)
        self.graph.indices(counts, f"--imagenet_images_root {root}")
        if others:
            logger.warning("ignored in %s, since their names are no noun ids: %s", root, some(others))
        absent = [wnid for wnid in concepts if wnid not in counts]
        if absent and not self.limit:
            logger.warning(
                "%d concepts have no folder in %s and are taken to have no images", len(absent), root
            )
        return counts | dict.fromkeys(absent, 0)

    def check(self) -> int:
        """Check every part of the plan and the machine, print a summary, and return the exit code."""
        report = Report()
        with report.step("input") as step:
            self.check_flags()
            report.ok("wordnet", f"{len(self.graph):,} noun synsets, {self.graph.source}")
            counts = self.inputs.counts or {}
            total = f"{len(counts):,} concepts with {sum(counts.values()):,} images"
            report.ok("input", total if counts else "levels")
        with report.step("output"):
            path = self.folder.path if self.folder is not None else None
            if self.folder is not None and step.ok and self.folder.holds_result():
                report.ok("output", f"{path} is complete, it would be skipped")
            elif path is not None and machine_checks.check_writable(report, path):
                report.ok("output", str(path))
                machine_checks.check_disk(report, [(path, _MOST_BYTES)])
        return report.finish()


class LevelsFolder(OutputFolder):
    """The output folder of levels; it is complete when it has the files that its report lists.

    Args:
        path: path of the folder.
        plan: plan of the expected levels.
    """

    markers = (outputs.REPORT,)

    def __init__(self, path: str, plan: LevelsPlan) -> None:
        super().__init__(path, overwrite=plan.overwrite)
        self._plan = plan

    def replaced(self) -> list[str]:
        """Return the names of all files that may be written."""
        names = [
            constants.LEVELS_FILE, constants.SPLIT_FILE, outputs.LEVELS_CSV, outputs.CONCEPTS_CSV, outputs.REPORT,
            outputs.UNREADABLE_CSV, outputs.SIMILARITY_FIGURE, outputs.IMAGES_FIGURE,
        ]  # fmt: skip
        return [*names, outputs.COUNTS_CSV] if self._plan.image_counts is None else names

    def require_usable(self) -> None:
        """Check the folder before any input is read.

        Raises:
            CogError: files without a report would be lost, or the folder cannot be written to.
        """
        folder = self.path
        if folder.exists() and not folder.is_dir():
            raise CogError(f"--output_dir {folder} is not a folder")
        if not self.needs_claim():
            self._require_report()
        parent = machine_checks.existing(folder)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise CogError(f"cannot write into --output_dir {folder}: no permission in {parent}")

    def _require_report(self) -> None:
        existing = [name for name in self.replaced() if (self.path / name).exists()]
        if existing and outputs.REPORT not in existing and not self.overwrite:
            raise CogError(
                f"--output_dir {self.path} already holds {some(existing)}; choose another folder or add --overwrite"
            )

    def holds_result(self) -> bool:
        """Return whether the folder has the expected levels, by its report.

        Images are counted last, when all other settings and inputs are equal.

        Raises:
            CogError: the folder has other levels.
        """
        self._require_report()
        if self.overwrite or not (self.path / outputs.REPORT).exists():
            return False
        report = files.read_json(self.path / outputs.REPORT)
        try:
            changed = self.compare(_essence(report), _essence(plain(self._plan.made_from)))
            digests = {str(name): entry["sha256"] for name, entry in report["outputs"].items()}
        except (KeyError, TypeError, AttributeError):
            changed, digests = [f"{outputs.REPORT} was not written by build_levels.py"], {}
        changed += [
            f"{name} is missing or was changed"
            for name, digest in digests.items()
            if not (self.path / name).is_file() or files.sha256(self.path / name) != digest
        ]
        if changed:
            raise CogError(
                f"--output_dir {self.path} already holds other levels ({some(changed)}); choose another folder or "
                "add --overwrite"
            )
        inputs = self._plan.inputs
        if inputs.scanned and image_folders.read_counts(self.path / outputs.COUNTS_CSV) != inputs.counts:
            raise CogError(
                f"--output_dir {self.path} already holds levels from other numbers of images in {self._plan.root}; "
                "choose another folder or add --overwrite"
            )
        return True


def _essence(made_from: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that determine the result: digests of files instead of paths, no number of threads."""
    options, inputs = dict(made_from["options"]), dict(made_from["inputs"])
    options["config"] = {key: value for key, value in options["config"].items() if key != "LEVELS.N_WORKERS"}
    roots = {
        flag: path and os.path.abspath(path)
        for flag in ("imagenet_images_root", "in1k_images_root")
        for path in [inputs.pop(flag, {}).get("path")]
    }
    synsets = sorted(entry["sha256"] for entry in inputs.pop("wordnet")["files"].values())
    used = {flag: entry["sha256"] for flag, entry in inputs.items()}
    return {**options, **used, "wordnet": synsets, **roots}
