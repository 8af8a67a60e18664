"""Measure the quality of the cache: CUB from the cache, and by torchvision from the original files.

    python benchmarks/cache_quality.py --root DIR --backbone-weights FILE     # an hour on two cores; prints Markdown

Both ways compute the features of the same pretrained network in the test view: resized to 256, cropped to 224 in the
centre. `--skip-recall` embeds only the images whose features are compared, which takes a few minutes.
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from cache import hardware
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from divconq.accel.device import pick_device
from divconq.data import ImageSet, open_dataset, subset
from divconq.data.batches.views import stored_side
from divconq.data.images.cache import cached
from divconq.evaluation import evaluate
from divconq.model import Embedder, import_file, make_model
from divconq.training.embedding import embed

SIZE, RESIZE = 224, 256


class Files(Dataset):
    """Image files in the test view of torchvision."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.view = transforms.Compose(
            [transforms.Resize(RESIZE), transforms.CenterCrop(SIZE), transforms.ToTensor()]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as image:
            return self.view(image.convert("RGB"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--backbone", default="resnet50.tv_in1k")
    parser.add_argument("--backbone-weights", type=Path)
    parser.add_argument("--import", dest="import_file", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--skip-recall", action="store_true")
    given = parser.parse_args()
    if given.import_file is not None:
        import_file(given.import_file)
    device = pick_device(given.device)
    weights = given.backbone_weights
    model = make_model(given.backbone, 1, pretrained=weights is None, weights=weights).to(device).eval()
    model = model.to(memory_format=torch.channels_last)
    test = open_dataset("cub", root=given.root, size=stored_side(RESIZE), workers=os.cpu_count()).test
    files = list(test.store.files)
    compared = torch.linspace(0, len(test) - 1, min(given.images, len(test))).long()
    if given.skip_recall:
        keep = torch.zeros(len(test), dtype=torch.bool)
        keep[compared] = True
        test, files = subset(test, keep), [files[i] for i in compared.tolist()]
        compared = torch.arange(len(test))
    ways = {"from the cache": from_cache(model, test), "from the files": from_files(model, files)}
    print(table(ways, test.labels, compared, given, device))


def from_cache(model: Embedder, images: ImageSet) -> Tensor:
    return embed(model, cached(images), size=SIZE, resize=RESIZE, layer="features", progress="cache").cpu()


@torch.inference_mode()
def from_files(model: Embedder, files: list[Path]) -> Tensor:
    batches = DataLoader(Files(files), batch_size=64, num_workers=os.cpu_count())
    features = torch.cat([model.features(x.to(model.mean.device)).cpu() for x in batches])
    return F.normalize(features)


def table(
    ways: dict[str, Tensor], labels: Tensor, compared: Tensor, given: argparse.Namespace, device: torch.device
) -> str:
    ours, theirs = ways.values()
    cosine = (ours[compared] * theirs[compared]).sum(1)
    lines = [
        f"| features of {len(cosine):,} images, from the cache and from the files | cosine |",
        "|---|---|",
        f"| mean | {cosine.mean():.5f} |",
        f"| minimum | {cosine.min():.5f} |",
        "",
    ]
    if not given.skip_recall:
        lines += [f"| {len(labels):,} images search each other | R@1 |", "|---|---|"]
        for name, x in ways.items():
            recall = evaluate(x, labels, ks=(1,), with_nmi=False)["recall@1"]
            lines.append(f"| {name} | {100 * recall:.2f} |")
        lines.append("")
    return "\n".join(
        [*lines, f"`python {' '.join(sys.argv)}` on {hardware(device)}, torch {torch.__version__}."]
    )


if __name__ == "__main__":
    main()
