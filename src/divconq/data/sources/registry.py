"""The published benchmarks by name."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from divconq.data.dataset import Dataset
from divconq.data.sources.cars import read_cars
from divconq.data.sources.cub import read_cub
from divconq.data.sources.inshop import read_inshop
from divconq.data.sources.sop import read_sop
from divconq.data.sources.vehicleid import read_vehicleid


class Reader(Protocol):
    """Reads one benchmark from the folder ``root``, or from the one of its name in it."""

    def __call__(self, root: Path | None, *, size: int = 256, workers: int = 4) -> Dataset:
        """Read it, or say what is missing and where to get it."""
        ...


READERS: Mapping[str, Reader] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
    "vehicleid": read_vehicleid,
    "vehicleid:800": partial(read_vehicleid, test="800"),
    "vehicleid:1600": partial(read_vehicleid, test="1600"),
    "vehicleid:2400": partial(read_vehicleid, test="2400"),
}
