"""Processes that run one function each, as ``torchrun`` would start them."""

import functools
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest
import torch

from divconq.distributed import process_group

PRELOADED = [
    "divconq.train",
    "pytorch_metric_learning.losses",
    "torch._dynamo",
    "faiss",
    "sklearn.metrics",
    "tyro",
]
needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs processes that use gloo"
)


class Ranks:
    """Processes that run one function each, as if torchrun had started them."""

    def __init__(self, count, work, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # The fork server imports these modules once for all processes.
        starter = multiprocessing.get_context("forkserver")
        starter.set_forkserver_preload(PRELOADED)
        self.files = [folder / f"{r}.pt" for r in range(count)]
        self.said = [folder / f"{r}.txt" for r in range(count)]
        self.processes = [
            starter.Process(target=as_rank, args=(r, count, port, work, self.files[r], self.said[r]))
            for r in range(count)
        ]
        for process in self.processes:
            process.start()

    def join(self, *which):
        """Wait for the processes, or for those of some ranks; return their exit codes."""
        waited_for = [self.processes[r] for r in which] or self.processes
        for process in waited_for:
            process.join(120)
        codes = [process.exitcode for process in waited_for]
        for process in waited_for:
            process.kill()
        return codes

    def results(self):
        codes = self.join()
        assert codes == [0] * len(codes), [said.read_text() for said in self.said]  # None: it still ran
        return [torch.load(file) for file in self.files]


def as_rank(own, count, port, work, file, said):
    with said.open("w") as stderr:
        os.dup2(stderr.fileno(), 2)
    names = {
        "RANK": own,
        "LOCAL_RANK": own,
        "WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    torch.save(work(), file)


def together(work, heartbeat_timeout=40.0):
    with process_group(torch.device("cpu"), heartbeat_timeout=heartbeat_timeout):
        return work()


def run(count, work, folder, **settings):
    folder.mkdir(exist_ok=True)
    return Ranks(count, functools.partial(together, work, **settings), folder).results()


def raised_by(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
