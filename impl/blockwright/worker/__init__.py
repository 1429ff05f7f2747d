"""The worker's side: a replica of the block tables, and what a step's kernels read off it; compiled."""
