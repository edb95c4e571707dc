"""Reading result folders: both toolkits' layouts, what counts, and what is only reported."""

from __future__ import annotations

import collections
import json
import os
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from result_folders import make_logs, make_record, make_seed_folder

from cog.errors import CogError
from cog.results import analysis_records, find, query, run_records, scores
from cog.runtime import atomic_dir, files


def only(found):
    """Return the only run, there being no problem."""
    runs, problems = found
    assert problems == []
    (run,) = runs
    return run


def reasons(found):
    """Return {folder name: reason}, there being no run."""
    runs, problems = found
    assert runs == []
    return {problem.path.name: problem.reason for problem in problems}


def test_reads_the_layout_this_toolkit_writes(tmp_path):
    seed = make_seed_folder(tmp_path / "sup/resnet50/in1k/eval_logreg_N8/seed-37", 71.25, 91.5, n_epochs=7)
    make_record(seed, seed=37, n_shot=8, lr=3.0, wd=1e-7)
    run = only(find.find_runs(tmp_path))
    assert run == run_records.Run(
        model="sup_resnet50",
        dataset="in1k",
        n_shot=8,
        seed=37,
        top1=71.25,
        top5=91.5,
        n_epochs=7,
        lr=3.0,
        wd=1e-7,
        diverged=False,
        folder=str(seed),
        final_folder="final-lr-10.5_wd-1e-06",
    )


@pytest.mark.parametrize(
    ("made", "odd"),
    [
        ({"_N8/seed-22": "a", "_N8/seed-37": "a", "_N8/seed-45": "b"}, {"seed-45"}),
        ({"/seed-22": "a", "_N1/seed-37": "b", "_N1/seed-45": "b"}, {"seed-22"}),
        ({"/seed-22": "a", "/seed-37": "b"}, {"seed-22"}),  # the last one counts
        ({"/seed-22": "a", "/seed-37": None}, set()),  # a run of the original toolkit
        ({"/seed-22": "a", "_pca2/seed-22": "b"}, set()),  # another evaluation
    ],
)
def test_runs_on_other_features_are_named_and_do_not_count(tmp_path, made, odd):
    for number, (name, features) in enumerate(made.items()):
        folder = make_seed_folder(tmp_path / f"sup/resnet50/in1k/eval_logreg{name}", 70.0 + number, 90.0)
        if features is None:
            continue
        used = {f"{split}_features": {"sample_sha256": f"{features} {split}"} for split in ("train", "test")}
        n_shot = int(name[2]) if name.startswith("_N") else 0
        record = {"identity": used, "finished": f"2026-01-0{number + 1}"}
        make_record(folder, seed=int(name[-2:]), n_shot=n_shot, record=record)
    found = find.find_all(tmp_path)
    assert {problem.path.name for problem in found.problems} == odd
    assert all("trained on other features than " in problem.reason for problem in found.problems)
    assert len(found.runs) == len(made) - len(odd)


@pytest.mark.parametrize(
    "folder, n_shot, seed",
    [
        ("eval_logreg-N8/seed_22", 8, 22),
        ("eval_logreg_N8/seed-22", 8, 22),
        ("eval_logreg-N128/seed-55", 128, 55),
        ("eval_logreg/seed_93", 0, 93),
    ],
)
def test_reads_both_spellings_of_the_original_toolkit(tmp_path, folder, n_shot, seed):
    make_seed_folder(tmp_path / "deit/small_distilled/cog_l3" / folder, 55.5, 77.5, n_epochs=100)
    run = only(find.find_runs(tmp_path))
    assert (run.model, run.dataset, run.n_shot, run.seed) == ("deit_small_distilled", "cog_l3", n_shot, seed)
    assert (run.top1, run.top5, run.n_epochs, run.lr, run.wd) == (55.5, 77.5, 100, 10.5, 1e-6)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("kind", [float, np.float32, np.float64, np.array])
def test_reads_numpy_scalars_and_every_pickle_protocol(tmp_path, kind, protocol):
    make_seed_folder(tmp_path / "seed_22", 71.25, 91.5, kind=kind, protocol=protocol)
    run = only(find.read_evaluation(tmp_path))
    assert (run.top1, run.top5) == (71.25, 91.5)
    assert type(run.top1) is float


def test_reads_arrays_instead_of_lists_and_rounding_above_100_percent(tmp_path):
    arrays = {key: np.asarray(values) for key, values in make_logs(100.00001).items()}
    make_seed_folder(tmp_path / "seed_37", logs=arrays)
    assert only(find.read_evaluation(tmp_path)).top1 == 100.00001


def test_a_pickle_that_runs_code_is_reported_and_never_executed(tmp_path):
    proof = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(proof),)

    evil = pickle.dumps({**make_logs(), "test/top1": [Evil()]})
    pickle.loads(evil)
    assert proof.exists(), "the payload must be able to do harm, or this test shows nothing"
    proof.rmdir()
    make_seed_folder(tmp_path / "eval_logreg/seed_22", logs=evil)
    make_seed_folder(tmp_path / "eval_logreg/seed_37")
    runs, problems = find.read_evaluation(tmp_path / "eval_logreg")
    assert [run.seed for run in runs] == [37]
    assert "mkdir" in problems[0].reason and "refused" in problems[0].reason
    assert not proof.exists()


GOOD = pickle.dumps(make_logs())


@pytest.mark.parametrize(
    "logs, reason",
    [
        (b"", "not a readable pickle"),
        (GOOD[: len(GOOD) // 2], "not a readable pickle"),
        (b"\x00" * 50, "not a readable pickle"),
        ([1, 2], "expected a dict of lists"),
        ({"test/top5": [1.0]}, "no list test/top1"),
        ({"test/top1": [1.0]}, "no list test/top5"),
        ({"test/top1": 70.0, "test/top5": 90.0}, "no list test/top1"),
        ({"test/top1": [], "test/top5": []}, "no list test/top1"),
        ({"test/top1": [50.0, 60.0], "test/top5": [70.0]}, "2 epochs of test/top1 but 1"),
        ({"test/top1": [float("nan")], "test/top5": [70.0]}, "test/top1 is nan"),
        ({"test/top1": [50.0], "test/top5": [101.0]}, "test/top5 is 101.0"),
        ({"test/top1": ["50"], "test/top5": [70.0]}, "test/top1 is str, expected"),
        ({"test/top1": [True], "test/top5": [70.0]}, "test/top1 is bool, expected"),
        ({"test/top1": [np.zeros(2)], "test/top5": [70.0]}, "test/top1 is list, expected"),
    ],
)
def test_unusable_logs_are_problems(tmp_path, logs, reason):
    make_seed_folder(tmp_path / "seed-22", logs=logs)
    (text,) = reasons(find.read_evaluation(tmp_path)).values()
    assert reason in text
    assert str(tmp_path) not in text, "the path is in Problem.path already"


def test_unfinished_and_foreign_folders_are_problems(tmp_path):
    (tmp_path / "seed-1").mkdir()
    (tmp_path / "seed-2/final-lr-1_wd-1").mkdir(parents=True)
    (tmp_path / ".seed-3.tmp/final-lr-1_wd-1").mkdir(parents=True)
    (tmp_path / "seeds").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "seed-4").write_text("a file, not a folder")
    (tmp_path / ".DS_Store").write_text("a file, not a folder")
    found = reasons(find.read_evaluation(tmp_path))
    assert found.keys() == {"seed-1", "seed-2", ".seed-3.tmp", "seeds"}
    assert "unfinished" in found["seed-1"] and "logs.pkl" in found["seed-2"]
    assert "hidden" in found[".seed-3.tmp"] and "seed-<number>" in found["seeds"]


def test_the_same_seed_twice_counts_neither(tmp_path):
    make_seed_folder(tmp_path / "a/b/in1k/eval_logreg_N8/seed-22")
    make_seed_folder(tmp_path / "a/b/in1k/eval_logreg_N8/seed_22")
    make_seed_folder(tmp_path / "a/b/in1k/eval_logreg_N8/seed-37")
    make_seed_folder(tmp_path / "a/b/in1k/eval_logreg-N8/seed_37")
    make_seed_folder(tmp_path / "a/b/in1k/eval_logreg-N8/seed_45")
    runs, problems = find.find_runs(tmp_path)
    assert [run.seed for run in runs] == [45]
    assert [str(problem.path.relative_to(tmp_path / "a/b/in1k")) for problem in problems] == [
        "eval_logreg-N8/seed_37",
        "eval_logreg_N8/seed-22",
        "eval_logreg_N8/seed-37",
        "eval_logreg_N8/seed_22",
    ]
    assert str(tmp_path / "a/b/in1k/eval_logreg_N8/seed_22") in problems[1].reason


def test_two_final_folders_need_results_json(tmp_path):
    seed = make_seed_folder(tmp_path / "seed-22", 60.0, final="final-lr-1_wd-1")
    make_seed_folder(tmp_path / "new", 70.0, final="final-lr-2_wd-0.5")
    (tmp_path / "new/final-lr-2_wd-0.5").rename(seed / "final-lr-2_wd-0.5")
    assert "2 final folders" in reasons(find.read_evaluation(tmp_path))["seed-22"]
    make_record(seed, folder="final-lr-2_wd-0.5", lr=2.0, wd=0.5)
    run = only(find.read_evaluation(tmp_path))
    assert (run.top1, run.final_folder, run.lr) == (70.0, "final-lr-2_wd-0.5", 2.0)


def test_a_final_folder_without_logs_does_not_make_a_run_ambiguous(tmp_path):
    make_seed_folder(tmp_path / "seed_22", 60.0)
    (tmp_path / "seed_22/final-lr-1_wd-1").mkdir()
    assert only(find.read_evaluation(tmp_path)).top1 == 60.0


def test_leftovers_of_an_interrupted_run(tmp_path):
    seed = make_seed_folder(tmp_path / "seed-22", 60.0)
    with atomic_dir.staged(seed, markers=("results.json",)) as stage:
        # Being rewritten: what is there may already be a mixture.
        assert "unfinished" in reasons(find.read_evaluation(tmp_path))["seed-22"]
        make_record(stage)
    assert only(find.read_evaluation(tmp_path)).top1 == 60.0
    with atomic_dir.staged(seed, markers=("results.json",)) as stage:
        # A complete run counts until its successor is complete.
        runs, problems = find.read_evaluation(tmp_path)
        assert [run.top1 for run in runs] == [60.0] and [problem.path for problem in problems] == [stage]
        make_record(stage)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"status": "running"}, "status 'running'"),
        ({"seed": 37}, "says seed 37"),
        ({"n_shot": 4}, "says n_shot 4"),
        ({"folder": "final-lr-9_wd-9"}, "which is not there"),
        ({"folder": "../../elsewhere"}, "which is not there"),
        ({"folder": ["final"]}, "which is not there"),
        ({"test_top1": None}, "test_top1 is NoneType, expected a percentage"),
        ({"test_top5": 101.0}, "test_top5 is 101.0"),
    ],
)
def test_results_json_that_contradicts_its_folder(tmp_path, change, reason):
    evaluation = tmp_path / "sup" / "resnet50" / "in1k" / "eval_logreg"
    make_record(make_seed_folder(evaluation / "seed-22"), **change)
    assert reason in reasons(find.read_evaluation(evaluation))["seed-22"]


def test_shots_of_a_folder_outside_the_layout_are_those_the_run_records(tmp_path):
    make_record(make_seed_folder(tmp_path / "mine_N4" / "seed-22"), n_shot=4)
    make_seed_folder(tmp_path / "copies" / "eval_logreg-N8" / "seed_22")
    assert only(find.read_evaluation(tmp_path / "mine_N4")).n_shot == 4
    assert only(find.read_evaluation(tmp_path / "copies" / "eval_logreg-N8")).n_shot == 8


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"status": "complete"}', '{"final": 3}', "[" * 100_000, "\xff"]
)
def test_broken_results_json(tmp_path, text):
    seed = make_seed_folder(tmp_path / "seed-22")
    (seed / "results.json").write_bytes(text.encode("latin1"))
    assert "results.json" in reasons(find.read_evaluation(tmp_path))["seed-22"]


def test_divergence_is_recorded(tmp_path):
    make_record(make_seed_folder(tmp_path / "seed-22"), diverged=True, lr=None)
    run = only(find.read_evaluation(tmp_path))
    assert run.diverged and run.lr is None


def test_hyper_parameters_are_optional(tmp_path):
    make_seed_folder(tmp_path / "seed_22", final="final")
    run = only(find.read_evaluation(tmp_path))
    assert (run.lr, run.wd) == (None, None)


def make_study(root):
    for model, dataset, folder in [
        ("b/net10", "cog_l10", "eval_logreg"),
        ("b/net10", "cog_l2", "eval_logreg"),
        ("b/net10", "in1k", "eval_logreg_N16"),
        ("b/net10", "in1k", "eval_logreg_N2"),
        ("b/net10", "in1k", "eval_logreg"),
        ("b/net10", "in1k", "eval_mlp"),
        ("b/net9", "my10", "eval_logreg"),
        ("b/net9", "my9", "eval_logreg"),
        ("b/net9", "aircraft", "eval_logreg"),
        ("b/net9", "in1k", "eval_logreg"),
        ("A/net", "in1k", "eval_logreg"),
    ]:
        make_seed_folder(root / model / dataset / folder / "seed-22")
    make_seed_folder(root / "b/net10/in1k/eval_logreg/seed-37")
    for path in (
        "b/net10/features",
        "b/net10/in1k/features_train",
        ".cache/x/in1k/eval_logreg/seed-22",
        "c_d/e",
    ):
        (root / path).mkdir(parents=True)
    (root / "b/net10/model.ckpt").write_bytes(b"")


def places(found):
    """Return model, data set, shots and seed of the runs, there being no problem."""
    runs, problems = found
    assert problems == []
    return [(run.model, run.dataset, run.n_shot, run.seed) for run in runs]


def test_order_is_natural_and_puts_the_benchmark_first(tmp_path):
    make_study(tmp_path)
    assert places(find.find_runs(tmp_path)) == [
        ("A_net", "in1k", 0, 22),
        ("b_net9", "in1k", 0, 22),
        ("b_net9", "aircraft", 0, 22),
        ("b_net9", "my9", 0, 22),
        ("b_net9", "my10", 0, 22),
        ("b_net10", "in1k", 0, 22),
        ("b_net10", "in1k", 0, 37),
        ("b_net10", "in1k", 2, 22),
        ("b_net10", "in1k", 16, 22),
        ("b_net10", "cog_l2", 0, 22),
        ("b_net10", "cog_l10", 0, 22),
    ]


def test_filters(tmp_path):
    make_study(tmp_path)
    expected = {
        ("models", ("A_net", "x_y")): [("A_net", "in1k", 0, 22)],
        ("datasets", ("my9", "cog_l2")): [("b_net9", "my9", 0, 22), ("b_net10", "cog_l2", 0, 22)],
        ("n_shots", (16,)): [("b_net10", "in1k", 16, 22)],
        ("seeds", (37,)): [("b_net10", "in1k", 0, 37)],
        ("eval_name", "mlp"): [("b_net10", "in1k", 0, 22)],
        ("eval_name", "log"): [],
        ("eval_name", "ml."): [],  # a filter is never a pattern
    }
    for (name, wanted), runs in expected.items():
        assert places(find.find_runs(tmp_path, **{name: wanted})) == runs, (name, wanted)


def test_bad_folders_and_names(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in ("nowhere", "file"):
        with pytest.raises(CogError, match="--models_root_dir"):
            find.find_runs(tmp_path / bad)
        with pytest.raises(CogError, match="--logreg_root_dir"):
            find.read_evaluation(tmp_path / bad)
    for bad in ("../x_y", "nounderscore", "a_../b"):
        with pytest.raises(CogError, match="--model"):
            find.find_runs(tmp_path, models=[bad])
    with pytest.raises(CogError, match="--dataset"):
        find.find_runs(tmp_path, datasets=["../in1k"])
    assert find.find_runs(tmp_path) == ([], [])


def test_unreadable_and_vanishing_folders_are_problems(tmp_path, monkeypatch):
    make_study(tmp_path)
    scandir = os.scandir

    def failing(path):
        if Path(path).name == "cog_l2":
            raise PermissionError(13, "Permission denied")
        if Path(path) == tmp_path / "b/net9/my9/eval_logreg/seed-22":
            raise FileNotFoundError(2, "No such file")
        return scandir(path)

    monkeypatch.setattr(find.os, "scandir", failing)
    runs, problems = find.find_runs(tmp_path)
    assert len(runs) == 9
    assert [str(problem) for problem in problems] == [
        f"{tmp_path}/b/net10/cog_l2: cannot be read: Permission denied",
        f"{tmp_path}/b/net9/my9/eval_logreg/seed-22: vanished while the results were read",
    ]


def test_links_are_followed_and_loops_end(tmp_path):
    make_seed_folder(tmp_path / "elsewhere/in1k/eval_logreg/seed-22")
    root = tmp_path / "models"
    (root / "a").mkdir(parents=True)
    (root / "a/b").symlink_to(tmp_path / "elsewhere")
    (root / "a/loop").symlink_to(root)
    (root / "a/dead").symlink_to(tmp_path / "nothing")
    assert places(find.find_runs(root)) == [("a_b", "in1k", 0, 22)]


@pytest.mark.parametrize(
    "folder, described",
    [
        ("sup/resnet50/in1k/eval_logreg", ("sup_resnet50", "in1k", 0)),
        ("deit/small_distilled/cog_l2/eval_mlp-N8", ("deit_small_distilled", "cog_l2", 8)),
        ("my runs/x/y/eval_logreg_N4", ("", "", 4)),
        ("sup/resnet50/in1k/other", ("", "", 0)),
    ],
)
def test_one_folder_tells_what_it_is_from_its_path(tmp_path, folder, described, monkeypatch):
    make_seed_folder(tmp_path / folder / "seed_22")
    run = only(find.read_evaluation(tmp_path / folder))
    assert (run.model, run.dataset, run.n_shot) == described
    monkeypatch.chdir(tmp_path / folder)
    run = only(find.read_evaluation("."))
    assert (run.model, run.dataset, run.n_shot) == described


def make_run(seed, top1, top5=90.0, **changes):
    fields = {"model": "a_b", "dataset": "in1k", "n_shot": 0, "n_epochs": 100, "lr": 1.0, "wd": 0.0}
    fields |= {"diverged": False, "folder": f"seed-{seed}", "final_folder": "final"} | changes
    return run_records.Run(seed=seed, top1=top1, top5=top5, **fields)


def test_mean_and_population_std_equal_numpy():
    generator = np.random.default_rng(0)
    for n in (2, 5, 17):
        top1, top5 = generator.uniform(0, 100, (2, n))
        runs = [make_run(seed, float(a), float(b)) for seed, (a, b) in enumerate(zip(top1, top5))]
        for average, values in zip(run_records.average_runs(runs), (top1, top5), strict=True):
            np.testing.assert_allclose(
                [average.value, average.std], [values.mean(), values.std(ddof=0)], rtol=1e-12
            )
            assert average.values == pytest.approx(dict(enumerate(values)))
        cell, _ = run_records.average_runs(runs)
        assert cell.seeds == tuple(range(n)) and cell.missing_seeds == ()


def test_cells_are_sorted_and_name_missing_seeds():
    runs = [
        make_run(93, 1.0, dataset="cog_l10", n_epochs=7),
        make_run(22, 1.0, dataset="cog_l10"),
        make_run(22, 1.0, n_shot=16),
        make_run(22, 1.0, n_shot=2),
        make_run(5, 1.0, dataset="cog_l2"),
    ]
    cells = run_records.average_runs(runs, (93, 22, 22))[::2]
    assert {cell.metric for cell in cells} == {"top1"}
    assert [(cell.dataset, cell.n_shot, cell.seeds, cell.missing_seeds) for cell in cells] == [
        ("in1k", 2, (22,), (93,)),
        ("in1k", 16, (22,), (93,)),
        ("cog_l2", 0, (5,), (22, 93)),
        ("cog_l10", 0, (22, 93), ()),
    ]
    assert cells[-1].epochs == (100, 7)
    assert run_records.average_runs([]) == [] and cells[0].std is None, "a single seed has no deviation"


def test_expected_seeds():
    assert scores.expected_seeds("logreg", {22, 93}) == (22, 37, 45, 77, 93)
    assert scores.expected_seeds("logreg", {22, 7}) == [7, 22]
    assert scores.expected_seeds("finetune", {22}) == ()


def test_natural_key_sorts_any_names():
    names = ["x10", "x2", "x2y", "x2y1", "10", "9", "X3", "x", "x02", "²", "2x"]
    assert sorted(names, key=scores.natural_key) == [
        "2x", "9", "10", "x", "x02", "x2", "x2y", "x2y1", "X3", "x10", "²",
    ]  # fmt: skip


def test_a_run_below_a_path_that_is_not_utf_8_can_be_read_back(tmp_path):
    place = os.path.join(os.fsencode(tmp_path), b"m\xff\xe9/a/b/in1k/eval_logreg/seed-22")
    try:
        os.makedirs(place)
    except OSError:
        pytest.skip("the file system takes UTF-8 names only; checks that others can be read back")
    folder = Path(os.fsdecode(place))
    make_seed_folder(folder)
    make_record(folder)
    record = files.read_json(folder / "results.json") | {"train_features": str(folder / "X_Y.pth")}
    files.write_json(folder / "results.json", record)
    assert (folder / "results.json").read_bytes().isascii()
    assert files.read_json(folder / "results.json") == record
    (run,), problems = find.find_runs(folder.parents[4])
    assert problems == [] and run.details.train_features_file == str(folder / "X_Y.pth")


_accesses: list[str] | None = None


def _note_access(event, arguments):
    if _accesses is not None and event in ("open", "os.scandir", "os.listdir"):
        _accesses.append(str(arguments[0]))


@pytest.fixture
def accesses():
    """Return a list that receives every path that Python opens or lists; hooks stay, so this one is added once."""
    global _accesses
    if not hasattr(_note_access, "is_added"):
        sys.addaudithook(_note_access)
        _note_access.is_added = True
    _accesses = []
    yield _accesses
    _accesses = None


def test_each_file_is_opened_once_and_only_those_that_count(tmp_path, accesses):
    expected = []
    for model in ("a/b", "c/d"):
        for split in ("train", "test"):
            features = tmp_path / model / "in1k" / f"features_{split}"
            features.mkdir(parents=True)
            (features / "features.json").write_text(json.dumps({"n_images": 3}))
            expected.append(features / "features.json")
        analysis = tmp_path / model / "in1k/analysis_kmeans"
        analysis.mkdir()
        record = analysis_records.AnalysisRecord("kmeans", None, "in1k", {}, {"ami": 0.5})
        analysis_records.write(analysis, record)
        expected += [analysis, analysis / "results.json"]
        for seed in (22, 37, 45):
            for folder in ("eval_logreg", "eval_logreg_N8"):
                run = make_seed_folder(tmp_path / model / "in1k" / folder / f"seed-{seed}")
                expected.append(run)
                if seed == 45:  # the original toolkit's
                    expected.append(run / "final-lr-10.5_wd-1e-06/logs.pkl")
                    continue
                record = {"identity": {"n_epochs": 3}}
                make_record(run, seed=seed, n_shot=8 if folder.endswith("8") else 0, record=record)
                expected.append(run / "results.json")
    accesses.clear()
    found_problems: list[run_records.Problem] = []
    asked = query.ResultQuery(models_root_dir=tmp_path, experiments=True)
    gathered = query.gather(asked, on_problems=found_problems.extend)
    counts = collections.Counter(path for path in accesses if path.startswith(str(tmp_path)))
    assert (len(gathered.runs), len(gathered.cells), len(gathered.analyses)) == (12, 8, 2)
    assert not found_problems
    below = {path: n for path, n in counts.items() if re.search("seed-|features_|analysis_", path)}
    assert below == {str(path): 1 for path in expected}
    assert sum(counts.values()) - len(expected) <= 11  # the folders above these
