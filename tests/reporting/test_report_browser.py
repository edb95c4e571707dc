"""The report in a real browser: Debian's Chromium, headless. CI installs it; elsewhere these tests need it."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
import re

import pytest
from report_runs import forty_models, make_found, make_run
from result_folders import make_logs

from cog import constants
from cog.reporting import html
from cog.results import published
from cog.results.run_records import Problem

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>\"'&"
VIEW = "document.querySelector('.view:not([hidden])')"


def runs_of(model, shift, *, root=None, **changes):
    """Runs of a model that is ``shift`` points from ResNet50; those below ``root`` left their searches there."""
    runs = []
    for cell in published.accuracies():
        if cell.model != "sup_resnet50" or cell.n_shot not in (0, 1, 8):
            continue
        for seed in constants.SEEDS:
            if (cell.dataset, seed) == ("cog_l5", 93):
                continue
            top1 = cell.value + shift + seed / 100
            path = None
            if root is not None:
                path = root / model.replace("/", "") / cell.dataset / f"eval_N{cell.n_shot}" / f"seed-{seed}"
                write_search(path, top1)
            runs.append(make_run(model, cell.dataset, cell.n_shot, seed, top1, path=path, **changes))
    return runs


def write_search(path, top1):
    final = path / "final-lr-10.0_wd-1e-06"
    final.mkdir(parents=True)
    (final / "logs.pkl").write_bytes(pickle.dumps(make_logs(top1, n_epochs=20)))
    trials = [
        {"number": n, "lr": 0.1 * 1.25**n, "wd": 1e-5 / 2**n, "val_top1": 50.0 + n, "diverged": n > 25}
        for n in range(30)
    ]
    (path / "results.json").write_text(json.dumps({"trials": trials}))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report on two models, one with a hostile name, with a warning of each kind of severity."""
    root = tmp_path_factory.mktemp("report")
    runs = [
        *runs_of("good_net", 2.0, root=root, n_trials_diverged=4),
        *runs_of(f"bad_{HOSTILE}", -3.0, root=root, diverged=True, device=HOSTILE),
    ]
    path = root / f"report {HOSTILE[10:16]}.html".replace("/", "")
    problems = [Problem(root / HOSTILE.replace("/", ""), HOSTILE)]
    html.write(
        path, make_found(runs, problems=problems), published=published.accuracies(), root=root / "models"
    )
    return path


@pytest.fixture
def opened(browser, page):
    browser.open(page.as_uri())
    return browser


def labels(browser, column=0):
    """Names of the rows of the table that is shown, in order."""
    return browser.evaluate(
        f"Array.from({VIEW}.querySelectorAll('tbody tr:not([hidden])'), r => r.cells[{column}].innerText)"
    )


def means(browser, column):
    return browser.evaluate(
        f"Array.from({VIEW}.querySelectorAll('tbody tr'), r => Number(r.cells[{column}].dataset.v))"
    )


def sort_state(browser):
    return browser.evaluate(
        f"Array.from({VIEW}.querySelectorAll('thead th'), h => h.getAttribute('aria-sort'))"
    )


def test_page_renders_without_complaint_or_request(opened, page):
    assert opened.complaints() == []
    assert opened.requests() == [page.as_uri()]
    assert opened.evaluate("document.querySelector('h1').innerText") == "How well do 2 models generalize?"
    assert opened.evaluate("document.compatMode") == "CSS1Compat"
    # The browser's parser had nothing to mend: every section is where it was put.
    assert opened.evaluate("Array.from(document.querySelectorAll('main > section'), s => s.id)") == [
        "answer", "tables", "figures", "warnings", "runs", "search", "method",
    ]  # fmt: skip
    assert opened.evaluate(
        "Array.from(document.querySelectorAll('main table')).every(t => t.rows.length > 1)"
    )


def test_hostile_names_are_text(opened):
    assert opened.evaluate("window.pwned === undefined")
    assert opened.evaluate("document.images.length") == 0
    assert opened.evaluate("document.scripts.length") == 1
    assert any(HOSTILE in label for label in labels(opened))


def test_sorting_by_click(opened):
    assert sort_state(opened)[-1] == "descending"
    assert means(opened, 7) == sorted(means(opened, 7), reverse=True)
    opened.click(".view:not([hidden]) thead th:nth-child(2) button")
    assert means(opened, 1) == sorted(means(opened, 1), reverse=True)
    assert sort_state(opened) == ["none", "descending", *["none"] * 6]
    opened.click(".view:not([hidden]) thead th:nth-child(2) button")
    assert means(opened, 1) == sorted(means(opened, 1))
    assert sort_state(opened)[1] == "ascending"
    assert opened.evaluate("document.getElementById('said').textContent") == "Sorted by IN-1K, ascending"
    opened.click(".view:not([hidden]) thead th:nth-child(1) button")
    found = [label.lower() for label in labels(opened)]
    assert found[0].startswith("adv-robust") and found[-1].startswith("vgg19")
    assert len(found) == 33


def test_sorting_by_keyboard(opened):
    """Tab reaches the column titles in order; Enter and Space sort as a click does."""
    opened.evaluate("document.getElementById('filter').focus()")
    seen = []
    for _ in range(5):
        opened.press("Tab")
        seen.append(opened.evaluate("document.activeElement.textContent || document.activeElement.className"))
    assert seen[1:] == ["Model", "IN-1K", "L1", "L2"]  # after the scrolling region
    opened.press("Enter")
    assert sort_state(opened)[3] == "descending"
    by_l2 = means(opened, 3)
    assert by_l2 == sorted(by_l2, reverse=True)
    opened.press(" ")
    assert sort_state(opened)[3] == "ascending"
    assert means(opened, 3) == by_l2[::-1]
    assert opened.evaluate("document.activeElement.textContent") == "L2"  # focus stays
    outline = opened.evaluate(
        "(s => [s.outlineStyle, parseFloat(s.outlineWidth)])(getComputedStyle(document.activeElement))"
    )
    assert outline[0] == "solid" and outline[1] >= 2


def test_skip_link_comes_first_and_is_seen_when_focused(opened):
    opened.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert opened.evaluate("document.activeElement.getBoundingClientRect().x") >= 0
    opened.press("Enter")
    assert opened.evaluate("location.hash") == "#answer"


def test_filter_hides_rows_of_all_tables(opened):
    opened.evaluate("document.getElementById('filter').focus()")
    opened.type("web")
    assert len(labels(opened)) == 4
    assert opened.evaluate("document.getElementById('shown').textContent") == "4 of 33 models"
    opened.evaluate("document.getElementById('filter').select()")
    opened.type("DEIT distilled")
    assert len(labels(opened)) == 2


def choose(browser, control, value):
    browser.evaluate(
        f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }})"
        f"(document.getElementById('{control}'))"
    )


def test_choice_of_table(opened):
    assert opened.evaluate("document.querySelectorAll('.view:not([hidden])').length") == 1
    choose(opened, "view", "top1-d5")
    assert opened.evaluate(f"{VIEW}.querySelector('caption').innerText").startswith(
        "Top-1 accuracy (%) on L5"
    )
    assert len(sort_state(opened)) == 1 + 9
    choose(opened, "view", "top5-n0")
    assert len(labels(opened)) == 2


def test_values_relative_to_a_baseline(opened):
    choose(opened, "baseline", "paper-sup_resnet50")
    shown = opened.evaluate(
        f"Array.from({VIEW}.querySelectorAll('tbody tr'), r => [r.dataset.key, r.cells[2].innerText])"
    )
    scores = {c.model: c.value for c in published.accuracies() if (c.dataset, c.n_shot) == ("cog_l1", 0)}
    for key, text in shown:
        if key.startswith("paper-"):
            points = scores[key.removeprefix("paper-")] - scores["sup_resnet50"]
            expected = "0.0" if abs(points) < 0.05 else f"{points:+.1f}".replace("-", "−")
            assert text.split(" ")[0] == expected
    choose(opened, "baseline", "")
    assert dict(
        opened.evaluate(
            f"Array.from({VIEW}.querySelectorAll('tbody tr'), r => [r.dataset.key, r.cells[2].innerText])"
        )
    )["paper-sup_resnet50"].startswith(f"{scores['sup_resnet50']:.1f}")


def test_links_open_what_is_folded(opened):
    number = opened.evaluate("document.querySelectorAll('.notice').length") - 1
    last = f"notice-{number}"
    assert not opened.evaluate(f"document.getElementById('{last}').checkVisibility()")  # a note
    opened.evaluate(f"location.hash = '{last}'")
    assert opened.evaluate(
        f"new Promise(r => setTimeout(() => r(document.getElementById('{last}').checkVisibility()), 50))"
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 800, 1280])
def test_nothing_sticks_out_sideways(browser, page, width, dark):
    browser.open(page.as_uri(), width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    wide = browser.evaluate(
        "Array.from(document.querySelectorAll('main *')).filter(e => !e.closest('.scroll, .unseen, svg') && "
        f"e.getBoundingClientRect().right > {width} + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert browser.complaints() == []


OTHER_DATA = [run for model in ("my_net", "our_vit_small") for run in runs_of(model, 0.0, n_classes=24)]


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """Return a function that writes the page of one, three or forty models, or of results on other data, once."""
    folder = tmp_path_factory.mktemp("pages")
    three = {"timm_vit_base_patch14_reg4_dinov2.lvd142m": 2.0, "my_net": 0.5, "our_vit_small": -9.0}
    runs = {
        "one": lambda: runs_of("my_net", 1.5, n_trials_diverged=4),
        "three": lambda: [run for model, shift in three.items() for run in runs_of(model, shift)],
        "forty": lambda: forty_models(n_trials_diverged=4),
        "other_data": lambda: OTHER_DATA,
    }

    @functools.cache
    def write(name):
        path = folder / f"{name}.html"
        return html.write(path, make_found(runs[name]()), published=published.accuracies(), root="/models")

    return write


#: Every visible cell of the first table, row by row: its words and the box around each piece of them.
FIRST_TABLE = """Array.from(document.querySelector('#answer table').rows, row =>
  Array.from(row.cells).filter(cell => cell.checkVisibility()).map(cell => {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), boxes = [];
    while (walker.nextNode()) {
      if (!walker.currentNode.textContent.trim() || walker.currentNode.parentElement.closest('.unseen')) continue;
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      for (const box of range.getClientRects()) boxes.push([box.left, box.top, box.right, box.bottom]);
    }
    return [cell.innerText.replace(/\\s+/g, ' ').trim(), boxes];
  }))"""


def overlap(one, other):
    (left, top, right, bottom), (left2, top2, right2, bottom2) = one, other
    return min(right, right2) - max(left, left2) > 0.5 and min(bottom, bottom2) - max(top, top2) > 0.5


@pytest.mark.parametrize("width", [360, 400, 700, 800, 1280])
@pytest.mark.parametrize(("name", "n_rows"), [("one", 6), ("three", 3), ("forty", 3)])
def test_the_first_screen_answers_without_scrolling(browser, page_of, name, n_rows, width):
    """Ranks on all levels and how sure they are: nothing of the first rows is outside, cut or covered."""
    browser.open(page_of(name).as_uri(), width=width, height=800)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    first = "document.querySelector('#answer .scroll')"
    assert browser.evaluate(f"{first}.scrollWidth <= {first}.clientWidth")
    head, *rows = browser.evaluate(FIRST_TABLE)
    for row in [head, *rows[:n_rows]]:
        boxes = [(text, box) for text, found in row for box in found]
        for text, (left, _, right, bottom) in boxes:
            assert left >= 0 and right <= width and bottom <= 800, text
        for (text, box), (other, another) in itertools.combinations(boxes, 2):
            assert text == other or not overlap(box, another), (text, other)
    titles = [text for text, _ in head]
    words = [[text for text, _ in row] for row in rows]
    if name == "one":
        assert [row[0] for row in words] == ["IN-1K", "L1", "L2", "L3", "L4", "L5"]
        assert titles[1:3] == ["Top-1 (%)", "Rank span"] and titles[-1] == "vs ResNet50"
        ranks = [row[2] for row in words]
    else:
        assert titles[-9:] == ["IN-1K", "L1", "L2", "L3", "L4", "L5", "L1–L5", "Rank", "Of all here"]
        assert all(re.fullmatch(r"#\d+", rank) for row in words[:n_rows] for rank in row[-2:])
        assert any(row[0] == "timm_vit_base_patch14_reg4_dinov2.lvd142m †" for row in words)  # in full
        ranks = [rank for row in words for rank in row[-9:-3]]
    assert all(re.search(r"#\d+", text) for text in ranks)
    assert any(re.search(r"\d–\d", text) for text in ranks)  # spans such as 12–13
    if width == 1280:
        chart = browser.evaluate("document.querySelector('figure.lead svg').getBoundingClientRect().top")
        assert chart < 400, "the chart is on the first screen where there is room beside the table"


@pytest.mark.parametrize("name", ["three", "forty"])
def test_the_first_screen_has_the_whole_chart_with_its_legend(browser, page_of, name):
    browser.open(page_of(name).as_uri(), width=1280, height=800)
    left, top, right, bottom = browser.evaluate(
        "(b => [b.left, b.top, b.right, b.bottom])(document.querySelector('figure.lead').getBoundingClientRect())"
    )
    assert left >= 0 and top >= 0 and right <= 1280 and bottom <= 800


@pytest.mark.parametrize("width", [360, 400, 1280])
def test_the_first_table_of_other_data_is_seen_without_scrolling(browser, page_of, width):
    browser.open(page_of("other_data").as_uri(), width=width, height=800)
    first = "document.querySelector('#answer .scroll')"
    assert browser.evaluate(f"{first}.scrollWidth <= {first}.clientWidth")
    head, *rows = browser.evaluate(FIRST_TABLE)
    assert [text for text, _ in head][-6:] == list(constants.DATASETS)
    assert [row[0][0] for row in rows] == ["my_net †", "our_vit_small †"]
    assert all(right <= width for row in rows for _, found in row for _, _, right, _ in found)


def test_titles_of_few_columns_stand_above_their_numbers_on_a_phone(browser, tmp_path):
    chosen = ("in1k", "cog_l1", "cog_l5")
    runs = [run for run in OTHER_DATA if run.dataset in chosen]
    page = html.write(tmp_path / "r.html", make_found(runs), published=published.accuracies(), root="/models")
    browser.open(page.as_uri(), width=400, height=800)
    head, *rows = browser.evaluate(FIRST_TABLE)
    lefts = [found[0][0] for _, found in head]
    assert [text for text, _ in head] == list(chosen)
    assert all([found[0][0] for _, found in row[1:]] == lefts for row in rows)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast(browser, page, dark):
    """Every text has the contrast to its background that WCAG 2.1 AA asks for: 4.5, or 3 for large text."""
    browser.open(page.as_uri(), dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    poor = browser.evaluate(
        """(() => {
        const parse = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return v.length === 3 ? [...v, 1] : v; };
        const light = (c) => c.slice(0, 3).map((v) => v / 255)
          .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => { for (; e; e = e.parentElement) {
          const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
        const found = new Map();
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const e = walker.currentNode.parentElement;
          if (!walker.currentNode.textContent.trim() || e.closest('script, .picture, .unseen')) continue;
          const s = getComputedStyle(e);
          const svg = e.closest('svg') !== null;
          const [a, b] = [light(parse(svg ? s.fill : s.color)), light(behind(e))];
          const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          const size = parseFloat(s.fontSize);
          const large = size >= 24 || (size >= 18.66 && Number(s.fontWeight) >= 700);
          if (ratio < (large ? 3 : 4.5)) found.set(`${e.tagName}.${e.className} ${ratio.toFixed(2)}`, 1);
        }
        return [...found.keys()];
      })()"""
    )
    assert poor == []


def test_everything_is_there_without_script(browser, page):
    browser.open(page.as_uri(), script=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.evaluate("document.querySelectorAll('.view[hidden]').length") == 0
    assert browser.evaluate(
        "Array.from(document.querySelectorAll('.needs-script')).every(e => !e.checkVisibility())"
    )
    assert browser.evaluate("document.querySelectorAll('.view').length") > 8


def test_printing_hides_controls_and_unfolds(opened):
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.call("Emulation.setEmulatedMedia", media="print")
    assert not opened.evaluate("document.querySelector('.controls').checkVisibility()")
    assert opened.evaluate("document.querySelectorAll('details.print:not([open])').length") == 0
    data = opened.call("Page.printToPDF")["data"]
    assert len(data) > 10_000
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.evaluate("document.querySelectorAll('details.print:not([open])').length") > 0


@pytest.mark.parametrize("name", ["one", "three", "forty"])
def test_paper_holds_everything(browser, page_of, name):
    """On A4 with Chromium's margins nothing sticks out or covers a number, and nothing is torn off its heading."""
    width = 717
    browser.open(page_of(name).as_uri(), width=width)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    covered = browser.evaluate(
        "Array.from(document.querySelectorAll('.chip')).filter(chip => chip.checkVisibility() && "
        "chip.getBoundingClientRect().right > chip.closest('th').getBoundingClientRect().right + 0.5).length"
    )
    assert covered == 0

    def styles(selector, which):
        return set(
            browser.evaluate(
                f"Array.from(document.querySelectorAll({json.dumps(selector)}), e => getComputedStyle(e).{which})"
            )
        )

    assert styles("h2, h3, summary", "breakAfter") == {"avoid"}
    # A list that must stay with what follows would leave its last line to the next page.
    assert styles(".sentences.more", "breakAfter") == {"auto"}
    assert styles("tr, figure, li, details.model, .standing, #tables > p", "breakInside") == {"avoid"}
    assert styles("#tables > p", "breakAfter") == {"avoid"}  # which would leave its heading with it
    # Chromium repeats titles of columns on every page unless they hold a box of a control.
    assert styles(".scores thead button", "display") == {"contents"}


def test_equal_notices_of_forty_models_are_one_card(browser, page_of):
    browser.open(page_of("forty").as_uri(), width=717)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.call("Emulation.setEmulatedMedia", media="print")
    (card,) = browser.evaluate("Array.from(document.querySelectorAll('.notice'), e => e.innerText)")
    assert card.startswith("Note Trials that diverged aim_600m, my_net, my_net-longer-trained and 37 more")
    names = "Array.from(document.querySelectorAll('.notice h4')).filter(e => e.checkVisibility()).length"
    assert browser.evaluate(names) == 0  # on paper
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.click(".of-models summary")
    assert browser.evaluate(names) == 40
