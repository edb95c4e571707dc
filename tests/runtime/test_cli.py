"""The command line of all scripts: KEY VALUE pairs, None, errors in one line."""

import re
import subprocess
import sys

import pytest

from cog.commands import start
from cog.errors import CogError, FailedImagesError
from cog.runtime import cli


@pytest.fixture
def parser():
    parser = cli.Parser("a script", prog="script")
    parser.add_argument("--model")
    parser.add_argument("--ckpt_file")
    parser.add_argument("--count", type=cli.whole_number(1), default=3)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--overwrite", action="store_true")
    return parser


SEED, SHOTS = ["EVAL.SEED", "55"], ["CLF.N_SHOT", "8"]
LIKE_FLAGS = ["CLF.LR_INTV", "--x", "EVAL.NAME", "CLF.N"]


@pytest.mark.parametrize(
    ("argv", "model", "ckpt_file", "opts"),
    [
        (["--model", "a", *SEED, *SHOTS], "a", None, SEED + SHOTS),
        (["--names", "x", *SEED, "--model=a", *SHOTS], "a", None, SEED + SHOTS),
        (LIKE_FLAGS, None, None, LIKE_FLAGS),
        (["--ckpt_file", "MODEL.PTH", *SHOTS], None, "MODEL.PTH", SHOTS),
        (["--ckpt_file=~/x"], None, "/home/me/x", []),  # shells leave this ~ as it is
        (["--count=None", "--model", " NULL ", "--ckpt_file", "null.pth"], None, "null.pth", []),
    ],
    ids=str,
)
def test_pairs_may_stand_anywhere_and_none_is_unset(parser, monkeypatch, argv, model, ckpt_file, opts):
    monkeypatch.setenv("HOME", "/home/me")
    args = parser.parse_args(argv)
    assert (args.model, args.ckpt_file, args.opts, args.count) == (model, ckpt_file, opts, 3)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "a", "CLF.N_SHOT"], "CLF.N_SHOT has no value"),
        *(([text, "8"], "unrecognized arguments") for text in ("clf.n_shot", "CLF", "CLF N_SHOT", "1.5")),
        *((argv, "the value is empty") for argv in (["--model", ""], ["--model="], ["--ckpt_file", "  "])),
        (["--modle", "x"], "did you mean --model?"),
        (["--over"], "unrecognized arguments: --over"),  # an abbreviation would change with a new flag
        (["--mod\x1b[2Jel"], "--mod\\x1b[2Jel"),
        *(([f"--count={text}"], "--count") for text in ("0", "-1", "1.5", "one", "1e3", "a\nb")),
    ],
    ids=repr,
)
def test_wrong_arguments_are_one_line(parser, capsys, argv, message):
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(argv)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert re.fullmatch(r"script: error: .*\n", error) and message in error and "\x1b" not in error


def ends(error, capsys):
    def main(argv):
        raise error

    with pytest.raises(SystemExit) as stop:
        start.run(main, [])
    return stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (CogError("bad\n  input"), 2, "error: bad input\n"),
        (FailedImagesError("3 images"), 3, "error: 3 images\n"),
        (KeyboardInterrupt(), 130, "error: interrupted; the same command goes on\n"),
        (PermissionError(13, "denied", "/data/x"), 2, "error: cannot access /data/x: denied\n"),
        (CogError("name\x1b[2J\r\x9b31m\u202e"), 2, "error: name\\x1b[2J \\x9b31m\\u202e\n"),
    ],
)
def test_errors_end_in_one_line_with_their_code(capsys, error, code, text):
    assert ends(error, capsys) == (code, text)


def test_out_of_memory_is_one_line_and_bugs_keep_their_traceback(capsys, monkeypatch):
    code, text = ends(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore"), capsys)
    assert code == 2 and text.count("\n") == 1
    with pytest.raises(RuntimeError, match="shapes"):
        ends(RuntimeError("shapes do not match"), capsys)
    monkeypatch.setenv("COG_DEBUG", "1")
    assert "Traceback" in ends(CogError("bad"), capsys)[1]


def test_levels_are_colored_on_terminals_alone(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for terminal, begin in (("xterm", "\x1b["), ("dumb", "error: bad\n")):
        monkeypatch.setenv("TERM", terminal)
        assert ends(CogError("bad"), capsys)[1].startswith(begin)


def test_a_reader_that_goes_away_and_a_full_disk_end_quietly(python, repository):
    code = "from cog.commands import start; start.run(lambda argv: print(chr(177) * 1000000))"
    for end, expected in (("| head -c 1 >/dev/null; exit ${PIPESTATUS[0]}", 141), ("> /dev/full", 2)):
        line = ["bash", "-c", f'LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "{python}" -c "{code}" {end}']
        done = subprocess.run(line, cwd=repository, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (expected, expected == 2), done.stderr
