"""What all scripts share on the command line: KEY VALUE, None, hints, errors, speed of --help."""

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
from cog.commands import build_levels, extract_features, logreg, print_results
from cog.errors import CogError, FailedImagesError
from cog.runtime import cli
from cog.runtime.progress import Progress

COMMANDS = {
    "extract_features": extract_features,
    "logreg": logreg,
    "print_results": print_results,
    "build_levels": build_levels,
}


@pytest.fixture
def parser():
    parser = cli.Parser("a script", prog="script")
    parser.add_argument("--model")
    parser.add_argument("--ckpt_file")
    parser.add_argument("--count", type=cli.whole_number(1), default=3)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--overwrite", action="store_true")
    return parser


def fails(parser, argv, capsys):
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"script: error: .*\n", error)
    return error


# --- KEY VALUE


@pytest.mark.parametrize(
    "argv",
    [
        ["--model", "a", "EVAL.SEED", "55", "CLF.N_SHOT", "8"],
        ["EVAL.SEED", "55", "--model", "a", "CLF.N_SHOT", "8"],
        ["EVAL.SEED", "55", "CLF.N_SHOT", "8", "--model=a"],
        ["--model=a", "EVAL.SEED", "55", "--overwrite", "CLF.N_SHOT", "8"],
        ["--names", "x", "EVAL.SEED", "55", "--model=a", "CLF.N_SHOT", "8"],
    ],
)
def test_pairs_anywhere(parser, argv):
    args = parser.parse_args(argv)
    assert args.model == "a"
    assert args.opts == ["EVAL.SEED", "55", "CLF.N_SHOT", "8"]


def test_values_may_look_like_flags_or_keys(parser):
    assert parser.parse_args(["CLF.LR_INTV", "--x", "EVAL.NAME", "CLF.N_SHOT"]).opts == [
        "CLF.LR_INTV", "--x", "EVAL.NAME", "CLF.N_SHOT",
    ]  # fmt: skip
    args = parser.parse_args(["--ckpt_file", "MODEL.PTH", "CLF.N_SHOT", "8"])
    assert args.ckpt_file == "MODEL.PTH"
    assert args.opts == ["CLF.N_SHOT", "8"]
    assert parser.parse_args(["--ckpt_file=MODEL.PTH"]).ckpt_file == "MODEL.PTH"
    assert parser.parse_args(["--overwrite", "CLF.N_SHOT", "8"]).opts == ["CLF.N_SHOT", "8"]


def test_key_without_value(parser, capsys):
    assert "CLF.N_SHOT has no value" in fails(parser, ["--model", "a", "CLF.N_SHOT"], capsys)


@pytest.mark.parametrize("text", ["clf.n_shot", "CLF", "CLF.", ".N_SHOT", "CLF.n_shot", "CLF N_SHOT", "1.5"])
def test_what_is_no_key(parser, capsys, text):
    assert "unrecognized arguments" in fails(parser, [text, "8"], capsys)


def test_lower_case_keys_get_a_hint(parser, capsys):
    assert "upper case, such as CLF.N_SHOT 8" in fails(parser, ["clf.n_shot", "8"], capsys)


# --- None


@pytest.mark.parametrize("value", ["None", "none", "NONE", "null", "Null", "NULL", " none "])
def test_unset_flags_keep_their_defaults(parser, value):
    for argv in (["--count", value, "--model", value], [f"--count={value}", f"--model={value}"]):
        args = parser.parse_args(argv)
        assert (args.count, args.model) == (3, None)
    args = parser.parse_args(["--model", value, "--ckpt_file", "x", "EVAL.NAME", value])
    assert (args.model, args.ckpt_file) == (None, "x")
    assert args.opts == ["EVAL.NAME", value]


def test_home(parser, monkeypatch):
    """Shells leave the ~ of --flag=~/folder as it is."""
    monkeypatch.setenv("HOME", "/home/me")
    assert parser.parse_args(["--ckpt_file=~/x"]).ckpt_file == "/home/me/x"
    assert parser.parse_args(["--ckpt_file", "a~/x"]).ckpt_file == "a~/x"


@pytest.mark.parametrize("value", ["None_x", "nonesuch", "null.pth", "0", "nul"])
def test_what_only_starts_like_none(parser, value):
    assert parser.parse_args(["--model", value]).model == value


def test_flag_at_the_end_without_value(parser, capsys):
    assert "--model" in fails(parser, ["--model"], capsys)


def test_required_flags_given_as_none_are_missing(capsys):
    with pytest.raises(SystemExit) as stop:
        extract_features.main(["--model", "None", "--dataset", "in1k", "--split", "test"])
    assert stop.value.code == 2
    assert "required: --model" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--model", ""], ["--model="], ["--ckpt_file", "  "]])
def test_empty_values_are_refused(parser, capsys, argv):
    # as a path, an empty shell variable would mean the current folder
    assert "the value is empty" in fails(parser, argv, capsys)


# --- errors


def test_unknown_flags_get_a_hint(parser, capsys):
    assert "did you mean --model?" in fails(parser, ["--modle", "x"], capsys)
    assert "did you mean --ckpt_file?" in fails(parser, ["--ckpt-file=x"], capsys)
    assert "did you mean" not in fails(parser, ["--zebra"], capsys)


def test_flags_cannot_be_abbreviated(parser, capsys):
    # an abbreviation would change its meaning when a flag is added
    assert "unrecognized arguments: --over" in fails(parser, ["--over"], capsys)


def test_errors_stay_on_one_line(parser, capsys):
    fails(parser, ["--count", "a\nb"], capsys)
    assert "x y" in fails(parser, ["x\ny"], capsys)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "one", "1e3", "0x10", "٣x"])
def test_whole_numbers(parser, capsys, text):
    assert "--count" in fails(parser, [f"--count={text}"], capsys)
    assert parser.parse_args(["--count", "7"]).count == 7


@pytest.mark.parametrize("text", ["file.py", ":f", "file.py:", "file.py:not-a-name", "file.py:f()", ""])
def test_python_targets(text):
    import argparse

    assert cli.python_target("C:/a b/file.py:load") == "C:/a b/file.py:load"
    with pytest.raises(argparse.ArgumentTypeError):
        cli.python_target(text)


def ends(main, capsys, **options):
    with pytest.raises(SystemExit) as stop:
        cli.run(main, [], **options)
    return stop.value.code, capsys.readouterr().err


def raising(error):
    def main(argv):
        raise error

    return main


def test_exit_codes(capsys):
    assert ends(lambda argv: None, capsys) == (0, "")
    assert ends(lambda argv: 0, capsys) == (0, "")
    assert ends(raising(CogError("bad\n  input")), capsys) == (2, "error: bad input\n")
    assert ends(raising(FailedImagesError("3 images")), capsys) == (3, "error: 3 images\n")
    assert ends(raising(KeyboardInterrupt()), capsys) == (130, "error: interrupted\n")
    text = "error: interrupted; the same command continues\n"
    assert ends(raising(KeyboardInterrupt()), capsys, continues=True) == (130, text)


def test_errors_of_the_operating_system_are_one_line(capsys):
    code, text = ends(raising(PermissionError(13, "Permission denied", "/data/x")), capsys)
    assert (code, text) == (2, "error: cannot access /data/x: Permission denied\n")
    code, text = ends(raising(OSError(28, "No space left on device")), capsys)
    assert (code, text) == (2, "error: input or output failed: No space left on device\n")


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


def test_each_dataset_gets_the_flags_of_its_own():
    each = cli.each_dataset(several(opts=["X.Y", "1"]), "output_dir")
    assert [(one.dataset, one.opts) for one in each] == [("a", ["X.Y", "1"]), ("b", ["X.Y", "1"])]
    assert [one.dataset for one in cli.each_dataset(several(dataset=None, output_dir="o"), "output_dir")] == [
        None
    ]
    assert [
        one.dataset for one in cli.each_dataset(several(dataset=["a"], output_dir="o"), "output_dir")
    ] == ["a"]


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


def test_only_commands_that_take_keys_speak_of_them(monkeypatch, capsys):
    said = {}
    for name in ("pack", "miniature", "study", "status", "logreg"):
        assert run_cog(monkeypatch, name, "--help") == 0
        said[name] = "KEY VALUE pairs anywhere" in capsys.readouterr().out
    assert said == {"pack": False, "miniature": False, "study": False, "status": True, "logreg": True}
    assert run_cog(monkeypatch, "pack", "--models_root_dir", "x", "CLF.N_SHOT", "1") == 2
    assert "CLF.N_SHOT and other KEY VALUE pairs have no meaning here" in capsys.readouterr().err


def test_every_command_is_a_console_script(repository):
    """Whichever file declares them."""
    declared = (repository / "setup.py").read_text() + (repository / "pyproject.toml").read_text()
    found = set(re.findall(r'"?(cog-[a-z-]+)"?\s*=\s*"?([\w.]+):cli', declared))
    assert found == {(command.script, command.module) for command in registry.COMMANDS}


# --- the real scripts


@pytest.mark.parametrize("name", first_quick(2, COMMANDS))
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
        "--strict_counts", "--allow_failures", "--device", "--overwrite", "--config",
    ),
    "logreg": (
        "--model", "--dataset", "--models_root_dir", "--train_features_dir", "--test_features_dir", "--output_dir",
        "--device", "--mom", "--print_freq", "--lr", "--wd", "--overwrite", "--config",
    ),
    "print_results": ("--logreg_root_dir", "--model", "--dataset", "--models_root_dir", "--format"),
    "build_levels": (),
}  # fmt: skip


@pytest.mark.parametrize("name", first_quick(1, COMMANDS))
def test_scripts_run_from_anywhere(name, python, repository, tmp_path):
    process = subprocess.run(
        [python, str(repository / f"{name}.py"), "--no_such_flag"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert re.fullmatch(rf"{name}\.py: error: .*\n", process.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_color_only_on_terminals(capsys, monkeypatch, name, value):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    _, text = ends(raising(CogError("bad")), capsys)
    assert "\x1b[" in text
    logging.getLogger("cog").handlers.clear()
    monkeypatch.setenv(name, value)
    _, text = ends(raising(CogError("bad")), capsys)
    assert text == "error: bad\n"


def test_time_left_leaves_out_what_an_earlier_session_finished(caplog, monkeypatch):
    times = [0.0]  # of the start, then 10 s later
    monkeypatch.setattr("cog.runtime.progress.time.monotonic", lambda: times.pop() if times else 10.0)
    with (
        caplog.at_level("INFO", logger="cog"),
        Progress(100, "search", unit="trials", interval=5.0) as progress,
    ):
        progress.skip(80)
        progress.update(10)
    assert [record.message for record in caplog.records] == [
        "search: 90 of 100 trials (90 %), 1.0 trials/s, 10s left"
    ]


@pytest.mark.parametrize(
    ("total", "line"), [(40, "checking: 3 of 40 commands (7 %), 8m13s left"), (None, "checking: 3 commands")]
)
def test_a_rate_that_would_be_shown_as_zero_is_left_out(caplog, monkeypatch, total, line):
    times = [0.0]  # of the start, then 40 s later
    monkeypatch.setattr("cog.runtime.progress.time.monotonic", lambda: times.pop() if times else 40.0)
    with caplog.at_level("INFO", logger="cog"), Progress(total, "checking", unit="commands") as progress:
        progress.update(3)
    assert [record.message for record in caplog.records] == [line]


def test_lines_begin_after_seconds_and_become_rare(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("cog.runtime.progress.time.monotonic", lambda: now[0])
    at = []
    with caplog.at_level("INFO", logger="cog"), Progress(200, "search", bar=False) as progress:
        for second in range(1, 201):
            now[0], before = float(second), len(caplog.records)
            progress.update()
            at += [second] * (len(caplog.records) - before)
    assert at == [5, 15, 35, 65, 95, 125, 155, 185]  # and none of what is finished
    assert "search: 5 of 200 images (2 %)" in caplog.text


@pytest.mark.parametrize("columns", [200, 79, 47, 20])
@pytest.mark.parametrize("total", [30, None])
def test_a_bar_fits_into_its_terminal(monkeypatch, columns, total):
    """Whatever the width, each state of the bar is one line, so that the next one covers it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with Progress(total, "a search with a long label", unit="trials of a search") as progress:
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
    assert any(("3/30" if total else "3") in state for state in states)


def test_no_bar_where_lines_cannot_be_covered(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    with Progress(3, "search") as progress:
        assert progress._bar is None


@pytest.mark.parametrize(
    "steering", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x7f", "\u202e", "\x00"]
)
def test_nothing_from_a_file_steers_the_terminal(capsys, steering):
    """Messages and what is printed may hold names from anyone's files."""

    def main(argv):
        print(f"model {steering}x, café\tand\nmore")
        logging.getLogger("cog").info("reading %s", f"name{steering}x")
        raise CogError(f"key {steering}x")

    with pytest.raises(SystemExit):
        cli.run(main, [])
    out, err = capsys.readouterr()
    escaped = steering.encode("unicode_escape").decode()
    assert out == f"model {escaped}x, café\tand\nmore\n"
    assert steering not in err and f"name{escaped}x" in err


def test_long_messages_are_cut(capsys):
    _, text = ends(raising(CogError("key " + "x" * 1_000_000)), capsys)
    assert len(text) < 2100 and text.endswith("x... (998,004 more)\n")


def test_wrong_arguments_do_not_steer_the_terminal(capsys, parser):
    with pytest.raises(SystemExit):
        parser.parse_args(["--mod\x1b[2Jel"])
    assert "\x1b" not in capsys.readouterr().err
