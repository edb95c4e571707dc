"""Reading result folders: both toolkits' layouts, what counts, and what is only reported."""

import json
import pickle

import numpy as np
import pytest
from result_folders import make_logs, make_record, make_seed_folder

from cog.errors import CogError
from cog.results import analysis_records, concept_counts, read, runs
from cog.results.analysis_records import AnalysisRecord
from cog.runtime.output import Output


def only(found):
    """Return the rows of the only run, there being no problem: top-1, top-5."""
    assert found.skipped == []
    return found.scores.to_dict("records")


def reasons(found):
    """Return the reasons by name of the folder, there being no run."""
    assert found.scores.empty
    return {skipped.path.name: skipped.reason for skipped in found.skipped}


def seeds(found):
    return [run.seed for run in found.runs]


CONFIG = f"CLF:\n {'a' * 60_000}\n LR_INTV:\n - 0.1\n - 10.0\n N_TRIALS: 3\nFT_EXTRACT:\n N_TRIALS: 8\n"


@pytest.mark.parametrize("kind", [float, np.float32])
@pytest.mark.parametrize(
    "folder, n_shot, seed",
    [("-N8/seed_22", 8, 22), ("_N128/seed-55", 128, 55), ("/seed_93", 0, 93)],
)
def test_reads_both_spellings_and_both_toolkits(tmp_path, folder, n_shot, seed, kind):
    path = tmp_path / f"deit/small_distilled/cog_l3/eval_logreg{folder}"
    logs = make_logs(55.5, 77.5, n_epochs=60, kind=kind)
    del logs["train/top1"][: int(seed == 93)]  # its loss was not finite in the last epoch
    make_seed_folder(path, logs=logs)
    (path / "config.txt").write_text(CONFIG)
    settings = (
        "lr_interval 0.1 to 10, training diverged" if seed == 93 else "n_epochs 60, lr_interval 0.1 to 10"
    )
    for lr in (None, 3.0) if kind is float else (None,):  # the original toolkit's, ours
        top1, top5 = only(runs.find(tmp_path))
        place = [top1[name] for name in ("model", "dataset", "evaluation", "n_shot", "seed", "folder")]
        assert place == ["deit_small_distilled", "cog_l3", "logreg", n_shot, seed, str(path)]
        assert (top1["value"], top5["value"], top1["correct"], top1["data"]) == (55.5, 77.5, None, "unknown")
        assert (top1["details"]["final"], top1["details"]["lr"]) == ("final-lr-10.5_wd-1e-06", lr)
        assert top1["protocol"] == ("" if lr else f"n_trials 3, {settings}")
        make_record(path, seed=seed, n_shot=n_shot, lr=3.0)


@pytest.mark.parametrize(
    ("made", "odd"),
    [
        ({"_N8/seed-22": "a", "_N8/seed-37": "a", "_N8/seed-45": "b"}, {"seed-45"}),
        ({"/seed-22": "a", "_N1/seed-37": "b", "_N1/seed-45": "b"}, {"seed-22"}),
        ({"/seed-22": "a", "/seed-37": "b"}, {"seed-22"}),  # the last one counts
        ({"/seed-22": "a", "/seed-37": "a, other images", "/seed-45": "a"}, {"seed-37"}),
        ({"/seed-22": "a", "/seed-37": None}, set()),  # a run of the original toolkit
    ],
)
def test_runs_on_other_features_are_named_and_do_not_count(tmp_path, made, odd):
    for number, (name, features) in enumerate(made.items()):
        folder = make_seed_folder(tmp_path / f"my/net/in1k/eval_logreg{name}", 85.0, 90.0)
        if features is not None:
            of = {"rows_sha256": features[0], "image_list_sha256": features, "image_contents_crc32": number}
            used = {f"{split}_features": of for split in ("train", "test")}
            n_shot = int(name[2]) if name.startswith("_N") else 0
            record = {"identity": used, "finished": f"2026-01-0{number + 1}", "n_classes": 2}
            counts = concept_counts.write([9, 8], [10, 10])
            make_record(folder, seed=int(name[-2:]), n_shot=n_shot, record=record, **counts)
    found = runs.find(tmp_path)
    assert {skipped.path.name for skipped in found.skipped} == odd
    assert all("trained on other features than " in skipped.reason for skipped in found.skipped)
    assert len(found.runs) == len(made) - len(odd)
    lists = [run.correct.image_list for run in found.runs if run.correct]
    assert len({*lists}) == len(lists), "images of the same names and other contents"


FINAL = {"folder": "final-lr-1_wd-1", "test_top1": 50.0, "test_top5": 70.0}
GOOD = {"status": "complete", "seed": 22, "n_shot": 0, "n_classes": 3, "final": FINAL}
DAMAGED, NAN = {"correct_per_class": "MDIA", "images_per_class": 50}, float("nan")


@pytest.mark.parametrize(
    "file, content, reason",
    [
        ("logs.pkl", b"", "is empty"),
        ("logs.pkl", pickle.dumps(make_logs())[:99], "not a readable pickle"),
        ("logs.pkl", [1, 2], "no list test/top1"),
        ("logs.pkl", {"test/top1": [NAN], "test/top5": [70.0]}, "test/top1 is nan"),
        ("results.json", GOOD | {"status": "running"}, "status 'running'"),
        ("results.json", GOOD | {"n_shot": 4}, "says n_shot 4"),
        ("results.json", GOOD | {"identity": {"seed": 37}}, "says seed 37"),
        ("results.json", GOOD | {"dataset": "cog_l4"}, "says dataset 'cog_l4', the folder's name in1k"),
        ("results.json", GOOD | {"model": "sup_net"}, "says model 'sup_net', the folder's name sup_resnet50"),
        ("results.json", GOOD | {"final": {**FINAL, "test_top5": 11.0}}, "was changed: its top5"),
        ("results.json", GOOD | {"final": 3}, "no entry 'final'"),
        ("results.json", GOOD | {"final": {**FINAL, "folder": "../../elsewhere"}}, "names the final folder"),
        ("results.json", GOOD | {"final": {**FINAL, "test_top1": NAN}}, "test_top1 is nan"),
        ("results.json", GOOD | {"final": FINAL | DAMAGED}, "was changed"),
        ("results.json", "", "is empty"),
        ("results.json", "{", "not valid JSON"),
        ("results.json", "[" * 100_000, "not valid JSON"),
    ],
)
def test_wrong_files_cost_their_folder(tmp_path, file, content, reason):
    folder = tmp_path / "sup/resnet50/in1k/eval_logreg/seed-22"
    if file == "logs.pkl":
        make_seed_folder(folder, logs=content)
    else:
        make_seed_folder(folder, 50.0, 70.0, final=FINAL["folder"])
        (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    (text,) = reasons(runs.find(tmp_path)).values()
    assert reason in text and str(tmp_path) not in text and "\n" not in text, "the path is in Skipped.path"


@pytest.mark.parametrize("odd", [[], "x", {"a": {"b": 1}}, None])
def test_facts_of_another_form_are_taken_as_not_recorded(tmp_path, odd):
    names = ("identity", "rows", "versions", "device", "precision", "finished", "train_features")
    make_record(make_seed_folder(tmp_path / "seed-22"), record=dict.fromkeys(names, odd))
    assert [row["data"] for row in only(runs.read_folder(tmp_path))] == ["unknown", "unknown"]


def test_unfinished_and_foreign_folders(tmp_path):
    for name in ("seed-1", "seed-2/final-lr-1_wd-1", "seeds", "notes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "seed-4").write_text("a file, not a folder")
    with pytest.raises(KeyboardInterrupt), Output(tmp_path / "seed-7", {}).claimed():
        raise KeyboardInterrupt
    found = reasons(runs.read_folder(tmp_path))
    assert found.keys() == {"seed-1", "seed-2", "seeds", "seed-7"} and found["seed-7"] == runs.UNFINISHED
    assert "unfinished" in found["seed-1"] and "seed-<number>" in found["seeds"]
    make_seed_folder(tmp_path / "seed-7", 60.0)  # a complete run counts until its successor is complete
    assert seeds(runs.read_folder(tmp_path)) == [7]


def test_what_is_there_twice_counts_neither(tmp_path):
    for name in ("_N8/seed-22", "_N8/seed_22", "_N8/seed-37", "-N8/seed_37", "-N8/seed_45"):
        make_seed_folder(tmp_path / f"a/b/in1k/eval_logreg{name}")
    found = runs.find(tmp_path)
    assert seeds(found) == [45] and len(found.skipped) == 4
    seed = make_seed_folder(tmp_path / "x/seed-22", 60.0, final="final-lr-1_wd-1")
    make_seed_folder(tmp_path / "new", 70.0, final="final-lr-2_wd-0.5")
    (tmp_path / "new/final-lr-2_wd-0.5").rename(seed / "final-lr-2_wd-0.5")
    assert "2 final folders" in reasons(runs.read_folder(tmp_path / "x"))["seed-22"]
    make_record(seed, folder="final-lr-2_wd-0.5")
    assert only(runs.read_folder(tmp_path / "x"))[0]["value"] == 70.0


def test_filters_links_and_loops(tmp_path):
    names = "b/net10/cog_l2/eval_logreg b/net10/in1k/eval_logreg_N16 A/net/in1k/eval_mlp .c/x/in1k/eval_l"
    for name in (*names.split(), "a_b/net/in1k/eval_l", "b/nét/in1k/eval_l", "b/net10/in 1k/eval_l"):
        make_seed_folder(tmp_path / name / "seed-22")
    make_seed_folder(tmp_path / "b/net10/cog_l2/eval_logreg/seed-37")
    for name, target in (("linked", "net10"), ("loop", ".."), ("dead", "nothing")):
        (tmp_path / "b" / name).symlink_to(target)

    def places(**wanted):
        found = runs.find(tmp_path, **{"models": ["A_*", "b_net*"], **wanted})
        return {(run.model, run.dataset, run.n_shot, run.seed) for run in found.runs}

    assert places(models=["A_net", "x_y"]) == {("A_net", "in1k", 0, 22)} == places(evaluations={"mlp"})
    assert places(models=["b_n*"], datasets=["in1k"]) == {("b_net10", "in1k", 16, 22)} == places(n_shots=[16])
    assert places(seeds=[37]) == {("b_net10", "cog_l2", 0, 37)} and len(places()) == 4
    assert {model for model, *_ in places(models=None)} == {"A_net", "b_net10", "b_linked"}
    skipped = {str(one.path.relative_to(tmp_path)) for one in runs.find(tmp_path).skipped}
    assert skipped == {"a_b", "b/nét", "b/net10/in 1k", "b/linked/in 1k"}
    with pytest.raises(CogError, match="--models_root_dir"):
        runs.find(tmp_path / "nowhere")


def test_analyses_are_rows(tmp_path):
    folder = tmp_path / "a/b/in1k/analysis_kmeans"
    folder.mkdir(parents=True)
    per_seed, values = {"0": {"ami": 0.4}, "1": {"ami": 0.6}}, {"ami": 0.6, "none": None}
    analysis_records.write(folder, AnalysisRecord("kmeans", "a_b", "in1k", {}, values, [0, 1], per_seed))
    (tmp_path / "a/b/in1k/analysis_knn").mkdir()
    results = read.read(tmp_path)
    rows = {row.metric: row for row in results.scores.itertuples()}
    assert {metric: row.value for metric, row in rows.items()} == {"ami": 0.6, "ami_min": 0.4, "ami_max": 0.6}
    ami = rows["ami"]
    assert (ami.std, ami.model, ami.evaluation) == (pytest.approx(0.1), "a_b", "kmeans")
    assert [one.path.name for one in results.skipped] == ["analysis_knn"]


def test_pretraining_and_data_are_those_of_the_features(tmp_path):
    base = tmp_path / "limit-2/sup/resnet50/in1k"
    run = make_seed_folder(base / "eval_logreg/seed-22")
    make_record(run, record={"n_classes": 1000, "rows": {"test": 50_000}})
    (base / "features_train").mkdir()
    for more, expected in (
        ({"pretraining": "web", "n_failed": 9_999}, ("web", "limit-2, 1,271,168 training images")),
        ({"pretraining": "?"}, ("IN-1K", "limit-2, list of classes cccccccc")),  # the name's
    ):
        described = {"n_images": 1_281_167, "class_list_sha256": "c" * 64, **more}
        (base / "features_train/features.json").write_text(json.dumps(described))
        run, _ = only(read.read(tmp_path / "limit-2"))
        assert (run["pretraining"], run["data"]) == expected
