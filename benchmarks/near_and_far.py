"""Train only the embedding layer on frozen features of CUB200-2011, with and without division.

    python benchmarks/near_and_far.py --root DIR --backbone-weights FILE [--import FILE.py --backbone NAME] --out OUT
    python benchmarks/near_and_far.py --out benchmarks/results/near_and_far.jsonl     # only prints the tables

The features of all images are computed once; training the layer then takes seconds on a CPU. Each seed holds out two
sets of training classes. The far classes are whole families, so none of their relatives is trained on. The near classes
are drawn at random from the rest, and most of them have a relative that is trained on.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from relatives import related
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from divconq import DivideAndConquer, retrieval_scores
from divconq.data import Dataset, ImageSet, hold_out, open_dataset
from divconq.data.images.cache import cached
from divconq.evaluation.scores import title
from divconq.experiments.origin import code_version, hardware
from divconq.experiments.statistics import paired_difference
from divconq.losses import make_loss
from divconq.model import import_file, make_model
from divconq.presets import preset
from divconq.training.scoring import embed_images

LOSSES = {
    "margin": "margin",
    "triplet": "triplet",
    "soft_triplet": "soft triplet",
    "npairs": "n-pairs",
    "MultiSimilarityLoss": "multi-similarity",
    "ProxyAnchorLoss": "proxy anchor",
}
MASKS = ("none", "fixed")
SPLITS = ("near", "far", "test")
SCORES = ("recall@1", "map@r")
DIM, BATCH, EPOCHS, DIVIDE_EVERY = 512, 112, 30, 10


@dataclass(frozen=True)
class Split:
    """Features of some images and their class labels."""

    x: Tensor
    labels: Tensor


def main() -> None:
    """Train and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--backbone", default="resnet50.tv_in1k")
    parser.add_argument("--backbone-weights", type=Path)
    parser.add_argument("--import", dest="import_file", type=Path)
    parser.add_argument("--classes", type=int, default=15, help="number of near and of far classes")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 1e-3])
    parser.add_argument("--features", type=Path, help="file in which to keep the features")
    parser.add_argument("--out", type=Path, help="JSON lines of the runs; if it exists, only tables are made")
    given = parser.parse_args()
    if given.out is not None and given.out.exists():
        about, *runs = (json.loads(line) for line in given.out.read_text().splitlines())
    else:
        about, runs = make(given)
        if given.out is not None:
            given.out.write_text("".join(json.dumps(line) + "\n" for line in (about, *runs)))
    for split, score in itertools.product(SPLITS, SCORES):
        print("\n".join([*table(runs, split, score), ""]))
    print("\n".join(["rates selected by MAP@R on far classes", "", *selected_rates(runs), ""]))
    print(f"{about}, relatives of near classes: {mean(run['near relatives'] for run in runs):.0%}")


def make(given: argparse.Namespace) -> tuple[dict, list[dict]]:
    """Return where the runs were made, and the runs."""
    data = open_dataset("cub", root=given.root, size=320, workers=2)
    features = [features_of(part, given) for part in (data.train, data.test)]
    runs = list(all_runs(data, *features, given))
    about = {"code": code_version(), "hardware": hardware("cpu"), "torch": torch.__version__}
    return {**about, "classes": given.classes}, runs


def features_of(images: ImageSet, given: argparse.Namespace) -> Tensor:
    """Return the features of the images, from the file --features if it has them."""
    known = load_file(given.features) if given.features and given.features.exists() else {}
    name = f"{given.backbone}, {images.names[0]} ..."
    if name not in known:
        known[name] = take_features(images, given)
        if given.features:
            save_file(known, given.features)
    return known[name]


def take_features(images: ImageSet, given: argparse.Namespace) -> Tensor:
    """Return the features of the images in the test view."""
    if given.import_file is not None:
        import_file(given.import_file)
    config = preset("cub").replace(precision="bf16")
    model = make_model(
        given.backbone,
        DIM,
        pretrained=given.backbone_weights is None,
        weights=given.backbone_weights,
    )
    return embed_images(config, model.eval(), cached(images), features=True, progress="features")


def all_runs(data: Dataset, trained: Tensor, tested: Tensor, given: argparse.Namespace) -> Iterator[dict]:
    """Yield a run of every loss, with and without division, for every seed."""
    place = {path: number for number, path in enumerate(data.train.paths)}

    def part(images: ImageSet) -> Split:
        return Split(trained[[place[path] for path in images.paths]], images.labels)

    for seed in range(given.seeds):
        rest, far = hold_out(data.train, given.classes, seed=seed, whole_groups=True)
        rest, near = hold_out(rest, given.classes, seed=seed)
        splits = {"near": part(near), "far": part(far), "test": Split(tested, data.test.labels)}
        kinds = list(itertools.product(given.lr, LOSSES, MASKS))
        for lr, loss, masks in tqdm(kinds, desc=f"seed {seed}", unit=" runs", disable=None):
            scores = run(part(rest), splits, loss, masks, seed=seed, lr=lr)
            about = {"lr": lr, "loss": loss, "masks": masks, "seed": seed}
            yield {**about, "near relatives": related(near, rest), **scores}


def run(train: Split, splits: dict[str, Split], loss: str, masks: str, *, seed: int, lr: float) -> dict:
    """Train the embedding layer and return the scores on each split after the last epoch, in percent."""
    torch.manual_seed(seed)
    head = torch.nn.Linear(train.x.shape[1], DIM)
    optimizer = torch.optim.Adam(head.parameters(), lr=lr, weight_decay=1e-4, fused=True)
    criterion = make_loss(loss, num_classes=int(train.labels.max()) + 1, dim=DIM)
    if own := list(criterion.parameters()):
        optimizer.add_param_group(
            {"params": own, "lr": lr * preset("cub").loss_lr_scale, "weight_decay": 0.0}
        )
    k_max = 4 if masks == "fixed" else 1
    dc = DivideAndConquer(
        criterion,
        train.labels,
        optimizer,
        dim=DIM,
        batch=BATCH,
        k_max=k_max,
        divide_every=DIVIDE_EVERY,
        masks=masks,
        seed=seed,
    )

    def embed(split: Split = train) -> Tensor:
        with torch.no_grad():
            return dc.conquer(head(split.x))

    for epoch in range(EPOCHS):
        for cluster, index in dc.batches(dc.sampler, epoch, embed):
            value = dc(head(train.x[index]), train.labels[index], cluster)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    found = {}
    for name, split in splits.items():
        scores = retrieval_scores(embed(split), split.labels)
        found |= {f"{name} {score}": 100 * scores[score] for score in SCORES}
    return found


def values(runs: list[dict], loss: str, masks: str, score: str, lr: float) -> list[float]:
    """Return a score of a loss with these masks, one value per seed."""
    return [run[score] for run in runs if (run["loss"], run["masks"], run["lr"]) == (loss, masks, lr)]


def with_gain(runs: list[dict], loss: str, score: str, rates: dict[str, float]) -> str:
    """Return the mean score without division, the mean gain by division, and its 95% interval."""
    ours, theirs = (values(runs, loss, masks, score, rates[masks]) for masks in ("fixed", "none"))
    gain = paired_difference(ours, theirs)
    return f"{mean(theirs):.2f} {gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"


def table(runs: list[dict], split: str, score: str) -> list[str]:
    """Return a Markdown table: a score without division and the gain by division, for each learning rate."""
    rates = sorted({run["lr"] for run in runs})
    head = f"| {title(score)}, {split} | {' | '.join(f'{lr:g}' for lr in rates)} |"
    lines = [head, "|---" * (len(rates) + 1) + "|"]
    for loss, name in LOSSES.items():
        cells = [with_gain(runs, loss, f"{split} {score}", dict.fromkeys(MASKS, lr)) for lr in rates]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def selected_rates(runs: list[dict]) -> list[str]:
    """Return a Markdown table of test scores, each side at the learning rate that is best on far classes."""
    rates = sorted({run["lr"] for run in runs})
    head = " | ".join(f"{title(score)}, test" for score in SCORES)
    lines = [f"| | rate without division, with it | {head} |", "|---|---|---|---|"]
    for loss, name in LOSSES.items():
        best = {
            masks: max(rates, key=lambda lr: mean(values(runs, loss, masks, "far map@r", lr)))
            for masks in MASKS
        }
        cells = [with_gain(runs, loss, f"test {score}", best) for score in SCORES]
        lines.append(f"| {name} | {best['none']:g}, {best['fixed']:g} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
