"""What stays unimported: tables, lists of jobs and help come in a blink, and on machines without a GPU."""

import os
import subprocess
import sys

from result_folders import make_record, make_seed_folder

from cog.commands import COMMANDS, module_of

FRAMEWORKS = "torch torchvision tensorflow jax timm open_clip transformers safetensors"
HEAVY = f"{FRAMEWORKS} matplotlib PIL scipy sklearn nltk optuna tqdm"

#: Statements, and libraries that neither they nor those before them import; {root} has a run.
STATEMENTS = [
    (f"numpy {HEAVY}", "import cog.commands.build_levels, cog.models.choice, cog.commands.models"),
    *((HEAVY, f"shows_help('{module_of(name)}')") for name in COMMANDS),
    (HEAVY, "import cog.levels.wordnet, cog.levels.build; from cog.results import published"),
    (HEAVY, "from cog.commands import print_results; published.rows()"),
    (HEAVY, "print_results.main(['--models_root_dir', '{root}', '--published', '--show', 'rank'])"),
    (HEAVY, "import cog.reporting.report, cog.commands.status, cog.commands.study"),
]

PROGRAM = """
import importlib, sys

def shows_help(module):
    try:
        importlib.import_module(module).main(["--help"])
    except SystemExit as end:
        assert end.code == 0, module

for forbidden, statement in eval(sys.stdin.read()):
    exec(statement)
    found = set(forbidden.split()) & set(sys.modules)
    if found:
        sys.exit(f"{statement}: {', '.join(sorted(found))}")
"""


def test_nothing_heavy_is_imported_before_it_is_needed(python, repository, tmp_path):
    make_record(make_seed_folder(tmp_path / "net/big/in1k/eval_logreg/seed_22"), seed=22)
    text, path = repr(STATEMENTS).replace("{root}", str(tmp_path)), os.pathsep.join(sys.path)
    how = {"cwd": repository, "env": {**os.environ, "PYTHONPATH": path}, "capture_output": True, "text": True}
    done = subprocess.run([python, "-c", PROGRAM], input=text, check=False, **how)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, []), done.stderr
    assert done.stdout.count("usage: ") == len(COMMANDS)
