"""The NaN guard: stops a run whose loss is not finite, and warns when the embeddings collapse."""

import warnings

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

COLLAPSED = 0.01


class NaNGuard:
    """Keeps the losses of an epoch on the device and raises FloatingPointError if one is not finite.

    ``before`` holds the losses of this epoch from before the resume.

    >>> guard = NaNGuard(epoch=0, clusters=torch.tensor([0, 1]), device=torch.device("cpu"))
    >>> guard.step(torch.tensor(2.0), torch.tensor(True))
    >>> guard.step(torch.tensor(float("nan")), torch.tensor(True))
    Traceback (most recent call last):
    FloatingPointError: the loss is nan at epoch 1, step 2 of 2 (cluster 1): the embeddings are finite, so the \
loss itself failed; lower its scale or margin, or choose another --loss
    """

    def __init__(
        self,
        epoch: int,
        clusters: Int64[Tensor, " steps"],
        device: torch.device,
        before: Float[Tensor, " done"] | None = None,
    ) -> None:
        self.epoch, self.clusters = epoch, clusters
        self.losses = torch.zeros(len(clusters), device=device)
        self.done = self.checked = 0 if before is None else min(len(before), len(clusters))
        if before is not None:
            self.losses[: self.done] = before[: self.done].to(device)
        self.finite = torch.ones(len(clusters), dtype=torch.bool, device=device)
        self.latest: float | None = None
        self.checks_every_step = device.type == "cpu"  # reading from a GPU would wait for it

    def so_far(self) -> Float[Tensor, " done"]:
        """Check the losses of the steps so far and return them on the CPU.

        >>> guard = NaNGuard(0, torch.tensor([0, 0]), torch.device("cpu"), before=torch.tensor([2.0]))
        >>> guard.step(torch.tensor(4.0), torch.tensor(True)); guard.so_far()
        tensor([2., 4.])
        """
        self.check()
        return self.losses[: self.done].cpu()

    def step(self, loss: Float[Tensor, ""], finite: Bool[Tensor, ""]) -> None:
        """Record the loss of a step and whether its embeddings are finite. On a CPU, also check the loss."""
        self.losses[self.done] = loss
        self.finite[self.done] = finite
        self.done += 1
        if self.checks_every_step:
            self.check()

    def check(self) -> None:
        """Raise FloatingPointError at the first loss that is not finite."""
        recent = self.losses[self.checked : self.done].isfinite()
        if not recent.all():
            step = self.checked + int((~recent).nonzero()[0])
            cause = (
                "the embeddings are finite, so the loss itself failed; "
                "lower its scale or margin, or choose another --loss"
                if self.finite[step]
                else "the network's output is not finite, so training diverged; lower --lr"
            )
            raise FloatingPointError(
                f"the loss is {float(self.losses[step])} at epoch {self.epoch + 1}, step {step + 1} of "
                f"{len(self.clusters)} (cluster {int(self.clusters[step])}): {cause}"
            )
        self.checked, self.latest = self.done, float(self.losses[self.done - 1])

    def mean(self) -> float:
        """Return the mean loss of the steps so far."""
        self.check()
        return float(self.losses[: self.done].double().mean())


def warn_of_collapse(spread: float, epoch: int) -> None:
    """Warn if all embeddings point in the same direction; ``spread`` is 1 - |mean unit vector|^2.

    >>> warn_of_collapse(0.7, epoch=3)
    """
    if spread < COLLAPSED:
        warnings.warn(
            f"the embeddings have collapsed at epoch {epoch + 1}: their spread is {spread:.4f} "
            "(1: all directions, 0: one point); lower --lr or choose another --loss",
            stacklevel=2,
        )
