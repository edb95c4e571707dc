"""Verdicts on the paper's statements, by its published numbers, which are read from its files, and by given numbers."""

from __future__ import annotations

import csv
import dataclasses
import json
from array import array

import numpy as np
import pytest
from experiment_records import write_runs

from cog.commands import print_results
from cog.errors import CogError
from cog.results import claims
from cog.results.claims import EXCEPTIONS, FAILS, HOLDS, OPEN, Case, Numbers
from cog.results.concept_counts import ConceptCounts
from cog.results.scores import Counts, SeedAverage

DATASETS = ("in1k", "cog_l1", "cog_l2", "cog_l3", "cog_l4", "cog_l5")
PUBLISHED = {finding.claim.name: finding for finding in claims.judge_published()}


def table_of_the_paper(shared_dir, name):
    path = shared_dir / "paper" / name
    if not path.is_file():
        pytest.skip("needs the papers' tables: would compare the verdicts with them")
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def v2(shared_dir):
    """Mean and deviation by model, data set and shots ("all" or a number), from the papers' own file."""
    return {
        (row["model"], row["dataset"], row["n_shot"]): (float(row["mean"]), float(row["std"]))
        for row in table_of_the_paper(shared_dir, "cog_v2_top1.csv")
    }


def test_gaps_to_the_base_and_between_pairs(v2):
    def gap(model, base, dataset, n="all"):
        return v2[model, dataset, str(n)][0] - v2[base, dataset, str(n)][0]

    base = claims.BASE
    shots = [1, 2, 4, 8, 16, 32, 64, 128]
    mixing = ("relabel_resnet50", "cutmix_resnet50", "mixup_resnet50", "manifold-mixup_resnet50")
    transformers = ("t2tvit_t14", "deit_small", "deit_small_distilled", "deit_base_distilled_384")
    expected = {
        "label mixing hurts far": [-gap(m, base, d) for m in mixing for d in DATASETS[1:]],
        "few-shot EfficientNet": [
            gap("efficientnet_b4", base, d, n) for d in DATASETS[1:] for n in (*shots, "all")
        ],
        "few-shot distillation": [
            gap(*pair, d, n)
            for pair in (("deit_small_distilled", "deit_small"), ("mealv2_resnet50", base))
            for d in DATASETS[1:]
            for n in shots
        ],
        "few-shot transformers": [gap(m, base, "cog_l5", n) for m in transformers for n in shots],
        "transformers lose": [gap(m, base, "in1k") - gap(m, base, "cog_l5") for m in transformers],
    }
    for name, gaps in expected.items():
        found = PUBLISHED[name]
        assert (found.n_holds, found.n_cases) == (sum(g > 1e-9 for g in gaps), len(gaps)), name
        assert max(map(abs, found.span)) == pytest.approx(max(map(abs, gaps))), name
    by = [gap(m, base, "cog_l5", n) for m in transformers for n in shots]
    assert PUBLISHED["few-shot transformers by"].n_holds == sum(3 <= round(g, 1) <= 4 for g in by)
    assert PUBLISHED["few-shot transformers by"].verdict == FAILS


def test_deviations_and_the_overall_top(v2):
    small = sum(std < 0.2 for _, std in v2.values())
    assert (PUBLISHED["deviation"].n_holds, PUBLISHED["deviation"].n_cases) == (small, len(v2))
    means = {m: sum(v2[m, d, "all"][0] for d in DATASETS) / 6 for m, *_ in v2}
    top = means.pop("deit_base_distilled_384")
    found = PUBLISHED["top overall"]
    assert (found.n_holds, found.n_cases) == (sum(top > mean for mean in means.values()), len(means))
    assert found.span == pytest.approx((top - max(means.values()), top - min(means.values())))


def test_where_a_model_is_above_all_others(v2):
    shots = [1, 2, 4, 8, 16, 32, 64, 128]
    models = {model for model, *_ in v2} - {"nat_m4"}
    leads = [
        v2["nat_m4", d, str(n)][0] - max(v2[m, d, str(n)][0] for m in models)
        for d in DATASETS[3:]
        for n in shots
    ]
    found = PUBLISHED["few-shot NAT"]
    assert (found.n_holds, found.n_cases) == (sum(lead > 1e-9 for lead in leads), 24)
    assert found.span == pytest.approx((min(leads), max(leads)))


def test_statements_of_the_first_version(shared_dir):
    rows = table_of_the_paper(shared_dir, "cog_v1_table2_logreg_top1.csv")
    top1 = {(row["model"], row["dataset"]): float(row["top1"]) for row in rows}
    losses = [100 * (1 - top1[m, "cog_l5"] / top1[m, "in1k"]) for m in {model for model, _ in top1}]
    assert PUBLISHED["loss"].span == pytest.approx((min(losses), max(losses)))
    assert PUBLISHED["loss"].n_holds == sum(25 <= loss <= 35.05 for loss in losses)
    assert PUBLISHED["half of the components"].n_holds == 1  # IN-1K: 75.8 both


def test_statements_without_numbers_are_open():
    assert PUBLISHED["faces"].verdict == OPEN and PUBLISHED["faces"].evidence == "no such numbers"
    assert {finding.verdict for finding in claims.judge_all(Numbers([]))} == {OPEN}
    assert len({claim.name for claim in claims.CLAIMS}) == len(claims.CLAIMS) >= 12


ABOVE, GAIN = "self-supervised above", "self-supervised gain"


def findings(averages):
    """Return the findings by the names of their statements."""
    return {finding.claim.name: finding for finding in claims.judge_all(Numbers(averages))}


def averages_by_level(values, model="my_net", **place):
    """Return averages of a model on IN-1K, L1, L2, ... with these values."""
    return [
        SeedAverage(model, dataset, "logreg", "top1", 0, value, **place)
        for dataset, value in zip(DATASETS, values, strict=False)
    ]


def test_models_on_other_data_are_not_compared():
    """A base of 17 classes is not below models of 1000 classes."""
    on_all = averages_by_level((75, 70, 65, 60, 58, 55), "dino_resnet50", counts=Counts(classes=(1000,)))
    for n_classes, verdict in ((1000, FAILS), (17, OPEN)):
        base = averages_by_level((80, 78, 77, 76, 75, 74), claims.BASE, counts=Counts(classes=(n_classes,)))
        assert findings([*on_all, *base])[ABOVE].verdict == verdict, n_classes


@pytest.mark.parametrize(("seeds", "verdict"), [((22,), OPEN), ((22, 37), HOLDS)])
def test_a_single_seed_has_no_deviation(seeds, verdict):
    averages = averages_by_level((70, 60), std=0.0, seeds=seeds)
    assert findings(averages)["deviation"].verdict == verdict


def counted(generator, model, dataset, shares, n_seeds=3):
    """An average of runs that are right on shares of 50 images of each concept, as often as chance says."""
    correct = generator.binomial(50, shares, (n_seeds, len(shares)))
    runs = tuple(ConceptCounts(array("B", row.tolist()), 50) for row in correct)
    values = tuple((2 * correct.mean(axis=1)).tolist())
    place = (model, dataset, "logreg", "top1", 0)
    return SeedAverage(
        *place, float(np.mean(values)), 0.1, (22, 37, 45)[:n_seeds], by_seed=values, concepts=runs
    )


@pytest.mark.parametrize(
    ("gap", "n_seeds", "verdict"),
    [(0.1, 3, HOLDS), (-0.1, 3, FAILS), (0.002, 3, OPEN), (-0.002, 3, OPEN), (0.1, 1, OPEN)],
)
def test_differences_with_counts_are_decided_by_intervals(gap, n_seeds, verdict):
    """The same means without counts decide as they are."""
    generator = np.random.default_rng(1)
    shares = np.clip(generator.normal(0.6, 0.15, 200), 0.1, 0.85)
    averages = [
        counted(generator, model, "cog_l5", shares + by, n_seeds)
        for model, by in ((claims.BASE, 0.0), ("dino_resnet50", gap))
    ]
    found = findings(averages)[ABOVE]
    assert found.verdict == verdict and found.n_not_told == (verdict == OPEN)
    assert ("1 not told" in found.evidence) == (verdict == OPEN)
    means = findings([dataclasses.replace(a, concepts=()) for a in averages])[ABOVE]
    ahead = averages[1].value > averages[0].value
    assert means.verdict == (HOLDS if ahead else FAILS) and means.n_not_told is None


@pytest.mark.parametrize(("n_statements", "verdict"), [(1, HOLDS), (2, OPEN)])
def test_all_cases_of_all_statements_are_corrected_together(monkeypatch, n_statements, verdict):
    """A p-value of 0.03 tells one case; of two, Holm's correction makes 0.06 of it."""
    shown = [
        dataclasses.replace(claim, cases=lambda _: iter([claims.Case("a case", 1.0, True, 0.03)]))
        for claim in claims.CLAIMS[:n_statements]
    ]
    monkeypatch.setattr(claims, "CLAIMS", shown)
    assert [finding.verdict for finding in claims.judge_all(Numbers([]))] == [verdict] * n_statements


def test_cases_that_are_not_told_decide_no_statement():
    def verdict(n_for, n_against, n_untold):
        cases = [Case("", 1.0, True, 0.01)] * n_for + [Case("", -1.0, False, 0.01)] * n_against
        cases += [Case("", 0.1, True, 0.2)] * n_untold
        return claims._judge(claims.CLAIMS[0], cases).verdict

    assert [verdict(5, 0, 0), verdict(5, 5, 0), verdict(5, 6, 0)] == [HOLDS, EXCEPTIONS, FAILS]
    assert [verdict(5, 0, 1), verdict(5, 1, 1), verdict(0, 5, 4)] == [OPEN, EXCEPTIONS, FAILS]
    assert [verdict(2, 1, 3), verdict(0, 0, 3)] == [OPEN, OPEN]


@pytest.mark.parametrize(
    ("values", "of", "p", "value"),
    [
        ((2.0, 3.0), min, 0.03, 2.0),  # both are high enough
        ((-1.0, 3.0), min, 0.02, -1.0),  # of two chances
        ((2.0, -3.0), max, 0.02, 2.0),
        ((-1.0, -3.0), max, 0.03, -1.0),
    ],
)
def test_p_values_of_the_best_of_several(values, of, p, value):
    cases = [Case(str(v), v, v > 0, p) for v, p in zip(values, (0.01, 0.03), strict=True)]
    found = claims._extreme(cases, "L5", of=of)
    assert (found.p, found.value, found.label) == (pytest.approx(p), value, f"L5 ({value})")
    unknown = [cases[0], dataclasses.replace(cases[1], p=None)]
    assert claims._extreme(unknown, "L5", of=of).p is None


def test_losses_are_told_by_their_nearest_bound():
    generator = np.random.default_rng(3)
    for far, verdict in ((0.56, HOLDS), (0.40, FAILS), (0.75, FAILS), (0.523, OPEN)):
        averages = [
            counted(generator, "my_net", dataset, np.clip(generator.normal(mean, 0.05, 1000), 0, 1))
            for dataset, mean in (("in1k", 0.8), ("cog_l5", far))
        ]
        assert findings(averages)["loss"].verdict == verdict, far


def test_the_command(tmp_path, capsys):
    print_results.main(["--claims"])
    out = capsys.readouterr().out
    assert out.count("statements of the paper by") == 1 and "clip_resnet50, L3 to L4 +0.5" in out
    for dataset, top1 in zip(DATASETS, (70.0, 60.0, 50.0, 55.0, 30.0, 20.0), strict=True):
        write_runs(tmp_path, "my_net", dataset, "logreg", {22: top1, 37: top1 + 1})
    print_results.main(["--claims", "--models_root_dir", str(tmp_path), "--format", "json"])
    records = {(r["source"], r["claim"]): r for r in json.loads(capsys.readouterr().out)}
    assert {source for source, _ in records} == {"published", "own runs"}
    distance = records["own runs", "distance"]
    assert (distance["verdict"], distance["n_holds"], distance["n_cases"]) == (EXCEPTIONS, 4, 5)
    assert distance["exceptions"] == ["my_net, L2 to L3 +5.0"]
    assert records["own runs", "deviation"]["verdict"] == FAILS  # 0.5 each
    for flags in (["--claims", "--rank"], ["--claims", "--metric", "top5"]):
        with pytest.raises(CogError, match="--claims"):
            print_results.main(flags)
