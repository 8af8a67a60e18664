"""Refuse one image file with two labels, or in train and in another split; links of a file count as the file."""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from divconq.data.images.file_checks import first_three


def refuse_repeated(
    source: Path,
    images: Sequence[Hashable],
    labels: Sequence[str],
    train: Sequence[bool],
    *,
    name: Callable[[int, int], str],
    remedy: str,
) -> None:
    """Raise a ValueError if an image has two labels, or is in train and in another split.

    Equal values of ``images`` are the same image. ``name(i, j)`` names images i and j in the message.

    >>> refuse_repeated(Path("photos"), "xyx", "abc", [True] * 3, name="image {} and {}".format, remedy="remove it")
    Traceback (most recent call last):
    ValueError: every image of photos must have one label, got 1 with another: image 0 and 2 (a, c); remove it
    """
    first: dict[Hashable, int] = {}
    mixed, leaked = [], []
    for row, image in enumerate(images):
        other = first.setdefault(image, row)
        if labels[row] != labels[other]:
            mixed.append(f"{name(other, row)} ({labels[other]}, {labels[row]})")
        elif train[row] != train[other]:
            leaked.append(name(other, row))
    if mixed:
        raise ValueError(
            f"every image of {source} must have one label, got {len(mixed)} with another: {first_three(mixed)}; "
            f"{remedy}"
        )
    if leaked:
        raise ValueError(
            f"no image of {source} may be in train and in another split, got {len(leaked)} that are: "
            f"{first_three(leaked)}; the scores would be too good, so remove it from one"
        )
