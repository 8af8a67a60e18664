"""The settings of a training run of a second."""

from divconq.presets import preset

TINY = preset("demo").replace(
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
