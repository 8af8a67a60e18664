"""Losses of our own against those of pytorch-metric-learning: speed and training curves, side by side in one process.

    python benchmarks/native_losses.py --root DIR --out benchmarks/results/native_losses.jsonl

Trains the preset cub without division for a few epochs with each loss, on one GPU. The speed is the median over the
epochs after the first two, which compile.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median

from divconq.config import Config
from divconq.experiments.origin import code_version, hardware
from divconq.presets import preset
from divconq.train import train

LOSSES = {
    "margin": {"loss": "margin"},
    "multi-similarity": {"loss": "multi_similarity"},
    "multi-similarity (pytorch-metric-learning)": {
        "loss": "MultiSimilarityLoss",
        "miner": "MultiSimilarityMiner",
    },
    "proxy anchor": {"loss": "proxy_anchor"},
    "proxy anchor (pytorch-metric-learning)": {"loss": "ProxyAnchorLoss"},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--import-file", type=Path, default=None)
    parser.add_argument("--backbone", default=None)
    parser.add_argument("--backbone-weights", type=Path, default=None)
    parser.add_argument("--commit", default=None)
    arguments = parser.parse_args()
    given = {
        name: value
        for name in ("import_file", "backbone", "backbone_weights")
        if (value := getattr(arguments, name)) is not None
    }
    base = preset("cub").replace(
        root=arguments.root,
        epochs=arguments.epochs,
        eval_every=arguments.epochs,
        k_max=1,
        masks="none",
        nmi=False,
        loss_args={},
        **given,
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name, settings in LOSSES.items():
        result = run(name, base.replace(**settings), arguments.commit)
        print(
            f"{name}: {result['images_per_s']:.0f} images/s, R@1 {100 * result['recall@1']:.2f}", flush=True
        )
        with arguments.out.open("a") as file:
            file.write(json.dumps(result) + "\n")


def run(name: str, config: Config, commit: str | None) -> dict:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        records = train(config, Path(folder) / "run")
    return {
        "loss": name,
        "images_per_s": round(median(record["images_per_s"] for record in records[2:]), 1),
        "losses": [record["loss"] for record in records],
        "recall@1": records[-1]["recall@1"],
        "seed": config.optimisation.seed,
        "commit": code_version(commit),
        "hardware": f"{hardware('auto')}, torch {torch.__version__}",
    }


if __name__ == "__main__":
    main()
