"""Agreement of two levels files, level by level and concept by concept."""

from __future__ import annotations

import argparse
import itertools
import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from cog import constants
from cog.data.level_files import Levels, read_levels
from cog.errors import CogError
from cog.levels import outputs, wordnet
from cog.runtime import files
from cog.runtime.check_report import Report
from cog.runtime.csv_text import csv_text

logger = logging.getLogger(__name__)

_SHOWN_MOVES = 20


def compare(a: Levels, b: Levels) -> tuple[str, list[tuple[str, str, str]]]:
    """Compare two lists of levels.

    Returns:
        The table of levels and a line of totals, as text; and wnid, levels in a and levels in b (``L1``, ``L1+L3``, or
        ``-`` for no level) of each concept whose levels differ, ids ascending.
    """
    lines = ["level       in A       in B    in both   agreement"]
    none: list[str] = []
    for number, (in_a, in_b) in enumerate(itertools.zip_longest(a, b, fillvalue=none), start=1):
        both = len(set(in_a) & set(in_b))
        share = 100 * both / max(len(in_a), len(in_b), 1)
        lines.append(f"L{number:<4} {len(in_a):>10,} {len(in_b):>10,} {both:>10,} {share:>10.2f}%")
    of_a, of_b = _levels_by_concept(a), _levels_by_concept(b)
    concepts = sorted(of_a.keys() | of_b.keys())
    moves = [(wnid, of_a.get(wnid, "-"), of_b.get(wnid, "-")) for wnid in concepts]
    moves = [move for move in moves if move[1] != move[2]]
    lines.append(
        f"{len(concepts) - len(moves):,} of {len(concepts):,} concepts are in the same level of both"
    )
    if not moves:
        lines[-1] += ", in the same order" if a == b else ", in another order"
    return "\n".join(lines), moves


def _levels_by_concept(levels: Levels) -> dict[str, str]:
    labels: dict[str, str] = {}
    for number, level in enumerate(levels, start=1):
        for wnid in level:
            labels[wnid] = f"{labels[wnid]}+L{number}" if wnid in labels else f"L{number}"
    return labels


def overlap_table(reference: Levels, others: Mapping[str, Levels]) -> str:
    """Return a table, as text, of the concepts that levels share with the reference level of the same number.

    A file with one level (a random draw) is compared with every reference level. Two or more files whose names differ
    only in the last number (``random_1``, ``random_2``) are followed by their mean and their range.

    Args:
        reference: wnids per reference level.
        others: wnids per level, by the name of the file.
    """
    shared: dict[str, list[int]] = {}
    for name, levels in others.items():
        padded = [*levels] * (len(reference) if len(levels) == 1 else 1)
        padded += [[]] * (len(reference) - len(padded))
        shared[name] = [len(set(a) & set(b)) for a, b in zip(reference, padded, strict=False)]
    draws: dict[str, list[str]] = {}
    for name in shared:
        draws.setdefault(re.sub(r"[0-9]+$", "", name), []).append(name)
    rows: list[tuple[str, ...]] = [("", *(f"L{k}" for k in range(1, len(reference) + 1)))]
    rows.append(("concepts", *(f"{len(level):,}" for level in reference)))
    for stem, names in draws.items():
        rows += [(name, *(f"{n:,}" for n in shared[name])) for name in names]
        if stem and len(names) > 1:
            columns = list(zip(*(shared[name] for name in names), strict=True))
            rows.append((f"{stem}* mean", *(f"{statistics.fmean(column):.1f}" for column in columns)))
            rows.append((f"{stem}* range", *(f"{min(column):,}-{max(column):,}" for column in columns)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        lines.append("  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]))
    return "\n".join(lines)


def levels_files(paths: Sequence[str]) -> list[str]:
    """Return the levels file of each path: the path itself, or for a folder the levels file in it."""
    return [str(Path(path) / constants.LEVELS_FILE) if Path(path).is_dir() else path for path in paths]


def show_overlap(paths: Sequence[str]) -> None:
    """Print the overlap of levels files with the first levels file.

    Args:
        paths: the reference, then the levels to compare with it: files, or output folders of ``build_levels.py``.

    Raises:
        CogError: fewer than two paths, or a file that cannot be read.
    """
    if len(paths) < 2:
        raise CogError("--overlap needs the levels to compare with and at least one other levels file")
    reference, *others = (read_levels(file) for file in levels_files(paths))
    names = [Path(path).name if Path(path).is_dir() else path for path in paths[1:]]
    if len(set(names)) < len(names):
        names = list(paths[1:])
    if len(set(names)) < len(names):
        raise CogError("--overlap names a levels file twice; give each once")
    outputs.show(f"concepts in the same level as in {paths[0]}")
    outputs.show(overlap_table(reference, dict(zip(names, others, strict=True))))


def check_files(paths: Sequence[str]) -> int:
    """Check the levels files to compare, print a summary, and return the exit code."""
    report = Report()
    for path in paths:
        with report.step("levels"):
            report.ok("levels", f"{path}: {len(read_levels(path))} levels")
    return report.finish()


def run(args: argparse.Namespace) -> int:
    """Run ``--compare`` or ``--overlap`` of ``build_levels.py``, and return the exit code.

    Raises:
        CogError: both flags are given; see also :func:`compare_files` and :func:`show_overlap`.
    """
    if args.compare is not None and args.overlap is not None:
        raise CogError("--compare and --overlap cannot be combined; give one of them")
    if args.check:
        return check_files(args.compare or levels_files(args.overlap))
    if args.overlap is not None:
        show_overlap(args.overlap)
        return 0
    compare_files(
        *args.compare,
        output_dir=None if args.dry_run else args.output_dir,
        overwrite=args.overwrite,
        wordnet_dir=args.wordnet_dir,
    )
    return 0


def compare_files(
    path_a: str, path_b: str, *, output_dir: str | None, overwrite: bool, wordnet_dir: str | None
) -> None:
    """Print the agreement of two levels files.

    Args:
        path_a: first levels file.
        path_b: second levels file.
        output_dir: folder of the list of all moves; None: no list is written.
        overwrite: whether to replace an existing list.
        wordnet_dir: folder of WordNet, see :func:`cog.levels.wordnet.load_wordnet`.

    Raises:
        CogError: a levels file cannot be read, or the folder has a list of other moves.
    """
    text, rows = compare(read_levels(path_a), read_levels(path_b))
    table = csv_text(("wnid", "a", "b"), rows)
    file = None if output_dir is None else Path(output_dir) / outputs.COMPARISON_CSV
    done = False
    if file is not None and file.exists() and not overwrite:
        done = file.is_file() and file.read_bytes() == table.encode()
        if not done:
            raise CogError(f"{file} holds another comparison; remove it or add --overwrite")
    outputs.show(f"A: {path_a}\nB: {path_b}\n{text}")
    if rows:
        words = _words_of([row[0] for row in rows[:_SHOWN_MOVES]], wordnet_dir)
        outputs.show("\nconcept    in A  in B  names")
        for wnid, in_a, in_b in rows[:_SHOWN_MOVES]:
            outputs.show(f"{wnid:<10} {in_a:<5} {in_b:<5} {words.get(wnid, '')}".rstrip())
        if len(rows) > _SHOWN_MOVES:
            all_moves = f"all are in {outputs.COMPARISON_CSV}" if file else "--output_dir DIR writes all"
            outputs.show(f"... and {len(rows) - _SHOWN_MOVES:,} more; {all_moves}")
    if done:
        outputs.show(f"{file} is complete, skipped")
    elif file is not None:
        files.ensure_writable_dir(file.parent, "--output_dir")
        files.write_text(file, table)
        outputs.show(f"wrote {file}")


def _words_of(wnids: list[str], wordnet_dir: str | None) -> dict[str, str]:
    """Return the names of concepts by id; without WordNet, an empty mapping, since a comparison does not need names."""
    try:
        graph = wordnet.load_wordnet(wordnet_dir)
    except CogError as error:
        if wordnet_dir is not None:
            raise
        logger.info("names are not shown: %s", error)
        return {}
    return {wnid: graph.words(graph.index(wnid)) for wnid in wnids if wnid in graph}
