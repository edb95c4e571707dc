"""Which models may have seen the levels in pretraining."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cog.errors import CogError
from cog.results import published
from cog.results.model_facts import ModelFacts, read_model_facts
from cog.results.scores import SeedAverage


def test_the_papers_own_web_models_are_marked():
    marked = [name for name in published.MODELS if ModelFacts().mark(name, "paper v2")]
    assert marked == ["ssup_resnet50", "swsup_resnet50", "mopro_resnet50", "clip_resnet50"]


def features(**seen_by):
    return {
        (name, "in1k", "train"): SimpleNamespace(pretraining=text, label="L", group=None)
        for name, text in seen_by.items()
    }


def averages(seen_by):
    return [
        SeedAverage(model, "in1k", "logreg", "top1", 0, 70.0, source=source, pretraining=text)
        for (model, source), text in seen_by.items()
    ]


def test_the_users_file_comes_before_features_json_and_that_before_the_name(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text("my_net: {pretraining: IN-1K, label: Mine}\nclip_resnet50: {pretraining: IN-1K}\n")
    recorded = features(my_net="web", other_net="IN-21K", odd_net="<b>", none_net=None)
    known = read_model_facts(recorded, path=file)
    assert (known.label("my_net"), known.label("other_net")) == ("Mine", "L")
    assert (known.label("my_net", "friend.json"), known.label("other_net", "friend.json")) == (
        "Mine",
        "other_net",
    )
    assert known.label("my_net", "paper v2") == "my_net"
    assert [known.of(name) for name in ("my_net", "other_net", "odd_net", "none_net", "timm_a.in1k")] == [
        "IN-1K", "IN-21K", "unknown", "unknown", "IN-1K"
    ]  # fmt: skip
    assert known.of("clip_resnet50", "paper v2") == "web", "the paper's numbers are of the paper's weights"
    assert known.of("other_net", "friend.json") == "unknown", "recorded beside the runs, not in the file"
    words = {("other_net", "friend.json"): "web", ("my_net", "friend.json"): "web"}
    known = read_model_facts(recorded, averages(words | {("clip_resnet50", "paper v2"): "IN-1K"}), file)
    assert known.of("other_net", "friend.json") == "web" and known.of("my_net", "friend.json") == "IN-1K"
    assert known.of("clip_resnet50", "paper v2") == "web" and known.of("other_net") == "IN-21K"
    with pytest.raises(CogError, match="does not exist"):
        read_model_facts({}, path=tmp_path / "none.yaml")


def test_an_unusable_entry_is_left_out_with_a_warning(tmp_path, caplog):
    file = tmp_path / "models.yaml"
    file.write_text("bad_net: {pretraining: IN-2K}\nbare: {}\nmy_net: {pretraining: web, label: Mine}\n")
    known = read_model_facts(features(bad_net="IN-21K"), path=file)
    assert (known.of("my_net"), known.label("my_net")) == ("web", "Mine")
    assert known.of("bad_net") == "IN-21K", "as without the entry"
    first, second = caplog.messages
    assert first.startswith(f"{file}: bad_net: pretraining 'IN-2K' is not known") and "left out" in first
    assert f"{file}: bare is not a model name" in second


def test_the_footnote_names_a_few_models_of_each_kind():
    known = ModelFacts({f"a_{i}": "web" for i in range(5)} | {"b_1": "IN-21K", "c_1": "IN-1K"})
    text = known.footnote(
        [(f"a_{i}", "runs") for i in range(5)] + [("b_1", "runs"), ("c_1", "runs"), ("d_1", "runs")]
    )
    assert "(IN-21K: b_1; web: a_0, a_1, a_2 and 2 more; not stated: d_1)" in text
    assert "--seen_wnids" in text and "--models_file" in text
    assert known.footnote([("c_1", "runs")]) == ""
