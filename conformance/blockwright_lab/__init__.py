"""How the project checks its own checks: known bugs, mutants, contracts, numerics, faults of media, peers, refinement.

This package is in no wheel, and nothing of the kit imports it; its gates join `blockwright conform` in a checkout.
"""
