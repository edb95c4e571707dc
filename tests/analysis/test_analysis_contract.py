"""What every analysis of the registry does, so that a new one is tested by being declared.

An analysis that needs more than features gets its flags in ``FLAGS``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from analyzed_models import LEVEL, write_features, write_run

from cog.analysis import base
from cog.commands import analyze_features
from cog.errors import CogError
from cog.results import analysis_records

WNIDS = LEVEL["cog_l1"]

#: Flags of analyses that need more than the features of a data set.
FLAGS = {"confident": ("--trained_on", "cog_l2")}

#: Files beside the record and the log.
FILES = {"confident": {"confident.csv"}, "concepts": {"concepts.csv"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Features and classifiers of a model on two levels."""
    root = tmp_path_factory.mktemp("world")
    for dataset in LEVEL:
        for split, seed in (("train", 0), ("test", 1)):
            write_features(root / "models", dataset, split, WNIDS, n=10, model="tiny/net", seed=seed)
        for seed in (22, 37):
            write_run(root / "models", dataset, seed=seed, hits=(7, 6, 5), model="tiny/net", scale=30.0)
    return root


@pytest.mark.parametrize("name", list(base.load_all()))
class TestEveryAnalysis:
    @pytest.fixture(autouse=True)
    def _setting(self, world, tmp_path, monkeypatch, name):
        monkeypatch.setenv("COG_WORDNET_DIR", str(tmp_path / "no_wordnet"))  # reading WordNet takes long
        self.output = tmp_path / "out"
        argv = f"--models_root_dir {world}/models --model tiny_net --dataset cog_l1 --device cpu"
        self.argv = f"{argv} --output_dir {self.output} --analysis {name}".split() + [*FLAGS.get(name, ())]

    def run(self, *more: str) -> analysis_records.AnalysisRecord:
        keys = ("ANALYSIS.KMEANS_SEEDS", "[1, 2]", "ANALYSIS.KNN_K", "[1, 5]")
        assert analyze_features.main([*self.argv, *more, *keys]) == 0
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
        expected = {"results.json", "program.log", *FILES.get(name, ())}
        assert {path.name for path in folder.iterdir()} == expected
        text = (folder / "results.json").read_text()
        assert "NaN" not in text and "Infinity" not in text
        assert f"[tiny_net cog_l1] {record.analysis}: " in capsys.readouterr().out

    def test_a_complete_result_is_skipped_and_another_one_refused(self, name):
        folder = self.run().folder
        before = tiny.snapshot(self.output)
        self.run()
        assert tiny.snapshot(self.output) == before
        path = folder / "results.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"identity": record["identity"] | {"another": 1}}))
        with pytest.raises(CogError, match=r"has another result \(another.*add --overwrite"):
            self.run()

    def test_the_same_again_gives_the_same_bits(self, name):
        first = self.run()
        again = self.run("--overwrite")
        assert (again.values, again.per_seed) == (first.values, first.per_seed)
