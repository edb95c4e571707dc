"""``--check``: it finds what would stop a command, writes nothing, and takes no lock."""

from __future__ import annotations

import os
import shutil
import tarfile
import types

import archive_forms
import pytest
import tiny
import torch

from cog.commands import build_levels, extract_features, logreg, print_results
from cog.errors import CogError
from cog.runtime import machine_checks
from cog.runtime.locks import locked


@pytest.fixture
def check(tmp_path, capsys):
    """Run a command with ``--check``; returns exit code and lines, after seeing that nothing was written."""

    def run(main, *argv):
        before = tiny.snapshot(tmp_path)
        code = main([*map(str, argv), "--check"])
        assert tiny.snapshot(tmp_path) == before
        lines = capsys.readouterr().out.splitlines()
        problems = [line for line in lines[:-1] if line.startswith("problem")]
        assert code == (2 if problems else 0)
        assert lines[-1] == "it can start" or lines[-1].startswith(f"{len(problems)} problem")
        return types.SimpleNamespace(code=code, problems=problems, lines=lines, text="\n".join(lines))

    return run


def level(workshop, *more):
    return (
        "--model", "tiny_net", "--dataset", "cog_l1", "--split", "train", "test", "--models_root_dir", workshop.models,
        "--model_loader", f"{workshop.loader}:load_my_model", "--imagenet_images_root", workshop.in21k,
        "--cog_levels_mapping_file", workshop.levels_file, "--cog_concepts_split_file", workshop.split_file, *more,
    )  # fmt: skip


def birds(workshop, output, *more):
    return (
        "--model", "tiny_net", "--dataset", "birds", "--split", "train", "--output_dir", output, "--device", "cpu",
        "--model_loader", f"{workshop.loader}:load_my_model", "--images_root", workshop.birds, *more,
    )  # fmt: skip


def classifier(workshop, output, *more):
    folder = workshop.models / "tiny/net/birds"
    return (
        "--train_features_dir", folder / "features_train", "--test_features_dir", folder / "features_test",
        "--output_dir", output, "--device", "cpu", *more,
    )  # fmt: skip


def test_extraction_that_can_start(check, workshop):
    report = check(extract_features.main, *level(workshop))
    assert report.code == 0
    assert "checkpoint" in report.text and "SHA-256" in report.text
    assert sum("cog_l1 t" in line and line.startswith("ok") for line in report.lines) >= 2


def test_an_image_that_cannot_be_decoded_is_a_problem(check, workshop, tmp_path):
    first = min(path for path in (workshop.birds / "train").rglob("*") if path.is_file())
    first.write_bytes(b"no image")
    report = check(extract_features.main, *birds(workshop, tmp_path / "out"))
    assert f"{first.parent.name}/{first.name} could not be decoded" in report.problems[0]
    assert check(extract_features.main, *birds(workshop, tmp_path / "out", "--allow_failures", 1)).code == 0


def test_splits_of_different_classes(check, workshop, tmp_path, capsys):
    """Labels are positions of the class folders, so a class that one split lacks would shift the labels after it."""
    shutil.rmtree(workshop.birds / "test/duck")
    argv = (
        "--model", "tiny_net", "--dataset", "birds", "--split", "train", "test", "--models_root_dir", tmp_path / "new",
        "--model_loader", f"{workshop.loader}:load_my_model", "--images_root", workshop.birds, "--device", "cpu",
    )  # fmt: skip
    (tmp_path / "new").mkdir()
    words = "birds has 3 classes for training and 2 for testing, which differ in duck"
    assert words in check(extract_features.main, *argv).problems[0]
    with pytest.raises(CogError, match=words):
        extract_features.main([*map(str, argv)])
    for split in ("train", "test"):  # one at a time, nothing is known of the other one
        position = argv.index("--split")
        one = [*argv[: position + 1], split, *argv[position + 3 :]]
        assert extract_features.main([*map(str, one)]) == 0
    folders = [tmp_path / f"new/tiny/net/birds/features_{split}" for split in ("train", "test")]
    flags = [
        "--train_features_dir",
        folders[0],
        "--test_features_dir",
        folders[1],
        "--output_dir",
        tmp_path / "out",
    ]
    report = check(logreg.main, *flags, "--device", "cpu")
    assert "are of different classes, whose labels do not agree" in report.problems[0]
    with pytest.raises(CogError, match="are of different classes"):
        logreg.main([*map(str, flags), "--device", "cpu"])


def test_missing_images_are_counted(check, workshop):
    first = min(workshop.in21k.rglob("*.JPEG"))
    first.unlink()
    report = check(extract_features.main, *level(workshop))
    assert len(report.problems) == 1
    assert "1 of" in report.problems[0] and f"{first.parent.name}/{first.name}" in report.problems[0]
    assert check(extract_features.main, *level(workshop, "--allow_failures", 1)).code == 0


def test_all_problems_are_shown_at_once(check, workshop, tmp_path):
    report = check(
        extract_features.main, "--model", "tiny_net", "--dataset", "cog_l1", "--split", "train", "--device", "cuda:77",
        "--models_root_dir", workshop.models, "--model_loader", f"{tmp_path}/none.py:load", "FT_EXTRACT.NOTHING", "1",
    )  # fmt: skip
    subjects = {line.split()[1] for line in report.problems}
    assert subjects == {"configuration", "checkpoint", "cog_l1", "device"}


def test_one_fault_is_one_problem(check, workshop):
    file = workshop.root / "models.yaml"
    file.write_text("mine_net: {source: sup_resnet51}\n")
    report = check(
        extract_features.main, "--model", "mine_net", "--models_file", file, "--models_root_dir", workshop.models,
        "--dataset", "birds", "--split", "train", "--images_root", workshop.birds, "--device", "cpu",
    )  # fmt: skip
    assert len(report.problems) == 1 and "did you mean sup_resnet50" in report.problems[0]


def test_damaged_checkpoint(check, workshop):
    (workshop.models / "tiny/net/model.ckpt").write_bytes(b"<!doctype html>")
    assert "checkpoint" in check(extract_features.main, *level(workshop)).problems[0]


def test_states_of_an_extraction(check, workshop, tmp_path):
    output = tmp_path / "out"
    argv = birds(workshop, output)
    assert check(extract_features.main, *argv).code == 0
    assert extract_features.main([*map(str, argv)]) == 0
    assert "complete and would be skipped" in check(extract_features.main, *argv).text
    other = (*argv, "FT_EXTRACT.IMAGE_CROP_SIZE", "200")
    assert "made differently" in check(extract_features.main, *other).problems[0]
    assert "would be replaced" in check(extract_features.main, *other, "--overwrite").text
    (output / "X_Y.pth").unlink()
    with locked(output, flag="--output_dir"):
        assert "is being written by" in check(extract_features.main, *argv).problems[0]


def test_unfinished_extraction(check, workshop, tmp_path):
    output = tmp_path / "out"
    argv = birds(workshop, output, "FT_EXTRACT.SHARD_ROWS", "4", "FT_EXTRACT.BATCH_SIZE", "4")
    with pytest.MonkeyPatch.context() as patch:

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        patch.setattr("cog.features.runner._publish", full)
        with pytest.raises(OSError):
            extract_features.main([*map(str, argv)])
    assert (output / ".resume").is_dir()
    report = check(extract_features.main, *argv)
    assert "continues from there" in report.text and "the last attempt" in report.text
    other = check(extract_features.main, *argv, "FT_EXTRACT.IMAGE_CROP_SIZE", "200")
    assert "made differently" in other.problems[0]


def test_disk_and_memory(check, workshop, monkeypatch):
    full = types.SimpleNamespace(total=10**12, used=10**12, free=1000)
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda path: full)
    monkeypatch.setattr(machine_checks, "available_memory", lambda: 10**6)
    report = check(logreg.main, *classifier(workshop, workshop.root / "out"))
    assert "make room for" in report.problems[0]
    argv = list(level(workshop, "--model", "sup_resnet50"))
    at = argv.index("--model_loader")
    del argv[at : at + 2]
    shutil.copytree(workshop.models / "tiny/net", workshop.models / "sup/resnet50")
    report = check(extract_features.main, *argv)
    assert any("make room for" in line for line in report.problems)
    assert "run it where there is more" in report.text
    assert "not the published file" in report.text


def test_full_scale_estimate(tmp_path, capsys):
    """65 GB for a full model: 13 million images of 1,200 features on average; here one level of a ResNet-50."""
    from cog.features.check import check_space
    from cog.runtime.check_report import Report

    report = Report()
    check_space(report, [(tmp_path, 1_000_000)], 2048, value_bytes=4, shard_bytes=4)
    disk = next(finding for finding in report.findings if finding.subject == "disk")
    assert "16.4 GB will be written" in disk.text  # the ranges and the file: twice 8.2 GB


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_without_permission(check, workshop, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    assert "no permission" in check(logreg.main, *classifier(workshop, tmp_path / "locked/out")).problems[0]


def test_output_that_cannot_be(check, workshop):
    report = check(logreg.main, *classifier(workshop, workshop.levels_file / "out"))
    assert "is not a folder" in report.problems[0]


def test_states_of_runs(check, workshop, tmp_path):
    output = tmp_path / "out"
    argv = classifier(workshop, output, "--seeds", 1, 2, "CLF.N_TRIALS", 2, "CLF.N_EPOCHS", 2)
    assert "2 to do" in check(logreg.main, *argv).text
    first = classifier(workshop, output, "--seeds", 1, "CLF.N_TRIALS", 2, "CLF.N_EPOCHS", 2)
    assert logreg.main([*map(str, first)]) == 0
    assert "1 to do, 1 complete" in check(logreg.main, *argv).text
    other = check(logreg.main, *argv, "--mom", 0.5)
    assert len(other.problems) == 1 and "momentum: 0.9 -> 0.5" in other.problems[0]
    assert check(logreg.main, *argv, "--mom", 0.5, "--overwrite").code == 0
    with locked(output / "seed-2", flag="--output_dir"):
        assert "is being written by" in check(logreg.main, *argv).problems[0]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.ones(30, 5), torch.arange(30) % 3, "5"),
        (torch.ones(30, 8), torch.arange(30) % 3 + 7, "have no training features"),
        (torch.ones(30, 8), torch.arange(30.0) % 3, "whole-number"),
        (torch.ones(3, 8), torch.arange(30) % 3, "shape"),
    ],
    ids=["other dimensions", "other classes", "labels with a fraction", "fewer rows than labels"],
)
def test_features_that_do_not_fit_together(check, workshop, tmp_path, x, y, words):
    tiny.write_features(workshop.models / "tiny/net/birds/features_test", x, y)
    assert words in check(logreg.main, *classifier(workshop, tmp_path / "out")).problems[0]


def test_features_that_cannot_be_read(check, workshop, tmp_path):
    (workshop.models / "tiny/net/birds/features_test/X_Y.pth").write_bytes(b"PK\x03\x04")
    assert check(logreg.main, *classifier(workshop, tmp_path / "out")).code == 2


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (("CLF.PCA_DIM", 7), "images of 6 dimensions vary in 6 directions at most"),
        (
            ("CLF.PCA_DIM", 6, "CLF.MAX_PER_CLASS", 2),
            "CLF.PCA_DIM 6: 6 training images",
        ),
        (("CLF.MAX_PER_CLASS", 1), "every class has a single training image"),
    ],
)
def test_variants_that_there_are_too_few_images_for(check, tmp_path, pairs, words):
    x, y = tiny.make_xy(n_per_class=8, n_classes=3, dim=6)
    for split in ("train", "test"):
        tiny.write_features(tmp_path / f"tiny/net/birds/features_{split}", x, y)
    here = types.SimpleNamespace(models=tmp_path)
    assert words in check(logreg.main, *classifier(here, tmp_path / "out", *pairs)).problems[0]
    enough = classifier(here, tmp_path / "out", "CLF.PCA_DIM", 5, "CLF.MAX_PER_CLASS", 2)
    assert check(logreg.main, *enough).code == 0


def test_what_a_network_takes_on_the_disk(check, workshop, tmp_path, monkeypatch):
    argv = classifier(workshop, tmp_path / "out", "CLF.TYPE", "mlp", "CLF.MLP_HIDDEN")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=20_000_000))
    assert check(logreg.main, *argv, 8).code == 0
    assert "will be written" in check(logreg.main, *argv, 2048).problems[0]


def test_results(check, tmp_path, workshop):
    assert "no finished run" in check(print_results.main, "--models_root_dir", workshop.models).problems[0]
    root = ("--models_root_dir", workshop.models)
    runs = workshop.models / "tiny/net/birds/eval_logreg"
    argv = classifier(workshop, runs, "--seeds", 1, "CLF.N_TRIALS", 2, "CLF.N_EPOCHS", 2)
    assert logreg.main([*map(str, argv)]) == 0
    report = check(print_results.main, *root, "--report", tmp_path / "report.html")
    assert report.code == 0 and "1 runs" in report.text
    report = check(print_results.main, *root, "--baseline", "other_net")
    assert "--baseline other_net" in report.problems[0]


@pytest.mark.slow
@pytest.mark.usefixtures("wordnet")
def test_levels(check, tmp_path, workshop, shared_dir):
    counts = shared_dir / "imagenet21k/fall11_image_counts.csv"
    output = ("--output_dir", tmp_path / "levels")
    report = check(build_levels.main, "--image_counts", counts, *output)
    assert report.code == 0 and "concepts with" in report.text
    report = check(build_levels.main, "--imagenet_images_root", tmp_path / "nowhere", *output)
    assert "does not exist" in report.problems[0]


# ------------------------------------------------------------------------------------------------------------
# Other forms than folders of synsets


def with_root(argv, root):
    argv = list(argv)
    argv[argv.index("--imagenet_images_root") + 1] = root
    return argv


@pytest.mark.slow
def test_processed_layout_is_read_as_it_is(check, workshop, tmp_path):
    root = tmp_path / "winter21"
    archive_forms.winter_parts(workshop.in21k, root)
    for images in (workshop.in21k, root):
        argv = with_root(level(workshop), images)
        assert check(extract_features.main, *argv).problems == []
        assert extract_features.main([*map(str, argv), "--device", "cpu"]) == 0
    report = check(extract_features.main, *with_root(level(workshop), root / "imagenet21k_train"))
    assert "one part of the processed Winter-2021 release" in report.problems[0]
    assert f"give {root}, whose parts are read together" in report.problems[0]


def test_tar_files_are_read_and_missing_images_named(check, workshop, tmp_path):
    root, wnid = tmp_path / "tars", tiny.WNIDS[0]
    root.mkdir()
    archive_forms.tar_per_class(workshop.in21k, root)
    argv = with_root(level(workshop), root)
    assert check(extract_features.main, *argv).problems == []
    first = workshop.in21k / f"{wnid}/{wnid}_0.JPEG"
    (root / f"{wnid}.tar").write_bytes(archive_forms.tar_bytes([(first.name, first.read_bytes())]))
    in_folders = tmp_path / "folders"
    shutil.copytree(workshop.in21k, in_folders)
    for index in (1, 2):
        (in_folders / f"{wnid}/{wnid}_{index}.JPEG").unlink()
    problems = check(extract_features.main, *argv).problems
    expected = check(extract_features.main, *with_root(level(workshop), in_folders)).problems
    assert problems == [line.replace(str(in_folders), str(root)) for line in expected] and problems


def test_an_unusable_archive_hides_nothing(check, workshop, tmp_path):
    """Neither missing concepts nor missing and empty images of others; what stops an extraction names both, too."""
    concepts = broken, absent, short, hollow = sorted(folder.name for folder in workshop.in21k.iterdir())
    tiny.write_levels_file(workshop.levels_file, [concepts])
    root = tmp_path / "tars"
    root.mkdir()
    archive_forms.tar_per_class(workshop.in21k, root)
    (root / f"{broken}.tar").write_bytes(b"<html>login</html>" * 100)
    (root / f"{absent}.tar").unlink()
    *_, last = sorted((workshop.in21k / short).iterdir())
    (root / f"{short}.tar").write_bytes(archive_forms.tar_bytes([(last.name, last.read_bytes())]))
    empty_images = [(path.name, b"") for path in (workshop.in21k / hollow).iterdir()]
    (root / f"{hollow}.tar").write_bytes(archive_forms.tar_bytes(empty_images))
    argv = with_root(level(workshop), root)
    problems = check(extract_features.main, *argv).problems
    for words, n_lines in (
        (f"{broken}.tar cannot be read as a tar file", 1),
        (f"lacks the folders of 1 of the 4 concepts of cog_l1 ({absent})", 1),
        (f"are missing under {root}: {short}/", 2),  # one for each split
        (f"are empty (0 bytes) under {root}: {hollow}/", 2),
    ):
        assert len([line for line in problems if words in line]) == n_lines, words
    assert not any(f" {wnid}/" in line for line in problems for wnid in (broken, absent))
    with pytest.raises(CogError, match=rf"{broken}\.tar cannot be read .*; .*lacks the folders .*{absent}"):
        extract_features.main([*map(str, argv), "--device", "cpu"])


def test_members_that_cannot_be_read_are_problems(check, workshop, tmp_path):
    """One line says how many there are, and --allow_failures accepts them, as it accepts empty images."""
    concepts = *_, linked = sorted(folder.name for folder in workshop.in21k.iterdir())
    tiny.write_levels_file(workshop.levels_file, [concepts])
    root = tmp_path / "tars"
    root.mkdir()
    archive_forms.tar_per_class(workshop.in21k, root)
    with tarfile.open(root / f"{linked}.tar", "w") as archive:
        for path in (workshop.in21k / linked).iterdir():
            member = tarfile.TarInfo(path.name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    argv = with_root(level(workshop), root)
    problems = check(extract_features.main, *argv).problems
    words = "cannot be read (it is a link in its archive, expected a file) under"
    assert len(problems) == 2 and all(words in line and f": {linked}/" in line for line in problems)
    report = check(extract_features.main, *argv, "--allow_failures", 999)
    accepted = [line for line in report.lines if words in line]
    assert not report.problems and len(accepted) == 2 and all(line.startswith("warning") for line in accepted)


def test_roots_of_other_forms_are_explained(check, workshop, tmp_path):
    report = check(extract_features.main, *with_root(level(workshop), workshop.in21k.parent))
    assert "give that folder" in report.problems[0] and str(workshop.in21k) in report.problems[0]
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars/winter21_whole.tar.gz").touch()
    report = check(extract_features.main, *with_root(level(workshop), tmp_path / "tars"))
    assert "gunzip" in report.problems[0] and "winter21_whole.tar.gz" in report.problems[0]
