"""What every analysis of the registry does, so that a new one is tested by being declared.

An analysis that needs more than features gets its flags in ``FLAGS``.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import tiny
from analyzed_models import LEVEL, write_features, write_levels_csv, write_run

from cog.analysis import registry, subtrees
from cog.commands import analyze_features
from cog.errors import CogError
from cog.levels import wordnet
from cog.levels.wordnet import NounGraph
from cog.results import analysis_records, metric_info

WNIDS = LEVEL["cog_l1"]

#: Flags of analyses that need more than the features of a data set; TABLE is a levels.csv.
FLAGS = {
    "cross": ("--trained_on", "cog_l2", "--confidence", "0"),
    "distance": ("--levels_csv", "TABLE", "--n_resamples", "50"),
    "subtrees": ("--levels_csv", "TABLE", "--n_resamples", "50"),
    "winners": ("--against", "other_net"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Features and classifiers of two models on two levels, and levels.csv."""
    root = tmp_path_factory.mktemp("world")
    for model, lead in (("tiny/net", 0), ("other/net", 2)):
        for dataset in LEVEL:
            for split, seed in (("train", 0), ("test", 1)):
                write_features(root / "models", dataset, split, WNIDS, n=10, model=model, seed=seed)
            for seed, hits in ((22, (7, 6, 5 + lead)), (37, (8, 6, 6 + lead))):
                write_run(root / "models", dataset, seed=seed, hits=hits, model=model)
    write_levels_csv(root / "levels.csv", dict(zip(WNIDS, (0.9, 0.7, 0.5), strict=True)))
    return root


@pytest.mark.parametrize("name", [analysis.name for analysis in registry.ANALYSES])
class TestEveryAnalysis:
    @pytest.fixture(autouse=True)
    def _setting(self, world, tmp_path, monkeypatch, name):
        monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "no_wordnet"))  # reading WordNet takes long
        if name == "subtrees":
            roots = [wnid for ids in subtrees.SUBTREES.values() for wnid in ids]
            wnids = sorted({*roots, *WNIDS})
            parents = [(wnids.index(roots[0]),) if wnid in WNIDS else () for wnid in wnids]
            monkeypatch.setattr(
                wordnet, "load_wordnet", lambda _=None: NounGraph(wnids=wnids, parents=parents)
            )
        self.output = tmp_path / "out"
        self.argv = [
            "--models_root_dir", str(world / "models"), "--model", "tiny_net", "--dataset", "cog_l1", "--device", "cpu",
            "--output_dir", str(self.output), "--analysis", name, "ANALYSIS.KMEANS_SEEDS", "[1, 2]",
            "ANALYSIS.KNN_K", "[1, 5]",
        ]  # fmt: skip
        extra = [str(world / "levels.csv") if flag == "TABLE" else flag for flag in FLAGS.get(name, ())]
        self.argv[self.argv.index("--device") : self.argv.index("--device")] = extra

    def run(self, *more: str) -> analysis_records.AnalysisRecord:
        assert analyze_features.main([*self.argv, *more]) == 0
        [folder] = self.output.iterdir()
        record = analysis_records.read(folder)
        assert isinstance(record, analysis_records.AnalysisRecord), record
        return record

    def test_its_record_says_everything(self, name, capsys):
        record = self.run()
        assert record.analysis.partition("_")[0] == name
        assert (record.model, record.dataset) == ("tiny_net", "cog_l1")
        assert record.values and record.identity and record.versions["numpy"] and record.finished
        assert set(record.per_seed) == {str(seed) for seed in record.seeds}
        folder = record.folder
        expected = {"results.json", "program.log", *record.details.get("files", [])}
        assert {path.name for path in folder.iterdir()} == expected
        text = (folder / "results.json").read_text()
        assert "NaN" not in text and "Infinity" not in text
        assert f"[tiny_net cog_l1] {record.analysis}: " in capsys.readouterr().out
        for key in record.values:  # declared with label and unit
            assert metric_info.describe(record.analysis, key).group == name

    def test_check_computes_nothing(self, name, capsys):
        assert analyze_features.main([*self.argv, "--check"]) == 0
        assert not self.output.exists()

    def test_a_complete_result_is_skipped_and_another_one_refused(self, name, caplog):
        caplog.set_level(logging.INFO, "cog")
        folder = self.run().folder
        before = tiny.snapshot(self.output)
        self.run()
        assert "is complete, skipped" in caplog.text and tiny.snapshot(self.output) == before
        path = folder / "results.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"identity": record["identity"] | {"another": 1}}))
        with pytest.raises(CogError, match=r"holds a different result \(another.*add --overwrite"):
            self.run()

    def test_the_same_again_gives_the_same_bits(self, name):
        first = self.run()
        again = self.run("--overwrite")
        assert (again.values, again.per_seed) == (first.values, first.per_seed)
