"""Exchange between processes: shares of a batch, embeddings, gradients and parameters.

Every rank embeds its share of a batch. ``gather`` puts the embeddings of all shares together, and every rank
computes the same loss of the whole batch. In the backward pass ``gather`` returns the gradient of the rank's own
rows, multiplied by ``size()``. Averaging the gradients of all ranks (``average_gradients``, or torch's
DistributedDataParallel) then gives the gradient of the whole batch for the network. The gradients of masks and loss
are equal on every rank, so the average does not change them.

With one process these functions do nothing.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from divconq.distributed.group import connection_errors, rank, size


def shard(n: int) -> slice:
    """Return the slice of ``n`` rows that belongs to this rank. Shares differ by at most one row.

    >>> list(range(5))[shard(5)]
    [0, 1, 2, 3, 4]
    """
    return _shards(n, size())[rank()]


def _shards(n: int, ranks: int) -> list[slice]:
    """Return the slices of all ranks.

    >>> _shards(10, 4)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    least, more = divmod(n, ranks)
    ends = [least * (r + 1) + min(r + 1, more) for r in range(ranks)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def gather(x: Shaped[Tensor, " m *rest"], n: int) -> Shaped[Tensor, " n *rest"]:
    """Return all ``n`` rows in order, on every rank; ``x`` holds the rows ``shard(n)`` of this rank.

    Gradients flow back: if L is the same on every rank, ``x`` receives ``size()`` times dL/dx.

    >>> gather(torch.tensor([[1.0], [2.0]]), 2).tolist()
    [[1.0], [2.0]]
    """
    if size() == 1:
        return x
    mine = shard(n)
    if len(x) != mine.stop - mine.start:
        raise ValueError(
            f"rank {rank()} of {size()} must give {mine.stop - mine.start} of {n} rows, got {len(x)}; "
            "give the rows that shard(n) names"
        )
    rows: Tensor = _Gather.apply(x, n)
    return rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n: int) -> Tensor:  # noqa: ANN401
        ctx.n = n
        shares = _shards(n, size())
        longest = shares[0].stop
        padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])]) if len(x) < longest else x
        parts = [torch.empty_like(padded, memory_format=torch.contiguous_format) for _ in shares]
        with connection_errors():
            dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[: s.stop - s.start] for part, s in zip(parts, shares, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return size() * gradient[shard(ctx.n)], None


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its mean over the ranks. The same parameters must have a gradient on all ranks.

    >>> weight = nn.Parameter(torch.ones(2)); weight.sum().backward()
    >>> average_gradients([weight]); weight.grad
    tensor([1., 1.])
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if size() == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    with connection_errors():
        dist.all_reduce(flat)
    flat /= size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def synchronise(*modules: nn.Module) -> None:
    """Copy the parameters and buffers of rank 0 to every rank.

    >>> synchronise(nn.Linear(2, 2))
    """
    if size() == 1:
        return
    for value in (v for module in modules for v in (*module.parameters(), *module.buffers())):
        dense = value.contiguous()
        with connection_errors():
            dist.broadcast(dense, src=0)
        value.copy_(dense)


def anywhere(flag: bool) -> bool:
    """Return whether ``flag`` is true on any rank. Every rank must call this function.

    >>> anywhere(False)
    False
    """
    if size() == 1:
        return flag
    raised = torch.tensor(int(flag))
    with connection_errors():
        dist.all_reduce(raised, dist.ReduceOp.MAX)
    return bool(raised)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Use different torch random numbers on every rank inside the block, and the shared ones after it.

    Dropout then differs between ranks, while a loss that draws random numbers draws the same on all ranks. The seed
    comes from Python's generator, which has the same state on all ranks. A single process keeps its generator.

    >>> with own_randomness():
    ...     x = torch.rand(3)
    """
    if size() == 1:
        yield
        return
    seeds = np.random.SeedSequence([random.getrandbits(64), rank()])
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else []):
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
        yield


def share_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model with BatchNorm statistics over the images of all ranks. Needs GPUs.

    >>> share_batchnorm(nn.Linear(2, 2), torch.device("cpu"))
    Linear(in_features=2, out_features=2, bias=True)
    """
    has_any = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if size() == 1 or not has_any:
        return model
    if device.type != "cuda":
        raise ValueError(
            f"training BatchNorm over {size()} processes needs GPUs, got {device.type}; "
            "freeze it with --freeze-batchnorm, or train in one process"
        )
    from timm.layers.norm_act import convert_sync_batchnorm

    shared: nn.Module = convert_sync_batchnorm(
        model
    )  # unlike torch's function, this keeps timm's fused activations
    return shared
