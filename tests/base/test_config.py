"""Configuration: sources in order, every value checked, mistakes answered with what was meant."""

import ast
import itertools
import re
import shutil

import pytest

from cog import config
from cog.errors import CogError
from cog.models.paper_models import MODELS


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A folder of configurations of the test's own."""
    folder = tmp_path / "configs"
    folder.mkdir()
    shutil.copy(config.configs_dir() / "default.py", folder)
    monkeypatch.setattr(config, "configs_dir", lambda: folder)
    return folder


def get(*opts, **kwargs):
    return config.get_cfg(opts=list(opts), **kwargs)


#: The contract's table.
CONTRACT = {
    "FT_EXTRACT.IMAGE_RESIZE_SIZE": 224,
    "FT_EXTRACT.IMAGE_CROP_SIZE": 224,
    "FT_EXTRACT.IMAGE_NORM.MEAN": [0.485, 0.456, 0.406],
    "FT_EXTRACT.IMAGE_NORM.STD": [0.229, 0.224, 0.225],
    "FT_EXTRACT.BATCH_SIZE": 128,
    "EVAL.NAME": "logreg",
    "EVAL.SEED": 22,
    "CLF.BATCH_SIZE": 1024,
    "CLF.N_EPOCHS": 100,
    "CLF.N_TRIALS": 30,
    "CLF.N_SHOT": 0,
    "CLF.VAL_PERC": 0.2,
    "CLF.NORM_FTS": True,
    "CLF.LR_INTV": (1e-1, 1e2),
    "CLF.WD_INTV": (1e-12, 1e-4),
}


def test_defaults_are_those_of_the_contract_and_pass_their_checks_for_every_model():
    values = config.flat(get())
    assert {key: values[key] for key in CONTRACT} == CONTRACT
    assert all(type(values[key]) is type(value) for key, value in CONTRACT.items())
    for spec in MODELS.values():
        config.get_cfg(declared=spec.declared)
    assert config.get_cfg(declared=MODELS["sup_inception-v3"].declared).FT_EXTRACT.IMAGE_CROP_SIZE == 299


def test_every_default_is_a_literal_with_a_comment_and_a_range():
    text = (config.configs_dir() / "default.py").read_text()
    keys = []
    for above, line in itertools.pairwise(text.splitlines()):
        if match := re.match(r"_C\.([A-Z_.]+) = (?!CfgNode)(.+)", line):
            keys.append(match[1])
            ast.literal_eval(match[2])
            assert above.startswith(("# ", "_C.")), f"{match[1]} has no comment"
            is_free = match[2] in ("True", "False") or match[1] in ("EVAL.NAME", "LEVELS.EXCLUDED_ROOTS")
            assert is_free or f'"{match[1]}": ' in text, f"{match[1]} has no range"
    assert sorted(keys) == sorted(config.flat(config.default_cfg())) and len(keys) <= 45


def test_each_source_wins_over_those_before(configs):
    declared = MODELS["sup_inception-v3"].declared
    (configs / "tiny_net.yaml").write_text("FT_EXTRACT: {IMAGE_RESIZE_SIZE: 310}")
    key = "FT_EXTRACT.IMAGE_RESIZE_SIZE"
    sources = {"declared": declared, "model_name": "tiny_net", "opts": [key, "330"]}
    for n, expected in enumerate((224, 299, 310, 330)):
        cfg = config.get_cfg(**dict(itertools.islice(sources.items(), n)))
        assert config.flat(cfg)[key] == expected
    assert cfg.FT_EXTRACT.IMAGE_CROP_SIZE == 299  # what a later source does not name stays
    assert config.flat(get(model_name="other_net"))[key] == 224
    with pytest.raises(AttributeError):
        cfg.CLF.N_SHOT = 3
    (configs / "dump_net.yaml").write_text(cfg.dump())
    assert config.flat(get(model_name="dump_net")) == config.flat(cfg)


def test_a_yaml_that_names_no_model_is_an_error(configs):
    # the original toolkit's clip.yaml was never read: the model is called clip_resnet50
    (configs / "clip.yaml").write_text("CLF: {N_EPOCHS: 1}")
    with pytest.raises(CogError, match=r"clip\.yaml matches no model name"):
        get(model_name="clip_resnet50")
    with pytest.raises(CogError, match="is not a model name"):
        get(model_name="a_../b")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("CLF.VAL_PERC", "1e-1", 0.1),
        ("CLF.LR_INTV", "[1e-3,1e-2]", (1e-3, 1e-2)),
        ("CLF.NORM_FTS", "False", False),
        ("EVAL.NAME", "2021", "2021"),
        ("EVAL.SEED", "4294967295", 2**32 - 1),
        ("FT_EXTRACT.IMAGE_NORM.MEAN", "(0.5, 0.5, 0.5)", [0.5, 0.5, 0.5]),
        ("CLF.N_SHOT", "None", 0),
        ("CLF.LR_INTV", "(10, 10)", (10, 10)),
    ],
)
def test_values_of_the_command_line_and_of_files_mean_the_same(configs, key, text, expected):
    value = config.flat(get(key, text))[key]
    assert value == expected and type(value) is type(expected)
    *sections, leaf = key.split(".")
    opened = "".join(f"{section}: {{" for section in sections)
    (configs / "tiny_net.yaml").write_text(f"{opened}{leaf}: {text!r}" + "}" * len(sections))
    assert config.flat(get(model_name="tiny_net"))[key] == expected


@pytest.mark.parametrize(
    ("key", "texts"),
    [
        ("CLF.N_EPOCHS", ["0", "1.5", "ten", "True", "[1]", "", "1" + "0" * 30, "9" * 5000, "{[]: 1}"]),
        ("CLF.N_EPOCHS", ["(" * 5000, "__import__('os').getcwd()", "2001-01-01"]),
        ("CLF.VAL_PERC", ["0", "1", "nan", "1e999", "20%"]),
        ("CLF.NORM_FTS", ["1", "no"]),
        ("CLF.LR_INTV", ["1", "(1,)", "(1,2,3)", "(2,1)", "(0,1)", "(1,1e999)", "('a','b')", "(True, 2)"]),
        ("EVAL.SEED", ["-1", "4294967296", "1e3"]),
        ("EVAL.NAME", ["../up", "", "a b", ".hidden", "logreg_N8", "N8"]),
        ("FT_EXTRACT.IMAGE_CROP_SIZE", ["0", "225"]),
        ("FT_EXTRACT.IMAGE_NORM.MEAN", ["[0.5,0.5]", "['0.5','0.5','0.5']", "[123.7,116,103]", "0.5"]),
        ("FT_EXTRACT.IMAGE_NORM.STD", ["[0,1,1]", "[-1,1,1]"]),
        ("FT_EXTRACT.PRECISION", ["fp8"]),
        ("ANALYSIS.KNN_K", ["[1,1]", "[0]", "[]"]),
    ],
)
def test_wrong_values_are_one_line_with_key_and_expectation(key, texts):
    for text in texts:
        with pytest.raises(CogError, match=rf"^{re.escape(key)} .*expected .+") as error:
            get(key, text, declared={})
        assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("CLF.N_SHOTS", r"did you mean CLF\.N_SHOT\?"),
        ("clf.n_shot", r"did you mean CLF\.N_SHOT\?"),
        ("QQQ.WWW", r"configs/default\.py lists all keys"),
    ],
)
def test_unknown_keys_are_answered_with_the_nearest(key, hint):
    for value in ("8", "None"):
        with pytest.raises(CogError, match=rf"key {key} \(from the command line\); {hint}$"):
            get(key, value)


BROKEN = [
    *("- 1\n", "just text", "CLF: [1", "CLF:\n\tN_EPOCHS: 1", "CLF: {N_EPOCHS: 2001-99-99}", "\udcff"),
    *("!!python/object/apply:os.system ['touch canary']", "CLF: {N_EPOCH: 1}", "CLF: 3", "[" * 1000),
    *("CLF: {N_EPOCHS: {A: 1}}", "CLF: &again\n  N_SHOT: 8\n  MORE: *again\n", "CLF: {N_SHOT: 1, N_SHOT: 2}"),
]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: ascii(text)[:30])
def test_broken_files_are_one_line(configs, monkeypatch, text):
    monkeypatch.chdir(configs)
    path = configs / "tiny_net.yaml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(CogError, match=r"tiny_net\.yaml"):
        get(model_name="tiny_net")
    assert not (configs / "canary").exists()
