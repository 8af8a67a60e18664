"""The settings of a training run of a second."""

import dataclasses

from divconq.presets import preset

TINY = dataclasses.replace(
    preset("demo"),
    loss="margin",
    masks="learned",
    per_class=None,
    image_size=16,
    resize=20,
    dim=16,
    batch=12,
    epochs=4,
    divide_every=1,
    k_max=2,
    workers=2,
    ks=(1, 2),
    device="cpu",
)
