"""The sections of the page on clusters and on subspaces."""

import math
from html import escape

from divconq.analysis.findings import Clusters, Findings, Retrieval, SplitOver, Subspaces
from divconq.analysis.markup import (
    Material,
    block,
    cluster_class,
    cluster_name,
    count,
    number,
    paragraphs,
    percent,
    table,
    tiles,
)
from divconq.analysis.summary import strongest

ABSENT = '<p class="absent">There is nothing to show here: see <a href="#missing">what is missing</a>.</p>'
MANY = 8  # subspaces that are shown one by one before they are folded away


def clusters_section(findings: Findings, material: Material) -> str:
    """What the divisions did, and what is in each cluster."""
    clusters = findings.clusters
    if clusters is None:
        return block(ABSENT)
    time = material.figures(
        {
            "cluster-nmi": "NMI of each division with the classes, and with the division before.",
            "cluster-kept": "Share of the images that kept their cluster.",
        }
    )
    sizes = material.figures(
        {
            "cluster-sizes": "Sizes of the clusters at every division.",
            "cluster-mean-sizes": "Mean size of each cluster, and its deviation.",
        }
    )
    return "".join(
        [
            block(_divisions(clusters) + time, "nmi", "kept"),
            block(sizes, "sizes") if sizes else "",
            _galleries(clusters, material),
            _factors(clusters, material),
            _split_classes(clusters, material),
        ]
    )


def subspaces_section(findings: Findings, material: Material) -> str:
    """The masks, what each subspace finds alone, and how they correct each other."""
    subspaces = findings.subspaces
    if subspaces is None:
        return block(ABSENT)
    masks = material.figures({"masks": "The masks: a row for each, a column for each dimension."})
    overlap = material.figures(
        {
            "mask-cosine": "Cosine similarity of each pair of masks.",
            "mask-shared": "Active dimensions in common.",
            "mask-mass": "L1 mass of each mask.",
        }
    )
    recall = material.figures({"subspace-recall": "Recall@1 of each subspace alone, and of their sum."})
    factors = material.figures({"subspace-factors": "NMI of each subspace with each known factor."})
    return "".join(
        [
            block(f"<h3>Masks</h3>{masks}", "masks") if masks else "",
            block(overlap, "cosine", "shared") if overlap else "",
            block(f"<h3>Each alone, and the sum</h3>{recall}{_recalls(subspaces)}", "subspace recall"),
            block(f"<h3>What each subspace encodes</h3>{factors}", "subspace factors") if factors else "",
            _retrievals(subspaces, material),
        ]
    )


def _divisions(clusters: Clusters) -> str:
    rows = [
        [
            f"after epoch {step.epoch}",
            str(step.k),
            number(step.nmi_classes),
            number(step.nmi_previous),
            percent(step.kept),
            f"{min(step.sizes):,} to {max(step.sizes):,}" if step.sizes else "–",
        ]
        for step in clusters.divisions
    ]
    head = ["division", "K", "NMI, classes", "NMI, before", "kept", "sizes"]
    drawn = table(head, rows)
    return drawn if len(rows) <= 10 else f"<details><summary>{len(rows)} divisions</summary>{drawn}</details>"


def _galleries(clusters: Clusters, material: Material) -> str:
    if not clusters.galleries:
        return ""
    parts = ["<h3>What is in each cluster</h3>"]
    for place, images in enumerate(clusters.galleries):
        shown = material.by_cluster(images) if images else '<p class="absent">Empty.</p>'
        sizes = clusters.divisions[-1].sizes if clusters.divisions else ()
        size = f" {count(sizes[place], 'image')}" if place < len(sizes) else ""
        parts.append(f"<h4>{cluster_name(place)}{size}</h4>{shown}")
    return block("".join(parts))


def _factors(clusters: Clusters, material: Material) -> str:
    drawn = material.figures({"cluster-factors": "NMI of each cluster with each known factor."})
    if clusters.factors is None or not drawn:
        return ""
    items = [
        f"<li>{cluster_name(place)} {escape(item[0])} ({number(item[1])})</li>"
        for place, item in enumerate(strongest(clusters.factors))
        if item is not None
    ]
    closest = f'<ul class="plain">{"".join(items)}</ul>' if items else ""
    return block(f"<h3>What each cluster encodes</h3>{drawn}{closest}", "cluster factors")


def _split_classes(clusters: Clusters, material: Material) -> str:
    title = "<h3>Classes split over clusters</h3>"
    if not clusters.split_classes:
        return block(f'{title}<p class="absent">No class is split: each is within one cluster.</p>', "split")
    return block(title + "".join(_split_class(one, material) for one in clusters.split_classes), "split")


def _split_class(one: SplitOver, material: Material) -> str:
    shares = "".join(
        f'<i class="{cluster_class(place)}" style="flex-grow:{share:.4f}" '
        f'title="{percent(share, 0)} in cluster {place + 1}">{place + 1 if share >= 0.1 else ""}</i>'
        for place, share in enumerate(one.shares)
        if math.isfinite(share) and share > 0
    )
    return (
        f"<h4>{escape(one.label)} <small>{count(one.images, 'image')}, {number(one.entropy)} bits</small></h4>"
        f'<div class="shares">{shares}</div>{material.by_cluster(one.examples)}'
    )


def _recalls(subspaces: Subspaces) -> str:
    if len(subspaces.recalls) < 2:
        return paragraphs(
            [
                f"There is one subspace, which is the whole space: R@1 {percent(subspaces.final_recall)} of "
                f"{count(subspaces.queries, 'query', 'queries')}."
            ]
        )
    best = max((value for value in subspaces.recalls if math.isfinite(value)), default=math.nan)
    return paragraphs(
        [
            f"Of {count(subspaces.queries, 'query', 'queries')} the sum finds {percent(subspaces.final_recall)}, the "
            f"best subspace alone {percent(best)}.",
            f"The sum corrects most subspaces in {count(subspaces.corrected, 'query', 'queries')} "
            f"and is misled, against most of them, in {subspaces.misled:,}.",
        ]
    )


def _retrievals(subspaces: Subspaces, material: Material) -> str:
    if len(subspaces.recalls) < 2:
        return ""
    title = "<h3>How they correct each other</h3>"
    if not subspaces.retrievals:
        return block(
            f'{title}<p class="absent">There is no query in which most subspaces and their sum disagree.</p>',
            "corrections",
        )
    about = paragraphs(
        ["Queries in which the sum and most subspaces disagree, and what each space finds first."]
    )
    shown = "".join(_retrieval(one, material) for one in subspaces.retrievals)
    return block(title + about, "corrections") + f'<div class="retrievals">{shown}</div>'


def _retrieval(one: Retrieval, material: Material) -> str:
    kinds = {
        "corrected": "the sum is right, most subspaces are wrong",
        "misled": "the sum is wrong, most subspaces are right",
    }
    rows = [
        (name, f"<tr><th scope='row'>{escape(name)}</th><td>{material.found(found)}</td></tr>")
        for name, found in one.spaces
    ]
    alone = [row for name, row in rows if name.startswith("subspace")]
    together = [row for name, row in rows if not name.startswith("subspace")]
    if len(alone) > MANY:
        shown = (
            _search(together)
            + f"<details><summary>each of {len(alone)} subspaces</summary>{_search(alone)}</details>"
        )
    else:
        shown = _search([*alone, *together])
    return (
        f'<div class="retrieval"><div class="query">{tiles([material.image(one.query, mark="?")])}'
        f"<p><b>{escape(one.query.label)}</b><br>{one.kind}: {kinds[one.kind]}</p></div>{shown}</div>"
    )


def _search(rows: list[str]) -> str:
    return f'<div class="scroll" tabindex="0"><table class="search">{"".join(rows)}</table></div>'
