"""torch's compiler, made ready while images are read: it takes seconds to load, and its workers to start."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import torch


@contextmanager
def compiler_loading(device: torch.device) -> Iterator[None]:
    """Compile a sum in the background of what is done meanwhile; at the end the compiler is ready.

    Where it cannot compile, this says nothing: what really is to be compiled will.

    >>> with compiler_loading(torch.device("cpu")):
    ...     images = torch.zeros(8)
    """
    if device.type == "cuda":  # which GPU is meant by that is known to this thread only
        device = torch.device("cuda", torch.cuda.current_device())
    loading = Thread(target=_compile_something, args=(device,), name="compiler")
    loading.start()
    try:
        yield
    finally:
        loading.join()


def _compile_something(device: torch.device) -> None:
    with suppress(Exception):
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.compile(_more, dynamic=False)(torch.ones(8, device=device))


def _more(x: torch.Tensor) -> torch.Tensor:
    return x + 1
