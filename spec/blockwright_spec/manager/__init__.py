"""Part one, the manager: one pool of blocks, any number of groups of layers.

What it is and does: 1 `state`, 2 `choices`, 3 `lru`, 4 `hits`, 5 `outcomes`, 6 `preconditions`, 7 `plans`,
8 `publication`, 9 `effects`, 10 `transitions`. What is always true of it: 11 `pool_laws`, 12 `table_laws`,
13 `step_laws`.

The second reading, `in_time`, adds what a first one can do without: 14 `in_time.in_flight`, 15 `in_time.forks`,
16 `in_time.explain`, 17 `in_time.time_laws`. What is reported to others is 18 `events`. Last comes the list of all
these laws, 19 `laws`.
"""
