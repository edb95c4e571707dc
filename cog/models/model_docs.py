"""``prepare_models/`` and the tables of ``docs/models.md`` and ``docs/data.md``, written from the declarations.

``python -m cog.models docs --write`` rewrites them; a test compares them with the output of this module.
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
    """Group models by their script, in the order of the first of each."""
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


_README = """\
# Checkpoints

Each model of the benchmark is the file that its authors released. A script fetches it and puts it, unchanged,
where the other scripts look for it:

    <models_root_dir>/<model_title>/<architecture_name>/model.ckpt

```bash
bash prepare_models/prepare_sup.sh <models_root_dir>             # one family
bash prepare_models/all.sh <models_root_dir>                     # all models, several GB; ends with a table
bash prepare_models/all.sh <models_root_dir> --dry_run           # only say what would be done
python -m cog.models check --models_root_dir <models_root_dir>   # hashes, parameter names and shapes
python -m cog.models check --models_root_dir <models_root_dir> --deep                # ... and one forward pass
python -m cog.models top1 --model sup_resnet50 --models_root_dir <models_root_dir> --in1k_images_root <dir>
python -m cog.models list --format csv                           # the tables below and more
```

Downloads resume after cut connections, try mirrors in order, check the SHA-256 where one is known, and appear
as `model.ckpt` only when they are complete; what is there is kept. Proxies are taken from `https_proxy` and
`no_proxy`. Some links need a browser: the script prints the steps and the command that checks the result.

Nothing else is needed: no cloned repositories, no TensorFlow, JAX or conversion. Files are read by readers
that cannot run code. `python -m cog.models top1` measures the ImageNet-1K accuracy of the released classifier
and compares it with the published one, for the models that have one: a wrong file, layer order or
normalization shows at once.

## Models

The model name is what `--model` takes: `<model_title>_<architecture_name>`. "comparable": the paper compares
the model with ResNet-50. "dim" is the width of the features, "params" counts the backbone without classifier,
"input" is the image size in pixels; "settings" names the profiles and variants (below) that differ.

{table}

## Where they come from

The license is the one stated for the weights or, failing that, the one of the repository that releases them;
"unknown" where neither states one.

{sources}

## Profiles and variants

Where the paper, the weights and the original toolkit's code disagree, `FT_EXTRACT.PROFILE` chooses: `authors`
(the default) is what the weights were trained for and what the paper's text says; `reference-code` is what
that code effectively computes. `FT_EXTRACT.VARIANT` chooses another output or input of the same network. Both
are recorded in `features.json`.

{profiles}

## Notes

{notes}

## Files that are accepted

The authors' own file, in the container they used: files of `torch.save` (torch 0.4 or
later), a TorchScript archive (CLIP), a TensorFlow checkpoint (SimCLR-v2: `model.ckpt.index` and
`model.ckpt.data-00000-of-00001`; give `model.ckpt`), a pickle of Haiku parameters (BYOL). Also:
`.safetensors`, plain state dicts with torchvision's names, the ResNet, VGG, Inception, DeiT and CLIP weights
that timm re-released, the PyTorch conversion `{{"resnet", "head"}}` of SimCLR-v2, and byol-convert's state
dict. The name and the ending of a file mean nothing; its content does. Every parameter of the backbone must
be in the file with its shape, and nothing may be left over.
"""


def readme(specs: Sequence[ModelSpec]) -> str:
    """Return the text of ``prepare_models/README.md``."""
    return _README.format(
        table=table.markdown(specs, columns=README_COLUMNS, links="."),
        sources=_sources(specs),
        profiles=_profiles(specs),
        notes="\n".join(f"- `{spec.name}`: {spec.note}" for spec in specs if spec.note),
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


#: Around the table of a page.
_BEGIN, _END = "<!-- generated: python -m cog.models docs --write -->\n", "\n<!-- end -->"


def pages(specs: Sequence[ModelSpec]) -> dict[str, str]:
    """Return the table of each page with a generated one, by the page's path in the repository."""
    return {
        "docs/models.md": table.markdown(specs, columns=README_COLUMNS, links="../prepare_models"),
        "docs/data.md": datasets.markdown(),
    }


def with_table(text: str, made: str) -> str:
    """Return the text of a page with its table replaced."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{made}{_END}{after}"


def generated(specs: Sequence[ModelSpec]) -> dict[str, str]:
    """Return file name -> text of everything in ``prepare_models/``."""
    texts = {name: script(name, members) for name, members in families(specs).items()}
    return {"README.md": readme(specs), "all.sh": script_for_all(), **texts}


def changed(specs: Sequence[ModelSpec], repository: Path) -> dict[Path, str]:
    """Return path -> text of every file that differs from the declarations."""
    texts = {repository / "prepare_models" / name: text for name, text in generated(specs).items()}
    for page, made in pages(specs).items():
        texts[repository / page] = with_table((repository / page).read_text(encoding="utf-8"), made)
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
