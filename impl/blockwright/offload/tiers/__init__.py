"""The bookkeeping of offloading: which block lies in which place of which tier, its readers, and the order of eviction.

Compiled like the core, and importing neither torch nor numpy: no byte is moved here.
"""
