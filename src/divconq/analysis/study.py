"""The runs of one analysis: images, embeddings, and notes on missing parts."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, cast, get_args

import torch
from torch import Tensor

from divconq.analysis.embedding_cache import cached_embeddings
from divconq.analysis.run_record import RunRecord, Which
from divconq.analysis.subject import Split, Subject
from divconq.data.dataset import ImageSet, known_cameras
from divconq.runs.folder import Run
from divconq.training.recorded_split import ChangedDataError
from divconq.training.run_data import open_own_data

Images: TypeAlias = dict[Split, ImageSet]
Say: TypeAlias = Callable[[str], object]


class Study:
    """The first run is analysed, and the others are compared with it. Chapters compute their results from a Study.

    ``say`` receives progress messages. ``note`` adds a sentence to ``missing``. Images are embedded on ``device``;
    all other work is done on the CPU.
    """

    def __init__(
        self,
        records: Sequence[RunRecord],
        *,
        which: Which = "last",
        device: torch.device | None = None,
        seed: int = 0,
        accept_changes: bool = False,
        say: Say = lambda line: None,
    ) -> None:
        self.records, self.names = list(records), short_names([record.folder for record in records])
        self.which, self.device, self.seed, self.say = which, device or torch.device("cpu"), seed, say
        self.accept_changes = accept_changes
        self.missing: list[str] = []

    def note(self, sentence: str) -> None:
        """Add a sentence about a part that cannot be shown, once."""
        if sentence not in self.missing:
            self.missing.append(sentence)

    @cached_property
    def images(self) -> Images:
        """Return the images of the first run by split; empty if its dataset cannot be opened.

        Raise ChangedDataError if its test images have changed since the training.
        """
        record = self.records[0]
        try:
            images = images_of(record, accept_changes=self.accept_changes)
        except ChangedDataError:
            raise
        except (ValueError, OSError) as error:
            self.note(f"The images cannot be opened: {error}.")
            return {}
        if known_cameras(images["test"], images.get("gallery")) is not None and record.drops_same_camera:
            self.note("Searches in this report include images of the same camera; the scores leave them out.")
        return images

    @cached_property
    def subject(self) -> Subject | None:
        """Return the first run with its embeddings, or None if its images or its network cannot be opened."""
        return self._open(self.names[0], self.records[0], self.images) if self.images else None

    @cached_property
    def baseline(self) -> Subject | None:
        """Return the first other run without division or masks that searches the same test images, or None."""
        for name, record in zip(self.names[1:], self.records[1:], strict=True):
            other = self._open_other(name, record) if record.is_baseline else None
            if other is not None:
                return other
        return None

    def others(self) -> Iterator[Subject]:
        """Yield the other runs that search the same test images. Only one of them is in memory at a time."""
        for name, record in zip(self.names[1:], self.records[1:], strict=True):
            if self.baseline is not None and self.baseline.name == name:
                yield self.baseline
            elif (other := self._open_other(name, record)) is not None:
                yield other

    def _open_other(self, name: str, record: RunRecord) -> Subject | None:
        if self.subject is None:
            return None
        try:
            images = images_of(record, accept_changes=self.accept_changes)
        except (ValueError, OSError) as error:
            self.note(f"Only the training of {name} is compared: {error}.")
            return None
        if _test_paths(images) != _test_paths(self.images):
            self.note(f"Only the training of {name} is compared: it has other test images.")
            return None
        return self._open(name, record, images)

    def _open(self, name: str, record: RunRecord, images: Images) -> Subject | None:
        self.say(f"embeddings of {name}")
        try:
            snapshot = record.snapshot(self.which)
            f = cached_embeddings(record, snapshot, images, self.which, self.device)
        except (ValueError, OSError) as error:
            imported = record.imported
            remedy = f" Its training used --import {imported}; pass it again." if imported else ""
            self.note(f"The network of {name} cannot be analysed: {error}.{remedy}")
            return None
        clusters: Tensor | None = snapshot.clusters
        if len(snapshot.clusters) != len(images["train"]):
            clusters = None
            self.note(
                f"The clusters of {name} cannot be shown: the run divided {len(snapshot.clusters)} images, and the "
                f"dataset now has {len(images['train'])}."
            )
        return Subject(name, record, snapshot.epoch, images, f, snapshot.masks, clusters)


def images_of(record: RunRecord, *, accept_changes: bool = False) -> Images:
    """Return the images of a run by split, as the run has them."""
    _, found = open_own_data(
        Run(record.folder, record.config), get_args(Split), accept_changes=accept_changes
    )
    return cast(Images, found)


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return a unique name for each run folder: the last part of its path, or as many parts as necessary.

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


def labels_by(values: Sequence[int], names: Sequence[str], symbol: str) -> list[str]:
    """Return a label for each run: its value of a setting, and its name if several runs have this value.

    If all runs have the same value, their names are enough.

    >>> labels_by([2, 4, 4], ["a", "b", "c"], "E"), labels_by([4, 4], ["b", "c"], "E")
    (['E = 2', 'E = 4, b', 'E = 4, c'], ['b', 'c'])
    """
    if len(set(values)) == 1:
        return list(names)
    return [
        f"{symbol} = {value}" + (f", {name}" if values.count(value) > 1 else "")
        for value, name in zip(values, names, strict=True)
    ]


def _test_paths(images: Images) -> dict[Split, tuple[str, ...]]:
    return {split: some.paths for split, some in images.items() if split != "train"}
