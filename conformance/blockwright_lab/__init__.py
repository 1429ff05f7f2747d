"""How the project checks its own checks: mutants of the implementation and of the specification.

It stands on the kit (`blockwright_conformance`), which never imports it.
"""
