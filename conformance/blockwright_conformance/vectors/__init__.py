"""Vectors for managers in any language: what they are asked, what they must answer, and the state they must be in.

`calls` names the calls and answers; `recorder` and `paths` take vectors from the explored graph of a scope, `records`
keeps them as JSON lines, and `judge` puts a manager through them; `wire` and `process` speak with a manager in a
process of its own, and `serve` is such a process; `command` is ``blockwright vectors``. The formats are described in
``docs/reference/vectors.md``.
"""
