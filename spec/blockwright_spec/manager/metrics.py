"""Part one, chapter 44: metrics: events, counted in numbers that only grow.

An operator reads rates and shares of them, so a counter never falls, and the sources of prompt tokens add up to the
prompts. Each request counts once, when it is admitted: its lookup, and where the tokens of its prompt come from. If
tokens of it are loaded from elsewhere, their sources are known only when the load has ended, and what came of it
counts; a request that gives its load up computes the rest. A request that was admitted before (it was preempted, or its
load failed) counts apart, with all its known tokens: it often finds what it computed itself. A lookup of a request that
is refused counts nowhere, until the request is admitted. Whoever loads tokens has looked the request up elsewhere, for
all tokens after its hit, even if nobody said so.

Evicted tokens are those that can no longer be found. Groups hold parts of the same token, so they are counted by one
group: the first with full attention, if there is any. Parts of its blocks, which are found with units, do not count.
"""

from dataclasses import dataclass
from operator import add
from typing import NamedTuple

from ..reads import Full
from .chapters import Chapter
from .keys import end_of
from .outcomes import Done
from .state import Running, State
from .told import evicted


@dataclass(frozen=True, slots=True)
class Metrics(Chapter):
    """What happens is counted."""


@dataclass(frozen=True, slots=True)
class Life:
    """The facts that an engine knows of a request beside a manager's state.

    The tokens of its `prompt`; of its last lookup, and of its last lookup `elsewhere`, unless it was admitted since (0:
    none); and whether it `was_admitted` before.
    """

    prompt: int
    asked: int = 0
    elsewhere: int = 0
    was_admitted: bool = False


class Counts(NamedTuple):
    """Counts since the start: tokens, except `resumed` requests and `preemptions`.

    `local`, `external` and `computed` are the sources of prompts, and `again_local` and so on those of the readmitted.
    """

    queries: int = 0
    hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    local: int = 0
    external: int = 0
    computed: int = 0
    resumed: int = 0
    again_local: int = 0
    again_external: int = 0
    again_computed: int = 0
    preemptions: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """What a step was, as far as it is counted: the request that it admits, ends or preempts, or with a load that ends.

    Of a load that ends, `came` tokens came.
    """

    slot: int
    came: int = 0
    is_preemption: bool = False


def added(one: Counts, other: Counts) -> Counts:
    """Return the sum of two counts, number by number."""
    return Counts(*map(add, one, other))


def sources(known: int, hit: int, external: int, life: Life) -> Counts:
    """Count where the tokens of a request come from: no more than it has, those of the device first."""
    tokens = known if life.was_admitted else life.prompt
    local = min(hit, tokens)
    loaded = min(external, tokens - local)
    if life.was_admitted:
        return Counts(again_local=local, again_external=loaded, again_computed=tokens - local - loaded)
    return Counts(local=local, external=loaded, computed=tokens - local - loaded)


def admitted(request: Running, life: Life) -> Counts:
    """Count an admission; the sources of its tokens only if none is loaded."""
    hit, loading = request.settled, request.coming
    elsewhere = life.elsewhere or (len(request.prefix[1]) - hit if loading else 0)
    known = Counts() if loading else sources(len(request.prefix[1]), hit, 0, life)
    if life.was_admitted:
        return added(known, Counts(resumed=1))
    found = Counts(queries=life.asked, hits=hit if life.asked else 0)
    return added(added(known, found), Counts(external_queries=elsewhere, external_hits=min(loading, elsewhere)))


def counted(before: State, done: Done, call: Call | None, life: Life) -> Counts:
    """Count what happened in a step; `life` is what the engine knew of the request when it was last admitted."""
    groups = before.config.groups
    group = next((at for at, each in enumerate(groups) if isinstance(each.kind, Full)), 0)
    size = groups[group].block_size
    lost_contents = (content for _, content in evicted(before, done) if content[0] == group)
    whole = (content for content in lost_contents if end_of(before.config, content) % size == 0)
    lost = Counts(evicted=sum(size for _ in whole))
    if call is None:
        return lost
    old, new = before.requests[call.slot], done.state.requests[call.slot]
    if not isinstance(old, Running):
        return added(lost, admitted(new, life)) if isinstance(new, Running) else lost
    ended = sources(len(old.prefix[1]), old.written, call.came, life) if old.coming else Counts()
    return added(ended, Counts(preemptions=call.is_preemption))


def law_counts_are_what_happened(before: Counts, after: Counts, read: Counts, happened: Counts) -> bool:
    """MET-1: no count falls, each grows by exactly what happened, and the facts that are read come to the same."""
    rises = all(old <= new for old, new in zip(before, after, strict=True))
    return rises and after == added(before, happened) == added(before, read)
