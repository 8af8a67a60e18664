"""Device selection and GPU acceleration: CUDA graphs, folded BatchNorm."""
