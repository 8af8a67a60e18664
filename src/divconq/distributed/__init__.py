"""Train one model with several processes under ``torchrun``. With one process, these functions do nothing."""

from divconq.distributed.agreement import check_equal
from divconq.distributed.collectives import anywhere, average_gradients, gather, shard, synchronise
from divconq.distributed.first_process import first_only, is_first, on_every, on_first
from divconq.distributed.group import process_group, rank, size, wait_for_all

__all__ = [
    "anywhere",
    "average_gradients",
    "check_equal",
    "first_only",
    "gather",
    "is_first",
    "on_every",
    "on_first",
    "process_group",
    "rank",
    "shard",
    "size",
    "synchronise",
    "wait_for_all",
]
