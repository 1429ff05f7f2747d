"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

1 `reads`, 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `asks`, 8 `plans`, 9 `effects`, 10 `transitions`,
11 `flights`, 12 `forks`; then the laws: 13 `pool_laws`, 14 `table_laws`, 15 `step_laws`, 16 `time_laws`; 17 `explain`,
why a hit is no longer; and the list of laws, 18 `laws`.

Part two, block tables with copy-on-write: 19 `paged_state`, 20 `paged_outcomes`, 21 `paged_effects`, 22 `paged_counts`,
23 `paged_tables`; and their laws: 24 `paged_laws`, 25 `paged_step_laws`, which also lists them.

Part three, blocks kept off the device: one tier in 26 `tier_state`, 27 `tier_calls`, 28 `tier_laws`; 29 `directory`,
what one that keeps blocks gives back, whatever became of its files; a chain of tiers and the transfers between them in
30 `chain_state`, 31 `chain_outcomes`, 32 `chain_effects`, 33 `chain_calls`, 34 `chain_laws`, which also lists the laws
of all of part three.

Part four, what the kernels are given: 35 `rows`, a worker's replica of the block tables; 36 `inputs`, what a step hands
to the kernels; 37 `input_laws`; 38 `storage`, how a device's memory becomes blocks; 39 `storage_laws`, which also lists
the laws of all of part four.
"""
