"""The report of a check, as JSON and as text."""

import dataclasses
import json
from dataclasses import dataclass

from divconq.data.check.kinds import KINDS
from divconq.io.terminal import aligned


@dataclass(frozen=True)
class Split:
    """Size of a split; ``class_sizes`` counts the classes with 1, 2-3, 4-7, ... images."""

    images: int
    classes: int
    singletons: int
    class_sizes: dict[str, int]


@dataclass(frozen=True)
class Finding:
    """Number of findings of one kind, and the first three of them."""

    count: int
    examples: list[str]


@dataclass(frozen=True)
class Report:
    """Result of a check: training must not start with ``problems``, ``warnings`` are for information.

    ``files`` is the number of files read. It is 0 for images in memory; then only labels are checked.
    """

    name: str
    splits: dict[str, Split]
    files: int
    findings: dict[str, Finding]
    problems: list[str]
    warnings: list[str]

    def to_json(self) -> str:
        """Return the report as one JSON object.

        >>> Report("photos", {}, 0, {}, [], []).to_json()
        '{"name": "photos", "splits": {}, "files": 0, "findings": {}, "problems": [], "warnings": []}'
        """
        return json.dumps(dataclasses.asdict(self))

    def to_text(self) -> str:
        """Return the report as text: a table, then one line per warning and problem.

        >>> split = Split(images=4, classes=2, singletons=1, class_sizes={"1": 1, "2-3": 1})
        >>> print(Report("photos", {"train": split}, 4, {"cmyk": Finding(0, [])}, [], ["all is grey"]).to_text())
        photos           train
        images               4
        classes              2
          of 1 image         1
          of 2-3 images      1
        <BLANKLINE>
        files read  4
        CMYK files  0
        <BLANKLINE>
        warning: all is grey
        no problems
        """
        warnings = [f"warning: {warning}" for warning in self.warnings]
        problems = [f"problem: {problem}" for problem in self.problems] or ["no problems"]
        tables = [*aligned(self._split_rows()), "", *aligned(self._file_rows(), head=False)]
        return "\n".join([*tables, "", *warnings, *problems])

    def _split_rows(self) -> list[tuple[str, ...]]:
        splits = self.splits.values()
        sizes = max((list(split.class_sizes) for split in splits), key=len, default=[])
        return [
            (self.name, *self.splits),
            ("images", *(f"{split.images:,}" for split in splits)),
            ("classes", *(f"{split.classes:,}" for split in splits)),
            *(
                (
                    f"  of {size} image{'' if size == '1' else 's'}",
                    *(f"{split.class_sizes.get(size, 0):,}" for split in splits),
                )
                for size in sizes
            ),
        ]

    def _file_rows(self) -> list[tuple[str, ...]]:
        return [
            ("files read", f"{self.files:,}") if self.files else ("images are in memory, not in files",),
            *((KINDS[kind].title, f"{finding.count:,}") for kind, finding in self.findings.items()),
        ]
