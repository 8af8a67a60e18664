"""Measures of an embedding, its clusters and its subspaces: tensors in, numbers out."""
