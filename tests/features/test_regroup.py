"""Levels by other similarities: features grouped otherwise."""

import numpy as np
import pandas as pd
import pytest
import scipy
import tiny
import torch
from analyzed_models import write_run

from cog import constants
from cog.commands import logreg
from cog.commands import other_levels as command
from cog.data.level_files import write_levels
from cog.errors import CogError
from cog.features import feature_files
from cog.reporting import other_levels

WNIDS = [f"n{number:08d}" for number in range(1, 7)]
WUP = [[WNIDS[4], WNIDS[0], WNIDS[2]], [WNIDS[5], WNIDS[1], WNIDS[3]]]
FIGURE = "out/other_levels_tiny_net.png"

#: Right answers of 10 per class and data set.
HITS = {"cog_l1": (9, 8, 7), "cog_l2": (6, 5, 4), "wup_l1": (8, 8, 8), "wup_l2": (7, 6, 5)}
HITS |= {f"random{draw}_l1": (hits,) * 3 for draw, hits in {1: 5, 2: 7, 10: 9}.items()}


def levels_file(root, name, levels):
    (root / "levels" / name).mkdir(parents=True)
    write_levels(root / "levels" / name / constants.LEVELS_FILE, levels)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write features of two levels, whose first value tells the concept; return the command.

    Instead of training, it writes a run of each data set and seed.
    """
    for dataset, wnids in (("cog_l1", WNIDS[:3]), ("cog_l2", WNIDS[3:])):
        for part, n in (("train", 4), ("test", 2)):
            folder = tmp_path / f"models/tiny/net/{dataset}/features_{part}"
            x = torch.tensor([[float(w[1:]), k] for w in wnids for k in range(n)])
            tiny.write_features(folder, x, torch.arange(3).repeat_interleave(n))
            lines = [f"{w}/{w}_{part}{k}.JPEG\n" for w in wnids for k in range(n)]
            (folder / "image_paths.txt").write_text("".join(lines))

    def train(argv):
        args = logreg.parse_args(argv)
        for dataset in args.dataset:
            for seed in args.seeds:
                if not (tmp_path / f"out/tiny/net/{dataset}/eval_logreg/seed-{seed}").exists():
                    write_run(tmp_path / "out", dataset, seed=seed, hits=HITS[dataset], model="tiny/net")
        return 0

    monkeypatch.setattr(logreg, "main", train)
    words = f"--models_root_dir {tmp_path}/models --output_dir {tmp_path}/out --levels_dir {tmp_path}/levels"
    return lambda model="tiny_net": command.main([*words.split(), "--model", model, *["--seeds", "1", "2"]])


def test_rows_follow_their_concepts_and_kinds_of_levels_are_compared(tmp_path, run, capsys):
    levels_file(tmp_path, "wup", WUP)
    for draw in (1, 2, 10):
        levels_file(tmp_path, f"random{draw}", [WNIDS[1:4]])
    assert run() == 0
    out = tmp_path / "out/tiny/net"
    assert {path.name for path in out.iterdir()} == HITS.keys()
    assert (out / "cog_l1").resolve() == (tmp_path / "models/tiny/net/cog_l1").resolve()
    for name, wnids in (("wup_l1", WUP[0]), ("wup_l2", WUP[1]), ("random1_l1", WNIDS[1:4])):
        for part, n in (("train", 4), ("test", 2)):
            features = feature_files.load(out / name / f"features_{part}")
            assert features.y.tolist() == np.repeat(range(3), n).tolist()
            assert features.x[:, 0].tolist() == np.repeat([float(w[1:]) for w in sorted(wnids)], n).tolist()
            lines = (out / name / f"features_{part}/image_paths.txt").read_text().split()
            assert lines == [f"{w}/{w}_{part}{k}.JPEG" for w in sorted(wnids) for k in range(n)]
    lines = capsys.readouterr().out.splitlines()
    rows = lines[lines.index("tiny_net: top-1 (%), mean over seeds") + 2 :]
    drawn = [50.0, 70.0, 90.0]
    low, high = scipy.stats.t.interval(0.95, 2, loc=np.mean(drawn), scale=scipy.stats.sem(drawn))
    expected = ["L1 L2", "published (Lin) 80.0 50.0", "Wu-Palmer 80.0 60.0", "3 random draws 70.0 70.0"]
    assert [" ".join(row.split()) for row in rows[:4]] == expected
    assert rows[4].startswith(f"± {(high - low) / 2:.2f}:") and (tmp_path / FIGURE).stat().st_size > 5000
    shown, _ = other_levels.compare(pd.Series({f"cog_l{level}": 1.0 for level in range(1, 12)}))
    assert list(shown) == [f"L{level}" for level in range(1, 12)]
    before = tiny.snapshot(tmp_path)
    run()
    assert {**tiny.snapshot(tmp_path), FIGURE: 0} == {**before, FIGURE: 0}


def test_refusals(tmp_path, run):
    (tmp_path / "levels").mkdir()
    with pytest.raises(CogError, match="has no folder with a"):
        run()
    levels_file(tmp_path, "wup", [[WNIDS[0], "n00000099"]])
    with pytest.raises(CogError, match=r"no features of 1 of 2 concepts.*n00000099.*--rerank"):
        run()
    with pytest.raises(CogError, match=r"tiny/nut has no features of any level; run extract_features.py"):
        run("tiny_nut")
    (tmp_path / "models/tiny/net/cog_l1/features_train/image_paths.txt").unlink()
    with pytest.raises(CogError, match="image_paths.txt does not exist; extract the features again"):
        run()
