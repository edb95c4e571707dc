"""The report in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import pytest
from benchmark_runs import write_study

from cog.reporting import report
from cog.results.read import read

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>\"'&"
TABLE = "document.querySelector('#answer table')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report on two models, with notices, and with hostile words in the files."""
    root = tmp_path_factory.mktemp("report") / "models"
    write_study(root, {"my_good": 2.0, "my_bad": -3.0}, device=HOSTILE)
    return report.write(root.parent / "report.html", read(root, published="v2"), root=root, created=HOSTILE)


def means(browser, column):
    cells = (
        f"Array.from({TABLE}.querySelectorAll('tbody tr'), r => parseFloat(r.cells[{column}].textContent))"
    )
    return browser.evaluate(cells)


def test_page_renders_without_complaint_or_request_and_hostile_names_are_text(browser, page):
    browser.open(page.as_uri())
    assert browser.complaints() == [] and browser.requests() == [page.as_uri()]
    assert browser.evaluate("window.pwned === undefined && document.scripts.length === 1")
    assert HOSTILE in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.title") == "How well do 2 models generalize?"
    # The browser's parser had nothing to mend: every section is where it was put, and every picture is one.
    assert browser.evaluate("Array.from(document.querySelectorAll('main > section'), s => s.id)") == [
        *("answer", "relative", "fewshot", "figures", "checks", "provenance", "searches", "method")
    ]
    assert browser.evaluate("document.images.length") > 10
    assert browser.evaluate("Array.from(document.images).every(i => i.complete && i.naturalWidth > 100)")


def test_sorting_by_click_and_by_keyboard_and_all_without_script(browser, page):
    browser.open(page.as_uri())
    title = "#answer table thead th:nth-child(2) button"
    browser.click(title)
    assert means(browser, 1) == sorted(means(browser, 1), reverse=True)
    browser.evaluate(f"document.querySelector('{title}').focus()")
    browser.press_enter()
    assert means(browser, 1) == sorted(means(browser, 1))
    states = f"Array.from({TABLE}.querySelectorAll('thead th'), h => h.getAttribute('aria-sort'))"
    assert browser.evaluate(states)[:3] == ["none", "ascending", "none"]
    browser.open(page.as_uri(), script=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.evaluate("document.querySelectorAll('table').length") >= 8
    assert browser.evaluate("document.querySelector('th button').disabled")


#: Texts without the contrast to their background that WCAG 2.1 AA asks for: 4.5, or 3 for large text.
POOR = """(() => {
  const parse = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return v.length === 3 ? [...v, 1] : v; };
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    const c = e ? parse(getComputedStyle(e).backgroundColor) : [255, 255, 255, 1];
    return c[3] > 0 ? c : behind(e.parentElement); };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || e.closest('script')) continue;
    const s = getComputedStyle(e), [a, b] = [light(parse(s.color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), size = parseFloat(s.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(s.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)}`);
  }
  return [...found];
})()"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_sticks_out_sideways_and_all_can_be_read(browser, page, width, dark):
    browser.open(page.as_uri(), width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    wide = browser.evaluate(
        "Array.from(document.querySelectorAll('main *')).filter(e => !e.closest('.scroll') && "
        f"e.getBoundingClientRect().right > {width} + 0.5).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == [] == browser.evaluate(POOR)
