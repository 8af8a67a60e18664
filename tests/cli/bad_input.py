"""Every error message for bad input, and a way to get it. ``docs/bad-input.md`` is generated from this table.

python tests/cli/bad_input.py      writes the page again
"""

import contextlib
import errno
import io
import os
import pickle
import re
import shutil
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

import divconq
from divconq.accel.device import pick_device
from divconq.analysis import effective_dimension, neighbours, read_run
from divconq.bench.measurements import parse_parts
from divconq.bench.photos import files_of
from divconq.cli import main as command_line
from divconq.cli.streams import Results
from divconq.config import Config, DataConfig, from_yaml
from divconq.data import ImageSet, InMemory, hold_out, open_dataset, subset, thin_out
from divconq.data.batches.augmentation import Augmentation, make_augmentation
from divconq.data.batches.sampler import plan_epoch
from divconq.data.batches.views import check_crop
from divconq.data.dataset import Dataset
from divconq.data.images.cache import cached
from divconq.data.images.files import check_readable
from divconq.data.sources.cars import read_cars
from divconq.data.sources.cub import read_cub
from divconq.data.sources.folder import draw_test_classes, flat_folder, read_folder
from divconq.data.sources.inshop import read_inshop
from divconq.data.sources.official_layout import Count
from divconq.data.sources.omniglot import read_omniglot
from divconq.data.sources.table import read_table
from divconq.distributed import collectives, process_group
from divconq.distributed.agreement import compare
from divconq.divide_and_conquer import DivideAndConquer
from divconq.division import Partition, divide
from divconq.division.bisection import bisect
from divconq.division.lloyd import kmeans
from divconq.division.matching import match
from divconq.evaluation import evaluate, one_gallery_image
from divconq.evaluation.neighbours import nearest
from divconq.experiments.figures import overrides_of
from divconq.experiments.flags import parse_changes, parse_seeds
from divconq.experiments.results import Result, append_result, read_results
from divconq.experiments.runner import check_losses, plan
from divconq.experiments.settings import portable
from divconq.experiments.statistics import paired_difference, summarise
from divconq.experiments.table import load_table, parse_table
from divconq.io import locks
from divconq.losses import check_loss, make_loss
from divconq.masks import Masks
from divconq.model import CLMLHead, import_file, make_model
from divconq.presets import preset
from divconq.recorder import Recorder
from divconq.runs import checkpoints
from divconq.runs.exported import load_model
from divconq.runs.folder import Run
from divconq.runs.lock import run_lock
from divconq.trained_run import TrainedRun
from divconq.training.datasets import make_record, open_data
from divconq.training.loggers import check_loggers
from divconq.training.mixture import check_scikit_learn
from divconq.training.nan_guard import NaNGuard
from divconq.training.scoring import check_test_images
from divconq.training.setup import prepare

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bad-input.md"
SOURCE = Path(divconq.__file__).parent


@dataclass(frozen=True)
class Refusal:
    """Something wrong; ``make`` does it, in an empty folder, and is refused.

    ``remedy`` is for messages that have none of their own. ``varies`` is a pattern of what other packages say,
    which depends on their versions.
    """

    wrong: str
    make: Callable[[], object]
    remedy: str = ""
    varies: str = ""


@dataclass(frozen=True)
class Outcome:
    """What was said, and the places in the source, as file and line, that raised."""

    message: str
    raised: frozenset[tuple[str, int]]


# What there may be in the folder

TINY = Config.of(
    data="photos",
    image_size=16,
    resize=20,
    backbone="small",
    pretrained=False,
    dim=8,
    batch=4,
    epochs=1,
    k_max=2,
    divide_every=1,
    ks=(1,),
    workers=1,
    device="cpu",
)
FLAGS = "--image-size 16 --resize 20 --backbone small --no-pretrained --dim 8 --batch 4 --epochs 1 --k-max 1"
FLAGS += " --ks 1 --workers 1 --device cpu"


def photo(path: str, seed: int = 0, **options: object) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    Image.fromarray(pixels).save(file, **options)
    return file


def omniglot(images: np.ndarray | None = None) -> Path:
    """A folder with both arrays of Omniglot."""
    for name in ("background", "evaluation"):
        array = np.zeros((2, 2, 8, 8), bool) if images is None else images
        np.savez(f"images_{name}.npz", images=array)
    return Path()


def photos(layout: str = "train/ant train/bee test/cat test/dog", images: int = 2) -> Path:
    """A folder of photos with these class folders."""
    for number, name in enumerate(layout.split()):
        for image in range(images):
            photo(f"photos/{name}/{image}.png", 10 * number + image)
    return Path("photos")


def write(path: str, content: str | bytes) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        file.write_text(content)
    else:
        file.write_bytes(content)
    return file


def table(*lines: str, heading: str = "path,label,split", name: str = "list.csv") -> Path:
    """A table beside photos; without lines it is fine."""
    photos()
    fine = [f"photos/{s}/{c}/{i}.png,{c},{s}" for s, c in SPLIT for i in range(2)]
    return write(name, "\n".join([heading, *(lines or fine)]) + "\n")


SPLIT = (("train", "ant"), ("train", "bee"), ("test", "cat"), ("test", "dog"))


def edited(old: str, new: str) -> Path:
    """The table that is fine, with a change."""
    text = table().read_text()
    assert old in text
    return write("list.csv", text.replace(old, new))


def png(width: int, height: int, depth: int = 8, *chunks: tuple[bytes, bytes]) -> bytes:
    """The bytes of an image that claims this size."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    heading = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    parts = [(b"IHDR", heading), *chunks, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(kind: type[np.generic]) -> bytes:
    """The bytes of a grey image with values of this type."""
    stream = io.BytesIO()
    Image.fromarray(np.ones((8, 8), kind)).save(stream, "TIFF")
    return stream.getvalue()


def planes_of_16_bits() -> bytes:
    """The bytes of a colour image of 8 x 8 pixels, with 16 bits per channel, channel by channel."""
    tags = {256: 8, 257: 8, 258: (16,) * 3, 259: 1, 262: 2, 273: (140, 268, 396), 277: 3, 278: 8, 284: 2}
    start = 8 + 2 + 12 * len(tags) + 4
    entries = tail = b""
    for tag, values in tags.items():
        numbers = values if isinstance(values, tuple) else (values,)
        data = struct.pack(f"<{len(numbers)}H", *numbers)
        field = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack("<I", start + len(tail))
        tail += data if len(data) > 4 else b""
        entries += struct.pack("<HHI", tag, 3, len(numbers)) + field
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + tail + bytes(384)


def eps() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "EPS")
    return stream.getvalue()


def without_module(name: str, flag: str) -> None:
    photos()
    with patch.dict(sys.modules, {name: None}):
        train(flag)


def not_logged_in() -> None:
    def login() -> None:
        raise RuntimeError("No API key configured.")

    package = ModuleType("wandb")
    package.__dict__.update(
        init=None, login=login, setup=lambda: SimpleNamespace(settings=SimpleNamespace(mode="online"))
    )
    photos()
    with patch.dict(sys.modules, {"wandb": package}):
        train("--wandb")


class Hostile:
    """A pickle that would write a file when it is read; nothing here ever does."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("executed"),))


def main(*words: object) -> None:
    command_line([str(word) for word in words])


def train(*words: str, data: str = "photos") -> None:
    main("train", "--data", data, "--out", "run", *FLAGS.split(), *words)


def odd(content: bytes, name: str = "odd.png") -> None:
    """Train on photos of which one is this."""
    photos()
    write(f"photos/test/dog/{name}", content)
    train("--no-cache")


def checked(content: bytes) -> None:
    photos()
    write("photos/test/dog/odd.png", content)
    main("data", "check", "photos")


def linked(link: str, target: str) -> None:
    """Train on photos of which one is a link to another one."""
    photos()
    Path(f"photos/{link}").symlink_to(Path(f"photos/{target}").resolve())
    train()


def not_utf8() -> None:
    photos()
    photo(os.fsdecode(b"photos/train/caf\xe9/0.png"))
    train()


def without_permission() -> None:
    photos()
    denied = PermissionError(errno.EACCES, "Permission denied", "photos/train/ant")
    with patch("os.scandir", side_effect=denied):
        read_folder("photos")


def pipe() -> None:
    images = flat_folder(photos("ant", images=2), size=8, workers=1)
    Path("photos/ant/1.png").unlink()
    os.mkfifo("photos/ant/1.png")
    images.store.load(torch.tensor([1]))


def parquet(label: Sequence[object]) -> None:
    import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from pyarrow import parquet as files  # type: ignore[import-not-found, import-untyped, unused-ignore]

    files.write_table(pyarrow.table({"path": ["1.jpg", "2.jpg"], "label": label}), "list.parquet")
    read_table(Path("list.parquet"))


def homeless() -> None:
    with (
        patch.dict(os.environ, {"DIVCONQ_CACHE": "", "XDG_CACHE_HOME": ""}),
        patch("pathlib.Path.home", side_effect=RuntimeError("Could not determine home directory.")),
    ):
        cached(flat_folder(photos(), size=8, workers=1))


def cub(**changes: str) -> Path:
    """A miniature of the official layout of CUB200-2011: two classes of two images each."""
    paths = ["001.Ani/1.png", "001.Ani/2.png", "002.Auk/1.png", "002.Auk/2.png"]
    for number, path in enumerate(paths):
        photo(f"cub/images/{path}", number)
    lists = {
        "images": "".join(f"{i} {path}\n" for i, path in enumerate(paths, 1)),
        "image_class_labels": "1 1\n2 1\n3 2\n4 2\n",
        "classes": "1 001.Ani\n2 002.Auk\n",
    }
    for name, text in {**lists, **changes}.items():
        write(f"cub/{name}.txt", text)
    return Path("cub")


ONE = {"train": Count(1), "test": Count(1)}


def mat(**variables: object) -> None:
    from scipy.io import savemat

    Path("cars").mkdir()
    savemat("cars/cars_annos.mat", variables)
    read_cars(Path("cars"), counts=ONE)


def annotations(
    *cars: tuple[object, object], fields: Sequence[str] = ("class", "relative_im_path")
) -> np.ndarray:
    made = np.empty((1, len(cars)), dtype=[(name, object) for name in fields])
    for number, car in enumerate(cars):
        made[0, number] = car
    return made


def inshop(*lines: str, count: int | None = None) -> None:
    heading = f"{len(lines) if count is None else count}\nimage_name item_id evaluation_status\n"
    write("inshop/list_eval_partition.txt", heading + "".join(f"{line}\n" for line in lines))
    read_inshop(Path("inshop"))


def in_memory(labels: Sequence[int], **factors: Sequence[int]) -> ImageSet:
    pixels = InMemory(torch.zeros(len(labels), 8, 8, 3, dtype=torch.uint8))
    names = tuple("abcdefgh"[: max(labels, default=0) + 1])
    known = {name: torch.tensor(values) for name, values in factors.items()}
    return ImageSet(pixels, torch.tensor(labels), names, tuple("1" * len(labels)), factors=known)


def in_families(labels: Sequence[int], groups: Sequence[int]) -> ImageSet:
    return replace(in_memory(labels), groups=torch.tensor(groups))


def run(**changes: object) -> Run:
    """A run that has begun on photos that are there."""
    photos()
    return Run.create(Path("run"), TINY.replace(data=str(Path("photos").resolve()), **changes))


def trained(**changes: object) -> Run:
    """A run that is done."""
    done = run(**changes)
    done.export(make_model("small", 8), torch.ones(8))
    return done


def recorded(**changes: object) -> Run:
    """A run that is done, with the record of its split."""
    done = trained(**changes)
    done.save_split(make_record(done.config, *open_data(done.config)))
    return done


def with_another_backbone() -> None:
    """A run that trains the head on the features of a backbone whose weights are others now."""
    done = run(trained="head")
    record = make_record(done.config, *open_data(done.config))
    done.save_split(replace(record, backbone="the weights of before"))
    main("train", "--resume", "run")


def with_other_classes() -> None:
    """A run of an older version, which has no record, on data that has changed since."""
    folder_ = trained().folder
    checkpoints.save(folder_, "last", {"data": "the classes of before"})
    main("eval", "run")


def scored_on_training_images() -> None:
    recorded()
    shutil.copytree("photos/train", "others/train")
    shutil.copytree("photos/train", "others/test")
    main("eval", "run", "--data", "others")


def resumed(change: Callable[[bytes], bytes] = lambda content: content, **state: object) -> None:
    """Go on from a checkpoint that holds this, and whose bytes are changed."""
    folder_ = run().folder
    checkpoints.save(folder_, "last", state)
    file = folder_ / checkpoints.LAST
    file.write_bytes(change(file.read_bytes()))
    main("train", "--resume", "run")


def saved(**state: object) -> None:
    """A run with a checkpoint that holds this."""
    checkpoints.save(run().folder, "last", state)


def logged(line: str) -> None:
    """Compare a run whose log has this second line."""
    (run().folder / "metrics.jsonl").write_text('{"epoch": 1}\n' + line + '\n{"epoch": 3}\n')
    main("compare", "run")


def of_whole_numbers() -> dict[str, torch.Tensor]:
    return {name: value.long() for name, value in make_model("small", 8).state_dict().items()}


def moments(**of_first: torch.Tensor) -> dict[str, object]:
    """The state of Adam with these moments of its first parameter."""
    photos()
    state = prepare(TINY).optimizer.state_dict()
    return {**state, "state": {0: of_first}}


def another_model() -> None:
    parts = {"model": {}, "masks": Masks(8, 2).state_dict(), "partition": torch.zeros(4, dtype=torch.int64)}
    saved(epoch=1, **parts)
    Run.open("run").model()


def endless() -> dict[str, object]:
    table: dict[str, object] = {}
    table["a"] = table
    return table


def many_aliases() -> str:
    return "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


def mined(**arguments: object) -> None:
    loss("TripletMarginLoss", "TripletMarginMiner", arguments)


class Rows(torch.nn.Module):
    """A loss that returns a value for each image."""

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return embeddings.sum(1) * 0


def no_number() -> None:
    with patch.dict("divconq.losses.LOSSES", {"mine": Rows}):
        check_loss("mine", dim=2, per_class=2)


def of_another_version() -> None:
    with patch("divconq.runs.checkpoints.FORMAT", "divconq checkpoint 0"):
        folder_ = run().folder
        checkpoints.save(folder_, "last", {})
    main("train", "--resume", "run")


def hostile_best() -> None:
    checkpoints.save(trained().folder, "best", {"model": Hostile()})
    main("eval", "run", "--checkpoint", "best")


def diverged() -> None:
    run_ = TrainedRun(trained().folder, device="cpu")
    torch.nn.init.constant_(run_.model.head.weight, float("nan"))
    run_.embed("photos")


def damaged_log() -> None:
    (trained().folder / "metrics.jsonl").write_text('{"epoch": 1\n{"epoch": 2}\n')
    main("compare", "run")


def both_damaged() -> None:
    folder_ = run().folder
    for name in (checkpoints.LAST, checkpoints.PREVIOUS):
        (folder_ / name).write_bytes(b"damaged")
    main("train", "--resume", "run")


def restored(images: int | None = None, **changes: object) -> None:
    """Go on from a checkpoint that does not fit."""
    photos()
    job = prepare(TINY.replace(ema=0.9))
    recorder = Recorder(job, Path("run"))
    state = recorder._state(torch.empty(0))
    if images is not None:
        state["divide_and_conquer"]["_extra_state"]["clusters"] = torch.zeros(images, dtype=torch.int64)
    recorder._restore({**state, **changes})


def weights(state: Mapping[str, torch.Tensor], **metadata: str) -> Path:
    from safetensors.torch import save_file

    save_file(dict(state), "weights.safetensors", metadata)
    return Path("weights.safetensors")


def own_weights(**metadata: str) -> None:
    state = make_model("small", 8).backbone.state_dict()
    make_model("small", 8, weights=weights(state, **metadata))


def loss(
    name: str, miner: str | None = None, mined: Mapping[str, object] | None = None, **arguments: object
) -> None:
    make_loss(name, arguments, num_classes=4, dim=8, miner=miner, miner_arguments=mined or {})


def points(n: int = 8, d: int = 2) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


def labels(n: int = 8, k: int = 2) -> torch.Tensor:
    return torch.arange(n) % k


def score(n: int = 4, searched: int = 0, **changes: object) -> None:
    arguments: dict[str, object] = {"query": points(n), "query_labels": labels(n), "ks": (1,), "seed": 0}
    if searched:
        arguments |= {"gallery": points(searched), "gallery_labels": labels(searched)}
    evaluate(**{**arguments, **changes})


def sampled(n: int = 8, **changes: object) -> None:
    arguments = {"labels": labels(n), "clusters": torch.zeros(n, dtype=torch.int64), "k": 1, "batch": 4}
    plan_epoch(**{**arguments, "seed": 0, "epoch": 0, **changes})


def divided(strategy: str = "progressive", x: torch.Tensor | None = None, k_max: int = 2, k: int = 1) -> None:
    partition = Partition(labels(k=k), k)
    divide(strategy, x, partition, labels(), k_max=k_max, seed=0)


ROWS = "rows: {plain: {flags: {k_max: 1}}, ours: {flags: {k_max: 2}}}"


def experiments(text: str = f"title: T\npreset: demo\n{ROWS}\n") -> Path:
    return write("t.yaml", text)


def of_table(rows: str = ROWS, more: str = "") -> None:
    parse_table("t", f"title: T\npreset: demo\n{more}\n{rows}\n")


def flag(name: str, value: str) -> None:
    parse_changes([f"{name}={value}"])


def reproduced(*words: str) -> None:
    main("reproduce", experiments(), "--out", "results", *words)


def two_settings() -> None:
    """Results of a table that was run twice, each time with another --set."""
    made = load_table(experiments())
    results = [
        Result("t", "plain", 0, made.settings(made.rows[0], 0, change), change, {}, "", "", "", "", 0.0, {})
        for change in ({"epochs": 3}, {"epochs": 4})
    ]
    overrides_of(made, results, {})


def wrong_result() -> None:
    append_result(Path("results/t.jsonl"), Result("t", "plain", "first", {}, {}, {}, "", "", "", "", 0.0, {}))
    read_results(Path("results"))


def without(package: str, make: Callable[[], object]) -> Callable[[], object]:
    def made() -> None:
        with patch.dict("sys.modules", {package: None}):
            make()

    return made


def cache_of_photos(then: Callable[[], object] = lambda: None) -> None:
    images = flat_folder(photos(), size=8, workers=1)
    then()
    cached(images, Path("cache"))


def features_below_a_file() -> None:
    photos()
    folder_ = write("file", "") / "cache"
    with patch.dict(os.environ, {"DIVCONQ_CACHE": str(folder_)}):
        train("--trained", "head")


def full_while_writing() -> None:
    with patch(
        "divconq.data.images.cache.os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")
    ):
        cache_of_photos()


def no_room() -> None:
    with patch("divconq.data.images.cache.shutil.disk_usage", lambda _: SimpleNamespace(free=100)):
        cache_of_photos()


def changed_while_read() -> None:
    from divconq.data.images import cache

    real = cache.decode

    def decode(file: Path, *others: object) -> np.ndarray:
        image = real(file, *others)
        if file.name == "1.png":
            os.utime(file, ns=(1, 1))
        return image

    with patch("divconq.data.images.cache.decode", decode):
        photos("ant", images=2)
        cached(flat_folder("photos", size=8, workers=1), Path("cache"))


def not_finite(finite: bool) -> None:
    guard = NaNGuard(epoch=2, clusters=torch.tensor([0, 1]), device=torch.device("cpu"))
    guard.step(torch.tensor(float("nan")), torch.tensor(finite))


def own_loop() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    dc = DivideAndConquer(lambda z, y: z.sum(), labels(), optimizer, dim=4, batch=4, k_max=2)
    list(dc.batches([torch.zeros(4, 4)], 0, points))


def on_no_gpu() -> None:
    with patch("torch.cuda.is_available", lambda: False):
        pick_device("cuda")


def by_cameras(*cameras: int) -> None:
    images = in_memory([0, 0, 1, 1], camera=cameras)
    check_test_images(Dataset("d", images, images), ks=(1,))


def by_labels(found: Sequence[int]) -> None:
    images = in_memory(found)
    check_test_images(Dataset("d", images, images), ks=(1,))


def embed_into(name: str) -> None:
    main("embed", "run", "--data", "photos", "--out", name)


def boxes(box: str) -> None:
    text = table().read_text().splitlines()
    rows = [f"{row},{box if number == 3 else '0,0,8,8'}" for number, row in enumerate(text[1:], 1)]
    read_table(write("list.csv", "\n".join([f"{text[0]},x1,y1,x2,y2", *rows])))


def photographed(**changes: object) -> Config:
    photos()
    return TINY.replace(**changes)


def one_image() -> None:
    config = photographed()
    Path("photos/train/ant/1.png").unlink()
    open_data(config)


def checked_labels(of_one: str) -> None:
    photos()
    for name in of_one.split():
        Path(f"photos/{name}/1.png").unlink()
    main("data", "check", "photos")


def copied() -> None:
    photos()
    Path("photos/test/dog/0.png").write_bytes(Path("photos/train/ant/0.png").read_bytes())
    main("data", "check", "photos")


def read(cub: Mapping[str, Count]) -> None:
    read_cub(Path("cub"), counts=cub, workers=1)


def matlab(text: str) -> None:
    write("cars/cars_annos.mat", text)
    read_cars(Path("cars"))


def cut_png() -> bytes:
    return photo("whole.png").read_bytes()[:300]


def vanished() -> None:
    images = flat_folder(photos("ant", images=2), size=8, workers=1)
    Path("photos/ant/1.png").unlink()
    check_readable([images.store])


def replaced(content: bytes) -> None:
    """An image is another when it is decoded than when it was opened, by a program that lifts Pillow's limit."""
    images = flat_folder(photos("ant", images=2), size=8, workers=1)
    write("photos/ant/1.png", content)
    with patch("PIL.Image.MAX_IMAGE_PIXELS", None):
        images.store.load(torch.tensor([1]))


def unbuildable() -> None:
    with patch("timm.create_model", side_effect=RuntimeError("no such pooling")):
        make_model("resnet18", 8)


def offline() -> None:
    with patch("timm.create_model", side_effect=OSError("no route to host")):
        make_model("resnet18", 8, pretrained=True)


def registered() -> Path:
    """A run whose backbone was registered by a file of its user."""
    done = run(backbone="mine_net", import_file=Path("mine.py"))
    done.export(make_model("small", 8), torch.ones(8))
    return done.folder


def changed_after() -> None:
    parts = {"model": {}, "masks": Masks(8, 2).state_dict(), "partition": torch.zeros(4, dtype=torch.int64)}
    checkpoints.save(run().folder, "last", {"epoch": 1, **parts})
    read_run(Path("run")).snapshot()


def losses() -> object:
    rows = "rows: {a: {flags: {loss: margn}}}"
    return parse_table("t", f"title: T\npreset: demo\n{rows}\n")


def of_two(make: Callable[[], object]) -> None:
    with (
        patch("divconq.distributed.collectives.size", lambda: 2),
        patch("divconq.distributed.collectives.rank", lambda: 1),
    ):
        make()


def shared_batchnorm() -> None:
    of_two(lambda: collectives.share_batchnorm(torch.nn.BatchNorm1d(2), torch.device("cpu")))


def locked_run(lock: Callable[[int], None]) -> None:
    """Lock a run that is locked already."""
    Path("run").mkdir()
    with run_lock(Path("run")), patch("divconq.io.locks._lock_descriptor", lock):
        held = {} if lock is held_by_another else locks._held
        with patch("divconq.io.locks._held", held):
            run_lock(Path("run")).acquire()


def held_by_another(descriptor: int) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def died() -> None:
    with patch("torch.distributed.all_reduce", side_effect=RuntimeError("connection closed")):
        of_two(lambda: collectives.anywhere(True))


def more_than_gpus() -> None:
    started = patch.dict(os.environ, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    with started, patch("torch.cuda.device_count", lambda: 1), process_group(torch.device("cuda")):
        pass


def under_torchrun(*words: str, **environment: str) -> None:
    with patch.dict(os.environ, environment):
        main(*words)


def more_than_images() -> None:
    photos()
    with patch("divconq.training.setup.size", lambda: 8):
        prepare(TINY)


# The table

COMMANDS = (
    Refusal("a result that cannot be printed", lambda: Results("/dev/full", "w").write(b"1")),
    Refusal("a command that does not exist", lambda: main("trian")),
    Refusal("a preset that does not exist", lambda: main("train", "cubb")),
    Refusal("a flag that does not exist", lambda: main("train", "demo", "--k-mxa", "4")),
    Refusal("a preset after the flags", lambda: main("train", "--epochs", "3", "demo")),
    Refusal("`presets` with another word", lambda: main("presets", "shwo", "cub")),
    Refusal("`presets show` without a preset", lambda: main("presets", "show")),
    Refusal("`data` with another word", lambda: main("data", "chekc", "photos")),
    Refusal("a choice that does not exist", lambda: main("eval", "run", "--device", "gpu")),
    Refusal(
        "a setting of a loss without its value", lambda: main("train", "demo", "--loss.alpha"), "give one"
    ),
    Refusal(
        "a flag without its value", lambda: main("train", "demo", "--epochs"), varies=".*(?=; see --help)"
    ),
    Refusal("`--device cuda` without a GPU", on_no_gpu),
    Refusal("a file to import that is not there", lambda: (photos(), train("--import", "mine.py"))),
    Refusal(
        "a file to import that is no Python",
        lambda: (photos(), write("mine.txt", "x = 1"), train("--import", "mine.txt")),
    ),
    Refusal("`embed` into a file of another kind", lambda: embed_into("x.csv"), "name an .npz file"),
    Refusal("`embed` into a file that exists", lambda: (write("x.npz", ""), embed_into("x.npz"))),
    Refusal(
        "`analyze` into what is not a folder",
        lambda: (write("report", ""), main("analyze", "run", "--out", "report")),
    ),
    Refusal("`embed` with a network that has diverged", diverged),
    Refusal("a damaged line within `metrics.jsonl`", damaged_log),
    Refusal(
        "`embed --split gallery` of data without one",
        lambda: TrainedRun(trained().folder, device="cpu").embed("photos", "gallery"),
    ),
    Refusal(
        "`--tensorboard` or `--wandb` without the package",
        lambda: without_module("torch.utils.tensorboard", "--tensorboard"),
        varies=r"(?<=imported \().*(?=\);)",
    ),
    Refusal("`--wandb` without a login", not_logged_in, varies=r"(?<=in \().*(?=\);)"),
    Refusal("a logger that does not exist", lambda: check_loggers(["tensorbord"])),
    Refusal("`compare` without a run", lambda: main("compare")),
    Refusal(
        "`compare --metric` of a score that does not exist",
        lambda: (run(), main("compare", "run", "--metric", "recal@1")),
        "name one that `metrics.jsonl` has",
    ),
    Refusal("`bench --only` of a part that does not exist", lambda: main("bench", "--only", "stepp")),
    Refusal("`bench --only` of nothing", lambda: parse_parts(","), "name one, or leave `--only` out"),
    Refusal(
        "`bench --json` into a folder that is not there", lambda: main("bench", "--json", "results/b.json")
    ),
    Refusal("`bench` of files with images in memory", lambda: files_of(in_memory([0]).store)),
)

SETTINGS = (
    Refusal("a number of clusters that doubling cannot reach", lambda: Config.of(k_max=6)),
    Refusal(
        "a count or a weight that is too small (of `epochs`, `batch`, `dim`, `per_class`, ...)",
        lambda: Config.of(epochs=0),
    ),
    Refusal(
        "a count, a weight or a size that is absurd (of `epochs`, `batch`, `image_size`, `workers`, ...)",
        lambda: Config.of(epochs=10**18),
    ),
    Refusal("a colour mean of pixels from 0 to 255", lambda: Config.of(mean=(123.7, 116.3, 103.5))),
    Refusal(
        "Python objects in the arguments of a loss",
        lambda: Config.of(loss_args={"alpha": {1, 2}}),
        "give a number or a word",
    ),
    Refusal("numbers as names of arguments", lambda: Config.of(loss_args={1: 2}), "use words as names"),
    Refusal("arguments that contain themselves", lambda: Config.of(loss_args=endless()), "use fewer levels"),
    Refusal("a number that only Python reads", lambda: main("train", "demo", "--epochs", "1_000")),
    Refusal("a setting that does not exist, in Python", lambda: Config.of(kmax=4)),
    Refusal("a setting in place of a section", lambda: Config(data="cub")),
    Refusal("a device that does not exist", lambda: Config.of(device="gpu")),
    Refusal("a word for a number", lambda: DataConfig(image_size="224")),
    Refusal("true for a number", lambda: Config.of(epochs=True)),
    Refusal("a number that is not finite", lambda: Config.of(weight_decay=float("nan"))),
    Refusal("a learning rate that is not positive", lambda: Config.of(lr=0.0)),
    Refusal("a number that no float holds", lambda: Config.of(lr=10**400)),
    Refusal("a dropout out of range", lambda: Config.of(dropout=1.0)),
    Refusal(
        "too much noise between the copies of a mask",
        lambda: Config.of(mask_split_noise=1.0),
    ),
    Refusal(
        "a share of test classes out of range",
        lambda: Config.of(test_classes=1.0),
    ),
    Refusal("fewer dimensions than fixed masks", lambda: Config.of(masks="fixed", dim=2, k_max=4)),
    Refusal("the same, of `Masks`", lambda: Masks(dim=2, k_max=4, kind="fixed")),
    Refusal("masks of an unknown kind", lambda: Masks(8, 2, "learnt"), "use one of them"),
    Refusal("a mask activation that does not exist", lambda: Config.of(mask_activation="soft_plus")),
    Refusal("the same, of `Masks`", lambda: Masks(8, 2, activation="sigmoid"), "use one of them"),
    Refusal(
        "whole super-categories held out, and no number of classes",
        lambda: Config.of(val_groups=True),
    ),
    Refusal("a decay of the average of the weights out of range", lambda: Config.of(ema=1.0)),
    Refusal("a schedule that does not exist", lambda: Config.of(schedule="cosinus")),
    Refusal("a warm-up as long as the run", lambda: Config.of(warmup_epochs=30, epochs=30)),
    Refusal("a batch that is no multiple", lambda: Config.of(batch=10, per_class=4)),
    Refusal(
        "classes drawn equally often, in batches that are not made of classes",
        lambda: Config.of(class_sampling="classes"),
    ),
    Refusal("the same, on the command line", lambda: main("train", "cub", "--class-sampling", "classes")),
    Refusal(
        "a preset of the authors with other batches", lambda: preset("sop-authors").replace(per_class=None)
    ),
    Refusal(
        "a way to share the steps that does not exist",
        lambda: Config.of(cluster_steps="even"),
        "use one of them",
    ),
    Refusal("a length of an epoch that does not exist", lambda: Config.of(epoch_length="longest")),
    Refusal("the mean of no k-means", lambda: Config.of(nmi_runs=0)),
    Refusal(
        "images smaller than what the network sees",
        lambda: Config.of(image_size=224, resize=200),
    ),
    Refusal("the same, of a view", lambda: check_crop(224, 200)),
    Refusal("images decoded smaller than they are shown", lambda: Config.of(resize=256, decode_size=240)),
    Refusal("Recall@0", lambda: Config.of(ks=(0, 1))),
    Refusal("no Recall@k", lambda: Config.of(ks=())),
    Refusal("an augmentation that does not exist", lambda: make_augmentation("geom+colour")),
    Refusal("a probability above 1", lambda: Augmentation(flip=2.0), "use for example 0.5"),
    Refusal(
        "two probabilities of one operation",
        lambda: Augmentation(rotate=0.5, shift=0.4, together=True),
    ),
    Refusal("a crop that does not exist", lambda: Augmentation(crop="centre"), "use one of them"),
    Refusal("a crop larger than the image", lambda: Augmentation(crop_scale=(0.5, 2.0))),
    Refusal("a `config.yaml` that is no YAML", lambda: from_yaml("ks: [1")),
    Refusal("a bracket that is not closed", lambda: (photos(), train("--loss.alpha", "[1"))),
    Refusal("a `config.yaml` that is no table", lambda: from_yaml("- 1"), "copy the file again"),
    Refusal("a key of `config.yaml` that is there twice", lambda: from_yaml("k_max: 2\nk_max: 4")),
    Refusal("the same, in a section and outside", lambda: from_yaml("division: {k_max: 2}\nk_max: 4")),
    Refusal("YAML that is nested without end", lambda: from_yaml("loss_args: &a {b: *a}")),
    Refusal("YAML whose aliases grow without end", lambda: from_yaml(many_aliases())),
    Refusal("YAML of megabytes", lambda: from_yaml("# " + "x" * 10**6)),
    Refusal("a word in `config.yaml` for a number", lambda: from_yaml("k_max: four")),
    Refusal("a number in `config.yaml` for a list", lambda: from_yaml("ks: 1")),
    Refusal(
        "a list in `config.yaml` that is too short",
        lambda: from_yaml("crop_scale: [0.5]"),
    ),
    Refusal(
        "a setting that does not exist",
        lambda: from_yaml("k_maks: 4"),
        "use that version, or correct the name",
    ),
)

OWN_DATA = (
    Refusal("no data", lambda: open_dataset("")),
    Refusal("a dataset that does not exist", lambda: open_dataset("cubs")),
    Refusal("a folder that is not there", lambda: read_folder("photos")),
    Refusal("photos that are not in class folders", lambda: (photo("photos/1.jpg"), read_folder("photos"))),
    Refusal(
        "class folders without images",
        lambda: (Path("photos/ant").mkdir(parents=True), read_folder("photos")),
    ),
    Refusal("fewer than four classes, and no split", lambda: read_folder(photos("ant bee cat"))),
    Refusal("`train/` without `test/`", lambda: read_folder(photos("train/ant train/bee"))),
    Refusal("`train/` of one class", lambda: read_folder(photos("train/ant test/cat"))),
    Refusal("a link that gives an image two labels", lambda: linked("train/bee/2.png", "train/ant/0.png")),
    Refusal(
        "a link to an image of train in another split",
        lambda: (photos("train/ant test/ant"), linked("test/ant/2.png", "train/ant/0.png")),
    ),
    Refusal(
        "a link that gives an image two labels, to `data check`",
        lambda: (
            photos(),
            Path("photos/train/bee/2.png").hardlink_to("photos/train/ant/0.png"),
            main("data", "check", "photos"),
        ),
    ),
    Refusal("a name that is not UTF-8", not_utf8),
    Refusal("a class folder without permission to read", without_permission),
    Refusal("no image at all, for `embed`", lambda: (Path("photos").mkdir(), flat_folder("photos"))),
    Refusal("a share of test classes out of range", lambda: draw_test_classes("abcd", 1.5, seed=0)),
    Refusal("a table that is not there", lambda: read_table(Path("list.csv"))),
    Refusal("a table that is not UTF-8", lambda: read_table(write("list.csv", b"path,label\n\xe4.jpg,a\n"))),
    Refusal("a quote that is not closed", lambda: read_table(table('"1.jpg,ant,train'))),
    Refusal("a line with a value too many", lambda: read_table(table("1.jpg,ant,train,2"))),
    Refusal(
        "a Parquet file that is none",
        lambda: read_table(write("list.parquet", "x")),
        varies="(?<=got ).*(?=; save)",
    ),
    Refusal(
        "a Parquet file, without pyarrow", without("pyarrow", lambda: read_table(write("list.parquet", "x")))
    ),
    Refusal("NaN in a Parquet file", lambda: parquet([1.0, float("nan")])),
    Refusal("a Parquet column of another type", lambda: parquet([b"ant", b"bee"])),
    Refusal("a label of a Parquet file that is a fraction", lambda: parquet([1.0, 0.5])),
    Refusal("a column that is twice in a table", lambda: read_table(table(heading="path,label,label"))),
    Refusal("a column that is missing", lambda: read_table(edited("path,label", "path,class"))),
    Refusal("a table without rows", lambda: read_table(write("list.csv", "path,label\n"))),
    Refusal("a row without a value", lambda: read_table(edited("1.png,ant", "1.png,"))),
    Refusal(
        "a path that leaves the folder of the table", lambda: read_table(edited("photos/test/cat/0", "../0"))
    ),
    Refusal("a path of a table that is not there", lambda: read_table(edited("photos/test/cat/0", "0"))),
    Refusal(
        "fewer than four classes, and no column `split`",
        lambda: read_table(table("photos/train/ant/0.png,a", heading="path,label")),
    ),
    Refusal("a split that does not exist", lambda: read_table(edited("cat,test", "cat,tset"))),
    Refusal("nothing to test", lambda: read_table(edited(",test", ",train"))),
    Refusal("one class to train on", lambda: read_table(edited("bee,train", "ant,train"))),
    Refusal("a box that is no number", lambda: boxes("0,0,wide,8")),
    Refusal("a box that is not finite", lambda: boxes("0,0,nan,8")),
    Refusal("a box that is not in its image", lambda: boxes("0,0,17,8")),
    Refusal("a box below a pixel", lambda: boxes("3,0,3.5,8")),
    Refusal("an image with two labels", lambda: read_table(edited("bee/1.png,bee", "bee/0.png,ant"))),
    Refusal(
        "an image to train on and to find",
        lambda: read_table(edited("dog/1.png,dog,test", "dog/0.png,dog,train")),
    ),
    Refusal("a folder that is not Omniglot", lambda: read_omniglot(Path("photos"))),
    Refusal("arrays of Omniglot that are damaged", lambda: read_omniglot(omniglot(np.zeros((1, 2))))),
    Refusal("arrays that are not all of Omniglot", lambda: read_omniglot(omniglot())),
    Refusal("a class with one image", lambda: one_image()),
    Refusal(
        "too many classes held out",
        lambda: hold_out(in_memory([0, 1, 2]), 2, seed=0),
        "lower `--val-classes`",
    ),
    Refusal(
        "whole super-categories held out that are not there",
        lambda: hold_out(in_memory([0, 1, 2]), 1, seed=0, whole_groups=True),
    ),
    Refusal(
        "a super-category that has more classes than are held out",
        lambda: hold_out(in_families([0, 1, 2, 3], [0, 0, 1, 1]), 1, seed=0, whole_groups=True),
        "raise `--val-classes`",
    ),
    Refusal(
        "more classes than there are, to train on",
        lambda: thin_out(in_memory([0, 1, 2]), 4, seed=0),
    ),
    Refusal("more clusters than images", lambda: open_data(photographed(k_max=8))),
    Refusal(
        "a division by super-categories that are not there",
        lambda: open_data(photographed(division="labels")),
    ),
    Refusal("a batch larger than the data", lambda: open_data(photographed(batch=6))),
    Refusal("fewer test images than Recall@k needs", lambda: open_data(photographed(ks=(1, 8)))),
    Refusal("no test class with two images", lambda: by_labels([0, 1, 2])),
    Refusal("test classes seen by one camera each", lambda: by_cameras(1, 1, 2, 2)),
    Refusal("an image set of nothing", lambda: in_memory([]), "add images"),
    Refusal("labels without a name", lambda: replace(in_memory([0, 1]), names=("a",))),
    Refusal("a choice of no images", lambda: subset(in_memory([0, 1]), torch.tensor([False, False]))),
    Refusal("training classes of one image, to `data check`", lambda: checked_labels("train/ant train/bee")),
    Refusal("nothing to find, to `data check`", lambda: checked_labels("test/cat test/dog")),
    Refusal("equal images in train and test, to `data check`", lambda: copied()),
)

BENCHMARKS = (
    Refusal("a benchmark without `--root`", lambda: open_dataset("cub")),
    Refusal(
        "a benchmark that is not there",
        lambda: (Path("data").mkdir(), open_dataset("cub", root=Path("data"))),
    ),
    Refusal(
        "images that are missing", lambda: (cub(), Path("cub/images/001.Ani/2.png").unlink(), read(cub=ONE))
    ),
    Refusal(
        "another number of classes or images",
        lambda: (cub(), read(cub={"train": Count(1, 3), "test": Count(2)})),
    ),
    Refusal("a line of a list that is cut", lambda: (cub(classes="1\n"), read(cub=ONE))),
    Refusal(
        "a path of a list that leads out of the folder", lambda: (cub(images="1 ../1.png\n"), read(cub=ONE))
    ),
    Refusal("a number that is twice in a list", lambda: (cub(classes="1 a\n1 b\n"), read(cub=ONE))),
    Refusal("a number that a list lacks", lambda: (cub(classes="1 a\n"), read(cub=ONE))),
    Refusal("a MATLAB file that is none", lambda: matlab("text"), varies=r"(?<=got ).*(?=; get)"),
    Refusal(
        "annotations without a field",
        lambda: mat(annotations=annotations((1, "a"), fields=("class", "fname"))),
    ),
    Refusal(
        "an annotation without a class",
        lambda: mat(annotations=annotations(("x", "a.jpg"))),
        varies="(?<=got ).*(?=; get)",
    ),
    Refusal("an annotation whose path leads out", lambda: mat(annotations=annotations((1, "../a.jpg")))),
    Refusal(
        "a list with another number of lines",
        lambda: inshop("img/WOMEN/Tees/id_01/1.jpg id_01 train", count=2),
    ),
    Refusal("a split that does not exist", lambda: inshop("img/WOMEN/Tees/id_01/1.jpg id_01 test")),
    Refusal("a path without its category", lambda: inshop("img/1.jpg id_01 train")),
)

IMAGES = (
    Refusal("a file that is no image", lambda: odd(b"a note")),
    Refusal("an image of another format; EPS, for one, would start a program", lambda: odd(eps())),
    Refusal("an image that is cut short", lambda: odd(cut_png()), varies=r"(?<=odd.png \()[^)]*(\([^)]*\))?"),
    Refusal("an image file that vanished", vanished),
    Refusal("an image that claims more pixels than there is memory for", lambda: odd(png(50_000, 50_000))),
    Refusal(
        "an image that takes more memory to decode than is allowed",
        lambda: replaced(b"P5 13000 13000 1000\n"),
    ),
    Refusal("pixels that are floats", lambda: odd(tiff(np.float32), "odd.tif")),
    Refusal("pixels that are floats, to `data check`", lambda: checked(tiff(np.float32))),
    Refusal("an image that is replaced by floats", lambda: replaced(tiff(np.float32))),
    Refusal("pixels of 32 bits", lambda: replaced(tiff(np.int32))),
    Refusal("16-bit channels in separate planes of a TIFF", lambda: replaced(planes_of_16_bits())),
    Refusal("a transparent colour of 16 bits", lambda: replaced(png(8, 8, 16, (b"tRNS", bytes(6))))),
    Refusal("a pipe, socket or device in place of an image", pipe),
    Refusal("an image of one line", lambda: odd(png(100_000, 1))),
    Refusal("an image of one line, to `data check`", lambda: checked(png(100_000, 1))),
    Refusal("a file of zero bytes, to `data check`", lambda: checked(b"")),
    Refusal("an image that is cut short, to `data check`", lambda: checked(cut_png())),
    Refusal("a file that is no image, to `data check`", lambda: checked(b"a note")),
    Refusal("a damaged image, to `data check`", lambda: checked(b"\x89PNG\r\n\x1a\n" + bytes(99))),
    Refusal("an image that is damaged while it is trained on", lambda: replaced(b"")),
    Refusal("an image that is replaced by a huge one", lambda: replaced(png(14_000, 13_000))),
    Refusal("an image that is replaced by a line", lambda: replaced(png(100_000, 1))),
)

CACHE = (
    Refusal(
        "a cache in a folder that cannot be written",
        lambda: cache_of_photos(lambda: (shutil.rmtree("cache"), write("cache", "a file"))),
    ),
    Refusal("stored features in a folder that cannot be written", features_below_a_file),
    Refusal("a cache without a home directory", homeless),
    Refusal("a cache without enough room", no_room),
    Refusal("a disk that is full before the cache is complete", full_while_writing),
    Refusal("an image that is changed while the cache is made", changed_while_read),
)

WEIGHTS = (
    Refusal("a backbone that does not exist", lambda: make_model("resnet5O", 8)),
    Refusal(
        "a pooling that the backbone cannot do",
        lambda: unbuildable(),
        "choose another `--pooling`",
        varies="(?<='avg': ).*",
    ),
    Refusal(
        "pretrained weights without a network to load them over",
        lambda: offline(),
        varies=r"(?<=downloaded \().*(?=\);)",
    ),
    Refusal("another pooling of the backbone `small`", lambda: make_model("small", 8, pooling="max")),
    Refusal(
        "GeM pooling of a network without a feature map",
        lambda: make_model("vit_tiny_patch16_224", 8, pooling="gem"),
    ),
    Refusal("the head `clml` on narrow features", lambda: CLMLHead(63, 8, 4)),
    Refusal("a head that does not exist", lambda: make_model("small", 8, head="local"), "use one of them"),
    Refusal(
        "the head `clml` with fewer than 64 training images",
        lambda: prepare(run(head="clml", masks="none").config),
    ),
    Refusal(
        "the head `clml` with fewer training images than components",
        lambda: prepare(run(head="clml", masks="none", k_max=64).config),
    ),
    Refusal("the head `clml` without scikit-learn", without("sklearn.mixture", check_scikit_learn)),
    Refusal("pretrained weights of the backbone `small`", lambda: make_model("small", 8, pretrained=True)),
    Refusal("weights that are not there", lambda: make_model("small", 8, weights=Path("w.safetensors"))),
    Refusal(
        "a pickle as weights: nothing in it is executed",
        lambda: make_model("small", 8, weights=write("weights.pt", pickle.dumps(Hostile()))),
        varies=r"(?<=file \().*(?=\); copy)",
    ),
    Refusal(
        "weights of another backbone", lambda: make_model("small", 8, weights=weights({"x": torch.ones(1)}))
    ),
    Refusal("a mean colour in the file that is none", lambda: own_weights(mean="0.5,0.5")),
    Refusal("weights of another program as a model", lambda: load_model(weights({"x": torch.ones(1)}))),
    Refusal(
        "a model whose description is damaged",
        lambda: load_model(weights({"x": torch.ones(1)}, divconq='{"dim": 8}')),
    ),
    Refusal("a file to import that fails", lambda: import_file(write("mine.py", "import nowhere"))),
)

LOSSES = (
    Refusal("a loss that does not exist", lambda: loss("ContrastivLoss")),
    Refusal("a loss of pytorch-metric-learning that does not fit", lambda: loss("CrossBatchMemory")),
    Refusal(
        "a loss of pytorch-metric-learning, without it",
        without("pytorch_metric_learning", lambda: loss("CircleLoss")),
    ),
    Refusal(
        "an argument that does not exist", lambda: loss("triplet", alhpa=0.1), "use one of those it accepts"
    ),
    Refusal("an argument that is no number", lambda: loss("triplet", alpha="wide"), "give a number"),
    Refusal("arguments that the loss refuses", lambda: loss("margin", beta=0.0)),
    Refusal("a margin loss that no positive can satisfy", lambda: loss("margin", beta=0.2)),
    Refusal("a margin loss that no negative can satisfy", lambda: loss("margin", beta=1.9)),
    Refusal("a beta for a loss without it", lambda: (photos(), train("--loss", "triplet", "--beta", "0.9"))),
    Refusal("a beta that is given twice", lambda: (photos(), train("--beta", "0.9", "--loss.beta", "1.0"))),
    Refusal("a sphere of one dimension", lambda: loss("margin", sampling_dim=1)),
    Refusal("an argument of a miner that is no number", lambda: mined(margin="abc")),
    Refusal("an argument that is not finite", lambda: loss("margin", beta=float("inf"))),
    Refusal(
        "an argument so large that the loss overflows",
        lambda: check_loss("triplet", {"alpha": 1e300}, dim=8),
        "use a smaller one",
    ),
    Refusal("fewer classes than the data has", lambda: loss("ProxyNCALoss", num_classes=3)),
    Refusal("a loss that returns no number", no_number, "return a scalar"),
    Refusal("a scale of zero, of multi-similarity", lambda: loss("multi_similarity", beta=0.0)),
    Refusal("a scale of zero, of proxy anchor", lambda: loss("proxy_anchor", alpha=0.0)),
    Refusal("a negative margin", lambda: loss("triplet", alpha=-1.0)),
    Refusal(
        "a switch of a loss that is no switch", lambda: loss("triplet", squared="no"), "write true or false"
    ),
    Refusal("a scale of zero", lambda: loss("npairs", scale=0.0)),
    Refusal(
        "a memory larger than the data",
        lambda: (photos(), train("--memory", "5")),
    ),
    Refusal(
        "a memory for a loss of pytorch-metric-learning",
        lambda: (photos(), train("--memory", "4", "--loss", "CircleLoss")),
    ),
    Refusal(
        "a memory for a loss of proxies", lambda: (photos(), train("--memory", "4", "--loss", "proxy_anchor"))
    ),
    Refusal("a miner for one of our losses", lambda: loss("margin", miner="BatchHardMiner")),
    Refusal("arguments for no miner", lambda: loss("CircleLoss", mined={"margin": 0.1})),
    Refusal("a loss that is not finite", lambda: not_finite(True)),
    Refusal("a network whose output is not finite", lambda: not_finite(False)),
)

DIVISION = (
    Refusal("a division that does not exist", lambda: divided("progresive")),
    Refusal("more clusters than images", lambda: divided(k_max=16)),
    Refusal("fewer clusters than there are", lambda: divided(k_max=2, k=4)),
    Refusal("a division by embeddings, without them", divided),
    Refusal("a division by super-categories, without them", lambda: divided("labels")),
    Refusal(
        "the same, in a loop of your own",
        lambda: DivideAndConquer(lambda z, y: z.sum(), labels(), dim=4, batch=4, k_max=2, division="labels"),
    ),
    Refusal(
        "a learning rate below 0, in a loop of your own",
        lambda: DivideAndConquer(lambda z, y: z.sum(), labels(), dim=4, batch=4, mask_lr=-1.0),
    ),
    Refusal(
        "super-categories of other images, in a loop of your own",
        lambda: DivideAndConquer(lambda z, y: z.sum(), labels(), dim=4, batch=4, groups=labels(2)),
        "pass those of all images",
    ),
    Refusal(
        "embeddings of other images", lambda: divided(x=points(7)), "embed every training image, in order"
    ),
    Refusal("embeddings that are not finite", lambda: kmeans(torch.full((4, 2), torch.nan), 2)),
    Refusal("points of another shape", lambda: kmeans(torch.ones(4), 2)),
    Refusal("no cluster", lambda: kmeans(points(), 0)),
    Refusal("more clusters than points", lambda: kmeans(points(), 9)),
    Refusal(
        "labels that do not fit the points",
        lambda: bisect(points(), labels(7), 2),
        "pass both of the same images",
    ),
    Refusal(
        "partitions of other images", lambda: match(labels(8), labels(7), 2), "pass both of the same images"
    ),
    Refusal(
        "a number of clusters of no power of two, of `Partition`", lambda: Partition(torch.tensor([0, 2]), 3)
    ),
    Refusal("labels that are no clusters", lambda: Partition(torch.tensor([0, 4]), 4)),
    Refusal("labels on a GPU", lambda: Partition(torch.zeros(2, dtype=torch.int64, device="meta"), 1)),
    Refusal("the parent of one cluster", lambda: Partition.whole(3).parent()),
    Refusal("more splits than there are masks", lambda: Masks(8, 1).split_()),
    Refusal("batches of a loader of your own", own_loop, "build it so"),
    Refusal("an order of clusters that does not exist", lambda: sampled(order="sorted"), "use one of them"),
    Refusal(
        "steps of the clusters that are shared in another way",
        lambda: sampled(cluster_steps="even"),
        "use one of them",
    ),
    Refusal("an epoch of another length", lambda: sampled(epoch_length="longest")),
    Refusal("classes drawn equally often, in uniform batches", lambda: sampled(class_sampling="classes")),
    Refusal("a batch of one image", lambda: sampled(batch=1), "use 2 or more"),
    Refusal("a batch larger than the data", lambda: sampled(batch=9)),
    Refusal(
        "clusters that are not numbered so", lambda: sampled(clusters=labels()), "renumber them, or raise k"
    ),
    Refusal("groups of one image", lambda: sampled(per_class=1)),
    Refusal("a batch that is no multiple", lambda: sampled(per_class=3)),
    Refusal("no cluster with two classes of two images", lambda: sampled(labels=torch.arange(8))),
    Refusal("more clusters than the images can fill", lambda: (photos(), train("--k-max", "2"))),
)

RUNS = (
    Refusal("a run folder that exists", lambda: (run(), train())),
    Refusal("a run folder below a file", lambda: (photos(), write("file", ""), train("--out", "file/run"))),
    Refusal("a log with a line that is no table", lambda: logged("5"), "remove the line"),
    Refusal("a log with an epoch twice", lambda: logged('{"epoch": 1}'), "remove the line"),
    Refusal(
        "a log with a word for a number", lambda: logged('{"epoch": 2, "loss": "low"}'), "remove the line"
    ),
    Refusal("a log with brackets without end", lambda: logged("[" * 5000), "remove the line"),
    Refusal("a checkpoint whose epoch is a word", lambda: resumed(epoch="3")),
    Refusal("a checkpoint with other steps than losses", lambda: resumed(step=2, losses=torch.zeros(1))),
    Refusal("a checkpoint that lacks the network", lambda: (saved(epoch=1), Run.open("run").load())),
    Refusal("a checkpoint with a network of whole numbers", lambda: restored(model=of_whole_numbers())),
    Refusal("a checkpoint with other random states", lambda: restored(generators={"torch": torch.zeros(3)})),
    Refusal(
        "a checkpoint with moments of another shape",
        lambda: restored(optimizer=moments(exp_avg=torch.zeros(3))),
    ),
    Refusal(
        "a checkpoint with moments of another optimiser",
        lambda: restored(optimizer=moments(step=torch.tensor(1.0))),
    ),
    Refusal(
        "a checkpoint with averages of other weights", lambda: restored(averages={"steps": torch.tensor(3)})
    ),
    Refusal("a model of a run whose settings were changed", another_model, varies=r"(?<=yaml \().*(?=\);)"),
    Refusal("`--resume` of what is no run", lambda: main("train", "--resume", "photos")),
    Refusal("a folder that is no run", lambda: main("eval", "photos")),
    Refusal(
        "a run whose config is damaged",
        lambda: (run(), write("run/config.yaml", "- 1"), main("eval", "run")),
        "copy it again",
    ),
    Refusal("`--resume` with a preset or `--out`", lambda: (run(), main("train", "cub", "--resume", "run"))),
    Refusal(
        "`--resume` with other settings", lambda: (run(), main("train", "--resume", "run", "--dim", "16"))
    ),
    Refusal(
        "`--resume` of a cosine with other epochs",
        lambda: (run(schedule="cosine"), main("train", "--resume", "run", "--epochs", "9")),
    ),
    Refusal("`--accept-changes` of a new run", lambda: (photos(), train("--accept-changes"))),
    Refusal(
        "a run that was begun with `--import`, continued without",
        lambda: main("train", "--resume", registered()),
    ),
    Refusal("`--resume` of a run on stored features with another backbone", with_another_backbone),
    Refusal("a model of a run that has none yet", lambda: (run(), main("eval", "run"))),
    Refusal(
        "a best epoch that is not there", lambda: (trained(), main("eval", "run", "--checkpoint", "best"))
    ),
    Refusal(
        "a pickle as checkpoint: nothing in it is executed",
        lambda: resumed(lambda _: pickle.dumps(Hostile())),
    ),
    Refusal(
        "a hostile pickle in a checkpoint that is whole",
        lambda: resumed(model=Hostile()),
        varies=r"(?<=checkpoint \()\w+",
    ),
    Refusal("the same, as the best epoch", hostile_best, varies=r"(?<=checkpoint \()\w+"),
    Refusal("a checkpoint that is cut short", lambda: resumed(lambda content: content[:-50])),
    Refusal("a checkpoint of which a bit is another", lambda: resumed(lambda content: b"Q" + content[1:])),
    Refusal("the last two checkpoints damaged", both_damaged),
    Refusal("a checkpoint of another version", of_another_version),
    Refusal("a checkpoint of other images", lambda: restored(images=3)),
    Refusal("a checkpoint of other classes", lambda: restored(data="others")),
    Refusal(
        "a test image that is missing since the training",
        lambda: (recorded(), Path("photos/test/cat/0.png").unlink(), main("eval", "run")),
    ),
    Refusal("other training classes than those of a run without `split.json`", with_other_classes),
    Refusal("`eval` on images that were trained on", scored_on_training_images),
    Refusal(
        "`--resume` with another split",
        lambda: (recorded(), main("train", "--resume", "run", "--val-classes", "1", "--accept-changes")),
    ),
    Refusal(
        "a damaged `split.json`", lambda: (recorded(), write("run/split.json", "[]"), main("eval", "run"))
    ),
    Refusal(
        "an image of another size than the model was trained for",
        lambda: (trained(), load_model("run")(torch.rand(1, 3, 64, 64))),
    ),
    Refusal("a run with a backbone of your own", lambda: TrainedRun(registered(), device="cpu")),
)

PROCESSES = (
    Refusal("more processes than GPUs", more_than_gpus),
    Refusal("more processes than images in a batch", more_than_images),
    Refusal(
        "a command under torchrun that is not `train`",
        lambda: under_torchrun("eval", "run", WORLD_SIZE="2", LOCAL_RANK="0"),
    ),
    Refusal(
        "`torchrun --max-restarts` without `--out`",
        lambda: under_torchrun("train", "demo", TORCHELASTIC_MAX_RESTARTS="3"),
    ),
    Refusal("a process that has died", died, varies=r"(?<=reached \().*(?=\); torchrun)"),
    Refusal(
        "ranks that were started with different flags",
        lambda: compare(
            [{"lr": 1e-5, "seed": 0}, {"lr": 1e-3, "seed": 0}], "start all ranks with the same command"
        ),
    ),
    Refusal(
        "a run that another process is writing",
        lambda: locked_run(held_by_another),
        varies=r"(?<=by process ).*(?=; wait)",
    ),
    Refusal("a run that another thread is writing", lambda: locked_run(lambda descriptor: None)),
    Refusal("BatchNorm that trains, over processes on CPUs", lambda: shared_batchnorm()),
    Refusal("a share of a batch that is another's", lambda: of_two(lambda: collectives.gather(points(3), 8))),
)

TABLES = (
    Refusal("no table of experiments", lambda: main("reproduce")),
    Refusal("a table of experiments that is not there", lambda: main("reproduce", "t.yaml")),
    Refusal("a table that is no YAML", lambda: load_table(experiments("rows: {"))),
    Refusal("a table without a title, a preset or rows", lambda: parse_table("t", "title: T")),
    Refusal("a table with no row", lambda: of_table("rows: {}")),
    Refusal("rows that are a list", lambda: of_table("rows: [a, b]"), "write `name: {...}` for each"),
    Refusal("a key that does not exist", lambda: of_table(more="commmon: {}")),
    Refusal("a row whose name cannot be part of a file's", lambda: of_table("rows: {a/b: {}}"), "rename it"),
    Refusal("a flag that belongs to the machine", lambda: flag("root", "data")),
    Refusal("a seed as a flag", lambda: flag("seed", "1"), "write `seeds: [1]`"),
    Refusal("a flag that does not exist", lambda: flag("mask", "fixed")),
    Refusal("a word that is not a choice", lambda: flag("masks", "learnt"), "use one of them"),
    Refusal("a word for a number", lambda: flag("lr", "small"), "give a number"),
    Refusal("a number for a word", lambda: flag("loss", "3"), "give a word"),
    Refusal("a number for a list", lambda: flag("ks", "1"), "write `[1, 2]`"),
    Refusal("a list of another length", lambda: flag("crop_scale", "[1]"), "give as many"),
    Refusal("`--set` without a value", lambda: parse_changes(["epochs"]), "write `--set epochs=30`"),
    Refusal("`--seeds` that are no numbers", lambda: parse_seeds("0,a"), "write `--seeds 0,1`"),
    Refusal("`--seeds` that the table does not have", lambda: reproduced("--seeds", "7")),
    Refusal("`--rows` that the table does not have", lambda: reproduced("--rows", "plane")),
    Refusal("seeds of a table that are no list", lambda: of_table(more="seeds: 3"), "write `seeds: [0, 1]`"),
    Refusal("a baseline that is no row", lambda: of_table(more="baseline: plane")),
    Refusal("a metric that does not exist", lambda: of_table(more="metrics: [recall@3]"), "use one of them"),
    Refusal("metrics of a table that are no list", lambda: of_table(more="metrics: 5")),
    Refusal("a metric of a table that is named twice", lambda: of_table(more="metrics: [nmi, nmi]")),
    Refusal(
        "a score of the paper that is no number",
        lambda: of_table("rows: {a: {paper: {nmi: high}}}"),
        "give the published score",
    ),
    Refusal("a setting of a row out of range", lambda: of_table("rows: {a: {flags: {k_max: 3}}}")),
    Refusal("settings that do not go together", lambda: of_table("rows: {a: {flags: {batch: 82}}}")),
    Refusal("`--set` of what the rows differ in", lambda: reproduced("--set", "k_max=4")),
    Refusal("a loss of a row that does not exist", lambda: check_losses(plan(losses(), Path("results")))),
    Refusal(
        "a file that counts for the settings and is not there", lambda: portable({"x": Path("w.safetensors")})
    ),
    Refusal(
        "a result that is damaged", lambda: (write("results/a.json", "{}"), read_results(Path("results")))
    ),
    Refusal("a result with a word for a seed", wrong_result),
    Refusal("results of several settings", two_settings, "name one of them"),
    Refusal("no results to summarise", lambda: summarise([]), "run the table first"),
    Refusal(
        "results that are no pairs", lambda: paired_difference([1.0], []), "compare rows with the same seeds"
    ),
)

EVALUATION = (
    Refusal("embeddings of another shape", lambda: score(query=torch.ones(4)), "pass a row for each image"),
    Refusal("labels of other images", lambda: score(query_labels=labels(3)), "pass a label for each image"),
    Refusal("embeddings that are not finite", lambda: score(query=torch.full((4, 2), torch.inf))),
    Refusal("a gallery without labels", lambda: score(gallery=points(4))),
    Refusal("a gallery of another model", lambda: score(gallery=points(4, 3), gallery_labels=labels(4))),
    Refusal("a k larger than the gallery", lambda: score(ks=(4,))),
    Refusal("the mean of no k-means, of `nmi`", lambda: score(nmi_runs=0)),
    Refusal("nothing to find", lambda: score(query_labels=torch.arange(4))),
    Refusal("cameras of a gallery that is not there", lambda: score(gallery_cameras=labels(4))),
    Refusal("cameras of the queries only", lambda: score(searched=4, query_cameras=labels(4))),
    Refusal(
        "cameras of other images", lambda: score(query_cameras=labels(3)), "pass a camera for each image"
    ),
    Refusal("more neighbours than there are", lambda: list(nearest(points(), points(), 9)), "ask for fewer"),
    Refusal("marks without what is excluded", lambda: list(nearest(points(), points(), 1, marks=labels()))),
    Refusal(
        "too little memory to search", lambda: list(nearest(points(), points(), 1, budget=10)), "allow more"
    ),
    Refusal("no gallery drawn", lambda: one_gallery_image(points(), labels(), draws=0)),
    Refusal("identities of one image each", lambda: one_gallery_image(points(), torch.arange(8))),
)

ANALYSIS = (
    Refusal(
        "a run whose settings were changed after it", lambda: changed_after(), varies=r"(?<=yaml \().*(?=\);)"
    ),
    Refusal("more than all of the variance", lambda: effective_dimension(points(), share=1.5)),
    Refusal("no neighbours", lambda: neighbours(points(), 0)),
)

GROUPS: Mapping[str, Sequence[Refusal]] = {
    "Command line": COMMANDS,
    "Settings": SETTINGS,
    "Your own data": OWN_DATA,
    "Published benchmarks": BENCHMARKS,
    "Images": IMAGES,
    "Cache": CACHE,
    "Backbones and weights": WEIGHTS,
    "Losses": LOSSES,
    "Division, masks and batches": DIVISION,
    "Run folders": RUNS,
    "Several processes": PROCESSES,
    "Tables of experiments": TABLES,
    "Evaluation": EVALUATION,
    "Analysis": ANALYSIS,
}

# Raised, but not listed above: file and function, and why.
UNLISTED = {
    "data/split_record.py: _recorded_images": "listed by SplitRecord as a damaged split.json",
    "__init__.py: __getattr__": "Python's own words for a name that a module does not have",
    "division/__init__.py: __getattr__": "the same",
    "masks/__init__.py: __getattr__": "the same",
    "analysis/run_record.py: _read_division": "listed by read_run as what is missing of a run",
    "runs/exported.py: load_model": "wrong types, which become the message of a damaged file",
    "runs/checkpoints.py: _write_archive": "what the system says of a full disk",
    "io/atomic.py: write_atomically": "the same, with the path",
    "experiments/results.py: append_result": "the same, with the path",
    "experiments/runner.py: reproduce": "Ctrl-C or SIGTERM, which is not an error",
    "distributed/first_process.py: _raise_on_all": "what another process said, in its words",
    "training/stop_signals.py: StopSignals._record": "Ctrl-C or SIGTERM, which is not an error",
    "recorder.py: Recorder._halt": "the same",
    "cli/__init__.py: _main": "ends silently when the reader of the output is gone",
    "cli/parsing.py: parse": "--version, which is not an error",
    "cli/parsing.py: _tyro": "passes an error of a setting on",
}


# What happens, and the page

INTRODUCTION = """# Bad input

The error messages for bad input, and what to do. On the command line an error is one sentence, `divconq: error: ...`,
with exit code 2; training that goes wrong ends with exit code 1. In Python it is a `ValueError` with the same words.
Input is checked before the run folder is created, so a refused command leaves nothing behind. Errors of the system (a
full disk, a folder without permission) are shown in its own words. With `DIVCONQ_TRACEBACK=1` the command shows the
traceback.

`divconq data check` reports all problems of a dataset at once, and has exit code 1 if there are any.

What is safe to open:

- **Weights, checkpoints, tables and lists** of any origin are safe: nothing in them is executed. Weights are read from
  safetensors files only, checkpoints by torch's `weights_only` after a check of their checksums, settings by YAML's
  safe loader. Only the Python file of `--import` is executed, and it must be named each time: a run folder does not
  run code by itself.
- **Images** are opened in these formats only: {formats}.
  They may have {pixels:,} pixels (Pillow's own limit), a length of {shape:,} times their width, and {bytes:,} bytes
  of memory to decode; all are read from the header, before memory is allocated. Most files take 1 byte per pixel in
  grey and 4 in colour, {colour:.1f} GB at the limit; a large baseline JPEG takes far less. WebP takes 16, progressive
  JPEG up to 10. Each of the `--workers` decodes one image at a time, so this memory is needed that many times. Pixels
  without a fixed range (floats, signed or 32-bit integers) are refused. A PNG whose only error is the checksum of a
  chunk is accepted, because its pixels have a checksum of their own.
- **Paths in the lists of a benchmark** must stay below its folder. Paths in your own table may be absolute; relative
  ones must stay below the folder of the table. Links to images, to class folders and to the folders of a split are
  followed wherever they lead, because data on another disk is often linked in this way. Links to folders below a
  class folder are not followed, with a warning. An image that links give two labels is refused.

A test produces every message below (`tests/cli/test_bad_input.py`). This page is generated from them by
`python tests/cli/bad_input.py`. `...` stands for the words of other packages.
"""


def happens(refusal: Refusal, place: Path) -> Outcome:
    """Do what is refused in the empty folder ``place``, and note what is said."""
    import jaxtyping

    said = io.StringIO()
    environment = {"DIVCONQ_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1"}
    with (
        contextlib.chdir(place) if hasattr(contextlib, "chdir") else _chdir(place),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        patch.dict(os.environ, environment),
        patch.object(jaxtyping.config, "jaxtyping_disable", True),  # as it is for users
    ):
        try:
            refusal.make()
        except (Exception, SystemExit) as error:
            message = str(error) if isinstance(error, Exception) else _printed(said.getvalue())
            return Outcome(_plain(message, place, refusal.varies), frozenset(_places(error)))
        finally:
            assert not Path("executed").exists(), refusal.wrong
    raise AssertionError(f"not refused: {refusal.wrong}")


@contextlib.contextmanager
def _chdir(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def _printed(text: str) -> str:
    found = re.findall(r"^(?:divconq: error|problem): (.*)", text, re.MULTILINE)
    assert found, text
    return found[-1]


def _plain(message: str, place: Path, varies: str) -> str:
    """The message without what differs between machines."""
    for folder_ in (place.resolve(), place):
        message = message.replace(f"{folder_}/", "").replace(str(folder_), ".")
    if varies:
        message, count = re.subn(varies, "...", message, count=1, flags=re.DOTALL)
        assert count == 1, message
    return message


def _places(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """Where an error, and those it came from, were raised in the source."""
    while error is not None:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        if frame is not None and SOURCE in Path(frame.tb_frame.f_code.co_filename).parents:
            file = Path(frame.tb_frame.f_code.co_filename).relative_to(SOURCE).as_posix()
            yield file, frame.tb_lineno
        error = error.__cause__ or error.__context__


def line(refusal: Refusal, message: str) -> str:
    """The line of the page: what is wrong, the message, and what to do, which is mostly at its end."""
    parts = re.fullmatch(r"(.*)(?:; |\. (?=Any))(.*)", message, re.DOTALL)
    says, remedy = (message, refusal.remedy) if refusal.remedy or parts is None else parts.groups()
    assert remedy, f"what can be done? {message}"
    return f"| {refusal.wrong} | {_cell(says)} | {_cell(remedy)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def page(lines: Mapping[str, Sequence[str]]) -> str:
    """The whole page, of the lines of each group."""
    from divconq.data.images.decoding import FORMATS, LONGEST_SHAPE, MOST_BYTES, MOST_PIXELS

    formats = f"{', '.join(FORMATS[:-1])} and {FORMATS[-1]}"
    limits = {
        "pixels": MOST_PIXELS,
        "shape": LONGEST_SHAPE,
        "bytes": MOST_BYTES,
        "colour": 4e-9 * MOST_PIXELS,
    }
    parts = [INTRODUCTION.format(formats=formats, **limits)]
    for group, rows in lines.items():
        parts.append(
            "\n".join(
                [f"## {group}\n", "| what is wrong | message | what to do |", "|---|---|---|", *rows, ""]
            )
        )
    return "\n".join(parts)


def main_page() -> None:
    """Write the page."""
    lines: dict[str, list[str]] = {}
    for group, refusals in GROUPS.items():
        lines[group] = []
        for refusal in refusals:
            with tempfile.TemporaryDirectory() as place:
                lines[group].append(line(refusal, happens(refusal, Path(place).resolve()).message))
    PAGE.write_text(page(lines))


if __name__ == "__main__":
    main_page()
