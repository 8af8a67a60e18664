"""A process ends quietly while its heartbeat is being sent."""

import subprocess
import sys

BUSY = """
import os, time
import torch.distributed as dist
from divconq.distributed.heartbeat import Heartbeat

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
heartbeat = Heartbeat(0, 1, "attempt", timeout=30)
heartbeat.stopped.wait = lambda _: heartbeat.stopped.is_set()  # no pause: it always uses the store
heartbeat.start()
time.sleep(0.2)
heartbeat.stop()
"""


def test_a_process_that_sends_a_heartbeat_exits_cleanly():
    ended = subprocess.run(
        [sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
