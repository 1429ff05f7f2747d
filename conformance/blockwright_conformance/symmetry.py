"""Symmetry: states that differ only in the names of blocks and requests are one state.

Blocks are relabelled by their first appearance in the free queue and then in the tables: every block but the null block
is in one of them, so that no permutation is searched, and the number of states falls by exactly ``(N - 1)!`` for N
blocks. Requests are sorted by a signature that names no block. Two things are left out on purpose, because nothing that
can happen later depends on them: in which order blocks of *different* content were published, and what the settled
count says beyond which entries are dead.
"""

import marshal
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from blockwright_spec.reads import Prefix, needed
from blockwright_spec.state import Request, Running, State, Waiting, span

Form = tuple[Any, ...]
"""A state without names: nested tuples of integers."""

Mark = tuple[int, int, int]
"""What is known of a block: the number of its key (-1: none), its rank among equal keys, how far its content goes."""


class Names:
    """Gives prefixes small numbers, and states digests. Both compare only under one instance."""

    def __init__(self, canonical: Callable[[State, "Names"], Form] | None = None) -> None:
        self._canonical = canonical or form
        self._numbers: dict[Prefix, int] = {}

    def number(self, prefix: Prefix) -> int:
        """Give the number of a prefix."""
        numbers = self._numbers
        number = numbers.get(prefix)
        if number is None:
            number = numbers[prefix] = len(numbers)
        return number

    def digest(self, state: State) -> bytes:
        """Give 16 bytes that are equal for states that differ in names only; for others only by collision."""
        return blake2b(marshal.dumps(self._canonical(state, self), 2), digest_size=16).digest()


def marks_of(state: State, names: Names) -> list[Mark]:
    """Give what is known of each block."""
    marks = [(-1, 0, 0 if content is None else len(content[1])) for content in state.contents]
    seen: list[int] = []
    for block, prefix in state.keys:
        number = names.number(prefix)
        marks[block] = (number, seen.count(number), marks[block][2])
        seen.append(number)
    return marks


def signature(state: State, request: Request, names: Names, marks: list[Mark]) -> Form:
    """Give what a request looks like without the names of blocks; equal signatures leave the order open."""
    if isinstance(request, Running):
        trimmed = needed(state.config.kind, request.settled).start // span(state.config)
        counts = (trimmed, request.computed, request.written, request.published)
        blocks = tuple([marks[block] for block in request.table])
        return 2, names.number(request.prefix), counts, blocks, tuple([block == 0 for block in request.table])
    if isinstance(request, Waiting):
        return 1, names.number(request.prefix), (request.hit.length,), tuple([marks[b] for b in request.hit.blocks]), ()
    return (0,)


def form(state: State, names: Names) -> Form:
    """Give the canonical form of a state."""
    return relabelled(state, names, {})


def labelled_form(state: State, names: Names) -> Form:
    """Give the form that keeps the names of blocks, to count what relabelling saves."""
    return relabelled(state, names, {block: block for block in range(state.config.num_blocks)})


def relabelled(state: State, names: Names, labels: dict[int, int]) -> Form:
    """Give the form of a state under labels of blocks; those missing are given out by first appearance."""
    marks = marks_of(state, names)
    signed = [(signature(state, request, names, marks), request) for request in state.requests]
    signed.sort(key=lambda pair: pair[0])
    labels.setdefault(0, 0)
    tables: list[tuple[int, ...]] = []
    for block in state.queue:
        labels.setdefault(block, len(labels))
    for _, request in signed:
        if isinstance(request, Running):
            tables.append(tuple([labels.setdefault(block, len(labels)) for block in request.table]))
    for _, request in signed:
        if isinstance(request, Waiting):
            tables.append(tuple([labels[block] for block in request.hit.blocks]))
    ordered = [marks[block] for block in labels]
    return tuple([labels[b] for b in state.queue]), tuple(ordered), tuple([s for s, _ in signed]), tuple(tables)
