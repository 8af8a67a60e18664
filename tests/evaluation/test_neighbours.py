import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from divconq.accel.coordinates import wide_coordinates
from divconq.evaluation.neighbours import (
    BUDGET,
    BYTES_PER_KEY,
    COLUMNS,
    HIDDEN,
    ROWS,
    _best_keys,
    _better_keys,
    _keys,
    _offsets,
    _score,
    _scores,
    _top,
    nearest,
    plan,
)

MODULE = sys.modules["divconq.evaluation.neighbours"]


@pytest.fixture(params=["float32", "float64"])
def either_search(request, monkeypatch):
    """Both searches in turn, whatever the vectors are."""
    wide = {"float32": lambda query, gallery: None, "float64": lambda q, g: wide_coordinates(q.double(), g)}
    monkeypatch.setattr(MODULE, "wide_coordinates", wide[request.param])


def random_points(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def smallest_budget(k):
    return ROWS * (k + COLUMNS) * BYTES_PER_KEY


def all_nearest(*args, **options):
    return torch.cat(list(nearest(*args, **options)))


def nearest_by_hand(query, gallery, k, exclude=None):
    """Sort all distances, in float64; of equals the lower index first."""
    rows = []
    for q, point in enumerate(query.double()):
        others = [i for i in range(len(gallery)) if exclude is None or i != int(exclude[q])]
        distance = [float((point - y).square().sum()) for y in gallery.double()]
        rows.append(sorted(others, key=lambda i: (distance[i], i))[:k])
    return torch.tensor(rows)


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize(
    ("q", "g", "d", "k"), [(1, 1, 1, 1), (20, 30, 5, 7), (70, 50, 3, 50), (65, 90, 16, 1)]
)
def test_neighbours_equal_those_of_a_sort(q, g, d, k):
    query, gallery = random_points(q, d, 0), random_points(g, d, 1)
    assert torch.equal(all_nearest(query, gallery, k), nearest_by_hand(query, gallery, k))


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize("k", [1, 5, 59])
def test_a_query_does_not_find_itself(k):
    x = random_points(60, 4, 0)
    me = torch.arange(60)
    found = all_nearest(x, x, k, exclude=me)
    assert torch.equal(found, nearest_by_hand(x, x, k, exclude=me))
    assert not bool((found == me[:, None]).any())


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize("k", [1, 8, 50])
def test_images_of_an_excluded_mark_are_not_found(k, monkeypatch):
    """Fewer than k may be left; -1 fills the rest. Whole numbers: many distances are equal."""
    monkeypatch.setattr(MODULE, "COLUMNS", 16)
    generator = torch.Generator().manual_seed(k)
    query = torch.randint(0, 4, (90, 2), generator=generator).float()
    gallery = torch.randint(0, 4, (50, 2), generator=generator).float()
    exclude = torch.randint(0, 4, (90,), generator=generator)
    marks = torch.randint(0, 3, (50,), generator=generator)
    found = all_nearest(query, gallery, k, exclude=exclude, marks=marks, budget=ROWS * 200 * BYTES_PER_KEY)
    for q, row in enumerate(found.tolist()):
        left = [i for i in range(50) if marks[i] != exclude[q]]
        ranking = sorted(left, key=lambda i: (float((query[q] - gallery[i]).square().sum()), i))[:k]
        assert row == ranking + [-1] * (k - len(ranking))


def test_marks_need_something_to_exclude():
    x = random_points(3, 2, 0)
    with pytest.raises(ValueError, match="marks need exclude, got None"):
        next(nearest(x, x, 1, marks=torch.arange(3)))


def test_a_twin_is_found_where_the_query_is_not():
    x = random_points(5, 4, 0).repeat(2, 1)
    found = all_nearest(x, x, 1, exclude=torch.arange(10)).flatten()
    assert found.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]


def test_ranks_by_euclidean_distance_not_by_product():
    gallery = torch.tensor([[10.0, 0.0], [1.0, 0.2]])
    assert all_nearest(torch.tensor([[1.0, 0.0]]), gallery, 2).tolist() == [[1, 0]]


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("copies", [2, 7, 60])
def test_equal_images_are_found_in_order(copies, small, monkeypatch):
    """Products of unit vectors are rounded; equal images must tie at every place of a block."""
    if small:
        monkeypatch.setattr(MODULE, "COLUMNS", 64)
    k, distinct = 40, 37
    gallery = normalize(random_points(distinct, 100, 0)).repeat(copies, 1)
    query = normalize(random_points(70, 100, 1))
    found = all_nearest(query, gallery, k, budget=ROWS * (k + MODULE.COLUMNS) * BYTES_PER_KEY)
    original, copy = found % distinct, found // distinct
    for row in range(len(query)):
        runs = [copy[row, original[row] == o].tolist() for o in original[row].unique()]
        assert all(run == list(range(len(run))) for run in runs)
        assert sum(len(run) < copies for run in runs) <= 1


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize("columns", [64, 256, COLUMNS])
def test_collapsed_embeddings_are_found_in_order(columns, monkeypatch):
    monkeypatch.setattr(MODULE, "COLUMNS", columns)
    x = normalize(random_points(1, 100, 3)).expand(300, -1)
    found = all_nearest(x, x, 5, exclude=torch.arange(300))
    assert found[10:].tolist() == [[0, 1, 2, 3, 4]] * 290
    assert found[2].tolist() == [0, 1, 3, 4, 5]


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize("k", [1, 30, 2500])
def test_the_budget_does_not_matter(k):
    """A gallery of several blocks, some images twice."""
    gallery = normalize(random_points(2 * COLUMNS, 8, 0))
    gallery = torch.cat([gallery, gallery[:500]])
    query, me = gallery[::33], torch.arange(0, len(gallery), 33)
    large = all_nearest(query, gallery, k, exclude=me)
    assert torch.equal(large, all_nearest(query, gallery, k, exclude=me, budget=smallest_budget(k)))


def all_scores(query, gallery):
    space = torch.full((4 * ROWS, 4 * COLUMNS), math.nan)
    scores = _scores(query, gallery, _offsets(gallery), space)
    assert bool((scores[:, len(gallery) :] == -math.inf).all())
    return scores[:, : len(gallery)].clone()


def test_scores_do_not_depend_on_the_other_rows():
    query, gallery = random_points(ROWS + 9, 33, 0), random_points(COLUMNS + 77, 33, 1)
    whole = all_scores(query, gallery)
    assert torch.equal(whole[:ROWS], all_scores(query[:ROWS], gallery))
    assert torch.equal(whole[5:6], all_scores(query[5:6], gallery))
    assert torch.equal(whole[:, COLUMNS:], all_scores(query, gallery[COLUMNS:]))
    expected = query.double() @ gallery.double().T - gallery.double().square().sum(1) / 2
    assert torch.allclose(whole.double(), expected, atol=1e-4)


floats = st.floats(width=32, allow_nan=False).filter(lambda x: x > -math.inf)


@given(a=floats, b=floats, i=st.integers(0, 2**31), j=st.integers(0, 2**31))
@settings(max_examples=300, deadline=None)
def test_keys_sort_by_score_then_by_lower_index(a, b, i, j):
    keys = _keys(torch.tensor([[a, b]]), torch.tensor([i, j]))
    left, right = keys[0].tolist()
    assert (left > right) == ((a, -i) > (b, -j))
    assert (left == right) == ((a, i) == (b, j))
    assert min(left, right) > torch.iinfo(torch.int64).min


def test_keys_of_special_scores():
    scores = [math.inf, 3e38, 1.0, 1e-45, 0.0, -0.0, -1e-45, -1.0, -3e38, -math.inf]
    keys = _keys(torch.tensor([scores]), torch.arange(len(scores)))[0].tolist()
    assert keys == sorted(keys, reverse=True)
    assert keys[-1] == HIDDEN < keys[-2]
    zeros = _keys(torch.tensor([[-0.0, 0.0]]), torch.tensor([4, 4]))[0].tolist()
    assert zeros[0] == zeros[1]


@given(score=floats, index=st.integers(0, 2**31))
def test_a_key_holds_its_score(score, index):
    keys = _keys(torch.tensor([[score, -math.inf]]), torch.tensor([index, index]))
    assert _score(keys).tolist() == [[score, -math.inf]]


@pytest.mark.parametrize("levels", [3, 10**6])
@pytest.mark.parametrize(("width", "k"), [(64, 1), (64, 9), (1024, 5), (1000, 3), (30, 30)])
def test_the_best_of_groups_are_the_best(width, k, levels):
    scores = torch.randint(0, levels, (50, width), generator=torch.Generator().manual_seed(k)).float()
    scores[:, ::3] = -math.inf
    values, place = _top(scores, k)
    assert torch.equal(values, scores.topk(k).values)
    assert torch.equal(scores.gather(1, place), values)
    assert all(len(set(row)) == k for row in place.tolist())


@pytest.mark.parametrize("order", ["random", "rising", "falling", "hidden"])
@pytest.mark.parametrize("k", [1, 7])
def test_later_columns_are_taken_only_if_better(order, k):
    """Whatever the order the columns come in, and with many equal scores."""
    scores = torch.randint(0, 90, (40, 256), generator=torch.Generator().manual_seed(k)).float()
    if order in ("rising", "falling"):
        scores = scores.sort(1, descending=order == "falling").values
    if order == "hidden":
        scores[:, :70] = -math.inf
    best = _best_keys(scores[:, :64], 0, k)
    for start in range(64, 256, 64):
        found = _better_keys(scores[:, start : start + 64], start, k, best)
        best = torch.cat([best, found], 1).topk(k).values
    assert torch.equal(best, _keys(scores, torch.arange(256)).topk(k).values)


@given(k=st.integers(1, 10**6), gallery=st.integers(1, 10**7), budget=st.integers(1, 2**36))
@settings(max_examples=300, deadline=None)
def test_plans_keep_to_the_budget(k, gallery, budget):
    if budget < smallest_budget(k):
        with pytest.raises(ValueError, match=f"at least {smallest_budget(k)} bytes"):
            plan(k, gallery, budget, (ROWS, COLUMNS))
        return
    rows, columns = plan(k, gallery, budget, (ROWS, COLUMNS))
    assert rows * (k + columns) * BYTES_PER_KEY <= budget
    assert rows > 0
    assert columns > 0
    assert rows % ROWS == columns % COLUMNS == 0


def test_the_plan_is_followed(monkeypatch):
    held = []
    keys = MODULE._keys
    monkeypatch.setattr(
        MODULE, "_keys", lambda scores, index: held.append(scores.shape) or keys(scores, index)
    )
    k, x = 100, normalize(random_points(3 * COLUMNS, 2, 0))
    blocks = list(nearest(x[: 2 * ROWS + 9], x, k, budget=smallest_budget(k)))
    assert [len(block) for block in blocks] == [ROWS, ROWS, 9]
    assert max(math.prod(shape) for shape in held) * BYTES_PER_KEY <= smallest_budget(k)


def test_a_default_budget_finds_ten_thousand_neighbours():
    rows, columns = plan(10_000, 10**8, BUDGET, (ROWS, COLUMNS))
    assert rows >= ROWS
    assert columns >= 10_000


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_converted(dtype):
    x = random_points(50, 4, 0).to(dtype)
    assert torch.equal(all_nearest(x, x, 3), all_nearest(x.float(), x.float(), 3))


def test_autocast_has_no_effect():
    x = random_points(200, 64, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = all_nearest(x, x, 50)
    assert torch.equal(inside, all_nearest(x, x, 50))


@pytest.mark.parametrize(("k", "exclude"), [(0, None), (4, None), (3, torch.arange(3))])
def test_k_must_be_findable(k, exclude):
    x = random_points(3, 2, 0)
    with pytest.raises(ValueError, match="k must lie between 1 and"):
        next(nearest(x, x, k, exclude=exclude))


@pytest.mark.gpu
def test_cuda_and_cpu_agree():
    x = torch.randint(-8, 8, (3000, 16), generator=torch.Generator().manual_seed(0)).float()
    me = torch.arange(len(x))
    on_device = all_nearest(x.cuda(), x.cuda(), 700, exclude=me.cuda())
    assert torch.equal(on_device.cpu(), all_nearest(x, x, 700, exclude=me))
    hidden = {"exclude": me % 3, "marks": me % 4}
    on_device = all_nearest(x.cuda(), x.cuda(), 2500, **{name: mark.cuda() for name, mark in hidden.items()})
    assert torch.equal(on_device.cpu(), all_nearest(x, x, 2500, **hidden))


@pytest.mark.gpu
def test_the_budget_holds_on_cuda():
    x, k, budget = random_points(60_000, 64, 0).cuda(), 5000, 700 << 20
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in nearest(x[:3000], x, k, budget=budget):
        pass
    assert torch.cuda.max_memory_allocated() - before <= budget
