"""How long building the published levels takes, and NLTK's way of computing the same similarities.

    python tests/benchmarks/bench_levels.py [--image_counts FILE] [--wordnet_dir DIR] [--nltk_pairs 20000]

Prints a table: best of three for every step in this process, then the whole command in a process of its own.
NLTK's per-pair loop is timed on random pairs and scaled up to all of them.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS / "helpers")]

from naive_wordnet import open_with_nltk

from cog.data.wnids import IN1K_LIST
from cog.levels.image_folders import read_counts
from cog.levels.introsort import argsort_introsort
from cog.levels.selection import DISCARDED_LIST, read_wnids, select
from cog.levels.wordnet import load_wordnet
from cog.levels.wordnet.ic import build_taxonomy
from cog.levels.wordnet.similarity import MEASURES, similarities

COUNTS = TESTS.parent.parent / "shared" / "imagenet21k" / "fall11_image_counts.csv"


def best(function, repeats: int = 3):
    """Return the shortest time of ``repeats`` calls in seconds, and the last result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def report(label: str, seconds: float, remark: str = "") -> None:
    """Print one row."""
    print(f"{label:<52}{seconds:>10.3f} s  {remark}", flush=True)


def main() -> None:
    """Time every step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image_counts", type=Path, default=COUNTS)
    parser.add_argument("--wordnet_dir")
    parser.add_argument("--nltk_pairs", type=int, default=20_000)
    args = parser.parse_args()

    seconds, graph = best(lambda: load_wordnet(args.wordnet_dir))
    report("load WordNet", seconds, f"{len(graph):,} synsets")
    counts = read_counts(args.image_counts)
    seen = sorted(set(read_wnids(IN1K_LIST)) & set(counts))
    discarded = read_wnids(DISCARDED_LIST)
    seconds, selection = best(lambda: select(graph, counts=counts, seen=seen, discarded=discarded))
    report("select the eligible concepts", seconds, f"{len(selection.eligible):,} of {len(counts):,}")
    concepts = graph.indices(counts, "concepts")
    seconds, taxonomy = best(lambda: build_taxonomy(graph, concepts))
    report("information content", seconds, f"{len(taxonomy.nodes):,} synsets")
    rows, columns = graph.indices(selection.eligible, "eligible"), graph.indices(seen, "seen")
    n_pairs = len(rows) * len(columns)
    lin_seconds = 0.0
    for measure in MEASURES:
        seconds, values = best(lambda measure=measure: similarities(taxonomy, rows, columns, measure=measure))
        if measure == "lin":
            lin_seconds, lin = seconds, values
        report(f"similarity of all pairs, {measure}", seconds, f"{n_pairs:,} pairs")
    seconds, _ = best(lambda: argsort_introsort(-lin.max(axis=1)))
    report("order", seconds)

    with tempfile.TemporaryDirectory() as work:
        start = time.perf_counter()
        nltk = open_with_nltk(graph.files[0].parent, Path(work))
        by_offset = {synset.offset(): synset for synset in nltk.all_synsets("n")}
        report("NLTK: load all noun synsets", time.perf_counter() - start)
        synset = {node: by_offset[int(graph.wnids[node][1:])] for node in {*rows.tolist(), *columns.tolist()}}
        content = {int(graph.wnids[node][1:]): taxonomy.information[node] for node in taxonomy.nodes.tolist()}
        chooser = random.Random(0)
        pairs = [
            (chooser.choice(rows.tolist()), chooser.choice(columns.tolist())) for _ in range(args.nltk_pairs)
        ]
        start = time.perf_counter()
        found = []
        for a, b in pairs:
            first, second = synset[a], synset[b]
            shared = content[first.lowest_common_hypernyms(second)[0].offset()]
            found.append(2 * shared / (content[first.offset()] + content[second.offset()]))
        seconds = (time.perf_counter() - start) * n_pairs / len(pairs)
        report(
            "NLTK: Lin of all pairs, one by one",
            seconds,
            f"scaled up from {len(pairs):,} pairs; {seconds / lin_seconds:,.0f} x",
        )
        row_of, column_of = ({node: i for i, node in enumerate(nodes.tolist())} for nodes in (rows, columns))
        ours = [lin[row_of[a], column_of[b]] for a, b in pairs]
        print(f"{'':<52}greatest difference {np.abs(np.subtract(ours, found)).max():.1e}")
        assert math.isclose(max(found), max(ours))

        command = [sys.executable, "build_levels.py", "--image_counts", str(args.image_counts)]
        command += ["--output_dir", f"{work}/levels", "--overwrite"]
        command += ["--wordnet_dir", args.wordnet_dir] if args.wordnet_dir else []
        seconds, peak = best(lambda: peak_memory(command))
        report("the whole command", seconds, f"{peak:,} MiB")


def peak_memory(command: list[str]) -> int:
    """Run ``command`` and return its peak memory in MiB, from a small process: a child starts with its parent's."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=TESTS.parent, check=True, capture_output=True, text=True
    )
    return int(found.stdout)


if __name__ == "__main__":
    main()
