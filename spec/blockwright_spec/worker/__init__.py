"""Part four, the worker: the inputs of the kernels.

A worker's records and outputs: 1 `rows`, its replica of the block tables; 2 `inputs`, the inputs of a step's kernels; 3
`input_laws`. How the memory of its device becomes blocks: 4 `storage`, 5 `storage_laws`, which also lists the laws of
the whole part.
"""
