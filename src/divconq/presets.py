"""Presets: starting settings for the demo, each benchmark of the paper and your own photos.

    divconq train demo --out runs/demo
    divconq presets show cub

The presets of the benchmarks hold the paper's hyperparameters (supplement, section B; ResNet-50, d = 512). Only
``cub`` is tuned; ``cub-paper`` holds the paper's. The presets ``*-authors`` add what the authors' program does
differently from the paper's text, value by value in ``docs/method.md``.
"""

from divconq.checks import did_you_mean
from divconq.config import Config

# Trains for 2 to 3 minutes on two CPU cores. Tuned for R@1 on demo:1 (other species); see benchmarks/demo.md.
DEMO = Config.of(
    data="demo",
    image_size=48,
    resize=54,
    backbone="small",
    pretrained=False,
    dim=128,
    loss="triplet",
    masks="fixed",
    overlap_weight=0.1,
    mask_lr_scale=1.0,
    loss_lr_scale=10.0,
    epochs=60,
    batch=80,
    per_class=4,
    lr=1e-3,
    weight_decay=1e-4,
    train_recall=True,
)

# Paper: R@1 68.16, NMI 69.49, mARP 55.35 with learned masks; 66.93 for the margin loss alone.
CUB_PAPER = Config.of(data="cub", augmentation="geom+color")

# Better than CUB_PAPER on held-out classes, with and without divide and conquer; see benchmarks/cub.md.
CUB = CUB_PAPER.replace(
    pooling="avgmax",
    masks="fixed",
    mask_lr_scale=1000.0,  # this and the next setting apply to --masks learned
    mask_split_noise=0.2,
    loss_args={"sampling_dim": 128},
    epochs=30,
    weight_decay=5e-3,
)

# Paper: R@1 87.76, NMI 70.67, mARP 65.97 with learned masks; 85.12 for the margin loss alone.
CARS = Config.of(data="cars", augmentation="color-heavy")

# The large benchmarks: two images per class in a batch, a division every second epoch.
LARGE = Config.of(batch=80, per_class=2, divide_every=2, weight_decay=1e-4)

# Paper: R@1 90.40, NMI 89.91, mARP 88.47 with learned masks; 87.87 for the margin loss alone.
INSHOP = LARGE.replace(
    data="inshop", augmentation="geom", k_max=8, overlap_weight=0.2, epochs=400, ks=(1, 10, 20, 30)
)

# Paper: R@1 79.77, NMI 89.67, mARP 79.56 with learned masks; 77.11 for the margin loss alone.
SOP = LARGE.replace(data="sop", k_max=32, overlap_weight=0.01, finetune_from=80, epochs=170, ks=(1, 10, 100))

# Paper, large test set: R@1 94.03, NMI 90.67, mARP 92.73 with learned masks; 89.75 for the margin loss alone.
VEHICLEID = LARGE.replace(
    data="vehicleid", k_max=16, overlap_weight=5e-4, finetune_from=80, epochs=170, ks=(1, 5)
)

# Characters of many alphabets; a mirrored character is another one, so there are no flips.
# Beta was selected on held-out characters, without division; see benchmarks/switches.md.
OMNIGLOT = Config.of(
    data="omniglot",
    image_size=64,
    resize=72,
    augmentation="crop",
    masks="fixed",
    k_max=8,
    divide_every=2,
    epochs=24,
    per_class=4,
    beta=0.9,
    lr=1e-4,
    weight_decay=1e-4,
)
# What the authors' program does on every dataset. It evaluates every epoch and reports the best one on the test
# classes, as the defaults of eval_every and val_classes do.
AUTHORS: dict[str, object] = {
    "crop": "random_resized",
    "crop_scale": (0.08, 1.0),
    "decode_size": 320,
    "cluster_on": "features",
    "cluster_order": "round_robin",
    "cluster_steps": "equal",
    "epoch_length": "largest",
    "loss_args": {"without_replacement": True, "equal_pairs": True},
    "conquer": "plain",
    "nmi_runs": 10,
}
# Classes of a batch are drawn uniformly.
AUTHORS_LARGE = {**AUTHORS, "class_sampling": "classes"}
# Weight decay of the masks is that of the network; each division is followed by an epoch without the backbone.
AUTHORS_SOP = {**AUTHORS_LARGE, "mask_weight_decay": 1e-4, "freeze_backbone_epochs": 1, "epochs": 180}

CUB_AUTHORS = CUB_PAPER.replace(augmentation="geom+color-authors", **AUTHORS)
CARS_AUTHORS = CARS.replace(**AUTHORS)
INSHOP_AUTHORS = INSHOP.replace(augmentation="geom-authors", **AUTHORS_LARGE)
SOP_AUTHORS = SOP.replace(**AUTHORS_SOP)
VEHICLEID_AUTHORS = VEHICLEID.replace(**AUTHORS_SOP)  # with the command for SOP; there is none for VehicleID

# Your own photos: the settings of the small benchmarks.
PHOTOS = Config.of(data="", epochs=60, train_recall=True)

PRESETS = {
    "demo": DEMO,
    "cub": CUB,
    "cub-paper": CUB_PAPER,
    "cars": CARS,
    "inshop": INSHOP,
    "sop": SOP,
    "vehicleid": VEHICLEID,
    "omniglot": OMNIGLOT,
    "cub-authors": CUB_AUTHORS,
    "cars-authors": CARS_AUTHORS,
    "inshop-authors": INSHOP_AUTHORS,
    "sop-authors": SOP_AUTHORS,
    "vehicleid-authors": VEHICLEID_AUTHORS,
    "photos": PHOTOS,
}


def preset(name: str) -> Config:
    """Return the settings of a preset.

    >>> preset("sop").division.k_max
    32
    """
    if name not in PRESETS:
        raise ValueError(
            f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
        )
    return PRESETS[name]
