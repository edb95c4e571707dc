"""``--limit N``: the whole chain on a few images, whose outputs nothing takes for results."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest
import tiny

from cog.commands import (
    analyze_features,
    extract_features,
    limits,
    logreg,
    print_results,
    resplit_features,
    status,
    study,
)
from cog.data.image_lists import from_class_folders
from cog.data.image_sources import ImageSources
from cog.errors import CogError

SMALL = (
    "FT_EXTRACT.IMAGE_RESIZE_SIZE", "8", "FT_EXTRACT.IMAGE_CROP_SIZE", "8", "FT_EXTRACT.N_WORKERS", "0",
    "--device", "cpu",
)  # fmt: skip

#: A model and a data set.
ONE = ("--model", "tiny_net", "--dataset", "birds")


def run(command, workshop, *argv):
    words = ("--models_root_dir", workshop.models, *argv)
    return command.main(list(map(str, words)))


def extract(workshop, *argv):
    model = ("--model", "tiny_net", "--model_loader", f"{workshop.loader}:load_my_model")
    images = ("--dataset", "birds", "--images_root", workshop.birds, "--split", "train", "test")
    return run(extract_features, workshop, *model, *images, *SMALL, *argv)


def train(workshop, *argv):
    return run(logreg, workshop, *ONE, "--device", "cpu", "--seeds", "22", *argv)


@pytest.fixture
def limited(workshop):
    """A workshop without features of its own, whose model has features and a classifier of ``--limit 2``."""
    shutil.rmtree(workshop.models / "tiny/net/birds")
    assert extract(workshop, "--limit", "2") == 0
    assert train(workshop, "--limit", "2") == 0
    return workshop


def test_the_first_images_of_the_first_classes(workshop):
    whole = from_class_folders("birds", "train", workshop.birds / "train", flag="--images_root")
    for n in (1, 2, 5):
        some = ImageSources({"images_root": str(workshop.birds)}, limit=n).list_images("birds", "train")
        assert some.classes == whole.classes[:n]
        wanted = [
            f"{name}/{file.name}"
            for name in sorted(p.name for p in (workshop.birds / "train").iterdir())[:n]
            for file in sorted((workshop.birds / "train" / name).iterdir())[:n]
        ]
        assert [some.file(row) for row in range(len(some))] == wanted
        assert [some.classes[label] for label in some.labels] == [name.partition("/")[0] for name in wanted]


def test_outputs_lie_apart_and_say_so(limited):
    models, place = limited.models, limited.models / "limit-2/tiny/net/birds"
    assert sorted(p.name for p in models.iterdir()) == ["limit-2", "tiny"]
    assert [p.name for p in (models / "tiny/net").iterdir()] == ["model.ckpt"]
    made = json.loads((place / "features_train/features.json").read_text())
    assert (made["limit"], made["n_images"], made["checkpoint"]) == (2, 4, str(limited.checkpoint))
    record = json.loads((place / "eval_logreg/seed-22/results.json").read_text())
    assert record["identity"]["limit"] == 2
    assert (record["identity"]["n_trials"], record["identity"]["n_epochs"], record["n_classes"]) == (2, 2, 2)


def test_what_is_complete_is_skipped_and_keys_of_the_command_line_win(limited, caplog):
    before = tiny.snapshot(limited.root)
    assert extract(limited, "--limit", "2") == 0
    assert train(limited, "--limit", "2") == 0
    assert tiny.snapshot(limited.root) == before
    assert train(limited, "--limit", "2", "CLF.N_EPOCHS", "3", "--overwrite") == 0
    run_folder = limited.models / "limit-2/tiny/net/birds/eval_logreg/seed-22"
    assert json.loads((run_folder / "results.json").read_text())["identity"]["n_epochs"] == 3


@pytest.mark.slow
def test_tables_are_marked_and_those_of_the_root_do_not_have_them(limited, capsys, tmp_path):
    assert run(print_results, limited, "--limit", "2") == 0
    assert "--limit 2: a test of the commands on a few images, and no results." in capsys.readouterr().out
    root = str(limited.models / "limit-2")  # stands for the flag
    assert print_results.main(["--models_root_dir", root, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows and {row["limit"] for row in rows} == {"2"}
    assert run(print_results, limited, "--limit", "2", *ONE) == 0
    assert "seed 22: " in (text := capsys.readouterr().out) and "--limit 2: a test" in text
    assert run(print_results, limited, "--limit", "2", "--claims") == 0
    assert "--limit 2: a test" in capsys.readouterr().out
    report = tmp_path / "report.html"
    assert run(print_results, limited, "--limit", "2", "--report", report) == 0
    assert "These are no results" in report.read_text()
    with pytest.raises(CogError, match="no finished run"):
        run(print_results, limited)
    with pytest.raises(CogError, match="leave out --export"):
        run(print_results, limited, "--limit", "2", "--export", tmp_path / "shared.json")


def test_repeated_splits(limited, capsys):
    place = limited.models / "limit-2/tiny/net"
    (place / "birds/features_test/image_paths.txt").unlink()  # they have the names of the training images
    assert run(resplit_features, limited, "--limit", "2", *ONE, "--split_seed", "1", "2") == 0
    splits = [f"birds_split{seed}" for seed in (1, 2)]
    assert capsys.readouterr().out.split() == [str(place / name) for name in splits]
    assert json.loads((place / "birds_split1/features_test/features.json").read_text())["limit"] == 2
    assert [p.name for p in (limited.models / "tiny/net").iterdir()] == ["model.ckpt"]
    for name in splits:
        assert train(limited, "--limit", "2", "--dataset", name) == 0
    assert run(resplit_features, limited, "--limit", "2", *ONE, "--spread") == 0
    out = capsys.readouterr().out
    assert "tiny_net, birds" in out
    assert "--limit 2: a test of the commands on a few images, and no results." in out
    with pytest.raises(CogError, match="has runs on two splits"):
        run(resplit_features, limited, *ONE, "--spread")
    with pytest.raises(CogError, match="run extract_features.py --limit 3 first"):
        run(resplit_features, limited, "--limit", "3", *ONE, "--split_seed", "1")


def test_what_was_moved_is_not_counted(limited, capsys, caplog):
    shutil.move(limited.models / "limit-2/tiny/net/birds", limited.models / "tiny/net/birds")
    with pytest.raises(CogError, match="no finished run"):
        run(print_results, limited)
    assert "was made with --limit 2: it is a test of the commands, not a result" in caplog.text
    with pytest.raises(CogError, match="was made with --limit 2"):
        train(limited, "--overwrite")
    with pytest.raises(CogError, match="was made with --limit 2"):
        run(analyze_features, limited, *ONE, "--analysis", "ncm")
    with pytest.raises(CogError, match=r"made differently \(.*limit"):
        extract(limited)


def test_results_among_those_of_a_limit_are_not_counted(workshop, caplog):
    assert train(workshop, "CLF.N_TRIALS", "1", "CLF.N_EPOCHS", "1") == 0
    (workshop.models / "limit-3").mkdir()
    shutil.move(workshop.models / "tiny", workshop.models / "limit-3/tiny")
    with pytest.raises(CogError, match="no finished run"):
        run(print_results, workshop, "--limit", "3")
    assert "was made without --limit, but lies among outputs of --limit 3" in caplog.text


def test_features_of_a_limit_are_not_analyzed_elsewhere(limited, tmp_path):
    argv = ["--device", "cpu", "--output_dir", tmp_path / "out"]
    for split in ("train", "test"):
        argv += [f"--{split}_features_dir", limited.models / f"limit-2/tiny/net/birds/features_{split}"]
    for command, more in ((logreg, []), (analyze_features, ["--analysis", "ncm"])):
        with pytest.raises(CogError, match="holds features of --limit 2"):
            command.main([*map(str, argv), *more])
    assert not (tmp_path / "out").exists()


def test_a_study_and_its_state(limited, tmp_path, capsys):
    which = ("--models", "tiny_net", "--datasets", "birds", "--seeds", "22", "--shots", "0", "--limit", "2")
    assert run(study, limited, *which, "--log_dir", tmp_path / "logs", "--images_root", limited.birds) == 0
    assert [p.name for p in (tmp_path / "logs").iterdir() if not p.name.startswith(".")] == ["limit-2"]
    table = (tmp_path / "logs/limit-2/results.txt").read_text()
    assert "--limit 2: a test of the commands" in table
    capsys.readouterr()
    assert run(status, limited, *which) == 0
    assert "features: 2 done of 2" in capsys.readouterr().out
    (limited.models / "other/net/birds/features_test").mkdir(parents=True)
    assert run(status, limited, "--limit", "2") == 0  # those with outputs of it
    assert "tiny_net  2/2" in (text := capsys.readouterr().out) and "other_net" not in text
    shutil.rmtree(limited.models / "other")
    assert run(status, limited, "--datasets", "birds") == 0  # all models: limit-2 is none
    assert "limit" not in (text := capsys.readouterr().out) and "tiny_net  0/2" in text


def test_contradictions(workshop):
    with pytest.raises(CogError, match="leave out --output_dir"):
        train(workshop, "--limit", "2", "--output_dir", "out")
    with pytest.raises(CogError, match="--limit 2, not of --limit 3"):
        train(workshop, "--limit", "3", "--models_root_dir", "models/limit-2")


def test_a_limit_needs_a_root_and_two_classes(capsys):
    with pytest.raises(CogError, match="--models_root_dir; give that"):
        logreg.main(
            ["--limit", "2", "--train_features_dir", "a", "--test_features_dir", "b", "--output_dir", "c"]
        )
    with pytest.raises(SystemExit):
        logreg.main(["--limit", "1"])
    assert "1 is too small, expected 2 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        study.main(["--models_root_dir", "m", "--log_dir", "l", "--", "--limit", "2"])
    assert "give it before --" in capsys.readouterr().err


def test_keys_of_a_limit_are_keys_of_the_configuration():
    from cog import config

    assert set(limits._KEYS) <= set(config.flat(config.default_cfg()))
