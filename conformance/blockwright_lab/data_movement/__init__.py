"""Histories with data that moves: block tables, offload, and the inputs of a step beside a worker."""
