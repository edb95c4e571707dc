"""Which models may have seen the levels in pretraining."""

from __future__ import annotations

from types import SimpleNamespace

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


def test_features_json_comes_before_the_name():
    recorded = features(my_net="web", other_net="IN-21K", odd_net="<b>", none_net=None)
    known = read_model_facts(recorded)
    assert (known.label("other_net"), known.label("other_net", "friend.json")) == ("L", "other_net")
    assert known.label("my_net", "paper v2") == "my_net"
    assert [known.of(name) for name in ("my_net", "other_net", "odd_net", "none_net")] == [
        "web", "IN-21K", "unknown", "unknown"
    ]  # fmt: skip
    assert known.of("clip_resnet50", "paper v2") == "web", "the paper's numbers are of the paper's weights"
    assert known.of("other_net", "friend.json") == "unknown", "recorded beside the runs, not in the file"
    words = {("other_net", "friend.json"): "web", ("clip_resnet50", "paper v2"): "IN-1K"}
    known = read_model_facts(recorded, averages(words))
    assert known.of("other_net", "friend.json") == "web" and known.of("other_net") == "IN-21K"
    assert known.of("clip_resnet50", "paper v2") == "web"


def test_the_footnote_names_a_few_models_of_each_kind():
    known = ModelFacts({f"a_{i}": "web" for i in range(5)} | {"b_1": "IN-21K", "c_1": "IN-1K"})
    text = known.footnote(
        [(f"a_{i}", "runs") for i in range(5)] + [("b_1", "runs"), ("c_1", "runs"), ("d_1", "runs")]
    )
    assert "(IN-21K: b_1; web: a_0, a_1, a_2 and 2 more; not stated: d_1)" in text
    assert "--seen_wnids" in text and "models.yaml" in text
    assert known.footnote([("c_1", "runs")]) == ""
