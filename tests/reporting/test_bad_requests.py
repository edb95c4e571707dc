"""Requests of print_results.py that cannot be met: one line, exit code 2, and nothing is written."""

from __future__ import annotations

import dataclasses
import os

import pytest
from result_folders import make_record, make_seed_folder

from cog.commands import print_results
from cog.results import exchange, find, run_records
from cog.runtime import cli

ROOT = ("--models_root_dir", "{root}")
V1 = ("--published_only", "--paper", "v1")
BAD = {
    "nothing to read": ((), "--import, or --published_only"),
    "unknown model, runs": ((*ROOT, "--model", "sup_resnet5"), "did you mean sup_resnet50?"),
    "unknown model, paper": (("--published_only", "--model", "clip_resnet5"), "did you mean clip_resnet50?"),
    "unknown pattern": (("--published_only", "--model", "vit*"), "--model vit* is none of the 31 models"),
    "unknown model, file": (("--import", "{good}", "--model", "x_y"), "--model x_y is none of the 2 models"),
    "unknown data set": (("--published_only", "--dataset", "cog_l6"), "data sets with results: in1k, cog_l1, cog_l2"),
    "unknown shots": (("--published_only", "--n_shot", "3"), "numbers of images (0 = all) with results: 0, 1, 2, 4"),
    "unknown baseline": ((*ROOT, "--relative_to", "sup_resnet5"), "--relative_to sup_resnet5: no result"),
    "relative to the paper": ((*ROOT, "--relative_to", "clip_resnet50"), "--with_published to read the paper's"),
    "baseline no name": (("--published_only", "--relative_to", "klip"), "--relative_to 'klip' is not a model name"),
    "baseline pattern": (("--published_only", "--relative_to", "clip_*"), "not a model name"),
    "analysis and rank": ((*V1, "--analysis", "mlp", "--rank"), "--rank and --analysis are different views"),
    "view and analysis": ((*V1, "--view", "shots", "--analysis", "all"), "--view and --analysis are different views"),
    "limited beside the paper": (("--models_root_dir", "{root}/limit-2", "--with_published"), "a test of the commands"),
    "limited export": (("--models_root_dir", "{root}/limit-2", "--export", "{empty}/x"), "neither shown beside"),
    "flag of earlier days": ((*ROOT, "--claims"), "unrecognized arguments: --claims"),
    "two views": (("--published_only", "--rank", "--drop"), "--drop and --rank are different views"),
    "unknown analysis": ((*V1, "--analysis", "nothing"), "no result of the analysis nothing"),
    "analysis of an unknown model": ((*V1, "--analysis", "kmeans", "--model", "no_model"), "no_model"),
    "analysis of an unknown data set": ((*V1, "--analysis", "kmeans", "--dataset", "elsewhere"), "elsewhere"),
    "analysis of the final version": (("--published_only", "--analysis", "all"), "no result of any analysis"),
    "drop without in1k": (("--import", "{no_in1k}", "--drop"), "--drop needs results on in1k"),
    "unknown view": (("--published_only", "--view", "cells"), "--view"),
    "unknown version": (("--published_only", "--paper", "v3"), "--paper"),
    "no runs beside the paper": (("--models_root_dir", "{empty}", "--with_published"), "no finished run"),
    "no runs beside a file": (("--models_root_dir", "{empty}", "--import", "{good}"), "no finished run"),
    "import missing": (("--import", "{root}/nowhere.json"), "does not exist"),
    "import folder": (("--import", "{root}"), "is a folder"),
    "import no JSON": (("--import", "{broken}"), "is not valid JSON"),
    "import wrong schema": (("--import", "{wrong}"), "entries[0]: value is 175.0, expected a percentage"),
    "import other JSON": (("--import", "{other}"), "not a file of --export"),
    "import twice, different": (("--import", "{good}", "{same_label}"), "under the same label 'lab'"),
    "export folder": ((*ROOT, "--export", "{root}"), "is a folder"),
    "export nowhere": ((*ROOT, "--export", "{root}/no/x.json"), "does not exist"),
    "export read-only": ((*ROOT, "--export", "{locked}/x.json"), "no permission"),
    "report folder": ((*ROOT, "--report", "{root}"), "is a folder"),
    "report nowhere": ((*ROOT, "--report", "{root}/no/x.html"), "does not exist"),
    "figures file": ((*ROOT, "--figures", "{good}"), "is a file"),
    "figures read-only": ((*ROOT, "--figures", "{locked}/figures"), "no permission"),
    "diagnostics of the paper": (("--published_only", "--diagnostics", "{empty}/d"), "needs runs"),
    "diagnostics file": ((*ROOT, "--diagnostics", "{good}"), "is a file"),
    "export exists": ((*ROOT, "--export", "{good}"), "add --overwrite"),
    "report exists": ((*ROOT, "--report", "{good}"), "add --overwrite"),
    "figures exist": ((*ROOT, "--figures", "{root}"), "add --overwrite"),
    "one file for two": ((*ROOT, "--export", "{empty}/x", "--report", "{empty}/x"), "give each its own"),
}  # fmt: skip


#: Of results found in folders.
SELECTIONS = [
    ([], "--logreg_root_dir, or --models_root_dir"),
    (["--model", "net_big"], "--models_root_dir"),
    (["--models_root_dir", "{study}/nowhere"], "does not exist"),
    (["--models_root_dir", "{study}/net/big/model.ckpt"], "is a file"),
    (["--logreg_root_dir", "{study}/nowhere"], "--logreg_root_dir"),
    (["--logreg_root_dir", "{study}/empty"], "no finished run in --logreg_root_dir {study}/empty"),
    (["--logreg_root_dir", "{study}/net/big/in1k"], "did you mean its subfolder eval_logreg?"),
    (["--logreg_root_dir", "{study}/net/big/in1k/eval_logreg", "--seeds", "1", "2"], "with seeds 1 2"),
    (["--models_root_dir", "{study}/empty"], "no finished run of any model on any data set"),
    (["--models_root_dir", "{study}", "--model", "nounderscore"], "--model 'nounderscore'"),
    (["--models_root_dir", "{study}", "--model", "net_big", "../x"], "--model '../x'"),
    (["--models_root_dir", "{study}", "--dataset", "../x"], "--dataset '../x'"),
    (["--models_root_dir", "{study}", "--model", "net_bgi"], "no finished run of net_bgi"),
    (["--models_root_dir", "{study}", "--model", "net_big", "--dataset", "in1k", "CLF.N_SHOT", "4"],
     "no finished run of net_big on in1k with 4 training images per class"),
    (["--models_root_dir", "{study}", "EVAL.NAME", "mlp"], "eval_mlp[_N<shots>]"),
    (["--models_root_dir", "{study}", "EVAL.NAM", "mlp"], "did you mean EVAL.NAME?"),
    (["--models_root_dir", "{study}", "CLF.N_SHOT", "-1"], "CLF.N_SHOT"),
    (["--models_root_dir", "{study}", "CLF.N_SHOT"], "has no value"),
    (["--models_root_dir", "{study}", "CLF.N_SHOT", "8", "--n_shot", "4"], "disagree"),
    (["--models_root_dir", "{study}", "--n_shot", "-1"], "--n_shot"),
    (["--models_root_dir", "{study}", "--n_shot", "few"], "--n_shot"),
    (["--models_root_dir", "{study}", "--seeds", "x"], "--seeds"),
    (["--models_root_dir", "{study}", "--format", "html"], "--format"),
    (["--models_root_dir", "{study}", "--no_such_flag"], "--no_such_flag"),
    (["--models_root_dir", "{study}", "--export", "{study}"], "is a folder"),
    (["--models_root_dir", "{study}", "--export", "{study}/nowhere/x.csv"], "does not exist"),
    (["--models_root_dir", "{study}", "--export", "{study}/pipe"], "not a regular file"),
]  # fmt: skip

CASES = [*BAD.values(), *SELECTIONS]
NAMES = [*BAD, *(" ".join(argv)[-60:] for argv, _ in SELECTIONS)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Good and bad files; nothing in it is changed by any case."""
    base = tmp_path_factory.mktemp("bad")
    places = {name: base / name for name in ("root", "empty", "locked")}
    for path in places.values():
        path.mkdir()
    places["study"] = base / "study"
    make_seed_folder(places["study"] / "net/big/in1k/eval_logreg/seed_22")
    (places["study"] / "net/big/model.ckpt").write_bytes(b"")
    (places["study"] / "empty").mkdir()
    os.mkfifo(places["study"] / "pipe")
    for model in ("sup/resnet50", "mine/net"):
        make_record(make_seed_folder(places["root"] / model / "in1k/eval_logreg/seed-22"))
    runs, _ = find.find_runs(places["root"])
    cells = run_records.average_runs(runs)

    def add(name, content):
        places[name] = base / f"{name}.json"
        places[name].write_text(content)

    good = exchange.dump(cells, label="lab")
    add("good", good)
    add("no_in1k", exchange.dump([dataclasses.replace(cell, dataset="cog_l1") for cell in cells]))
    add(
        "same_label",
        exchange.dump([dataclasses.replace(cell, epochs=(9,)) for cell in cells[:2]], label="lab"),
    )
    add("broken", good[:-30])
    add("wrong", good.replace('"value": 70.0', '"value": 175.0'))
    add("other", '{"results": []}')
    places["locked"].chmod(0o500)
    yield base, {name: str(path) for name, path in places.items()}
    places["locked"].chmod(0o700)


@pytest.mark.parametrize("argv, message", CASES, ids=NAMES)
def test_bad_input_is_one_line_and_exit_code_2(workshop, capsys, argv, message):
    base, places = workshop
    if "{locked}" in " ".join(argv) and os.access(places["locked"], os.W_OK):
        pytest.skip("permissions mean nothing to this user")
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*")}
    with pytest.raises(SystemExit) as exit_:
        cli.run(print_results.main, [argument.format(**places) for argument in argv])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2 and out == ""
    assert err.count("\n") == 1 and "Traceback" not in err, err
    assert message.format(**places) in err
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*")} == before
