"""Reader of the two noun files of WordNet 3.0, and the search for them on this machine.

ImageNet's ids are byte offsets into ``data.noun`` of WordNet 3.0, so other versions cannot be used. The
file format is documented in WordNet's manual page wndb(5WN). NLTK reads the same files; building all
of its synset objects takes several times longer than :func:`load_wordnet`.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cog.errors import CogError
from cog.levels.wordnet.graph import NounGraph
from cog.runtime.memory import without_garbage_collection

ENVIRONMENT_VARIABLE = "COG_WORDNET_DIR"
DEBIAN_DIR = Path("/usr/share/wordnet")
VERSION = "3.0"
#: Number of noun synsets in the release, and the id and first word of the first one.
N_SYNSETS = 82_115
_FIRST = ("n00001740", "entity")

_NAMES = ("data.noun", "index.noun")
_HELP = (
    "get it in one of three ways: `python -m nltk.downloader wordnet` (package nltk); "
    "`apt install wordnet-base` (Debian, Ubuntu); or download WordNet 3.0 from wordnet.princeton.edu "
    f"and give the folder of data.noun with --wordnet_dir or the environment variable {ENVIRONMENT_VARIABLE}"
)


def load_wordnet(wordnet_dir: str | os.PathLike[str] | None = None) -> NounGraph:
    """Read the noun synsets of WordNet 3.0.

    The places are searched in this order: ``wordnet_dir``, the environment variable ``COG_WORDNET_DIR``, NLTK's data
    folders, Debian's ``/usr/share/wordnet``. The first two are binding: if one is given and has no WordNet 3.0, that
    is an error.

    Args:
        wordnet_dir: a folder with ``data.noun`` and ``index.noun`` (also WordNet's or NLTK's folders
            above it), or NLTK's ``wordnet.zip``.

    Raises:
        CogError: no WordNet 3.0 is found, or its files are of another version or damaged.
    """
    for given, flag in (
        (wordnet_dir, "--wordnet_dir"),
        (os.environ.get(ENVIRONMENT_VARIABLE), ENVIRONMENT_VARIABLE),
    ):
        if given:
            location = _resolve(Path(given))
            if location is None:
                raise CogError(f"{flag} {given} holds no data.noun and index.noun of WordNet 3.0; {_HELP}")
            return _read(location)
    refused = ""
    for place in (*_nltk_places(), DEBIAN_DIR):
        location = _resolve(place)
        if location is None:
            continue
        try:
            return _read(location)
        except CogError as error:
            refused = f" ({error})"
    raise CogError(f"WordNet 3.0 was not found{refused}; {_HELP}")


def _nltk_places() -> Iterator[Path]:
    """Yield the places of WordNet in NLTK's search path; NLTK is not imported, which takes longer than the reading."""
    nltk_data = sys.modules.get("nltk.data")
    if nltk_data is not None:
        roots = [str(entry) for entry in nltk_data.path]
    else:
        prefix = sys.prefix
        roots = [entry for entry in os.environ.get("NLTK_DATA", "").split(os.pathsep) if entry]
        roots += [str(Path.home() / "nltk_data"), f"{prefix}/nltk_data", f"{prefix}/share/nltk_data",
                  f"{prefix}/lib/nltk_data", "/usr/share/nltk_data", "/usr/local/share/nltk_data",
                  "/usr/lib/nltk_data", "/usr/local/lib/nltk_data"]  # fmt: skip
    for root in roots:
        yield Path(root) / "corpora" / "wordnet"
        yield Path(root) / "corpora" / "wordnet.zip"


def _resolve(place: Path) -> Path | None:
    """Return the folder or archive at ``place`` that may have the noun files; None if there is none."""
    if place.is_file():
        return place
    for folder in (place, place / "dict", place / "corpora" / "wordnet"):
        if all((folder / name).is_file() for name in _NAMES):
            return folder
    for archive in (place / "wordnet.zip", place / "corpora" / "wordnet.zip"):
        if archive.is_file():
            return archive
    return None


# Largest size of a file in an archive, in bytes; data.noun of WordNet 3.0 has 16 MB.
_LARGEST_FILE = 1 << 27


def _read(place: Path) -> NounGraph:
    try:
        if place.is_file():
            with zipfile.ZipFile(place) as archive:
                member = {name: _member(archive, name) for name in _NAMES}
                for name in member.values():
                    if archive.getinfo(name).file_size > _LARGEST_FILE:
                        raise CogError(
                            f"{place}: {name} would have {archive.getinfo(name).file_size:,} bytes, expected those of "
                            f"WordNet, at most {_LARGEST_FILE:,}; download it again"
                        )
                data, index = (archive.read(member[name]) for name in _NAMES)
            files: tuple[Path, ...] = (place,)
        else:
            files = tuple(place / name for name in _NAMES)
            data, index = (path.read_bytes() for path in files)
    except KeyError:
        raise CogError(f"{place} holds no data.noun and index.noun; expected NLTK's wordnet.zip") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise CogError(f"{place} is not a readable zip archive ({error}); download it again") from error
    except OSError as error:
        raise CogError(f"cannot read WordNet from {place}: {error.strerror or error}") from error
    with without_garbage_collection():  # the parser makes a million small objects, none of them garbage
        return parse(data, index, source=str(place), files=files)


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return min((entry for entry in archive.namelist() if entry.split("/")[-1] == name), key=len, default="")


def parse(
    data: bytes, index: bytes, *, source: str, files: tuple[Path, ...] = (), complete: bool = True
) -> NounGraph:
    """Parse the contents of ``data.noun`` and ``index.noun``.

    Args:
        data: contents of ``data.noun``, one line per synset: offset, file number, ``n``, number of words
            (hexadecimal), words with their lexical ids, number of pointers, pointers (symbol, offset, part of speech,
            source/target), ``|``, gloss.
        index: contents of ``index.noun``: synset offsets of each word, most frequent sense first.
        source: name of the place, for errors and reports.
        files: paths of the files, for reports.
        complete: whether all synsets of WordNet 3.0 are required (False: any subset, for tests).

    Raises:
        CogError: the files are of another version, damaged, or do not fit together.
    """
    _check_version(data, source)
    try:
        text, index_text = data.decode("ascii"), index.decode("ascii")
    except UnicodeDecodeError as error:
        raise _damaged(source, f"byte {error.start} is not ASCII") from None
    offsets: list[int] = []
    lemmas: list[tuple[str, ...]] = []
    links: list[list[int]] = []
    glosses: list[str] = []
    position = 0
    for line in text.split("\n"):
        here, position = position, position + len(line) + 1
        if not line or line[0] == " ":  # the license
            continue
        head, bar, gloss = line.partition("|")
        fields = head.split()
        try:
            n_words = int(fields[3], 16)
            pointers_at = 5 + 2 * n_words
            end = pointers_at + 4 * int(fields[pointers_at - 1])
            # Ids are byte offsets, so a file that was edited or has other line ends does not fit ImageNet's ids.
            if not bar or len(fields) != end or n_words < 1 or fields[2] != "n" or int(fields[0]) != here:
                raise ValueError
            above: list[int] = []
            if "@" in head:
                pointers = list(
                    zip(fields[pointers_at:end:4], fields[pointers_at + 1 : end : 4], strict=True)
                )
                above = [int(offset) for symbol, offset in pointers if symbol == "@"]
                above += [int(offset) for symbol, offset in pointers if symbol == "@i"]
        except (ValueError, IndexError):
            raise _damaged(source, f"the synset at byte {here} of data.noun is malformed") from None
        offsets.append(here)
        lemmas.append(tuple(fields[4 : pointers_at - 1 : 2]))
        links.append(above)
        glosses.append(gloss)
    wnids = [f"n{offset:08d}" for offset in offsets]
    if complete and (len(wnids) != N_SYNSETS or (wnids[0], lemmas[0][0]) != _FIRST):
        raise _damaged(source, f"it has {len(wnids):,} noun synsets, expected {N_SYNSETS:,} from entity on")
    node_of = {offset: node for node, offset in enumerate(offsets)}
    try:
        parents = [tuple(node_of[offset] for offset in above) for above in links]
    except KeyError as error:
        raise _damaged(
            source, f"a hypernym link leads to {error.args[0]:08d}, where no synset begins"
        ) from None
    names = _names(offsets, lemmas, index_text, source)
    graph = NounGraph(
        wnids=wnids, parents=parents, names=names, lemmas=lemmas, glosses=glosses, source=source, files=files
    )
    _ = graph.max_depths  # raises now if a damaged file has a cycle
    return graph


def _names(offsets: list[int], lemmas: list[tuple[str, ...]], index: str, source: str) -> list[str]:
    """Return NLTK's names of synsets: first word in lower case, ``n``, sense number of that word from 1."""
    senses: dict[str, list[str]] = {}
    for line in index.split("\n"):
        if line and line[0] != " ":
            fields = line.split()
            try:
                senses[fields[0]] = fields[-int(fields[2]) :]
            except (ValueError, IndexError):
                raise _damaged(source, f"index.noun has a malformed line {line[:40]!r}") from None
    names = []
    for offset, words in zip(offsets, lemmas, strict=True):
        word = words[0].lower()
        try:
            sense = 1 + senses[word].index(f"{offset:08d}")
        except (KeyError, ValueError):
            raise _damaged(
                source, f"index.noun does not list {word!r} at {offset:08d}, as data.noun does"
            ) from None
        names.append(f"{word}.n.{sense:02d}")
    return names


def _check_version(data: bytes, source: str) -> None:
    match = re.search(rb"WordNet (\d+(?:\.\d+)*) Copyright", data[:4096])
    if match is None:
        raise _damaged(source, "data.noun does not start with WordNet's license")
    version = match.group(1).decode("ascii")
    if version != VERSION:
        raise CogError(
            f"{source} is WordNet {version}, expected WordNet {VERSION}: ImageNet ids are byte offsets "
            f"of {VERSION} "
            f"and mean other synsets in {version}; {_HELP}"
        )


def _damaged(source: str, why: str) -> CogError:
    return CogError(
        f"{source} is not the complete noun database of WordNet {VERSION}: {why}; install it again"
    )
