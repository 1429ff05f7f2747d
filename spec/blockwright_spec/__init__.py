"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

1 `reads`, 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `asks`, 8 `plans`, 9 `publication`, 10 `effects`,
11 `transitions`, 12 `flights`, 13 `forks`; then the laws: 14 `pool_laws`, 15 `table_laws`, 16 `step_laws`, 17
`time_laws`; 18 `explain`, why a hit is no longer; and the list of laws, 19 `laws`.

Part two, block tables with copy-on-write: 20 `paged_state`, 21 `paged_outcomes`, 22 `paged_effects`, 23 `paged_counts`,
24 `paged_tables`; and their laws: 25 `paged_laws`, 26 `paged_step_laws`, which also lists them.

Part three, blocks kept off the device: one tier in 27 `tier_state`, 28 `tier_calls`, 29 `tier_laws`; a chain of tiers
and the transfers between them in 30 `chain_state`, 31 `chain_outcomes`, 32 `chain_effects`, 33 `chain_calls`, 34
`chain_laws`, which also lists the laws of all of part three.

Part four, what the kernels are given: 35 `rows`, a worker's replica of the block tables; 36 `inputs`, what a step hands
to the kernels; 37 `input_laws`; 38 `storage`, how a device's memory becomes blocks; 39 `storage_laws`, which also lists
the laws of all of part four.
"""
