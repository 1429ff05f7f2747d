"""The conformance kit of Blockwright: shows that a manager does what the specification says.

`explore` visits every reachable transition of small scopes in lock-step, `machine` and `walk` run long random histories
of large ones, `proofs` settles the arithmetic for all integers; `adapter` is what a manager must offer to be put
through them, and `command` is ``blockwright conform``.
"""
