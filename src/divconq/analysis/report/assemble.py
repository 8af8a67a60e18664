"""Create ``report.html``, ``analysis.json`` and ``figures/`` from run folders."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from divconq.accel.device import pick_device
from divconq.analysis.chapters import CHAPTERS
from divconq.analysis.drawing import draw
from divconq.analysis.report.findings import Findings, collect_findings, to_json
from divconq.analysis.report.page import render_page
from divconq.analysis.report.thumbnails import Thumbnails, make_thumbnails
from divconq.analysis.run_record import Which, read_run
from divconq.analysis.study import Say, Study
from divconq.io.atomic import write_atomically
from divconq.model import import_file


def analyse(
    folders: Sequence[Path],
    *,
    which: Which = "last",
    device: str = "auto",
    module: Path | None = None,
    accept_changes: bool = False,
    say: Say = lambda line: None,
) -> tuple[Findings, Thumbnails]:
    """Analyse the run in the first folder, and compare the runs in the others with it.

    Returns the findings and a thumbnail of every image in them. ``module`` is a Python file to execute
    first, for example to register a backbone. ``accept_changes`` allows test images that have changed since the
    training. ``say`` receives progress messages. The function writes only the
    cached embeddings, into each run folder.
    """
    if module is not None:
        import_file(module)
    distinct = list({folder.resolve(): folder for folder in folders}.values())
    study = Study(
        [read_run(folder) for folder in distinct],
        which=which,
        device=pick_device(device),
        accept_changes=accept_changes,
        say=say,
    )
    findings = collect_findings(study)
    say("thumbnails")
    return findings, make_thumbnails(findings, study.images)


def draw_figures(findings: Findings) -> dict[str, tuple[str, bytes]]:
    """Return every figure that can be drawn as SVG and PNG, by name."""
    drawn = {}
    for chapter in CHAPTERS:
        result = findings.chapters[chapter.name]
        for name, plot in chapter.plots.items() if result else ():
            drawn[name] = draw(partial(plot.draw, result))
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_report(findings: Findings, thumbnails: Thumbnails, out: Path) -> Path:
    """Write ``analysis.json``, ``figures/`` (PNG and SVG) and ``report.html`` into a folder.

    Returns the path of the page. Figures of an earlier analysis are replaced or removed.
    """
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw_figures(findings)
    page = render_page(findings, {name: svg for name, (svg, _) in figures.items()}, thumbnails)
    _write(out / "analysis.json", to_json(findings).encode())
    for name in (name for chapter in CHAPTERS for name in chapter.plots):
        svg, png = folder / f"{name}.svg", folder / f"{name}.png"
        if name in figures:
            _write(svg, figures[name][0].encode())
            _write(png, figures[name][1])
        else:
            svg.unlink(missing_ok=True)
            png.unlink(missing_ok=True)
    _write(out / "report.html", page.encode())
    return out / "report.html"


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda place: place.write_bytes(content))
