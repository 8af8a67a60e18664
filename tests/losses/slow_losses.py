"""The losses as plain loops, and batches with many duplicates and ties to compare them on.

The coordinates are multiples of 2^-12, so squared distances and dot products are exact in float64 in any order of
summation, and equal distances are equal to the last bit.
"""

import itertools
import math

import torch
from hypothesis import strategies as st


def lattice_points():
    """The 24 unit vectors +-e_i and (+-1/2, +-1/2, +-1/2, +-1/2): many equal distances."""
    axes = torch.eye(4, dtype=torch.float64)
    halves = torch.tensor(list(itertools.product([-0.5, 0.5], repeat=4)), dtype=torch.float64)
    return torch.cat([axes, -axes, halves])


def random_points(seed, count=24, dim=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    return (x * 2**12).round() / 2**12


def random_uniform(seed, n, m=None):
    return torch.rand(n, m or n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def batches(draw):
    """Embeddings and labels; drawn from few points and few classes, so that both repeat."""
    points = draw(st.one_of(st.just(lattice_points()), st.integers(0, 99).map(random_points)))
    rows = draw(st.lists(st.tuples(st.integers(0, 23), st.integers(0, 3)), min_size=1, max_size=9))
    return points[[row for row, _ in rows]], torch.tensor([label for _, label in rows])


def assert_same(loss, slow, x, parameters=()):
    """Value and gradients, with respect to the embeddings and to ``parameters``, agree to 1e-9."""
    results = []
    for function in (loss, slow):
        leaf = x.clone().requires_grad_()
        value = function(leaf)
        results.append([value, *torch.autograd.grad(value, [leaf, *parameters])])
    for fast, twin in zip(*results, strict=True):
        torch.testing.assert_close(fast, twin, rtol=0, atol=1e-9)


def distance(u, v):
    """The Euclidean distance, with gradient 0 at 0."""
    square = ((u - v) ** 2).sum()
    return square.sqrt() if square > 0 else square


def pairs(labels, keys=None):
    """(anchor, its positives, its negatives) for every anchor, among the batch or among ``keys`` (y, their labels)."""
    labels = labels.tolist()
    others = labels if keys is None else keys[1].tolist()
    for a, label in enumerate(labels):
        positives = [i for i, other in enumerate(others) if other == label and (keys is not None or i != a)]
        negatives = [i for i, other in enumerate(others) if other not in (label, -1)]
        yield a, positives, negatives


def participants(labels, keys=None):
    """The same for every anchor that has both."""
    return (found for found in pairs(labels, keys) if found[1] and found[2])


def mean(terms, x):
    return sum(terms) / len(terms) if terms else 0 * x.sum()


def log_weight(r, dim):
    """The logarithm of the weight with which a negative at the distance ``r`` is drawn."""
    r = max(r, 0.5)
    return -(dim - 2) * math.log(r) - (dim - 3) / 2 * math.log(max(1 - r * r / 4, 2**-52))


def slow_draw(d, u, dim, cutoff):
    """Return the candidate at ``u`` of the cumulative weights, or None without candidates.

    ``d`` maps each negative to its distance.
    """
    candidates = [n for n in d if d[n] < cutoff]
    if not candidates:
        return None
    highest = max(log_weight(d[n], dim) for n in candidates)
    weights = [math.exp(log_weight(d[n], dim) - highest) for n in candidates]
    reached = 0.0
    for n, weight in zip(candidates, weights, strict=True):
        reached += weight
        if reached > u * sum(weights):
            return n
    return None


def slow_draws_without_replacement(d, u, dim, cutoff, count):
    """Return ``count`` candidates without replacement, padded with None; ``u`` has a number for each.

    The first candidate is the one with the shortest exponential waiting time -log(u) / weight.
    """
    waits = {n: math.log(-math.log(u[n])) - log_weight(d[n], dim) for n in d if d[n] < cutoff}
    return [*sorted(waits, key=waits.get), *[None] * count][:count]


def slow_margin(x, labels, uniform, alpha, betas, without_replacement=False, equal_pairs=False, keys=None):
    """``betas`` has one entry for each row of the batch."""
    total, weights, y = 0 * x.sum(), 0.0, x if keys is None else keys[0]
    for a, positives, negatives in participants(labels, keys):
        d = {n: distance(x[a], y[n]).item() for n in negatives}
        cutoff = betas[a].item() + alpha
        if without_replacement:
            drawn = slow_draws_without_replacement(d, uniform[a].tolist(), x.shape[1], cutoff, len(positives))
        else:
            drawn = [slow_draw(d, uniform[a, p].item(), x.shape[1], cutoff) for p in positives]
        weight = 1 / len(positives) if equal_pairs else 1.0
        for p, n in zip(positives, drawn, strict=True):
            terms = [distance(x[a], y[p]) - betas[a] + alpha]
            terms += [] if n is None else [betas[a] - distance(x[a], y[n]) + alpha]
            for term in terms:
                if term > 0:
                    total, weights = total + weight * term, weights + weight
    return (total / weights if weights else total) + 0 * sum(betas)


def slow_semi_hard(d, positive, negatives):
    """Of equally near negatives the first, of equally far ones the last; ``d`` is the anchor's row."""
    farther = [n for n in negatives if d[n] > d[positive]]
    if farther:
        return min(farther, key=lambda n: (d[n], n))
    return max(negatives, key=lambda n: (d[n], n))


def slow_triplet(x, labels, alpha, squared=True, all_pairs=False, keys=None):
    terms, y = [], x if keys is None else keys[0]
    for a, positives, negatives in participants(labels, keys):
        far = [((x[a] - y[i]) ** 2).sum() if squared else distance(x[a], y[i]) for i in range(len(y))]
        for p in positives:
            term = far[p] - far[slow_semi_hard([v.item() for v in far], p, negatives)] + alpha
            if term > 0:
                terms.append(term)
            elif all_pairs:
                terms.append(0 * term)
    return mean(terms, x)


def slow_soft_triplet(x, labels, keys=None):
    terms, y = [], x if keys is None else keys[0]
    for a, positives, negatives in participants(labels, keys):
        d = [distance(x[a], y[i]) for i in range(len(y))]
        for p in positives:
            n = slow_semi_hard([v.item() for v in d], p, negatives)
            terms.append(torch.log(1 + torch.exp(d[p] - d[n])))
    return mean(terms, x)


def slow_npairs(x, labels, scale, keys=None):
    terms, y = [], x if keys is None else keys[0]
    for a, positives, negatives in participants(labels, keys):
        total = sum(torch.exp(scale * (x[a] @ y[j])) for j in positives + negatives)
        terms.append(mean([-torch.log(torch.exp(scale * (x[a] @ y[p])) / total) for p in positives], x))
    return mean(terms, x) + 0 * scale


def slow_multi_similarity(x, labels, *, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1, mine=True, keys=None):
    total, y = 0 * x.sum(), x if keys is None else keys[0]
    for a, positives, negatives in pairs(labels, keys):
        s = [x[a] @ y[i] for i in range(len(y))]
        if mine and positives and negatives:
            nearest, farthest = max(s[n] for n in negatives), min(s[p] for p in positives)
            positives = [p for p in positives if s[p] - epsilon < nearest]
            negatives = [n for n in negatives if s[n] + epsilon > farthest]
        elif mine:
            continue
        total = (
            total
            + torch.log(1 + sum(torch.exp(-alpha * (s[p] - base)) for p in positives) + 0 * x[a].sum())
            / alpha
        )
        total = (
            total
            + torch.log(1 + sum(torch.exp(beta * (s[n] - base)) for n in negatives) + 0 * x[a].sum()) / beta
        )
    return total / len(x)


def slow_proxy_anchor(x, labels, proxies, *, alpha=32.0, margin=0.1, mask=None):
    attract, repel, present = 0 * x.sum(), 0 * x.sum(), 0
    for c in range(len(proxies)):
        proxy = proxies[c] if mask is None else proxies[c] * mask
        proxy = proxy / proxy.norm()
        own = [alpha * (margin - x[i] @ proxy) for i in range(len(x)) if labels[i] == c]
        others = [alpha * (margin + x[i] @ proxy) for i in range(len(x)) if labels[i] != c]
        present += bool(own)
        attract = attract + torch.log(1 + sum(map(torch.exp, own)) + 0 * proxy.sum())
        repel = repel + torch.log(1 + sum(map(torch.exp, others)) + 0 * proxy.sum())
    return attract / present + repel / len(proxies)
