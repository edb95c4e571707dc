"""Every declared figure drawn: the data in it, layout, legend, files of each format, and a page's SVG."""

from __future__ import annotations

import csv
import functools
import itertools
import math
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import pytest
import test_figures_experiments as experiments
from marks import first_quick
from test_figures import one_cell, own_cells

from cog.errors import CogError
from cog.reporting import figures
from cog.reporting.figures import drawing, saving
from cog.reporting.figures.declarations import FIGURES
from cog.results import published
from cog.results.scores import SeedAverage

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def charts():
    """Every declared figure by name: own models with gaps among the published ones, or numbers of experiments."""
    cells = [c for c in own_cells("my_net") if (c.dataset, c.n_shot) not in {("cog_l3", 0), ("cog_l5", 4)}]
    cells += own_cells("other_net", mean=50, missing=(37,))
    made = figures.charts(cells, published.accuracies(), singles=False)
    measures = [*experiments.own(), *experiments.own("mini_other", shift=0.1), *experiments.correlations()]
    made += figures.charts([], [], measures=measures, analyses=[experiments.distance_record()])
    subtrees = experiments.subtree_numbers("my_net", "cog_l1", {"plants": 20.0, "birds": 30.0, "rest": 5.0})
    made += figures.charts([], [], measures=subtrees, which=["subtrees"])
    others = [SeedAverage("my_net", f"{kind}_l{k}", "logreg", "top1", 0, 60.0 - k, 0.5, (22, 37))
              for kind in ("cog", "wup") for k in range(1, 6)]  # fmt: skip
    made += figures.charts(others, which=["fig7"])
    return {chart.figure: chart for chart in made}


_QUICK = ("v1_fig10", "knn", "distance")


@pytest.fixture(
    scope="module", params=first_quick(len(_QUICK), sorted(FIGURES, key=lambda name: name not in _QUICK))
)
def drawn(request):
    """One chart, and the figure drawn of it."""
    chart = charts()[request.param]
    with saving.drawing():
        return chart, drawing.draw(chart)


def lines_by_gid(figure):
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    return {line.get_gid(): line for line in lines if line.get_gid() is not None}


def same(a, b):
    return len(a) == len(b) and all((math.isnan(x) and math.isnan(y)) or x == y for x, y in zip(a, b))


# ---- drawn --------------------------------------------------------------------------------------------
def test_artists_carry_the_data(drawn):
    chart, figure = drawn
    lines = lines_by_gid(figure)
    expected = set()
    for panel in chart.panels():
        for order, series in enumerate(panel.series):
            gid = drawing.curve_id(panel, order)
            expected.add(gid)
            at = {point.x: point for point in series.points}
            ticks = [point.x for point in series.points] if panel.plane else list(panel.ticks)
            assert list(lines[gid].get_xdata()) == ticks
            assert same(list(lines[gid].get_ydata()), [at[x].value if x in at else math.nan for x in ticks])
            bars = [(p.x, p.value - p.std, p.value + p.std) for p in series.points if p.std > 0]
            if bars:
                bar = lines[f"{gid}.bar"]
                expected.add(f"{gid}.bar")
                ends = list(zip(bar.get_xdata(), bar.get_ydata()))
                assert [(a[0], a[1], b[1]) for a, b in zip(ends[::3], ends[1::3])] == bars
                assert all(math.isnan(x) for x, _ in ends[2::3])
    assert set(lines) == expected
    for axes in figure.axes:
        low, high = axes.get_ylim()
        values = [v for line in axes.get_lines() if line.get_gid() for v in line.get_ydata()]
        assert all(low <= value <= high for value in values if not math.isnan(value))


def test_panels_say_what_they_show(drawn):
    """Panels that stand side by side or below each other may say once what they share."""
    chart, figure = drawn
    panels = list(chart.panels())
    assert len(figure.axes) == len(panels)
    said = dict(zip((panel.key for panel in panels), figure.axes))
    for panel in panels:
        axes = said[panel.key]
        assert axes.get_title(loc="left").endswith(panel.title)
        assert list(axes.get_xticks()) == list(panel.ticks)
        beside = [p for row in ((chart.lead,), *chart.grid) if panel in row for p in row if p is not None]
        below = [p for column in zip(*chart.grid) if panel in column for p in column if p is not None]
        labels = [said[p.key].get_ylabel().split() for p in beside if p.y_label == panel.y_label]
        assert panel.y_label.split() in labels
        ticks = [[label.get_text() for label in said[p.key].get_xticklabels()] for p in below or [panel]]
        assert list(panel.tick_labels) in ticks
        assert panel.x_label.split() in [said[p.key].get_xlabel().split() for p in below or [panel]]
    assert [line for text in figure.texts for line in text.get_text().split("\n")] == list(chart.notes)


def test_own_curves_are_on_top(drawn):
    chart, figure = drawn
    lines = lines_by_gid(figure)
    for panel in chart.panels():
        heights = {True: [], False: []}
        for index, series in enumerate(panel.series):
            heights[series.curve.is_own].append(lines[drawing.curve_id(panel, index)].get_zorder())
        assert min(heights[True]) > max(heights[False], default=0)


def test_panels_that_are_compared_share_their_scale(drawn):
    chart, figure = drawn
    scales = {}
    for axes, panel in zip(figure.axes, chart.panels()):
        scales.setdefault(panel.y_group, set()).add(axes.get_ylim())
    assert all(len(limits) == 1 for limits in scales.values())


def test_legend_has_every_curve_once(drawn):
    chart, figure = drawn
    (legend,) = figure.legends
    texts = [text for text in legend.get_texts() if text.get_text().strip()]
    headings = [text.get_text() for text in texts if text.get_fontweight() == "bold"]
    labels = [text.get_text() for text in texts if text.get_fontweight() != "bold"]
    unnamed = sum(not curve.named for curve in chart.curves())
    named = [curve.label for curve in chart.curves() if curve.named]
    assert sorted(labels) == sorted(named + [f"{unnamed} more"] * bool(unnamed))
    assert sorted(headings) == sorted({curve.group for curve in chart.curves()})
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in legend.legend_handles]
    assert len(set(looks)) == len(labels) + 1, "two curves look alike"  # one more: headings have no line


@pytest.mark.slow
def test_every_curve_has_a_tooltip(drawn):
    """Of the SVG for a page; all formats of one figure are looked at in ``test_files``."""
    chart, _figure = drawn
    root = ElementTree.fromstring(figures.svg(chart))
    tooltips = [element.text for element in root.iter(f"{SVG}title")]
    assert sorted(tooltips) == sorted(one.curve.label for panel in chart.panels() for one in panel.series)


def boxes(figure, artists):
    renderer = figure.canvas.get_renderer()
    return [artist.get_window_extent(renderer) for artist in artists]


def overlap(a, b, slack=1.0):
    return min(a.x1, b.x1) - max(a.x0, b.x0) > slack and min(a.y1, b.y1) - max(a.y0, b.y0) > slack


def check_layout(figure):
    """Nothing leaves the page; no text outside the axes lies on other text or on a panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Annotation

    FigureCanvasAgg(figure).draw()
    width, height = figure.canvas.get_width_height()
    texts = [text for text in figure.texts if text.get_text().strip()]
    texts += [text for one in figure.legends for text in (one.get_title(), *one.get_texts())]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        texts += [axes.xaxis.label, axes.yaxis.label, axes._left_title]
        texts += [text for text in axes.texts if isinstance(text, Annotation)]
    artists = [text for text in texts if text.get_text().strip() and text.get_visible()]
    texts = list(zip([text.get_text() for text in artists], boxes(figure, artists)))
    assert min(text.get_fontsize() for text in artists) >= 5
    panels = boxes(figure, [axes.patch for axes in figure.axes])
    for text, box in texts:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text
    for (text, box), (other, other_box) in itertools.combinations(texts, 2):
        assert not overlap(box, other_box), (text, other)
    for text, box in texts:
        assert not any(overlap(box, panel, 2.0) for panel in panels), text
    for one, other in itertools.combinations(panels, 2):
        assert not overlap(one, other)
    legends = boxes(figure, figure.legends)
    for one, other in itertools.combinations([*legends, *panels], 2):
        assert not overlap(one, other)


def test_nothing_overlaps(drawn):
    with saving.drawing():
        check_layout(drawn[1])


LAYOUTS = {
    "published": [],
    "twenty": [c for i in range(20) for c in own_cells(f"sweep_run{i}", mean=40 + i, shots=[0])],
    "long": [
        cell
        for i in range(6)
        for cell in own_cells("my_" + "long-name-" * 9 + str(i), shots=[0, 8], missing=(45,))
    ],
    "data": own_cells("my_net", datasets=["in1k", "birds_with-a-long-name", "flowers", "cog_l5"]),
    "odd_shots": own_cells("my_net", shots=[1, 5, 10, 100, 1000, 1200, 0]),
    "one": own_cells("my_net", datasets=["cog_l2"], shots=[0]),
}
#: Figures that are drawn of these cells, if not Fig. 3 beside the published numbers.
ALONE = {"odd_shots": ["fig4"], "one": ["fig3", "fig4"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_overlaps_in_odd_cases(name):
    of_paper = [] if name in ALONE else published.accuracies()
    made = figures.charts(LAYOUTS[name], of_paper, which=ALONE.get(name, ["fig3"]))
    with saving.drawing():
        for chart in [made[0], *made[-2:]]:
            figure = drawing.draw(chart)
            assert figure.get_size_inches()[0] == (3.3 if chart.single else 7.0)
            check_layout(figure)
            assert min(axes.get_position().width for axes in figure.axes) > (0.5 if chart.single else 0.12)


# ---- files --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    paths = figures.write(own_cells("my_net"), published.accuracies(), folder, which=["fig3"], singles=False)
    return folder, paths


@pytest.mark.slow
def test_files(written):
    folder, paths = written
    assert [path.name for path in paths] == [f"fig3_levels.{fmt}" for fmt in ("pdf", "png", "svg", "csv")]
    assert sorted(os.listdir(folder)) == sorted(path.name for path in paths)
    pdf = (folder / "fig3_levels.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/FontFile2" in pdf and b"/Type3" not in pdf
    assert b"CreationDate" not in pdf and b"/Subtype /Image" not in pdf
    png = (folder / "fig3_levels.png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 2100  # 7 inches
    svg = ElementTree.fromstring((folder / "fig3_levels.svg").read_bytes())
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"IN-1K", "my_net", "DINO"} <= {text.removesuffix(" †") for text in texts}
    assert not list(svg.iter("{http://www.w3.org/2000/svg}image"))
    rows = list(csv.DictReader((folder / "fig3_levels.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["model"] for row in rows} == {"my_net", *published.MODELS}


@pytest.mark.slow
def test_same_input_same_bytes(written, tmp_path, repository):
    """Also in another process, with another hash seed and a user's settings of matplotlib."""
    _folder, paths = written
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 30\nsvg.fonttype: path\naxes.grid: True\nlines.linewidth: 9\n"
    )
    code = (
        "import sys; from cog.reporting import figures; from cog.results import published\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from test_figures import own_cells\n"
        "figures.write(own_cells('my_net'), published.accuracies(), sys.argv[1], which=['fig3'], singles=False)"
    )
    env = os.environ | {
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SOURCE_DATE_EPOCH": "1000",
    }
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "again")], check=True, env=env, cwd=tmp_path)
    for path in paths:
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_settings_of_the_caller_survive():
    before = dict(matplotlib.rcParams)
    with saving.drawing():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    assert dict(matplotlib.rcParams) == before


def test_nothing_is_overwritten_unasked(tmp_path):
    (tmp_path / "fig3_levels.pdf").write_text("old")
    with pytest.raises(CogError, match=r"holds figures already \(fig3_levels.pdf\).*--overwrite"):
        figures.write(one_cell(), [], tmp_path, which=["fig3"])
    assert os.listdir(tmp_path) == ["fig3_levels.pdf"] and (tmp_path / "fig3_levels.pdf").read_text() == "old"
    figures.write(one_cell(), [], tmp_path, which=["fig3"], formats=["pdf"], overwrite=True)
    assert (tmp_path / "fig3_levels.pdf").read_bytes() != b"old"


@pytest.mark.slow
def test_files_of_odd_names(tmp_path):
    """Data set names become part of file names."""
    cells = own_cells("my_net", datasets=["a b/c", "plain"])
    paths = figures.write(cells, [], tmp_path, which=["fig4"], formats=["svg"])
    stems = ("fig4_fewshot", "fig4_fewshot_absolute_a-b-c", "fig4_fewshot_absolute_plain")
    assert {path.name for path in paths} == {stem + end for stem in stems for end in (".svg", ".csv")}
    assert all(path.parent == tmp_path for path in paths)


def test_names_of_one_family_stay_apart_beside_their_curves():
    family = ["mobilenet_v2_100", "mobilenet_v1_random", "mobilenet_v2_140_with_a_long_recipe", "short_net"]
    cells = [own_cells(name, mean=50 + index, shots=[0]) for index, name in enumerate(family)]
    (chart,) = figures.charts(itertools.chain(*cells), which=["fig3"])
    with saving.drawing():
        (axes,) = drawing.draw(chart).axes
    assert {text.get_text().replace("\n", "") for text in axes.texts} == set(family)
    assert all(len(line) <= 20 for text in axes.texts for line in text.get_text().split("\n"))


# ---- SVG for a page -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def page():
    cells = own_cells("my_<b>&net", shots=[0, 8])
    few = [cell for cell in published.accuracies() if cell.model in ("dino_resnet50", "sup_resnet50")]
    made = figures.charts(cells, few, which=["fig3", "drop"], singles=False)
    return [figures.svg(chart, prefix=f"figure-{chart.figure}") for chart in made]


def test_inline_svg_stands_alone(page):
    for text in page:
        root = ElementTree.fromstring(text)  # well-formed
        assert root.tag == f"{SVG}svg" and root.attrib["role"] == "img"
        assert "accuracy" in root.attrib["aria-label"] and "viewBox" in root.attrib
        assert not {"width", "height"} & set(root.attrib)
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags <= {"svg", "g", "path", "use", "text", "defs", "clipPath", "rect", "title"}
        links = re.findall(r"https?://[^\"' ]+", text)
        assert set(links) == {"http://www.w3.org/2000/svg"}
        families = set(re.findall(r"font-family:([^;\"]+)", text)) | set(
            re.findall(r"font:[^;\"]*px ([^;\"]+)", text)
        )
        assert families == {"sans-serif"}
        drawn = {element.text for element in root.iter(f"{SVG}text")}
        assert {"DINO", "my_<b>&net †"} <= drawn


def test_ids_do_not_collide(page):
    ids = [found for text in page for found in re.findall(r' id="([^"]*)"', text)]
    assert len(ids) == len(set(ids)) > 0
    assert all(found.startswith("figure-") for found in ids)
    for text in page:
        own = set(re.findall(r' id="([^"]*)"', text))
        referred = set(re.findall(r'href="#([^"]*)"', text)) | set(re.findall(r"url\(#([^)]*)\)", text))
        assert referred == own  # none dangling, none without use
    again = figures.svg(charts()["v1_fig5"])
    assert set(re.findall(r' id="([^"]*)"', again)).isdisjoint(ids)


def test_prefix_must_start_an_id():
    with pytest.raises(CogError, match="cannot start an id"):
        figures.svg(charts()["v1_fig5"], prefix="1 2")
