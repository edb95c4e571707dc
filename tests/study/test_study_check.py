"""``--check`` of a study: everything at once, by its cause, briefly."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from result_folders import small_study

from cog.commands import study
from cog.errors import CogError
from cog.study import check, slurm, units
from cog.study.plan import StudyPlan

CHECK = """\
problem  cog_l1 train  2 of 40 images are missing under /data/in21k: a/a_1.JPEG, a/a_2.JPEG; complete them
ok       checkpoint    /models/{place}/model.ckpt, 98 MB
ok       output        in1k train: /models/{place}/in1k/features_train
warning  disk          /models/{place}: about {size} GB will be written, 9 GB are free: that is tight
1 problem: fix it before starting
"""


def test_the_same_about_many_models_is_one_line():
    findings = check.Findings()
    for number in range(20):
        printed = CHECK.format(place=f"net/{number:02d}", size=7 + number)
        findings.add_printed(f"net_{number:02d}", printed, "", failed=True)
    assert findings.text().splitlines()[0].endswith("[all 20 models]")
    findings.add_printed("other_net", "ok       checkpoint    fine\n", "", failed=False)
    lines = findings.text().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(
        "problem  cog_l1 train  2 of 40 images are missing under /data/in21k: a/a_1.JPEG"
    )
    assert lines[0].endswith("[net_00, net_01, net_02 and 17 more]")
    assert lines[1].startswith("warning  disk          /models/net/00: about 7 GB")
    assert lines[2] == "ok       checkpoint    21 checks passed"


def test_what_each_model_sees_is_shown():
    """Two models with different inputs have a line each, although both are in order."""
    findings = check.Findings()
    for name, mean in (("a_net", 0.5), ("b_net", 0.4)):
        printed = f"ok       checkpoint   fine\nok       model   {name}: images of 224 pixels, mean {mean}\n"
        findings.add_printed(name, f"{printed}ok       disk   enough for {name}\n", "", failed=False)
    assert findings.text().splitlines() == [
        "ok       checkpoint    fine",
        "ok       model         a_net: images of 224 pixels, mean 0.5",
        "ok       model         b_net: images of 224 pixels, mean 0.4",
        "ok       disk          2 checks passed",
    ]


def test_causes_stay_apart_and_none_is_lost():
    findings = check.Findings()
    findings.add_printed(
        "a_net", "problem  output  no permission\nproblem  model   no such model\n", "", failed=True
    )
    findings.add_printed("b_net", "", "warning: x\nerror: no features\n", failed=True)
    findings.add_printed("c_net", "", "", failed=True)
    assert findings.text().splitlines() == [
        "problem  output        no permission [a_net]",
        "problem  model         no such model [a_net]",
        "problem  script        error: no features [b_net]",
        "problem  script        ended with an error [c_net]",
    ]


def test_all_models_that_cannot_be_loaded_are_named(tmp_path, capsys):
    (tmp_path / "models").mkdir()
    (tmp_path / "own.yaml").write_text("mine_a: {source: sup_resnet50}\nmine_b: {checkpoint: b.ckpt}\n")
    argv = [
        "--models_root_dir", str(tmp_path / "models"), "--log_dir", str(tmp_path / "log"), "--models_file",
        str(tmp_path / "own.yaml"), "--dataset", "in1k",
    ]  # fmt: skip
    with pytest.raises(CogError, match=r"there is no checkpoint .*\(others that cannot be loaded: mine_b\)"):
        study.main(argv)
    # --check goes on to the images.
    assert study.main([*argv, "--check"]) == 2
    output = capsys.readouterr().out
    assert "problem  checkpoint    there is no checkpoint" in output
    assert "in1k train    --dataset in1k needs --in1k_images_root [mine_a, mine_b" in output


@pytest.fixture
def models_file(workshop, tmp_path):
    """A usable entry, one without its checkpoint, one with a misspelt key, and one without the name of a model."""
    file = tmp_path / "own.yaml"
    loaded = f"loader: {workshop.loader}:load_my_model"
    file.write_text(
        f"mine_good: {{{loaded}, checkpoint: {workshop.checkpoint}}}\n"
        f"mine_gone: {{{loaded}, checkpoint: gone.ckpt}}\nmine_typo: {{sorce: x}}\nnoname: {{}}\n"
    )
    return file


def arguments_of(workshop, tmp_path, models_file, *more):
    return [
        "--models_root_dir", str(workshop.models), "--log_dir", str(tmp_path / "log"), "--models_file",
        str(models_file), "--in1k_images_root", str(workshop.in1k), "--datasets", "in1k", "--stages", "extract", *more,
    ]  # fmt: skip


def test_models_with_a_fault_do_not_stop_the_others(workshop, tmp_path, models_file, capsys, caplog):
    models = ["--models", "mine_*", "noname"]
    with pytest.raises(CogError, match="not a model name"):
        study.main(arguments_of(workshop, tmp_path, models_file, *models))
    assert study.main(arguments_of(workshop, tmp_path, models_file, "--models", "mine_*", "--dry_run")) == 2
    commands = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert len(commands) == 1 and "--model=mine_good" in commands[0]
    assert "gone.ckpt" in caplog.text and "mine_gone is left out" in caplog.text
    assert "mine_typo: unknown key 'sorce'; did you mean source?; this entry is left out" in caplog.text
    assert "left out, for the reasons above: mine_typo, mine_gone" in caplog.text
    # An entry that is not asked for is no fault of the study.
    assert (
        study.main(arguments_of(workshop, tmp_path, models_file, "--models", "mine_good", "--dry_run")) == 0
    )


def test_check_tells_of_entries_that_are_left_out(workshop, tmp_path, models_file, capsys):
    for split in ("train", "test"):
        folder = workshop.models / f"tiny/net/in1k/features_{split}"
        folder.mkdir(parents=True)
        (folder / "X_Y.pth").touch()
    models_file.write_text("mine_typo: {sorce: x}\nnoname: {}\n")
    arguments = arguments_of(workshop, tmp_path, models_file, "--seeds", "1", "--shots", "0")
    assert study.main(arguments) == 2  # all is done but what is left out
    run = workshop.models / "tiny/net/in1k/eval_logreg/seed-1"
    run.mkdir(parents=True)
    (run / "results.json").write_text('{"status": "complete"}')
    assert study.main([*arguments, "--check"]) == 2
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "fix the problems above before starting"
    for fault in ("mine_typo: unknown key 'sorce'", "noname is not a model name"):
        assert f"problem  models_file   {models_file}: {fault}" in printed


@pytest.mark.parametrize(
    ("script", "code", "verdict"),
    [
        ("kill -9 $$", 2, "fix the problems above before starting"),
        ("exit 9", 2, "fix the problems above before starting"),
        ("exit 0", 0, "it can start"),
    ],
)
def test_a_check_that_fails_in_any_way_is_a_problem(tmp_path, capsys, script, code, verdict):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    commands = SimpleNamespace(launcher=(), extract=lambda *_: ["bash", "-c", script])
    options = slurm.SlurmOptions(tmp_path / "log", tmp_path, {})
    statuses = units.survey(study)
    assert (
        check.check_study(study, StudyPlan((), ()), statuses, commands, options, (), with_slurm=False) == code
    )
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == verdict
    assert ("problem  script        ended with an error [a_net]" in printed) == bool(code)


@pytest.mark.slow
def test_two_models(workshop, tmp_path, repository):
    """A missing concept hides neither missing images of another one nor a file of zero bytes."""
    other = workshop.models / "tiny/other"
    other.mkdir(parents=True)
    (other / "model.ckpt").write_bytes(workshop.checkpoint.read_bytes())
    folders = sorted(path for path in workshop.in21k.iterdir() if path.is_dir())
    concepts = [
        folder for folder in folders if folder.name in workshop.levels_file.read_bytes().decode("latin-1")
    ]
    lost, missing, empty = concepts[:3]
    lost.rename(tmp_path / "elsewhere")
    for path in sorted(missing.iterdir()):
        path.unlink()
    sorted(empty.iterdir())[0].write_bytes(b"")
    done = subprocess.run(
        [
            sys.executable, "-m", "cog.commands.study", "--models_root_dir", workshop.models, "--log_dir",
            tmp_path / "log", "--models", "tiny_net", "tiny_other", "--model_loader",
            f"{workshop.loader}:load_my_model", "--in1k_images_root", workshop.in1k, "--imagenet_images_root",
            workshop.in21k, "--cog_levels_mapping_file", workshop.levels_file, "--cog_concepts_split_file",
            workshop.split_file, "--datasets", "in1k", "cog_l1", "cog_l2", "--check", "--", "--device", "cpu",
        ],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) < 30 and lines[-1] == "fix the problems above before starting"
    problems = "\n".join(line for line in lines if line.startswith("problem"))
    assert lost.name in problems and f"{missing.name}/" in problems and "empty (0 bytes)" in problems
    assert all("[tiny_net, tiny_other" in line for line in problems.splitlines())
    assert not (tmp_path / "log").exists()
