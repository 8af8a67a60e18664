import math

import pytest
import torch

from divconq.analysis import (
    Hits,
    corrections,
    factors_of_subspaces,
    mask_cosine,
    mask_mass,
    positives,
    shared_dimensions,
    subspace,
    subspace_hits,
)
from divconq.evaluation import nmi, retrieval_scores
from divconq.masks import Masks


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(n, c, seed=0):
    return torch.randint(c, (n,), generator=torch.Generator().manual_seed(seed))


def hits_by_hand(f, labels, mask, gallery=None, gallery_labels=None):
    """Whether the nearest has the same class, for each query; None without positives."""
    x = [row / row.norm() for row in (f * mask.clamp(min=0)).double()]
    y = x if gallery is None else [row / row.norm() for row in (gallery * mask.clamp(min=0)).double()]
    names, found = labels if gallery is None else gallery_labels, []
    for i in range(len(x)):
        others = [j for j in range(len(y)) if gallery is not None or j != i]
        best = min(others, key=lambda j, i=i: float((x[i] - y[j]).norm()))
        has_any = any(names[j] == labels[i] for j in others)
        found.append(bool(names[best] == labels[i]) if has_any else None)
    return found


def test_mask_measures_match_plain_loops():
    masks = draw(4, 9)
    masks[3] = -1  # zero after relu
    cosine, shared, mass = mask_cosine(masks), shared_dimensions(masks, 0.3), mask_mass(masks)
    for i in range(4):
        a = [max(0.0, v) for v in masks[i].tolist()]
        assert float(mass[i]) == pytest.approx(sum(a))
        for j in range(4):
            b = [max(0.0, v) for v in masks[j].tolist()]
            lengths = math.hypot(*a) * math.hypot(*b)
            dot = sum(p * q for p, q in zip(a, b, strict=True))
            assert float(cosine[i, j]) == pytest.approx(dot / lengths if lengths else 0.0)
            both = sum(p > 0.3 * max(a) and q > 0.3 * max(b) for p, q in zip(a, b, strict=True))
            assert int(shared[i, j]) == both


def test_the_mean_cosine_is_the_overlap_of_training():
    masks = Masks(dim=9, k_max=4)
    masks.split_()
    masks.split_()
    masks.weight.data = draw(4, 9)
    cosine = mask_cosine(masks.active().detach())
    assert float((cosine.sum() - cosine.trace()) / 12) == pytest.approx(masks.overlap().item(), rel=1e-5)


def test_fixed_masks_share_nothing():
    masks = torch.eye(4).repeat_interleave(3, dim=1)
    assert shared_dimensions(masks).tolist() == (3 * torch.eye(4)).tolist()
    torch.testing.assert_close(mask_cosine(masks), torch.eye(4).double())


@pytest.mark.parametrize("with_gallery", [False, True])
def test_subspace_hits_match_plain_loops(with_gallery):
    f, labels, masks = draw(40, 6), classes(40, 9), draw(3, 6, seed=1).abs()
    masks[1, :3] = -1
    labels[0] = 77  # nothing to find
    gallery = (
        {"gallery": draw(25, 6, seed=2), "gallery_labels": classes(25, 9, seed=3)} if with_gallery else {}
    )
    hits = subspace_hits(f, labels, masks, **gallery)
    by_hand = [hits_by_hand(f, labels, mask, *gallery.values()) for mask in masks]
    final = hits_by_hand(f, labels, masks.clamp(min=0).sum(0), *gallery.values())
    asked = [i for i in range(40) if final[i] is not None]
    assert hits.queries.tolist() == asked
    assert 0 not in asked
    assert hits.each.tolist() == [[row[i] for i in asked] for row in by_hand]
    assert hits.final.tolist() == [final[i] for i in asked]
    assert hits.recalls() == pytest.approx([sum(row[i] for i in asked) / len(asked) for row in by_hand])


def test_recall_matches_the_evaluation():
    f, labels, masks = draw(60, 8), classes(60, 6), draw(4, 8, seed=1).abs()
    hits = subspace_hits(f, labels, masks)
    for mask, recall in zip(masks, hits.recalls(), strict=True):
        assert recall == pytest.approx(retrieval_scores(subspace(f, mask), labels, ks=(1,))["recall@1"])
    plain = subspace_hits(f, labels, masks, final=torch.ones(8))
    assert plain.final_recall() == pytest.approx(
        retrieval_scores(torch.nn.functional.normalize(f), labels, ks=(1,))["recall@1"]
    )


def test_some_queries_still_search_all_images():
    f, labels, masks = draw(40, 6), classes(40, 5), draw(2, 6, seed=1).abs()
    everything, some = subspace_hits(f, labels, masks), torch.tensor([30, 2, 5])
    part = subspace_hits(f, labels, masks, queries=some)
    assert part.queries.tolist() == [30, 2, 5]
    assert torch.equal(part.each, everything.each[:, some])


def test_the_length_of_f_does_not_matter():
    f, labels, masks = draw(40, 6), classes(40, 5), draw(2, 6, seed=1).abs()
    longer = f * torch.linspace(0.5, 20, 40)[:, None]
    assert torch.equal(subspace_hits(f, labels, masks).each, subspace_hits(longer, labels, masks).each)


def test_corrections_match_plain_loops():
    k, q = 5, 60
    generator = torch.Generator().manual_seed(0)
    each, final = torch.rand(k, q, generator=generator) < 0.5, torch.rand(q, generator=generator) < 0.5
    queries = torch.randperm(1000, generator=generator)[:q]
    helped, hurt = [], []
    for i in range(q):
        right = int(each[:, i].sum())
        if final[i] and k - right > k / 2:
            helped.append((right, i))
        if not final[i] and right > k / 2:
            hurt.append((-right, i))
    found = corrections(Hits(queries, each, final))
    assert found.helped.tolist() == [int(queries[i]) for _, i in sorted(helped)]
    assert found.hurt.tolist() == [int(queries[i]) for _, i in sorted(hurt)]
    assert len(helped) > 3
    assert len(hurt) > 3


def test_half_of_the_subspaces_is_no_majority():
    hits = Hits(torch.tensor([0]), torch.tensor([[True], [False]]), torch.tensor([True]))
    assert corrections(hits).helped.tolist() == []


def test_one_mask_and_no_masks_correct_nothing():
    f, labels = draw(30, 4), classes(30, 4)
    for masks in (torch.ones(1, 4), torch.ones(4, 4), torch.empty(0, 4)):
        hits = subspace_hits(f, labels, masks)
        assert hits.each.shape == (len(masks), 30)
        found = corrections(hits)
        assert len(found.helped) == len(found.hurt) == 0
    assert subspace_hits(f, labels, torch.zeros(2, 4)).each.shape == (2, 30)


@pytest.mark.parametrize("n", [0, 1, 6])
def test_nothing_to_find(n):
    hits = subspace_hits(draw(n, 4), torch.arange(n), torch.ones(2, 4))
    assert all(math.isnan(recall) for recall in (*hits.recalls(), hits.final_recall()))
    assert corrections(hits).helped.tolist() == []


def test_a_gallery_needs_its_labels():
    with pytest.raises(ValueError, match="go together, got only gallery_labels"):
        subspace_hits(draw(3, 4), classes(3, 2), torch.ones(2, 4), gallery_labels=classes(3, 2))


def test_positives_match_plain_loops():
    labels, gallery = classes(30, 8) * 1_000_000, classes(20, 9, seed=1) * 1_000_000
    assert positives(labels).tolist() == [labels.tolist().count(label) - 1 for label in labels.tolist()]
    assert positives(labels, gallery).tolist() == [gallery.tolist().count(label) for label in labels.tolist()]
    assert positives(torch.empty(0).long()).tolist() == []


def test_factors_of_subspaces_match_the_nmi_of_the_evaluation():
    colour, pose = classes(90, 3), classes(90, 2, seed=1)
    f = torch.cat([3 * torch.eye(3)[colour], 3 * torch.eye(2)[pose]], 1) + 0.2 * draw(90, 5)
    masks = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).float()
    factors = {"colour": colour, "pose": pose, "size": draw(90), "constant": torch.zeros(90).long()}
    table = factors_of_subspaces(f, masks, factors, seed=4)
    for k, mask in enumerate(masks):
        for column, labels in ((0, colour), (1, pose)):
            # The evaluation runs fewer iterations of k-means; here both converge.
            expected = nmi(subspace(f, mask), labels, seed=4, iterations=100)
            assert float(table.values[k, column]) == pytest.approx(expected, abs=1e-9)
    assert [best[0] for best in table.strongest()[:2]] == ["colour", "pose"]
    assert table.values[:, 3].isnan().all()
    nothing = factors_of_subspaces(f, torch.zeros(1, 5), {"colour": colour, "number": torch.arange(90)})
    assert nothing.values.isfinite().all()
    assert factors_of_subspaces(f, masks, {}).strongest() == [None] * 3
    assert factors_of_subspaces(f[:1], masks, {"colour": colour[:1]}).strongest() == [None] * 3
