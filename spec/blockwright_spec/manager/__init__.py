"""Part one, the manager: one pool of blocks, any number of groups of layers.

How to read it: 1 `added`, what a first reading leaves out, to be looked up in a second.

What it is and does: 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `retention`, 8 `preconditions`,
9 `plans`, 10 `publication`, 11 `effects`, 12 `transitions`. What is always true of it: 13 `pool_laws`, 14 `table_laws`,
15 `step_laws`.

The second reading, `in_time`, adds what a first one can do without: 16 `in_time.in_flight`, 17 `in_time.forks`,
18 `in_time.outside`, 19 `in_time.explain`, 20 `in_time.time_laws`. What is reported to others is 21 `events`, what is
counted 22 `metrics`, and what keeping promises is 23 `retention_laws`. Last comes the list of all these laws,
24 `laws`.
"""
