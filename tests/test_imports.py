"""What stays unimported: tables, lists of jobs and help come in a blink, and on machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

from result_folders import make_record, make_seed_folder

from cog.commands import COMMANDS, module_of

FRAMEWORKS = "torch torchvision tensorflow jax haiku dill timm clip open_clip safetensors pycls"
DRAWING = "matplotlib PIL"
COMPUTING = "scipy sklearn nltk optuna"

#: Statements, and libraries that neither they nor those before them may import, since all run in one process; {root} is
#: a models root with a run.
STATEMENTS = (
    (f"numpy {FRAMEWORKS} {DRAWING} {COMPUTING} tqdm", (
        "import cog.commands.build_levels",
        "import cog.models.choice, cog.models.paper_models, cog.models.fetch, cog.commands.models",
        "from cog.models.paper_models import pretraining; pretraining('timm_a.in1k')",
    )),
    (f"{FRAMEWORKS} {DRAWING} {COMPUTING} tqdm", (
        "import cog.runtime.safe_load",
        *(f"shows_help('{module_of(name)}')" for name in COMMANDS),
        "import cog.levels.wordnet, cog.data.level_files, cog.levels.selection, cog.levels.build",
        "from cog.results import published; published.rows()",
        "from cog.commands import print_results",
        "print_results.main(['--models_root_dir', '{root}', 'CLF.N_SHOT', '0'])",
        "print_results.main(['--models_root_dir', '{root}', '--published', '--show', 'rank'])",
        "import cog.reporting.report, cog.commands.status, cog.commands.study",
    )),
    (FRAMEWORKS, ("import cog.results.analysis_records",)),
)  # fmt: skip

PROGRAM = """
import importlib, sys

def shows_help(module):
    try:
        importlib.import_module(module).main(["--help"])
    except SystemExit as end:
        assert end.code == 0, module

for forbidden, statements in eval(sys.stdin.read()):
    for statement in statements:
        exec(statement)
        found = set(forbidden.split()) & set(sys.modules)
        if found:
            sys.exit(f"{statement}: {', '.join(sorted(found))}")
"""


def test_nothing_heavy_is_imported_before_it_is_needed(python, repository, tmp_path):
    make_record(make_seed_folder(tmp_path / "net/big/in1k/eval_logreg/seed_22"), seed=22)
    done = subprocess.run(
        [python, "-c", PROGRAM], input=repr(STATEMENTS).replace("{root}", str(tmp_path)), cwd=repository,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, []), done.stderr
    assert done.stdout.count("usage: ") == len(COMMANDS)
