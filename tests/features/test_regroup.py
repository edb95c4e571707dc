"""Levels by other similarities: features grouped otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from analyzed_models import write_run
from scipy import stats

from cog import constants
from cog.commands import logreg
from cog.commands import other_levels as command
from cog.data.level_files import write_levels
from cog.errors import CogError
from cog.features import feature_files

WNIDS = [f"n{number:08d}" for number in range(1, 7)]


@pytest.fixture
def root(tmp_path):
    """Features of two levels of three concepts; the first value tells the concept."""
    for dataset, wnids in (("cog_l1", WNIDS[:3]), ("cog_l2", WNIDS[3:])):
        for part, n in (("train", 4), ("test", 2)):
            folder = tmp_path / f"models/tiny/net/{dataset}/features_{part}"
            y = torch.arange(3).repeat_interleave(n)
            x = torch.stack([torch.tensor([float(w[1:]), k]) for w in wnids for k in range(n)])
            tiny.write_features(folder, x, y)
            (folder / "image_paths.txt").write_text(
                "".join(f"{w}/{w}_{part}{k}.JPEG\n" for w in wnids for k in range(n))
            )
    return tmp_path


def levels_file(root, name, levels):
    folder = root / "levels" / name
    folder.mkdir(parents=True)
    write_levels(folder / constants.LEVELS_FILE, levels)


FIGURE = "out/other_levels_tiny_net.png"

#: Right answers of 10 per class and data set.
HITS = {
    **{"cog_l1": (9, 8, 7), "cog_l2": (6, 5, 4), "wup_l1": (8, 8, 8), "wup_l2": (7, 6, 5)},
    **{"random1_l1": (5, 5, 5), "random2_l1": (7, 7, 7), "random10_l1": (9, 9, 9)},
}


def run(root, monkeypatch, *flags):
    """Run the command; instead of training, write a run of each data set and seed."""

    def train(argv):
        args = logreg.parse_args(argv)
        for dataset in args.dataset:
            for seed in args.seeds:
                if not (root / "out/tiny/net" / dataset / f"eval_logreg/seed-{seed}").exists():
                    write_run(root / "out", dataset, seed=seed, hits=HITS[dataset], model="tiny/net")
        return 0

    monkeypatch.setattr(logreg, "main", train)
    words = f"--models_root_dir {root}/models --model tiny_net --output_dir {root}/out --seeds 1 2"
    return command.main([*words.split(), "--levels_dir", str(root / "levels"), *flags])


def test_rows_follow_their_concepts(root, monkeypatch):
    wup = [[WNIDS[4], WNIDS[0], WNIDS[2]], [WNIDS[5], WNIDS[1], WNIDS[3]]]
    levels_file(root, "wup", wup)
    levels_file(root, "random1", [WNIDS[1:4]])
    assert run(root, monkeypatch) == 0
    names = ["cog_l1", "cog_l2", "random1_l1", "wup_l1", "wup_l2"]
    out = root / "out/tiny/net"
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "cog_l1").resolve() == (root / "models/tiny/net/cog_l1").resolve()
    for name, wnids in (("wup_l1", wup[0]), ("wup_l2", wup[1]), ("random1_l1", WNIDS[1:4])):
        for part, n in (("train", 4), ("test", 2)):
            features = feature_files.load(out / name / f"features_{part}")
            assert features.y.tolist() == np.repeat(range(3), n).tolist()
            assert features.x[:, 0].tolist() == np.repeat([float(w[1:]) for w in sorted(wnids)], n).tolist()
            lines = (out / name / f"features_{part}/image_paths.txt").read_text().split()
            assert lines == [f"{w}/{w}_{part}{k}.JPEG" for w in sorted(wnids) for k in range(n)]
    before = tiny.snapshot(root)
    run(root, monkeypatch)
    assert {**tiny.snapshot(root), FIGURE: 0} == {**before, FIGURE: 0}


def test_refusals(root, monkeypatch):
    (root / "levels").mkdir()
    with pytest.raises(CogError, match="has no folder with a"):
        run(root, monkeypatch)
    levels_file(root, "wup", [[WNIDS[0], "n00000099"]])
    with pytest.raises(CogError, match=r"no features of 1 of 2 concepts.*n00000099.*--rerank"):
        run(root, monkeypatch)
    with pytest.raises(CogError, match=r"tiny/nut has no features of any level; run extract_features.py"):
        run(root, monkeypatch, "--model", "tiny_nut")
    (root / "models/tiny/net/cog_l1/features_train/image_paths.txt").unlink()
    with pytest.raises(CogError, match="image_paths.txt does not exist; extract the features again"):
        run(root, monkeypatch)


def test_table_and_figure(root, monkeypatch, capsys):
    levels_file(root, "wup", [WNIDS[:3], WNIDS[3:]])
    for draw in (1, 2, 10):
        levels_file(root, f"random{draw}", [WNIDS[1:4]])
    assert run(root, monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines[lines.index("tiny_net: top-1 (%), mean over seeds") + 2 :]]
    assert rows[0] == ["L1", "L2"]
    assert rows[1] == ["published", "(Lin)", "80.0", "50.0"]
    assert rows[2] == ["Wu-Palmer", "80.0", "60.0"]
    drawn = [50.0, 70.0, 90.0]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(drawn), scale=stats.sem(drawn))
    assert rows[3] == ["3", "random", "draws", "70.0", "70.0"]
    assert rows[4][:2] == ["±", f"{(high - low) / 2:.2f}:"]
    assert (root / FIGURE).stat().st_size > 5000
