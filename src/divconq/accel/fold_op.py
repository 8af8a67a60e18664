"""The operation ``fold``: a convolution and the frozen BatchNorm after it become one weight and one bias.

``fold`` is a custom operation, which torch.compile does not trace. This halves the code to compile for a ResNet-50.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("divconq::fold", mutates_args=())
def fold(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return weight s W and bias s (c - m) + b in ``dtype``, with s = gamma / sqrt(variance + eps) and c the bias.

    >>> one = torch.ones(1)
    >>> fold(torch.ones(1, 1, 1, 1), None, 6 * one, one, one, 3 * one, 1.0, torch.float32)
    (tensor([[[[3.]]]]), tensor([-2.]))
    """
    if _by_rows(weight):
        from divconq.accel.fold_kernels import fold_rows

        return fold_rows(weight, bias, gamma, beta, mean, variance, eps, dtype)
    scale = gamma * torch.rsqrt(variance + eps)
    centre = mean if bias is None else mean - bias
    return (weight * _column(scale, weight)).to(dtype), (beta - centre * scale).to(dtype)


@torch.library.custom_op("divconq::fold_backward", mutates_args=())
def fold_backward(
    d_weight: Tensor,
    d_bias: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of weight, bias, gamma and beta from the gradients of the outputs of ``fold``."""
    if d_weight.stride() != weight.stride():
        d_weight = torch.empty_like(weight, dtype=d_weight.dtype).copy_(d_weight)
    if _by_rows(weight):
        from divconq.accel.fold_kernels import fold_rows_backward

        return fold_rows_backward(d_weight, d_bias, weight, bias, gamma, mean, variance, eps)
    d_weight, d_bias = d_weight.to(weight.dtype), d_bias.to(weight.dtype)
    over = torch.rsqrt(variance + eps)
    scale, centre = gamma * over, mean if bias is None else mean - bias
    d_scale = (d_weight * weight).flatten(1).sum(1) - d_bias * centre
    return d_weight * _column(scale, weight), d_bias * scale, d_scale * over, d_bias.clone()


def _by_rows(weight: Tensor) -> bool:
    """Return whether the Triton kernels apply: a GPU, float32, each output channel contiguous in memory."""
    dense = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
    return weight.is_cuda and dense and weight.dtype == torch.float32 and _has_triton(weight.device)


@cache
def _has_triton(device: torch.device) -> bool:
    """Return whether Triton is installed (on Windows it rarely is) and supports the GPU."""
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def _column(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (weight.ndim - 1))


@fold.register_fake
def _(weight: Tensor, bias: Tensor | None, gamma: Tensor, beta: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    dtype = rest[-1]
    return torch.empty_like(weight, dtype=dtype), torch.empty_like(beta, dtype=dtype)


@fold_backward.register_fake
def _(
    d_weight: Tensor, d_bias: Tensor, weight: Tensor, bias: Tensor | None, gamma: Tensor, *rest: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(weight), torch.empty_like(gamma), torch.empty_like(gamma), torch.empty_like(gamma)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:  # noqa: ANN401
    weight, bias, gamma, _, mean, variance, eps, _ = inputs
    ctx.save_for_backward(weight, bias, gamma, mean, variance)
    ctx.eps = eps


def _gradients(ctx: Any, d_weight: Tensor, d_bias: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    bias = ctx.saved_tensors[1]
    weight, of_bias, gamma, beta = fold_backward(d_weight, d_bias, *ctx.saved_tensors, ctx.eps)
    return weight, None if bias is None else of_bias, gamma, beta, None, None, None, None


fold.register_autograd(_gradients, setup_context=_save_inputs)
