"""Generation of the scripts in ``prepare_models/``, and of tables in pages, from the declarations.

``python -m cog.models docs --write`` writes both; a test compares the files with the output of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cog.data import datasets
from cog.models import table
from cog.models.spec import ModelSpec

README_COLUMNS = tuple(name for name in table.COLUMNS if name not in ("license", "publication", "notes"))

_SCRIPT = """\
#!/usr/bin/env bash
# Fetches {content}.
#   bash prepare_models/{name} <models_root_dir> [--dry_run]
# Written from the declarations in cog/models/zoo.py by `python -m cog.models docs --write`.
[ -n "${{BASH_VERSION:-}}" ] || {{ echo "error: run it with bash: bash $0" >&2; exit 2; }}
source "$(dirname "$(readlink -f "${{BASH_SOURCE[0]}}")")/../bash-scripts/common.sh"
export PYTHONPATH="${{repository}}${{PYTHONPATH:+:${{PYTHONPATH}}}}"
exec "${{python}}" -m cog.models download {choice} -- "$@"
"""


def families(specs: Sequence[ModelSpec]) -> dict[str, list[ModelSpec]]:
    """Return the models by their script, in the order of the first model of each script."""
    grouped: dict[str, list[ModelSpec]] = {}
    for spec in specs:
        grouped.setdefault(spec.release.script, []).append(spec)
    return grouped


def script(name: str, specs: Sequence[ModelSpec]) -> str:
    """Return the text of one script."""
    noun = "the checkpoint of " if len(specs) == 1 else "the checkpoints of "
    return _SCRIPT.format(
        content=noun + ", ".join(spec.name for spec in specs), name=name, choice=f"--script {name}"
    )


def script_for_all() -> str:
    """Return the text of ``all.sh``."""
    return _SCRIPT.format(
        content="the checkpoints of all models, and ends with a table: ready, manual or failed",
        name="all.sh",
        choice="--all",
    )


def _sources(specs: Sequence[ModelSpec]) -> str:
    lines = ["| model | publication | license | links, best first (SHA-256) |", "|---|---|---|---|"]
    for spec in specs:
        links = []
        for source in spec.release.sources:
            host = source.url.split("/")[2]
            remarks = [
                f"`{source.sha256[:8]}`" if source.sha256 else "",
                "with a browser" if source.manual else "",
                source.note,
            ]
            shown = ", ".join(remark for remark in remarks if remark)
            links.append(f"[{host}](<{source.url}{source.parts[-1]}>){f' ({shown})' if shown else ''}")
        lines.append(
            f"| {spec.name} | {spec.paper.title} | {spec.release.license or 'unknown'} | {'; '.join(links)} |"
        )
    return "\n".join(lines)


def _profiles(specs: Sequence[ModelSpec]) -> str:
    lines = ["| model | setting | difference |", "|---|---|---|"]
    for spec in specs:
        for key, changes in (("PROFILE", spec.profiles), ("VARIANT", spec.variants)):
            for name, change in changes.items():
                lines.append(f"| {spec.name} | `FT_EXTRACT.{key} {name}` | {change.note} |")
    return "\n".join(lines)


#: Markers around a table in a page.
_BEGIN, _END = "<!-- generated: python -m cog.models docs --write -->\n", "\n<!-- end -->"


def pages(specs: Sequence[ModelSpec]) -> dict[str, tuple[str, ...]]:
    """Return the generated tables of each page, in their order there, by the page's path in the repository."""
    notes = "\n".join(f"- `{spec.name}`: {spec.note}" for spec in specs if spec.note)
    models = table.markdown(specs, columns=README_COLUMNS, links=".")
    return {
        "docs/models.md": (table.markdown(specs, columns=README_COLUMNS, links="../prepare_models"),),
        "docs/data.md": (datasets.markdown(),),
        "prepare_models/README.md": (models, _sources(specs), _profiles(specs), notes),
    }


def with_tables(text: str, tables: Sequence[str]) -> str:
    """Return the text of a page with its tables replaced."""
    first, *rest = text.split(_BEGIN)
    return first + "".join(
        f"{_BEGIN}{made}{_END}{part.partition(_END)[2]}" for made, part in zip(tables, rest, strict=True)
    )


def generated(specs: Sequence[ModelSpec]) -> dict[str, str]:
    """Return file name -> text of the scripts in ``prepare_models/``."""
    texts = {name: script(name, members) for name, members in families(specs).items()}
    return {"all.sh": script_for_all(), **texts}


def changed(specs: Sequence[ModelSpec], repository: Path) -> dict[Path, str]:
    """Return path -> text of every file that differs from the declarations."""
    texts = {repository / "prepare_models" / name: text for name, text in generated(specs).items()}
    for page, tables in pages(specs).items():
        texts[repository / page] = with_tables((repository / page).read_text(encoding="utf-8"), tables)
    return {
        path: text
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }


def write(specs: Sequence[ModelSpec], repository: Path) -> list[Path]:
    """Write all generated files that differ from the declarations, and return their paths."""
    from cog.runtime import files

    written = changed(specs, repository)
    for path, text in written.items():
        files.write_text(path, text)
        if path.suffix == ".sh":
            path.chmod(0o755)
    return list(written)
