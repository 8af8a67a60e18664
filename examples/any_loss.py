"""Divide and conquer around a loss of your own, and around one of pytorch-metric-learning, by name.

    python examples/any_loss.py --epochs 2

A loss is anything called as loss(embeddings, labels); put in the table LOSSES it can be named in a config and,
with `divconq train demo --import examples/any_loss.py --loss supervised_contrast`, on the command line.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from divconq import preset
from divconq.losses import LOSSES
from divconq.train import train


class SupervisedContrast(nn.Module):
    """Khosla et al., 2020: cross-entropy of each positive against all other images of the batch."""

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        logits = (embeddings @ embeddings.T / self.temperature).masked_fill(own, -1e4)
        positive = ((labels[:, None] == labels) & ~own).float()
        likelihood = (logits.log_softmax(1) * positive).sum(1) / positive.sum(1).clamp(min=1)
        return -likelihood.mean()


LOSSES["supervised_contrast"] = SupervisedContrast

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    for loss, arguments in (
        ("supervised_contrast", {"temperature": 0.2}),
        ("MultiSimilarityLoss", {"alpha": 2}),
    ):
        config = preset("demo").replace(
            loss=loss, loss_args=arguments, epochs=epochs, divide_every=1, k_max=2, nmi=False
        )
        with tempfile.TemporaryDirectory() as folder:
            last = train(config, Path(folder) / "run")[-1]
        print(f"{loss}: K {last['k']}, R@1 {100 * last['recall@1']:.1f} after {epochs} epochs")
