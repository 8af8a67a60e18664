"""The pieces of the page: figures, pictures, tables, notes. Whatever a user can name is escaped here."""

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from divconq.analysis.definitions import DEFINITIONS
from divconq.analysis.findings import Found, Shown, Split
from divconq.analysis.style import COLOURS, inline

HEIGHT = 76  # of a picture, in CSS pixels
WIDEST = 2.0  # width / height of a picture; what is wider is cut

RIGHT, WRONG = "✓", "✗"


@dataclass(frozen=True)
class Material:
    """What a page is made of besides words: figures as SVG by name, pictures as JPEG by split and index."""

    svgs: Mapping[str, str]
    pictures: Mapping[tuple[Split, int], bytes]

    def figures(self, captions: Mapping[str, str]) -> str:
        """The figures of these names that were drawn, side by side where there is room, each with its caption."""
        drawn = [self._figure(name, caption) for name, caption in captions.items() if name in self.svgs]
        return f'<div class="figures">{"".join(drawn)}</div>' if drawn else ""

    def _figure(self, name: str, caption: str) -> str:
        svg = inline(self.svgs[name], name, caption)
        wide = _width(svg) > 400
        scroll = f'<div class="scroll" tabindex="0">{svg}</div>' if wide else svg
        kind = ' class="wide"' if wide else ""
        return f'<figure id="{name}"{kind}>{scroll}<figcaption>{escape(caption)}</figcaption></figure>'

    def image(self, shown: Shown, *, kind: str = "", mark: str = "", says: str = "") -> str:
        """One picture with its border and its mark; a box with the name of its class if there is no picture."""
        about = f"{shown.label}{says}, {shown.path}"
        badge = f"<b>{escape(mark)}</b>" if mark else ""
        jpeg = self.pictures.get((shown.split, shown.index))
        if jpeg is None:
            inside = f'<span class="none" style="width:{HEIGHT}px">{escape(shown.label)}</span>'
        else:
            inside = (
                f'<img src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}" alt="{escape(about)}" '
                f'width="{_shown_width(jpeg)}" height="{HEIGHT}" loading="lazy" decoding="async">'
            )
        return f'<li class="tile {kind}" title="{escape(about)}">{inside}{badge}</li>'

    def plain(self, images: Iterable[Shown]) -> str:
        """Pictures in a row, without a mark."""
        return tiles(self.image(shown) for shown in images)

    def by_cluster(self, images: Iterable[Shown]) -> str:
        """Pictures in a row, bordered by the colour of their cluster and marked with its number."""
        return tiles(
            self.image(shown)
            if shown.cluster is None
            else self.image(
                shown,
                kind=cluster_class(shown.cluster),
                mark=str(shown.cluster + 1),
                says=f", in cluster {shown.cluster + 1}",
            )
            for shown in images
        )

    def found(self, found: Iterable[Found]) -> str:
        """Pictures that were found, bordered green or red and marked ✓ or ✗."""
        return tiles(
            self.image(
                one.image,
                kind="right" if one.right else "wrong",
                mark=RIGHT if one.right else WRONG,
                says=", of the query's class" if one.right else ", of another class",
            )
            for one in found
        )


def tiles(items: Iterable[str]) -> str:
    """Pictures in a row that wraps."""
    return f'<ul class="tiles">{"".join(items)}</ul>'


def cluster_class(number: int) -> str:
    """The CSS class that gives the colour of a cluster."""
    return f"c{number % len(COLOURS)}"


def cluster_name(number: int, word: str = "cluster") -> str:
    """A cluster's number on a patch of its colour.

    >>> cluster_name(1)
    '<span class="patch c1">cluster 2</span>'
    """
    return f'<span class="patch {cluster_class(number)}">{word} {number + 1}</span>'


def block(body: str, *definitions: str) -> str:
    """A part of a section, and beside it the definitions of its measures."""
    notes = "".join(_note(name) for name in definitions)
    aside = f'<aside class="notes">{notes}</aside>' if notes else ""
    return f'<div class="block"><div class="body">{body}</div>{aside}</div>'


def paragraphs(sentences: Iterable[str]) -> str:
    """Sentences as a paragraph; nothing without any."""
    text = " ".join(escape(sentence) for sentence in sentences)
    return f"<p>{text}</p>" if text else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the rows; it scrolls by itself if it is too wide.

    >>> table(["run", "R@1"], [["a<b", "78.1"]])[-78:]
    '<tbody><tr><th scope="row">a&lt;b</th><td>78.1</td></tr></tbody></table></div>'
    """
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def number(value: float | None, digits: int = 2) -> str:
    """A number with so many digits after the point; a dash if there is none.

    >>> number(0.12345), number(float("nan")), number(1234, 0), number(None)
    ('0.12', '–', '1,234', '–')
    """
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent; a dash if there is none.

    >>> percent(0.7812), percent(float("nan"))
    ('78.1%', '–')
    """
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}%"


def count(n: int, one: str, more: str | None = None) -> str:
    """So many of something.

    >>> count(1, "class", "classes"), count(2400, "image")
    ('1 class', '2,400 images')
    """
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def _note(name: str) -> str:
    note = DEFINITIONS[name]
    formula = f'<p class="formula">{note.formula}</p>' if note.formula else ""
    return (
        f'<div class="note"><h4>{note.title}</h4><p>{note.text}</p>{formula}'
        f'<p class="where">{escape(note.where)}</p></div>'
    )


def _width(svg: str) -> float:
    """How wide a figure is, in points."""
    return float(svg.split('viewBox="', 1)[1].split('"', 1)[0].split()[2])


def _shown_width(jpeg: bytes) -> int:
    from PIL import Image

    with Image.open(io.BytesIO(jpeg)) as picture:
        width, height = picture.size
    return max(1, round(HEIGHT * min(width / height, WIDEST)))
