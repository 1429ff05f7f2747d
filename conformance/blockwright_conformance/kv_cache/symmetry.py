"""Symmetry: states that differ only in the names of blocks and requests are one state.

Blocks are relabelled by their first appearance in the free queue and then in the tables: every block but the null block
is in one of them, so that no permutation is searched, and the number of states falls by exactly ``(N - 1)!`` for N
blocks. Requests are sorted by a signature that names no block; where signatures are equal, all orders are tried. Two
things are left out on purpose, because nothing that can happen later depends on them: in which order blocks of
*different* content were published, and, unless steps are given up, the settled count beyond its effect on dead entries
and on tokens that cannot be taken back.
"""

import marshal
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from itertools import permutations, product
from typing import Any

from blockwright_spec.hints import NOTHING_LEFT, UNSAID, Leaving, Mark, Wish
from blockwright_spec.manager.facts import certain, is_coming, owned, span
from blockwright_spec.manager.marks import memory_of, notes_of
from blockwright_spec.manager.state import Running, State, Waiting
from blockwright_spec.reads import Group, Prefix, dead, entries

Form = tuple[list[int], list[int], list[Any], list[list[int]], list[Any]]
"""A state without names: the queue, what is known of each block, requests, their tables, and what is in flight."""


ABSENT = (0,)


class Names:
    """Gives prefixes small numbers, and states digests. Both compare only under one instance.

    With `gives_up`, what is settled matters by itself: steps may be given up. Where a pool may be resized, it matters
    of a block which of its `ends` are before it.
    """

    def __init__(
        self,
        canonical: Callable[[Any, "Names"], Any] | None = None,
        gives_up: bool = False,
        ends: tuple[int, ...] = (),
    ) -> None:
        self._canonical = canonical or form
        self.gives_up, self.ends = gives_up, ends
        self._numbers: dict[Prefix, int] = {}

    def number(self, prefix: Prefix) -> int:
        return self._numbers.setdefault(prefix, len(self._numbers))

    def digest(self, state: Any) -> bytes:
        return blake2b(marshal.dumps(self._canonical(state, self), 2), digest_size=16).digest()


def marks_of(state: State, names: Names) -> list[int]:
    longest, blocks = state.config.max_model_len + 1, len(state.contents)
    marks = [0 if content is None else len(content[1][1]) for content in state.contents]
    numbers: list[int] = []
    groups = len(state.config.groups)
    several: dict[int, list[int]] = {}
    for block, (at, prefix) in state.keys:
        number = names.number(prefix) * groups + at
        several.setdefault(block, []).append(1 + numbers.count(number) + blocks * number)
        numbers.append(number)
    for block, facts in several.items():  # with units, a block may have several keys
        marks[block] += longest * (facts[0] if len(facts) == 1 else -names.number((-1, tuple(sorted(facts)))))
    marks = [mark * longest * blocks**2 + memory for mark, memory in zip(marks, remembered(state, names), strict=True)]
    ends = names.ends
    return [mark * (len(ends) + 1) + sum([block >= end for end in ends]) for block, mark in enumerate(marks)]


def remembered(state: State, names: Names) -> list[int]:
    """Return the hint for each block as a number; an expired hint is as none."""
    known = memory_of(state)
    if not known.marks:
        return [0] * len(state.contents)
    return [
        names.number((((mark.priority, mark.until - known.now) * (mark.until > known.now), *placed(mark)), ()))
        for mark in known.marks
    ]


def placed(mark: Mark) -> tuple[Any, ...]:
    """Return what is remembered of a block that no time ends."""
    return mark.first, mark.recent, mark.passing, mark.spared, mark.tip, mark.asked, mark.nexts


def signature(state: State, slot: int, names: Names, marks: list[int]) -> tuple[Any, ...]:
    """Return a request's signature without the names of blocks; equal signatures leave the order open."""
    request = state.requests[slot]
    if isinstance(request, Running):
        config = state.config
        trimmed = tuple([num_dead(each, span(config, each), request.trimmed) for each in config.groups])
        blocks = tuple([tuple([marks[block] if block else -1 for block in table]) for table in owned(request)])
        least = max(certain(request), request.settled)
        wish, wants = (notes := notes_of(request)).wish, notes.wants
        known = memory_of(state)
        counts = request.computed, request.written, request.uncertain, least
        more = (request.beside, request.coming, request.inside)
        said = (wish.tokens, wish.priority, wish.until - known.now, wish.first if wish.first is not None else -1)
        wanted, tails = (wants.lengths, wants.proven, wants.output), (notes.tails, notes.end_tails)
        lengths = wanted, tails, request.is_delayed, request.is_lost, request.is_inside, request.folded
        facts = trimmed, counts, more, request.published, slot in state.due, said if known.marks else (), lengths
        settled = request.settled if names.gives_up else -1
        return 2, names.number(request.prefix), *facts, blocks, timed(state, slot, request), settled
    loading = bool(state.batches) and is_coming(state, slot)
    if isinstance(request, Waiting):
        found = tuple([marks[block] for table in request.hit.tables for block in table])
        return 1, names.number(request.prefix), found, request.hit.junction, loading
    return (0, True) if loading else ABSENT


def num_dead(group: Group, size: int, length: int) -> int:
    return sum([dead(group.kind, size, length, entry) for entry in range(entries(size, length))])


def timed(state: State, slot: int, request: Running) -> tuple[Any, ...]:
    if not state.config.overlaps:
        return ()
    flights = [(at, each) for at, step in enumerate(state.flights) for each in step if each.slot == slot]
    return request.settled, tuple([(at, each.start, each.stop, each.uncertain) for at, each in flights])


def form(state: State, names: Names) -> Form:
    marks = marks_of(state, names)
    signed = sorted([(signature(state, slot, names, marks), slot) for slot in range(len(state.requests))])
    signatures = [signature for signature, _ in signed]
    labels = {0: 0}
    for block in state.queue:
        labels[block] = len(labels)
    slots = open_orders(signed)
    forms = [
        ordered(state, marks, signatures, order, labels.copy() if len(slots) > 1 else labels, names) for order in slots
    ]
    return forms[0] if len(forms) == 1 else min(forms)


def slot_form(state: State, names: Names, labels: dict[int, int] | None = None) -> Form:
    """Return the form with requests in their slots; blocks without labels get them in the order of the queue."""
    if labels is None:
        labels = {block: at + 1 for at, block in enumerate(state.queue)}
    marks = marks_of(state, names)
    signatures = [signature(state, slot, names, marks) for slot in range(len(state.requests))]
    return ordered(state, marks, signatures, list(range(len(signatures))), {0: 0} | labels, names)


def open_orders(signed: list[tuple[tuple[Any, ...], int]]) -> list[list[int]]:
    groups: list[list[int]] = []
    last: tuple[Any, ...] | None = None
    for signature, slot in signed:
        if signature == last and signature != ABSENT:
            groups[-1].append(slot)
        else:
            groups.append([slot])
        last = signature
    if len(groups) == len(signed):
        return [[slot for _, slot in signed]]
    return [[slot for part in parts for slot in part] for parts in product(*map(permutations, groups))]


def ordered(
    state: State,
    marks: list[int],
    signatures: list[tuple[Any, ...]],
    slots: list[int],
    labels: dict[int, int],
    names: Names,
) -> Form:
    requests = [state.requests[slot] for slot in slots]
    tables = [
        [labels.setdefault(block, len(labels)) for block in table]
        for request in requests
        if isinstance(request, Running)
        for table in owned(request)
    ]
    tables += [
        [labels.setdefault(block, len(labels)) for block in table]
        for request in requests
        if isinstance(request, Waiting)
        for table in request.hit.tables
    ]
    known = memory_of(state)
    time: list[Any] = [len(state.flights)] if state.config.overlaps else []
    for fence in state.batches:
        owner = slots.index(fence.slot) if fence.is_coming else -1
        blocks = [[labels.setdefault(block, len(labels)) for block in table] for table in fence.tables]
        wish = next((each for each in fence.said if isinstance(each, Wish)), UNSAID)
        left = next((each for each in fence.said if isinstance(each, Leaving)), NOTHING_LEFT)
        said = (fence.extra, wish.tokens, wish.priority, wish.until - known.now, wish.first or 0)
        parts = left.passing, left.prompt, left.output, left.asked
        leaving = [sorted([labels[block] for block in part]) for part in parts]
        time.append((-1 if fence.is_coming else fence.until, owner, blocks, (said, leaving) if known.marks else ()))
    time += [(group, *[labels.setdefault(block, len(labels)) for block in ends]) for group, *ends in state.copies]
    time += [slots.index(slot) for slot in state.due]
    times = Counter(state.pins)
    for block in sorted(times, key=lambda block: (marks[block], times[block])):
        labels.setdefault(block, len(labels))
    time += sorted([(labels[block], times[block]) for block in times])
    time += [state.config.num_blocks, known.share, *[names.number(prefix) for prefix in known.prompts]]
    return [labels[block] for block in state.queue], [marks[block] for block in labels], signatures, tables, time
