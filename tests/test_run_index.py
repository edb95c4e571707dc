"""The index of runs spares reading, and never changes what is found."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import time

import pytest
from result_folders import make_record, make_seed_folder

from cog import results, run_index, run_reader

OLD = time.time() - 1000


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    """Keep the user's own cache out of it, and let few and new runs be remembered."""
    home = tmp_path / "cache_home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(run_index, "_WORTH_WRITING", 1)
    monkeypatch.setattr(run_index, "_RECENT_NS", -(10**12))  # ctime cannot be set back
    return home


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "models"
    for dataset in ("in1k", "cog_l1"):
        for seed in (22, 37):
            folder = make_seed_folder(root / f"a/b/{dataset}/eval_logreg/seed-{seed}", seed + 0.1, 95.3)
            if seed == 22:
                make_record(folder, seed=seed)
                with_details(folder)
    return root


def with_details(folder):
    record = json.loads((folder / "results.json").read_text())
    record |= {
        "identity": {"n_trials": 2, "lr_interval": [0.1, 100.0], "train_features": {"bytes": 3}},
        "n_classes": 10,
        "feature_dim": 4,
        "rows": {"test": 30},
        "trials": [
            {"number": 0, "lr": 0.2, "val_top1": 12.5, "diverged": True},
            {"number": 1, "lr": 0.3, "val_top1": 22.5, "diverged": False},
        ],
        "best_trial": 1,
        "seconds": {"search": 1.5},
        "versions": {"torch": "2.6"},
        "device": "cpu",
        "finished": "2026-01-01T00:00:00+00:00",
        "train_features": "/features/train",
    }
    (folder / "results.json").write_text(json.dumps(record))


@pytest.fixture
def count(monkeypatch):
    """Count the seed folders that are really read."""
    read = []
    original = run_reader.read_run

    def counting(path, **kwargs):
        read.append(str(path))
        return original(path, **kwargs)

    monkeypatch.setattr(results, "read_run", counting)
    return read


def scan(root, count, **filters):
    """Return what is found, and how many folders were read for it."""
    count.clear()
    runs, problems = results.find_runs(root, **filters)
    return [dataclasses.astuple(run) for run in runs], [str(problem) for problem in problems], len(count)


def fresh(root, **filters):
    runs, problems = results.find_runs(root, use_index=False, **filters)
    return [dataclasses.astuple(run) for run in runs], [str(problem) for problem in problems]


def test_second_scan_reads_nothing_and_finds_the_same(root, count):
    first = scan(root, count)
    second = scan(root, count)
    assert first[2] == 4 and second[2] == 0
    assert first[:2] == second[:2] == fresh(root)
    details = results.find_runs(root)[0][0].details
    assert details.n_trials_diverged == 1 and details.best_val_top1 == 22.5 and details.rows == {"test": 30}
    assert (
        details.settings["lr_interval"] == [0.1, 100.0] and details.train_features_file == "/features/train"
    )


def change_logs(folder):
    """Replace the accuracies by others of the same size, and set the time of modification back."""
    (logs,) = folder.glob("final-*/logs.pkl")
    before = logs.stat()
    make_seed_folder(folder.parent / "other", 11.5, 12.5)
    content = next((folder.parent / "other").glob("final-*/logs.pkl")).read_bytes()
    shutil.rmtree(folder.parent / "other")
    with open(logs, "r+b") as handle:
        handle.write(content)
    os.utime(logs, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = logs.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )


def remove_logs(folder):
    next(folder.glob("final-*/logs.pkl")).unlink()


def change_record(folder):
    text = (folder / "results.json").read_text()
    (folder / "results.json").write_text(text.replace('"complete"', '"failures"'))


def remove_record(folder):
    (folder / "results.json").unlink()


def add_stage(folder):
    (folder / ".partial-x").mkdir()


def add_final(folder):
    (folder / "final-lr-1_wd-1").mkdir()
    shutil.copy(next(folder.glob("final-lr-10*/logs.pkl")), folder / "final-lr-1_wd-1")


def rename_final(folder):
    next(folder.glob("final-*")).rename(folder / "final-lr-2_wd-3")


def swap_final(folder):
    """Put another folder of the same name in its place, as a run that is repeated does."""
    final = next(folder.glob("final-*"))
    shutil.copytree(final, folder / "new", copy_function=shutil.copy2)
    shutil.rmtree(final)
    (folder / "new").rename(final)


def rename_seed(folder):
    folder.rename(folder.with_name("seed-93"))


def remove_run(folder):
    shutil.rmtree(folder)


@pytest.mark.parametrize("seed", [22, 37])
@pytest.mark.parametrize(
    "change",
    [change_logs, remove_logs, change_record, remove_record, add_stage, add_final, rename_final, swap_final,
     rename_seed, remove_run],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_every_change_is_noticed(root, count, change, seed):
    folder = root / f"a/b/cog_l1/eval_logreg/seed-{seed}"
    if seed == 37 and "record" in change.__name__:
        make_record(folder, seed=37)
    before = scan(root, count)
    assert before[2] == 4
    change(folder)
    after = scan(root, count)
    assert after[:2] == fresh(root)
    assert after[2] == (0 if change is remove_run else 1), "only the changed run is read again"
    if change in (change_logs, remove_logs, rename_seed, remove_run):
        assert after[:2] != before[:2]


def test_filters_share_the_index(root, count):
    assert scan(root, count, datasets=["in1k"])[2] == 2
    assert scan(root, count)[2] == 2
    assert scan(root, count, seeds=[22])[2] == 0
    assert scan(root, count)[:2] == fresh(root)
    assert scan(root, count, models=["a_*"])[:2] == fresh(root)


def test_runs_that_vanished_are_forgotten(root, count):
    scan(root, count)
    shutil.rmtree(root / "a/b/in1k")
    make_seed_folder(root / "a/b/cog_l2/eval_logreg/seed-22")
    scan(root, count)
    assert len(json.loads((root / run_index.INDEX_FILE).read_text())["runs"]) == 3


def test_broken_runs_are_not_remembered(root, count):
    folder = make_seed_folder(root / "a/b/in1k/eval_logreg/seed-93", logs=b"half")
    (root / "a/b/in1k/eval_logreg/seed-22/.partial-1").mkdir()
    for _ in range(2):
        runs, problems, _ = scan(root, count)
        assert len(runs) == 4 and len(problems) == 2
    assert sorted(count) == [str(root / "a/b/in1k/eval_logreg/seed-22"), str(folder)]


def entries(root):
    return json.loads((root / run_index.INDEX_FILE).read_text())


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b"[" * 100_000, b"\x80\x04]\x94.",
        b'{"format": "imagenet-cog run index", "version": 1, "runs": []}', b"9" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_index_is_ignored_and_replaced(root, count, content):
    expected = scan(root, count)
    (root / run_index.INDEX_FILE).write_bytes(content)
    assert scan(root, count) == expected
    assert scan(root, count)[2] == 0


@pytest.mark.parametrize(
    "key, value", [("format", "other"), ("version", 0), ("version", None), ("toolkit", "0.0.0")]
)
def test_an_index_of_another_version_is_ignored(root, count, key, value):
    expected = scan(root, count)
    (root / run_index.INDEX_FILE).write_text(json.dumps(entries(root) | {key: value}))
    assert scan(root, count) == expected


@pytest.mark.parametrize(
    "key, value",
    [
        ("top1", 1e300), ("top1", -3.0), ("top1", "70"), ("top1", True), ("top1", None), ("top1", 70), ("top5", [70.0]),
        ("n_epochs", 0), ("n_epochs", 1.5), ("n_epochs", "3"), ("lr", "fast"), ("wd", {}), ("diverged", 1),
        ("final_folder", "../seed-37/final-lr-10.5_wd-1e-06"), ("final_folder", "final\0"), ("final_folder", 7),
        ("final_folder", "/etc"), ("details", None), ("details", {"surprise": 1}), ("details", {"rows": [1]}),
        ("details", {"n_trials": "many"}), ("details", {"settings": {"a": {"b": 1}}}), ("details", {"device": 3}),
        ("details", {"best_val_top1": "x"}), ("details", {"n_trials": None}),
    ],
)  # fmt: skip
def test_values_that_no_run_has_are_not_believed(root, count, key, value):
    expected = scan(root, count)
    content = entries(root)
    name = "a/b/in1k/eval_logreg/seed-22"
    content["runs"][name][1][key] = value
    (root / run_index.INDEX_FILE).write_text(json.dumps(content))
    assert scan(root, count)[:2] == expected[:2]
    assert count == [str(root / name)]


@pytest.mark.parametrize(
    "entry", [None, [], [1], [None, None], [[], {}], {"a": 1}, [[[1, 2, 3]], {"top1": 1}]]
)
def test_entries_of_another_shape_are_not_believed(root, count, entry):
    expected = scan(root, count)
    content = entries(root)
    content["runs"] = dict.fromkeys(content["runs"], entry)
    (root / run_index.INDEX_FILE).write_text(json.dumps(content))
    assert scan(root, count) == expected


def test_a_pipe_or_a_folder_in_its_place_does_no_harm(root, count):
    os.mkfifo(root / run_index.INDEX_FILE)
    assert scan(root, count)[2] == 4
    os.unlink(root / run_index.INDEX_FILE)
    shutil.rmtree(os.environ["XDG_CACHE_HOME"])
    (root / run_index.INDEX_FILE).mkdir()
    assert scan(root, count)[2] == 4


def test_a_root_that_cannot_be_written_has_its_index_in_the_cache(root, count, cache_home, monkeypatch):
    write = run_index.files.write_text

    def refuse(path, text):
        if root in path.parents:
            raise run_index.CogError("read-only file system")
        write(path, text)

    monkeypatch.setattr(run_index.files, "write_text", refuse)
    expected = scan(root, count)
    assert scan(root, count) == (*expected[:2], 0)
    assert [path.suffix for path in (cache_home / "imagenet-cog").iterdir()] == [".json"]
    assert not (root / run_index.INDEX_FILE).exists()


def test_a_reader_adds_to_the_owners_index_in_a_place_of_his_own(root, count, cache_home, monkeypatch):
    scan(root, count)
    index = (root / run_index.INDEX_FILE).read_bytes()
    make_seed_folder(root / "a/b/cog_l2/eval_logreg/seed-22", 33.5)
    change_logs(root / "a/b/in1k/eval_logreg/seed-37")
    write = run_index.files.write_text

    def refuse(path, text):
        if root in path.parents:
            raise run_index.CogError("read-only file system")
        write(path, text)

    monkeypatch.setattr(run_index.files, "write_text", refuse)
    assert scan(root, count)[2] == 2
    assert scan(root, count) == (*fresh(root), 0)
    assert (root / run_index.INDEX_FILE).read_bytes() == index


def test_without_any_place_everything_is_read_each_time(root, count, monkeypatch):
    def refuse(path, text):
        raise run_index.CogError("no space left")

    monkeypatch.setattr(run_index.files, "write_text", refuse)
    expected = scan(root, count)
    assert expected[2] == 4 and scan(root, count) == expected


def test_files_changed_just_now_and_few_runs_are_not_remembered(root, count, monkeypatch):
    monkeypatch.setattr(run_index, "_RECENT_NS", 10**12)
    scan(root, count)
    assert not (root / run_index.INDEX_FILE).exists()
    monkeypatch.setattr(run_index, "_RECENT_NS", -(10**12))
    monkeypatch.setattr(run_index, "_WORTH_WRITING", 5)
    scan(root, count)
    assert not (root / run_index.INDEX_FILE).exists()


def test_a_run_changed_while_it_is_read_is_not_remembered(root, count, monkeypatch):
    original = run_reader.read_run

    def meddle(path, **kwargs):
        run = original(path, **kwargs)
        if path.name == "seed-37":
            change_logs(path)
        return run

    monkeypatch.setattr(results, "read_run", meddle)
    results.find_runs(root)
    monkeypatch.setattr(results, "read_run", original)
    assert len(entries(root)["runs"]) == 2
    runs, problems = results.find_runs(root)
    assert ([dataclasses.astuple(run) for run in runs], problems) == fresh(root)
    assert runs[1].top1 == 11.5


def test_processes_that_write_together_leave_a_whole_index(root):
    failures = []

    def work():
        try:
            for _ in range(5):
                index = run_index.RunIndex(root)
                index._new = {"a/b/in1k/eval_logreg/seed-22": None}
                index.save(seen=[])
                json.loads((root / run_index.INDEX_FILE).read_text())
        except Exception as error:
            failures.append(error)

    results.find_runs(root)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(path.name for path in root.iterdir()) == [run_index.INDEX_FILE, "a"]


def test_threads_find_the_same_in_the_same_order(root, monkeypatch):
    for number in range(40):
        make_seed_folder(root / f"c/m{number}/in1k/eval_logreg/seed-22", number + 0.5)
    (root / "c/m7/in1k/eval_logreg/seed-22/final-lr-10.5_wd-1e-06/logs.pkl").write_bytes(b"half")
    serial = None
    for below, size in ((10**9, 64), (1, 64), (1, 1), (1, 3)):
        monkeypatch.setattr(results, "_SERIAL_BELOW", below)
        monkeypatch.setattr(results, "_CHUNK", size)
        found = fresh(root)
        serial = serial or found
        assert found == serial
        assert len(found[0]) == 43 and len(found[1]) == 1


def timed_scans(root):
    """Seconds of processor time of two scans, which other work does not change much; and what they found."""
    seconds, found = [], []
    for _ in range(2):
        start = time.process_time()
        found.append(results.find_runs(root))
        seconds.append(time.process_time() - start)
    return seconds, found


def test_speed(tmp_path):
    """Generous: reading takes 0.5 ms a run on an idle machine, and 0.1 ms with the index."""
    for seed in range(300):
        make_seed_folder(tmp_path / f"a/b/in1k/eval_logreg/seed-{seed}", n_epochs=100)
    (first, second), (runs, again) = timed_scans(tmp_path)
    assert runs == again and len(runs[0]) == 300
    assert first < 3 and second < 1.5


@pytest.mark.slow
def test_two_thousand_runs_and_three_broken_folders(tmp_path, monkeypatch, repository):
    monkeypatch.syspath_prepend(str(repository / "tests/benchmarks"))
    import bench_results

    # A fifth of what the benchmark takes by default, in a fifth of the time allowed there.
    bench_results.write_study(tmp_path, 2000)
    (first, second), (found, again) = timed_scans(tmp_path)
    assert found == again and len(found[0]) == 2000
    reasons = {problem.path.name: problem.reason for problem in found[1]}
    assert "not a readable pickle" in reasons["seed-22"]
    assert "unfinished or was interrupted" in reasons["seed-37"]
    assert "not a seed folder" in reasons["seeds of my lemon tree"] and len(reasons) == 3
    assert first < 4 and second < 0.6
