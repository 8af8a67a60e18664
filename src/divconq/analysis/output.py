"""The files of an analysis: numbers, figures, and the page; each is written whole or not at all."""

from collections.abc import Mapping
from pathlib import Path

from divconq.analysis.findings import Findings, Split, to_json
from divconq.analysis.page import page
from divconq.analysis.plots import PLOTS, draw_all
from divconq.io.atomic import write_atomically


def write_report(findings: Findings, pictures: Mapping[tuple[Split, int], bytes], out: Path) -> Path:
    """Write ``analysis.json``, ``figures/`` (PNG and SVG) and ``report.html`` into a folder; the path of the last.

    Figures of an earlier analysis in the same folder are replaced, or removed if they cannot be drawn any more.
    """
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw_all(findings)
    html = page(findings, {name: svg for name, (svg, _) in figures.items()}, pictures)
    _write(out / "analysis.json", to_json(findings).encode())
    for name in PLOTS:
        svg, png = folder / f"{name}.svg", folder / f"{name}.png"
        if name in figures:
            _write(svg, figures[name][0].encode())
            _write(png, figures[name][1])
        else:
            svg.unlink(missing_ok=True)
            png.unlink(missing_ok=True)
    report = out / "report.html"
    _write(report, html.encode())
    return report


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda place: place.write_bytes(content))
