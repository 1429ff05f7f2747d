"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

The page to read first, 0 `block_machine`: everything that may ever happen to a block. The parts refine it.

Part one, the manager: 1 `reads`, 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `asks`, 8 `plans`,
9 `publication`, 10 `effects`, 11 `transitions`, 12 `flights`, 13 `forks`; then the laws: 14 `pool_laws`,
15 `table_laws`, 16 `step_laws`, 17 `time_laws`; 18 `explain`, why a hit is no longer; and the list of laws, 19 `laws`.

Part two, block tables with copy-on-write: 20 `paged_state`, 21 `paged_outcomes`, 22 `paged_effects`, 23 `paged_counts`,
24 `paged_marks`, 25 `paged_tables`; and their laws: 26 `paged_laws`, 27 `paged_step_laws`, which also lists them.

Part three, blocks kept off the device: one tier in 28 `tier_state`, 29 `tier_calls`, 30 `tier_laws`; 31 `directory`,
what one that keeps blocks gives back, whatever became of its files; a chain of tiers and the transfers between them in
32 `chain_state`, 33 `chain_outcomes`, 34 `chain_effects`, 35 `chain_calls`, 36 `chain_laws`, which also lists the laws
of all of part three.

Part four, what the kernels are given: 37 `rows`, a worker's replica of the block tables; 38 `inputs`, what a step hands
to the kernels; 39 `input_laws`; 40 `storage`, how a device's memory becomes blocks; 41 `storage_laws`, which also lists
the laws of all of part four.
"""
