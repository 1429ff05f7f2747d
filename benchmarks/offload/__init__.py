"""Measurements of offloading: what each tier moves in a second, and what its bookkeeping costs."""
