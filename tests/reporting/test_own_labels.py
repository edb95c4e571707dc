"""Labels and groups of a user's own models in tables, figures and on the page."""

from __future__ import annotations

import json
import re

from result_folders import make_seed_folder

from cog import constants
from cog.reporting.figures import curves
from cog.reporting.html import pictures
from cog.results.model_facts import ModelFacts
from cog.results.scores import SeedAverage


def averages_of(model, value):
    return [SeedAverage(model, name, "logreg", "top1", 0, value) for name in constants.DATASETS]


def test_figures_show_labels_and_colors_of_groups():
    facts = ModelFacts(labels={"a_net": "Net A"}, groups={"a_net": "ours", "c_net": "ours"})
    cells = [*averages_of("a_net", 50.0), *averages_of("b_net", 60.0), *averages_of("c_net", 70.0)]
    settings = dict.fromkeys(("baseline", "datasets", "shots"))
    selection = curves.select(cells, (), metric="top1", **settings, model_facts=facts)
    found = {curve.model: curve for curve in selection.curves}
    assert found["a_net"].label.removesuffix(" †") == "Net A"
    assert found["b_net"].label.removesuffix(" †") == "b_net"
    assert found["a_net"].style.color == found["c_net"].style.color != found["b_net"].style.color
    assert found["a_net"].style.marker != found["c_net"].style.marker


def write_run(root, model="net_big", dataset="in1k", **of_features):
    """Write a run, and what the description of the model's features says."""
    folder = root / model.replace("_", "/", 1) / dataset
    make_seed_folder(folder / "eval_logreg/seed-22", 50.0, 80.0)
    (folder / "features_train").mkdir()
    (folder / "features_train/features.json").write_text(json.dumps(of_features))
    return root


def test_tables_show_labels_on_request(tmp_path, show):
    root, file = write_run(tmp_path / "models"), tmp_path / "models.yaml"
    file.write_text("net_big: {label: My big one, pretraining: IN-1K}\n")
    argv = ("--models_root_dir", root, "--models_file", file, "--view", "shots")
    assert "\nnet_big " in show(*argv)
    assert "\nMy big one " in show(*argv, "--labels", "paper")


def test_later_models_of_the_papers_authors_have_their_labels(tmp_path, show):
    for model in ("trex_resnet50", "trexstar_resnet50", "net_resnet50"):
        write_run(tmp_path, model)
    for more, names in (
        ((), ["net_resnet50", "trex_resnet50", "trexstar_resnet50"]),
        (("--labels", "paper"), ["net_resnet50", "t-ReX", "t-ReX*"]),
    ):
        out = show("--models_root_dir", tmp_path, "--view", "shots", *more)
        assert [line.split()[0] for line in out.splitlines() if "50.0" in line] == names


def test_notices_of_the_page_call_models_as_its_tables_do(tmp_path, show, monkeypatch):
    monkeypatch.setattr(pictures, "draw", lambda *args, **kwargs: ([], ""))
    root, file, page = write_run(tmp_path / "models"), tmp_path / "models.yaml", tmp_path / "report.html"
    file.write_text("net_big: {label: My big one, pretraining: IN-1K}\n")
    show("--models_root_dir", root, "--models_file", file, "--report", page)
    named = re.findall(r'<h3 id="notice.*?<span class="of">(.*?)</span>', page.read_text(), re.DOTALL)
    assert named and set(named) == {"My big one"}


def test_labels_of_imported_models_are_the_readers(tmp_path, show):
    root, mine, file = tmp_path / "models", tmp_path / "models.yaml", tmp_path / "ours.json"
    show("--models_root_dir", write_run(root, label="ResNet50"), "--export", file)
    assert "ResNet50" not in file.read_text()
    mine.write_text("net_big: {label: Theirs}\n")
    argv = ("--import", file, "--labels", "paper", "--view", "shots")
    assert "\nnet_big " in show(*argv)
    assert "\nTheirs " in show(*argv, "--models_file", mine)


def test_a_marked_baseline_is_explained_and_records_say_what_models_have_seen(show):
    request = ("--published_only", "--n_shot", "all")
    out = show(*request, "--compare", "sup_resnet50", "clip_resnet50")
    assert "(web: clip_resnet50)" in " ".join(out.split())
    for model, ends in (
        ("clip_resnet50", {"pretraining", "web"}),
        ("dino_resnet50", {"reading", "not told: counts per concept are not known"}),
    ):
        out = show(*request, "--compare", model, "sup_resnet50", "--format", "csv")
        assert {line.rpartition(",")[2] for line in out.splitlines()} == ends
    rows = json.loads(show(*request, "--model", "swsup_resnet50", "--dataset", "cog_l5", "--format", "json"))
    assert {row["pretraining"] for row in rows} == {"IN-1K + other"}


def test_imported_models_are_marked_as_they_were_where_they_come_from(tmp_path, show):
    names = {"net_mine": "IN-1K", "net_web": "web", "net_untold": None, "sup_resnet50": "IN-1K"}
    for model, seen in names.items():
        write_run(tmp_path / "models", model, "cog_l5", pretraining=seen)
    file, again = tmp_path / "ours.json", tmp_path / "again.json"
    show("--models_root_dir", tmp_path / "models", "--export", file)
    entries = json.loads(file.read_text())["entries"]
    seen = {entry["model"]: entry["pretraining"] for entry in entries if "pretraining" in entry}
    assert seen == {"net_mine": "IN-1K", "net_web": "web"}
    show("--import", file, "--export", again)
    assert json.loads(again.read_text())["entries"][0]["pretraining"] == "IN-1K"
    text = " ".join(show("--import", file).split())
    assert "(web: net_web; not stated: net_untold)" in text and "net_mine †" not in text
    own = tmp_path / "models.yaml"
    own.write_text("net_web: {pretraining: IN-21K}\n")
    rows = json.loads(show("--import", file, "--models_file", own, "--format", "json"))
    expected = names | {"net_web": "IN-21K", "net_untold": "unknown"}
    assert {row["model"]: row["pretraining"] for row in rows} == expected
