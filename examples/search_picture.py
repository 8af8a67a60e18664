"""A picture of what a run has learned: queries on the left, their nearest neighbours beside them.

    python examples/search_picture.py runs/demo --data demo --out search.png

Neighbours of the query's class have a green border, others a red one.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageOps

from divconq.evaluation.neighbours import nearest
from divconq.trained_run import TrainedRun

parser = argparse.ArgumentParser()
parser.add_argument("run", type=Path)
parser.add_argument("--data", default="demo", help="a dataset, or any folder of class folders")
parser.add_argument("--out", type=Path, default=Path("search.png"))
parser.add_argument("--queries", type=int, default=6)
parser.add_argument("--neighbours", type=int, default=9)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

embeddings, images = TrainedRun(arguments.run, device="cpu").embed(arguments.data)
drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(arguments.seed))[
    : arguments.queries
]
(found,) = nearest(embeddings[drawn], embeddings, arguments.neighbours, exclude=drawn)

side, gap = 72, 6
cell = side + 2 * gap
sheet = Image.new("RGB", ((1 + arguments.neighbours) * cell + 2 * gap, len(drawn) * cell), "white")
for row, (query, results) in enumerate(zip(drawn.tolist(), found.tolist(), strict=True)):
    for column, index in enumerate([query, *results]):
        pixels = images.store.load(torch.tensor([index]))[0].numpy()
        picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.LANCZOS)
        right = images.labels[index] == images.labels[query]
        border = "white" if column == 0 else "#2e9e5b" if right else "#d64541"
        place = (column * cell + (2 * gap if column else 0), row * cell)
        sheet.paste(ImageOps.expand(ImageOps.expand(picture, 4, border), gap - 4, "white"), place)
sheet.save(arguments.out)
print(f"{arguments.out}: {len(drawn)} queries, {arguments.neighbours} neighbours each")
