"""Part one, the manager: one pool of blocks, any number of groups of layers. It is two books.

Book one is what every manager does. It asks the chapters of book two where they may say more, and is read first:
1 `page`, 2 `chapters`, 3 `state`, 4 `facts`, 5 `seam`, 6 `choices`, 7 `lru`, 8 `keys`, 9 `units`,
10 `hits`, 11 `outcomes`, 12 `lease`, 13 `preconditions`, 14 `plans`, 15 `publication`, 16 `effects`, 17 `ending`,
18 `transitions`. What is always true of it: 19 `pool_laws`, 20 `table_laws`.

Book two is the options, each known in its own chapter, and what listens to the steps of transitions: 21 `told`,
22 `step_laws`. What tells candidates apart: 23 `marks`, 24 `prompts`, 25 `retention`, 26 `wanted`, 27 `keeping`, and
what that promises: 28 `retention_laws`. What happens in time: 29 `in_time.in_flight`, 30 `in_time.forks`, 31
`in_time.outside`, 32 `in_time.explain`, 33 `in_time.time_laws`, 34 `in_time.liveness`, 35 `in_time.forgetting`, 36
`in_time.giving_up`, 37 `in_time.shortening`, 38 `in_time.folding`. What hits inside blocks need: 39 `unit_laws`. What
others are told: 40 `events`, 41 `metrics`, 42 `orders`, and 43 `adaptive`, an order. Last comes the list of all these
laws, 44 `laws`.
"""
