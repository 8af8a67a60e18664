"""The scores of a run: their names in the log and their titles in tables.

A score is logged as ``recall@1``, ``map@r``, ``nmi``, ... on the test images. A prefix names other images:
``val_`` held-out classes, ``train_`` the training images, ``reid_`` galleries of one image per class.
"""

TITLES = {"map@r": "MAP@R", "r_precision": "R-precision", "marp": "mARP", "nmi": "NMI"}
COUNTS = ("queries", "queries_without_positive")
PREFIXES = ("val", "reid", "train")


def title(name: str) -> str:
    """Return the title of a score in tables.

    >>> title("recall@1"), title("val_map@r"), title("reid_recall@5"), title("train_recall@1")
    ('R@1', 'val MAP@R', 'reid R@5', 'train R@1')
    """
    prefix, underscore, rest = name.partition("_")
    if underscore and prefix in PREFIXES:
        return f"{prefix} {title(rest)}"
    return TITLES.get(name, name.replace("recall@", "R@"))


def is_score(name: str) -> bool:
    """Whether a value of the log is a score between 0 and 1.

    >>> is_score("recall@1"), is_score("val_nmi"), is_score("train_recall@1"), is_score("loss")
    (True, True, True, False)
    """
    prefix, _, rest = name.partition("_")
    name = rest if prefix in PREFIXES else name
    return name in TITLES or name.startswith("recall@")
