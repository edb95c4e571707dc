"""The bash drivers: variables, loops, stopping, skipping; and that they spell names as the package does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess

import pytest
import tiny
from waiting import wait_for

from cog import constants
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
    for script in ("extract_features.sh", "experiments.sh", "study.sh"):
        assert of[script]["dataset"].split() == list(constants.DATASETS)
    assert sorted(of["extract_features.sh"]["splits"].split()) == sorted(constants.SPLITS)
    assert set(datasets.flags()) <= of["extract_features.sh"].keys() & of["study.sh"].keys()


@pytest.mark.slow
def test_extraction_of_all_splits_then_skipped(bash, workshop):
    words = ["extract_features.sh", "model_name=tiny_net", f"model_loader={workshop.loader}:load_my_model"]
    words += [f"models_root_dir={workshop.models}", f"in1k_images_root={workshop.in1k}", "dataset=in1k"]
    words += ["FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16"]
    assert bash(*words).returncode == 0
    again = bash(*words)
    assert again.returncode == 0 and again.stderr.count("is complete, skipped") == 2


@pytest.mark.slow
def test_logreg_from_environment_and_command_line(bash, workshop, feature_folders, tmp_path):
    """The environment loses to the command line; runs end with averages."""
    variables = {"models_root_dir": str(workshop.models), "model_name": "tiny_net", "dataset": "other"}
    done = bash("logreg.sh", "seeds=1,2", "dataset=birds", *QUICK, **variables)
    assert done.returncode == 0, done.stderr
    assert "Average over seeds 1,2, N = 0" in done.stdout
    assert re.search(r"top-1: \d+\.\d\d \+- \d+\.\d\d", done.stdout)
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    assert sorted(path.name for path in evaluation.iterdir()) == ["seed-1", "seed-2"]
    pairs = zip(constants.SPLITS, feature_folders, strict=True)
    folders = [f"{split}_features_dir={path}" for split, path in pairs]
    done = bash("fewshot.sh", *folders, f"output_dir={tmp_path / 'eval'}", "seeds=1", "shots=0 2", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Average over seeds") == 2
    for folder in ("eval", "eval_N2"):
        assert (tmp_path / folder / "seed-1/results.json").is_file()


def test_the_first_failure_stops_everything(bash, workshop):
    words = [f"models_root_dir={workshop.models}", "model_name=tiny_net", "dataset=none_such birds"]
    done = bash("logreg.sh", *words)
    assert done.returncode == 2 and "none_such" in done.stderr and "Traceback" not in done.stderr
    assert not (workshop.models / "tiny/net/birds/eval_logreg").exists()


def test_help_and_unknown_variables(bash):
    shown = bash("extract_features.sh", "--help").stdout
    assert (
        "bash bash-scripts/extract_features.sh" in shown and "Variables: model_name dataset splits" in shown
    )
    done = bash("logreg.sh", "memory=64G")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and " model_name " in done.stderr
    assert done.stderr.startswith("error: unknown variable memory; expected one of:")


@pytest.mark.skipif(
    "BASH_VERSION" in subprocess.run(["sh", "-c", "set"], capture_output=True, text=True, check=True).stdout,
    reason="sh is bash here: shows that any other sh answers in one line",
)
def test_another_shell_is_told(repository):
    scripts = [*repository.glob("bash-scripts/**/*.sh"), *repository.glob("prepare_models/*.sh")]
    for script in [script for script in scripts if script.name not in ("common.sh", "setup.sh")]:
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
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


@pytest.mark.slow
def test_experiments_write_their_folders_and_are_skipped_then(bash, tmp_path):
    for seed, dataset in enumerate(("in1k", "cog_l1")):
        for part in constants.SPLITS:
            folder = tmp_path / "my/net" / dataset / f"features_{part}"
            tiny.write_features(folder, *tiny.make_xy(seed=seed))
    names = ["logreg", "fewshot", "mlp", "mlp_noact", "balanced", "label_free", "confident"]
    words = [*names, f"models_root_dir={tmp_path}", "model_name=my_net", "dataset=in1k,cog_l1", "seeds=22 37"]
    words += ["shots=1", "max_per_class=2", *QUICK, "CLF.MLP_HIDDEN", "8", "ANALYSIS.KMEANS_SEEDS", "[22]"]
    done = bash("experiments.sh", *words)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.endswith(" of my_net")]
    assert told == [f"{name} of my_net" for name in names]
    folders = {path.name for path in (tmp_path / "my/net/cog_l1").iterdir()}
    evaluations = {f"eval_{name}" for name in ("logreg", "logreg_N1", "mlp", "mlp_noact", "logreg_max2")}
    assert folders >= evaluations | {f"analysis_{name}" for name in ("kmeans", "alignment", "knn", "ncm")}
    assert any(name.startswith("analysis_confident") for name in folders)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}
    assert bash("experiments.sh", *words).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")} == made


def test_unknown_and_missing_experiments_are_told(bash):
    for words, told in ((["cooking"], "unknown experiment cooking"), ([], "name one experiment or several")):
        done = bash("experiments.sh", *words)
        assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_other_levels_are_built_once_and_compared(bash, wordnet, tmp_path):
    """With real synsets; training on them is tests/features/test_regroup.py."""
    dog, n = wordnet.node["n02084071"], len(wordnet.wnids)
    parents = {parent for node in range(n) for parent in wordnet.parents[node]}
    dogs = [node for node in range(n) if dog in wordnet.above(node) and node not in parents]
    seen, *wnids = [wordnet.wnids[node] for node in dogs[:13]]
    tiny.write_levels_file(tmp_path / "levels.pkl", [wnids[:6], wnids[6:]])
    rows = "".join(f"{wnid},12\n" for wnid in ["n02084071", seen, *wnids])
    (tmp_path / "counts.csv").write_text(f"wnid,count\n{rows}")
    (tmp_path / "seen.txt").write_text(seen)
    words = [f"levels={tmp_path}/levels.pkl", f"image_counts={tmp_path}/counts.csv"]
    words += ["draws=2", "measures=wup"]
    words += [f"seen_wnids={tmp_path}/seen.txt", f"output_dir={tmp_path}/out"]
    for said in ("wrote", "shared with"):  # the second time only compares
        done = bash("other_levels.sh", *words)
        assert done.returncode == 0 and said in done.stdout and "shared with" in done.stdout, done.stderr
    assert "wrote" not in done.stdout
    built = {path.name for path in (tmp_path / "out/levels").iterdir()}
    assert built == {"wup", "random1", "random2"} and not (tmp_path / "out/models").exists()


# A program in place of Python, which notes what it is to run.
NOTES = '#!/bin/sh\necho "PYTHONPATH=$PYTHONPATH WORDNET=$COG_WORDNET_DIR $@" >> "$0.notes"\n'


@pytest.fixture
def notes(tmp_path):
    """Return a function that returns and removes what the program ``tmp_path / "python"`` has noted."""
    programs = {"python": NOTES, "nproc": "#!/bin/sh\necho 6\n", "nvidia-smi": "#!/bin/sh\nexit 9\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def read():
        text = (tmp_path / "python.notes").read_text()
        (tmp_path / "python.notes").unlink()
        return text.splitlines()

    return read


def test_the_quickstart_uses_the_device_and_all_processors_and_paths_from_here(bash, notes, tmp_path):
    given = {"COG_PYTHON": "./python", "PATH": f"{tmp_path}:{os.environ['PATH']}", "dataset": "birds"}
    for n_processes in (6, 4):
        with contextlib.chdir(tmp_path):
            done = bash("quickstart.sh", "output_dir=out", COG_WORDNET_DIR="w", CDPATH=str(tmp_path), **given)
        assert done.returncode == 0, done.stderr
        lines = notes()
        made = f"WORDNET={tmp_path}/w -m cog.miniature make --output_dir {tmp_path}/out"
        assert any(made in line for line in lines)
        studies = [line for line in lines if " cog study " in line]
        assert len(studies) == 1 and f"--n_processes {n_processes} " in studies[0]
        assert not any("--device" in line or "birds" in line for line in studies)
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")


def test_folders_of_pythonpath_are_kept_also_through_links(bash, notes, repository, tmp_path):
    (tmp_path / "folder").symlink_to(repository / "bash-scripts")
    (tmp_path / "chain").symlink_to(tmp_path / "folder/logreg.sh")
    given = {"COG_PYTHON": str(tmp_path / "python"), "PYTHONPATH": "/theirs:/others"}
    for script in ("extract_features.sh", "study.sh", tmp_path / "folder/logreg.sh", tmp_path / "chain"):
        assert bash(script, "models_root_dir=m", **given).returncode == 0
        assert all(line.startswith(f"PYTHONPATH={repository}:/theirs:/others ") for line in notes())
