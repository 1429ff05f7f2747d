"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

1 `reads`, 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `plans`, 8 `effects`, 9 `transitions`,
10 `flights`; then the laws: 11 `pool_laws`, 12 `table_laws`, 13 `step_laws`, 14 `time_laws`; 15 `explain`, why a hit is
no longer; and the list of laws, 16 `laws`.

Part two, block tables with copy-on-write: 17 `paged_state`, 18 `paged_outcomes`, 19 `paged_effects`, 20 `paged_counts`,
21 `paged_tables`; and their laws: 22 `paged_laws`, 23 `paged_step_laws`, which also lists them.
"""
