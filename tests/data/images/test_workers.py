import errno
import multiprocessing
import os
import threading
import time

import pytest
import torch

from divconq.data.images import workers
from divconq.data.images.workers import background_work, parallel_map


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(workers, "MIN_FOR_PROCESSES", 4)


def test_processes_give_the_results_in_order():
    found = list(parallel_map(lambda i: (i * i, os.getpid()), range(50), 2))
    assert [square for square, _ in found] == [i * i for i in range(50)]
    pids = {pid for _, pid in found}
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.parametrize(("items", "count"), [(3, 2), (50, 1)], ids=["few items", "one worker"])
def test_threads_where_processes_are_not_worth_it(items, count):
    assert set(parallel_map(lambda _: os.getpid(), range(items), count)) == {os.getpid()}


def test_threads_on_other_systems(monkeypatch):
    monkeypatch.setattr(workers.sys, "platform", "darwin")
    monkeypatch.setattr(workers, "AHEAD", 7)
    assert list(parallel_map(lambda i: (i, os.getpid()), range(50), 2)) == [
        (i, os.getpid()) for i in range(50)
    ]


def test_threads_in_a_process_that_may_not_have_others():
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    process = fork.Process(
        target=lambda: answers.put(set(parallel_map(lambda _: os.getpid(), range(50), 2)) == {os.getpid()}),
        daemon=True,
    )
    process.start()
    process.join(60)
    assert answers.get() is True


def test_no_random_number_is_drawn():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(parallel_map(str, range(50), 2))
    assert torch.equal(torch.get_rng_state(), before)


def full(i):
    if i == 20:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return i


def test_what_the_system_says_keeps_its_number():
    found = []
    with pytest.raises(OSError, match="No space left") as error:
        found.extend(parallel_map(full, range(50), 2))
    assert error.value.errno == errno.ENOSPC


def odd(i):
    if i == 20:
        raise ValueError("20 is odd")
    return i


def test_other_errors_come_through():
    with pytest.raises(ValueError, match="20 is odd"):
        list(parallel_map(odd, range(50), 2))


def test_nobody_is_left_when_the_results_are_not_wanted_any_more():
    before = {*multiprocessing.active_children()}  # of other tests, about to end
    results = parallel_map(str, range(500), 2)
    assert next(results) == "0"
    own = {*multiprocessing.active_children()} - before
    assert len(own) == 2
    results.close()
    late = time.monotonic() + 20
    while own & {*multiprocessing.active_children()} and time.monotonic() < late:
        time.sleep(0.05)
    assert not own & {*multiprocessing.active_children()}


def test_this_process_works_too_while_it_waits():
    done = []
    with background_work(
        lambda: done.append(os.getpid()), lambda: done.append("second"), lambda: done.append("third")
    ):
        list(parallel_map(str, range(50), 2))
        assert done == [os.getpid()]
        list(parallel_map(str, range(50), 2))
        list(parallel_map(str, range(3), 2))  # by threads, which would wait for it
    list(parallel_map(str, range(50), 2))
    assert done == [os.getpid(), "second"]


def test_processes_are_forked_before_other_work_begins_and_results_do_not_wait_for_it():
    begun, may_end = threading.Event(), threading.Event()

    def work():
        begun.set()
        may_end.wait(60)

    with background_work(work):
        found = parallel_map(lambda _: begun.is_set(), range(50), 2)
        first = next(found)
        assert begun.wait(60)
        may_end.set()
        assert {first, *found} == {False}


def test_other_work_that_fails_changes_nothing():
    with background_work(lambda: 1 / 0):
        assert list(parallel_map(abs, range(50), 2)) == list(range(50))
