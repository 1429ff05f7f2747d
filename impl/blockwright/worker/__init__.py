"""The worker's side: a replica of the block tables, and the inputs of a step's kernels made from it; compiled."""
