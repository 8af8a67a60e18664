"""Render the beetles of the demo dataset from distance fields, in batches."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Generator, Tensor

Row = Float[Tensor, " b"]  # one number per image
Field = Float[Tensor, "b s s"]  # one number per pixel

SIZE = 72
BATCH = 30
UNIT = 27.0  # pixels to half a body length at scale 1
WAIST = 0.42  # where the wing cases and the thorax meet
# For each leg: its position on the body, the angles of thigh and shin from straight out, its relative length.
LEGS = ((0.50, 0.55, 1.05, 0.9), (0.25, -0.15, -0.55, 0.95), (-0.05, -0.55, -1.10, 1.15))

# For each background: its darkest and lightest colour, and the weights of six textures
# (coarse, medium and fine noise, ripples, grain, veins).
BACKGROUNDS = {
    "sand": ((0.70, 0.60, 0.46), (0.85, 0.77, 0.62), (0.20, 0.10, 0.50, 0.00, 0.00, 0.00)),
    "leaf": ((0.35, 0.49, 0.24), (0.54, 0.68, 0.36), (0.15, 0.08, 0.04, 0.00, 0.00, 0.55)),
    "bark": ((0.37, 0.29, 0.23), (0.53, 0.43, 0.34), (0.10, 0.15, 0.20, 0.00, 0.50, 0.00)),
    "moss": ((0.28, 0.34, 0.17), (0.47, 0.52, 0.24), (0.20, 0.40, 0.40, 0.00, 0.00, 0.00)),
    "petal": ((0.83, 0.61, 0.66), (0.93, 0.80, 0.80), (0.60, 0.00, 0.03, 0.00, 0.05, 0.00)),
    "slate": ((0.44, 0.47, 0.52), (0.61, 0.64, 0.67), (0.45, 0.25, 0.12, 0.00, 0.00, 0.00)),
    "pond": ((0.38, 0.56, 0.61), (0.61, 0.76, 0.76), (0.20, 0.05, 0.00, 0.50, 0.00, 0.00)),
}

# A wing case is marked where a weighted sum of A, B, A B, the rim and a constant is positive. A and B are cosines;
# each pair gives their turns across (seam to side) and along (tail to shoulder).
PATTERNS = {
    "striped": ((1.00, 0.00), (0.00, 0.00), (1.0, 0.0, 0.0, 0.0, -0.15)),
    "banded": ((0.00, 0.50), (0.00, 0.00), (1.0, 0.0, 0.0, 0.0, -0.10)),
    "spotted": ((0.80, 0.00), (0.00, 0.60), (-0.8, 0.8, 0.0, 0.0, -0.65)),
    "chevroned": ((0.60, 0.50), (0.00, 0.00), (1.0, 0.0, 0.0, 0.0, -0.20)),
    "chequered": ((0.60, 0.00), (0.00, 0.50), (0.0, 0.0, 1.0, 0.0, 0.00)),
    "bordered": ((0.00, 0.00), (0.00, 0.00), (0.0, 0.0, 0.0, 6.0, -4.20)),
    "netted": ((0.80, 0.50), (-0.80, 0.50), (0.6, 0.6, 0.0, 0.0, 0.15)),
    "plain": ((0.00, 0.00), (0.00, 0.00), (0.0, 0.0, 0.0, 0.0, -1.00)),
}


@dataclass(frozen=True)
class Beetles:
    """Parameters of n images. The unit of length is half a body length."""

    width: Float[Tensor, " n"]  # of the wing cases, from the seam
    taper: Float[Tensor, " n"]  # how much wider they are at the shoulder than at the tail
    squareness: Float[Tensor, " n"]  # 2 for an ellipse, more for a box
    thorax_width: Float[Tensor, " n"]
    thorax_length: Float[Tensor, " n"]
    head: Float[Tensor, " n"]
    legs: Float[Tensor, " n"]
    stoutness: Float[Tensor, " n"]  # thickness of the legs
    antennae: Float[Tensor, " n"]
    sweep: Float[Tensor, " n"]  # how far back the antennae turn, radians
    club: Float[Tensor, " n"]  # radius of the knob at their end
    jaws: Float[Tensor, " n"]
    horn: Float[Tensor, " n"]
    gloss: Float[Tensor, " n"]
    ground: Float[Tensor, "n 3"]
    marking: Float[Tensor, "n 3"]
    thorax: Float[Tensor, "n 3"]
    limbs: Float[Tensor, "n 3"]
    pattern: Int64[Tensor, " n"]
    frequency: Float[Tensor, " n"]
    phase: Float[Tensor, " n"]
    gait: Float[Tensor, " n"]  # how far the legs of one side are ahead
    heading: Float[Tensor, " n"]  # radians, anticlockwise from straight up
    roll: Float[Tensor, " n"]  # radians about the long axis
    pitch: Float[Tensor, " n"]  # radians about the short axis
    scale: Float[Tensor, " n"]
    shift: Float[Tensor, "n 2"]  # pixels
    light: Float[Tensor, " n"]  # radians: direction of the light, as for heading
    brightness: Float[Tensor, " n"]
    cast: Float[Tensor, "n 3"]  # gain of red, green and blue
    background: Int64[Tensor, " n"]
    hue: Float[Tensor, " n"]  # of the background: greener below 0, redder above

    def __len__(self) -> int:
        return len(self.width)

    def __getitem__(self, index: slice) -> "Beetles":
        return Beetles(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def render(beetles: Beetles, generator: Generator) -> UInt8[Tensor, "n size size 3"]:
    """Return the images, in order. The generator draws the texture of the backgrounds."""
    starts = range(0, len(beetles), BATCH)
    return torch.cat([_draw(beetles[start : start + BATCH], generator) for start in starts])


def _draw(b: Beetles, generator: Generator) -> UInt8[Tensor, "b size size 3"]:
    ticks = torch.arange(SIZE) - (SIZE - 1) / 2
    x, y = ticks - _map(b.shift[:, 0]), -ticks[:, None] - _map(b.shift[:, 1])
    body = _Body(b, x, y)
    canvas = _background(b, x, y, generator) * (1 - 0.6 * body.shadow())[:, None]
    for cover, colour in body.layers():
        canvas = torch.lerp(canvas, colour, cover[:, None])
    canvas = canvas * _rgb(255 * b.brightness[:, None] * b.cast)
    return canvas.clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _map(values: Row) -> Float[Tensor, "b 1 1"]:
    return values[:, None, None]


def _rgb(values: Float[Tensor, "b 3"]) -> Float[Tensor, "b 3 1 1"]:
    return values[:, :, None, None]


def _norm(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()  # twice as fast as torch.hypot


def _power(x: Field, exponent: Row) -> Field:
    return torch.exp2(_map(exponent) * torch.log2(x))  # twice as fast as torch.pow


def _noise(count: int, cells: int, generator: Generator) -> Field:
    """Return smooth noise of about -1 to 1 on a grid of ``cells`` by ``cells``."""
    grid = torch.rand(count, 1, cells, cells, generator=generator) * 2.4 - 1.2
    return F.interpolate(grid, size=(SIZE, SIZE), mode="bicubic", align_corners=True)[:, 0]


def _background(
    b: Beetles, x: Float[Tensor, "b 1 s"], y: Float[Tensor, "b s 1"], generator: Generator
) -> Float[Tensor, "b 3 s s"]:
    coarse, medium, fine = (_noise(len(b), cells, generator) for cells in (4, 12, 27))
    turn, place = torch.rand(2, len(b), generator=generator)
    cosine, sine = _map((turn * math.tau).cos()), _map((turn * math.tau).sin())
    p, q = x * cosine + y * sine + _map(place * 30 - 15), y * cosine - x * sine
    ripples = 1 - 2 * torch.sin(0.16 * q + 1.5 * coarse + 0.5 * medium).abs().sqrt()
    grain = torch.sin(0.9 * p + 2.0 * coarse + 2.0 * medium)
    vein = torch.minimum(p.abs() / 2, (torch.sin(0.20 * q + 0.16 * p.abs()) * 2.5).abs())
    veins = 1.6 * (1 - vein.square()).clamp(min=0) - 0.5
    textures = (coarse, medium, fine, ripples, grain, veins)
    dark, light, weights = _look_up(BACKGROUNDS, b.background)
    field = torch.full_like(coarse, 0.5)
    for weight, texture in zip(weights.T, textures, strict=True):
        field += _map(weight) * texture
    tint = b.hue[:, None] * torch.tensor([0.10, -0.08, 0.0])
    return torch.lerp(_rgb(dark + tint), _rgb(light + tint), field.clamp(0, 1)[:, None])


def _look_up(table: Mapping[str, tuple[tuple[float, ...], ...]], index: Int64[Tensor, " b"]) -> list[Tensor]:
    """Return each column of the table, at the rows of ``index``."""
    return [torch.tensor(column)[index] for column in zip(*table.values(), strict=True)]


class _Dome:
    """A rounded box on the midline, curved towards the viewer; ``rim`` is 0 in the middle and 1 at its edge."""

    def __init__(self, u: Field, v: Field, width: Row, length: Row, taper: Row, power: Row) -> None:
        """``taper`` is how much wider the front is than the middle; ``power`` is 2 for an ellipse."""
        self.along = v / _map(length)
        self.across = u / ((1 + _map(taper) * self.along.clamp(-1, 1)) * _map(width))
        self.rim = _power(_power(self.across.abs(), power) + _power(self.along.abs(), power), 1 / power)
        self.distance = _norm(u, v) * (1 - 1 / self.rim.clamp(min=0.01))
        self.height = (1 - self.rim.square()).clamp(min=0).sqrt()

    def lit(
        self, colour: Float[Tensor, "b 3 #s #s"], light: tuple[Tensor, Tensor], gloss: Row
    ) -> Float[Tensor, "b 3 s s"]:
        """Return the shaded colour: dark at the far rim, with a highlight."""
        slope = self.across * light[0] + self.along * light[1]
        diffuse = 0.48 + 0.34 * slope + 0.52 * self.height
        glint = (0.55 * slope + 0.82 * self.height).clamp(min=0.3)
        shine = glint.square().square().square().square() * _map(gloss)
        return colour * diffuse[:, None] + shine[:, None]


class _Body:
    """The axes of the body: ``u`` across, ``v`` along with the head up, ``m`` the distance to the midline."""

    def __init__(self, b: Beetles, x: Float[Tensor, "b 1 s"], y: Float[Tensor, "b s 1"]) -> None:
        self.b = b
        unit = b.scale * UNIT
        cosine, sine = _map(b.heading.cos() / unit), _map(b.heading.sin() / unit)
        self.u = (x * cosine + y * sine) / _map(b.roll.cos())
        self.v = (y * cosine - x * sine) / _map(b.pitch.cos()) + 0.1
        self.m = self.u.abs()
        self.pixel = _map(1 / unit)
        turn = b.light - b.heading
        self.light = _map(-turn.sin()), _map(turn.cos())
        self.neck = WAIST + 2 * b.thorax_length

    def shadow(self) -> Field:
        """Return a soft shadow on the side away from the light."""
        u, v = self.u + 0.16 * self.light[0], self.v + 0.16 * self.light[1] + 0.05
        return (1.5 - 1.2 * _norm(u / _map(1.05 * self.b.width), v / 0.95)).clamp(0, 1).square()

    def layers(self) -> Iterator[tuple[Field, Float[Tensor, "b 3 #s #s"]]]:
        """Yield coverage and colour of each part, from bottom to top."""
        b, u, v = self.b, self.u, self.v
        limbs = _rgb(b.limbs)
        for limb in (self.legs(), self.antennae(), self.weapons()):
            yield self.cover(limb), limbs
        one = torch.ones_like(b.head)
        head = _Dome(u, v - _map(self.neck + 0.5 * b.head), 1.1 * b.head, b.head, 0 * one, 2 * one)
        yield self.cover(head.distance), head.lit(_rgb(0.6 * b.thorax + 0.4 * b.limbs), self.light, b.gloss)
        eyes = _norm(self.m - _map(b.head), v - _map(self.neck + 0.6 * b.head)) - _map(0.32 * b.head)
        yield self.cover(eyes), torch.full_like(limbs, 0.06)
        middle = WAIST - 0.03 + b.thorax_length
        thorax = _Dome(u, v - _map(middle), b.thorax_width, b.thorax_length + 0.03, -0.18 * one, 2.6 * one)
        yield self.cover(thorax.distance), thorax.lit(_rgb(b.thorax), self.light, b.gloss)
        wings = _Dome(u, v - (WAIST - 0.7), b.width, 0.7 * one, b.taper, b.squareness)
        yield self.cover(wings.distance), wings.lit(self.wing_colour(wings), self.light, b.gloss)

    def cover(self, distance: Field) -> Field:
        """Return the share of each pixel that lies inside."""
        return (0.5 - distance / self.pixel).clamp(0, 1)

    def limb(
        self, points: Sequence[tuple[Row, Row]], thick: Row, thin: Row, gait: Row | None = None
    ) -> Field:
        """Return the distance to a mirrored pair of limbs; ``gait`` moves one ahead of the other."""
        v = self.v if gait is None else self.v + _map(gait) * self.u
        radii = [torch.lerp(thick, thin, i / (len(points) - 1)) for i in range(len(points))]
        nearest = torch.full_like(v, torch.inf)
        for i in range(len(points) - 1):
            (u0, v0), (u1, v1) = points[i : i + 2]
            du, dv = u1 - u0, v1 - v0
            square = du.square() + dv.square() + 1e-6
            pu, pv = self.m - _map(u0), v - _map(v0)
            part = (pu * _map(du / square) + pv * _map(dv / square)).clamp(0, 1)
            away = _norm(pu - part * _map(du), pv - part * _map(dv))
            nearest = torch.minimum(nearest, away - part * _map(radii[i + 1] - radii[i]) - _map(radii[i]))
        return nearest

    def legs(self) -> Field:
        """Return the distance to three pairs of legs, each with a knee."""
        b = self.b
        pairs = []
        for hip, thigh, shin, reach in LEGS:
            length = 0.55 * reach * b.legs
            knee_u = 0.85 * b.width + 0.75 * length * math.cos(thigh)
            knee_v = hip + 0.9 * length * math.sin(thigh)
            foot = (knee_u + length * math.cos(shin), knee_v + length * math.sin(shin))
            points = [(0.5 * b.width, torch.full_like(knee_v, hip)), (knee_u, knee_v), foot]
            pairs.append(self.limb(points, b.stoutness, 0.4 * b.stoutness, b.gait))
        return torch.stack(pairs).amin(0)

    def antennae(self) -> Field:
        """Return the distance to the antennae, which bend back and end in a knob."""
        b = self.b
        points = [(0.5 * b.head, self.neck + 0.8 * b.head)]
        for share, turn in ((0.25, 0.4), (0.40, 0.8), (0.35, 1.5)):
            u, v = points[-1]
            angle = turn * b.sweep
            points.append((u + share * b.antennae * angle.sin(), v + share * b.antennae * angle.cos()))
        thick = torch.full_like(b.head, 0.03)
        knob = _norm(self.m - _map(points[-1][0]), self.v - _map(points[-1][1])) - _map(b.club)
        return torch.minimum(self.limb(points, thick, 0.6 * thick), knob)

    def weapons(self) -> Field:
        """Return the distance to jaws and horn (or snout); a weapon of length 0 is hidden under the head."""
        b = self.b
        root, zero = self.neck + 1.1 * b.head, torch.zeros_like(b.head)
        curve = ((0.0, 0.0), (0.30, 0.28), (0.30, 0.66), (0.02, 1.0))
        jaws = [(0.5 * b.head + out * b.jaws, root + ahead * b.jaws) for out, ahead in curve]
        jaw = self.limb(jaws, 0.11 * b.jaws.clamp(max=0.4) + 0.02, zero + 0.02)
        horn = self.limb([(zero, root - 0.1), (zero, root - 0.1 + b.horn)], zero + 0.075, zero + 0.04)
        return torch.minimum(jaw, horn)

    def wing_colour(self, wings: _Dome) -> Float[Tensor, "b 3 s s"]:
        """Return the colour of the wing cases: ground, marking and the seam between them."""
        b = self.b
        across = (wings.across - _map(b.roll) * wings.height).abs()
        first, second, weights = _look_up(PATTERNS, b.pattern)
        waves = []
        for turns in (first, second):
            rate = math.tau * b.frequency[:, None] * turns
            phase = torch.where(turns[:, 1] == 0, 0.0, b.phase)
            waves.append(torch.cos(across * _map(rate[:, 0]) + wings.along * _map(rate[:, 1]) + _map(phase)))
        field = _map(weights[:, 4]) + sum(
            _map(weight) * term
            for weight, term in zip(weights.T[:4], (*waves, waves[0] * waves[1], wings.rim), strict=True)
        )
        marked = (0.5 + 2.5 * field).clamp(0, 1)
        seam = 1 - 0.5 * self.cover(across * _map(b.width) - 0.5 * self.pixel)
        return torch.lerp(_rgb(b.ground), _rgb(b.marking), marked[:, None]) * seam[:, None]
