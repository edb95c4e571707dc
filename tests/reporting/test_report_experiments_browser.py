"""The report's section on other experiments in a real browser."""

from __future__ import annotations

import pytest
from experiment_records import write_record, write_runs

from cog import constants
from cog.commands import print_results

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>\"'&"
FIRST = "document.querySelector('table.experiments')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    root = folder / "models"
    for model, share in (("mini_trained", 1.0), ("mini_untrained", 0.3), ("other_" + "long" * 12, 0.8)):
        for place, dataset in enumerate(constants.DATASETS):
            good = share * (1 - place / 10)
            for name, top1 in {
                "logreg": 60.0,
                "logreg_pca32": 45.0,
                "mlp": 62.0,
                "logreg_max732": 55.0,
            }.items():
                by_seed = {seed: good * top1 + seed / 100 for seed in constants.SEEDS[:3]}
                write_runs(root, model, dataset, name, by_seed)
            write_record(root, model, dataset, "ncm", {"top1_cosine": good * 50}, device=HOSTILE)
            per_seed = {str(s): {"ami": good * 0.5 + s / 100, "purity_v1": good / 2} for s in range(3)}
            write_record(
                root, model, dataset, "kmeans", per_seed["0"], per_seed=per_seed, identity={"k": share}
            )
            write_record(root, model, dataset, "alignment", {"alignment": 1 - good, "uniformity": -2 * good})
        concept = {"names": HOSTILE, "difference": 12.0, "accuracy": 60.0, "accuracy_against": 48.0}
        write_record(root, model, "cog_l5", "winners_x", {"n_better": 3}, details={"winners": [concept]})
    target = folder / "report.html"
    assert print_results.main(["--models_root_dir", str(root), "--report", str(target)]) == 0
    return target


@pytest.fixture
def opened(browser, page):
    browser.open(page.as_uri())
    return browser


def test_no_complaint_no_request_and_hostile_text(opened, page):
    assert opened.complaints() == [] and opened.requests() == [page.as_uri()]
    assert opened.evaluate("window.pwned === undefined")
    assert "window.pwned" in opened.evaluate("document.getElementById('experiments').textContent")
    sections = opened.evaluate("Array.from(document.querySelectorAll('main > section'), s => s.id)")
    assert sections.index("experiments") == sections.index("tables") + 1


def test_a_baseline_of_accuracies_leaves_experiments_as_they_are(opened):
    before = opened.evaluate("document.getElementById('experiments').innerText")
    opened.evaluate(
        "(e => { e.value = e.options[1].value; e.dispatchEvent(new Event('change')); })"
        "(document.getElementById('baseline'))"
    )
    assert opened.evaluate("document.getElementById('experiments').innerText") == before


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_sticks_out_sideways(browser, page, width, dark):
    browser.open(page.as_uri(), width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    wide = browser.evaluate(
        "Array.from(document.querySelectorAll('#experiments *')).filter(e => !e.closest('.scroll, .unseen') && "
        f"e.getBoundingClientRect().right > {width} + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == [] and browser.complaints() == []
