import numpy as np
import pytest
import torch

from divconq.data import hold_out
from divconq.data.dataset import ImageSet, InMemory, count_matches, known_cameras


def image_set(labels, cameras=None):
    return ImageSet(
        InMemory(torch.zeros(len(labels), 4, 4, 3, dtype=torch.uint8)),
        torch.as_tensor(labels),
        tuple("abcdef"),
        tuple(map(str, range(len(labels)))),
        factors={} if cameras is None else {"camera": torch.as_tensor(cameras)},
    )


@pytest.mark.parametrize("same_camera", ["drop", "keep"])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_count_matches_equals_plain_loops(with_gallery, same_camera):
    random = np.random.default_rng(0)
    for _ in range(40):
        sides = [(random.integers(0, 6, n), random.integers(-2, 3, n)) for n in random.integers(1, 12, 2)]
        test = image_set(*sides[0])
        gallery = image_set(*sides[1]) if with_gallery else None
        labels, cameras = sides[1] if with_gallery else sides[0]
        expected = [
            sum(
                label == labels[j]
                and (with_gallery or i != j)
                and (same_camera == "keep" or camera != cameras[j])
                for j in range(len(labels))
            )
            for i, (label, camera) in enumerate(zip(*sides[0], strict=True))
        ]
        assert count_matches(test, gallery, same_camera=same_camera).tolist() == expected


def test_known_cameras_needs_both_sides():
    with_cameras, without = image_set([0, 0], [7, 7]), image_set([0, 0])
    assert known_cameras(with_cameras, without) is known_cameras(without, with_cameras) is None
    assert known_cameras(without) is None
    assert count_matches(with_cameras).tolist() == [0, 0]
    assert count_matches(with_cameras, without).tolist() == [2, 2]
    assert count_matches(without, with_cameras).tolist() == [2, 2]
    assert count_matches(without).tolist() == [1, 1]


def families(sizes):
    """Return one image per class, in families of these sizes; the classes of the families alternate."""
    groups = [family for round_ in range(max(sizes)) for family, size in enumerate(sizes) if round_ < size]
    labels = torch.arange(len(groups))
    pixels = InMemory(torch.zeros(len(groups), 8, 8, 3, dtype=torch.uint8))
    names = tuple(str(label) for label in labels.tolist())
    return ImageSet(pixels, labels, names, names, groups=torch.tensor(groups))


def test_hold_out_takes_all_families_that_fit():
    sizes = [4, 3, 2, 2, 1, 1, 1]
    images = families(sizes)
    seen = set()
    for seed in range(30):
        rest, held = hold_out(images, 6, seed=seed, whole_groups=True)
        kept, away = rest.groups.unique().tolist(), held.groups.unique().tolist()
        assert not set(kept) & set(away), "no relative stays behind"
        assert sorted(kept + away) == list(range(7))
        assert len(held.names) == sum(sizes[family] for family in away) <= 6
        assert all(sizes[family] + len(held.names) > 6 for family in kept), "another would fit"
        seen.add(tuple(away))
    assert len(seen) > 5, "drawn by the seed"
    again = hold_out(images, 6, seed=3, whole_groups=True)[1]
    assert again.names == hold_out(images, 6, seed=3, whole_groups=True)[1].names


def test_family_larger_than_limit_is_not_held_out():
    rest, held = hold_out(families([4, 4, 3]), 5, seed=0, whole_groups=True)
    assert len(held.names) in (3, 4)
    assert len(rest.names) == 11 - len(held.names)
