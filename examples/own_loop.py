"""A plain PyTorch training loop with divide and conquer, added by the five lines marked (1) to (5).

    python examples/own_loop.py --epochs 12
    torchrun --nproc-per-node 2 examples/own_loop.py --epochs 12

The comment at each line shows what a loop without divide and conquer has instead. The functions of
``divconq.distributed`` are for ``torchrun``; a single process does not need them.
"""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

from divconq import DivideAndConquer, retrieval_scores
from divconq.data.sources.demo import demo_dataset
from divconq.distributed import average_gradients, gather, is_first, process_group, shard
from divconq.losses import TripletLoss
from divconq.model import SmallNet


def main(epochs: int, lr: float) -> None:
    torch.manual_seed(0)
    data = demo_dataset()
    images, test_images = (
        split.store.load(torch.arange(len(split)))[:, 4:68, 4:68].permute(0, 3, 1, 2).float() / 255
        for split in (data.train, data.test)
    )
    labels = data.train.labels
    train = TensorDataset(images, labels)
    model = torch.nn.Sequential(SmallNet(), torch.nn.Linear(SmallNet.num_features, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = TripletLoss()

    dc = DivideAndConquer(criterion, labels, optimizer, dim=128, batch=80, divide_every=3)  # (1) new
    loader = DataLoader(train, batch_sampler=dc.sampler)  # (2) was: DataLoader(train, 80, shuffle=True)

    @torch.no_grad()
    def embed(images: torch.Tensor) -> torch.Tensor:
        own = images[shard(len(images))]
        f = gather(torch.cat([model(part) for part in torch.split(own, 256)]), len(images))
        return dc.conquer(f)  # (3) was: F.normalize(f)

    for epoch in range(epochs):
        for cluster, (x, y) in dc.batches(loader, epoch, lambda: embed(images)):  # (4) was: in loader
            loss = dc(model(x), y, cluster)  # (5) was: criterion(F.normalize(model(x)), y)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model.parameters())
            optimizer.step()
        scores = retrieval_scores(embed(test_images), data.test.labels)
        if is_first():
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, R@1 {100 * scores['recall@1']:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-3)
    with process_group():
        main(**vars(parser.parse_args()))
