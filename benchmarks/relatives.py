"""How near to the training classes are those that are held out, and the test classes? Super-categories tell.

    python benchmarks/relatives.py cub --root DIR

For each seed: the share of the held-out classes that have a relative, a class of the same super-category, among those
that are trained on; and the same of the test classes.
"""

import argparse
from pathlib import Path

from divconq.data import ImageSet, hold_out, open_dataset


def families(images: ImageSet) -> list[int]:
    """The super-category of each class."""
    assert images.groups is not None, "the data has no super-categories"
    of = dict(zip(images.labels.tolist(), images.groups.tolist(), strict=True))
    return [of[label] for label in sorted(of)]


def related(images: ImageSet, trained: ImageSet) -> float:
    """The share of the classes of ``images`` with a relative among those of ``trained``."""
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
