"""Vectors for managers in any language: what they are asked, what they must answer, and the state they must be in.

`calls` names the calls and answers, `scribe` and `tours` take vectors from the explored graph of a scope, `records` keeps
them as JSON lines, `judge` puts a manager through them, `wire` and `process` speak with one in a process of its own, and
`command` is ``blockwright vectors``. The formats are described in ``docs/vectors.md``.
"""
