"""The command line of all scripts: KEY VALUE pairs, None, hints, errors, and the speed of --help."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import termios

import pytest
from marks import first_quick

import cog
from cog import __main__
from cog import commands as registry
from cog.commands import extract_features
from cog.errors import CogError, FailedImagesError
from cog.runtime import cli
from cog.runtime.progress import Progress

SCRIPTS = ("extract_features", "logreg", "print_results", "build_levels")


@pytest.fixture
def parser():
    parser = cli.Parser("a script", prog="script")
    parser.add_argument("--model")
    parser.add_argument("--ckpt_file")
    parser.add_argument("--count", type=cli.whole_number(1), default=3)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--loader", type=cli.python_target)
    parser.add_argument("--overwrite", action="store_true")
    return parser


SEED, SHOTS = ["EVAL.SEED", "55"], ["CLF.N_SHOT", "8"]


@pytest.mark.parametrize(
    ("argv", "model", "ckpt_file", "opts"),
    [
        (["--model", "a", *SEED, *SHOTS], "a", None, SEED + SHOTS),
        ([*SEED, "--model", "a", *SHOTS], "a", None, SEED + SHOTS),
        ([*SEED, *SHOTS, "--model=a"], "a", None, SEED + SHOTS),
        (["--model=a", *SEED, "--overwrite", *SHOTS], "a", None, SEED + SHOTS),
        (["--names", "x", *SEED, "--model=a", *SHOTS], "a", None, SEED + SHOTS),
        (
            ["CLF.LR_INTV", "--x", "EVAL.NAME", "CLF.N_SHOT"],
            None,
            None,
            ["CLF.LR_INTV", "--x", "EVAL.NAME", "CLF.N_SHOT"],
        ),
        (["--ckpt_file", "MODEL.PTH", *SHOTS], None, "MODEL.PTH", SHOTS),
        (["--ckpt_file=MODEL.PTH"], None, "MODEL.PTH", []),
        (["--overwrite", *SHOTS], None, None, SHOTS),
        (["--ckpt_file=~/x"], None, "/home/me/x", []),  # shells leave this ~ as it is
        (["--ckpt_file", "a~/x"], None, "a~/x", []),
        (["--count=7", "--loader=C:/a b/file.py:load"], None, None, []),
    ],
    ids=str,
)
def test_flags_and_pairs(parser, monkeypatch, argv, model, ckpt_file, opts):
    """Pairs may stand anywhere; the value of a flag may look like a key, and that of a pair like a flag."""
    monkeypatch.setenv("HOME", "/home/me")
    args = parser.parse_args(argv)
    assert (args.model, args.ckpt_file, args.opts) == (model, ckpt_file, opts)


@pytest.mark.parametrize("value", ["None", "none", "NONE", "null", "Null", "NULL", " none "])
def test_unset_flags_keep_their_defaults(parser, value):
    for argv in (["--count", value, "--model", value], [f"--count={value}", f"--model={value}"]):
        args = parser.parse_args(argv)
        assert (args.count, args.model) == (3, None)
    args = parser.parse_args(["--model", value, "--ckpt_file", "x", "EVAL.NAME", value])
    assert (args.model, args.ckpt_file) == (None, "x")
    assert args.opts == ["EVAL.NAME", value]


@pytest.mark.parametrize("value", ["None_x", "nonesuch", "null.pth", "0", "nul"])
def test_values_that_begin_like_none(parser, value):
    assert parser.parse_args(["--model", value]).model == value


def test_required_flags_given_as_none_are_missing(capsys):
    with pytest.raises(SystemExit) as stop:
        extract_features.main(["--model", "None", "--dataset", "in1k", "--split", "test"])
    assert stop.value.code == 2
    assert "required: --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "a", "CLF.N_SHOT"], "CLF.N_SHOT has no value"),
        *(([text, "8"], "unrecognized arguments")
          for text in ("clf.n_shot", "CLF", "CLF.", ".N_SHOT", "CLF.n_shot", "CLF N_SHOT", "1.5")),
        (["--model"], "--model"),
        # As a path, an empty shell variable would mean the current folder.
        (["--model", ""], "the value is empty"),
        (["--model="], "the value is empty"),
        (["--ckpt_file", "  "], "the value is empty"),
        (["--modle", "x"], "did you mean --model?"),
        (["--ckpt-file=x"], "did you mean --ckpt_file?"),
        (["--zebra"], "unrecognized arguments: --zebra (see"),  # like no flag: without a hint
        # An abbreviation would change its meaning when a flag is added.
        (["--over"], "unrecognized arguments: --over"),
        (["--count", "a\nb"], "--count"),
        (["x\ny"], "x y"),
        (["--mod\x1b[2Jel"], "--mod\\x1b[2Jel"),
        *(([f"--count={text}"], "--count") for text in ("0", "-1", "1.5", "one", "1e3", "0x10", "٣x")),
        *(([f"--loader={text}"], "not of the form FILE.py:load_my_model")
          for text in ("file.py", ":f", "file.py:", "file.py:not-a-name", "file.py:f()")),
    ],
    ids=repr,
)  # fmt: skip
def test_wrong_arguments_are_one_line(parser, capsys, argv, message):
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"script: error: .*\n", error) and message in error and "\x1b" not in error


def ends(main, capsys, **options):
    with pytest.raises(SystemExit) as stop:
        cli.run(main, [], **options)
    return stop.value.code, capsys.readouterr().err


def raising(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code", "text"),
    [
        (lambda argv: None, 0, ""),
        (lambda argv: 0, 0, ""),
        (raising(CogError("bad\n  input")), 2, "error: bad input\n"),
        (raising(FailedImagesError("3 images")), 3, "error: 3 images\n"),
        (raising(KeyboardInterrupt()), 130, "error: interrupted\n"),
        (
            raising(PermissionError(13, "Permission denied", "/data/x")),
            2,
            "error: cannot access /data/x: Permission denied\n",
        ),
        (
            raising(OSError(28, "No space left on device")),
            2,
            "error: input or output failed: No space left on device\n",
        ),
    ],
)
def test_exit_codes(capsys, main, code, text):
    assert ends(main, capsys) == (code, text)


def test_an_interruption_says_that_the_same_command_continues(capsys):
    text = "error: interrupted; the same command continues\n"
    assert ends(raising(KeyboardInterrupt()), capsys, continues=True) == (130, text)


def test_our_own_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        cli.run(raising(ZeroDivisionError()), [])


def test_debug_shows_where(capsys, monkeypatch):
    monkeypatch.setenv("COG_DEBUG", "1")
    code, text = ends(raising(CogError("bad")), capsys)
    assert code == 2
    assert "Traceback" in text
    assert text.endswith("error: bad\n")


def test_log_lines(capsys):
    def main(argv):
        log = logging.getLogger("cog.something")
        log.info("plain")
        log.warning("careful")
        log.debug("hidden")

    assert ends(main, capsys) == (0, "plain\nwarning: careful\n")
    cli.set_up_logging()
    cli.set_up_logging()
    assert len(logging.getLogger("cog").handlers) == 1


# --- several data sets


def several(**flags):
    return argparse.Namespace(**{"dataset": ["a", "b"], "output_dir": None} | flags)


@pytest.mark.parametrize(
    ("flags", "datasets"),
    [
        ({}, ["a", "b"]),
        ({"dataset": None, "output_dir": "o"}, [None]),
        ({"dataset": ["a"], "output_dir": "o"}, ["a"]),
    ],
)
def test_each_dataset_has_a_copy_of_the_flags(flags, datasets):
    copies = cli.each_dataset(several(opts=["X.Y", "1"], **flags), "output_dir")
    assert [(args.dataset, args.opts) for args in copies] == [(name, ["X.Y", "1"]) for name in datasets]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"output_dir": "o"}, "--output_dir is of one data set, and --dataset names 2"),
        ({"dataset": ["a", "a"]}, "twice"),
    ],
)
def test_datasets_that_cannot_share_a_command(flags, words):
    with pytest.raises(CogError, match=words):
        cli.each_dataset(several(**flags), "output_dir")


# --- python -m cog


def run_cog(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["cog", *words])
    with pytest.raises(SystemExit) as stop:
        __main__.main()
        raise SystemExit(0)
    return stop.value.code


def test_the_list_of_commands(monkeypatch, capsys):
    assert run_cog(monkeypatch) == 0
    listed = capsys.readouterr().out
    for command in registry.COMMANDS:
        assert re.search(rf"^  {command.name} +{re.escape(command.help)}$", listed, re.MULTILINE)
    assert run_cog(monkeypatch, "logrge") == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", registry.COMMANDS, ids=lambda command: command.name)
def test_every_command_runs_and_knows_its_version(monkeypatch, capsys, command):
    assert run_cog(monkeypatch, command.name, "--version") == 0
    assert capsys.readouterr().out == f"imagenet-cog {cog.__version__}\n"
    assert run_cog(monkeypatch, command.name, "--no_such_flag") == 2
    assert capsys.readouterr().err.startswith(f"python -m cog {command.name}: error: ")


@pytest.mark.parametrize("command", registry.COMMANDS, ids=lambda command: command.name)
def test_every_flag_of_every_command_has_a_help(monkeypatch, command):
    shown = []

    def print_help(parser):
        shown.append(parser)

    monkeypatch.setattr(cli.OneLineParser, "print_help", print_help)
    assert run_cog(monkeypatch, command.name, "--help") == 0
    (parser,) = shown
    parsers = [parser, *(sub for action in parser._actions for sub in _parsers_of(action))]
    without = [a.dest for p in parsers for a in p._actions if not a.help and not list(_parsers_of(a))]
    assert without == []


def _parsers_of(action):
    return action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()


@pytest.mark.parametrize("typed", ["python -m cog models", "cog-models", "/a/cog/models/__main__.py"])
def test_packages_say_what_was_typed(monkeypatch, typed):
    monkeypatch.setattr("sys.argv", [typed])
    expected = "python -m cog.models" if typed.endswith(".py") else typed
    assert cli.started_as("cog.models") == expected


# --- the real scripts


@pytest.mark.parametrize("name", first_quick(2, SCRIPTS))
def test_help(name, python, repository):
    """--help answers at once, and names every flag of the contract."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        [python, f"{name}.py", "--help"], cwd=repository, capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of the processor: the machine may be busy
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    for flag in FLAGS[name]:
        assert flag in process.stdout
    assert "KEY VALUE" in process.stdout
    assert after.ru_utime - before.ru_utime < 1


FLAGS = {
    "extract_features": (
        "--model", "--dataset", "--split", "--models_root_dir", "--ckpt_file", "--output_dir", "--in1k_images_root",
        "--in1k_blurred_images_root", "--imagenet_images_root", "--cog_levels_mapping_file",
        "--cog_concepts_split_file", "--model_loader", "--images_root",
        "--allow_failures", "--device", "--overwrite", "--config",
    ),
    "logreg": (
        "--model", "--dataset", "--models_root_dir", "--train_features_dir", "--test_features_dir", "--output_dir",
        "--device", "--mom", "--print_freq", "--lr", "--wd", "--overwrite", "--config",
    ),
    "print_results": ("--logreg_root_dir", "--model", "--dataset", "--models_root_dir", "--format"),
    "build_levels": (),
}  # fmt: skip


@pytest.mark.parametrize("name", first_quick(1, SCRIPTS))
def test_scripts_run_from_anywhere(name, python, repository, tmp_path):
    process = subprocess.run(
        [python, str(repository / f"{name}.py"), "--no_such_flag"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert re.fullmatch(rf"{name}\.py: error: .*\n", process.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "colored"), [("COG_NONE=1", True), ("NO_COLOR=1", False), ("TERM=dumb", False)]
)
def test_color_only_on_terminals(capsys, monkeypatch, variable, colored):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(*variable.split("="))
    _, text = ends(raising(CogError("bad")), capsys)
    assert "\x1b[" in text if colored else text == "error: bad\n"


@pytest.mark.parametrize(
    ("total", "n_before", "n", "line"),
    [
        # The time left leaves out what an earlier session finished.
        (100, 80, 10, "search: 90 of 100 units (90 %), 1 units/s, 10s left"),
        (400, 0, 1, "search: 1 of 400 units (0 %), 0.05 units/s, 2h13m left"),
        (None, 0, 1, "search: 1 units"),
    ],
)
def test_lines_of_progress(caplog, monkeypatch, total, n_before, n, line):
    seconds = 10.0 if n_before else 20.0
    times = [0.0]  # of the start, then that much later
    monkeypatch.setattr("cog.runtime.progress.time.monotonic", lambda: times.pop() if times else seconds)
    with caplog.at_level("INFO", logger="cog"), Progress(total, "search", unit="units") as progress:
        progress.skip(n_before)
        progress.update(n)
    assert [record.message for record in caplog.records] == [line]


def test_lines_begin_after_seconds(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cog.runtime.progress.time.monotonic", lambda: now[0])
    at = []
    with caplog.at_level("INFO", logger="cog"), Progress(200, "search", bar=False) as progress:
        for second in range(1, 201):
            now[0], before = float(second), len(caplog.records)
            progress.update()
            at += [second] * (len(caplog.records) - before)
    assert at == [5, 35, 65, 95, 125, 155, 185]  # and none of what is finished
    assert "search: 5 of 200 images (2 %)" in caplog.text


@pytest.mark.parametrize("columns", [200, 79, 47])
def test_a_bar_fits_into_its_terminal(monkeypatch, columns):
    """Whatever the width, each state of the bar is one line, so that the next one covers it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with Progress(30, "a search with a long label", unit="trials of a search") as progress:
            for _ in range(3):
                progress.update()
                progress._bar.refresh()
        terminal.flush()
        shown = b""
        while not shown.endswith(b"\n"):  # a terminal hands on in pieces
            shown += os.read(ours, 1 << 16)
    os.close(ours)
    states = re.split(r"[\r\n]+|\x1b\[A", shown.decode())
    assert max(map(len, states)) <= columns
    assert any("3/30" in state for state in states)


def test_no_bar_where_lines_cannot_be_covered(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    with Progress(3, "search") as progress:
        assert progress._bar is None


@pytest.mark.parametrize(
    "steering", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x7f", "\u202e", "\x00"]
)
def test_nothing_from_a_file_steers_the_terminal(capsys, steering):
    """Messages may hold names from anyone's files."""

    def main(argv):
        logging.getLogger("cog").info("reading %s", f"name{steering}x")
        raise CogError(f"key {steering}x")

    with pytest.raises(SystemExit):
        cli.run(main, [])
    err = capsys.readouterr().err
    escaped = steering.encode("unicode_escape").decode()
    assert steering not in err and f"name{escaped}x" in err


def test_long_messages_are_cut(capsys):
    _, text = ends(raising(CogError("key " + "x" * 1_000_000)), capsys)
    assert len(text) < 2100 and text.endswith("x... (998,004 more)\n")
