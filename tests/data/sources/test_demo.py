import dataclasses
import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from divconq.data.sources import demo as module
from divconq.data.sources import demo_cache
from divconq.data.sources.demo import CIRCUMSTANCES, FAMILIES, IMAGES, LIVERY, TRAITS, demo_dataset
from divconq.data.sources.demo_rendering import Beetles, _Body, render


@pytest.fixture(scope="module")
def data():
    return demo_dataset()


@pytest.fixture(params=["train", "test"])
def images(data, request):
    return getattr(data, request.param)


def beetle(**changes):
    """Return one straight, centred beetle with uniform light."""
    numbers = dict.fromkeys((f.name for f in dataclasses.fields(Beetles)), torch.tensor([0.3]))
    numbers |= {name: torch.full((1, 3), 0.5) for name in ("ground", "marking", "thorax", "limbs", "cast")}
    numbers |= {name: torch.tensor([0]) for name in ("pattern", "background")}
    numbers |= {name: torch.tensor([0.0]) for name in ("heading", "roll", "pitch", "gait", "light", "phase")}
    numbers |= {"shift": torch.zeros(1, 2), "scale": torch.ones(1), "squareness": torch.tensor([2.5])}
    return Beetles(**numbers | {name: torch.tensor([value]) for name, value in changes.items()})


def body(**changes):
    ticks = torch.arange(72) - 35.5
    return _Body(beetle(**changes), ticks.reshape(1, 1, 72), -ticks.reshape(1, 72, 1))


def test_counts_shapes_and_dtypes(data):
    assert (len(data.train), len(data.test), data.gallery) == (2400, 1200, None)
    for part, classes in ((data.train, 80), (data.test, 40)):
        assert part.store.images.shape == (len(part), 72, 72, 3)
        assert part.store.images.dtype == torch.uint8
        assert part.labels.bincount().tolist() == [IMAGES] * classes
        assert len(part.names) == classes
        assert len(part.paths) == len(part)


def test_species_are_distinct_and_splits_disjoint(data):
    names = data.train.names + data.test.names
    assert len(set(names)) == len(names) == 120
    seen = set()
    for part in (data.train, data.test):
        for c in range(len(part.names)):
            of_class = part.labels == c
            seen.add(
                tuple(int(part.factors[t][of_class][i]) for t in ("family", *TRAITS, *LIVERY) for i in (0, 1))
            )
    assert len(seen) == 120


def test_paths_name_split_species_and_number(data):
    paths = data.train.paths + data.test.paths
    assert len(set(paths)) == 3600
    for part, split in ((data.train, "train"), (data.test, "test")):
        i = 37
        name = part.names[part.labels[i]].replace(" ", "-")
        assert part.paths[i] == f"{split}/{name}_{i % IMAGES:04d}"


def test_images_depend_only_on_seed(monkeypatch):
    monkeypatch.setattr(module, "IMAGES", 2)
    state = torch.get_rng_state()
    first, again, other = demo_dataset(0), demo_dataset(0), demo_dataset(1)
    assert torch.equal(torch.get_rng_state(), state)
    for split in ("train", "test"):
        one, two, three = (getattr(d, split) for d in (first, again, other))
        assert torch.equal(one.store.images, two.store.images)
        assert torch.equal(one.labels, two.labels)
        assert (one.names, one.paths) == (two.names, two.paths)
        assert all(torch.equal(one.factors[name], two.factors[name]) for name in one.factors)
        assert not any(torch.equal(a, b) for a, b in zip(one.store.images, three.store.images, strict=True))
        assert len(set(one.names) & set(three.names)) < 8


def test_every_image_is_different(data):
    pictures = torch.cat([data.train.store.images, data.test.store.images])
    assert len({picture.numpy().tobytes() for picture in pictures}) == 3600


def test_factors_are_known_for_every_image(images):
    assert {"mode", "mirrored", "heading", "brightness", "hue", *TRAITS, *LIVERY, *CIRCUMSTANCES} <= set(
        images.factors
    )
    for name, values in images.factors.items():
        assert values.shape == (len(images),), name
        assert values.dtype in (torch.int64, torch.float32), name
        assert values.unique().numel() > 1, name


def test_families_are_in_both_splits_and_species_have_one_family(images):
    assert images.groups.unique().tolist() == list(range(len(FAMILIES)))
    for c, name in enumerate(images.names):
        (family,) = images.groups[images.labels == c].unique().tolist()
        assert name.endswith(tuple(FAMILIES)[family])


def test_modes_share_the_shape_and_differ_in_pattern(images):
    counts = set()
    for c in range(len(images.names)):
        of_class = images.labels == c
        modes = images.factors["mode"][of_class]
        sizes = modes.bincount()
        counts.add(len(sizes))
        assert sizes.min() >= 10
        patterns = images.factors["pattern"][of_class]
        assert len({(m, p) for m, p in zip(modes.tolist(), patterns.tolist(), strict=True)}) == len(sizes)
        assert patterns.unique().numel() == len(sizes)
        assert all(images.factors[trait][of_class].unique().numel() == 1 for trait in TRAITS)
    assert counts == {2, 3}


def test_relatives_share_some_traits(data):
    names = (*TRAITS, *LIVERY)
    rows = torch.stack([data.train.factors[name][::IMAGES] for name in names], 1)
    family = data.train.groups[::IMAGES]
    shared = (rows[:, None] == rows[None]).float().mean(2).fill_diagonal_(0)
    nearest = shared.where(family[:, None] == family[None], 0).amax(1)
    strangers = shared.where(family[:, None] != family[None], torch.nan).nanmean()
    assert nearest.min() > strangers
    assert nearest.mean() > 0.5


@pytest.mark.parametrize("factor", CIRCUMSTANCES)
def test_circumstances_predict_class_only_in_training_images(data, factor):
    def nmi(part, order):
        return normalized_mutual_info_score(part.labels, part.factors[factor][order])

    def chance(part):
        shuffled = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
        return nmi(part, shuffled)

    assert nmi(data.train, slice(None)) > chance(data.train) + 0.15
    assert nmi(data.test, slice(None)) == pytest.approx(chance(data.test), abs=0.02)


@pytest.mark.parametrize("factor", CIRCUMSTANCES)
def test_favourite_has_probability_four_fifths(data, factor):
    commonest = 0
    for c in range(80):
        commonest += int(data.train.factors[factor][data.train.labels == c].bincount().max())
    expected = 0.8 + 0.2 / CIRCUMSTANCES[factor]
    assert commonest / len(data.train) == pytest.approx(expected, abs=0.03)


def test_mirroring_does_not_depend_on_species(images):
    share = images.factors["mirrored"].float().reshape(-1, IMAGES).mean(1)
    assert share.mean() == pytest.approx(0.5, abs=0.05)
    assert 0.1 < share.min() < share.max() < 0.9


def test_quarter_turn_of_heading_rotates_picture():
    upright, turned = body(), body(heading=torch.pi / 2)
    for (cover, _), (cover_turned, _) in zip(upright.layers(), turned.layers(), strict=True):
        torch.testing.assert_close(cover_turned, torch.rot90(cover, 1, (1, 2)), atol=1e-3, rtol=0)


def test_limb_distance_is_distance_to_nearest_disc():
    b = body()
    thick, thin = torch.tensor([0.10]), torch.tensor([0.02])
    points = [(0.1, -0.3), (0.5, 0.2), (0.3, 0.6)]
    got = b.limb([(torch.tensor([u]), torch.tensor([v])) for u, v in points], thick, thin)[0]
    radii = [0.10, 0.06, 0.02]
    for row, column in ((10, 20), (36, 36), (30, 50), (60, 70), (22, 46), (5, 5)):
        u, v = abs(column - 35.5) / 27, (35.5 - row) / 27 + 0.1
        discs = []
        for k in range(2):
            for t in torch.linspace(0, 1, 2001).tolist():
                du = u - (points[k][0] + t * (points[k + 1][0] - points[k][0]))
                dv = v - (points[k][1] + t * (points[k + 1][1] - points[k][1]))
                discs.append((du**2 + dv**2) ** 0.5 - (radii[k] + t * (radii[k + 1] - radii[k])))
        assert float(got[row, column]) == pytest.approx(min(discs), abs=0.01)


# The cache


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Return a function that draws or reads a small demo dataset, with a cache of its own."""
    monkeypatch.setattr(module, "IMAGES", 1)
    monkeypatch.setenv("DIVCONQ_CACHE", str(tmp_path / "cache"))
    return lambda seed=0: demo_dataset.__wrapped__(seed)


def drawings(monkeypatch):
    """Count how often images are drawn."""
    calls = []
    real = demo_cache.render
    monkeypatch.setattr(demo_cache, "render", lambda *some: calls.append(1) or real(*some))
    return calls


def assert_same(a, b):
    for one, other in ((a.train, b.train), (a.test, b.test)):
        assert torch.equal(one.store.images, other.store.images)
        assert one.store.images.dtype == torch.uint8
        assert (one.names, one.paths, one.factors.keys()) == (other.names, other.paths, other.factors.keys())
        assert all(torch.equal(one.factors[name], other.factors[name]) for name in one.factors)


def test_the_images_are_drawn_once_and_then_read_bit_by_bit(few, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(demo_cache, "rendered", render)
        patch.setattr(module, "rendered", render)
        drawn = few()
    calls = drawings(monkeypatch)
    assert_same(drawn, few())
    assert_same(drawn, few())
    assert len(calls) == 2, "each split once"
    few(seed=1)
    assert len(calls) == 4, "other species are other images"
    old = os.umask(0)
    os.umask(old)
    files = list((tmp_path / "cache").iterdir())
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666 & ~old}


DAMAGES = {
    "a bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "cut short": lambda content: content[:-100],
    "empty": lambda content: b"",
    "another file": lambda content: hashlib.sha256(b"x").digest() + b"x",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_drawn_again(few, monkeypatch, tmp_path, damage):
    drawn = few()
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    calls = drawings(monkeypatch)
    assert_same(drawn, few())
    assert len(calls) == 2
    assert_same(drawn, few())
    assert len(calls) == 2, "it is whole again"


def test_a_cache_that_cannot_be_written_is_no_error(few, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file, so no folder")
    drawn = few()
    monkeypatch.setenv("DIVCONQ_CACHE", str(tmp_path / "other"))

    def full(*some):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo_cache, "write_atomically", full)
    assert_same(drawn, few())
    monkeypatch.setenv("DIVCONQ_CACHE", "~nobody_at_all")  # a user that does not exist
    assert_same(drawn, few())


def test_a_change_of_the_code_draws_again(few, monkeypatch, tmp_path):
    few()
    calls = drawings(monkeypatch)
    changed = tmp_path / "changed.py"
    changed.write_text("# another way to draw")
    monkeypatch.setattr(demo_cache.demo_rendering, "__file__", str(changed))
    few()
    assert len(calls) == 2


def test_images_are_drawn_without_a_home_directory(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DIVCONQ_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert len(demo_cache.rendered(beetle(), torch.Generator().manual_seed(0))) == 1
