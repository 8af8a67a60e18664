import copy
import threading

import pytest
import torch
from torch import nn

from divconq.accel.graphs import WARM_UP, Captured, Fallback

DEVICE = torch.device("cuda")


def inputs(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def replays(function, calls, *shape):
    """Return copies of the outputs of several calls."""
    return [tuple(x.clone() for x in function(inputs(i, *shape))) for i in range(calls)]


def works_as_before():
    """Check random numbers and new captures after a failed one."""
    assert torch.cuda.get_sync_debug_mode() == 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    a, b = torch.rand(8, device=DEVICE), torch.rand(8, device=DEVICE)
    assert not torch.equal(a, b)
    drawn = replays(Captured(lambda x: (torch.rand_like(x),), DEVICE), 5, 8)
    assert len({tuple(x.tolist()) for (x,) in drawn}) == 5


def test_the_plain_form_takes_over_and_warns_once():
    calls = []

    def fast(x):
        calls.append(x)
        if x == 2:
            raise RuntimeError("no graph\nfor this")
        return "fast"

    function = Fallback(fast, lambda x: "plain", "the work")
    assert function(1) == "fast"
    with pytest.warns(UserWarning, match=r"the work cannot be .*\(RuntimeError: no graph\)") as said:
        assert [function(2), function(3)] == ["plain", "plain"]
    assert len(said) == 1
    assert calls == [1, 2]


@pytest.mark.gpu
def test_calls_return_the_outputs_of_the_function():
    def function(x):
        return x @ x.T, x.sum() + 1

    captured = Captured(function, DEVICE)
    for i, got in enumerate(replays(captured, 6, 4, 3)):
        for a, b in zip(got, function(inputs(i, 4, 3)), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6)
    assert captured.graph is not None
    assert captured.calls == 6


@pytest.mark.gpu
def test_inputs_may_be_freed():
    captured = Captured(lambda x: (x * 2,), DEVICE)
    for i in range(8):
        x = torch.full((1000,), float(i), device=DEVICE)
        (y,) = captured(x)
        del x
        torch.full((1000,), -1.0, device=DEVICE)  # reuses the memory
        assert y.eq(2 * i).all()


@pytest.mark.gpu
def test_state_is_changed_in_place():
    torch.manual_seed(0)
    networks = [nn.Linear(3, 2).to(DEVICE)]
    networks.append(copy.deepcopy(networks[0]))
    losses = []
    for network, capture in zip(networks, (False, True), strict=True):
        adam = torch.optim.Adam(network.parameters(), lr=1e-2, capturable=True)

        def step(x, network=network, adam=adam):
            loss = network(x).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            return (loss.detach(),)

        losses.append(replays(Captured(step, DEVICE) if capture else step, 6, 4, 3))
    for (a,), (b,) in zip(*losses, strict=True):
        assert torch.allclose(a, b, rtol=1e-5)
    for a, b in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-6)
    assert losses[0][5][0] < losses[0][0][0]


@pytest.mark.gpu
def test_random_numbers_differ_and_follow_the_seed():
    captured = Captured(lambda x: (torch.rand_like(x),), DEVICE)
    replays(captured, WARM_UP + 1, 16)
    rounds = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        rounds.append([tuple(x.tolist()) for (x,) in replays(captured, 3, 16)])
    assert rounds[0] == rounds[1]
    assert len({*rounds[0], *rounds[2]}) == 6


@pytest.mark.gpu
def test_a_function_that_reads_from_the_device_is_detected_before_the_capture():
    def reads(x):
        return (x * x.sum().item() + torch.rand_like(x),)

    captured = Captured(reads, DEVICE)
    for i in range(WARM_UP - 1):
        captured(inputs(i, 4))
    with pytest.raises(RuntimeError, match="synchronizing"):
        captured(inputs(9, 4))
    works_as_before()


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_nothing_behind():
    calls = []

    def reads_in_the_end(x):
        calls.append(x)
        y = torch.rand_like(x)
        return (y * y.sum().item() if len(calls) > WARM_UP else y,)

    captured = Captured(reads_in_the_end, DEVICE)
    for i in range(WARM_UP):
        captured(inputs(i, 4))
    with pytest.raises(RuntimeError):
        captured(inputs(9, 4))
    torch.cuda.synchronize()
    works_as_before()


@pytest.mark.gpu
def test_another_thread_may_pin_memory_during_a_capture():
    stop = threading.Event()

    def pin():
        size = 1
        while not stop.is_set():
            size = size * 3 % 9_999_991
            torch.empty(size, dtype=torch.uint8).pin_memory().to(DEVICE, non_blocking=True)

    def function(x):
        for _ in range(2000):
            x = x * 1.0001
        return (x,)

    thread = threading.Thread(target=pin)
    thread.start()
    try:
        captured = Captured(function, DEVICE)
        got = replays(captured, WARM_UP + 2, 16)
    finally:
        stop.set()
        thread.join()
    assert captured.graph is not None
    for i, (x,) in enumerate(got):
        assert torch.allclose(x, inputs(i, 16) * 1.0001**2000, rtol=1e-3)
