"""How figures look, and how they become files; lines and text are drawn in inks that a page exchanges for its own."""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, TypeAlias

Figure: TypeAlias = Any  # matplotlib's, which is imported where it is used
Axes: TypeAlias = Any

INK, QUIET, RULE, PAPER = "#1c1d22", "#686b76", "#dfe0e6", "#ffffff"
ON_A_PAGE = {INK: "var(--ink)", QUIET: "var(--quiet)", RULE: "var(--rule)", PAPER: "var(--paper)"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c08a00", "#56b4e9", "#8c6bb1", "#8a7f45")
HEAT = "#3d94d0"
TRAIN, TEST, GALLERY = "#56b4e9", "#d55e00", "#009e73"
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))

WIDTH, WIDE = 3.6, 7.4  # inches; two figures stand side by side, or one is wide
LONGEST = 26  # letters of a name
FEW = 16  # clusters that can be numbered one by one

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a figure is the same everywhere
    "text.color": INK,
    "text.parse_math": False,  # names may hold dollar signs
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.unicode_minus": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0,
    "figure.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "divconq",
    "image.interpolation": "nearest",
}


def draw(plot: Callable[[], Figure | None]) -> tuple[str, bytes] | None:
    """A figure as SVG and as PNG, the same every time; None if there is nothing to draw.

    >>> svg, png = draw(lambda: sheet("nothing yet")[0])
    >>> svg.startswith("<?xml"), png[1:4]
    (True, b'PNG')
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a name in a script that the font lacks
        figure = plot()
        if figure is None:
            return None
        FigureCanvasAgg(figure)
        vector, raster = io.StringIO(), io.BytesIO()
        figure.savefig(vector, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # it stays as it is
        figure.savefig(raster, format="png", dpi=200, metadata={"Software": None})
    return vector.getvalue(), raster.getvalue()


def inline(svg: str, name: str, label: str) -> str:
    """An SVG file as a part of a page: in the page's inks and font, as wide as there is room, its ids its own.

    >>> inline('<?xml?><svg width="9pt" viewBox="0 0 9 9"><g id="a"/></svg>', "loss", "Loss")
    '<svg role="img" aria-label="Loss" viewBox="0 0 9 9"><g id="loss-a"/></svg>'
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><")
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height|version|xmlns(:\w+)?)="[^"]*"', "", head)
    head = head.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    rest = re.sub(r'\bid="', f'id="{name}-', rest)
    rest = re.sub(r'(url\(|href=")#', rf"\1#{name}-", rest)
    rest = re.sub(rf"'{SETTINGS['font.family']}'[^;\"]*", "var(--sans)", rest)
    for ink, variable in ON_A_PAGE.items():
        rest = rest.replace(ink, variable)
    return f"{head}>{rest}"


def sheet(title: str, *, width: float = WIDTH, height: float = 2.5) -> tuple[Figure, Axes]:
    """An empty figure with its title, which says what is drawn and in which unit."""
    from matplotlib.figure import Figure as Paper

    figure: Figure = Paper(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=9)
    figure.get_layout_engine().set(h_pad=0.05)
    axes = figure.add_subplot()
    return figure, axes


def short(name: str) -> str:
    """A name that fits into a figure.

    >>> short("beetles"), short("a-very-long-name-of-a-training-run")
    ('beetles', 'a-very-long-n…training-run')
    """
    if len(name) <= LONGEST:
        return name
    half = LONGEST // 2
    return f"{name[:half]}…{name[1 - half :]}"


def cluster_colour(number: int) -> str:
    """The colour of a cluster, a subspace and a mask; after eight they repeat, and the number tells them apart."""
    return COLOURS[number % len(COLOURS)]


def run_colour(number: int) -> str:
    """The colour of a run: ink for the one that is looked at; others have those of the first clusters last."""
    return INK if number == 0 else COLOURS[(number + 3) % len(COLOURS)]


def run_dashes(number: int) -> str | tuple[Any, ...]:
    """How the line of a run is broken, so that eight runs and more can be told apart."""
    dashes: str | tuple[Any, ...] = DASHES[0] if number == 0 else DASHES[(number - 1) % len(DASHES)]
    return dashes


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int = 2) -> None:
    """A key below the figure; a name that begins with an underscore is shown like any other."""
    key = figure.legend(
        handles, [str(number) for number in range(len(handles))], loc="outside lower left", ncols=columns
    )
    for text, name in zip(key.get_texts(), names, strict=True):
        text.set_text(short(name))


def whole_numbers(axis: Any) -> None:  # noqa: ANN401
    """Ticks at whole numbers only: epochs, clusters."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def bars(
    values: Sequence[float], title: str, *, xlabel: str, deviation: Sequence[float] | None = None
) -> Figure:
    """A bar for each cluster, in its colour, with its deviation; what is not finite has none."""
    figure, axes = sheet(title, width=WIDTH if len(values) <= FEW else WIDE)
    heights = [value if math.isfinite(value) else 0.0 for value in values]
    axes.bar(
        range(1, len(values) + 1),
        heights,
        width=0.7,
        color=[cluster_colour(number) for number in range(len(values))],
        yerr=None if deviation is None else [value if math.isfinite(value) else 0.0 for value in deviation],
        error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2, "capthick": 0.8},
    )
    axes.set_xlabel(xlabel)
    axes.set_xlim(0.3, max(len(values), 4) + 0.7)
    if len(values) <= FEW:
        axes.set_xticks(range(1, len(values) + 1))
    else:
        whole_numbers(axes.xaxis)
    return figure


def heat_map(
    axes: Axes, values: Sequence[Sequence[float]], *, top: float, written: Callable[[float], str] | None
) -> None:
    """A matrix as cells from nothing to full colour, with its numbers written in them if there are few.

    The colour is laid over the page, so it reads on light and on dark.
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    red, green, blue, _ = to_rgba(HEAT)
    shades = LinearSegmentedColormap.from_list("heat", [(red, green, blue, 0.0), (red, green, blue, 0.8)])
    matrix = np.array(values, dtype=float)
    rows, columns = matrix.shape
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.pcolormesh(
        np.ma.masked_invalid(matrix),
        cmap=shades,
        vmin=0,
        vmax=max(top, 1e-12),
        edgecolors=RULE if rows * columns <= 300 else "none",
        linewidth=0.4,
        rasterized=rows * columns > 300,
    )
    axes.invert_yaxis()
    if written is not None and rows * columns <= 150:
        for row, column in np.ndindex(rows, columns):
            value = float(matrix[row, column])
            text = written(value) if np.isfinite(value) else "–"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5)
