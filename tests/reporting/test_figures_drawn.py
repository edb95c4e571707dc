"""Every figure drawn: the data in it, layout, legend, and files of each format."""

from __future__ import annotations

import csv
import functools
import itertools
import math
import os
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import pytest
import test_figures_experiments as experiments
from marks import first_quick
from test_figures import own_cells

from cog.reporting import figures
from cog.reporting.figures import drawing, saving
from cog.results import published

pytestmark = pytest.mark.usefixtures("seen_in1k_alone")


@functools.cache
def charts():
    """Every figure by name: own models with gaps among the published ones, or numbers of experiments."""
    cells = [c for c in own_cells("my_net") if (c.dataset, c.n_shot) not in {("cog_l3", 0), ("cog_l5", 4)}]
    cells += own_cells("other_net", mean=50, missing=(37,))
    made = figures.charts(cells, published.accuracies())
    measures = [*experiments.own(), *experiments.own("mini_other", shift=0.1)]
    made += figures.charts([], [], measures=measures)
    return {chart.figure: chart for chart in made}


_QUICK = ("v1_fig10", "knn", "levels")


@pytest.fixture(
    scope="module", params=first_quick(len(_QUICK), sorted(figures.names(), key=lambda n: n not in _QUICK))
)
def drawn(request):
    """One chart, and the figure drawn of it."""
    chart = charts()[request.param]
    with saving.drawing():
        return chart, drawing.draw(chart)


def same(a, b):
    return len(a) == len(b) and all((math.isnan(x) and math.isnan(y)) or x == y for x, y in zip(a, b))


def test_artists_carry_the_data(drawn):
    """A line for each curve in its place on the axis, with gaps, and one for each error bar."""
    chart, figure = drawn
    for axes, panel in zip(figure.axes, chart.panels(), strict=True):
        assert list(panel.ticks or axes.get_xticks()) == list(axes.get_xticks())
        for series in panel.series:
            (line,) = (line for line in axes.get_lines() if line.get_label() == series.curve.label)
            x = list(panel.ticks) or [point.x for point in series.points]
            assert list(line.get_xdata()) == x and same(list(line.get_ydata()), series.values(x))
        bars = sum(point.std > 0 for series in panel.series for point in series.points)
        intervals = sum(point.low < point.high for series in panel.series for point in series.points)
        assert sum(len(lines.get_segments()) for lines in axes.collections) == bars + intervals
        low, high = axes.get_ylim()
        assert all(low <= point.value <= high for series in panel.series for point in series.points)


def test_panels_that_are_compared_share_their_scale(drawn):
    chart, figure = drawn
    scales = {}
    for axes, panel in zip(figure.axes, chart.panels(), strict=True):
        scales.setdefault(panel.y_group, set()).add(axes.get_ylim())
    assert all(len(limits) == 1 for limits in scales.values())


def test_legend_has_every_named_curve_once(drawn):
    chart, figure = drawn
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    named = [curve.label for curve in chart.curves() if curve.named]
    unnamed = sum(not curve.named for curve in chart.curves())
    assert sorted(labels) == sorted(named + [f"{unnamed} more (Published models)"] * bool(unnamed))
    assert " ".join(legend.get_title().get_text().split()) == " ".join(chart.notes)
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in legend.legend_handles]
    assert len(set(looks)) == len(labels), "two curves look alike"


def overlap(a, b, slack=1.0):
    return min(a.x1, b.x1) - max(a.x0, b.x0) > slack and min(a.y1, b.y1) - max(a.y0, b.y0) > slack


def check_layout(figure):
    """Nothing leaves the page; panels and legend lie beside each other; no label of an axis on another."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    width, height = figure.canvas.get_width_height()
    texts = [text for one in figure.legends for text in one.get_texts()]
    labels = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            labels.append([tick for tick in ticks if tick.get_visible() and tick.get_text()])
        texts += [axes.xaxis.label, axes.yaxis.label, *axes.texts, *itertools.chain(*labels[-2:])]
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= -2 and box.y0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2, text
    for ticks in labels:
        for one, other in itertools.pairwise(tick.get_window_extent() for tick in ticks):
            assert not overlap(one, other)
    boxes = [axes.patch.get_window_extent() for axes in figure.axes]
    (legend,) = figure.legends
    for one, other in itertools.combinations([*boxes, legend.get_window_extent()], 2):
        assert not overlap(one, other)
    assert legend.get_window_extent().width <= width
    for text in itertools.chain([axes.xaxis.label for axes in figure.axes], *labels):
        assert not overlap(text.get_window_extent(), legend.get_window_extent()), text


def test_nothing_overlaps(drawn):
    with saving.drawing():
        check_layout(drawn[1])


LAYOUTS = {
    "twenty": [c for i in range(20) for c in own_cells(f"sweep_run{i}", mean=40 + i, shots=[0])],
    "long": [
        cell
        for i in range(6)
        for cell in own_cells("my_" + "long-name-" * 9 + str(i), shots=[0, 8], missing=(45,))
    ],
    "data": own_cells("my_net", datasets=["in1k", "birds_with-a-long-name", "flowers", "cog_l5"]),
    "one": own_cells("my_net", datasets=["cog_l2"], shots=[0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_nothing_overlaps_in_odd_cases(name):
    of_paper = [] if name == "one" else published.accuracies()
    (chart,) = figures.charts(LAYOUTS[name], of_paper, which=["fig3"])
    with saving.drawing():
        figure = drawing.draw(chart)
        assert figure.get_size_inches()[0] == (3.3 if chart.single else 7.0)
        check_layout(figure)
        assert min(axes.get_position().width for axes in figure.axes) > (0.4 if chart.single else 0.1)


# ---- files --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    paths = figures.write(own_cells("my_net"), published.accuracies(), folder, which=["levels"])
    return folder, paths


def test_files(written):
    folder, paths = written
    assert [path.name for path in paths] == [f"levels.{fmt}" for fmt in ("pdf", "png", "svg", "csv")]
    assert sorted(os.listdir(folder)) == sorted(path.name for path in paths)
    pdf = (folder / "levels.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and b"/FontFile2" in pdf and b"/Type3" not in pdf
    assert b"CreationDate" not in pdf and b"/Subtype /Image" not in pdf
    png = (folder / "levels.png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 990  # 3.3 inches
    svg = ElementTree.fromstring((folder / "levels.svg").read_bytes())
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"IN-1K", "my_net"} <= {text.removesuffix(" †") for text in texts}
    rows = list(csv.DictReader((folder / "levels.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["model"] for row in rows} == {"my_net", *published.MODELS}


@pytest.mark.slow
def test_same_input_same_bytes(written, tmp_path):
    """Also in another process, with another hash seed and a user's settings of matplotlib."""
    _folder, paths = written
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 30\nsvg.fonttype: path\naxes.grid: True\nlines.linewidth: 9\n"
    )
    code = (
        "import sys; from cog.reporting import figures; from cog.results import published\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from test_figures import own_cells\n"
        "figures.write(own_cells('my_net'), published.accuracies(), sys.argv[1], which=['levels'])"
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
