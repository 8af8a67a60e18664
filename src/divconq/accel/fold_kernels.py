"""Triton kernels of ``fold`` and ``fold_backward``. One program handles one output channel, contiguous in memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # weights per step of a program


def fold_rows(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Compute ``fold`` in one pass over the weights."""
    folded, shift = torch.empty_like(weight, dtype=dtype), torch.empty_like(beta, dtype=dtype)
    _fold[(len(weight),)](
        weight,
        gamma if bias is None else bias,
        gamma,
        beta,
        mean,
        variance,
        folded,
        shift,
        weight[0].numel(),
        eps,
        biased=bias is not None,
        block=BLOCK,
    )
    return folded, shift


def fold_rows_backward(
    d_weight: Tensor,
    d_bias: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute ``fold_backward`` in one pass over the weights."""
    of_weight = torch.empty_like(weight)
    of_bias, of_gamma, of_beta = (torch.empty_like(gamma) for _ in range(3))
    _fold_backward[(len(weight),)](
        d_weight,
        d_bias,
        weight,
        gamma if bias is None else bias,
        gamma,
        mean,
        variance,
        of_weight,
        of_bias,
        of_gamma,
        of_beta,
        weight[0].numel(),
        eps,
        biased=bias is not None,
        block=BLOCK,
    )
    return of_weight, of_bias, of_gamma, of_beta


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    weight,
    bias,
    gamma,
    beta,
    mean,
    variance,
    folded,
    shift,
    n,
    eps,
    biased: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    scale = tl.load(gamma + row) / tl.sqrt(tl.load(variance + row) + eps)
    for start in range(0, n, block):
        at = start + tl.arange(0, block)
        w = tl.load(weight + row * n + at, mask=at < n)
        tl.store(folded + row * n + at, (w * scale).to(folded.dtype.element_ty), mask=at < n)
    centre = tl.load(mean + row)
    if biased:
        centre -= tl.load(bias + row)
    tl.store(shift + row, (tl.load(beta + row) - centre * scale).to(shift.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _fold_backward(  # type: ignore[no-untyped-def]
    d_weight, d_bias, weight, bias, gamma, mean, variance,
    of_weight, of_bias, of_gamma, of_beta, n, eps, biased: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    over = 1.0 / tl.sqrt(tl.load(variance + row) + eps)
    scale = tl.load(gamma + row) * over
    products = tl.zeros((block,), tl.float32)
    for start in range(0, n, block):
        at = start + tl.arange(0, block)
        g = tl.load(d_weight + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        w = tl.load(weight + row * n + at, mask=at < n, other=0.0)
        tl.store(of_weight + row * n + at, g * scale, mask=at < n)
        products += g * w
    g = tl.load(d_bias + row).to(tl.float32)
    centre = tl.load(mean + row)
    if biased:
        centre -= tl.load(bias + row)
    tl.store(of_bias + row, g * scale)
    tl.store(of_gamma + row, (tl.sum(products) - g * centre) * over)
    tl.store(of_beta + row, g)
