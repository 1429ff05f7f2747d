"""Part one, the manager: one pool of blocks, any number of groups of layers. It is two books.

Book one is what every manager does. It asks the chapters of book two where they may say more, and is read first: 1
`page`, 2 `chapters`, 3 `state`, 4 `facts`, 5 `seam`, 6 `choices`, 7 `lru`, 8 `keys`, 9 `room`, 10 `hits`, 11
`outcomes`, 12 `preconditions`, 13 `plans`, 14 `publication`, 15 `effects`, 16 `ending`, 17 `transitions`. What is
always true of it: 18 `pool_laws`, 19 `table_laws`.

Book two is the options, each known in its own chapter. What a step may ask for: 20 `demand`. What listens to the steps
of transitions: 21 `told`. How far a request goes by itself, and hits that end inside blocks: 22 `marks`, 23 `tails`, 24
`units`, 25 `lease`, with the laws of steps: 26 `step_laws`. What tells candidates apart: 27 `prompts`, 28 `retention`,
29 `wanted`, 30 `keeping`, and what that promises: 31 `retention_laws`. What happens in time: 32 `in_time.in_flight`, 33
`in_time.forks`, 34 `in_time.outside`, 35 `in_time.explain`, 36 `in_time.time_laws`, 37 `in_time.liveness`, 38
`in_time.forgetting`, 39 `in_time.giving_up`, 40 `in_time.shortening`, 41 `in_time.folding`. What hits inside blocks
need: 42 `unit_laws`. What others are told: 43 `events`, 44 `metrics`, 45 `orders`, and 46 `adaptive`, an order. What
changes the pool itself: 47 `resizing`. Last comes the list of all these laws, 48 `laws`.
"""
