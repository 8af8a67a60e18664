import pytest
import torch
from torch.nn.functional import normalize

from divconq.evaluation.reid import draw_one_each, one_gallery_image


def vehicles(sizes, seed=0):
    """Unit vectors around a centre for each identity, in mixed order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((size,), 5 * i + 2) for i, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    centres = torch.randn(int(labels.max()) + 1, 4, generator=generator)
    return normalize(centres[labels] + torch.randn(len(labels), 4, generator=generator)), labels


def by_hand(x, labels, draws, seed, ks):
    """One query after the other; the gallery has the first image of each identity in a random order."""
    generator = torch.Generator().manual_seed(seed)
    totals = {f"recall@{k}": 0.0 for k in ks}
    for _ in range(draws):
        gallery = {}
        for i in torch.randperm(len(labels), generator=generator).tolist():
            gallery.setdefault(int(labels[i]), i)
        queries = [i for i in range(len(labels)) if i not in gallery.values()]
        for query in queries:
            distance = {
                label: float((x[query].double() - x[i].double()).norm()) for label, i in gallery.items()
            }
            ranking = sorted(gallery, key=distance.get)
            for k in ks:
                totals[f"recall@{k}"] += (int(labels[query]) in ranking[:k]) / len(queries) / draws
    return totals


@pytest.mark.parametrize("sizes", [(4,) * 10, (2, 1, 7, 3, 1, 12), (2, 2)])
@pytest.mark.parametrize("seed", [0, 5])
def test_recalls_equal_those_of_plain_loops(sizes, seed):
    x, labels = vehicles(sizes)
    ks = (1, 2)
    ours = one_gallery_image(x, labels, draws=3, seed=seed, ks=ks)
    assert ours == pytest.approx(by_hand(x, labels, 3, seed, ks), abs=1e-12)


def test_the_mean_is_over_different_draws():
    x, labels = vehicles((6,) * 12)
    single = [one_gallery_image(x, labels, draws=1, seed=seed)["recall@1"] for seed in range(6)]
    assert len(set(single)) > 1
    assert one_gallery_image(x, labels, draws=4) == one_gallery_image(x, labels, draws=4)
    assert one_gallery_image(x, labels, draws=4) != one_gallery_image(x, labels, draws=1)


def test_all_images_are_equally_likely():
    labels = torch.tensor([8, 1, 8, 1, 8, 1, 3])
    generator = torch.Generator().manual_seed(0)
    times = torch.zeros(len(labels))
    for _ in range(3000):
        drawn = draw_one_each(labels, generator)
        assert labels[drawn].tolist() == [1, 3, 8]
        times[drawn] += 1
    assert times[6] == 3000
    assert (times[:6] - 1000).abs().max() < 130  # five standard deviations


def test_errors():
    x, labels = vehicles((2, 3))
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        one_gallery_image(x, labels, draws=0)
    with pytest.raises(ValueError, match="at least one identity must have two images, got 5 identities"):
        one_gallery_image(x, torch.arange(5))
    with pytest.raises(ValueError, match=r"ks must lie between 1 and the 2 images .* got \(1, 5\)"):
        one_gallery_image(x, labels)
