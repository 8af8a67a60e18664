"""One reader per dataset: the benchmarks, a folder of photos, a table, the built-in demo."""
