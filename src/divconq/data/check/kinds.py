"""The kinds of findings."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of finding: its title, its effect or remedy, and whether it is a problem or only a warning."""

    title: str
    meaning: str
    problem: bool = False


LABEL_KINDS = {
    "singletons": Kind(
        "training classes with one image", "training refuses them; add images or use --singletons drop"
    ),
    "shared_classes": Kind(
        "test classes that are also training classes", "the scores do not measure retrieval of unseen classes"
    ),
    "similar_names": Kind(
        "class names that differ only in case, spaces or Unicode form",
        "rename the folders if they are one class",
    ),
    "not_in_gallery": Kind("query classes that are not in the gallery", "they cannot be found"),
    "queries_without_positive": Kind(
        "queries without another image of their class to find",
        "they do not count in the scores; if cameras are known, images by the same camera do not count",
    ),
}
FILE_KINDS = {
    "unreadable": Kind("unreadable files", "save them again or remove them", problem=True),
    "truncated": Kind("truncated files", "copy or download them again, or remove them", problem=True),
    "zero_byte": Kind("files of zero bytes", "copy or download them again, or remove them", problem=True),
    "not_an_image": Kind("files that are not an image", "remove them", problem=True),
    "odd_size": Kind(
        "images that are too large, or far longer than wide", "save them smaller or remove them", problem=True
    ),
    "unknown_range": Kind(
        "files whose pixels have no fixed range", "save them with 8 or 16 bits a channel", problem=True
    ),
    "animated": Kind("files with several frames", "only the first frame is used"),
    "cmyk": Kind("CMYK files", "they are converted to RGB without their colour profile"),
    "lab": Kind("Lab files", "they are converted to RGB"),
    "sixteen_bit": Kind("files with 16 bits a channel or more", "they are converted to 8 bits"),
    "alpha": Kind("files with transparency", "transparent parts become white"),
    "exif_rotated": Kind("files rotated by EXIF", "they are shown upright"),
}
DUPLICATE_KINDS = {
    "duplicates_within_split": Kind("equal images within a split", "one of each is enough"),
    "duplicates_train_test": Kind(
        "equal images in train and test", "the scores would be too good; remove them from one", problem=True
    ),
    "duplicates_query_gallery": Kind(
        "equal images in query and gallery", "the scores will be too good; remove them from one"
    ),
    "links_other_label": Kind(
        "files with two labels, by links", "training refuses them; remove one link of each", problem=True
    ),
    "duplicates_other_label": Kind("equal images with different labels", "correct the labels"),
}
KINDS: Mapping[str, Kind] = LABEL_KINDS | FILE_KINDS | DUPLICATE_KINDS
