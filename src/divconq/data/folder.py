"""Your own photos: folders of image files, one folder per class, decoded when they are needed."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from divconq.data.protocol import Dataset, ImageSet

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS = ("train", "test", "query", "gallery")
ORIENTATION = 0x0112  # EXIF tag: how the stored pixels are to be turned

Classes: TypeAlias = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Decoded:
    """Image files, decoded by ``workers`` threads whenever they are asked for.

    >>> Decoded((), torch.ones(0), size=8, workers=2).load(torch.arange(0)).shape
    torch.Size([0, 8, 8, 3])
    """

    files: tuple[Path, ...]
    aspect: Float[Tensor, " n"]
    size: int
    workers: int

    def load(self, index: Int64[Tensor, " b"]) -> UInt8[Tensor, "b size size 3"]:
        """Decode the images at ``index``, in that order."""
        files = [self.files[i] for i in index.tolist()]
        images = np.empty((len(files), self.size, self.size, 3), dtype=np.uint8)

        def fill(i: int) -> None:
            images[i] = decode(files[i], self.size)

        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(fill, range(len(files))))
        return torch.from_numpy(images)


def folder(
    path: Path | str, *, size: int = 256, test_classes: float = 0.5, seed: int = 0, workers: int = 4
) -> Dataset:
    """Open a folder of class folders; or of train/ and test/, or train/, query/ and gallery/, that hold them.

    Without a test split the share ``test_classes`` of the classes is kept for testing, drawn by ``seed``.
    Images are found at any depth below their class folder; hidden files and empty folders are passed over.
    Query and gallery have one numbering of classes.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     for name in ("ant", "bee", "cat", "dog"):
    ...         Path(photos, name).mkdir()
    ...         Image.new("RGB", (60, 40)).save(Path(photos, name, "1.jpg"))
    ...     folder(photos, seed=0).train.names
    ('bee', 'dog')
    """
    root = _existing(path)
    splits = {sub.name for sub in _folders(root)}.intersection(SPLITS)
    if splits in ({"train", "test"}, {"train", "query", "gallery"}):
        parts = {name: _classes(root / name) for name in SPLITS if name in splits}
    elif "train" in splits and _folders(root / "train"):
        raise ValueError(
            f"{root} must have train/ and test/, or train/, query/ and gallery/, got only "
            f"{', '.join(f'{name}/' for name in SPLITS if name in splits)}; add or remove folders"
        )
    else:
        parts = _split(root, _classes(root), test_classes, seed)
    if len(parts["train"]) < 2:
        raise ValueError(
            f"{root / 'train'} must have at least two class folders with images, got one; add more"
        )

    sets = dict(zip(parts, _image_sets(root, list(parts.values()), size, workers), strict=True))
    if "query" in sets:
        sets["query"], sets["gallery"] = _number_alike(sets["query"], sets["gallery"])
    test = sets["query"] if "query" in sets else sets["test"]
    return Dataset(root.resolve().name, sets["train"], test, sets.get("gallery"))


def flat_folder(path: Path | str, *, size: int = 256, workers: int = 4) -> ImageSet:
    """Open every image below a folder, labelled with the name of the folder it is in.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40)).save(Path(photos, "1.jpg"))
    ...     flat_folder(photos).pixels.aspect
    tensor([1.5000])
    """
    root = _existing(path).resolve()
    found: dict[str, list[Path]] = {}
    for file in _images(root):
        found.setdefault(file.parent.name, []).append(file)
    if not found:
        raise ValueError(
            f"{root} must have images in it or below, got none; they end in {', '.join(SUFFIXES)}"
        )
    return _image_sets(root, [dict(sorted(found.items()))], size, workers)[0]


def decode(file: Path, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """Read an image file, upright, in RGB, squashed to a square; what is transparent becomes white.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     Image.new("RGB", (60, 40)).save(Path(photos, "1.jpg"))
    ...     decode(Path(photos, "1.jpg"), 32).shape
    (32, 32, 3)
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            orientation = _orientation(image)
            image.draft("RGB", (2 * size, 2 * size))  # large JPEGs are decoded at an eighth, quarter or half
            small = _rgb(image).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    except Exception as error:  # each format raises errors of its own
        raise ValueError(f"{file} cannot be decoded ({error}); remove it or save it again") from error
    return _upright(np.asarray(small), orientation)


def _existing(path: Path | str) -> Path:
    if not Path(path).is_dir():
        state = "which is a file" if Path(path).exists() else "which does not exist"
        raise ValueError(f"path must be a folder of images, got {path}, {state}; check the spelling")
    return Path(path)


def _folders(root: Path) -> list[Path]:
    return sorted(sub for sub in root.iterdir() if sub.is_dir() and not sub.name.startswith("."))


def _images(root: Path) -> list[Path]:
    """List the image files at any depth below ``root``, none of them hidden, in order of their path."""
    found = {file.relative_to(root): file for file in root.rglob("*") if file.suffix.lower() in SUFFIXES}
    shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return [found[path] for path in sorted(shown, key=Path.as_posix) if found[path].is_file()]


def _classes(root: Path) -> Classes:
    """List the images of each class folder that has any."""
    classes = {sub.name: images for sub in _folders(root) if (images := _images(sub))}
    if not classes:
        loose = len(_images(root))
        got = f"{loose} images directly in it" if loose else f"no image (they end in {', '.join(SUFFIXES)})"
        raise ValueError(f"{root} must have one folder per class with its images, got {got}; sort them so")
    return classes


def _split(root: Path, classes: Classes, test_classes: float, seed: int) -> dict[str, Classes]:
    """Keep the share ``test_classes`` of the classes for testing, at least two of them, and leave two."""
    if not 0 < test_classes < 1:
        raise ValueError(f"test_classes must be a share between 0 and 1, got {test_classes}; use 0.5")
    if len(classes) < 4:
        raise ValueError(
            f"{root} must have at least four class folders with images, two to train on and two to test, "
            f"got {len(classes)}; add classes, or make train/ and test/ yourself"
        )
    count = min(max(round(test_classes * len(classes)), 2), len(classes) - 2)
    order = np.random.default_rng(seed).permutation(list(classes)).tolist()
    chosen = {"train": set(order[count:]), "test": set(order[:count])}
    return {part: {name: classes[name] for name in classes if name in mine} for part, mine in chosen.items()}


def _image_sets(root: Path, parts: Sequence[Classes], size: int, workers: int) -> list[ImageSet]:
    files = [[file for images in classes.values() for file in images] for classes in parts]
    aspects = _aspects([file for part in files for file in part], workers).split(
        [len(part) for part in files]
    )
    return [
        ImageSet(
            Decoded(tuple(mine), aspect, size, workers),
            torch.arange(len(classes)).repeat_interleave(torch.tensor([len(c) for c in classes.values()])),
            tuple(classes),
            tuple(file.relative_to(root).as_posix() for file in mine),
        )
        for classes, mine, aspect in zip(parts, files, aspects, strict=True)
    ]


def _number_alike(*sets: ImageSet) -> list[ImageSet]:
    """Give all of them the names that any of them has."""
    names = tuple(sorted({name for images in sets for name in images.names}))
    number = {name: i for i, name in enumerate(names)}
    return [
        replace(
            images, labels=torch.tensor([number[name] for name in images.names])[images.labels], names=names
        )
        for images in sets
    ]


def _aspects(files: Sequence[Path], workers: int) -> Float[Tensor, " n"]:
    """Read width / height, as seen upright, from the header of each file."""
    from PIL import Image

    Image.init()  # before there are threads

    def aspect(file: Path) -> float | None:
        try:
            with Image.open(file) as image:
                width, height = image.size
                return height / width if _orientation(image) >= 5 else width / height
        except Exception:  # each format raises errors of its own
            return None

    with ThreadPoolExecutor(workers) as pool:
        aspects = list(pool.map(aspect, files))
    broken = [str(file) for file, value in zip(files, aspects, strict=True) if value is None]
    if broken:
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise ValueError(
            f"every image must be readable, got {len(broken)} of {len(files)} that are not: "
            f"{', '.join(broken[:3])}{more}; remove them or save them again"
        )
    return torch.tensor(aspects)


def _orientation(image: "Image.Image") -> int:
    """How the stored pixels are turned, 1 to 8; 1 is upright."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # asking for it would decode the whole image
    value = image.getexif().get(ORIENTATION, 1)
    return value if value in range(1, 9) else 1


def _upright(image: UInt8[np.ndarray, "size size 3"], orientation: int) -> UInt8[np.ndarray, "size size 3"]:
    if orientation >= 5:
        image = image.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return image


def _rgb(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, which convert() would cut off at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
