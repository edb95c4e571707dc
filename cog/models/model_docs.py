"""Generation of the scripts in ``prepare_models/``, and of tables in pages, from the declarations.

``python -m cog.models docs --write`` writes both; a test compares the files with the output of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cog.data import datasets
from cog.models import table
from cog.models.spec import ModelSpec
from cog.models.zoo import MODELS

README_COLUMNS = tuple(name for name in table.COLUMNS if name not in ("license", "publication", "notes"))

_SCRIPT = """\
#!/usr/bin/env bash
# Fetches the {content}.
#   bash prepare_models/{name} <models_root_dir> [--dry_run]
# Written from the declarations in cog/models/zoo.py by `python -m cog.models docs --write`.
[ -n "${{BASH_VERSION:-}}" ] || {{ echo "error: run it with bash: bash $0" >&2; exit 2; }}
source "$(dirname "$(readlink -f "${{BASH_SOURCE[0]}}")")/../bash-scripts/common.sh"
export PYTHONPATH="${{repository}}${{PYTHONPATH:+:${{PYTHONPATH}}}}"
exec "${{python}}" -m cog.models download {choice} -- "$@"
"""


def families() -> dict[str, list[ModelSpec]]:
    """Return the models by their script, in the order of the first model of each script."""
    grouped: dict[str, list[ModelSpec]] = {}
    for spec in MODELS.values():
        grouped.setdefault(spec.release.script, []).append(spec)
    return grouped


def _sources() -> str:
    lines = ["| model | publication | license | links, best first (SHA-256) |", "|---|---|---|---|"]
    for spec in MODELS.values():
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


def _profiles() -> str:
    lines = ["| model | setting | difference |", "|---|---|---|"]
    for spec in MODELS.values():
        for key, changes in (("PROFILE", spec.profiles), ("VARIANT", spec.variants)):
            for name, change in changes.items():
                lines.append(f"| {spec.name} | `FT_EXTRACT.{key} {name}` | {change.note} |")
    return "\n".join(lines)


#: Markers around a table in a page.
_BEGIN, _END = "<!-- generated: python -m cog.models docs --write -->\n", "\n<!-- end -->"


def pages() -> dict[str, tuple[str, ...]]:
    """Return the generated tables of each page, in their order there, by the page's path in the repository."""
    specs = list(MODELS.values())
    notes = "\n".join(f"- `{spec.name}`: {spec.note}" for spec in specs if spec.note)
    models = table.markdown(specs, columns=README_COLUMNS, links=".")
    return {
        "docs/models.md": (table.markdown(specs, columns=README_COLUMNS, links="../prepare_models"),),
        "docs/data.md": (datasets.markdown(),),
        "prepare_models/README.md": (models, _sources(), _profiles(), notes),
    }


def with_tables(text: str, tables: Sequence[str]) -> str:
    """Return the text of a page with its tables replaced."""
    first, *rest = text.split(_BEGIN)
    return first + "".join(
        f"{_BEGIN}{made}{_END}{part.partition(_END)[2]}" for made, part in zip(tables, rest, strict=True)
    )


def generated() -> dict[str, str]:
    """Return file name -> text of the scripts in ``prepare_models/``."""
    scripts = {
        "all.sh": ("checkpoints of all models, and ends with a table: ready, manual or failed", "--all")
    }
    for name, members in families().items():
        noun = "checkpoint" if len(members) == 1 else "checkpoints"
        scripts[name] = (f"{noun} of {', '.join(spec.name for spec in members)}", f"--script {name}")
    return {
        name: _SCRIPT.format(name=name, content=content, choice=choice)
        for name, (content, choice) in scripts.items()
    }


def changed(repository: Path) -> dict[Path, str]:
    """Return path -> text of every file that differs from the declarations."""
    texts = {repository / "prepare_models" / name: text for name, text in generated().items()}
    for page, tables in pages().items():
        texts[repository / page] = with_tables((repository / page).read_text(encoding="utf-8"), tables)
    return {
        path: text
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
