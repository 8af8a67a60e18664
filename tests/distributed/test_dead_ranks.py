"""Ranks that die, stop or are slow: the others end with an error message, or wait."""

import functools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from distributed.ranks import Ranks, needs_gloo, raised_by, run, together
from divconq.distributed import average_gradients, on_first, rank
from divconq.distributed.group import _attempt_name

pytestmark = needs_gloo


def talk(which, end):
    """Average gradients without end; one rank gets a signal at step 50."""
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    for step in range(10**9):
        if step == 50 and rank() == which:
            os.kill(os.getpid(), end)
        average_gradients([weight])


def talk_and_tell(which):
    return raised_by(functools.partial(together, functools.partial(talk, which, signal.SIGKILL)))


@pytest.mark.parametrize("which", [0, 2])
def test_a_killed_rank_ends_the_others_with_a_message(tmp_path, which):
    ranks = Ranks(3, functools.partial(talk_and_tell, which), tmp_path)
    assert ranks.join() == [-signal.SIGKILL if r == which else 0 for r in range(3)]
    for r in {0, 1, 2} - {which}:
        said = torch.load(ranks.files[r])
        assert said.startswith(f"ConnectionError: rank {r}: another process of this run has ended")
        assert "torchrun --max-restarts" in said


def test_a_stopped_rank_ends_the_others_with_a_message(tmp_path):
    """Like a machine that lost power: the connections stay open, but nothing arrives."""
    work = functools.partial(together, functools.partial(talk, 1, signal.SIGSTOP), heartbeat_timeout=3.0)
    ranks = Ranks(2, work, tmp_path)
    assert ranks.join(0) == [1]
    ranks.processes[1].kill()
    said = ranks.said[0].read_text()
    assert "no heartbeat from rank 1 of 2 for 3 seconds" in said
    assert "torchrun --max-restarts" in said


def test_restarted_ranks_ignore_the_keys_of_dead_ranks():
    """torchrun keeps its store when it restarts the processes."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("attempt", "dead")
    for r in range(3):
        store.set(f"dead {r}", "dead too")
        store.set("answer to dead too", "dead")

    def agree(own):
        return _attempt_name(torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False), own, 3)

    with ThreadPoolExecutor() as ranks:
        others = [ranks.submit(agree, 2), ranks.submit(agree, 1)]
        time.sleep(0.3)  # they read the old name first
        name = agree(0)
    assert name != "dead"
    assert [other.result() for other in others] == [name, name]


def slow():
    return on_first(lambda: time.sleep(4.0) or "done")


def test_a_slow_rank_is_not_dead(tmp_path):
    assert run(2, slow, tmp_path, heartbeat_timeout=3.0) == ["done", "done"]
