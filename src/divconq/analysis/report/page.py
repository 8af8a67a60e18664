"""Render the report as one HTML page without external files or scripts."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from divconq.analysis.chapters import CHAPTERS
from divconq.analysis.drawing import COLOURS, inline
from divconq.analysis.report.findings import Findings
from divconq.analysis.report.thumbnails import Thumbnails
from divconq.analysis.subject import ImageRef
from divconq.analysis.words import count, duration, number, percent

HEIGHT = 76  # of an image on the page, in CSS pixels
WIDEST = 2.0  # width / height; a wider image is cropped


def render_page(findings: Findings, svgs: Mapping[str, str], thumbnails: Thumbnails) -> str:
    """Return the report as HTML. ``svgs`` are the figures by name, ``thumbnails`` the images."""
    environment = make_environment(svgs, thumbnails)
    sections = {}
    for chapter in CHAPTERS:
        result = findings.chapters[chapter.name]
        template = environment.get_template(chapter.template.name)
        sections[chapter.name] = template.render({chapter.name: result}) if result else None
    return environment.get_template("report.html").render(
        findings=findings, chapters=CHAPTERS, sections=sections, summary=summarise(findings)
    )


def summarise(findings: Findings) -> dict[str, list[str]]:
    """Return the sentences of each chapter by its title; chapters without sentences are left out."""
    said = {}
    for chapter in CHAPTERS:
        result = findings.chapters[chapter.name]
        said[chapter.title] = list(chapter.summary(result)) if result else []
    return {title: sentences for title, sentences in said.items() if sentences}


def make_environment(svgs: Mapping[str, str], thumbnails: Thumbnails) -> Environment:
    """Return a Jinja2 environment for the templates of one page. It escapes all names from users."""
    folders = dict.fromkeys([Path(__file__).parent, *(chapter.template.parent for chapter in CHAPTERS)])
    environment = Environment(
        loader=FileSystemLoader(list(folders)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    captions = {name: plot.caption for chapter in CHAPTERS for name, plot in chapter.plots.items()}
    figures = {name: inline(svg, name) for name, svg in svgs.items()}

    def picture(ref: ImageRef) -> tuple[str, int] | None:
        """Return the data and width of an image; None if it has no thumbnail."""
        jpeg = thumbnails.get((ref.split, ref.index))
        return None if jpeg is None else (base64.b64encode(jpeg).decode(), _width(jpeg))

    environment.filters |= {
        "number": number,
        "percent": percent,
        "count": count,
        "duration": duration,
        "picture": picture,
    }
    environment.globals |= {
        "figures": figures,
        "captions": captions,
        "height": HEIGHT,
        "cluster_colours": COLOURS,
    }
    return environment


def _width(jpeg: bytes) -> int:
    from PIL import Image

    with Image.open(io.BytesIO(jpeg)) as picture:
        width, height = picture.size
    return max(1, round(HEIGHT * min(width / height, WIDEST)))
