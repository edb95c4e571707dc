"""Packing finished runs into one archive: read like folders, put back bit for bit, nothing lost at any instant."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import result_folders
import tiny
import torch
from marks import first_quick

from cog import config, paths
from cog.analysis import saved_runs
from cog.commands import analyze_features, logreg, print_results, status
from cog.commands import pack as pack_command
from cog.errors import CogError
from cog.logreg.run_folder import RunFolder
from cog.results import find, search_history
from cog.runtime import locks, run_archive, safe_load
from cog.study import pack, units

RUN = "eval_logreg/seed-22"
FLAGS = ["--device", "cpu", "--print_freq", "0", "CLF.N_TRIALS", "3", "CLF.N_EPOCHS", "3"]


def _of(root):
    return ["--models_root_dir", str(root), "--model", "a_net", "--dataset", "birds"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A models root with features and four runs that logreg.py made, and one of the original toolkit."""
    root = tmp_path_factory.mktemp("trained") / "models"
    for split, seed in (("train", 0), ("test", 1)):
        x, y = tiny.make_xy(n_per_class=8, dim=6, seed=seed, spread=2.5)
        tiny.write_features(root / f"a/net/birds/features_{split}", x, y, name=f"a_net_birds_{split}")
    logreg.main([*_of(root), *FLAGS, "--seeds", "22", "37", "--n_shots", "0", "2"])
    result_folders.make_seed_folder(root / "a/net/birds/eval_logreg-N8/seed_22", 55.0, 77.0)
    return root


@pytest.fixture
def root(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "models", symlinks=True)
    return tmp_path / "models"


@pytest.fixture
def folder(root):
    return root / "a/net/birds"


def _pack(folder):
    return pack.pack(folder, "a_net", "birds")


def _digests(folder):
    """Return hash and mode of every file."""
    return {
        path.relative_to(folder).as_posix(): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            stat.S_IMODE(path.stat().st_mode),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def _everything(root):
    """Return all that tables and figures read of each run, also what takes no part in comparisons."""
    found = find.find_all(root)
    assert found.problems == []
    return [
        (dataclasses.asdict(run), search_history.outline(run)) for runs in found.runs.values() for run in runs
    ]


def test_there_and_back_bit_for_bit(root, folder):
    """A detail that is added to runs has to be added to their summaries in the index."""
    before, read = _digests(folder), _everything(root)
    assert pack_command.main(["--models_root_dir", str(root)]) == 0
    left = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert left == ["X_Y.pth", "X_Y.pth", "runs.zip"]
    assert _everything(root) == read and len(read) == 5
    with zipfile.ZipFile(folder / "runs.zip") as archive:  # any program can open it
        assert archive.testzip() is None
        assert {f"{name}" for name in archive.namelist()} - {"index.json"} == {
            name for name in before if not name.startswith("features_")
        }
    assert pack_command.main(["--models_root_dir", str(root), "--unpack"]) == 0
    assert _digests(folder) == before


def test_every_reader_finds_packed_runs(root, folder, capsys):
    model_dir = paths.ModelDir(root, "a_net")
    cfg = config.get_cfg()

    def read():
        outputs = []
        for argv in (["--view", "datasets"], ["--view", "shots"], ["--format", "json"]):
            assert print_results.main(["--models_root_dir", str(root), *argv]) == 0
            outputs.append(capsys.readouterr().out)
        assert print_results.main(["--models_root_dir", str(root), "--interval_over", "images"]) == 0
        outputs.append(capsys.readouterr().out)
        assert "interval over images of these" in outputs[-1]
        assert print_results.main(["--logreg_root_dir", str(folder / "eval_logreg_N2")]) == 0
        export = root.parent / "export.json"
        print_results.main(["--models_root_dir", str(root), "--export", str(export), "--overwrite"])
        status.main(["--models_root_dir", str(root), "--seeds", "22", "37", "--shots", "0", "2", "8", "64"])
        outputs += [capsys.readouterr().out, json.loads(export.read_text()) | {"written": ""}]
        for run in saved_runs.find_runs(model_dir, "birds", cfg):
            classifier = saved_runs.load_classifier(run, normalize=True)
            outputs += [saved_runs.predictions(run).tolist(), classifier.network.weight.tolist(), run.record]
        outputs.append(saved_runs.prediction_digests(saved_runs.find_runs(model_dir, "birds", cfg)))
        return outputs

    loose = read()
    _pack(folder)
    assert read() == loose


def test_a_packed_run_is_done(root, folder, capsys, caplog):
    _pack(folder)
    before = _digests(folder)
    argv = [*_of(root), *FLAGS, "--seeds", "22", "37", "--n_shots", "0", "2"]
    assert logreg.main(argv) == 0
    assert logreg.main([*argv, "--check"]) == 0
    assert "4 complete, skipped" in capsys.readouterr().out
    assert logreg.main([*argv, "--skip_complete"]) == 0
    with pytest.raises(CogError, match=r"holds a different run \(momentum"):
        logreg.main([*argv, "--mom", "0.5"])
    with pytest.raises(CogError, match=r"is in runs.zip.*; unpack .*runs.zip .* first"):
        logreg.main([*argv, "--overwrite"])
    original = folder / "eval_logreg-N8/seed_22"
    assert RunFolder(original, skip_complete=True).holds_result()
    with pytest.raises(CogError, match="holds a run already"):
        RunFolder(original).holds_result()
    assert _digests(folder) == before


def test_more_runs_join_the_archive(root, folder):
    _pack(folder)
    logreg.main([*_of(root), *FLAGS, "EVAL.SEED", "45"])
    read = _everything(root)
    assert len(read) == 6
    assert _pack(folder).runs == 1
    assert _everything(root) == read
    assert _pack(folder).runs == 0
    assert pack.unpack(folder).runs == 6
    assert _everything(root) == read


def test_evaluation_folders_that_are_links_to_another_file_system(folder, tmp_path, monkeypatch):
    other, evaluation = tmp_path / "other", folder / "eval_logreg"
    other.mkdir()
    shutil.move(evaluation, other / "a_net_birds")
    evaluation.symlink_to(other / "a_net_birds")
    (folder / ".packed-old/eval_logreg").mkdir(parents=True)  # left by earlier versions
    before, rename = _digests(evaluation), os.rename

    def within_a_file_system(*places):
        if len({Path(place).parent.resolve().is_relative_to(other) for place in places}) > 1:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(*places)

    monkeypatch.setattr(os, "rename", within_a_file_system)
    assert _pack(folder).runs == 5
    assert os.listdir(evaluation) == [] and not list(folder.glob(".packed*"))
    assert pack.unpack(folder).runs == 5
    assert _digests(evaluation) == before and evaluation.is_symlink()
    assert os.listdir(other) == ["a_net_birds"] and not (folder / "runs.zip").exists()


@pytest.fixture
def deny(monkeypatch):
    """Return a function that takes the permission to write into a folder, from the superuser, too."""
    access = os.access
    return lambda folder: monkeypatch.setattr(
        os, "access", lambda path, mode: path != folder and access(path, mode)
    )


@pytest.mark.parametrize(("place", "n_left"), [("eval_logreg", 2), (RUN, 1)])
def test_runs_that_cannot_be_removed_are_not_packed(folder, deny, place, n_left):
    deny(folder / place)
    for dry_run in (True, False):
        result = pack.pack(folder, "a_net", "birds", dry_run=dry_run)
        assert result.runs == 5 - n_left and len(result.left_out) == n_left
        assert f"no permission to write into {folder / place}" in result.left_out[0]
    assert RUN not in run_archive.open_archive(folder).runs


def test_a_check_names_folders_that_cannot_be_written_to(root, folder, deny, caplog):
    deny(folder)
    assert pack_command.main(["--models_root_dir", str(root), "--check"]) == 2
    assert f"no permission to write into {folder}" in caplog.text
    _pack(folder)
    deny(folder / "eval_logreg")
    with pytest.raises(CogError, match="no permission to write into .*eval_logreg"):
        pack.unpack(folder, dry_run=True)


@pytest.mark.slow
def test_an_analysis_reads_packed_predictions(root):
    other = root / "b/net"
    shutil.copytree(root / "a/net", other)
    for model in ("a_net", "b_net"):
        pack.pack(paths.ModelDir(root, model).path / "birds", model, "birds")
    argv = ["--analysis", "winners", *_of(root)[:4], "--datasets", "birds", "--against", "b_net"]
    assert analyze_features.main(argv) == 0
    assert (root / "a/net/birds/analysis_winners_b_net/results.json").is_file()


def test_what_is_not_finished_stays(folder):
    (folder / "eval_logreg/seed-1/.resume").mkdir(parents=True)
    link, hidden = folder / "eval_logreg/seed-22", folder / "eval_logreg/seed-37"
    os.symlink("results.json", link / "link")
    (hidden / ".partial-x").mkdir()
    finetuned = folder / "eval_finetune/seed-22"
    shutil.copytree(folder / "eval_logreg_N2/seed-22", finetuned)
    with locks.locked(folder / "eval_logreg_N2/seed-37", flag="--output_dir"):
        result = _pack(folder)
    assert (result.runs, len(result.left_out)) == (2, 4)
    for path in (link / "link", hidden / "results.json", finetuned, folder / "eval_logreg_N2/seed-37"):
        assert path.exists()
    assert not (folder / "eval_logreg_N2/seed-22").exists()
    reasons = " ".join(result.left_out)
    for reason in ("not finished", "it has link", "it has .partial-x", "in progress"):
        assert reason in reasons


def test_a_run_that_changes_meanwhile_stays(folder, monkeypatch):
    changed = folder / "eval_logreg/seed-22/program.log"
    write = pack._write

    def slow(*args):
        write(*args)
        changed.write_text("another run")

    monkeypatch.setattr(pack, "_write", slow)
    result = _pack(folder)
    assert result.runs == 4 and "changed while" in result.left_out[0]
    assert changed.read_text() == "another run"
    with pytest.raises(CogError, match="differs from the contents"):
        pack.unpack(folder)
    assert (folder / "runs.zip").is_file()


def test_one_process_at_a_time(folder):
    with locks.locked(folder, flag="x", name=pack._LOCK):
        for call in (lambda: _pack(folder), lambda: pack.unpack(folder)):
            with pytest.raises(locks.LockedError):
                call()


def test_what_is_written_is_compared(folder, monkeypatch):
    """An archive whose content is not that of the files is never put in place."""
    before = _digests(folder)
    real = zipfile.ZipFile.writestr

    def broken(self, info, data, *args):
        real(self, info, data[:-1] + b"?" if "logs.pkl" in str(info) else data, *args)

    monkeypatch.setattr(zipfile.ZipFile, "writestr", broken)
    with pytest.raises(CogError, match="changed while"):
        _pack(folder)
    assert _digests(folder) == before


# ------------------------------------------------------------------------------------------------------------
# Interruptions


@pytest.mark.parametrize(
    ("direction", "step"), first_quick(2, [("pack", 59), ("unpack", 41), ("pack", 1), ("unpack", 1)])
)
def test_killed_at_any_operation(tmp_path, repository, direction, step):
    """All runs are read, and the next call finishes; see the script."""
    script = repository / "tests/helpers/pack_kills.py"
    done = subprocess.run(
        [sys.executable, script, direction, tmp_path, str(step)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 20


# ------------------------------------------------------------------------------------------------------------
# Hostile archives


ENTRY = {"final": "final-x", "last": [50.0, 70.0, 3], "record": None}


def _archive(folder, members, entry=ENTRY, **info):
    """Write an archive with an index of one run and these members; ``info`` sets attributes of their zip records."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "runs.zip", "w") as archive:
        run_archive.write_index(archive, {RUN: entry})
        for name, content in members:
            head = zipfile.ZipInfo(name)
            for key, value in info.items():
                setattr(head, key, value)
            archive.writestr(head, content)
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "../../../escaped", "/escaped", f"{RUN}/../../../escaped", f"{RUN}/.lock", f"{RUN}//x", f"{RUN}/a/./b",
        f"{RUN}/a\\..\\b", "eval_logreg/seed-37/results.json", "features_train/X_Y.pth", f"{RUN}/\u202egpj.exe", RUN,
        f"{RUN}/folder/",
    ],
)  # fmt: skip
def test_no_way_out_of_the_folder(tmp_path, name):
    folder = _archive(tmp_path / "models/a/net/birds", [(f"{RUN}/final-x/logs.pkl", b"x"), (name, b"evil")])
    with pytest.raises(CogError, match="not unpacked"):
        pack.unpack(folder)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["runs.zip"]


def test_links_doubles_and_conflicts_are_refused(tmp_path):
    link = _archive(
        tmp_path / "a", [(f"{RUN}/x", b"/etc/passwd")], external_attr=(stat.S_IFLNK | 0o777) << 16
    )
    with pytest.warns(UserWarning, match="Duplicate"):
        double = _archive(tmp_path / "b", [(f"{RUN}/x", b"1"), (f"{RUN}/x", b"2")])
    both = _archive(tmp_path / "c", [(f"{RUN}/x", b"1"), (f"{RUN}/x/y", b"2")])
    for folder in (link, double, both):
        with pytest.raises(CogError):
            pack.unpack(folder)
        assert os.listdir(folder) == ["runs.zip"]


def test_set_user_id_is_not_restored(tmp_path):
    folder = _archive(tmp_path / "a", [(f"{RUN}/x", b"1")], external_attr=(stat.S_IFREG | 0o4755) << 16)
    pack.unpack(folder)
    assert stat.S_IMODE((folder / RUN / "x").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK", b"no archive" * 100,
        b"PK\x03\x04" + b"\x00" * 26, b"PK\x03\x04" + b"\xff" * 60,
    ],
    ids=["empty", "short", "text", "zeros", "ones"],
)  # fmt: skip
def test_garbage_is_one_problem(tmp_path, content):
    folder = tmp_path / "models/a/net/birds"
    folder.mkdir(parents=True)
    (folder / "runs.zip").write_bytes(content)
    found = find.find_all(tmp_path / "models")
    assert found.runs == {} and len(found.problems) == 1
    assert found.problems[0].path.name == "runs.zip" and "not an archive of runs" in found.problems[0].reason
    for call in (
        lambda: pack.unpack(folder),
        lambda: _pack(folder),
        lambda: RunFolder(folder / RUN).holds_result(),
    ):
        with pytest.raises(CogError, match="not an archive of runs"):
            call()
    statuses = units.survey(units.Study(root=tmp_path / "models", models=("a_net",), datasets=("birds",)))
    runs = {status for unit, status in statuses.items() if isinstance(unit, units.TrainingUnit)}
    assert [status.state for status in runs] == [units.FAILED]
    assert "not an archive of runs" in runs.pop().detail


@pytest.mark.parametrize(
    "index",
    [
        [], {"format": 1}, {"format": 2, "runs": {}}, {"format": 1, "runs": {"../x/seed-1": {}}},
        {"format": 1, "runs": {"eval_logreg": {}}}, {"format": 1, "runs": {"eval_a/b/seed-1": {}}},
    ],
)  # fmt: skip
def test_an_odd_index_is_refused(tmp_path, index):
    folder = tmp_path / "models/a/net/birds"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "runs.zip", "w") as archive:
        archive.writestr("index.json", json.dumps(index))
    with pytest.raises(CogError, match="not an archive of runs"):
        run_archive.open_archive(folder)


@pytest.mark.parametrize(
    "entry",
    [
        None, 3, {}, {"final": "x", "last": [1.0, 2.0], "record": None},
        {"final": "x", "last": ["1", 2.0, 3], "record": None}, {"final": "x", "last": [101.0, 2.0, 3], "record": None},
        {"final": "x", "last": [1.0, 2.0, 3], "record": {"final": {}, "status": "begun"}},
        {"final": "x", "last": [1.0, 2.0, 3], "record": {"final": {}, "status": "complete", "seed": 23}},
        {"final": "x", "last": [1.0, 2.0, 3], "record": {"final": {"test_top1": 9.0}, "status": "complete"}},
    ],
)  # fmt: skip
def test_an_odd_entry_is_a_problem_of_its_run(tmp_path, entry):
    folder = _archive(tmp_path / "models/a/net/birds", [], entry)
    found = find.find_all(tmp_path / "models")
    assert found.runs == {} and [problem.path for problem in found.problems] == [folder / RUN]


def test_nothing_is_executed_and_sizes_are_bounded(tmp_path):
    proof = tmp_path / "executed"

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(proof),)

    logs, model, bomb = f"{RUN}/final-x/logs.pkl", f"{RUN}/final-x/model.pth", f"{RUN}/final-x/preds.pkl"
    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    folder = _archive(
        tmp_path / "models/a/net/birds",
        [
            (logs, pickle.dumps(Evil())),
            (model, (tmp_path / "evil.pth").read_bytes()),
            (bomb, b"\0" * (65 << 20)),
        ],
        compress_type=zipfile.ZIP_DEFLATED,
    )
    assert (folder / "runs.zip").stat().st_size < 1 << 20
    for call in (
        lambda: safe_load.load_pickle(folder / logs),
        lambda: safe_load.load_torch(folder / model),
        lambda: safe_load.load_pickle(folder / bomb),
    ):
        with pytest.raises(CogError):
            call()
    assert not proof.exists()


def test_a_flipped_bit_is_seen(root, folder):
    _pack(folder)
    archive = folder / "runs.zip"
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as opened:
        info = next(info for info in opened.infolist() if info.filename.endswith("logs.pkl"))
    content[info.header_offset + 200] ^= 1
    archive.write_bytes(content)
    assert pack_command.main(["--models_root_dir", str(root), "--check"]) == 2
    with pytest.raises(CogError, match="damaged"):
        pack.unpack(folder)
    assert [path for path in folder.rglob("*") if path.is_file() and "features_" not in str(path)] == [
        archive
    ]


@pytest.fixture
def two_models(tmp_path):
    """A models root with a run of DINO on L5 and one of a model of the user's on birds."""
    for place in ("dino/resnet50/cog_l5", "a/net/birds"):
        result_folders.make_seed_folder(tmp_path / place / "eval_logreg/seed-22")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--models a_nett", "--models a_nett: there is no such model under .*; did you mean a_net[?]"),
        ("--datasets birdz --check", "--datasets birdz: no model asked for has .*; did you mean birds[?]"),
        ("--models a_net --datasets L5", "--datasets cog_l5: no model asked for has such a folder"),
        ("--datasets ../birds", "is not a data set name"),
    ],
)
def test_names_that_are_not_there(two_models, flags, message):
    before = tiny.snapshot(two_models)
    with pytest.raises(CogError, match=message):
        pack_command.main(["--models_root_dir", str(two_models), *flags.split()])
    assert tiny.snapshot(two_models) == before


def test_labels_and_data_sets_of_some_models(two_models, tmp_path, capsys):
    file = tmp_path / "models.yaml"
    file.write_text("a_net: {label: Mine}\n")

    def check(*flags):
        assert pack_command.main(["--models_root_dir", str(two_models), "--check", *flags]) == 0
        return int(capsys.readouterr().out.split()[0])

    assert check("--models", "DINO", "--datasets", "L5") == 1
    assert check("--models", "mine", "--models_file", str(file)) == 1
    assert check("--datasets", "L5", "birds") == 2
