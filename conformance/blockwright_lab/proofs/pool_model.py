"""The pool of blocks as one formula for any number of blocks: its invariant and its transitions, written once.

A formula is read by an *algebra*: over all integers for the proofs (`pool_invariant`), over a few blocks for the
shortest counterexample, and as plain Python over the specification's own states and steps (`pool_tie`), so that what is
proved cannot drift from the specification.

A pool is what its blocks are: ``ref(b)`` holders, ``queued(b)`` and ``pos(b)``, whether and where a block stands in the
free queue, ``published(b, k)``, whether it is published as k, and ``content(b)``, the ghost; ``keyed(b)`` and
``key(b)`` repeat ``published`` as a function, where there is a key. Which of several free blocks is taken, and in what
order those of one batch are queued, is open.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

Formula = Any
"""A truth value, or a term."""

Clauses = dict[str, Formula]
"""Formulas by name, all of which hold."""


class Algebra:
    """How formulas are read; quantifiers range over blocks and contents one by one, unless a reader knows better."""

    ids: Sequence[Any]
    kinds: Sequence[Any]
    """All contents."""

    def blocks(self, said: Callable[..., Formula], count: int = 1) -> Formula:
        """State it of all blocks, of every pair if `count` is 2."""
        return self.both(*(said(*chosen) for chosen in product(self.ids, repeat=count)))

    def contents(self, said: Callable[[Any, Any], Formula]) -> Formula:
        """State it of all blocks and all contents."""
        return self.both(*(said(block, content) for block in self.ids for content in self.kinds))

    def twice(self, said: Callable[[Any, Any, Any], Formula]) -> Formula:
        """State it of all blocks and all pairs of contents."""
        return self.both(*(said(block, *pair) for block in self.ids for pair in product(self.kinds, repeat=2)))

    def both(self, *said: Formula) -> Formula:
        """State that all hold."""
        return all(said)

    def either(self, *said: Formula) -> Formula:
        """State that one holds."""
        return any(said)

    def no(self, said: Formula) -> Formula:
        """State that it does not hold."""
        return not said

    def pick(self, condition: Formula, then: Any, other: Any) -> Any:
        """Return one of two values."""
        return then if condition else other


class Pool(NamedTuple):
    """A state of the pool: see the module. `num_blocks` counts the null block, number 0; `nothing` is no content."""

    num_blocks: Any
    caching: Any
    nothing: Any
    ref: Callable[[Any], Any]
    queued: Callable[[Any], Any]
    pos: Callable[[Any], Any]
    published: Callable[[Any, Any], Any]
    keyed: Callable[[Any], Any]
    key: Callable[[Any], Any]
    content: Callable[[Any], Any]


def implies(q: Algebra, when: Formula, then: Formula) -> Formula:
    return q.either(q.no(when), then)


def real(q: Algebra, s: Pool, b: Any) -> Formula:
    """State that a number is that of a block, and not the null block's."""
    return q.both(b >= 1, b < s.num_blocks)


# ---------------------------------------------------------------------- the invariant


def laws(q: Algebra, s: Pool) -> Clauses:
    """Return the specification's laws of the pool, by their names."""
    return {
        "REF-1": q.blocks(lambda b: implies(q, real(q, s, b), s.queued(b) == (s.ref(b) == 0))),
        "QUEUE-1": q.both(
            q.blocks(lambda a, b: implies(q, q.both(s.queued(a), s.queued(b), a != b), s.pos(a) != s.pos(b)), 2),
            q.blocks(lambda a, b: implies(q, q.both(bare(q, s, a), candidate(q, s, b)), s.pos(a) < s.pos(b)), 2),
        ),
        "NULL-1": q.both(q.no(s.queued(0)), q.no(s.keyed(0)), s.content(0) == s.nothing),
        "KEY-1": q.both(
            q.twice(lambda b, k, m: implies(q, q.both(s.published(b, k), s.published(b, m)), k == m)),
            q.contents(lambda b, k: implies(q, s.published(b, k), s.caching)),
        ),
        "PUB-1": q.contents(
            lambda b, k: implies(q, s.published(b, k), q.both(s.content(b) == k, q.no(k == s.nothing)))
        ),
        "GHOST-1": q.blocks(lambda b: implies(q, bare(q, s, b), s.content(b) == s.nothing)),
    }


def rest(q: Algebra, s: Pool) -> Clauses:
    """Return what the invariant says beside the laws: counts are no debts, and what is no block is and has nothing."""
    return {
        "counts": q.blocks(lambda b: s.ref(b) >= 0),
        "ids": q.blocks(
            lambda b: implies(
                q, q.no(real(q, s, b)), q.both(s.ref(b) == 0, q.no(s.queued(b)), s.content(b) == s.nothing)
            )
        ),
        "published ids": q.contents(lambda b, k: implies(q, s.published(b, k), real(q, s, b))),
        "key of": q.both(
            q.blocks(lambda b: implies(q, s.keyed(b), s.published(b, s.key(b)))),
            q.contents(lambda b, k: implies(q, s.published(b, k), s.keyed(b))),
        ),
    }


def invariant(q: Algebra, s: Pool) -> Clauses:
    return laws(q, s) | rest(q, s)


def bare(q: Algebra, s: Pool, b: Any) -> Formula:
    """State that a block is free and published as nothing."""
    return q.both(s.queued(b), q.no(s.keyed(b)))


def candidate(q: Algebra, s: Pool, b: Any) -> Formula:
    """State that a block is free and could still serve a hit: a candidate for eviction."""
    return q.both(s.queued(b), s.keyed(b))


# ---------------------------------------------------------------------- transitions: guards, and what changes


class Transition(NamedTuple):
    """A transition: its guards, and its effects given the state before and after; both by name."""

    guards: Callable[[Algebra, Pool, Any], Clauses]
    effects: Callable[[Algebra, Pool, Pool, Any], Clauses]


def same_keys(q: Algebra, s: Pool, t: Pool) -> Clauses:
    """State that nothing is published or forgotten."""
    return {
        "keys": q.both(
            q.contents(lambda b, k: s.published(b, k) == t.published(b, k)),
            q.blocks(lambda b: q.both(s.keyed(b) == t.keyed(b), s.key(b) == t.key(b))),
        )
    }


def same_queue(q: Algebra, s: Pool, t: Pool) -> Clauses:
    """State that the queue stays, and who holds what."""
    return {"queue": q.blocks(lambda b: q.both(s.ref(b) == t.ref(b), s.queued(b) == t.queued(b)))} | same_order(q, s, t)


def same_order(q: Algebra, s: Pool, t: Pool) -> Clauses:
    """State that blocks queued before and after keep their order."""

    def kept(b: Any) -> Formula:
        return q.both(s.queued(b), t.queued(b))

    return {
        "order": q.blocks(
            lambda a, b: implies(q, q.both(kept(a), kept(b)), (s.pos(a) < s.pos(b)) == (t.pos(a) < t.pos(b))), 2
        )
    }


def same_contents(q: Algebra, s: Pool, t: Pool) -> Clauses:
    """State that no block's content changes."""
    return {"contents": q.blocks(lambda b: s.content(b) == t.content(b))}


def initial(q: Algebra, s: Pool) -> Clauses:
    """Return a new pool: every block but the null block free, and without content."""
    return {
        "initial": q.both(
            q.blocks(lambda b: q.both(s.ref(b) == 0, s.queued(b) == real(q, s, b), q.no(s.keyed(b)))),
            q.contents(lambda b, k: q.no(s.published(b, k))),
            q.blocks(lambda b: s.content(b) == s.nothing),
            q.blocks(lambda a, b: implies(q, q.both(s.queued(a), s.queued(b), a != b), s.pos(a) != s.pos(b)), 2),
        )
    }


def touching(q: Algebra, s: Pool, more: Any) -> Clauses:
    return {"blocks": q.blocks(lambda b: q.both(more(b) >= 0, implies(q, more(b) > 0, real(q, s, b))))}


def touched(q: Algebra, s: Pool, t: Pool, more: Any) -> Clauses:
    """Hold blocks `more(b)` times more; free ones leave the queue."""
    return {
        "held": q.blocks(lambda b: t.ref(b) == s.ref(b) + more(b)),
        "left": q.blocks(lambda b: t.queued(b) == q.both(s.queued(b), more(b) == 0)),
        **same_order(q, s, t),
        **same_keys(q, s, t),
        **same_contents(q, s, t),
    }


def releasing(q: Algebra, s: Pool, less: Any) -> Clauses:
    """Guard the release: no more than is held."""
    return {"held": q.blocks(lambda b: q.both(less(b) >= 0, less(b) <= s.ref(b)))}


def released(q: Algebra, s: Pool, t: Pool, less: Any) -> Clauses:
    """Give up `less(b)` holders; whom nobody holds now is queued: bare blocks at the head, candidates at the tail."""

    def freed(b: Any) -> Formula:
        return q.both(less(b) > 0, t.ref(b) == 0)

    def before(a: Any, b: Any) -> Formula:
        return t.pos(a) < t.pos(b)

    return {
        "let go": q.blocks(lambda b: t.ref(b) == s.ref(b) - less(b)),
        "queued": q.blocks(lambda b: t.queued(b) == q.either(s.queued(b), freed(b))),
        "distinct": q.blocks(
            lambda a, b: implies(q, q.both(t.queued(a), t.queued(b), a != b), t.pos(a) != t.pos(b)), 2
        ),
        "head": q.blocks(lambda a, b: implies(q, q.both(freed(a), q.no(s.keyed(a)), s.queued(b)), before(a, b)), 2),
        "tail": q.blocks(lambda a, b: implies(q, q.both(freed(a), s.keyed(a), s.queued(b)), before(b, a)), 2),
        "apart": q.blocks(
            lambda a, b: implies(q, q.both(freed(a), freed(b), q.no(s.keyed(a)), s.keyed(b)), before(a, b)), 2
        ),
        "forgotten": q.blocks(
            lambda b: t.content(b) == q.pick(q.both(freed(b), q.no(s.keyed(b))), s.nothing, s.content(b))
        ),
        **same_order(q, s, t),
        **same_keys(q, s, t),
    }


def taking(q: Algebra, s: Pool, holders: Any) -> Clauses:
    """Guard the taking of blocks: of free ones."""
    return {"free": q.blocks(lambda b: q.both(holders(b) >= 0, implies(q, holders(b) > 0, s.queued(b))))}


def allocating(q: Algebra, s: Pool, holders: Any) -> Clauses:
    """Guard the allocation of blocks without content."""
    bare_only = q.blocks(lambda b: implies(q, holders(b) > 0, q.no(s.keyed(b))))
    return {**taking(q, s, holders), "bare": bare_only}


def allocated(q: Algebra, s: Pool, t: Pool, holders: Any) -> Clauses:
    """Take bare blocks, each for `holders(b)` holders: the table, and a copy to come."""
    return touched(q, s, t, holders)


def evicted(q: Algebra, s: Pool, t: Pool, holders: Any) -> Clauses:
    """Take candidates: exactly their keys are dropped, and what they held is lost."""

    def taken(b: Any) -> Formula:
        return holders(b) > 0

    dropped = q.both(
        q.contents(lambda b, k: t.published(b, k) == q.both(s.published(b, k), q.no(taken(b)))),
        q.blocks(lambda b: t.keyed(b) == q.both(s.keyed(b), q.no(taken(b)))),
        q.blocks(lambda b: implies(q, t.keyed(b), t.key(b) == s.key(b))),
    )
    emptied = q.blocks(lambda b: t.content(b) == q.pick(taken(b), s.nothing, s.content(b)))
    return {**touched(q, s, t, holders), "keys": dropped, "contents": emptied}


def writing(q: Algebra, s: Pool, into: Any) -> Clauses:
    """Guard a step's writing: into blocks that are held and not published."""

    def changed(b: Any) -> Formula:
        return q.no(into(b) == s.content(b))

    return {
        "held": q.blocks(lambda b: implies(q, changed(b), s.ref(b) > 0)),
        "unpublished": q.blocks(lambda b: implies(q, changed(b), q.no(s.keyed(b)))),
    }


def written(q: Algebra, s: Pool, t: Pool, into: Any) -> Clauses:
    """Let each block hold `into(b)`."""
    contents = {"contents": q.blocks(lambda b: t.content(b) == into(b))}
    return {**same_queue(q, s, t), **same_keys(q, s, t), **contents}


class Keys(NamedTuple):
    """What is published: whether a block is, and as what."""

    fresh: Callable[[Any], Any]
    what: Callable[[Any], Any]


def publishing(q: Algebra, s: Pool, new: Keys) -> Clauses:
    """Guard publication: of blocks as what they hold, where anything is cached at all."""
    said = {
        "caching": lambda b: s.caching,
        "as it is": lambda b: q.both(s.content(b) == new.what(b), q.no(new.what(b) == s.nothing)),
    }
    return {name: q.blocks(lambda b, say=say: implies(q, new.fresh(b), say(b))) for name, say in said.items()}


def published(q: Algebra, s: Pool, t: Pool, new: Keys) -> Clauses:
    """Make blocks findable."""
    listed = q.both(
        q.contents(
            lambda b, k: t.published(b, k) == q.either(s.published(b, k), q.both(new.fresh(b), k == new.what(b)))
        ),
        q.blocks(lambda b: t.keyed(b) == q.either(s.keyed(b), new.fresh(b))),
        q.blocks(lambda b: t.key(b) == q.pick(new.fresh(b), new.what(b), s.key(b))),
    )
    return {**same_queue(q, s, t), **same_contents(q, s, t), "keys": listed}


def cleared(q: Algebra, s: Pool, t: Pool, nothing: Any) -> Clauses:
    """Forget all that is published."""
    gone = q.both(
        q.contents(lambda b, k: q.no(t.published(b, k))),
        q.blocks(lambda b: q.both(q.no(t.keyed(b)), t.content(b) == s.nothing)),
    )
    return {**same_queue(q, s, t), "keys": gone}


def step_laws(q: Algebra, s: Pool, t: Pool, name: str, reported: Any) -> Clauses:
    """Return the specification's law of steps about keys: what is taken loses its key, and nothing else does."""
    takes = name in ("allocate", "evict")

    def taken(b: Any) -> Formula:
        return q.both(takes, reported(b) > 0 if takes else False)

    def empty(b: Any) -> Formula:
        return q.both(q.no(t.keyed(b)), t.content(b) == t.nothing)

    def kept(b: Any, k: Any) -> Formula:
        return implies(q, q.both(s.published(b, k), q.no(taken(b))), t.published(b, k))

    if name == "reset":
        return {}
    return {"STEP-2": q.both(q.blocks(lambda b: implies(q, taken(b), empty(b))), q.contents(kept))}


TRANSITIONS: dict[str, Transition] = {
    "touch": Transition(touching, touched),
    "release": Transition(releasing, released),
    "allocate": Transition(allocating, allocated),
    "evict": Transition(taking, evicted),
    "write": Transition(writing, written),
    "publish": Transition(publishing, published),
    "reset": Transition(lambda q, s, nothing: {}, cleared),
}
"""Every transition of the pool, by name."""
