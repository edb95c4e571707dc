"""Labels and groups of a user's own models in tables, figures and on the page."""

from __future__ import annotations

import json

from result_folders import make_seed_folder

from cog import constants
from cog.reporting.figures import curves
from cog.results.model_facts import ModelFacts
from cog.results.scores import SeedAverage


def averages_of(model, value):
    return [SeedAverage(model, name, "logreg", "top1", 0, value) for name in constants.DATASETS]


def test_figures_show_labels_and_colors_of_groups():
    facts = ModelFacts(labels={"a_net": "Net A"}, groups={"a_net": "ours", "c_net": "ours"})
    cells = [*averages_of("a_net", 50.0), *averages_of("b_net", 60.0), *averages_of("c_net", 70.0)]
    settings = dict.fromkeys(("baseline", "datasets", "shots"))
    selection = curves.select(cells, (), **settings, model_facts=facts)
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


def test_latex_has_the_labels(tmp_path, show):
    for model, label in (("trex_resnet50", None), ("trexstar_resnet50", None), ("net_big", "My big one")):
        write_run(tmp_path / "models", model, label=label)
    file = tmp_path / "ours.json"
    own = ("--models_root_dir", tmp_path / "models")
    assert [line.split()[0] for line in show(*own).splitlines()[3:6]] == [
        "net_big",
        "trex_resnet50",
        "trexstar_resnet50",
    ]
    rows = show(*own, "--format", "latex")
    assert "My big one" in rows and "t-ReX " in rows and "t-ReX* " in rows
    show(*own, "--export", file)
    assert "My big one" not in file.read_text() and r"net\_big" in show("--import", file, "--format", "latex")
    assert "a-DeiT-S distilled" in show("--published_only", "--format", "latex")


def test_a_marked_baseline_is_explained_and_records_say_what_models_have_seen(show):
    request = ("--published_only", "--n_shot", "all")
    out = show(*request, "--model", "sup_resnet50", "--relative_to", "clip_resnet50")
    assert "clip_resnet50" in out
    for model, last in (("clip_resnet50", "pretraining"), ("dino_resnet50", "source")):
        out = show(*request, "--model", model, "--relative_to", "sup_resnet50", "--format", "csv")
        assert out.splitlines()[0].rpartition(",")[2] == last
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
    rows = json.loads(show("--import", file, "--format", "json"))
    assert {row["model"]: row["pretraining"] for row in rows} == names | {"net_untold": "unknown"}
