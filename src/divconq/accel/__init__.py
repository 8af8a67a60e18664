"""Where a run computes, and what makes it fast on a GPU: CUDA graphs, folded BatchNorm."""
