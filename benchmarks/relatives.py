"""Measure how many held-out classes and test classes have a relative among the training classes.

    python benchmarks/relatives.py cub --root DIR

A relative is a class of the same super-category. Prints the share for the test classes, and for the held-out classes of
each seed.
"""

import argparse
from pathlib import Path

from divconq.data import ImageSet, hold_out, open_dataset


def families(images: ImageSet) -> list[int]:
    """Return the super-category of each class."""
    assert images.groups is not None, "the data has no super-categories"
    of = dict(zip(images.labels.tolist(), images.groups.tolist(), strict=True))
    return [of[label] for label in sorted(of)]


def related(images: ImageSet, trained: ImageSet) -> float:
    """Return the share of the classes of ``images`` that have a relative in ``trained``."""
    known, asked = set(families(trained)), families(images)
    return sum(family in known for family in asked) / len(asked)


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    data = open_dataset(arguments.data, root=arguments.root)
    print(f"test classes: {related(data.test, data.train):.0%} have a relative among the training classes")
    for classes in arguments.classes:
        for whole in (False, True):
            shares = []
            for seed in range(arguments.seeds):
                trained, held = hold_out(data.train, classes, seed=seed, whole_groups=whole)
                shares.append(related(held, trained))
            kind = "whole super-categories" if whole else "any classes"
            print(
                f"{classes} held out, {kind}, seeds 0 to {arguments.seeds - 1}:",
                *(f"{share:.0%}" for share in shares),
            )


if __name__ == "__main__":
    main()
