"""Part one, the manager: one pool of blocks, any number of groups of layers.

How to read it: 1 `added`, the parts that a first reading leaves out, to be looked up in a second.

What it is and does: 2 `state`, 3 `choices`, 4 `lru`, 5 `hits`, 6 `outcomes`, 7 `retention`, 8 `keeping`,
9 `preconditions`, 10 `plans`, 11 `publication`, 12 `effects`, 13 `transitions`. What is always true of it:
14 `pool_laws`, 15 `table_laws`, 16 `step_laws`.

The second reading, `in_time`, adds what a first one can do without: 17 `in_time.in_flight`, 18 `in_time.forks`,
19 `in_time.outside`, 20 `in_time.explain`, 21 `in_time.time_laws`. What is reported to others is 22 `events`, what is
counted 23 `metrics`, what keeping promises is 24 `retention_laws`, and what is forgotten 25 `in_time.forgetting`. Last
comes the list of all these laws, 26 `laws`.
"""
