"""The data of an existing run: its own, with the split of the run, or another dataset."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from divconq.accel.device import threads
from divconq.config import Config
from divconq.data import Dataset, ImageSet, is_dataset
from divconq.data.batches.views import stored_side
from divconq.data.dataset import label_fingerprint
from divconq.data.images.cache import reuse_cached
from divconq.data.images.file_checks import first_three
from divconq.data.sources.folder import flat_folder
from divconq.data.split_record import SCORED, SPLITS
from divconq.runs.folder import Run
from divconq.training.datasets import open_whole, split_data
from divconq.training.recorded_split import ChangedDataError, recorded_images


def open_own_data(
    run: Run, splits: Sequence[str] = SPLITS, *, strict: Sequence[str] = SCORED, accept_changes: bool = False
) -> tuple[Dataset, dict[str, ImageSet]]:
    """Return the dataset of a run, and its images by split as the run has them.

    Raise ChangedDataError if the images of the ``strict`` splits have changed, unless ``accept_changes``. A run of an
    older version has no record: its split is drawn again, and must have the training classes of the run.
    """
    data, record = open_whole(run.config), run.split()
    if record is not None:
        found = recorded_images(record, data, splits, strict=strict, accept_changes=accept_changes)
        return data, _from_cache(found)
    drawn, validation = split_data(run.config, data)
    known = run.training_labels()
    if known is not None and known != label_fingerprint(drawn.train) and not accept_changes:
        raise ChangedDataError(
            f"{data.name} has changed since the training: a split drawn now has other training classes than the run, "
            "so test classes may have been trained on; restore the data, or add --accept-changes"
        )
    return data, _from_cache(_by_split(drawn, validation, splits))


def open_test(run: Run, name: str | None = None, *, accept_changes: bool = False) -> Dataset:
    """Return a dataset to score a run on; by default its own.

    The test images are those of the run if the dataset is that of the run, or a copy of it. Raise ValueError if test
    images of another dataset were trained on, unless ``accept_changes``.
    """
    if name is None or is_own_data(run.config, name):
        data, found = open_own_data(run, SCORED, accept_changes=accept_changes)
        return replace(data, test=found["test"], gallery=found.get("gallery"))
    data, record = open_whole(run.config.replace(data=name)), run.split()
    found = _by_split(data, None, SCORED)
    if record is not None and record.describes(data):
        found = recorded_images(record, data, SCORED, strict=SCORED, accept_changes=accept_changes)
    elif record is not None and not accept_changes:
        trained = [path for images in found.values() for path in record.trained_on(images)]
        if trained:
            raise ChangedDataError(
                f"{len(trained)} of {sum(map(len, found.values()))} test images of {data.name} are training images of "
                f"the run ({first_three(trained)}), so the scores would be too good; score other images, or add "
                "--accept-changes"
            )
    found = _from_cache(found)
    return replace(data, test=found["test"], gallery=found.get("gallery"))


def open_split(run: Run, name: str, split: str | None = None, *, accept_changes: bool = False) -> ImageSet:
    """Return one split of a dataset to embed; without ``split``, the test images, or all images of a plain folder.

    A plain folder has no train/ and test/. With ``split``, it is split as for training and evaluation. The class of
    an image is the same in all cases: the folder below the root.
    """
    if split is None and not is_dataset(name):
        side, workers = stored_side(run.config.data.decoded), threads(run.config.runtime.workers)
        return reuse_cached(flat_folder(Path(name), size=side, workers=workers))
    split = split or "test"
    if is_own_data(run.config, name):
        data, found = open_own_data(run, [split], strict=[split], accept_changes=accept_changes)
    elif split == "test":
        data = open_test(run, name, accept_changes=True)  # embeddings are no scores
        found = {"test": data.test}
    else:
        data = open_whole(run.config.replace(data=name))
        found = _from_cache(_by_split(data, None, [split]))
    if split not in found:
        have = " or ".join(f"--split {other}" for other in _by_split(data, None, SPLITS))
        raise ValueError(f"{name!r} has no split {split!r}; use {have}")
    return found[split]


def is_own_data(config: Config, name: str) -> bool:
    """Return whether a name or path is the dataset that a run was trained on."""
    own = config.data.name
    return name == own or (Path(name).exists() and Path(name).resolve() == Path(own).resolve())


def _by_split(data: Dataset, validation: ImageSet | None, splits: Sequence[str]) -> dict[str, ImageSet]:
    sets = {"train": data.train, "val": validation, "test": data.test, "gallery": data.gallery}
    return {name: images for name, images in sets.items() if images is not None and name in splits}


def _from_cache(found: dict[str, ImageSet]) -> dict[str, ImageSet]:
    return {name: reuse_cached(images) for name, images in found.items()}
