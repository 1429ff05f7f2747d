"""A tiny engine whose tokens are compared with a dense recomputation."""
