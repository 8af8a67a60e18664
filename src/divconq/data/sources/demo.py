"""The built-in dataset ``demo``: imaginary beetles, drawn by code, with known generative factors."""

from collections.abc import Mapping
from functools import cache

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from divconq.data.dataset import Dataset, ImageSet, InMemory
from divconq.data.sources.demo_cache import rendered
from divconq.data.sources.demo_rendering import BACKGROUNDS, PATTERNS, Beetles

SPECIES, TRAINED = 15, 10  # per family: all species, training species
IMAGES = 30  # per species
DRAWING = 1  # increase this number when the code draws other images; processors differ by rounding only
FAVOURITE = 0.8  # probability that a training image has the favourite circumstance of its species
MUTATION = 0.5  # probability that a species does not inherit a trait of its parent

# Body plans. The first six measures vary within a family.
MEASURES = (
    *("width", "taper", "thorax_width", "legs", "antennae", "weapon"),
    *("squareness", "thorax_length", "head", "stoutness", "sweep", "club", "gloss"),
)
FAMILIES = {
    "ladybird": (0.62, 0.02, 0.46, 0.28, 0.24, 0.00, 2.2, 0.14, 0.15, 0.045, 0.9, 0.05, 0.55),
    "ground beetle": (0.40, -0.08, 0.30, 0.62, 0.55, 0.12, 2.3, 0.17, 0.15, 0.050, 0.9, 0.00, 0.35),
    "longhorn": (0.31, 0.12, 0.25, 0.62, 1.60, 0.08, 2.6, 0.14, 0.15, 0.045, 1.5, 0.00, 0.15),
    "stag": (0.42, 0.05, 0.40, 0.50, 0.40, 0.38, 2.4, 0.17, 0.22, 0.055, 1.4, 0.06, 0.40),
    "rhinoceros": (0.52, 0.02, 0.46, 0.42, 0.28, 0.55, 2.3, 0.22, 0.17, 0.070, 1.3, 0.06, 0.45),
    "weevil": (0.44, -0.06, 0.28, 0.50, 0.42, 0.48, 2.2, 0.18, 0.13, 0.055, 1.2, 0.05, 0.10),
    "click beetle": (0.28, 0.14, 0.27, 0.36, 0.42, 0.00, 2.3, 0.22, 0.13, 0.040, 1.0, 0.00, 0.20),
    "jewel beetle": (0.36, 0.26, 0.36, 0.34, 0.34, 0.00, 2.5, 0.13, 0.20, 0.040, 0.8, 0.00, 0.75),
}
HORNED = ("rhinoceros", "weevil")  # the weapon of the other families is a pair of jaws
SHAPES = MEASURES[:6]

DARK = {
    "black": (0.13, 0.12, 0.14),
    "chestnut": (0.42, 0.19, 0.10),
    "emerald": (0.05, 0.42, 0.22),
    "cobalt": (0.10, 0.22, 0.58),
    "violet": (0.36, 0.14, 0.48),
    "crimson": (0.60, 0.07, 0.12),
}
BRIGHT = {
    "ivory": (0.96, 0.92, 0.80),
    "yellow": (0.97, 0.80, 0.18),
    "orange": (0.95, 0.50, 0.12),
    "scarlet": (0.90, 0.20, 0.14),
    "lime": (0.66, 0.84, 0.26),
    "azure": (0.36, 0.70, 0.92),
}
LIMBS = {"black": (0.10, 0.09, 0.09), "russet": (0.38, 0.17, 0.09), "amber": (0.72, 0.48, 0.18)}
PIGMENTS = tuple((DARK | BRIGHT).values())

# Number of values of each trait of a species. The modes of a species differ only in their colours and patterns.
TRAITS = dict.fromkeys(SHAPES, 3) | {"thorax": len(PIGMENTS), "limbs": len(LIMBS)}
LIVERY = {
    "pattern": len(PATTERNS) - 1,
    "frequency": 3,
    "ground": len(DARK),
    "marking": len(BRIGHT),
    "inverted": 2,
}
FREQUENCIES = (1.3, 2.0, 2.9)
PLAIN = tuple(PATTERNS).index("plain")
MODES = ("male", "female", "young")

CASTS = ((1.0, 1.0, 1.0), (1.08, 1.0, 0.88), (0.90, 0.98, 1.10), (0.94, 1.06, 0.92), (1.06, 0.94, 1.04))
HEADINGS = (0.0, 0.3, 0.6, 0.9, 1.2)  # radians from straight up, to either side
TILTS = ((0.0, 0.4), (0.5, 0.0), (0.2, -0.4), (0.5, 0.3), (0.0, 0.0))  # pitch and roll, radians
SCALES = (0.88, 0.98, 1.08)
LIGHTS = (0.0, 1.0, 2.1, 3.1)  # radians from straight up, to either side
BRIGHTNESS = (1.1, 0.95, 1.0, 0.8)
CIRCUMSTANCES = {
    "background": len(BACKGROUNDS),
    "viewpoint": len(HEADINGS),
    "cast": len(CASTS),
    "scale": len(SCALES),
    "lighting": len(LIGHTS),
}
PLACES = (
    *("alpine", "bog", "cave", "dune", "fen", "forest", "garden", "heath"),
    *("island", "marsh", "meadow", "moor", "river", "steppe", "valley"),
)


@cache
def demo_dataset(seed: int = 0) -> Dataset:
    """Return the demo dataset: 120 species of beetles in 8 families, 30 images each; 80 species for training.

    A species has two or three visual modes (male, female, sometimes young) with one shape but different colours
    and patterns. In the training set, most images of a species share its favourite background, viewpoint, colour
    cast, scale and lighting. In the test set, these are independent of the species. ``factors`` holds all values.

    >>> data = demo_dataset()
    >>> len(data.train), len(data.test), len(data.train.names), len(data.test.names)
    (2400, 1200, 80, 40)
    """
    generator = torch.Generator().manual_seed(seed)
    species = _species(generator)
    family = torch.arange(len(FAMILIES) * SPECIES).reshape(len(FAMILIES), SPECIES)
    train, test = family[:, :TRAINED].flatten(), family[:, TRAINED:].flatten()
    return Dataset(
        "demo",
        _photograph("train", species, train, FAVOURITE, generator),
        _photograph("test", species, test, 0.0, generator),
    )


def _species(generator: Generator) -> dict[str, Tensor]:
    """Draw the traits of all species, family by family. Colours and patterns have one column per mode."""
    levels = torch.tensor([*TRAITS.values(), *(n for n in LIVERY.values() for _ in MODES)])
    table = torch.cat([_descend(levels, generator) for _ in FAMILIES]).T
    traits, liveries = table[: len(TRAITS)], table[len(TRAITS) :].unflatten(0, (len(LIVERY), len(MODES)))
    species = dict(zip(TRAITS, traits, strict=True)) | dict(zip(LIVERY, liveries.mT, strict=True))
    male, female, _ = species["pattern"].T
    female = (male + 1 + female % (LIVERY["pattern"] - 1)) % LIVERY["pattern"]
    species["pattern"] = torch.stack([male, female, torch.full_like(male, PLAIN)], 1)
    species["family"] = torch.arange(len(FAMILIES)).repeat_interleave(SPECIES)
    species["modes"] = torch.randint(2, 4, (len(male),), generator=generator)
    species["place"] = torch.cat([torch.randperm(len(PLACES), generator=generator) for _ in FAMILIES])
    return species


def _descend(levels: Int64[Tensor, " t"], generator: Generator) -> Int64[Tensor, "s t"]:
    """Return the traits of a family, in random order. Each species inherits some traits of an earlier one."""
    traits = (torch.rand(SPECIES, len(levels), generator=generator) * levels).long()
    for child in range(1, SPECIES):
        parent = int(torch.randint(child, (1,), generator=generator))
        inherited = torch.rand(len(levels), generator=generator) > MUTATION
        traits[child] = torch.where(inherited, traits[parent], traits[child])
    return traits[torch.randperm(SPECIES, generator=generator)]


def _photograph(
    split: str,
    species: Mapping[str, Tensor],
    selected: Int64[Tensor, " c"],
    favour: float,
    generator: Generator,
) -> ImageSet:
    """Draw all images of the selected species."""
    labels = torch.arange(len(selected)).repeat_interleave(IMAGES)
    shown, nth = selected[labels], torch.arange(IMAGES).repeat(len(selected))
    mode = nth % species["modes"][shown]
    factors = {name: species[name][shown] for name in ("family", *TRAITS)} | {"mode": mode}
    factors |= {name: species[name][shown, mode] for name in LIVERY}
    factors |= _circumstances(labels, favour, generator)
    names = tuple(_name(species, int(s)) for s in selected)
    slugs = [name.replace(" ", "-") for name in names]
    paths = tuple(f"{split}/{slugs[c]}_{i:04d}" for c, i in zip(labels.tolist(), nth.tolist(), strict=True))
    images = rendered(_beetles(factors, generator), generator)
    marks = tuple(f"demo {DRAWING}, seed {generator.initial_seed()}, {path}" for path in paths)
    return ImageSet(InMemory(images, marks=marks), labels, names, paths, factors["family"], factors)


def _name(species: Mapping[str, Tensor], s: int) -> str:
    """Return the name of a species from the colours of the male, place and family: "violet-banded dune weevil"."""
    palette, pigment = (DARK, "ground") if species["inverted"][s, 0] else (BRIGHT, "marking")
    colour = tuple(palette)[int(species[pigment][s, 0])]
    pattern = tuple(PATTERNS)[int(species["pattern"][s, 0])]
    family = tuple(FAMILIES)[int(species["family"][s])]
    return f"{colour}-{pattern} {PLACES[int(species['place'][s])]} {family}"


def _circumstances(labels: Int64[Tensor, " n"], favour: float, generator: Generator) -> dict[str, Tensor]:
    """Draw the circumstances of each image: the favourite of its species with probability ``favour``, else any."""
    n, classes = len(labels), int(labels.max()) + 1

    def around(centre: Tensor, spread: float) -> Float[Tensor, " n"]:
        return centre + spread * (2 * torch.rand(n, generator=generator) - 1)

    factors: dict[str, Tensor] = {}
    for name, count in CIRCUMSTANCES.items():
        favourite = torch.randint(count, (classes,), generator=generator)[labels]
        other = torch.randint(count, (n,), generator=generator)
        factors[name] = torch.where(torch.rand(n, generator=generator) < favour, favourite, other)
    mirrored = torch.randint(2, (n,), generator=generator)
    side = 1.0 - 2.0 * mirrored
    pitch, roll = torch.tensor(TILTS)[factors["viewpoint"]].T
    none = torch.zeros(n)
    return factors | {
        "mirrored": mirrored,
        "heading": side * around(torch.tensor(HEADINGS)[factors["viewpoint"]], 0.2),
        "roll": side * around(roll, 0.1),
        "pitch": around(pitch, 0.1),
        "size": around(torch.tensor(SCALES)[factors["scale"]], 0.05),
        "light": side * around(torch.tensor(LIGHTS)[factors["lighting"]], 0.3),
        "brightness": around(torch.tensor(BRIGHTNESS)[factors["lighting"]], 0.08),
        "hue": around(none, 0.6),
        "gait": side * around(none, 0.3),
    }


def _beetles(factors: Mapping[str, Tensor], generator: Generator) -> Beetles:
    """Convert factors to measures and colours, with a little variation between individuals."""
    n = len(factors["family"])

    def vary(spread: float, *shape: int) -> Tensor:
        return 1 + spread * (2 * torch.rand(n, *shape, generator=generator) - 1)

    plan = dict(zip(MEASURES, torch.tensor(tuple(FAMILIES.values()))[factors["family"]].T, strict=True))
    for name in SHAPES:
        step = factors[name] - 1.0
        plan[name] = (plan[name] + 0.1 * step if name == "taper" else plan[name] * 1.25**step) * vary(0.04)
    weapon = plan.pop("weapon")
    horned = torch.tensor([family in HORNED for family in FAMILIES])[factors["family"]]
    dark = torch.tensor(tuple(DARK.values()))[factors["ground"]]
    bright = torch.tensor(tuple(BRIGHT.values()))[factors["marking"]]
    inverted = factors["inverted"][:, None] == 1
    return Beetles(
        **plan,
        jaws=weapon * ~horned,
        horn=weapon * horned,
        ground=torch.where(inverted, bright, dark) * vary(0.1, 3),
        marking=torch.where(inverted, dark, bright) * vary(0.1, 3),
        thorax=torch.tensor(PIGMENTS)[factors["thorax"]] * vary(0.1, 3),
        limbs=torch.tensor(tuple(LIMBS.values()))[factors["limbs"]] * vary(0.1, 3),
        pattern=factors["pattern"],
        frequency=torch.tensor(FREQUENCIES)[factors["frequency"]] * vary(0.04),
        phase=vary(0.4) - 1,
        shift=3 * (vary(1.0, 2) - 1),
        gait=factors["gait"],
        heading=factors["heading"],
        roll=factors["roll"],
        pitch=factors["pitch"],
        scale=factors["size"],
        cast=torch.tensor(CASTS)[factors["cast"]] * vary(0.04, 3),
        light=factors["light"],
        brightness=factors["brightness"],
        background=factors["background"],
        hue=factors["hue"],
    )
