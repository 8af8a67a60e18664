"""The Gaussian mixture of the head ``clml``: its settings, and its fit to the features of the training images."""

import warnings

import torch
from jaxtyping import Float
from torch import Tensor, nn

from divconq.config import Config
from divconq.distributed import on_first
from divconq.division.lloyd import check_points
from divconq.division.matching import renumbering
from divconq.model import PCA_DIM, CLMLHead, Mixture

SMALLEST_VARIANCE = 1e-3  # added to all variances, as a share of their mean; few images cannot make one zero
ITERATIONS = 100  # of EM at most


def check_scikit_learn() -> None:
    """Raise ValueError if scikit-learn, which fits the mixture, is not installed."""
    try:
        import sklearn.mixture  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "head 'clml' needs scikit-learn, which is not installed; run pip install 'divconq[clml]'"
        ) from error


def without_subspaces(config: Config) -> Config:
    """Return the config with masks none if its head is ``clml``, with a warning if the masks were others.

    >>> without_subspaces(Config.of(head="clml", masks="none")).masks.kind
    'none'
    """
    if config.model.head != "clml" or config.masks.kind == "none":
        return config
    warnings.warn(
        f"masks is none instead of {config.masks.kind}: the head clml has one linear layer for each of "
        f"{config.components} mixture components, and no clusters and subspaces; set --masks none",
        stacklevel=2,
    )
    return config.replace(masks="none")


def check_images(config: Config, n: int) -> None:
    """Raise ValueError if ``n`` training images are too few for the head ``clml``.

    >>> check_images(Config.of(head="clml"), 63)
    Traceback (most recent call last):
    ValueError: head 'clml' needs at least 64 training images for its principal components, got 63; add images, ...
    """
    if config.model.head == "clml" and n < PCA_DIM:
        raise ValueError(
            f"head 'clml' needs at least {PCA_DIM} training images for its principal components, got {n}; add images, "
            "or use --head linear"
        )


def fits_head(config: Config, epoch: int) -> bool:
    """Return whether the mixture of the head ``clml`` is fitted before ``epoch``: at the start and every E epochs.

    >>> [epoch for epoch in range(9) if fits_head(Config.of(head="clml", divide_every=4), epoch)]
    [0, 4, 8]
    """
    return config.model.head == "clml" and epoch % config.division.divide_every == 0


def fit_head(head: nn.Module, h: Float[Tensor, "n c"], seed: int) -> None:
    """Fit the mixture of a head to the features of all training images, in place.

    Each new component takes the number, and so the projection, of the old component that it shares most images with.
    The first process fits.
    """
    assert isinstance(head, CLMLHead)
    head.set_mixture_(on_first(_next_mixture, head.mixture, h, seed))


def _next_mixture(old: Mixture, h: Tensor, seed: int) -> Mixture:
    k = len(old.means)
    new = fit_mixture(h, k, seed)
    return new.renumbered(renumbering(new.clusters(h.cpu()), old.clusters(h), k))


def fit_mixture(h: Float[Tensor, "n c"], k: int, seed: int = 0) -> Mixture:
    """Return the mixture of ``k`` components in the 64 principal components of the unit features, on the CPU.

    The features are normalised, as those that are clustered in a division: their length varies with the contrast of
    an image more than with its content. The principal components are divided by one number, so that their variances
    have the mean 1. The covariances are diagonal: full ones have 2080 numbers for each component, which few images
    cannot determine.

    >>> h = torch.randn(200, 80, generator=torch.Generator().manual_seed(0))
    >>> fit_mixture(h, k=2).posterior(h).sum(1).round(decimals=4).unique()
    tensor([1.])
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    check_points(h)
    x = torch.nn.functional.normalize(h.double())
    centre = x.mean(0)
    _, directions = torch.linalg.eigh((x - centre).T @ (x - centre))
    axes = directions[:, -PCA_DIM:].flip(1)
    axes = axes / ((x - centre) @ axes).square().mean().sqrt().clamp(min=1e-6)  # all features may be equal
    model = GaussianMixture(
        k,
        covariance_type="diag",
        reg_covar=SMALLEST_VARIANCE,
        max_iter=ITERATIONS,
        random_state=seed % 2**32,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the next division fits again
        model.fit(((x - centre) @ axes).cpu().numpy())
    found = (model.weights_, model.means_, model.precisions_cholesky_)
    weights, means, precisions = (torch.from_numpy(part).float() for part in found)
    return Mixture(centre.float().cpu(), axes.T.float().cpu().contiguous(), weights.log(), means, precisions)
