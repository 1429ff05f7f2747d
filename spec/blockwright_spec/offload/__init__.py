"""Part three, offload: blocks that are kept off the device.

One tier: 1 `tier_state`, 2 `tier_calls`, 3 `tier_laws`; and in 4 `directory`, what one that keeps blocks gives back,
whatever became of its files. A chain of tiers, and the transfers between them: 5 `chain_state`, 6 `chain_outcomes`,
7 `chain_effects`, 8 `chain_calls`, 9 `tier_resizing`, 10 `keeping_laws`, 11 `tier_events`, what routers are told of
tiers and what is forgotten, 12 `parts`, and 13 `chain_laws`, which also lists the laws of the whole part.
"""
