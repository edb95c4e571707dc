"""Labels and groups of a user's own models in tables, figures and on the page."""

from __future__ import annotations

import json
import re

from result_folders import make_seed_folder

from cog import constants
from cog.commands import print_results
from cog.reporting.figures import curves
from cog.results.model_facts import ModelFacts
from cog.results.scores import SeedAverage


def make(model, value):
    return [SeedAverage(model, name, "logreg", "top1", 0, value) for name in constants.DATASETS]


def test_figures_show_labels_and_colors_of_groups():
    facts = ModelFacts(labels={"a_net": "Net A"}, groups={"a_net": "ours", "c_net": "ours"})
    cells = [*make("a_net", 50.0), *make("b_net", 60.0), *make("c_net", 70.0)]
    found = {
        curve.model: curve
        for curve in curves.select(
            cells, (), metric="top1", baseline=None, datasets=None, shots=None, model_facts=facts
        ).curves
    }
    assert found["a_net"].label.removesuffix(" †") == "Net A"
    assert found["b_net"].label.removesuffix(" †") == "b_net"
    assert found["a_net"].style.color == found["c_net"].style.color != found["b_net"].style.color
    assert found["a_net"].style.marker != found["c_net"].style.marker


def test_tables_show_labels_on_request(tmp_path, capsys):
    make_seed_folder(tmp_path / "models/net/big/in1k/eval_logreg/seed-22", 50.0, 80.0)
    file = tmp_path / "models.yaml"
    file.write_text("net_big: {label: My big one, pretraining: IN-1K}\n")
    argv = ["--models_root_dir", str(tmp_path / "models"), "--models_file", str(file), "--view", "shots"]
    for more, name in (([], "net_big"), (["--labels", "paper"], "My big one")):
        print_results.main([*argv, *more])
        out = capsys.readouterr().out
        assert name in out and ("My big one" in out) == bool(more)


def test_later_models_of_the_papers_authors_have_their_labels(tmp_path, capsys):
    for model in ("trex", "trexstar", "net"):
        make_seed_folder(tmp_path / f"{model}/resnet50/in1k/eval_logreg/seed-22", 50.0, 80.0)
    argv = ["--models_root_dir", str(tmp_path), "--view", "shots"]
    for more, names in (([], ["net_resnet50", "trex_resnet50", "trexstar_resnet50"]),
                        (["--labels", "paper"], ["net_resnet50", "t-ReX", "t-ReX*"])):  # fmt: skip
        print_results.main([*argv, *more])
        out = capsys.readouterr().out
        assert [line.split()[0] for line in out.splitlines() if "50.0" in line] == names


def test_notices_of_the_page_call_models_as_its_tables_do(tmp_path):
    make_seed_folder(tmp_path / "models/net/big/in1k/eval_logreg/seed-22", 50.0, 80.0)
    file, page = tmp_path / "models.yaml", tmp_path / "report.html"
    file.write_text("net_big: {label: My big one, pretraining: IN-1K}\n")
    argv = ["--models_root_dir", str(tmp_path / "models"), "--models_file", str(file), "--report", str(page)]
    assert print_results.main(argv) == 0
    named = re.findall(r'<h3 id="notice.*?<span class="of">(.*?)</span>', page.read_text(), re.DOTALL)
    assert named and set(named) == {"My big one"}


def test_labels_of_imported_models_are_the_readers(tmp_path, capsys):
    root, mine = tmp_path / "models/net/big", tmp_path / "models.yaml"
    make_seed_folder(root / "in1k/eval_logreg/seed-22", 50.0, 80.0)
    (root / "in1k/features_train").mkdir()
    (root / "in1k/features_train/features.json").write_text(json.dumps({"label": "ResNet50"}))
    file = tmp_path / "ours.json"
    print_results.main(["--models_root_dir", str(tmp_path / "models"), "--export", str(file)])
    assert "ResNet50" not in file.read_text()
    mine.write_text("net_big: {label: Theirs}\n")
    capsys.readouterr()
    argv = ["--import", str(file), "--labels", "paper", "--view", "shots"]
    for more, name in (([], "net_big"), (["--models_file", str(mine)], "Theirs")):
        print_results.main([*argv, *more])
        assert f"\n{name} " in capsys.readouterr().out


def test_a_marked_baseline_is_explained_and_records_say_what_models_have_seen(capsys):
    request = ("--published_only", "--compare", "sup_resnet50", "clip_resnet50", "--n_shot", "all")
    assert print_results.main(request) == 0
    assert "(web: clip_resnet50)" in " ".join(capsys.readouterr().out.split())
    for models, ends in (
        ("clip_resnet50", {"pretraining", "web"}),
        ("dino_resnet50", {"reading", "not told: counts per concept are not known"}),
    ):
        request = (
            "--published_only", "--compare", models, "sup_resnet50", "--n_shot", "all", "--format", "csv",
        )  # fmt: skip
        assert print_results.main(request) == 0
        assert {line.rpartition(",")[2] for line in capsys.readouterr().out.splitlines()} == ends
    request = ("--published_only", "--model", "swsup_resnet50", "--dataset", "cog_l5", "--n_shot", "all")
    assert print_results.main((*request, "--format", "json")) == 0
    assert {row["pretraining"] for row in json.loads(capsys.readouterr().out)} == {"IN-1K + other"}


def test_imported_models_are_marked_as_they_were_where_they_come_from(tmp_path, capsys):
    names = {"net_mine": "IN-1K", "net_web": "web", "net_untold": None, "sup_resnet50": "IN-1K"}
    for model, seen in names.items():
        folder = tmp_path / "models" / model.replace("_", "/", 1) / "cog_l5"
        make_seed_folder(folder / "eval_logreg/seed-22", 50.0, 80.0)
        (folder / "features_train").mkdir()
        (folder / "features_train/features.json").write_text(json.dumps({"pretraining": seen}))
    file, again = tmp_path / "ours.json", tmp_path / "again.json"
    assert print_results.main(["--models_root_dir", str(tmp_path / "models"), "--export", str(file)]) == 0
    entries = json.loads(file.read_text())["entries"]
    assert {entry["model"]: entry["pretraining"] for entry in entries if "pretraining" in entry} == {
        "net_mine": "IN-1K", "net_web": "web"
    }  # fmt: skip
    capsys.readouterr()
    assert print_results.main(["--import", str(file), "--export", str(again)]) == 0
    assert print_results.main(["--import", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(web: net_web; not stated: net_untold)" in text and "net_mine †" not in text
    assert json.loads(again.read_text())["entries"][0]["pretraining"] == "IN-1K"
    own = tmp_path / "models.yaml"
    own.write_text("net_web: {pretraining: IN-21K}\n")
    argv = ["--import", str(file), "--models_file", str(own), "--format", "json"]
    assert print_results.main(argv) == 0
    rows = json.loads(capsys.readouterr().out)
    expected = names | {"net_web": "IN-21K", "net_untold": "unknown"}
    assert {row["model"]: row["pretraining"] for row in rows} == expected
