"""The findings of an analysis: the result of every chapter as plain values, and their JSON form.

An undefined number (no images, an empty cluster) is NaN here and null in JSON.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from divconq.analysis.chapters import CHAPTERS
from divconq.analysis.chapters.training import Training
from divconq.analysis.study import Study
from divconq.data.dataset import ImageSet


@dataclass(frozen=True)
class Findings:
    """The dataset of an analysis, and the result of every chapter by name; None if there is nothing to show.

    ``missing`` lists, in sentences, the parts of the report that could not be made, and why.
    """

    dataset: str
    epoch: int | None  # of the network
    train_images: int
    train_classes: int
    test_images: int
    test_classes: int
    chapters: dict[str, Any]
    missing: tuple[str, ...]

    @property
    def runs(self) -> tuple[Training, ...]:
        """Return the training of every run. The first run is the analysed one."""
        runs: tuple[Training, ...] = self.chapters["training"]
        return runs

    def all_missing(self) -> list[str]:
        """Return the sentences of the report and of every run."""
        sentences = list(dict.fromkeys(self.missing))
        for run in self.runs:
            prefix = f"{run.name}: " if len(self.runs) > 1 else ""
            sentences += [prefix + sentence for sentence in run.missing if sentence not in self.missing]
        return sentences


def collect_findings(study: Study) -> Findings:
    """Compute and return all chapters of a study."""
    subject, images = study.subject, study.images
    train = [some for split, some in images.items() if split == "train"]
    test = [some for split, some in images.items() if split != "train"]
    results = {}
    for chapter in CHAPTERS:
        study.say(chapter.title.lower())
        results[chapter.name] = chapter.compute(study)
    return Findings(
        dataset=study.records[0].dataset,
        epoch=None if subject is None else subject.epoch,
        train_images=sum(map(len, train)),
        train_classes=_count_classes(train),
        test_images=sum(map(len, test)),
        test_classes=_count_classes(test),
        chapters=results,
        missing=tuple(study.missing),
    )


def to_json(findings: Findings) -> str:
    """Return the findings as JSON, the chapters by name. Floats have six digits; NaN and infinity are null."""
    plain = dataclasses.asdict(findings)
    missing = {"missing": plain.pop("missing")}
    return json.dumps(_plain(plain | plain.pop("chapters") | missing), ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _count_classes(sets: Sequence[ImageSet]) -> int:
    return len({label for images in sets for label in images.labels.unique().tolist()})
