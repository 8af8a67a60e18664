import numpy as np
import pytest
import torch

from divconq.data.protocol import ImageSet, InMemory, count_matches, known_cameras


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
def test_matches_are_those_of_plain_loops(with_gallery, same_camera):
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


def test_cameras_must_be_known_on_both_sides():
    with_cameras, without = image_set([0, 0], [7, 7]), image_set([0, 0])
    assert known_cameras(with_cameras, without) is known_cameras(without, with_cameras) is None
    assert known_cameras(without) is None
    assert count_matches(with_cameras).tolist() == [0, 0]
    assert count_matches(with_cameras, without).tolist() == [2, 2]
    assert count_matches(without, with_cameras).tolist() == [2, 2]
    assert count_matches(without).tolist() == [1, 1]
