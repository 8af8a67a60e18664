"""A run that is over ends quietly, whatever its signs of life are about to do."""

import subprocess
import sys

BUSY = """
import os, time
import torch.distributed as dist
from divconq.distributed.heartbeat import SignsOfLife

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
life = SignsOfLife(0, 1, "attempt", patience=30)
life.over.wait = lambda _: life.over.is_set()  # it never rests: it is always inside the store
life.start()
time.sleep(0.2)
life.end()
"""


def test_a_process_whose_signs_are_under_way_ends_as_it_should():
    ended = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
