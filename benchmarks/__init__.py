"""Benchmarks of the block manager, beside a peer's manager and a plain-C floor, in one run."""
