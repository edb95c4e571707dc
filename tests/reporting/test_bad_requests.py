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
    "too many decimals": ((*ROOT, "--decimals", "16"), "expected 15 or less"),
    "far too many decimals": ((*ROOT, "--decimals", "1" + "0" * 21), "expected 15 or less"),
    "flag of the index": ((*ROOT, "--no_index"), "runs are always read from their folders, leave it out"),
    "nothing to read": ((), "--import, or --published_only"),
    "unknown model, runs": ((*ROOT, "--model", "sup_resnet5"), "did you mean sup_resnet50?"),
    "unknown model, paper": (("--published_only", "--model", "clip_resnet5"), "did you mean clip_resnet50?"),
    "unknown pattern": (("--published_only", "--model", "vit*"), "--model vit* is none of the 31 models"),
    "unknown model, file": (("--import", "{good}", "--model", "x_y"), "--model x_y is none of the 2 models"),
    "unknown data set": (("--published_only", "--dataset", "cog_l6"), "data sets with results: in1k, cog_l1, cog_l2"),
    "unknown shots": (("--published_only", "--n_shot", "3"), "numbers of images (0 = all) with results: 0, 1, 2, 4"),
    "unknown category": (("--published_only", "--category", "vit"), "'vit' is not one of reference"),
    "empty category": (("--published_only", "--category", "custom"), "together"),
    "empty category of runs": ((*ROOT, "--category", "web-data"), "any model in web-data"),
    "unknown baseline": ((*ROOT, "--relative_to", "sup_resnet5"), "--relative_to sup_resnet5: no result"),
    "unknown baseline near": (("--published_only", "--baseline", "clip_resnet"), "did you mean clip_resnet50?"),
    "baseline of the paper": ((*ROOT, "--baseline", "clip_resnet50"), "--with_published to read the paper's"),
    "relative to the paper": ((*ROOT, "--relative_to", "CLIP"), "--with_published to read the paper's"),
    "baseline no name": (("--published_only", "--baseline", "klip"), "--baseline 'klip' is not a model name"),
    "baseline pattern": (("--published_only", "--relative_to", "clip_*"), "not a model name"),
    "unknown model compared": (("--published_only", "--compare", "a_b", "clip_resnet50"), "--compare a_b is none"),
    "unknown baseline compared": ((*ROOT, "--compare", "mine_net", "mine_nett"), "--compare mine_nett: no result"),
    "the nearest is not read": ((*ROOT, "--compare", "mine_net", "sup_resnet5"), "did you mean sup_resnet50?"),
    "nothing to compare": ((*ROOT, "--compare", "mine_net", "mine_net"), "compare mine_net with: no other model"),
    "compare and model": (("--published_only", "--compare", "a_b", "c_d", "--model", "e_f"), "leave those out"),
    "two views": (("--published_only", "--rank", "--drop"), "--drop and --rank are different views"),
    "view and overview": ((*V1, "--view", "shots", "--overview"), "--view and --overview are different views"),
    "analysis and overview": ((*V1, "--analysis", "kmeans", "--overview"), "--analysis and --overview are different"),
    "variants and rank": ((*V1, "--variants", "mlp", "--rank"), "--rank and --variants are different views"),
    "power and overview": ((*ROOT, "--power", "--overview"), "--power and --overview"),
    "power without counts": ((*ROOT, "--power"), "right answers per concept"),
    "unknown variant": ((*V1, "--variants", "rnn"), "'rnn' is not one of mlp, pca, balanced, blurred, finetune, all"),
    "unknown analysis": ((*V1, "--analysis", "nothing"), "no result of the analysis nothing"),
    "unknown analysis near": ((*V1, "--analysis", "ncmm"), "did you mean ncm?"),
    "analysis of an unknown model": ((*V1, "--analysis", "kmeans", "--model", "no_model"), "no_model"),
    "analysis of an unknown data set": ((*V1, "--analysis", "kmeans", "--dataset", "elsewhere"), "elsewhere"),
    "analysis of the final version": (("--published_only", "--analysis", "all"), "no result of any analysis"),
    "variant of the final version": (("--published_only", "--variants", "all"), "no variant of the classifier"),
    "overview, top-5": ((*ROOT, "--overview", "--metric", "top5"), "--overview shows top-1 only; leave out --metric"),
    "overview, both": ((*ROOT, "--overview", "--metric", "both"), "leave out --metric both"),
    "variants, top-5": ((*ROOT, "--variants", "all", "--metric", "top5"), "--variants shows top-1 only; leave out"),
    "variants, both": ((*ROOT, "--variants", "all", "--metric", "both"), "--variants shows top-1 only; leave out"),
    "drop without in1k": (("--import", "{no_in1k}", "--drop"), "--drop needs results on in1k"),
    "top-5 of the paper": (("--published_only", "--metric", "top5"), "no top-5 accuracy"),
    "unknown view": (("--published_only", "--view", "cells"), "--view"),
    "version alone": ((*ROOT, "--paper", "v1"), "--paper v1 chooses among the paper's results; add --with_published"),
    "unknown version": (("--published_only", "--paper", "v3"), "--paper"),
    "width": (("--published_only", "--width", "wide"), "--width"),
    "no runs beside the paper": (("--models_root_dir", "{empty}", "--with_published"), "no finished run"),
    "no runs beside a file": (("--models_root_dir", "{empty}", "--import", "{good}"), "no finished run"),
    "import missing": (("--import", "{root}/nowhere.json"), "does not exist"),
    "import folder": (("--import", "{root}"), "is a folder"),
    "import no JSON": (("--import", "{broken}"), "is not valid JSON"),
    "import wrong schema": (("--import", "{wrong}"), "entries[0]: value is 175.0, expected a percentage"),
    "import other JSON": (("--import", "{other}"), "not a file of --export"),
    "import twice, different": (("--import", "{good}", "{same_label}"), "under the same label 'lab'"),
    "mixed epochs": ((*ROOT, "--import", "{mixed}"), "different numbers of epochs (seed 1: 2, seed 2: 3)"),
    "export exists": ((*ROOT, "--export", "{good}"), "--export {good} exists"),
    "export folder": ((*ROOT, "--export", "{root}"), "is a folder"),
    "export nowhere": ((*ROOT, "--export", "{root}/no/x.json"), "does not exist"),
    "export read-only": ((*ROOT, "--export", "{locked}/x.json"), "no permission"),
    "output read-only": ((*ROOT, "--output", "{locked}/x.txt"), "no permission"),
    "output read-only, published": (("--published_only", "--output", "{locked}/x.txt"), "no permission"),
    "report exists": ((*ROOT, "--report", "{good}"), "--report {good} exists"),
    "report folder": ((*ROOT, "--report", "{root}", "--overwrite"), "is a folder"),
    "report nowhere": ((*ROOT, "--report", "{root}/no/x.html"), "does not exist"),
    "figures file": ((*ROOT, "--figures", "{good}"), "is a file"),
    "figures read-only": ((*ROOT, "--figures", "{locked}/figures"), "no permission"),
    "figure unknown": (("--published_only", "--figures", "{empty}/f", "--figure_names", "fig9"), "fig9"),
    "figure format": (("--published_only", "--figures", "{empty}/f", "--figure_formats", "gif"), "gif"),
    "figure names alone": (("--published_only", "--figure_names", "fig3"), "add --figures"),
    "diagnostics of the paper": (("--published_only", "--diagnostics", "{empty}/d"), "needs runs"),
    "diagnostics file": ((*ROOT, "--diagnostics", "{good}"), "is a file"),
    "one file for two": ((*ROOT, "--export", "{empty}/x", "--output", "{empty}/x"), "give each its own"),
    "label without export": ((*ROOT, "--label", "lab"), "add --export"),
    "label reserved": ((*ROOT, "--export", "{empty}/x", "--label", "paper v2"), "--label"),
    "label runs": ((*ROOT, "--export", "{empty}/x", "--label", "runs"), "reserved"),
}  # fmt: skip


#: Of results found in folders.
SELECTIONS = [
    ([], "--logreg_root_dir, or --models_root_dir"),
    (["--model", "net_big"], "--models_root_dir"),
    (["--models_root_dir", "{study}/nowhere"], "does not exist"),
    (["--models_root_dir", "{study}/net/big/model.ckpt"], "is a file"),
    (["--logreg_root_dir", "{study}/nowhere"], "--logreg_root_dir"),
    (["--logreg_root_dir", "{study}/empty"], "no finished run in --logreg_root_dir {study}/empty"),
    (["--logreg_root_dir", "{study}/net/big/in1k/eval_logreg/seed_22"],
     "give {study}/net/big/in1k/eval_logreg"),
    (["--logreg_root_dir", "{study}/own"], "this folder is one run itself: move it to DIR/seed-<seed> and give DIR"),
    (["--models_root_dir", "{study}", "--limit", "2"],
     "limit-2 does not exist; run extract_features.py --limit 2 first"),
    (["--models_root_dir", "{study}/nowhere", "--limit", "2"], "limit-2 does not exist; check the path"),
    (["--logreg_root_dir", "{study}/net/big/in1k"], "did you mean its subfolder eval_logreg?"),
    (["--logreg_root_dir", "{study}/net/big/in1k/eval_logreg", "--seeds", "1", "2"], "with seeds 1 2"),
    (["--models_root_dir", "{study}/empty"], "no finished run of any model on any data set"),
    (["--models_root_dir", "{study}", "--model", "nounderscore"], "--model 'nounderscore'"),
    (["--models_root_dir", "{study}", "--model", "net_big", "../x"], "--model '../x'"),
    (["--models_root_dir", "{study}", "--dataset", "../x"], "--dataset '../x'"),
    (["--models_root_dir", "{study}", "--model", "net_bgi"], "no finished run of net_bgi"),
    (["--models_root_dir", "{study}", "--model", "net_big", "--dataset", "in1k", "CLF.N_SHOT", "4"],
     "expected {study}/net/big/in1k/eval_logreg_N4/seed-<seed>/final-*/logs.pkl; there is eval_logreg"),
    (["--models_root_dir", "{study}", "EVAL.NAME", "mlp"], "eval_mlp[_N<shots>]"),
    (["--models_root_dir", "{study}", "EVAL.NAM", "mlp"], "did you mean EVAL.NAME?"),
    (["--models_root_dir", "{study}", "CLF.N_SHOT", "-1"], "CLF.N_SHOT"),
    (["--models_root_dir", "{study}", "CLF.N_SHOT"], "has no value"),
    (["--models_root_dir", "{study}", "CLF.N_SHOT", "8", "--n_shot", "4"], "disagree"),
    (["--models_root_dir", "{study}", "--n_shot", "-1"], "--n_shot"),
    (["--models_root_dir", "{study}", "--n_shot", "few"], "--n_shot"),
    (["--models_root_dir", "{study}", "--seeds", "x"], "--seeds"),
    (["--models_root_dir", "{study}", "--decimals", "-1"], "--decimals"),
    (["--models_root_dir", "{study}", "--format", "html"], "--format"),
    (["--models_root_dir", "{study}", "--metric", "top3"], "--metric"),
    (["--models_root_dir", "{study}", "--no_such_flag"], "--no_such_flag"),
    (["--models_root_dir", "{study}", "--output", "{study}"], "is a folder"),
    (["--models_root_dir", "{study}", "--output", "{study}/nowhere/x.csv"], "does not exist"),
    (["--models_root_dir", "{study}", "--output", "{study}/pipe", "--overwrite"], "not a regular file"),
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
    make_seed_folder(places["study"] / "own")
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
    mixed = [
        dataclasses.replace(cell, seeds=(1, 2), epochs=(2, 3), by_seed=(cell.value, cell.value))
        for cell in cells[:2]
    ]
    add("mixed", exchange.dump(mixed))
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


def test_mixed_epochs_can_be_allowed(workshop, capsys):
    _, places = workshop
    assert print_results.main(["--import", places["mixed"], "--allow_mixed_epochs"]) == 0
    assert "70.0 ± 0.0" in capsys.readouterr().out
