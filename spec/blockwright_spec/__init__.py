"""The specification of Blockwright: a book of short chapters, to be read from top to bottom, that also runs.

1 `reads`, 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `effects`, 8 `transitions`; then the laws:
9 `pool_laws`, 10 `table_laws`, 11 `step_laws`, and their list, 12 `laws`.
"""
