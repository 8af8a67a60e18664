"""Every figure of the report by its name; one is not drawn if there is nothing to draw."""

from collections.abc import Callable
from functools import partial

from divconq.analysis import plots_division, plots_space, plots_training
from divconq.analysis.findings import Findings
from divconq.analysis.style import Figure, draw

PLOTS: dict[str, Callable[[Findings], Figure | None]] = {
    "recall": plots_training.recall,
    "map-at-r": plots_training.map_at_r,
    "loss": plots_training.loss,
    "k": plots_training.number_of_clusters,
    "generalisation": plots_training.generalisation,
    "seconds": plots_training.seconds,
    "cluster-nmi": plots_division.cluster_nmi,
    "cluster-kept": plots_division.cluster_kept,
    "cluster-sizes": plots_division.cluster_sizes,
    "cluster-mean-sizes": plots_division.cluster_mean_sizes,
    "cluster-factors": plots_division.cluster_factors,
    "masks": plots_division.masks,
    "mask-cosine": plots_division.mask_cosine,
    "mask-shared": plots_division.mask_shared,
    "mask-mass": plots_division.mask_mass,
    "subspace-recall": plots_division.subspace_recall,
    "subspace-factors": plots_division.subspace_factors,
    "effective-dimension": plots_space.effective_dimension,
    "cluster-dimensions": plots_space.cluster_dimensions,
    "variances": plots_space.variances,
    "ratio": plots_space.ratio,
    "expected-distances": plots_space.expected_distances,
    "umap-classes": plots_space.map_classes,
    "umap-splits": plots_space.map_splits,
}


def draw_all(findings: Findings) -> dict[str, tuple[str, bytes]]:
    """The figures that can be drawn, by name, each as SVG and as PNG."""
    drawn = {name: draw(partial(plot, findings)) for name, plot in PLOTS.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}
