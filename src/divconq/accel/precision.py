"""Full float32 precision for distances."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exact_products(device: str) -> Iterator[None]:
    """Multiply float32 matrices in full float32 precision, without autocast and TF32.

    >>> with exact_products("cpu"):
    ...     (torch.ones(1, 2) @ torch.ones(2, 1)).dtype
    torch.float32
    """
    backends: Any = torch.backends
    exact: list[tuple[Any, str, str | bool]] = [(backends.cuda.matmul, "allow_tf32", False)]
    if hasattr(backends.cuda.matmul, "fp32_precision"):  # torch 2.9 renamed the setting and refuses a mixture
        exact = [(b.matmul, "fp32_precision", "ieee") for b in (backends.cuda, backends.mkldnn)]
    before = [getattr(holder, name) for holder, name, _ in exact]
    try:
        for setting in exact:
            setattr(*setting)
        with torch.autocast(device, enabled=False):
            yield
    finally:
        for (holder, name, _), value in zip(exact, before, strict=True):
            setattr(holder, name, value)
