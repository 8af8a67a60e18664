"""A function of tensors as one CUDA graph: the device then runs all of it without waiting for Python."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Function: TypeAlias = Callable[..., tuple[Tensor, ...]]

WARM_UP = 2  # calls in which libraries choose their algorithms and optimisers make their state


class Fallback(Generic[Result]):
    """Calls the fast form of a function until that fails, then the plain one; it says so, once.

    >>> import warnings
    >>> double = Fallback(lambda x: x[0], lambda x: 2 * x, "doubling")
    >>> with warnings.catch_warnings(record=True) as said:
    ...     double(3), double(4)
    (6, 8)
    >>> str(said[0].message)  # doctest: +ELLIPSIS
    "doubling cannot be compiled or captured (TypeError: 'int' object is not subscriptable); it runs as it is, ..."
    """

    def __init__(self, fast: Callable[..., Result], plain: Callable[..., Result], name: str) -> None:
        self.fast: Callable[..., Result] | None = fast
        self.plain, self.name = plain, name

    def __call__(self, *inputs: Any) -> Result:  # noqa: ANN401
        """Call one of them."""
        if self.fast is not None:
            try:
                return self.fast(*inputs)
            except torch.cuda.OutOfMemoryError:
                raise  # the plain form needs more
            except Exception as error:
                self.fast = None
                warnings.warn(
                    f"{self.name} cannot be compiled or captured ({first_line(error)}); it runs as it is, slower. "
                    "--compile off leaves out the attempt",
                    stacklevel=2,
                )
        return self.plain(*inputs)


def first_line(error: Exception) -> str:
    r"""What an error says, in short.

    >>> first_line(ValueError("no\nway"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


class Captured:
    """Calls a function as it is at first, then replays a graph of it; what it returns lives until the next call.

    The function must neither read from the device nor depend on anything but its inputs, whose shapes stay the
    same, and on tensors that are changed in place. The last call of the warm-up finds out whether it reads: it
    then raises RuntimeError where it does.
    """

    def __init__(self, function: Function, device: torch.device) -> None:
        self.function, self.calls = function, 0
        self.stream = torch.cuda.Stream(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the function on these inputs."""
        self.calls += 1
        if self.calls <= WARM_UP:
            with _reading_is_an_error(self.calls == WARM_UP):
                return self._run(inputs)
        if self.graph is None:
            self._capture(inputs)
        assert self.graph is not None
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given)
        self.graph.replay()
        return self.outputs

    def _run(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run it outside of a graph, on the stream on which it will be captured, where autograd expects it."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            outputs = self.function(*inputs)
        current.wait_stream(self.stream)
        return outputs

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(x.clone() for x in inputs)
        torch.cuda.synchronize(self.stream.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that reads images into pinned memory, may go on.
        capture = torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local")
        with recovery(self.stream.device), capture:
            self.outputs = self.function(*self.inputs)
        self.graph = graph


def start_compiler() -> None:
    """Start the processes in which kernels are compiled; else they start at the first kernel.

    >>> start_compiler()
    """
    from torch._inductor.async_compile import maybe_warm_pool

    maybe_warm_pool()


def load_compiler() -> None:
    """Import the compiler, which takes some seconds; else it is imported with the first function.

    >>> load_compiler()
    """
    import torch._inductor.compile_fx  # noqa: F401


def untuned() -> dict[str, Any]:
    """Options with which torch.compile takes one block size for a sum, where it would try several.

    Of a loss, whose sums are small, that gains nothing, and the largest block takes seconds to compile. Torch before
    2.10 has no such option.

    >>> untuned()
    {'deterministic': True}
    """
    return {"deterministic": True} if hasattr(torch._inductor.config, "deterministic") else {}


@contextmanager
def recovery(device: torch.device) -> Iterator[None]:
    """A capture that fails leaves its own stream current, and the random numbers waiting for its end; mend both."""
    stream = torch.cuda.current_stream(device)
    try:
        yield
    except Exception:
        torch.cuda.set_stream(stream)
        generator = torch.cuda.default_generators[stream.device.index]
        fresh = torch.Generator(stream.device).manual_seed(generator.initial_seed())
        generator.graphsafe_set_state(fresh.graphsafe_get_state())
        raise


@contextmanager
def _reading_is_an_error(on: bool) -> Iterator[None]:
    if not on:
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # the first time, it says that it does not find everything
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
