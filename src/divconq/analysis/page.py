"""One page that shows the findings: it needs no network, reads on light and dark, wide and narrow."""

from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from string import Template

from divconq.analysis.findings import Findings, Split
from divconq.analysis.markup import Material, block, count, number, percent, table
from divconq.analysis.page_division import clusters_section, subspaces_section
from divconq.analysis.page_space import errors_section, space_section
from divconq.analysis.style import COLOURS
from divconq.analysis.summary import score, sentences


def page(findings: Findings, svgs: Mapping[str, str], pictures: Mapping[tuple[Split, int], bytes]) -> str:
    """The report as HTML, of the figures by name and the pictures by split and index."""
    material = Material(svgs, pictures)
    sections = {name: (title, make(findings, material)) for name, (title, make) in SECTIONS.items()}
    template = Template(files("divconq.analysis").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(_title(findings)),
        about=escape(_about(findings)),
        summary="".join(
            f"<dt>{topic}</dt><dd>{escape(' '.join(said))}</dd>"
            for topic, said in sentences(findings).items()
        ),
        contents="".join(f'<li><a href="#{name}">{title}</a></li>' for name, (title, _) in sections.items()),
        sections="".join(
            f'<section id="{name}"><h2>{title}</h2>{body}</section>'
            for name, (title, body) in sections.items()
        ),
        clusters="".join(f".c{place}{{--edge:{colour}}}" for place, colour in enumerate(COLOURS)),
    )


def training_section(findings: Findings, material: Material) -> str:
    """How the runs went."""
    rows = [
        [
            run.name,
            number(max(run.curves.get("k", ((), (float("nan"),)))[1]), 0),
            number(run.curves["recall@1"][0][-1], 0) if run.curves.get("recall@1", ((), ()))[0] else "–",
            *_last_and_best(score(run, "recall@1")),
            *_last_and_best(score(run, "map@r"))[:1],
            percent(run.generalisation[-1][1] if run.generalisation else None),
            _duration(sum(run.seconds.values())),
        ]
        for run in findings.training
    ]
    head = ["run", "K", "epoch", "R@1, last", "R@1, best", "MAP@R, last", "train R@1", "time"]
    scores = block(
        table(head, rows)
        + material.figures(
            {
                "recall": "Recall@1 on the test images, over the epochs.",
                "map-at-r": "MAP@R on the test images, over the epochs.",
            }
        ),
        "recall",
        "map@r",
    )
    course = material.figures({"loss": "The loss, over the epochs.", "k": "K, over the epochs."})
    general = material.figures(
        {
            "generalisation": "Train against test Recall@1, a path for each run.",
            "seconds": "Where the time went.",
        }
    )
    return (
        scores
        + (block(course, "loss", "k") if course else "")
        + (
            block(general, *(name for name in ("generalisation", "seconds") if name in material.svgs))
            if general
            else ""
        )
    )


def missing_section(findings: Findings, material: Material) -> str:
    """What the report does not show, and why."""
    said = list(dict.fromkeys(findings.missing))
    for run in findings.training:
        prefix = f"{run.name}: " if len(findings.training) > 1 else ""
        said += [prefix + sentence for sentence in run.missing if sentence not in findings.missing]
    if not said:
        return block("<p>Nothing: every part of the report could be made.</p>")
    return block(f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in said)}</ul>")


SECTIONS: dict[str, tuple[str, Callable[[Findings, Material], str]]] = {
    "training": ("Training", training_section),
    "clusters": ("Clusters", clusters_section),
    "subspaces": ("Subspaces", subspaces_section),
    "space": ("The space", space_section),
    "errors": ("Errors", errors_section),
    "missing": ("What is missing", missing_section),
}


def _title(findings: Findings) -> str:
    return f"What {findings.training[0].name if findings.training else findings.dataset} has learned"


def _about(findings: Findings) -> str:
    train = f"{count(findings.train_images, 'image')} of {count(findings.train_classes, 'class', 'classes')}"
    test = f"{count(findings.test_images, 'image')} of {count(findings.test_classes, 'class', 'classes')}"
    network = (
        ""
        if findings.epoch is None
        else f" The network that was looked at is that after epoch {findings.epoch}."
    )
    others = [run.name for run in findings.training[1:]]
    compared = f" Compared with {', '.join(others)}." if others else ""
    images = f": {train} to train on, {test} to search" if findings.train_images else ""
    return f"Dataset {findings.dataset}{images}.{network}{compared}"


def _last_and_best(scored: tuple[float, tuple[int, float]] | None) -> tuple[str, str]:
    if scored is None:
        return "–", "–"
    last, (epoch, best) = scored
    return percent(last), f"{percent(best)} (epoch {epoch})"


def _duration(seconds: float) -> str:
    """A time as a person says it.

    >>> _duration(45), _duration(150), _duration(9000), _duration(0)
    ('45 s', '2.5 min', '2.5 h', '–')
    """
    if seconds <= 0:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
