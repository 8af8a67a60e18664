"""Measure the size of a loss's gradient relative to the weights, which determines the effect of weight decay.

    python benchmarks/gradients.py tables/cub_losses.yaml --rows triplet,npairs --root DIR [--import FILE.py] ...

Adam divides a gradient by its size, so a factor of the loss has no effect. Weight decay is added to the gradient before
that: decay in units of rms(gradient) / rms(weight) is its share of a step. For each row of a table, this prints the
median over the layers at the first batch, when there is one cluster.
"""

import argparse
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from divconq.config import Config
from divconq.experiments import load_table, parse_names
from divconq.experiments.origin import code_version, hardware
from divconq.training.batches import EpochBatches
from divconq.training.setup import prepare


def rms(x: Tensor) -> float:
    return x.detach().float().square().mean().sqrt().item()


def gradient_over_weight(config: Config) -> float:
    """Return the median over the layers."""
    job = prepare(config)
    _, batches = EpochBatches(job).of(0)
    torch.manual_seed(config.optimisation.seed)
    job.model.train()
    x, labels, cluster = next(batches)
    job.dc.objective(job.model(x.float()), labels, cluster).backward()
    return median(rms(p.grad) / rms(p) for p in job.model.parameters() if p.grad is not None and p.dim() > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", help="names with commas between them; all by default")
    parser.add_argument("--commit", help="commit of the code, if there is no git")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--import", dest="import_file", type=Path)
    parser.add_argument("--backbone", default=argparse.SUPPRESS)
    parser.add_argument("--backbone-weights", type=Path)
    machine = vars(parser.parse_args())
    table, names, commit = load_table(machine.pop("table")), machine.pop("rows"), machine.pop("commit")
    rows = [row for row in table.rows if names is None or row.name in parse_names(names)]
    if not rows:
        parser.error(f"{table.name} has the rows {', '.join(row.name for row in table.rows)}")
    print(f"{code_version(commit)}, {hardware(machine['device'])}, torch {torch.__version__}, seed 0")
    for row in rows:
        config = table.config(row, 0, **machine, compile="off", precision="fp32")
        ratio, decay = gradient_over_weight(config), config.optimisation.weight_decay
        print(f"{row.title}: {ratio:.1e}; weight decay {decay:g} is {decay / ratio:.2f} of it")


if __name__ == "__main__":
    main()
