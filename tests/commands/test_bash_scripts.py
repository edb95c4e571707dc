"""The bash drivers: variables, loops, stopping, skipping; and that they spell names as the package does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest
import tiny
from marks import first_quick

from cog import constants
from cog.data import datasets

QUICK = ["CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2", "--device", "cpu"]


def defaults(repository, script):
    text = (repository / "bash-scripts" / script).read_text()
    return dict(re.findall(r'^(\w+)="\$\{\1:-([^}]*)\}"$', text, re.MULTILINE))


def test_names_are_those_of_the_package(repository):
    seeds, shots = " ".join(map(str, constants.SEEDS)), " ".join(map(str, constants.SHOTS))
    for script in ("logreg.sh", "fewshot.sh", "experiments.sh", "study.sh"):
        assert defaults(repository, script)["seeds"] == seeds
    assert defaults(repository, "fewshot.sh")["shots"] == shots
    for script in ("extract_features.sh", "experiments.sh", "study.sh"):
        assert defaults(repository, script)["dataset"].split() == list(constants.DATASETS)
    assert sorted(defaults(repository, "extract_features.sh")["splits"].split()) == sorted(constants.SPLITS)
    assert defaults(repository, "study.sh")["shots"] == f"0 {shots}"
    assert set(datasets.flags()) <= defaults(repository, "extract_features.sh").keys()
    for script in repository.glob("bash-scripts/**/*.sh"):
        assert not {"datasets", "model_names", "models", "n_shots"} & defaults(repository, script).keys(), (
            script
        )


@pytest.fixture
def extract(bash, workshop):
    """Return a function that runs extract_features.sh for the workshop's network."""
    network = ["model_name=tiny_net", f"model_loader={workshop.loader}:load_my_model"]
    sizes = ["FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16"]

    def run(*words):
        return bash("extract_features.sh", *network, *sizes, *words)

    return run


@pytest.mark.slow
def test_extraction_of_all_splits_then_skipped(extract, workshop):
    words = [f"models_root_dir={workshop.models}", f"in1k_images_root={workshop.in1k}", "dataset=in1k"]
    done = extract(*words)
    assert done.returncode == 0, done.stderr
    written = [workshop.models / f"tiny/net/in1k/features_{split}/X_Y.pth" for split in constants.SPLITS]
    before = [path.stat().st_mtime_ns for path in written]
    again = extract(*words)
    assert again.returncode == 0
    assert again.stderr.count("is complete, skipped") == 2
    assert [path.stat().st_mtime_ns for path in written] == before


@pytest.mark.slow
def test_failing_images_of_a_split_do_not_stop_the_next(extract, workshop):
    (workshop.birds / "test/crow/crow_0.png").write_bytes(b"broken")
    done = extract(f"models_root_dir={workshop.models}", f"images_root={workshop.birds}", "dataset=robins")
    assert done.returncode == 3, done.stderr
    assert "1 of 9 images of robins test could not be decoded" in done.stderr
    assert (workshop.models / "tiny/net/robins/features_train/X_Y.pth").is_file()


@pytest.mark.slow
def test_logreg_from_environment_and_command_line(bash, workshop):
    """The environment loses to the command line; the run ends with averages."""
    words = ["logreg.sh", "seeds=1,2", "dataset=birds", *QUICK]
    variables = {"models_root_dir": str(workshop.models), "model_name": "tiny_net", "dataset": "other"}
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    done = bash(*words, **variables)
    assert done.returncode == 0, done.stderr
    assert "Average over seeds 1,2:" in done.stdout
    assert re.search(r"top-1: \d+\.\d\d \+- \d+\.\d\d", done.stdout)
    assert sorted(path.name for path in evaluation.iterdir()) == ["seed-1", "seed-2"]


@pytest.mark.slow
def test_fewshot_with_feature_folders_and_output_dir(bash, feature_folders, tmp_path):
    done = bash(
        "fewshot.sh", f"train_features_dir={feature_folders[0]}", f"test_features_dir={feature_folders[1]}",
        f"output_dir={tmp_path / 'eval'}", "seeds=1", "shots=1 2", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "eval_N1" / "seed-1" / "results.json").is_file()
    assert (tmp_path / "eval_N2" / "seed-1" / "results.json").is_file()
    assert done.stdout.count("Average over seeds") == 2


def test_the_first_failure_stops_everything(bash, workshop):
    root = f"models_root_dir={workshop.models}"
    done = bash("logreg.sh", root, "model_name=tiny_net", "dataset=none_such birds")
    assert done.returncode == 2
    assert "none_such" in done.stderr and "Traceback" not in done.stderr
    assert not (workshop.models / "tiny/net/birds/eval_logreg").exists()


@pytest.mark.parametrize("script", first_quick(1, ["extract_features.sh", "logreg.sh", "fewshot.sh"]))
def test_help(bash, script):
    shown = bash(script, "--help")
    assert shown.returncode == 0
    assert "Variables: " in shown.stdout
    assert "Example" in shown.stdout


@pytest.mark.parametrize("argument", first_quick(1, ["memory=64G", "PATH=/nowhere", "model-name=x"]))
def test_unknown_variables_are_told_from_the_known_ones(bash, argument):
    done = bash("logreg.sh", argument)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: unknown variable {argument.partition('=')[0]}; expected one of:")
    assert " model_name " in done.stderr and done.stderr.count("\n") == 1


def _scripts(repository):
    """All that are run: the others are sourced."""
    scripts = [*repository.glob("bash-scripts/**/*.sh"), *repository.glob("prepare_models/*.sh")]
    return [script for script in scripts if script.name not in ("common.sh", "setup.sh")]


def test_scripts_parse(repository):
    for script in _scripts(repository):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.skipif(
    "BASH_VERSION" in subprocess.run(["sh", "-c", "set"], capture_output=True, text=True, check=True).stdout,
    reason="sh is bash here: shows that any other sh answers in one line",
)
def test_another_shell_is_told(repository):
    for script in _scripts(repository):
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, ""), script
        assert done.stderr == f"error: run it with bash: bash {script}\n"


@pytest.mark.slow
def test_scripts_are_found_through_links(bash, repository, tmp_path):
    (tmp_path / "folder").symlink_to(repository / "bash-scripts")
    (tmp_path / "logreg").symlink_to(repository / "bash-scripts/logreg.sh")
    (tmp_path / "chain").symlink_to("logreg")
    absent = tmp_path / "absent"
    for script, *words in (
        ["folder/logreg.sh", f"models_root_dir={absent}", "dataset=in1k"],
        ["logreg", f"models_root_dir={absent}", "dataset=in1k"],
        ["chain", f"models_root_dir={absent}", "dataset=in1k"],
    ):
        done = bash(tmp_path / script, *words)
        assert done.returncode == 2 and f"{absent} does not exist" in done.stderr


@pytest.mark.parametrize(("name", "passed_on"), [("TERM", "TERM"), ("USR1", "USR1"), ("HUP", "TERM")])
@pytest.mark.slow
def test_signals_to_the_driver_reach_the_work(repository, python, workshop, name, passed_on):
    """A scheduler signals the batch shell alone: it passes that on, and waits."""
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    driver = subprocess.Popen(
        ["bash", str(repository / "bash-scripts/logreg.sh"), f"models_root_dir={workshop.models}",
         "model_name=tiny_net", "dataset=birds", "seeds=1 2", *QUICK, "CLF.N_EPOCHS", "20000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "COG_PYTHON": python, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not list(evaluation.glob(".seed-*.work/program.log")):
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.02)
    os.kill(driver.pid, getattr(signal, f"SIG{name}"))
    output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 75, errors
    assert f"ended by SIG{passed_on}: " in errors
    assert "Average" not in output
    assert list(evaluation.glob(".seed-*.work/training.pt"))


@pytest.mark.slow
def test_other_levels_in_one_command(bash, wordnet, tmp_path):
    """Real synsets with made-up features: levels, overlap, classifiers, table, figure; then everything is skipped."""
    import torch

    def leaves(root, n):
        top, inner = wordnet.node[root], {parent for parents in wordnet.parents for parent in parents}
        below = [node for node in range(len(wordnet.wnids)) if top in wordnet.above(node)]
        return [wordnet.wnids[node] for node in below if node not in inner][:n]

    dogs, trees, seen = leaves("n02084071", 7), leaves("n13104059", 6), "n02084071"
    wnids = dogs[1:] + trees
    tiny.write_levels_file(tmp_path / "levels.pkl", [wnids[:6], wnids[6:]])
    counts = "".join(f"{wnid},12\n" for wnid in [seen, *dogs, *trees])
    (tmp_path / "counts.csv").write_text(f"wnid,count\n{counts}")
    (tmp_path / "seen.txt").write_text(dogs[0])
    for level, members in (("cog_l1", wnids[:6]), ("cog_l2", wnids[6:]), ("in1k", dogs[:2])):
        members = sorted(members)
        for part, n in (("train", 8), ("test", 4)):
            folder = tmp_path / f"models/tiny/net/{level}/features_{part}"
            x, y = torch.randn(n * len(members), 8), torch.arange(len(members)).repeat_interleave(n)
            tiny.write_features(folder, x + y[:, None], y)
            lines = [f"{wnid}/{part}{k}.JPEG\n" for wnid in members for k in range(n)]
            (folder / "image_paths.txt").write_text("".join(lines))
    variables = [
        f"levels={tmp_path / 'levels.pkl'}", f"image_counts={tmp_path / 'counts.csv'}", "draws=2", "measures=wup",
        f"seen_wnids={tmp_path / 'seen.txt'}", f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    done = bash("other_levels.sh", *variables)
    assert done.returncode == 0, done.stderr
    assert "shared with" in done.stdout and not (tmp_path / "out/models").exists()
    variables += [f"models_root_dir={tmp_path / 'models'}", "model_name=tiny_net", "seeds=1", *QUICK]
    done = bash("other_levels.sh", *variables)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.partition("tiny_net: top-1 (%), mean over seeds")[2].splitlines()
    assert [row.split("  ")[0] for row in rows[3:6]] == ["published (Lin)", "Wu-Palmer", "2 random draws"]
    assert (tmp_path / "out/models/other_levels_tiny_net.png").stat().st_size > 5000
    assert (tmp_path / "out/models/tiny/net/in1k").is_symlink()  # the table shows its accuracies, too
    runs = sorted((tmp_path / "out/models").rglob("results.json"))
    times = [path.stat().st_mtime_ns for path in runs]
    again = bash("other_levels.sh", *variables)
    assert again.returncode == 0, again.stderr
    assert [path.stat().st_mtime_ns for path in runs] == times


def test_a_python_without_the_requirements_is_one_line(bash, python, tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {python} -S -E "$@"\n')
    bare.chmod(0o755)
    done = bash("logreg.sh", "dataset=birds", COG_PYTHON=str(bare))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "lacks the toolkit's requirements" in done.stderr


# Programs in place of Python: the first shows what it is to run, and fails; the second notes it, and is done.
SHOWS = """#!/bin/sh
[ "$1" = -c ] && exit 0
printf '%s\\n' "$COG_WORDNET_DIR" "$@"
exit 9
"""
NOTES = """#!/bin/sh
echo "PYTHONPATH=$PYTHONPATH $@" >> "$0.notes"
"""


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a program with the given text to ``tmp_path / "python"``, and returns its path."""

    def write(text):
        path = tmp_path / "python"
        path.write_text(text)
        path.chmod(0o755)
        return path

    return write


def test_relative_paths_of_the_quickstart(bash, program, tmp_path):
    """It changes the folder; with CDPATH, the shell prints where it goes."""
    program(SHOWS)
    with contextlib.chdir(tmp_path):
        done = bash(
            "quickstart.sh",
            "output_dir=out",
            COG_PYTHON="./python",
            COG_WORDNET_DIR="w",
            CDPATH=str(tmp_path),
        )
    assert done.returncode == 9, done.stderr
    shown = done.stdout.partition("] Draw the images")[2].splitlines()[1:]
    assert shown[:6] == [f"{tmp_path}/w", "-m", "cog.miniature", "make", "--output_dir", f"{tmp_path}/out"]


def test_the_quickstart_uses_the_device_and_all_processors(bash, program, tmp_path):
    python = program(NOTES)
    for name, text in (("nproc", "echo 6"), ("nvidia-smi", "exit 9")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    given = {"COG_PYTHON": str(python), "PATH": f"{tmp_path}:{os.environ['PATH']}", "dataset": "birds"}
    for n_processes, nvidia in ((6, "exit 9"), (4, "exit 0")):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{nvidia}\n")
        done = bash("quickstart.sh", f"output_dir={tmp_path / 'out'}", "seeds=22", **given)
        assert done.returncode == 0, done.stderr
        notes = tmp_path / "python.notes"
        studies = [line for line in notes.read_text().splitlines() if " cog study " in line]
        notes.unlink()
        assert len(studies) == 2 and all(f"--n_processes {n_processes} " in line for line in studies)
        assert not any("--device" in line or "birds" in line for line in studies)


def test_folders_of_pythonpath_are_kept(bash, program, repository):
    python = program(NOTES)
    study = ["models_root_dir=m", "log_dir=l"]
    for words in (
        ["extract_features.sh"],
        ["logreg.sh", "dataset=d"],
        ["fewshot.sh", "dataset=d"],
        ["study.sh", *study],
    ):
        assert bash(*words, COG_PYTHON=str(python), PYTHONPATH="/theirs:/others").returncode == 0
        noted = python.with_name("python.notes").read_text().splitlines()
        assert all(line.startswith(f"PYTHONPATH={repository}:/theirs:/others ") for line in noted)
        python.with_name("python.notes").unlink()
