"""Part one, the manager: one pool of blocks, any number of groups of layers. It is two books.

Book one is what every manager does. It asks the chapters of book two where they may say more, and is read first: 1
`page`, 2 `chapters`, 3 `state`, 4 `facts`, 5 `seam`, 6 `choices`, 7 `lru`, 8 `keys`, 9 `room`, 10 `hits`, 11
`outcomes`, 12 `preconditions`, 13 `plans`, 14 `publication`, 15 `effects`, 16 `ending`, 17 `transitions`. What is
always true of it: 18 `pool_laws`, 19 `table_laws`.

Book two is the options, each known in its own chapter, and what listens to the steps of transitions: 20 `told`. How far
a request goes by itself, and hits that end inside blocks: 21 `marks`, 22 `tails`, 23 `units`, 24 `lease`, with the laws
of steps: 25 `step_laws`. What tells candidates apart: 26 `prompts`, 27 `retention`, 28 `wanted`, 29 `keeping`, and what
that promises: 30 `retention_laws`. What happens in time: 31 `in_time.in_flight`, 32 `in_time.forks`, 33
`in_time.outside`, 34 `in_time.explain`, 35 `in_time.time_laws`, 36 `in_time.liveness`, 37 `in_time.forgetting`, 38
`in_time.giving_up`, 39 `in_time.shortening`, 40 `in_time.folding`. What hits inside blocks need: 41 `unit_laws`. What
others are told: 42 `events`, 43 `metrics`, 44 `orders`, and 45 `adaptive`, an order. What changes the pool itself: 46
`resizing`. Last comes the list of all these laws, 47 `laws`.
"""
