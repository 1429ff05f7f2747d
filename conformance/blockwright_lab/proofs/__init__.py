"""Proofs: closed forms for all integers, contracts over all paths, an invariant of pools of any size."""
