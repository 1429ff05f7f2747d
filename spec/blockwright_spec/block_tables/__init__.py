"""Part two, block tables: tables that share blocks with copy-on-write, on two devices.

Their state, and the effects of calls on them: 1 `state`, 2 `outcomes`, 3 `effects`, 4 `counts`, 5 `marks`, 6
`transitions`. The invariants: 7 `laws` of states; 8 `step_laws`, of calls, which also lists them all.
"""
