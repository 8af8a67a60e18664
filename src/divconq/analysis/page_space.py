"""The sections of the page on the space and on errors."""

from collections.abc import Sequence
from html import escape

from divconq.analysis.findings import Confused, Duplicate, Findings, Mislabelled, Space, Worst
from divconq.analysis.markup import Material, block, count, number, paragraphs, percent, table, tiles
from divconq.analysis.page_division import ABSENT

HEAD = [
    "run",
    "images",
    "eff. dim.",
    "intra",
    "inter",
    "ratio",
    "ED₁",
    "on sphere",
    "ED₁₀",
    "on sphere",
    "hubness",
]


def space_section(findings: Findings, material: Material) -> str:
    """How the images lie in the space of each run."""
    if not findings.spaces and findings.map is None:
        return block(ABSENT)
    several = len(findings.spaces) > 1
    rows = [row for space in findings.spaces for row in _geometry(space, several=several)]
    dimension = material.figures(
        {
            "effective-dimension": "Effective dimension of the training images, and the mean of the clusters.",
            "cluster-dimensions": "Effective dimension of each cluster in its subspace.",
        }
    )
    variances = material.figures(
        {
            "variances": "Variance within and between classes.",
            "ratio": "Distance to the nearest positive over that to the nearest negative.",
        }
    )
    expected = material.figures(
        {"expected-distances": "Expected distance to the nearest and the ten nearest."}
    )
    parts = [
        block(table(HEAD, rows) + paragraphs(_sampled(findings.spaces)), "hubness") if rows else "",
        block(dimension, "effective dimension") if dimension else "",
        block(variances, "variances", "ratio") if variances else "",
        block(expected, "expected distance") if expected else "",
        _map(findings, material),
    ]
    return "".join(parts)


def errors_section(findings: Findings, material: Material) -> str:
    """Where search fails, and what may be wrong with the data."""
    errors = findings.errors
    if errors is None:
        return block(ABSENT)
    return "".join(
        [
            _list("Worst queries", [_worst(one, material) for one in errors.worst], "worst"),
            _list("Confused classes", [_confused(one, material) for one in errors.confused], "confused"),
            _list(
                "Likely label errors",
                [_mislabelled(one, material) for one in errors.mislabelled],
                "mislabelled",
            ),
            _list("Near-duplicates", [_duplicate(one, material) for one in errors.duplicates], "duplicates"),
        ]
    )


def _sampled(spaces: Sequence[Space]) -> list[str]:
    """A sentence for each split of which not all images have searched."""
    return [
        f"Ratio, ED and hubness of {space.name}, {split}, are those of {points.queries:,} images, drawn at random, "
        "that searched all the others."
        for space in spaces
        for split, points in (("train", space.train), ("test", space.test))
        if points.queries < points.images
    ]


def _geometry(space: Space, *, several: bool) -> list[list[str]]:
    return [
        [
            f"{space.name}, {split}" if several else split,
            number(points.images, 0),
            number(points.effective_dimension, 0),
            number(points.intra, 3),
            number(points.inter, 3),
            number(points.ratio, 3),
            number(points.ed1, 3),
            number(points.sphere_ed1, 3),
            number(points.ed10, 3),
            number(points.sphere_ed10, 3),
            number(points.hubness, 2),
        ]
        for split, points in (("train", space.train), ("test", space.test))
    ]


def _map(findings: Findings, material: Material) -> str:
    drawn = material.figures(
        {
            "umap-classes": "Training images by class.",
            "umap-splits": "Training images and test images.",
        }
    )
    if findings.map is None or not drawn:
        return block(
            '<h3>Map</h3><p class="absent">There is no map: see <a href="#missing">what is missing</a>.</p>'
        )
    shown = len(findings.map.points)
    sample = (
        paragraphs([f"A sample: {shown:,} of {count(findings.map.of, 'image')}."])
        if shown < findings.map.of
        else ""
    )
    return block(f"<h3>Map</h3>{drawn}{sample}", "map")


def _list(title: str, items: list[str], definition: str) -> str:
    shown = f'<div class="cases">{"".join(items)}</div>' if items else '<p class="absent">None was found.</p>'
    return block(f"<h3>{title}</h3>{shown}", definition)


def _case(says: str, pictures: str, *, narrow: bool = False) -> str:
    return f'<div class="case{" narrow" if narrow else ""}"><p>{says}</p>{pictures}</div>'


def _worst(one: Worst, material: Material) -> str:
    says = f"<b>{escape(one.query.label)}</b>: the first of its class comes at rank {one.rank:,}"
    query = tiles([material.image(one.query, mark="?")])
    return _case(says, f'<div class="pair">{query}{material.found(one.found)}</div>')


def _confused(one: Confused, material: Material) -> str:
    says = (
        f"<b>{escape(one.first)}</b> and <b>{escape(one.second)}</b>: {count(one.count, 'time')}, "
        f"{percent(one.share, 0)} of their images"
    )
    return _case(says, material.plain(one.examples), narrow=True)


def _mislabelled(one: Mislabelled, material: Material) -> str:
    says = (
        f"labelled <b>{escape(one.image.label)}</b>, the neighbours say <b>{escape(one.suggested)}</b> "
        f"(score {number(one.score)})<br><small>{escape(one.image.path)}</small>"
    )
    query = tiles([material.image(one.image, mark="?")])
    return _case(says, f'<div class="pair">{query}{material.plain(one.neighbours)}</div>')


def _duplicate(one: Duplicate, material: Material) -> str:
    names = [
        f"<b>{escape(image.label)}</b>, {image.split}: <small>{escape(image.path)}</small>"
        for image in (one.first, one.second)
    ]
    says = f"{'<br>'.join(names)}<br>across {one.across}, distance {number(one.distance, 3)}"
    return _case(says, material.plain((one.first, one.second)), narrow=True)
