"""Part one, the manager: one pool of blocks, any number of groups of layers.

How to read it: 1 `added`, the parts that a first reading leaves out, to be looked up in a second.

What it is and does: 2 `state`, 3 `choices`, 4 `lru`, 5 `units`, 6 `hits`, 7 `outcomes`, 8 `retention`, 9 `keeping`,
10 `lease`, 11 `preconditions`, 12 `plans`, 13 `publication`, 14 `effects`, 15 `ending`, 16 `transitions`. What is
always true of it: 17 `pool_laws`, 18 `table_laws`, 19 `step_laws`.

The second reading, `in_time`, adds what a first one can do without: 20 `in_time.in_flight`, 21 `in_time.forks`, 22
`in_time.outside`, 23 `in_time.explain`, 24 `in_time.time_laws`, 25 `in_time.liveness`. What is reported to others is 26
`events`, what is counted 27 `metrics`, what keeping promises is 28 `retention_laws`, what is forgotten 29
`in_time.forgetting`, what is given up before it has run 30 `in_time.giving_up`, what hits inside blocks need 31
`unit_laws`, what an order of eviction is told 32 `orders`, slots that are given back 33 `in_time.shortening`, and
duplicates that are folded 34 `in_time.folding`. Last comes the list of all these laws, 35 `laws`.
"""
