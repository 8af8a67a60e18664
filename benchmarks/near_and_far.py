"""Do held-out training classes tell what test classes will? Near ones, and whole families, with and without division.

    python benchmarks/near_and_far.py --root DIR --backbone-weights FILE [--import FILE.py --backbone NAME] --json OUT

The backbone stays as it is: its features of all images of CUB200-2011 are taken once, and only the embedding layer is
trained on them, which takes seconds on a CPU. Of the training classes of each seed two sets are held out: whole
families, whose relatives are not trained on, and then as many other classes at random, most of which leave relatives.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from divconq.experiments.origin import code_version, hardware
from divconq.experiments.statistics import paired_difference
from divconq.losses import make_loss
from divconq.model import import_file, make_model
from divconq.presets import preset
from divconq.training.scoring import embed_images

LOSSES = ("margin", "triplet", "soft_triplet", "npairs", "MultiSimilarityLoss", "ProxyAnchorLoss")
MASKS = ("none", "fixed")
SPLITS = ("near", "far", "test")
SCORES = {"recall@1": "R@1", "map@r": "MAP@R"}
DIM, BATCH, EPOCHS, DIVIDE_EVERY = 512, 112, 30, 10


@dataclass(frozen=True)
class Split:
    """Features of some images, and their classes."""

    x: Tensor
    labels: Tensor


def main() -> None:
    """Train all, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--backbone", default="resnet50.tv_in1k")
    parser.add_argument("--backbone-weights", type=Path)
    parser.add_argument("--import", dest="import_file", type=Path)
    parser.add_argument("--classes", type=int, default=15, help="held out, near and far each")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 1e-3])
    parser.add_argument("--features", type=Path, help="where to keep the features for the next time")
    parser.add_argument(
        "--json", type=Path, help="of the runs; if it is there, only the tables are made again"
    )
    given = parser.parse_args()
    if given.json is None or not given.json.exists():
        made = make(given)
        if given.json:
            given.json.write_text(json.dumps(made, indent=1) + "\n")
    else:
        made = json.loads(given.json.read_text())
    runs = made.pop("runs")
    for split, score in itertools.product(SPLITS, SCORES):
        print(table(runs, f"{split} {score}"))
    print(f"rates chosen by MAP@R on far classes\n\n{chosen(runs)}")
    print(f"{made}, relatives of near classes: {mean(run['near relatives'] for run in runs):.0%}")


def make(given: argparse.Namespace) -> dict:
    """All runs, and where they were made."""
    data = open_dataset("cub", root=given.root, size=320, workers=2)
    features = [features_of(part, given) for part in (data.train, data.test)]
    runs = list(all_runs(data, *features, given))
    about = {"code": code_version(), "hardware": hardware("cpu"), "torch": torch.__version__}
    return {**about, "classes": given.classes, "runs": runs}


def features_of(images: ImageSet, given: argparse.Namespace) -> Tensor:
    """The features of these images, from the file in which they were kept if they are there."""
    known = load_file(given.features) if given.features and given.features.exists() else {}
    name = f"{given.backbone}, {images.names[0]} ..."
    if name not in known:
        known[name] = take_features(images, given)
        if given.features:
            save_file(known, given.features)
    return known[name]


def take_features(images: ImageSet, given: argparse.Namespace) -> Tensor:
    """What the backbone gives for each image, seen as at test time."""
    if given.import_file is not None:
        import_file(given.import_file)
    config = replace(preset("cub"), precision="bf16")
    model = make_model(
        given.backbone,
        DIM,
        pretrained=given.backbone_weights is None,
        weights=given.backbone_weights,
    )
    return embed_images(config, model.eval(), cached(images), features=True, progress="features")


def all_runs(data: Dataset, trained: Tensor, tested: Tensor, given: argparse.Namespace) -> Iterator[dict]:
    """Every loss, with and without division, for every seed, on the features of both halves."""
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
    """Train the embedding layer; the scores on each split after the last epoch, in percent."""
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
        k_max=k_max,
        divide_every=DIVIDE_EVERY,
        masks=masks,
        seed=seed,
    )
    batches = dc.batches(BATCH)

    def embed(split: Split = train) -> Tensor:
        with torch.no_grad():
            return dc.conquer(head(split.x))

    for epoch in range(EPOCHS):
        for cluster, index in dc.epoch(epoch, batches, embed):
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
    """A score of a loss with these masks, a seed after the other."""
    return [r[score] for r in runs if (r["loss"], r["masks"], r["lr"]) == (loss, masks, lr)]


def with_gain(ours: list[float], theirs: list[float]) -> str:
    """The mean without division, what division adds, and its 95% interval."""
    gain = paired_difference(ours, theirs)
    return f"{mean(theirs):.2f} {gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"


def table(runs: list[dict], score: str) -> str:
    """A score without division after the last epoch, and what fixed masks add, for each learning rate."""
    rates = sorted({run["lr"] for run in runs})
    lines = [f"| {score} | {' | '.join(f'{lr:g}' for lr in rates)} |", "|---" * (len(rates) + 1) + "|"]
    for loss in LOSSES:
        cells = [
            with_gain(*(values(runs, loss, masks, score, lr) for masks in ("fixed", "none"))) for lr in rates
        ]
        lines.append(f"| {loss} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def chosen(runs: list[dict]) -> str:
    """The same on test classes, with and without division at the learning rate that is best on far classes."""
    rates = sorted({run["lr"] for run in runs})
    lines = [f"| test classes | rate without, with | {' | '.join(SCORES.values())} |", "|---|---|---|---|"]
    for loss in LOSSES:
        best = {
            masks: max(rates, key=lambda lr: mean(values(runs, loss, masks, "far map@r", lr)))
            for masks in MASKS
        }
        cells = [
            with_gain(
                *(values(runs, loss, masks, f"test {score}", best[masks]) for masks in ("fixed", "none"))
            )
            for score in SCORES
        ]
        lines.append(f"| {loss} | {best['none']:g}, {best['fixed']:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
