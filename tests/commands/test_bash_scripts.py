"""The bash drivers: variables, loops, stopping, skipping; and that they spell names as the package does."""

import contextlib
import os
import re
import shutil
import signal
import subprocess

import pytest
from waiting import wait_for

from cog import config, constants
from cog.commands import build_levels, extract_features, logreg, print_results
from cog.data import datasets

QUICK = ["CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2", "--device", "cpu"]


def defaults(repository, script):
    text = (repository / "bash-scripts" / script).read_text()
    return dict(re.findall(r'^(\w+)="\$\{\1:-([^}]*)\}"$', text, re.MULTILINE))


def test_names_are_those_of_the_package(repository):
    seeds, shots = " ".join(map(str, constants.SEEDS)), " ".join(map(str, constants.SHOTS))
    of = {path.name: defaults(repository, path.name) for path in repository.glob("bash-scripts/*.sh")}
    assert {of[script]["seeds"] for script in ("logreg.sh", "experiments.sh", "study.sh")} == {seeds}
    assert [of[script]["shots"] for script in ("fewshot.sh", "study.sh")] == [shots, f"0 {shots}"]
    for script in ("experiments.sh", "study.sh"):
        assert of[script]["dataset"].split() == list(constants.DATASETS)
    images = {name for name in of["study.sh"] if re.search("images_root|_file$", name)} - {"models_file"}
    assert images <= of["extract_features.sh"].keys() & datasets.flags().keys() and len(images) == 5


@pytest.mark.slow
def test_logreg_from_environment_and_command_line(bash, workshop, feature_folders, tmp_path):
    variables = {"models_root_dir": str(workshop.models), "model_name": "tiny_net", "dataset": "other"}
    done = bash("logreg.sh", "seeds=1,2", "dataset=birds", *QUICK, **variables)
    assert done.returncode == 0, done.stderr
    assert "Average over seeds 1,2, N = 0" in done.stdout
    assert re.search(r"top-1: \d+\.\d\d \+- \d+\.\d\d", done.stdout)
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    assert sorted(path.name for path in evaluation.iterdir()) == ["seed-1", "seed-2"]
    pairs = zip(constants.SPLITS, feature_folders, strict=True)
    folders = [f"{split}_features_dir={path}" for split, path in pairs]
    done = bash("fewshot.sh", *folders, f"output_dir={tmp_path}/eval/", "seeds=1", "shots=all 2", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Average over seeds") == 2
    for folder in ("eval", "eval_N2"):
        assert (tmp_path / folder / "seed-1/results.json").is_file()


def test_the_first_failure_stops_everything(bash, workshop):
    words = [f"models_root_dir={workshop.models}", "model_name=tiny_net", "dataset=none_such birds"]
    done = bash("logreg.sh", *words)
    assert done.returncode == 2 and "none_such" in done.stderr and "Traceback" not in done.stderr
    assert not (workshop.models / "tiny/net/birds/eval_logreg").exists()


def test_help_and_what_is_unknown(bash):
    shown = bash("extract_features.sh", "--help").stdout
    assert "bash bash-scripts/extract_features.sh" in shown and "\nVariables: model_name dataset" in shown
    for words, told in (
        (["logreg.sh", "memory=64G"], "error: unknown variable memory; expected one of: models_root_dir "),
        (["experiments.sh", "cooking"], "error: unknown experiment cooking; expected some of: logreg "),
        (["experiments.sh"], "error: name one experiment or several of: logreg "),
    ):
        done = bash(*words)
        assert done.returncode == 2 and done.stderr.startswith(told) and done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("dash") is None, reason="dash is not installed")
def test_another_shell_is_told(repository):
    scripts = [*repository.glob("bash-scripts/**/*.sh"), *repository.glob("prepare_models/*.sh")]
    for script in [script for script in scripts if script.name not in ("common.sh", "setup.sh")]:
        done = subprocess.run(["dash", str(script)], capture_output=True, text=True, check=False)
        expected = f"error: run it with bash: bash {script}\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected), script


@pytest.mark.parametrize(("name", "passed_on"), [("USR1", "USR1"), ("HUP", "TERM")])
@pytest.mark.slow
def test_signals_to_the_driver_reach_the_work(repository, python, workshop, name, passed_on):
    """A scheduler signals the batch shell alone: it passes that on, and waits."""
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    words = ["bash", str(repository / "bash-scripts/logreg.sh"), f"models_root_dir={workshop.models}"]
    words += ["model_name=tiny_net", "dataset=birds", "seeds=1 2", *QUICK, "CLF.N_EPOCHS", "20000"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    driver = subprocess.Popen(words, env={**os.environ, "COG_PYTHON": python, "OMP_NUM_THREADS": "1"}, **how)
    wait_for(lambda: list(evaluation.glob(".seed-*.work/program.log")))
    os.kill(driver.pid, getattr(signal, f"SIG{name}"))
    output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 75 and f"ended by SIG{passed_on}: " in errors and "Average" not in output
    assert list(evaluation.glob(".seed-*.work/training.pt"))


# A program in place of Python, which notes what it is to run.
NOTES = """#!/bin/sh
IFS="\t"
echo "$PYTHONPATH\t$COG_WORDNET_DIR\t$*" >> "$0.notes"
"""


@pytest.fixture
def notes(tmp_path):
    """Return a function that returns and removes the words that ``tmp_path / "python"`` has noted."""
    programs = {"python": NOTES, "nproc": "#!/bin/sh\necho 6\n", "nvidia-smi": "#!/bin/sh\nexit 9\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def read() -> list[list[str]]:
        text = (tmp_path / "python.notes").read_text()
        (tmp_path / "python.notes").unlink()
        return [line.split("\t") for line in text.splitlines()]

    return read


def test_extraction_is_that_of_all_data_sets_and_splits(bash, notes, tmp_path):
    given = {"COG_PYTHON": str(tmp_path / "python"), "model_name": "a_b"}
    assert bash("extract_features.sh", "FT_EXTRACT.N_WORKERS", "2", **given).returncode == 0
    ((_, _, script, *words),) = notes()
    args = extract_features.parse_args(words)
    assert script.endswith("extract_features.py") and args.opts == ["FT_EXTRACT.N_WORKERS", "2"]
    assert (args.model, args.dataset) == (["a_b"], [*constants.DATASETS])
    assert sorted(args.split) == ["test", "train"]


def test_variables_are_set_in_a_driver_too(bash, repository, tmp_path):
    scripts = shutil.copytree(repository / "bash-scripts", tmp_path / "bash-scripts")
    for path in scripts.glob("[efl]*.sh"):
        path.write_text(re.sub("(?m)^(models_root_dir|seeds)=.*", rf"\1={path.stem}", path.read_text()))
    (tmp_path / "python").write_text('#!/bin/sh\necho "$models_root_dir $*"\n')
    (tmp_path / "python").chmod(0o755)
    for name, told in (("extract_features.sh", "extract_features "), ("fewshot.sh", "--seeds fewshot ")):
        assert told in bash(scripts / name, "dataset=in1k", COG_PYTHON=str(tmp_path / "python")).stdout


def test_experiments_are_those_of_the_paper(bash, notes, tmp_path):
    names = ["logreg", "fewshot", "mlp", "mlp_noact", "balanced", "label_free", "confident", "figures"]
    words = [*names, "models_root_dir=m", "model_name=my_net", "dataset=in1k,cog_l1", "shots=1 2"]
    done = bash("experiments.sh", *words, "max_per_class=2", COG_PYTHON=f"{tmp_path}/python", n_shot="9")
    assert done.stdout.splitlines() == [f"{name} of my_net" for name in names], done.stderr
    lines = notes()
    trained = [logreg.parse_args(words[3:]) for words in lines if words[2].endswith("logreg.py")]
    evaluations = [config.evaluation_name(config.get_cfg(opts=args.opts)) for args in trained]
    assert evaluations == ["logreg", "logreg", "mlp", "mlp_noact", "logreg_max2"]
    assert [args.n_shot for args in trained] == [[0], [1, 2], [0], [0], [0]]
    shown = [print_results.parse(words[3:]) for words in lines if words[2].endswith("print_results.py")]
    assert [args.analysis for args in shown] == [None] * 5 + [["all"], ["confident"], None]
    analyzed = [words[words.index("--analysis") :] for words in lines if "analyze_features.py" in words[2]]
    assert analyzed[0] == ["--analysis", "all"]
    assert analyzed[1] == ["--analysis", "confident", "--trained_on", "in1k", "--dataset", "cog_l1"]


def test_other_levels_are_built_once_and_compared(bash, notes, tmp_path):
    (tmp_path / "levels/wup").mkdir(parents=True)
    (tmp_path / "levels/wup/report.json").write_text("{}")
    words = ["levels=l.pkl", "image_counts=c.csv", f"output_dir={tmp_path}", "measures=wup jcn", "draws=1"]
    words += ["embeddings=vectors.txt", "models_root_dir=m", "seeds=1 2", "CLF.N_EPOCHS", "2"]
    assert bash("other_levels.sh", *words, COG_PYTHON=str(tmp_path / "python")).returncode == 0
    *built, compared, trained = (words[2:] for words in notes())
    parsed = [build_levels.parse_args(words[1:]) for words in built]
    assert [args.similarity for args in parsed] == ["jcn", "vectors.txt", "random"]
    assert [args.rerank for args in parsed] == ["l.pkl"] * 3 and parsed[2].n_levels == 1
    kinds = [f"{tmp_path}/levels/{kind}" for kind in ("wup", "jcn", "embedding", "random1")]
    assert compared[1:] == ["--compare", "l.pkl", *kinds]
    assert trained[:4] == ["-P", "-m", "cog", "other_levels"] and trained[-2:] == ["CLF.N_EPOCHS", "2"]


def test_the_quickstart_uses_the_device_and_all_processors_and_paths_from_here(bash, notes, tmp_path):
    given = {"COG_PYTHON": "./python", "PATH": f"{tmp_path}:{os.environ['PATH']}", "dataset": "birds"}
    for n_processes in ("6", "4"):
        with contextlib.chdir(tmp_path):
            done = bash("quickstart.sh", "output_dir=out", COG_WORDNET_DIR="w", CDPATH=str(tmp_path), **given)
        assert done.returncode == 0, done.stderr
        lines = notes()
        made = [f"{tmp_path}/w", "-m", "cog", "miniature", "make", "--output_dir", f"{tmp_path}/out"]
        assert made in [words[1:8] for words in lines]
        studies = [words for words in lines if words[2:5] == ["-m", "cog", "study"]]
        assert [words[words.index("--n_processes") + 1] for words in studies] == [n_processes]
        assert not any({"--device", "birds"} & {*words} for words in studies)
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")


def test_a_folder_named_as_the_package_is_not_taken_for_it(bash, tmp_path):
    (tmp_path / "cog").mkdir()
    (tmp_path / "cog/__init__.py").write_text("raise SystemExit('the wrong one')")
    with contextlib.chdir(tmp_path):
        for script, word in (("study.sh", "models_root_dir=m"), ("../prepare_models/prepare.sh", "m")):
            done = bash(script, word, "--no_such_flag")
            assert done.returncode == 2 and "--no_such_flag" in done.stderr, done.stderr


def test_folders_of_pythonpath_are_kept_also_through_links(bash, notes, repository, tmp_path):
    (tmp_path / "folder").symlink_to(repository / "bash-scripts")
    (tmp_path / "chain").symlink_to(tmp_path / "folder/logreg.sh")
    given = {"COG_PYTHON": str(tmp_path / "python"), "PYTHONPATH": "/theirs:/others"}
    for script in ("extract_features.sh", "study.sh", tmp_path / "folder/logreg.sh", tmp_path / "chain"):
        assert bash(script, "models_root_dir=m", **given).returncode == 0
        assert all(words[0] == f"{repository}:/theirs:/others" for words in notes())
