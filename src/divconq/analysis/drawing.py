"""Drawing kit for figures: style, colours, common plots, and SVG and PNG output.

Figures use a few fixed colours for lines and text. On the page they become CSS variables, for light and dark mode.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Figure: TypeAlias = Any  # a matplotlib type; matplotlib is imported only for drawing
Axes: TypeAlias = Any

INK, QUIET, RULE, PAPER = "#1c1d22", "#686b76", "#dfe0e6", "#ffffff"
CSS_VARIABLES = {INK: "var(--ink)", QUIET: "var(--quiet)", RULE: "var(--rule)", PAPER: "var(--paper)"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c08a00", "#56b4e9", "#8c6bb1", "#8a7f45")
HEAT = "#3d94d0"
TRAIN, TEST, GALLERY = "#56b4e9", "#d55e00", "#009e73"
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))

WIDTH, WIDE = 3.6, 7.4  # inches, for two figures side by side and for one wide figure
LONGEST = 26  # characters of a name
FEW = 16  # clusters that are numbered one by one

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "DejaVu Sans",  # part of matplotlib, so figures are the same everywhere
    "text.color": INK,
    "text.parse_math": False,  # names may contain dollar signs
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
    """Return a figure as SVG and PNG, or None if ``plot`` returns None. The output is deterministic.

    >>> svg, png = draw(lambda: new_figure("empty")[0])
    >>> svg.startswith("<?xml"), png[1:4]
    (True, b'PNG')
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name may use a script that the font lacks
        figure = plot()
        if figure is None:
            return None
        FigureCanvasAgg(figure)
        vector, raster = io.StringIO(), io.BytesIO()
        figure.savefig(vector, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # keep the layout of the SVG
        figure.savefig(raster, format="png", dpi=200, metadata={"Software": None})
    return vector.getvalue(), raster.getvalue()


@dataclass(frozen=True)
class InlineSvg:
    """The content of an SVG file for use inside a page, and its view box."""

    view_box: str
    body: str

    @property
    def is_wide(self) -> bool:
        """Return whether the figure takes the whole width of the page."""
        return float(self.view_box.split()[2]) > 400


def inline(svg: str, name: str) -> InlineSvg:
    """Return an SVG file for use in a page, with CSS colours, the font of the page, and ids that start with ``name``.

    >>> inline('<?xml?><svg width="9pt" viewBox="0 0 9 9"><g id="a"/></svg>', "loss")
    InlineSvg(view_box='0 0 9 9', body='<g id="loss-a"/>')
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    head, body = re.sub(r"\s+", " ", svg).replace("> <", "><").split(">", 1)
    body = body.strip().removesuffix("</svg>")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    body = re.sub(rf"'{SETTINGS['font.family']}'[^;\"]*", "var(--sans)", body)
    for colour, variable in CSS_VARIABLES.items():
        body = body.replace(colour, variable)
    return InlineSvg(head.split('viewBox="', 1)[1].split('"', 1)[0], body)


def new_figure(title: str, *, width: float = WIDTH, height: float = 2.5) -> tuple[Figure, Axes]:
    """Return an empty figure with a title, and its axes."""
    figure, (axes,) = new_grid(title, 1, 1, width=width, height=height)
    return figure, axes


def new_grid(
    title: str, panels: int, columns: int, *, width: float = WIDE, height: float
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with a title, and the axes of its panels, row by row."""
    from matplotlib.figure import Figure as MatplotlibFigure

    figure: Figure = MatplotlibFigure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", fontsize=9)
    figure.get_layout_engine().set(h_pad=0.05)
    rows = math.ceil(panels / columns)
    return figure, [figure.add_subplot(rows, columns, 1 + panel) for panel in range(panels)]


def short(name: str) -> str:
    """Return a name of at most ``LONGEST`` characters.

    >>> short("beetles"), short("a-very-long-name-of-a-training-run")
    ('beetles', 'a-very-long-n…training-run')
    """
    if len(name) <= LONGEST:
        return name
    half = LONGEST // 2
    return f"{name[:half]}…{name[1 - half :]}"


def cluster_colour(number: int) -> str:
    """Return the colour of a cluster, its subspace and its mask. There are eight colours, which repeat."""
    return COLOURS[number % len(COLOURS)]


def run_colour(number: int) -> str:
    """Return the colour of a run. The first run has the colour of text."""
    return INK if number == 0 else COLOURS[(number + 3) % len(COLOURS)]


def run_dashes(number: int) -> str | tuple[Any, ...]:
    """Return the line style of a run."""
    dashes: str | tuple[Any, ...] = DASHES[0] if number == 0 else DASHES[(number - 1) % len(DASHES)]
    return dashes


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int = 2) -> None:
    """Add a legend below the figure. It also shows names that start with an underscore."""
    key = figure.legend(
        handles, [str(number) for number in range(len(handles))], loc="outside lower left", ncols=columns
    )
    for text, name in zip(key.get_texts(), names, strict=True):
        text.set_text(short(name))


def whole_numbers(axis: Any) -> None:  # noqa: ANN401
    """Put ticks at integers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def bars(
    values: Sequence[float], title: str, *, xlabel: str, deviation: Sequence[float] | None = None
) -> Figure:
    """Draw a bar for each cluster in its colour, with error bars. Values that are not finite have no bar."""
    figure, axes = new_figure(title, width=WIDTH if len(values) <= FEW else WIDE)
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
    """Draw a matrix as coloured cells, with the numbers in them if there are few.

    Low values are transparent, so the cells work in light and dark mode.
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


def number_rows(axes: Axes, k: int) -> None:
    """Number the rows of a heat map from 1, each in the colour of its cluster."""
    every = math.ceil(k / FEW)
    places = range(0, k, every)
    axes.set_yticks([place + 0.5 for place in places], [str(place + 1) for place in places])
    for place, label in zip(places, axes.get_yticklabels(), strict=True):
        label.set_color(cluster_colour(place))
        label.set_fontweight("bold")


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a plot, from top to bottom."""
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(True, axis="both")
    axes.spines["left"].set_visible(False)
