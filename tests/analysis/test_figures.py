import dataclasses
import re
import xml.etree.ElementTree as ET
from functools import partial

import matplotlib
import pytest
import torch

import made_up_findings as made_up
from divconq.analysis.chapters import CHAPTERS
from divconq.analysis.drawing import (
    COLOURS,
    CSS_VARIABLES,
    INK,
    draw,
    inline,
    legend,
    new_figure,
    run_colour,
)
from divconq.analysis.report.assemble import draw_figures
from divconq.analysis.report.page import make_environment

UNTOUCHED = (
    "recall",
    "map-at-r",
    "loss",
    "k",
    "generalisation",
    "seconds",
    "masks",
    "umap-classes",
    "umap-splits",
    "umap-runs-classes",
    "umap-runs-splits",
)
PLOTS = {name: (chapter.name, plot.draw) for chapter in CHAPTERS for name, plot in chapter.plots.items()}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def figures():
    return made_up.drawn(made_up.full())


def plotted(name, findings):
    """The matplotlib figure with this name."""
    chapter, plot = PLOTS[name]
    return plot(findings.chapters[chapter])


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_complete_findings_give_every_figure(figures):
    assert list(figures) == list(PLOTS)
    for name, (svg, png) in figures.items():
        assert ET.fromstring(svg).tag == f"{SVG}svg", name
        assert png.startswith(b"\x89PNG"), name


def test_figures_are_reproducible_and_have_no_date(figures):
    again = draw(lambda: plotted("recall", made_up.full()))
    assert again == figures["recall"]
    assert "<dc:date>" not in figures["recall"][0]


def test_drawing_does_not_change_matplotlib_settings():
    before = dict(matplotlib.rcParams)
    draw(lambda: plotted("loss", made_up.full()))
    assert dict(matplotlib.rcParams) == before


def test_a_run_with_one_cluster_has_no_cluster_figures():
    drawn = set(made_up.drawn(made_up.one_cluster()))
    assert {"recall", "k", "masks", "variances", "umap-classes"} <= drawn
    assert not {name for name in drawn if name.startswith("cluster-")}
    assert not drawn & {"mask-cosine", "mask-shared", "mask-mass", "subspace-recall"}


def test_empty_findings_give_no_figures():
    assert draw_figures(made_up.nothing()) == {}


def test_empty_clusters_and_nan_are_drawn_as_gaps():
    nan = float("nan")
    full = made_up.full()
    step = dataclasses.replace(
        full.chapters["clusters"].divisions[-1], sizes=(0, 10, 10, 10), kept=nan, nmi_previous=nan
    )
    factors = dataclasses.replace(
        full.chapters["clusters"].factors,
        values=torch.cat([torch.full((1, 6), nan), full.chapters["clusters"].factors.values[1:]]),
    )
    clusters = dataclasses.replace(
        full.chapters["clusters"],
        divisions=(step,),
        mean_size=(nan,) * 4,
        deviation=(nan,) * 4,
        factors=factors,
    )
    subspaces = dataclasses.replace(full.chapters["subspaces"], recalls=(nan,) * 4, final_recall=nan)
    points = dataclasses.replace(full.chapters["spaces"][0].train, effective_dimension=None, ratio=nan)
    space = dataclasses.replace(
        full.chapters["spaces"][0], train=points, test=points, cluster_dimensions=(None,) * 4
    )
    gaps = made_up.replaced(full, {"clusters": clusters, "subspaces": subspaces, "spaces": (space,)})
    drawn = {name: draw(partial(plotted, name, gaps)) for name in PLOTS if name not in UNTOUCHED}
    drawn = {name: figure for name, figure in drawn.items() if figure is not None}
    assert not drawn.keys() & {"cluster-kept", "ratio", "effective-dimension", "cluster-dimensions"}
    assert texts(drawn["cluster-factors"][0]).count("–") == 6


def test_a_cluster_has_the_same_colour_in_all_figures(figures):
    for name in ("cluster-sizes", "cluster-mean-sizes", "mask-mass", "subspace-recall", "cluster-dimensions"):
        used = re.findall(r"fill: (#\w{6})", figures[name][0])
        assert [colour for colour in dict.fromkeys(used) if colour in COLOURS[:4]], name
        assert set(COLOURS[:4]) <= set(used), name


def test_the_legend_shows_every_run_name():
    names = ("_hidden", "$a_1$ & <b>")
    runs = tuple(made_up.training(name, seed=seed) for seed, name in enumerate(names))
    svg, _ = draw(lambda: plotted("recall", made_up.replaced(made_up.full(), {"training": runs})))
    assert set(names) <= set(texts(svg))


def test_figures_of_many_clusters_and_classes_stay_small():
    drawn = made_up.drawn(made_up.many())
    assert list(drawn) == list(PLOTS)
    for name, (svg, _) in drawn.items():
        assert len(svg) < 700_000, name


def test_mask_columns_are_sorted_by_their_largest_weight():
    masks = ((0.0, 1.0, 0.2, 0.9), (1.0, 0.0, 0.8, 0.0))
    full = made_up.full()
    figure = []

    def plot():
        only = dataclasses.replace(full.chapters["subspaces"], masks=masks)
        figure.append(plotted("masks", made_up.replaced(full, {"subspaces": only})))
        return figure[0]

    draw(plot)
    drawn = figure[0].axes[0].collections[0].get_array()
    assert drawn.reshape(2, 4).tolist() == [[1.0, 0.9, 0.0, 0.2], [0.0, 0.0, 1.0, 0.8]]


def test_inline_figures_use_css_colours_and_unique_ids(figures):
    shown = inline(figures["recall"][0], "recall").body
    ids = re.findall(r'\bid="([^"]+)"', shown)
    assert ids
    assert all(name.startswith("recall-") for name in ids)
    for reference in re.findall(r'(?:url\(|href=")#([^")]+)', shown):
        assert reference in ids
    for ink in CSS_VARIABLES:
        assert ink not in shown
    assert "var(--ink)" in shown
    assert "var(--sans)" in shown
    assert "DejaVu" not in shown
    assert INK in figures["recall"][0], "the file keeps its colours"
    environment = make_environment({"recall": figures["recall"][0]}, {})
    environment.globals["captions"] = {"recall": 'R@1 "of" a <run>'}
    html = environment.get_template("macros.html").module.figure_row(["recall"])
    assert 'aria-label="R@1 &#34;of&#34; a &lt;run&gt;"' in html
    assert shown in html


def test_a_legend_needs_a_name_for_each_line():
    def plot():
        figure, axes = new_figure("two lines")
        legend(figure, axes.plot([0, 1], [0, 1]), ["one", "two"])
        return figure

    with pytest.raises(ValueError, match="zip"):
        draw(plot)


def test_consistency_has_a_line_for_each_run_in_its_colour():
    figure = plotted("consistency-nmi", made_up.full())
    (axes,) = figure.axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[4, 6, 8], [6, 9]]
    assert list(axes.lines[0].get_ydata()) == [0.3, 0.4, 0.5]
    assert [line.get_color() for line in axes.lines] == [run_colour(1), run_colour(0)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["E = 2", "E = 3"]
    kept = plotted("consistency-kept", made_up.full()).axes[0]
    assert list(kept.lines[0].get_ydata()) == pytest.approx([60, 70, 65])


def test_one_run_has_no_figures_of_several(figures):
    full = made_up.full()
    alone = made_up.replaced(
        full,
        {
            "clusters": dataclasses.replace(full.chapters["clusters"], consistency=()),
            "map": dataclasses.replace(full.chapters["map"], runs=()),
        },
    )
    several = {"consistency-nmi", "consistency-kept", "umap-runs-classes", "umap-runs-splits"}
    assert several <= set(figures)
    assert {name for name in several if plotted(name, alone) is not None} == set()


@pytest.mark.parametrize(("runs", "grid"), [(2, (1, 2)), (3, (1, 3)), (4, (1, 4)), (6, (2, 3)), (7, (2, 4))])
def test_maps_of_several_runs_have_the_same_colours_side_by_side(runs, grid):
    full = made_up.full()
    plane = full.chapters["map"]
    planes = tuple(dataclasses.replace(plane.runs[0], name=f"K_max = {2**place}") for place in range(runs))
    findings = made_up.replaced(full, {"map": dataclasses.replace(plane, runs=planes)})
    for name, images in (("umap-runs-classes", plane.splits.count("train")), ("umap-runs-splits", 600)):
        panels = plotted(name, findings).axes
        assert [axes.get_title() for axes in panels] == [run.name for run in planes]
        assert panels[0].get_subplotspec().get_gridspec().get_geometry() == grid
        dots = [axes.collections[0] for axes in panels]
        assert {len(each.get_offsets()) for each in dots} == {images}
        assert all((each.get_facecolors() == dots[0].get_facecolors()).all() for each in dots)


def test_a_map_by_pca_says_so():
    full = made_up.full()
    plane = dataclasses.replace(full.chapters["map"], method="PCA")
    titles = [
        plotted(name, made_up.replaced(full, {"map": plane})).get_suptitle()
        for name in ("umap-classes", "umap-splits", "umap-runs-classes", "umap-runs-splits")
    ]
    assert [title.split()[0] for title in titles] == ["PCA"] * 4
