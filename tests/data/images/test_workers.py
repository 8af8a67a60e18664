import errno
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from divconq.data.images import workers
from divconq.data.images.workers import background_work, parallel_map


@pytest.fixture(autouse=True)
def processes_for_few_items(monkeypatch):
    monkeypatch.setattr(workers, "MIN_FOR_PROCESSES", 4)


def test_processes_return_the_results_in_order():
    def square_and_pid(i):
        time.sleep(0.01)  # leaves work for the second process
        return i * i, os.getpid()

    found = list(parallel_map(square_and_pid, range(50), 2))
    assert [square for square, _ in found] == [i * i for i in range(50)]
    pids = {pid for _, pid in found}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.parametrize(("items", "count"), [(3, 2), (50, 1)], ids=["few items", "one worker"])
def test_few_items_use_threads(items, count):
    assert set(parallel_map(lambda _: os.getpid(), range(items), count)) == {os.getpid()}


def test_other_systems_use_threads(monkeypatch):
    monkeypatch.setattr(workers.sys, "platform", "darwin")
    monkeypatch.setattr(workers, "AHEAD", 7)
    assert list(parallel_map(lambda i: (i, os.getpid()), range(50), 2)) == [
        (i, os.getpid()) for i in range(50)
    ]


def test_daemonic_process_uses_threads():
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(
        target=lambda: answers.put(set(parallel_map(lambda _: os.getpid(), range(50), 2)) == {os.getpid()}),
        daemon=True,
    )
    process.start()
    process.join(60)
    assert answers.get() is True


def test_parallel_map_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(parallel_map(str, range(50), 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_uses_one_thread_in_a_worker():
    """OpenMP's threads do not survive a fork, so a second thread would wait forever."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(parallel_map(lambda _: torch.get_num_threads(), range(50), 2)) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_few_results_are_computed_ahead(monkeypatch):
    monkeypatch.setattr(workers, "CHUNK", 3)
    count = multiprocessing.get_context("fork").Value("i", 0)

    def work(i):
        with count.get_lock():
            count.value += 1
        return i

    results = parallel_map(work, range(500), 2)
    assert next(results) == 0
    time.sleep(0.5)
    assert count.value <= 3 * (2 * 2 + 1), "two chunks per process, and the one that was returned"
    assert list(results) == list(range(1, 500))


def disk_full(i):
    if i == 20:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return i


def test_os_error_keeps_its_errno():
    found = []
    with pytest.raises(OSError, match="No space left") as error:
        found.extend(parallel_map(disk_full, range(50), 2))
    assert error.value.errno == errno.ENOSPC


def odd(i):
    if i == 20:
        raise ValueError("20 is odd")
    return i


def test_errors_of_workers_are_raised():
    with pytest.raises(ValueError, match="20 is odd"):
        list(parallel_map(odd, range(50), 2))


def test_killed_worker_raises_error():
    def work(i):
        if i == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    with pytest.raises(BrokenProcessPool, match="terminated abruptly"):
        list(parallel_map(work, range(50), 2))


def assert_ended(processes):
    late = time.monotonic() + 20
    while processes & {*multiprocessing.active_children()} and time.monotonic() < late:
        time.sleep(0.05)
    assert not processes & {*multiprocessing.active_children()}


def test_no_process_remains_when_the_caller_stops_early():
    before = {*multiprocessing.active_children()}  # of other tests, about to end
    results = parallel_map(str, range(500), 2)
    assert next(results) == "0"
    own = {*multiprocessing.active_children()} - before
    assert len(own) == 2
    results.close()
    assert_ended(own)


def test_no_process_remains_when_the_caller_is_killed():
    fork = multiprocessing.get_context("fork")
    pids = fork.SimpleQueue()

    def report_and_wait(_):
        pids.put(os.getpid())
        time.sleep(60)

    caller = fork.Process(target=lambda: list(parallel_map(report_and_wait, range(50), 2)))
    caller.start()
    started = {pids.get(), pids.get()}
    caller.kill()
    caller.join()
    late = time.monotonic() + 20
    while any(alive(pid) for pid in started) and time.monotonic() < late:
        time.sleep(0.05)
    left = [pid for pid in started if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_background_task_runs_during_parallel_map():
    done = []
    with background_work(
        lambda: done.append(os.getpid()), lambda: done.append("second"), lambda: done.append("third")
    ):
        list(parallel_map(str, range(50), 2))
        assert done == [os.getpid()]
        list(parallel_map(str, range(50), 2))
        list(parallel_map(str, range(3), 2))  # in threads, without a task
    list(parallel_map(str, range(50), 2))
    assert done == [os.getpid(), "second"]


def test_processes_fork_before_the_task_and_results_do_not_wait():
    begun, may_end = threading.Event(), threading.Event()

    def task():
        begun.set()
        may_end.wait(60)

    with background_work(task):
        found = parallel_map(lambda _: begun.is_set(), range(50), 2)
        first = next(found)
        assert begun.wait(60)
        may_end.set()
        assert {first, *found} == {False}


def test_failing_background_task_is_ignored():
    with background_work(lambda: 1 / 0):
        assert list(parallel_map(abs, range(50), 2)) == list(range(50))
