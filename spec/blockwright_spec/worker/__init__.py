"""Part four, the worker: what the kernels are given.

What a worker keeps and hands on: 1 `rows`, its replica of the block tables; 2 `inputs`, what a step hands to the
kernels; 3 `input_laws`. How the memory of its device becomes blocks: 4 `storage`, 5 `storage_laws`, which also lists
the laws of the whole part.
"""
