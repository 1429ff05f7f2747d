"""Part one, the manager: one pool of blocks, any number of groups of layers.

What it is and does: 1 `state`, 2 `choices`, 3 `lru`, 4 `hits`, 5 `outcomes`, 6 `retention`, 7 `preconditions`,
8 `plans`, 9 `publication`, 10 `effects`, 11 `transitions`. What is always true of it: 12 `pool_laws`, 13 `table_laws`,
14 `step_laws`.

The second reading, `in_time`, adds what a first one can do without: 15 `in_time.in_flight`, 16 `in_time.forks`,
17 `in_time.explain`, 18 `in_time.time_laws`. What is reported to others is 19 `events`, and what keeping
promises is 20 `retention_laws`. Last comes the list of all these laws, 21 `laws`.
"""
