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
from waiting import wait_for

from cog import constants

QUICK = ["CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "2", "--device", "cpu"]


def defaults(repository, script):
    text = (repository / "bash-scripts" / script).read_text()
    return dict(re.findall(r'^(\w+)="\$\{\1:-([^}]*)\}"$', text, re.MULTILINE))


def test_names_are_those_of_the_package(repository):
    seeds, shots = " ".join(map(str, constants.SEEDS)), " ".join(map(str, constants.SHOTS))
    for script in ("logreg.sh", "fewshot.sh", "pca.sh", "study.sh", "slurm/submit_study.sh"):
        assert defaults(repository, script)["seeds"] == seeds
    assert defaults(repository, "fewshot.sh")["shots"] == shots
    for script in ("extract_features.sh", "study.sh", "slurm/submit_study.sh"):
        given = defaults(repository, script)
        assert given["datasets"].split() == list(constants.DATASETS)
        assert sorted(given["splits"].split()) == sorted(constants.SPLITS)
        assert given.get("shots", f"0 {shots}") == f"0 {shots}"


@pytest.fixture
def extract(bash, workshop):
    """Return a function that runs extract_features.sh for the workshop's network."""
    network = ["model_name=tiny_net", f"model_loader={workshop.loader}:load_my_model", "--device", "cpu"]
    sizes = ["FT_EXTRACT.IMAGE_RESIZE_SIZE", "16", "FT_EXTRACT.IMAGE_CROP_SIZE", "16"]

    def run(*words):
        return bash("extract_features.sh", *network, *sizes, *words)

    return run


@pytest.mark.slow
def test_extraction_of_all_splits_then_skipped(extract, workshop):
    words = [f"models_root_dir={workshop.models}", f"in1k_images_root={workshop.in1k}", "datasets=in1k"]
    done = extract(*words)
    assert done.returncode == 0, done.stderr
    assert "[2/2] features of tiny_net: in1k train" in done.stdout
    written = [workshop.models / f"tiny/net/in1k/features_{split}/X_Y.pth" for split in constants.SPLITS]
    before = [path.stat().st_mtime_ns for path in written]
    again = extract(*words)
    assert again.returncode == 0
    assert again.stderr.count("is complete, skipped") == 2
    assert [path.stat().st_mtime_ns for path in written] == before


@pytest.mark.slow
def test_extraction_by_several_processes(extract, workshop, tmp_path):
    workshop.make_slow()  # a process that comes when the other has done everything says nothing
    words = [f"images_root={workshop.birds}", "datasets=robins", "splits=test"]
    for n_processes in (1, 2):
        done = extract(*words, f"output_dir={tmp_path / str(n_processes)}", f"n_processes={n_processes}")
        assert done.returncode == 0, done.stderr
    alone, together = (tmp_path / n / "robins/features_test/X_Y.pth" for n in "12")
    assert alone.read_bytes() == together.read_bytes()
    assert "rank 1: " in done.stderr
    assert "[1/1] features of tiny_net: robins test" in done.stdout
    done = extract(*words, "n_processes=0")
    assert done.returncode == 2 and "n_processes=0 is not a number" in done.stderr
    (workshop.birds / "test/crow/crow_0.png").write_bytes(b"broken")
    done = extract(*words, f"output_dir={tmp_path / '3'}", "n_processes=2")
    assert done.returncode == 3 and "exit code 3" in done.stderr


@pytest.mark.slow
def test_failing_images_of_a_split_do_not_stop_the_next(extract, workshop):
    (workshop.birds / "test/crow/crow_0.png").write_bytes(b"broken")
    done = extract(f"models_root_dir={workshop.models}", f"images_root={workshop.birds}", "datasets=robins")
    assert done.returncode == 3, done.stderr
    assert "robins test: 1 of 9 images could not be decoded" in done.stderr
    assert (
        "exit code 3; complete outputs are kept, fix these images or accept the loss (--allow_failures"
        in done.stderr
    )
    assert (workshop.models / "tiny/net/robins/features_train/X_Y.pth").is_file()


@pytest.mark.slow
def test_logreg_from_environment_and_command_line(bash, workshop):
    """A check shows no table; a run ends with averages. The environment loses to the command line."""
    words = ["logreg.sh", "seeds=1 2", "dataset=birds", *QUICK]
    variables = {"models_root_dir": str(workshop.models), "model_name": "tiny_net", "dataset": "other"}
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    checked = bash(*words, "--check", **variables)
    assert checked.returncode == 0, checked.stderr
    assert "it can start" in checked.stdout and "Average" not in checked.stdout
    assert not evaluation.exists()
    done = bash(*words, **variables)
    assert done.returncode == 0, done.stderr
    assert "Average over seeds 1 2: birds" in done.stdout
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


def test_first_failure_stops_everything_and_a_check_looks_at_all_steps(bash, workshop):
    root = f"models_root_dir={workshop.models}"
    words = ["logreg.sh", root, "model_name=tiny_net", "dataset=none_such birds"]
    done = bash(*words)
    assert done.returncode == 2
    assert "stopped at step 1 of 2 (logreg on none_such, seeds 22 37 45 77 93)" in done.stderr
    assert done.stderr.endswith(
        "exit code 2; complete outputs are kept, fix it, then run the same command again\n"
    )
    assert "Traceback" not in done.stderr
    assert not (workshop.models / "tiny/net/birds/eval_logreg").exists()
    done = bash(*words[:-1], "dataset=none_such none_other", "--check")
    assert done.returncode == 2
    assert "none_such/features_train" in done.stdout and "none_other/features_train" in done.stdout
    assert "2 of 2 steps cannot start as they are:\n  1 (logreg on none_such, " in done.stderr
    assert "stopped" not in done.stderr


@pytest.mark.parametrize("script", first_quick(1, ["extract_features.sh", "logreg.sh", "fewshot.sh"]))
def test_help(bash, script):
    shown = bash(script, "--help")
    assert shown.returncode == 0
    assert "Variables: " in shown.stdout
    assert "Example" in shown.stdout


@pytest.mark.parametrize(
    ("argument", "answer"),
    first_quick(
        3,
        [
            ("memory=64G", "unknown variable memory; did you mean mem?"),
            ("PATH=/nowhere", "unknown variable PATH"),
            ("Model_name=x", "unknown variable Model_name; did you mean model_names?"),
            ("model-names=x", "unknown variable model-names; did you mean model_names?"),
            ("qqq=x", "unknown variable qqq; --help lists all"),
        ],
    ),
)
def test_unknown_variables_are_answered_by_the_nearest(bash, argument, answer):
    done = bash("slurm/submit_study.sh", argument)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {answer}") and done.stderr.count("\n") == 1
    assert len(done.stderr) < 120


@pytest.mark.parametrize(
    ("script", "arguments", "missing"),
    first_quick(
        4,
        [
            ("logreg.sh", ["models_root_dir=/m", "dataset=in1k", "model_name="], "model_name"),
            ("logreg.sh", ["models_root_dir=/m", "dataset=in1k", "model_name=None"], "model_name"),
            ("logreg.sh", ["models_root_dir=/m", "model_name=a_b"], "dataset"),
            ("fewshot.sh", ["models_root_dir=/m", "model_name=none", "dataset=in1k"], "model_name"),
            ("pca.sh", ["dataset=in1k"], "models_root_dir"),
            ("analyze_features.sh", ["models_root_dir=/m", "model_name=null"], "model_name"),
            ("extract_features.sh", ["model_name=None"], "model_name"),
            ("finetune.sh", ["models_root_dir=/m", "model_name=None"], "model_name"),
            ("experiments.sh", ["models_root_dir=/m", "model_name=None"], "model_name"),
            ("study.sh", ["models_root_dir=/m"], "log_dir"),
        ],
    ),
)
def test_missing_variables_are_named_before_anything_starts(bash, script, arguments, missing):
    done = bash(script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: no {missing}: give {missing}=..., see --help\n"


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
    (tmp_path / "prepare").symlink_to(repository / "prepare_models/prepare_sup.sh")
    absent = tmp_path / "absent"
    for script, *words in (
        ["folder/logreg.sh", f"models_root_dir={absent}", "dataset=in1k"],
        ["logreg", f"models_root_dir={absent}", "dataset=in1k"],
        ["chain", f"models_root_dir={absent}", "dataset=in1k"],
        ["folder/status.sh", str(absent)],
    ):
        done = bash(tmp_path / script, *words)
        assert done.returncode == 2 and f"{absent} does not exist" in done.stderr
    done = bash(tmp_path / "prepare", str(tmp_path / "models"), "--dry_run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "passed_on"), [("TERM", "TERM"), ("USR1", "USR1"), ("HUP", "TERM")])
@pytest.mark.slow
def test_signals_to_the_driver_reach_the_work(repository, warm_python, workshop, name, passed_on):
    """A scheduler signals the batch shell alone: it passes that on, waits, and says that it can be continued."""
    evaluation = workshop.models / "tiny/net/birds/eval_logreg"
    driver = subprocess.Popen(
        ["bash", str(repository / "bash-scripts/logreg.sh"), f"models_root_dir={workshop.models}",
         "model_name=tiny_net", "dataset=birds", "seeds=1 2", *QUICK, "CLF.N_EPOCHS", "20000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "COG_PYTHON": warm_python, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while not (evaluation / "seed-1/.resume/program.log").exists():
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.02)
    os.kill(driver.pid, getattr(signal, f"SIG{name}"))
    output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 75, errors
    assert f"ended by SIG{passed_on}: " in errors
    assert (
        "interrupted at step 1 of 1 (logreg on birds, seeds 1 2); finished work is saved: run the" in errors
    )
    assert "Average" not in output
    assert not list(evaluation.glob("seed-*/.lock"))
    assert (evaluation / "seed-1/.resume/checkpoint.pt").is_file()


@pytest.mark.slow
def test_other_levels_in_one_command(bash, wordnet, tmp_path):
    """Real synsets with made-up features: levels, overlap, classifiers, table, figure; then everything is skipped."""
    import torch

    def leaves(root, n):
        below = sorted(wordnet.descendants(wordnet.index(root)))
        return [wordnet.wnids[node] for node in below if not wordnet.children[node]][:n]

    dogs, trees, seen = leaves("n02084071", 7), leaves("n13104059", 6), "n02084071"
    wnids = dogs[1:] + trees
    tiny.write_levels_file(tmp_path / "levels.pkl", [wnids[:6], wnids[6:]])
    (tmp_path / "concepts.txt").write_text("\n".join([seen, *dogs, *trees]))
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
        f"levels={tmp_path / 'levels.pkl'}", f"concepts={tmp_path / 'concepts.txt'}", "draws=2", "measures=wup",
        f"seen_wnids={tmp_path / 'seen.txt'}", f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    done = bash("other_levels.sh", *variables)
    assert done.returncode == 0, done.stderr
    assert "random* mean" in done.stdout and not (tmp_path / "out/models").exists()
    variables += [f"models_root_dir={tmp_path / 'models'}", "model_name=tiny_net", "seeds=1", *QUICK]
    done = bash("other_levels.sh", *variables)
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("tiny_net: top-1 (%), mean over seeds") :].splitlines()
    labels = [line.split("  ")[0] for line in table[3:6]]
    assert labels == ["published (Lin)", "Wu-Palmer", "2 random draws"]
    assert table[7].startswith("Random draws: mean with 95 % interval")
    assert (tmp_path / "out/figures/fig7_other_levels.png").is_file()
    assert (tmp_path / "out/models/tiny/net/in1k").is_symlink()  # the table shows its accuracies, too
    runs = sorted((tmp_path / "out/models").rglob("results.json"))
    times = [path.stat().st_mtime_ns for path in runs]
    again = bash("other_levels.sh", *variables)
    assert again.returncode == 0
    assert table[:8] == again.stdout[again.stdout.index(table[0]) :].splitlines()[:8]
    assert [path.stat().st_mtime_ns for path in runs] == times


def test_a_python_without_the_requirements_is_one_line(bash, python, tmp_path):
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {python} -S -E "$@"\n')
    bare.chmod(0o755)
    done = bash("status.sh", str(tmp_path), COG_PYTHON=str(bare))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "lacks this toolkit's requirements" in done.stderr


# Programs in place of Python. The first shows what it is to run, and fails; the second is done with everything at once
# but training, which ends when it is told to.
SHOWS = """#!/bin/sh
[ "$1" = -c ] && exit 0
printf '%s\\n' "$COG_WORDNET_DIR" "$@"
exit 9
"""
TRAINS = """#!/bin/sh
case "$*" in *" train "*) ;; *) exit 0 ;; esac
trap 'echo ended > "$0.$$"; exit 75' TERM
echo begun > "$0.$$"
sleep 60 &
wait
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


def test_a_closed_terminal_ends_the_work_of_the_quickstart(repository, program, tmp_path):
    python = program(TRAINS)
    driver = subprocess.Popen(
        ["bash", str(repository / "bash-scripts/quickstart.sh"), f"output_dir={tmp_path / 'out'}"],
        env={**os.environ, "COG_PYTHON": str(python)}, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(lambda: any(path.read_text() for path in tmp_path.glob("python.*")), seconds=20)
        driver.send_signal(signal.SIGHUP)
        driver.wait(20)
        wait_for(lambda: all(path.read_text() == "ended\n" for path in tmp_path.glob("python.*")), seconds=20)
    finally:
        driver.kill()


def test_dataset_and_datasets_are_one_variable(bash, python, tmp_path):
    """On the command line and from the environment, of drivers that declare the one or the other."""
    # An interpreter that prints what it is to run, but for the drivers' own lines of Python.
    shows = tmp_path / "shows"
    shows.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {python} "$@"\necho "$@"\n')
    shows.chmod(0o755)
    common = [f"models_root_dir={tmp_path}", "model_names=a_net", f"log_dir={tmp_path}/log"]
    for driver in (["study.sh", *common, "--dry_run"], ["logreg.sh", common[0], "model_name=a_net"]):
        for name in ("dataset", "datasets"):
            assert "given_set" in bash(*driver, f"{name}=given_set", COG_PYTHON=str(shows)).stdout
            assert "given_set" in bash(*driver, COG_PYTHON=str(shows), **{name: "given_set"}).stdout
    assert "unknown variable data_sets; did you mean dataset?" in bash("logreg.sh", "data_sets=x").stderr
