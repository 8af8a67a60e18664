"""A study of one run, and how others compare: from run folders to findings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from divconq.accel.device import pick_device
from divconq.analysis.chapters import clusters_of, subspaces_of
from divconq.analysis.embeddings import embeddings
from divconq.analysis.findings import Clusters, Errors, Findings, Map, Space, Split, Subspaces, Training
from divconq.analysis.geometry import map_of, space_of
from divconq.analysis.mistakes import errors_of
from divconq.analysis.pictures import pictures
from divconq.analysis.runs import RunRecord, generalisation, read_run
from divconq.analysis.subject import Subject
from divconq.config import Config, plain_settings
from divconq.data.dataset import ImageSet, known_cameras
from divconq.model import import_file
from divconq.training.datasets import open_data

Which: TypeAlias = Literal["last", "best"]
Images: TypeAlias = dict[Split, ImageSet]
Say: TypeAlias = Callable[[str], object]


def analyse(
    folders: Sequence[Path],
    *,
    which: Which = "last",
    device: str = "auto",
    module: Path | None = None,
    say: Say = lambda line: None,
) -> tuple[Findings, dict[tuple[Split, int], bytes]]:
    """Study the run in the first folder beside those in the others; the findings, and the pictures they name.

    ``module`` is a Python file to run first, for runs whose backbone was registered by one. ``say`` is told what
    is being done. Nothing is written but the embeddings, into each run's folder.
    """
    if module is not None:
        import_file(module)
    once = list({folder.resolve(): folder for folder in folders}.values())
    findings, images = study(
        [read_run(folder) for folder in once], which=which, device=pick_device(device), say=say
    )
    say("pictures")
    return findings, pictures(findings, images)


def study(
    records: Sequence[RunRecord],
    *,
    which: Which = "last",
    device: torch.device | None = None,
    seed: int = 0,
    say: Say = lambda line: None,
) -> tuple[Findings, Images]:
    """What is to be found of the first run, and how the others compare; and the images of the first, by split.

    What cannot be found, because the run or its data lack something, is named in ``missing``. Images are embedded
    on ``device``; the rest is done on the CPU.
    """
    return _Study(records, which, device or torch.device("cpu"), seed, say).findings()


class _Study:
    """A study in the making: what is missing is noted on the way."""

    def __init__(
        self, records: Sequence[RunRecord], which: Which, device: torch.device, seed: int, say: Say
    ) -> None:
        self.first, self.others = records[0], records[1:]
        self.names = short_names([record.folder for record in records])
        self.which, self.device, self.seed, self.say = which, device, seed, say
        self.missing: list[str] = []

    def findings(self) -> tuple[Findings, Images]:
        first = self.first
        images = self._images()
        subject = self._open(self.names[0], first, images) if images else None
        spaces, baseline = self._spaces(subject)
        searched = [some for split, some in images.items() if split != "train"]
        trained = [some for split, some in images.items() if split == "train"]
        return Findings(
            dataset=Path(first.config.data.name).name,
            epoch=None if subject is None else subject.epoch,
            train_images=sum(map(len, trained)),
            train_classes=count_classes(trained),
            test_images=sum(map(len, searched)),
            test_classes=count_classes(searched),
            training=tuple(map(training, self.names, (first, *self.others))),
            clusters=self._clusters(images, subject),
            subspaces=self._subspaces(subject, baseline),
            spaces=spaces,
            map=self._map(subject),
            errors=self._errors(subject),
            missing=tuple(self.missing),
        ), images

    def _images(self) -> Images:
        try:
            images = images_of(self.first.config)
        except (ValueError, OSError) as error:
            self.missing.append(f"The images cannot be looked at: {error}.")
            return {}
        cameras = known_cameras(images["test"], images.get("gallery"))
        if cameras is not None and self.first.config.evaluation.same_camera == "drop":
            self.missing.append("Searches here also count what the same camera saw, which scores leave out.")
        return images

    def _open(self, name: str, record: RunRecord, images: Images) -> Subject | None:
        """A run with its embeddings; None, and a sentence, if its network cannot be looked at."""
        self.say(f"embeddings of {name}")
        try:
            snapshot = record.snapshot(self.which)
            f = embeddings(record, snapshot, images, self.which, self.device)
        except (ValueError, OSError) as error:
            module = record.config.model.import_file
            again = f" It was trained with --import {module.name}; give it again." if module else ""
            self.missing.append(f"The network of {name} cannot be looked at: {error}.{again}")
            return None
        clusters: Tensor | None = snapshot.clusters
        if len(snapshot.clusters) != len(images["train"]):
            clusters = None
            self.missing.append(
                f"The clusters of {name} cannot be shown: {len(snapshot.clusters)} images were divided, and there are "
                f"{len(images['train'])} now."
            )
        return Subject(name, record, snapshot.epoch, images, f, snapshot.masks, clusters)

    def _spaces(self, subject: Subject | None) -> tuple[tuple[Space, ...], Subject | None]:
        """The space of each run, and the run that is the baseline of retrievals."""
        if subject is None:
            return (), None
        self.say(f"geometry of {subject.name}")
        spaces, baseline = [space_of(subject, seed=self.seed)], None
        for name, record in zip(self.names[1:], self.others, strict=True):
            other = self._compared(name, record, subject)
            if other is not None:
                self.say(f"geometry of {name}")
                spaces.append(space_of(other, thorough=False, seed=self.seed))
            if baseline is None and (record.config.division.k_max == 1 or record.config.masks.kind == "none"):
                baseline = other
        return tuple(spaces), baseline

    def _compared(self, name: str, record: RunRecord, subject: Subject) -> Subject | None:
        """Another run, if it searches the same test images."""
        try:
            images = images_of(record.config)
        except (ValueError, OSError) as error:
            self.missing.append(f"Of {name} only the training is compared: {error}.")
            return None
        searched = [
            {split: some.paths for split, some in these.items() if split != "train"}
            for these in (images, subject.images)
        ]
        if searched[0] != searched[1]:
            self.missing.append(f"Of {name} only the training is compared: it has other test images.")
            return None
        return self._open(name, record, images)

    def _clusters(self, images: Images, subject: Subject | None) -> Clusters | None:
        self.say("clusters")
        return clusters_of(self.first.divisions, images["train"].labels if images else None, subject)

    def _subspaces(self, subject: Subject | None, baseline: Subject | None) -> Subspaces | None:
        if subject is None or self.first.config.masks.kind == "none":
            return None
        if len(subject.masks) == 1:
            self.missing.append("There are no subspaces to compare: K is 1.")
            return None
        self.say("subspaces")
        return subspaces_of(subject, baseline, seed=self.seed)

    def _map(self, subject: Subject | None) -> Map | None:
        if subject is None:
            return None
        self.say("map")
        found = map_of(subject, seed=self.seed)
        if isinstance(found, str):
            self.missing.append(found)
            return None
        return found

    def _errors(self, subject: Subject | None) -> Errors | None:
        if subject is None:
            return None
        self.say("errors")
        return errors_of(subject)


def training(name: str, record: RunRecord) -> Training:
    """How a run went, as it was logged."""
    logged = dict.fromkeys(
        figure for row in record.metrics for figure, value in row.items() if _is_number(value)
    )
    seconds: dict[str, float] = {}
    for row in record.metrics:
        for phase, spent in row.get("seconds", {}).items():
            seconds[phase] = seconds.get(phase, 0.0) + float(spent)
    curves = {figure: record.curve(figure) for figure in logged if figure != "epoch"}
    return Training(
        name,
        plain_settings(record.config),
        {figure: (tuple(epochs), tuple(values)) for figure, (epochs, values) in curves.items()},
        tuple(generalisation(record.metrics)),
        seconds,
        record.missing,
    )


def images_of(config: Config) -> Images:
    """The images that a run was trained with and searches, by split."""
    data, _ = open_data(config)
    images: Images = {"train": data.train, "test": data.test}
    return images if data.gallery is None else {**images, "gallery": data.gallery}


def count_classes(sets: Sequence[ImageSet]) -> int:
    """How many classes have images, sets that search each other having the same."""
    return len({label for images in sets for label in images.labels.unique().tolist()})


def short_names(folders: Sequence[Path]) -> list[str]:
    """Names that tell run folders apart: the last part of each path, or as many as it takes.

    >>> short_names([Path("/runs/cub"), Path("/runs/sop"), Path("/old/cub")])
    ['runs/cub', 'sop', 'old/cub']
    """
    parts = [folder.resolve().parts for folder in folders]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
