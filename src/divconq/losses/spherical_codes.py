"""How far apart points on a sphere can be, which limits what a loss can ask of class centres."""

import math

HALVINGS = 60  # of the interval that holds the cosine of the smallest angle


def reachable_distance(classes: int, dim: int) -> float:
    """Return an upper bound on the smallest distance of ``classes`` points on the unit sphere in ``dim`` dimensions.

    For C points in D dimensions it is ``sqrt(2 C / (C - 1))`` up to C = D + 1, where a simplex reaches it, and
    ``sqrt(2)`` up to C = 2 D (Rankin, 1955). Beyond, it is the bound of Levenshtein (1979), which the icosahedron and
    the shortest vectors of the lattices E8 and Leech reach.

    >>> [round(reachable_distance(classes, dim=16), 2) for classes in (2, 17, 32, 100, 400)]
    [2.0, 1.46, 1.41, 1.3, 1.2]
    """
    if classes <= 1:
        return 2.0
    if classes <= dim + 1:
        return math.sqrt(2 * classes / (classes - 1))
    if classes <= 2 * dim:
        return math.sqrt(2)
    if dim <= 2:
        return 0.0 if dim == 1 else 2 * math.sin(math.pi / classes)
    return math.sqrt(2 - 2 * _smallest_cosine(classes, dim))


def _smallest_cosine(classes: int, dim: int) -> float:
    """Return the s for which Levenshtein's bound on the number of points with cosines up to s is ``classes``."""
    from scipy.special import roots_jacobi

    degree = 3
    while _design(degree + 1, dim) < classes:
        degree += 1
    k, a = (degree + 1) // 2, (dim - 3) / 2
    middle = roots_jacobi(k, a + 1, a)[0].max()
    if degree % 2:
        low, high = roots_jacobi(k - 1, a + 1, a + 1)[0].max(), middle
    else:
        low, high = middle, roots_jacobi(k, a + 1, a + 1)[0].max()
    for _ in range(HALVINGS):
        s = (low + high) / 2
        low, high = (s, high) if _most_points(s, degree, dim) < classes else (low, s)
    return float(low)


def _design(degree: int, dim: int) -> int:
    """Return the least number of points of a spherical design. Bounds of two degrees meet there."""
    k = (degree + 1) // 2
    if degree % 2:
        return 2 * math.comb(dim + k - 2, k - 1)
    return math.comb(dim + k - 1, k) + math.comb(dim + k - 2, k - 1)


def _most_points(s: float, degree: int, dim: int) -> float:
    """Return Levenshtein's bound of one degree on the number of points whose cosines are at most ``s``."""
    k = (degree + 1) // 2
    before, p, after = _gegenbauer(s, k, dim)
    if degree % 2:
        return math.comb(k + dim - 3, k - 1) * ((2 * k + dim - 3) / (dim - 1) - (before - p) / ((1 - s) * p))
    ratio = (1 + s) * (p - after) / ((1 - s) * (p + after))
    return math.comb(k + dim - 2, k) * ((2 * k + dim - 1) / (dim - 1) - ratio)


def _gegenbauer(s: float, k: int, dim: int) -> tuple[float, float, float]:
    """Return the Gegenbauer polynomials of degree k - 1, k and k + 1 at ``s``, scaled to 1 at 1."""
    before, p, after = 0.0, 1.0, s
    for i in range(1, k + 1):
        before, p, after = p, after, ((2 * i + dim - 2) * s * after - i * p) / (i + dim - 2)
    return before, p, after
