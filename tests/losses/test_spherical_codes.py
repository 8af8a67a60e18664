"""Known optimal configurations reach the bound: Cohn and Kumar, Universally Optimal Distribution of Points, table 1."""

import math

import pytest
import torch

from divconq.losses.spherical_codes import reachable_distance

SHARP = [  # dimensions, points, largest cosine
    (2, 3, -1 / 2),
    (2, 7, math.cos(2 * math.pi / 7)),
    (2, 100, math.cos(2 * math.pi / 100)),
    (3, 4, -1 / 3),
    (3, 6, 0),
    (3, 12, 1 / math.sqrt(5)),  # icosahedron
    (4, 120, (1 + math.sqrt(5)) / 4),  # 600-cell
    (5, 16, 1 / 5),
    (6, 27, 1 / 4),
    (7, 56, 1 / 3),
    (8, 240, 1 / 2),  # E8
    (21, 162, 1 / 7),
    (22, 275, 1 / 6),
    (22, 891, 1 / 4),
    (23, 552, 1 / 5),
    (23, 4600, 1 / 3),
    (24, 196560, 1 / 2),  # Leech lattice
    (128, 129, -1 / 128),
    (128, 200, 0),
    (1, 2, -1),
    (512, 2, -1),
]


@pytest.mark.parametrize(("dim", "points", "cosine"), SHARP)
def test_the_best_configurations_reach_it(dim, points, cosine):
    if (dim, points) == (4, 120):  # optimal, but not by this bound
        assert reachable_distance(points, dim) == pytest.approx(math.sqrt(2 - 2 * cosine), rel=0.01)
        assert reachable_distance(points, dim) >= math.sqrt(2 - 2 * cosine)
    else:
        assert reachable_distance(points, dim) == pytest.approx(math.sqrt(2 - 2 * cosine), abs=1e-9)


def test_the_24_cell_and_the_cube_are_below_it():
    cube, cell = 2 / math.sqrt(3), 1.0
    assert cube < reachable_distance(8, 3) < math.sqrt(2)
    assert cell < reachable_distance(24, 4) < 1.05


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 16, 64])
def test_more_classes_come_nearer_and_more_dimensions_leave_more_room(dim):
    counts = [*range(1, 70), 100, 1000, 10_000]
    reached = [reachable_distance(classes, dim) for classes in counts]
    assert reached == sorted(reached, reverse=True)
    assert all(math.isfinite(d) and 0 <= d <= 2 for d in reached)
    for classes, distance in zip(counts, reached, strict=True):
        assert reachable_distance(classes, dim + 1) >= distance


@pytest.mark.parametrize(("classes", "dim"), [(5, 2), (7, 3), (20, 3), (13, 4), (40, 5), (100, 6)])
def test_points_that_repel_each_other_stay_below_it(classes, dim):
    x = torch.nn.functional.normalize(torch.randn(classes, dim, generator=torch.Generator().manual_seed(0)))
    for step in range(400):
        x.requires_grad_(True)
        d = torch.pdist(x)
        (gradient,) = torch.autograd.grad((-30 * d).logsumexp(0), x)
        x = torch.nn.functional.normalize(x.detach() - 0.3 / (step + 10) * gradient)
    nearest, bound = torch.pdist(x).min().item(), reachable_distance(classes, dim)
    assert 0.75 * bound < nearest <= bound + 1e-6, "a bound, and not far away"


def test_large_spheres_and_many_classes_are_finite():
    assert 1.3 < reachable_distance(10**6, 512) < 1.4
    assert 1.41 < reachable_distance(10**6, 65_536) < math.sqrt(2)
    assert 0 < reachable_distance(10**6, 3) < 0.01
