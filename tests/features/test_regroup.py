"""Levels by other similarities: features grouped otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from cog import constants
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


def run(root, *flags):
    return command.main(
        [
            "--models_root_dir", str(root / "models"), "--model", "tiny_net", "--output_dir",
            str(root / "out"), *flags,
        ]
    )  # fmt: skip


def test_rows_follow_their_concepts(root, capsys):
    wup = [[WNIDS[4], WNIDS[0], WNIDS[2]], [WNIDS[5], WNIDS[1], WNIDS[3]]]
    levels_file(root, "wup", wup)
    levels_file(root, "random1", [WNIDS[1:4]])
    assert run(root, "--levels_dir", str(root / "levels")) == 0
    names = ["cog_l1", "cog_l2", "random1_l1", "wup_l1", "wup_l2"]
    assert capsys.readouterr().out.split() == names
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
    run(root, "--levels_dir", str(root / "levels"))
    assert tiny.snapshot(root) == before


def test_refusals(root):
    (root / "levels").mkdir()
    with pytest.raises(CogError, match="has no folder with a"):
        run(root, "--levels_dir", str(root / "levels"))
    levels_file(root, "wup", [[WNIDS[0], "n00000099"]])
    with pytest.raises(CogError, match=r"no features of 1 of 2 concepts.*n00000099.*--rerank"):
        run(root, "--levels_dir", str(root / "levels"))
    with pytest.raises(CogError, match=r"CLF.N_TRAILS.*did you mean CLF.N_TRIALS"):
        run(root, "--levels_dir", str(root / "levels"), "CLF.N_TRAILS", "3")
    with pytest.raises(CogError, match=r"tiny/nut has no features of any level; run extract_features.py"):
        run(root, "--levels_dir", str(root / "levels"), "--model", "tiny_nut")
    (root / "models/tiny/net/cog_l1/features_train/image_paths.txt").unlink()
    with pytest.raises(CogError, match="it is not known which concept a row shows"):
        run(root, "--levels_dir", str(root / "levels"))
