"""Vectors for managers in any language: calls, expected answers, and expected states.

`calls` names the calls and answers; `paths` takes vectors from the explored graph of a scope, `records`
keeps them as JSON lines, and `judge` puts a manager through them; `wire` and `process` speak with a manager in another
process, and `serve` is such a process; `command` is ``blockwright vectors``. The formats are described in
``docs/reference/vectors.md``.
"""
