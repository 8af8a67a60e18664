"""Benchmarks: images per second of training, seconds of the algorithms, memory of an evaluation.

divconq bench                                   # minutes on two cores; the default sizes depend on the device
divconq bench --only step --data cub --root DIR --json -
"""

from divconq.bench.measurements import PARTS, Setup, Sizes, default_sizes, measure, parse_parts
from divconq.bench.report import text

__all__ = ["PARTS", "Setup", "Sizes", "default_sizes", "measure", "parse_parts", "text"]
