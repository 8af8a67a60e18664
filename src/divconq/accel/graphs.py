"""CUDA graphs: the device replays a whole function without waiting for Python."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
Function: TypeAlias = Callable[..., tuple[Tensor, ...]]

WARM_UP = 2  # calls in which libraries select their algorithms and optimizers create their state


class Fallback(Generic[Result]):
    """Calls the fast form of a function. If that fails, warns once and then always calls the plain form.

    >>> import warnings
    >>> double = Fallback(lambda x: x[0], lambda x: 2 * x, "doubling")
    >>> with warnings.catch_warnings(record=True) as said:
    ...     double(3), double(4)
    (6, 8)
    >>> str(said[0].message)  # doctest: +ELLIPSIS
    "doubling cannot be compiled or captured (TypeError: 'int' object is not subscriptable); it runs without, ..."
    """

    def __init__(self, fast: Callable[..., Result], plain: Callable[..., Result], name: str) -> None:
        self.fast: Callable[..., Result] | None = fast
        self.plain, self.name = plain, name

    def __call__(self, *inputs: Any) -> Result:  # noqa: ANN401
        """Call the fast or the plain form."""
        if self.fast is not None:
            try:
                return self.fast(*inputs)
            except torch.cuda.OutOfMemoryError:
                raise  # the plain form needs more memory
            except Exception as error:
                self.fast = None
                warnings.warn(
                    f"{self.name} cannot be compiled or captured ({first_line(error)}); it runs without, slower. "
                    "--compile off skips the attempt",
                    stacklevel=2,
                )
        return self.plain(*inputs)


def first_line(error: Exception) -> str:
    r"""Return the type of an error and the first line of its message.

    >>> first_line(ValueError("no\nway"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


class Captured:
    """Calls a function directly at first, then replays it as a CUDA graph. Each call overwrites the outputs.

    The function must not copy values from the device to the CPU. It may depend only on its inputs, which
    keep their shapes, and on tensors that are changed in place. The last warm-up call raises RuntimeError if the
    function reads a value from the device.
    """

    def __init__(self, function: Function, device: torch.device) -> None:
        self.function, self.calls = function, 0
        self.stream = torch.cuda.Stream(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the function for these inputs."""
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
        """Run the function without a graph, on the stream of the later capture, as autograd requires."""
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
        # Other threads may continue, for example one that copies images into pinned memory.
        capture = torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local")
        with recovery(self.stream.device), capture:
            self.outputs = self.function(*self.inputs)
        self.graph = graph


def start_compiler() -> None:
    """Start the compiler processes before the first kernel needs them. Torch 2.6 starts them on import.

    >>> start_compiler()
    """
    from torch._inductor import async_compile

    if hasattr(async_compile, "maybe_warm_pool"):
        async_compile.maybe_warm_pool()


def load_compiler() -> None:
    """Import the compiler, which takes some seconds, before the first compiled function needs it.

    >>> load_compiler()
    """
    import torch._inductor.compile_fx  # noqa: F401


def untuned() -> dict[str, Any]:
    """Return torch.compile options that fix the block size of sums, instead of trying several.

    The sums of a loss are small: trying gains nothing, and the largest block takes seconds to compile. Torch before
    2.10 lacks this option.

    >>> untuned() in ({"deterministic": True}, {})
    True
    """
    return {"deterministic": True} if hasattr(torch._inductor.config, "deterministic") else {}


@contextmanager
def recovery(device: torch.device) -> Iterator[None]:
    """Restore the current stream and the random generator of the device after a failed capture."""
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
    with warnings.catch_warnings():  # the first call warns that the mode does not detect everything
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
