"""The images of a run, found again in its dataset by the record of its split."""

import warnings
from collections.abc import Sequence

from divconq.data import Dataset, ImageSet
from divconq.data.images.file_checks import first_three
from divconq.data.split_record import SCORED, SPLITS, SplitRecord


class ChangedDataError(ValueError):
    """Raised if the data of a run has changed so that it is not the same test or the same training any more."""


def recorded_images(
    record: SplitRecord,
    data: Dataset,
    splits: Sequence[str],
    *,
    strict: Sequence[str] = SPLITS,
    accept_changes: bool = False,
) -> dict[str, ImageSet]:
    """Return the images of a run in its dataset, by split, and warn of what is different.

    Raise ChangedDataError if images of the ``strict`` splits are missing, changed or have another class, unless
    ``accept_changes``; then they are used as they are, with the classes of the run.
    """
    found, changes = record.select(data, splits)
    refused = changes.sentences([split for split in splits if split in strict])
    gone = [split for split in splits if split in record.splits and split not in found]
    if refused and (gone or not accept_changes):
        test = "test" if set(strict) <= set(SCORED) else "run"
        remedy = "" if gone else ", or add --accept-changes to go on with the images as they are"
        raise ChangedDataError(
            f"{data.name} has changed since the training, so this would not be the same {test}: "
            f"{'; '.join(refused)}; restore them{remedy}"
        )
    others = changes.sentences([split for split in splits if split not in strict])
    if refused or others:
        warnings.warn(
            f"{data.name} has changed since the training: {'; '.join(refused + others)}", stacklevel=2
        )
    if changes.added:
        warnings.warn(
            f"{data.name} has {len(changes.added)} images that the run does not know, which are left out: "
            f"{first_three(changes.added)}",
            stacklevel=2,
        )
    return found
