"""The compiler is loaded beside other work, and what goes wrong there is nobody's business yet."""

from collections.abc import Callable
from threading import Event, current_thread, main_thread

import pytest
import torch

from divconq.compiler import compiler_loading

CPU = torch.device("cpu")


def test_it_loads_beside_other_work_and_is_ready_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read, ready = Event(), list[bool]()

    def compiled(function: Callable, **_: object) -> Callable:
        read.wait(10)  # goes on only when the work beside it does
        ready.append(current_thread() is not main_thread())
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    with compiler_loading(CPU):
        assert not ready
        read.set()
    assert ready == [True]


def test_a_compiler_that_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    with compiler_loading(CPU):
        pass


def test_an_error_of_the_work_is_raised_when_the_compiler_is_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Event()

    def compiled(function: Callable, **_: object) -> Callable:
        done.set()
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.raises(ValueError, match="unreadable"), compiler_loading(CPU):
        raise ValueError("unreadable")
    assert done.is_set()
