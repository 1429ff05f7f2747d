"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

The page to read first, 0 `block_machine`: everything that may ever happen to a block. The parts refine it.

Part one, the manager: 1 `reads`, 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `asks`, 8 `plans`,
9 `effects`, 10 `transitions`, 11 `flights`, 12 `forks`; then the laws: 13 `pool_laws`, 14 `table_laws`, 15 `step_laws`,
16 `time_laws`; 17 `explain`, why a hit is no longer; and the list of laws, 18 `laws`.

Part two, block tables with copy-on-write: 19 `paged_state`, 20 `paged_outcomes`, 21 `paged_effects`, 22 `paged_counts`,
23 `paged_tables`; and their laws: 24 `paged_laws`, 25 `paged_step_laws`, which also lists them.

Part three, blocks kept off the device: one tier in 26 `tier_state`, 27 `tier_calls`, 28 `tier_laws`; a chain of tiers
and the transfers between them in 29 `chain_state`, 30 `chain_outcomes`, 31 `chain_effects`, 32 `chain_calls`, 33
`chain_laws`, which also lists the laws of all of part three.

Part four, what the kernels are given: 34 `rows`, a worker's replica of the block tables; 35 `inputs`, what a step hands
to the kernels; 36 `input_laws`; 37 `storage`, how a device's memory becomes blocks; 38 `storage_laws`, which also lists
the laws of all of part four.
"""
