"""Projection of learned masks within the step of the optimiser, for the activation ``projected``."""

from torch.optim import Optimizer

from divconq.masks.subspaces import Masks


def project_after_steps(optimizer: Optimizer, masks: Masks) -> None:
    """Let every ``optimizer.step()`` end with ``masks.project_()``, if the masks need it.

    The projection is in place, so a CUDA graph of the step holds it. A copy of the optimiser lacks it.

    >>> import torch
    >>> masks = Masks(dim=2, k_max=2, activation="projected"); masks.split_()
    >>> sgd = torch.optim.SGD(masks.parameters(), lr=3.0)
    >>> project_after_steps(sgd, masks)
    >>> masks.active()[0].sum().backward(); sgd.step(); masks.active().tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    if not masks.projects:
        return

    def project(*_: object) -> None:
        masks.project_()

    optimizer.register_step_post_hook(project)
