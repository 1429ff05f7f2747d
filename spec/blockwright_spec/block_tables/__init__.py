"""Part two, block tables: tables that share blocks with copy-on-write, on two devices.

What they are and what calls do to them: 1 `state`, 2 `outcomes`, 3 `effects`, 4 `counts`, 5 `marks`, 6 `transitions`.
What is always true: 7 `laws` of states; 8 `step_laws`, of calls, which also lists them all.
"""
