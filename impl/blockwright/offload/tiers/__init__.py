"""The bookkeeping of offloading: which block lies in which place of which tier, who reads it, and what goes first.

Compiled like the core, and importing neither torch nor numpy: no byte is moved here.
"""
