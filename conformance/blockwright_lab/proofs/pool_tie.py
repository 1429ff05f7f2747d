"""Ties the pool that is proved (`pool_model`) to the specification, on every state and step of small scopes.

A step of the specification is a sequence of the pool's transitions: what is released, adopted, taken, written and
published is read off its choices and the states around it, performed here on the pool's view of the state, and each
transition must then satisfy the very formulas of the proof, and the last pool be the view of the state that the
specification reached. Laws are compared too, over all small pools, sound or not.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

from blockwright_conformance.checker.explore import Explorer, Node
from blockwright_conformance.kv_cache.adapter import ManagerAdapter
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager import pool_laws
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import NULL, Absent, Config, Content, Fence, State, holders, initial
from blockwright_spec.reads import Full, Group

from .pool_model import TRANSITIONS, Algebra, Keys, Pool, laws

AnyNode = Node[State, ManagerAdapter]


@dataclass(frozen=True, slots=True)
class View:
    """What the pool is in a state: holders, queue, what is published in order, and contents, per block."""

    refs: tuple[int, ...]
    queue: tuple[int, ...]
    keys: tuple[tuple[int, Content], ...]
    contents: tuple[Content | None, ...]
    caching: bool

    def pool(self) -> Pool:
        at, known, listed = {b: i for i, b in enumerate(self.queue)}, frozenset(self.keys), dict(self.keys)
        return Pool(
            num_blocks=len(self.refs),
            caching=self.caching,
            nothing=None,
            ref=lambda b: self.refs[b],
            queued=lambda b: b in at,
            pos=lambda b: at.get(b, -1),
            published=lambda b, k: (b, k) in known,
            keyed=lambda b: b in listed,
            key=lambda b: listed.get(b),
            content=lambda b: self.contents[b],
        )


def view(state: State) -> View:
    """Return the pool of a state; entries that hold the null block are not counted."""
    refs = tuple(0 if block == NULL else holders(state, block) for block in range(state.config.num_blocks))
    return View(refs, state.queue, state.keys, state.contents, state.config.caching)


class Plain(Algebra):
    """Reads formulas over the blocks and contents of some pools, as Python does."""

    def __init__(self, *views: View) -> None:
        self.ids = range(len(views[0].refs))
        reported = [content for each in views for content in (*each.contents, *(key for _, key in each.keys))]
        self.kinds = list(dict.fromkeys([None, *reported]))


# ---------------------------------------------------------------------- laws


LAWS = {
    "REF-1": pool_laws.law_queue_holds_the_unheld,
    "QUEUE-1": pool_laws.law_queue_is_ordered,
    "NULL-1": pool_laws.law_null_is_nothing,
    "KEY-1": pool_laws.law_key_is_single,
    "PUB-1": pool_laws.law_key_is_content,
    "GHOST-1": pool_laws.law_free_is_findable_or_empty,
}
"""The specification's laws of the pool; PUB-1 says besides that a key ends where its block ends."""


def any_states() -> Iterator[State]:
    """Return all states of a pool of two blocks and the null block, sound or not, with contents of one token."""
    one, other = (0, (0, (0,))), (0, (0, (1,)))
    config = Config((Group(Full(), 1),), 3, 2)
    queues = [queue for count in range(4) for queue in permutations(range(3), count)] + [(1, 1), (2, 2, 1)]
    singles = ((0, one), (1, one), (1, other), (2, one))
    keys = [(), *((single,) for single in singles), ((1, one), (1, other)), ((1, one), (2, one))]
    contents = product((None, one), (None, one, other), (None, one))
    for queue, known, held, written in product(queues, keys, product(range(2), repeat=2), contents):
        table = tuple(block + 1 for block, count in enumerate(held) for _ in range(count))
        for caching in (True, False) if not any(written) else (True,):
            state = replace(initial(replace(config, caching=caching), 1), queue=queue, keys=known, contents=written)
            yield replace(state, fences=(Fence(None, 0, (table,)),), requests=(Absent(),))


def differing_laws() -> tuple[int, list[str]]:
    """Compare laws over all those states; return how many were compared, and where the two sides differ.

    The model has one place in the queue for each block, so that states that queue one twice are judged by the
    specification alone: there QUEUE-1 must not hold.
    """
    count, wrong = 0, []
    for state in any_states():
        seen = view(state)
        is_twice = len(set(state.queue)) < len(state.queue)
        said = laws(Plain(seen), seen.pool())
        for name, law in LAWS.items():
            expected = False if is_twice and name == "QUEUE-1" else bool(said[name])
            count += 1
            if law(state) != expected:
                wrong.append(f"{name}: {not expected} in the specification, {expected} in the model: {seen}")
    return count, wrong


# ---------------------------------------------------------------------- steps


Event = tuple[str, tuple[int, ...]]
"""A choice that the specification asked for: what was released, in order, or taken."""


def recording(events: list[Event]) -> Choice:
    """Return the policy's choice, noting what is released and taken."""

    def order(batch: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        events.append(("release", LRU.order(batch)))
        return events[-1][1]

    def take(queue: tuple[int, ...], count: int) -> tuple[int, ...]:
        events.append(("take", LRU.take(queue, count)))
        return events[-1][1]

    return Choice(take, order, LRU.serve)


def times(blocks: Counter[int]) -> Callable[[int], int]:
    """Return how often a block is named; the null block is not counted."""
    return lambda block: 0 if block == NULL else blocks[block]


def let_go(seen: View, blocks: tuple[int, ...]) -> tuple[View, Any]:
    """Release a batch in this order: the last of several holders counts."""
    less = times(Counter(blocks))
    refs = tuple(count - less(block) for block, count in enumerate(seen.refs))
    last = tuple(dict.fromkeys(blocks[::-1]))[::-1]
    freed = tuple(block for block in last if block != NULL and refs[block] == 0)
    known = dict(seen.keys)
    bare = tuple(block for block in freed if block not in known)
    queue = (*bare[::-1], *seen.queue, *(block for block in freed if block in known))
    contents = tuple(None if block in bare else content for block, content in enumerate(seen.contents))
    return replace(seen, refs=refs, queue=queue, contents=contents), less


def hold(seen: View, more: Counter[int]) -> tuple[View, Any]:
    count = times(more)
    refs = tuple(was + count(block) for block, was in enumerate(seen.refs))
    return replace(seen, refs=refs, queue=tuple(block for block in seen.queue if not count(block))), count


def drop(seen: View, more: Counter[int]) -> tuple[View, Any]:
    """Take candidates for so many holders; they lose key and content."""
    after, count = hold(seen, more)
    contents = tuple(None if count(block) else content for block, content in enumerate(seen.contents))
    return replace(after, contents=contents, keys=tuple(each for each in seen.keys if not count(each[0]))), count


Pieces = Iterator[tuple[str, View, View, Any]]
"""Transitions of the pool: their names, the pools before and after, and what they were told."""


def pieces(before: View, after: View, events: list[Event], first: str) -> Pieces:
    """Cut a step into transitions; publication comes before a release, or behind everything (`first`)."""
    gone = Counter(block for kind, blocks in events if kind == "release" for block in blocks if block != NULL)
    taken = tuple(block for kind, blocks in events if kind == "take" for block in blocks)
    known = frozenset(block for block, _ in before.keys)
    plus = Counter(
        {block: after.refs[block] - before.refs[block] + gone[block] for block in range(len(before.refs)) if block}
    )
    seen = before
    if not after.keys and before.keys and not events:
        yield "reset", seen, (seen := replace(seen, keys=(), contents=(None,) * len(seen.contents))), None
    if first == "publish":
        for piece in filled(seen, after, taken):
            yield piece
            seen = piece[2]
    for kind, blocks in events:
        if kind == "release":
            was, (seen, reported) = seen, let_go(seen, blocks)
            yield "release", was, seen, reported
    for name, chosen in (
        ("touch", [block for block in plus if block not in taken]),
        ("evict", [block for block in taken if block in known]),
        ("allocate", [block for block in taken if block not in known]),
    ):
        told_of = Counter({block: plus[block] for block in chosen})
        if any(told_of.values()):
            was, (seen, reported) = seen, (drop if name == "evict" else hold)(seen, told_of)
            yield name, was, seen, reported
    yield from filled(seen, after, taken)


def filled(seen: View, after: View, taken: tuple[int, ...]) -> Pieces:
    into = tuple(after.contents[block] if seen.refs[block] else content for block, content in enumerate(seen.contents))
    if into != seen.contents:
        was, seen = seen, replace(seen, contents=into)
        yield "write", was, seen, lambda block: into[block]
    new = dict(each for each in after.keys if each not in seen.keys)
    if new:
        was, seen = seen, replace(seen, keys=(*seen.keys, *new.items()))
        yield "publish", was, seen, Keys(lambda block: block in new, lambda block: new.get(block))


def faults(before: State, after: State, events: list[Event], counts: Counter[str]) -> list[str]:
    """Return where a step of the specification is no sequence of the pool's transitions."""
    one, other = view(before), view(after)
    tried = [fault_of(one, other, list(pieces(one, other, events, first))) for first in ("release", "publish")]
    for found, names in tried:
        if not found:
            counts.update(names)
            return []
    return [*tried[0][0], *tried[1][0]]


def fault_of(before: View, after: View, cut: list[tuple[str, View, View, Any]]) -> tuple[list[str], list[str]]:
    """Judge one way to cut a step; return what is wrong, and the transitions."""
    wrong = []
    for name, was, seen, reported in cut:
        q, s, t = Plain(was, seen), was.pool(), seen.pool()
        clauses = TRANSITIONS[name].guards(q, s, reported) | TRANSITIONS[name].effects(q, s, t, reported)
        wrong += [f"{name}: {clause} does not hold" for clause, holds in clauses.items() if not holds]
    last = cut[-1][2] if cut else before
    if (last.refs, last.queue, last.contents, last.caching) != (after.refs, after.queue, after.contents, after.caching):
        wrong.append(f"the step leads to {after}, the pool's transitions to {last}")
    if Counter(last.keys) != Counter(after.keys):
        wrong.append(f"the step publishes {after.keys}, the pool's transitions {last.keys}")
    return wrong, [name for name, _, _, _ in cut]


class Noting(KVCacheWorld):
    """A scope without its laws, in which is noted what is chosen in the last action."""

    step_laws = ()

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope, laws=())
        self.events: list[Event] = []

    def meaning(self, state: State, action: Any, choice: Any = None) -> ManagerOutcome:
        """Return what comes of an action, and note what is chosen."""
        self.events.clear()
        return super().meaning(state, action, recording(self.events))


class TiedExplorer(Explorer[State, ManagerAdapter]):
    """Explores the specification alone, and cuts every step into transitions of the pool."""

    def __init__(self, scope: Scope, max_transitions: int | None = None) -> None:
        super().__init__(Noting(scope), alone=True, max_transitions=max_transitions)
        self.counts: Counter[str] = Counter()

    def arrived(self, node: AnyNode, action: Any, outcome: Any, after: AnyNode) -> AnyNode | None:
        """Cut the steps; of several in one call, each has released and taken once."""
        noted = self.world.events  # type: ignore[attr-defined]
        states = [done.state for _, done in outcome.steps] or [outcome.state]
        share, before = len(noted) // len(states), node.state
        for at, state in enumerate(states if outcome.state is not node.state else ()):
            events = noted if len(states) == 1 else noted[at * share : (at + 1) * share]
            for fault in faults(before, state, events, self.counts):
                self.fail("POOL-0", fault, after.trail)
            before = state
        return super().arrived(node, action, outcome, after)
