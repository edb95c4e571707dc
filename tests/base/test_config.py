"""Configuration: sources in order, every value checked, mistakes answered with what was meant."""

from __future__ import annotations

import ast
import itertools
import re
import shutil

import pytest
import yaml

from cog import config
from cog.data.pixels import Preprocess
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


# --- the contract's table

CONTRACT = {
    "FT_EXTRACT.IMAGE_RESIZE_SIZE": 224,
    "FT_EXTRACT.IMAGE_CROP_SIZE": 224,
    "FT_EXTRACT.IMAGE_NORM.MEAN": [0.485, 0.456, 0.406],
    "FT_EXTRACT.IMAGE_NORM.STD": [0.229, 0.224, 0.225],
    "FT_EXTRACT.BATCH_SIZE": 128,
    "FT_EXTRACT.N_WORKERS": 8,
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


def test_defaults_are_those_of_the_contract():
    values = config.flat(get())
    assert {key: values[key] for key in CONTRACT} == CONTRACT
    assert all(type(values[key]) is type(value) for key, value in CONTRACT.items())


def test_every_default_has_a_comment():
    lines = (config.configs_dir() / "default.py").read_text().splitlines()
    keys = []
    for above, line in itertools.pairwise(lines):
        match = re.match(r"_C\.([A-Z_.]+) = (?!CfgNode)", line)
        if match is None:
            continue
        keys.append(match.group(1))
        together = ("IMAGE_CROP_SIZE", "IMAGE_NORM.STD", "CLF.MLP_LAYERS", "CLF.WD_INTV", "LEVELS.MAX_TRAIN")
        comment = above.startswith("# ") or above.startswith("_C.FT_EXTRACT.IMAGE_NORM = CfgNode")
        assert comment or match.group(1).endswith(together), f"{match.group(1)} has no comment of its own"
    assert sorted(keys) == sorted(config.flat(config.default_cfg()))


def test_defaults_pass_their_own_checks_and_models_too():
    for spec in MODELS.values():
        config.get_cfg(declared=spec.declared)


# --- precedence


def test_each_source_wins_over_those_before(configs, tmp_path):
    model = {"model_name": "tiny_net", "declared": {"protocol": Preprocess(90, 100)}}
    file = tmp_path / "own.yaml"
    key = "FT_EXTRACT.IMAGE_RESIZE_SIZE"

    def value(**kwargs):
        return config.flat(config.get_cfg(**kwargs))[key]

    assert value() == 224
    assert value(**model) == 100
    (configs / "tiny_net.yaml").write_text("FT_EXTRACT: {IMAGE_RESIZE_SIZE: 110, IMAGE_CROP_SIZE: 90}")
    assert value() == 224
    assert value(**model) == 110
    assert value(model_name="tiny_net") == 110
    file.write_text("FT_EXTRACT:\n  IMAGE_RESIZE_SIZE: 120\n")
    assert value(**model, config_file=file) == 120
    assert value(**model, config_file=file, opts=[key, "130"]) == 130
    assert value(**model, config_file=file, opts=[key, "130", key, "140"]) == 140
    # what a later source does not name stays as an earlier one has it
    assert config.get_cfg(**model, config_file=file).FT_EXTRACT.IMAGE_CROP_SIZE == 90


def test_the_result_is_frozen_and_independent():
    cfg = get()
    with pytest.raises(AttributeError):
        cfg.CLF.N_SHOT = 3
    assert get("CLF.N_SHOT", "8").CLF.N_SHOT == 8
    assert get().CLF.N_SHOT == 0
    get("FT_EXTRACT.IMAGE_NORM.MEAN", "[0.5,0.5,0.5]")
    assert get().FT_EXTRACT.IMAGE_NORM.MEAN == [0.485, 0.456, 0.406]


def test_a_yaml_that_names_no_model_is_an_error(configs):
    # the original toolkit's clip.yaml was never read: the model is called clip_resnet50
    (configs / "sup.yaml").write_text("CLF: {N_EPOCHS: 1}")
    with pytest.raises(CogError, match=r"sup\.yaml matches no model"):
        get(model_name="sup_resnet50")


def test_a_yaml_of_an_own_model_applies_to_that_model_alone(configs, caplog):
    (configs / "mobilenet_v2_100.yaml").write_text("CLF: {N_EPOCHS: 1}")
    assert get(model_name="mobilenet_v2_100").CLF.N_EPOCHS == 1
    for other in ("sup_resnet50", "own_net", "mobilenet_v2"):
        assert get(model_name=other).CLF.N_EPOCHS == 100
    assert not caplog.records


@pytest.mark.parametrize("name", ["../x", "a", "a_../b", "_x", "a b_c", "a_b/c"])
def test_a_model_name_cannot_lead_elsewhere(configs, name):
    (configs.parent / "x.yaml").write_text("CLF: {N_EPOCHS: 1}")
    with pytest.raises(CogError, match="is not a model name"):
        get(model_name=name)


# --- values


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("CLF.VAL_PERC", "0.5", 0.5),
        ("CLF.VAL_PERC", "1e-1", 0.1),
        ("CLF.LR_INTV", "(1, 10)", (1, 10)),
        ("CLF.LR_INTV", "[1e-3,1e-2]", (1e-3, 1e-2)),
        ("CLF.NORM_FTS", "False", False),
        ("EVAL.NAME", "logreg2", "logreg2"),
        ("EVAL.NAME", "2021", "2021"),
        ("EVAL.SEED", "4294967295", 2**32 - 1),
        ("FT_EXTRACT.IMAGE_NORM.MEAN", "(0.5, 0.5, 0.5)", [0.5, 0.5, 0.5]),
        ("FT_EXTRACT.IMAGE_NORM.STD", "[1, 1, 1]", [1, 1, 1]),
        ("FT_EXTRACT.IMAGE_CROP_SIZE", "1", 1),
        ("CLF.N_SHOT", "None", 0),
        ("CLF.N_SHOT", "null", 0),
        ("EVAL.NAME", "NONE", "logreg"),
    ],
)
def test_values_of_the_command_line(key, text, expected, tmp_path):
    value = config.flat(get(key, text))[key]
    assert value == expected
    assert type(value) is type(expected)
    # the same value means the same in a file
    section, _, leaf = key.rpartition(".")
    tree = {leaf: text}
    for part in reversed(section.split(".")):
        tree = {part: tree}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert config.flat(get(config_file=path))[key] == expected


WRONG = [
    ("CLF.N_EPOCHS", "0", "at least 1"),
    ("CLF.N_EPOCHS", "-1", "at least 1"),
    ("CLF.N_EPOCHS", "1.5", "is a float, expected an int"),
    ("CLF.N_EPOCHS", "ten", "is a str, expected an int"),
    ("CLF.N_EPOCHS", "True", "is a bool, expected an int"),
    ("CLF.N_EPOCHS", "[1]", "is a list, expected an int"),
    ("CLF.N_EPOCHS", "", "is a str"),
    ("CLF.N_EPOCHS", "1" + "0" * 30, "at least 1"),
    ("CLF.N_EPOCHS", "9" * 5000, "expected an int"),
    ("CLF.N_EPOCHS", "{[]: 1}", "expected an int"),
    ("CLF.N_EPOCHS", "(" * 5000, "expected an int"),
    ("CLF.N_EPOCHS", "__import__('os').getcwd()", "is a str"),
    ("CLF.BATCH_SIZE", "0", "at least 1"),
    ("CLF.N_TRIALS", "-1", "from 0"),
    ("CLF.N_SHOT", "-1", "from 0"),
    ("CLF.N_SHOT", "0.5", "expected an int"),
    ("CLF.VAL_PERC", "0", "between 0 and 1"),
    ("CLF.VAL_PERC", "1", "between 0 and 1"),
    ("CLF.VAL_PERC", "nan", "is a str"),
    ("CLF.VAL_PERC", "1e999", "between 0 and 1"),
    ("CLF.VAL_PERC", "20%", "is a str"),
    ("CLF.NORM_FTS", "1", "is an int, expected a bool"),
    ("CLF.NORM_FTS", "no", "is a str, expected a bool"),
    ("CLF.LR_INTV", "1", "expected a tuple"),
    ("CLF.LR_INTV", "(1,)", "low, high"),
    ("CLF.LR_INTV", "(1,2,3)", "low, high"),
    ("CLF.LR_INTV", "(2,1)", "low, high"),
    ("CLF.LR_INTV", "(0,1)", "low, high"),
    ("CLF.LR_INTV", "(1,1e999)", "low, high"),
    ("CLF.WD_INTV", "('a','b')", "low, high"),
    ("CLF.WD_INTV", "(True, 2)", "low, high"),
    ("CLF.WD_INTV", "(-1e-4, 1e-4)", "low, high"),
    ("EVAL.SEED", "-1", "from 0"),
    ("EVAL.SEED", "4294967296", "from 0"),
    ("EVAL.SEED", "1e3", "expected an int"),
    ("EVAL.NAME", "../up", "plain folder name"),
    ("EVAL.NAME", "", "plain folder name"),
    ("EVAL.NAME", "a b", "plain folder name"),
    ("EVAL.NAME", ".hidden", "plain folder name"),
    ("EVAL.NAME", "logreg_N8", "few-shot runs"),
    ("EVAL.NAME", "N8", "few-shot runs"),
    ("FT_EXTRACT.IMAGE_RESIZE_SIZE", "0", "at least 1"),
    ("FT_EXTRACT.IMAGE_CROP_SIZE", "225", "at most IMAGE_RESIZE_SIZE"),
    ("FT_EXTRACT.IMAGE_NORM.MEAN", "[0.5,0.5]", "three numbers"),
    ("FT_EXTRACT.IMAGE_NORM.MEAN", "['0.5','0.5','0.5']", "three numbers"),
    ("FT_EXTRACT.IMAGE_NORM.MEAN", "[1e999,0,0]", "three numbers"),
    ("FT_EXTRACT.IMAGE_NORM.MEAN", "[123.675,116.28,103.53]", "divided by 255 it is [0.485, 0.456, 0.406]"),
    ("FT_EXTRACT.IMAGE_NORM.MEAN", "[-0.5,0.5,0.5]", "pixels are in [0, 1] here"),
    ("FT_EXTRACT.IMAGE_NORM.STD", "[58.395,57.12,57.375]", "divided by 255 it is [0.229, 0.224, 0.225]"),
    ("FT_EXTRACT.IMAGE_NORM.MEAN", "0.5", "expected a list"),
    ("FT_EXTRACT.IMAGE_NORM.STD", "[0,1,1]", "three positive"),
    ("FT_EXTRACT.IMAGE_NORM.STD", "[-1,1,1]", "three positive"),
    ("FT_EXTRACT.N_WORKERS", "-1", "from 0"),
    ("FT_EXTRACT.PRECISION", "fp8", "fp32, tf32, fp16 or bf16"),
    ("FT_EXTRACT.LOAD_TRUNCATED_IMAGES", "yes", "expected a bool"),
]


@pytest.mark.parametrize(("key", "text", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_values(key, text, message):
    with pytest.raises(CogError, match=re.escape(message)) as error:
        get(key, text)
    assert key in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("CLF.N_SHOTS", "CLF.N_SHOT"),
        ("CLF.NSHOT", "CLF.N_SHOT"),
        ("CLF.LR", "CLF.LR_INTV"),
        ("EVAL.SEEDS", "EVAL.SEED"),
        ("CLF.SEED", "EVAL.SEED"),
        ("CLF.EPOCHS", "CLF.N_EPOCHS"),
        ("CLF.SHOT", "CLF.N_SHOT"),
        ("clf.n_shot", "CLF.N_SHOT"),
        ("FT_EXTRACT.IMAGE_NORM", r"FT_EXTRACT\.IMAGE_NORM\.(MEAN|STD)"),
        ("FT_EXTRACT.NUM_WORKERS", "FT_EXTRACT.N_WORKERS"),
    ],
)
def test_unknown_keys_are_answered_with_the_nearest(key, meant):
    answer = rf"unknown configuration key {key} \(from the command line\); did you mean {meant}\?"
    for value in ("8", "None"):
        with pytest.raises(CogError, match=answer):
            get(key, value)


def test_an_unknown_key_without_a_near_one_says_where_all_are():
    with pytest.raises(CogError, match=r"; configs/default\.py lists all keys$"):
        get("QQQ.WWW", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "expected a YAML mapping"),
        ("just text", "expected a YAML mapping"),
        ("CLF: [1", "cannot read "),
        ("CLF:\n\tN_EPOCHS: 1", "cannot read "),
        ("CLF: {N_EPOCHS: 2001-99-99}", "cannot read "),
        ("[" * 1200, "cannot read "),
        ("!!python/object/apply:os.system ['touch canary']", "cannot read "),
        ("CLF: {N_EPOCH: 1}", "did you mean CLF.N_EPOCHS"),
        ("clf: {n_epochs: 1}", "did you mean CLF.N_EPOCHS"),
        ("CLF: 3", "unknown configuration key CLF "),
        ("3: 4", "unknown configuration key 3 "),
        ("CLF: {N_EPOCHS: {A: 1}}", "unknown configuration key CLF.N_EPOCHS.A"),
        ("CLF: {N_EPOCHS: 2001-01-01}", "is a date"),
        ("CLF: {VAL_PERC: .nan}", "between 0 and 1"),
        ("FT_EXTRACT: {IMAGE_NORM: {MEAN: [.nan, 0, 0]}}", "three numbers"),
        ("FT_EXTRACT: {IMAGE_NORM: {STD: [.inf, 1, 1]}}", "three positive"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_broken_files(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(CogError, match=re.escape(message)) as error:
        get(config_file=path)
    assert any(name in str(error.value) for name in ("own.yaml", "CLF.VAL_PERC", "IMAGE_NORM"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["own.yaml"]


def test_files_that_are_not_text(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(CogError, match=r"own\.yaml"):
        get(config_file=path)
    for path, says in ((tmp_path / "absent.yaml", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(CogError, match=f"--config .* {says}"):
            get(config_file=path)
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert config.flat(get(config_file=tmp_path / "empty.yaml")) == config.flat(get())


def test_a_dump_can_be_given_back(tmp_path):
    mean = ("FT_EXTRACT.IMAGE_NORM.MEAN", "[0.5,0.5,0.5]")
    cfg = get("CLF.N_SHOT", "8", "CLF.LR_INTV", "(1, 2)", "EVAL.NAME", "mine", *mean)
    path = tmp_path / "config.yaml"
    path.write_text(cfg.dump())
    assert config.flat(get(config_file=path)) == config.flat(cfg)


def test_no_unknown_names_in_defaults():
    """The defaults are plain literals: a user reads them without running them."""
    tree = ast.parse((config.configs_dir() / "default.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            ast.literal_eval(node.value)


def test_preprocessing_of_the_models_applies():
    cfg = config.get_cfg(declared=MODELS["sup_inception-v3"].declared)
    assert (cfg.FT_EXTRACT.IMAGE_RESIZE_SIZE, cfg.FT_EXTRACT.IMAGE_CROP_SIZE) == (299, 299)
    assert cfg.FT_EXTRACT.IMAGE_NORM.MEAN == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("text", ["CLF: &again\n  N_SHOT: 8\n  MORE: *again\n", "a: " + "[" * 100_000])
def test_files_without_an_end_are_one_line(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(CogError, match=r"config\.yaml"):
        get(config_file=path)
