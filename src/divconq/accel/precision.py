"""Full float32 precision for distances."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

EXACT = ("ieee", "none")  # no setting at all means full precision for products


@contextmanager
def exact_products(device: str) -> Iterator[None]:
    """Multiply float32 matrices in full float32 precision, without autocast and TF32. Restore the settings after it.

    >>> torch.set_float32_matmul_precision("medium")
    >>> with exact_products("cpu"):
    ...     (torch.ones(1, 2) @ torch.ones(2, 1)).dtype
    torch.float32
    >>> torch.get_float32_matmul_precision()
    'medium'
    >>> torch.set_float32_matmul_precision("highest")
    """
    backends: Any = torch.backends
    with ExitStack() as settings:
        if hasattr(backends.cuda.matmul, "fp32_precision"):  # torch 2.9 has one setting for each backend
            settings.enter_context(_ieee(backends.cuda.matmul))
            settings.enter_context(_ieee(backends.mkldnn.matmul))
        else:
            settings.enter_context(_highest())
        settings.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _highest() -> Iterator[None]:
    """Set the precision of all products. ``allow_tf32`` would not do: it turns "medium" into "high"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _ieee(matmul: Any) -> Iterator[None]:  # noqa: ANN401
    """Set the precision of the products of one backend. A value that it inherits is inherited again after it."""
    before = matmul.fp32_precision
    if before in EXACT:
        yield
        return
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = "none"  # inherit from torch.backends.fp32_precision
        if matmul.fp32_precision != before:
            matmul.fp32_precision = before
