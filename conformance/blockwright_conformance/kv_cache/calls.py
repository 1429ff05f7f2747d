"""The calls of an engine that one table describes: when a scope allows each, its meaning, and its method of an adapter.

Calls with options, and those that an engine makes in a row, are classes of their own (`requests`).
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

from blockwright_spec.hints import Wish
from blockwright_spec.manager import facts, resizing, retention, transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.facts import certain, held_tables, is_coming, key
from blockwright_spec.manager.in_time import folding, forgetting, forks, giving_up, outside, shortening
from blockwright_spec.manager.in_time import in_flight as flights
from blockwright_spec.manager.keeping import keeping_of
from blockwright_spec.manager.keys import stride
from blockwright_spec.manager.lease import lease
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.marks import memory_of, notes_of
from blockwright_spec.manager.outcomes import Done, Refusal
from blockwright_spec.manager.retention import floors_of
from blockwright_spec.manager.state import NULL, Absent, Running, State
from blockwright_spec.reads import Prefix

from ..checker.world import Arguments
from .adapter import EXTRAS, ManagerAdapter, Served
from .outcome import ManagerOutcome
from .parts import Reply, absent, computed_of, ends_of, is_untimely, name_of, named, running, sent, settled, waits_told
from .scopes import Scope, option


class Call(NamedTuple):
    """One call by its kind (`KINDS`); on a request, its slot is the first argument."""

    kind: str
    arguments: tuple[Any, ...] = ()

    @property
    def slot(self) -> int | None:
        return self.arguments[0] if KINDS[self.kind].has_slot else None

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        kind = KINDS[self.kind]
        return settled(state, kind.transition(state, *self.arguments, *((choice,) if kind.chooses else ())))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        kind, arguments = KINDS[self.kind], self.arguments
        if not isinstance(kind.method, str):
            return kind.method(adapter, state, *arguments) or Reply()
        getattr(adapter, kind.method)(*((name_of(arguments[0]), *arguments[1:]) if kind.has_slot else arguments))
        return Reply()


class Kind(NamedTuple):
    name: str
    guard: Callable[..., Arguments]
    """Yields the arguments that a scope allows in a state; for a call on a request, also of its slot and prefix."""
    transition: Callable[..., Done | Refusal]
    method: str | Callable[..., Reply | None]
    """The adapter's method with the same arguments, the request by its name; or a function of adapter and state."""
    has_slot: bool = False
    chooses: bool = False
    """The transition leaves something open, and takes a choice as its last argument."""
    word: str = ""
    """The call is made only in scopes with this word among their calls."""

    def allowed(self, scope: Scope, *where: Any) -> Iterator[Call]:
        for arguments in self.guard(scope, *where) if not self.word or self.word in scope.calls else ():
            yield Call(self.name, arguments)


def always(scope: Scope, state: State, *request: Any) -> Arguments:
    yield request[:1]


# ---- calls on the manager as a whole


def forget(scope: Scope, state: State) -> Arguments:
    """Yield the slots of requests that may be forgotten, and without a slot owners by their extra keys."""
    yield from ((slot, 0) for slot, each in enumerate(state.requests) if not isinstance(each, Absent))
    yield from ((None, extra) for extra in range(1, len(EXTRAS)) if extra in dict(scope.prompts))


def forgotten(state: State, slot: int | None, extra: int) -> Done | Refusal:
    if slot is not None:
        return forgetting.forget(state, slot)
    own = EXTRAS[extra].items()
    return forgetting.forget_extra(state, frozenset(at for at, other in enumerate(EXTRAS) if own <= other.items()))


def unlearn(adapter: Any, state: State, slot: int | None, extra: int) -> None:
    adapter.unlearn(None if slot is None else name_of(slot), extra)


def start(scope: Scope, state: State) -> Arguments:
    yield from [()] * ("start" in scope.calls)
    yield from [()] * (len(state.flights) < scope.in_flight)


def settle(scope: Scope, state: State) -> Arguments:
    """Yield how many drafts of which slots were rejected in the oldest step in flight."""
    misuses, untimely = "misuse" in scope.calls, is_untimely(scope)
    if not (scope.in_flight or (state.config.overlaps and misuses)):
        return
    if state.flights:
        drafted = [(flight.slot, flight.uncertain) for flight in state.flights[0] if flight.slot is not None]
        for counts in product(*(range(drafts + 1) for _, drafts in drafted)):
            pairs = zip(drafted, counts, strict=True)
            yield (tuple((slot, count) for (slot, _), count in pairs if count),)
        if misuses:
            yield (((0, dict(drafted).get(0, 0) + 1),),)
            if untimely:
                yield (((0, -1),),)
    elif untimely:
        yield ((),)


def with_names(method: str) -> Callable[..., None]:
    """Return the call of an adapter's method with pairs of slots and numbers, the requests by their names."""

    def named(adapter: ManagerAdapter, state: State, pairs: tuple[tuple[int, int], ...]) -> None:
        getattr(adapter, method)(tuple([(name_of(slot), number) for slot, number in pairs]))

    return named


def finish_load(scope: Scope, state: State) -> Arguments:
    """Yield the loads that may end, and how many of their tokens came."""
    for slot, request in enumerate(state.requests):
        if not is_coming(state, slot):
            yield from [(slot, 0)] * is_untimely(scope)
        elif isinstance(request, Running) and request.coming:
            yield from ((slot, count) for count in range(request.coming + 1 + ("misuse" in scope.calls)))
        else:
            yield slot, 0


def fork(scope: Scope, state: State) -> Arguments:
    """Yield parents, with the slot and the prefix of the child."""
    child, misuses = absent(state), "misuse" in scope.calls
    for slot, request in enumerate(state.requests):
        if child is not None and isinstance(request, Running):
            yield slot, child, request.prefix
            extra, tokens = request.prefix
            if "odd" in scope.calls:
                yield slot, child, (extra, (1 - tokens[0], *tokens[1:]))
                yield from ((slot, child, (extra, (*tokens[: request.computed], token))) for token in (0, 1))
            if misuses:
                yield slot, child, (extra, (*tokens[:-1], 1 - tokens[-1]))
                yield slot, slot, request.prefix
        elif isinstance(request, Absent) and misuses:
            yield slot, (slot + 1) % len(state.requests), (0, (0,))


def forked(state: State, slot: int, child: int, prefix: Prefix, choice: Choice) -> Done | Refusal:
    return forks.fork(sent(state, child, prefix), slot, child, choice)


def fork_sent(
    adapter: ManagerAdapter, state: State, slot: int, child: int, prefix: Prefix, method: str = "fork"
) -> Reply:
    """Fork a request to another, which is sent if it is not there, and dropped if refused."""
    one, name = state.requests[slot], named(adapter, state, slot, (0, (0,)))
    computed = computed_of(state, slot) if isinstance(one, Running) else 0
    try:
        reply = Reply(refused=not getattr(adapter, method)(name, name_of(child), prefix, computed))
    except adapter.errors as error:
        reply = Reply(error=error)
    if isinstance(state.requests[child], Absent) and (reply.refused or reply.error):
        adapter.forget(name_of(child))
    if isinstance(one, Absent):
        adapter.forget(name_of(slot))
    return reply


def parted(state: State, slot: int, child: int, prefix: Prefix, choice: Choice) -> Done | Refusal:
    after = sent(state, child, prefix)
    return forks.fork(after, slot, child, choice, forks.written_next(after, slot))


def part_sent(adapter: Any, state: State, slot: int, child: int, prefix: Prefix) -> Reply:
    """Do the same with copies, which are from what the parent goes on to write and are not to be made again."""
    reply = fork_sent(adapter, state, slot, child, prefix, "fork_with_copies")
    one, made = state.requests[slot], getattr(adapter, "copied", ())
    if isinstance(one, Running) and not (reply.refused or reply.error):
        wanted = [(at, one.tables[at][entry]) for at, entry in forks.written_next(state, slot)]
        if [(at, source) for at, pairs in enumerate(made) for source, _ in pairs] != wanted:
            raise AssertionError(f"FORK-1: expected copies from the groups and blocks {wanted}, found {made}")
    return reply


def copies_to_take(scope: Scope, state: State) -> Arguments:
    yield from [()] * bool(state.copies and ("fork" in scope.calls or stride(scope.config)))


def take_copies(adapter: ManagerAdapter, state: State) -> None:
    """Take the copies to come; others than the specification's are an error (COPY-1)."""
    groups = range(len(state.config.groups))
    wanted = tuple([tuple([copy[1:] for copy in state.copies if copy[0] == group]) for group in groups])
    copies = adapter.take_copies()
    if copies != wanted:
        raise AssertionError(f"COPY-1: expected the copies {wanted}, found {copies}")


def tick(scope: Scope, state: State) -> Arguments:
    wishes = tuple(notes_of(each).wish.until for each in state.requests if isinstance(each, Running))
    known = memory_of(state)
    if max((*wishes, *(mark.until for mark in known.marks))) > known.now:
        yield (known.now + 1,)
    if "misuse" in scope.calls:
        yield (known.now - 1,)


def may_hold(scope: Scope, state: State) -> bool:
    return len(state.pins) < scope.outside


def hold(scope: Scope, state: State) -> Arguments:
    if may_hold(scope, state):
        held = {block for table in held_tables(state) for block in table if block != NULL}
        found = {block for block in state.queue if key(state, block) is not None}
        yield from (((block,),) for block in sorted(held | found))
        if "misuse" in scope.calls:
            yield ((NULL,),)
            bare = [block for block in state.queue if block not in found]
            yield from (((*sorted(held)[:1], block),) for block in bare[:1])


def take(scope: Scope, state: State) -> Arguments:
    yield from [(1,)] * may_hold(scope, state)


def take_served(adapter: ManagerAdapter, state: State, count: int) -> Reply:
    taken = adapter.take(count)
    return Reply(refused=True) if taken is None else Reply(served=(Served((taken,)),))


def let_go(scope: Scope, state: State) -> Arguments:
    every = state.pins
    yield from dict.fromkeys((blocks,) for blocks in (*((block,) for block in every), every, every[::-1]) if blocks)
    if "misuse" in scope.calls:
        yield from (((*every, block),) for block in sorted({*every}))
        others = {block for table in held_tables(state) for block in table} - {NULL, *every}
        yield from (((block,),) for block in (*sorted(others), *state.queue[:1]))


def resize(scope: Scope, state: State) -> Arguments:
    most, least = len(state.contents), sum(floors_of(state.config).values()) + 2
    yield from ((end,) for end in ends_of(most) if least <= end != state.config.num_blocks)
    if "misuse" in scope.calls:
        yield from ((end,) for end in (-1, least - 1, most + 1))


def resize_told(adapter: Any, state: State, end: int) -> None:
    """Resize; who is said to hold blocks beyond the end is compared with the specification's (RESIZE-2)."""
    told, outcome = adapter.resize(end), resizing.resize(state, end)
    if isinstance(outcome, Done) and told != (wanted := waits_told(outcome.state)):
        raise AssertionError(f"RESIZE-2: expected blocks and requests {wanted}, found {told}")


# ---- calls on a request


def publish(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    """Yield publications: of all computed tokens, a block less, and known drafts that are accepted only now.

    Layers that run ahead are only told where a step ended: they leave no state between the ends of a step.

    That they cannot be taken back afterwards is seen where wrong steps are made.
    """
    request, size = running(state, slot), state.config.groups[0].block_size
    most = min(request.written, len(prefix[1]))
    yield slot, request.computed, True
    if "before" in scope.calls:
        yield slot, request.computed, False
    if request.computed > size and not facts.runs_ahead(state.config):
        yield slot, (request.computed - 1) // size * size, True
    if request.computed < most:
        yield slot, most, True
    if "odd" in scope.calls:
        yield from ((slot, end, True) for end in range(request.computed))
    if "misuse" in scope.calls:
        yield slot, min(max(request.written, lease(state, slot)), len(prefix[1])) + 1, True
        yield slot, -1, True


def publish_run(adapter: ManagerAdapter, state: State, slot: int, end: int, has_run: bool) -> None:
    (adapter.publish if has_run else adapter.publish_before)(name_of(slot), end)


def publish_each(scope: Scope, state: State) -> Arguments:
    """Yield pairs of slot and tokens: of all that run, in either order."""
    asks = tuple([(slot, each.computed) for slot, each in enumerate(state.requests) if isinstance(each, Running)])
    if len(asks) > 1:
        yield from ((asks,), (asks[::-1],))
        if "misuse" in scope.calls:
            yield from (((*asks, asks[0]),), ((*asks[:-1], (asks[-1][0], 2**20)),))


def count_on(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    """Yield the counts up to which a request goes on without a call, within its lease."""
    for count in range(running(state, slot).written + 1, min(lease(state, slot), len(prefix[1])) + 1):
        yield slot, count


def counted_on(state: State, slot: int, count: int) -> Done | Refusal:
    computed = running(state, slot).computed
    return transitions.grow(state, slot, computed, Step(count - computed), LRU)


def trim(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    request = running(state, slot)
    most = min(request.written, len(prefix[1]))
    yield slot, request.computed
    if request.computed < most:
        yield slot, most
    if "odd" in scope.calls:
        yield slot, request.settled
    if "misuse" in scope.calls:
        yield slot, -1
        if most < request.written:
            yield slot, request.written


def release(scope: Scope, state: State, slot: int, prefix: Prefix | None) -> Arguments:
    if prefix is not None or "misuse" in scope.calls:
        yield (slot,)


def end(adapter: ManagerAdapter, state: State, slot: int) -> None:
    adapter.free(named(adapter, state, slot, (0, (0,))))
    adapter.forget(name_of(slot))


def preempt_told(adapter: ManagerAdapter, state: State, slot: int) -> None:
    (getattr(adapter, "preempt", adapter.free) if is_counted(state) else adapter.free)(name_of(slot))


def is_counted(state: State) -> bool:
    """Return whether it matters that a request goes on later."""
    return option(state.config, "counts") or keeping_of(state.config) is not None


def abort(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    """Yield counts that do not cover the last step, and whether the request goes on later.

    One token is missing, the whole step, or the engine has set the count back to 0 already: not one that leaves calls
    out, since its count is all that is heard of them.
    """
    request = running(state, slot)
    for count in sorted({certain(request) - 1, request.settled, *((0,) if "lease" not in scope.calls else ())}):
        if 0 <= count < certain(request) <= len(prefix[1]):
            yield from ((slot, count, resumes) for resumes in (False, True)[: 1 + ("preempt" in scope.calls)])


def aborted(adapter: ManagerAdapter, state: State, slot: int, count: int, resumes: bool) -> None:
    name = name_of(slot)
    if resumes and is_counted(state):
        adapter.free_before(name, count, preempted=True)
    else:
        adapter.free_before(name, count)
    if not resumes:
        adapter.forget(name)


def shorten(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    """Yield where the last step of a request may end: before it, and at each token of it but the last."""
    request = running(state, slot)
    if request.settled < request.written and not request.coming:
        yield from ((slot, count) for count in range(request.settled, request.written))
    if "misuse" in scope.calls:
        yield from ((slot, request.written + 1), (slot, request.settled))


def shorten_named(adapter: Any, state: State, slot: int, count: int) -> None:
    adapter.shorten(name_of(slot), running(state, slot).settled, count)


def fold(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    """Yield how many tokens of a request are computed: all, and all but the last."""
    request = running(state, slot)
    yield from ((slot, count) for count in range(max(0, request.computed - 1), request.computed + 1))
    if "misuse" in scope.calls:
        yield from ((slot, -1), (slot, max(request.written, lease(state, slot)) + 1))


def fold_named(adapter: Any, state: State, slot: int, count: int) -> Reply:
    """Fold the duplicates of a request; what is told is compared with the specification's, which takes no block."""
    none = tuple([()] * len(state.config.groups))
    return Reply(served=(Served(none, None, adapter.fold(name_of(slot), count)),))


def is_told(scope: Scope, request: Running) -> bool:
    """Return whether there was a hint for a request; only some scopes give more than one."""
    return "odd" not in scope.calls and notes_of(request).wish != Wish()


def retain(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    """Yield how many first tokens are to be kept, with which priority, until when."""
    request, now = running(state, slot), memory_of(state).now
    if is_told(scope, request):
        return
    if notes_of(request).wish.priority == 0:
        yield slot, state.config.groups[0].block_size, 2, now + 1
        yield slot, len(prefix[1]), 1, now + 2
    if "misuse" in scope.calls:
        yield from ((slot, 1, 1, now), (slot, 1, 0, now + 1), (slot, -1, 1, now + 1))


def release_prefix(scope: Scope, state: State, slot: int, prefix: Prefix) -> Arguments:
    request = running(state, slot)
    if not is_told(scope, request):
        if notes_of(request).wish.first is None:
            yield slot, 0
        yield from [(slot, 1)] * ("odd" in scope.calls)
        yield from [(slot, -1)] * ("misuse" in scope.calls)


KINDS = {
    each.name: each
    for each in (
        Kind("Reset", always, transitions.reset, lambda adapter, _: Reply(refused=not adapter.reset()), word="reset"),
        Kind("Forget", forget, forgotten, unlearn, has_slot=True, word="forget"),
        Kind("ForgetAll", always, forgetting.forget_all, "unlearn_all", word="clear"),
        Kind("FinishLoad", finish_load, flights.finish_load, "finish_load", has_slot=True, chooses=True, word="load"),
        Kind("Fork", fork, forked, fork_sent, has_slot=True, chooses=True, word="fork"),
        Kind("ForkWithCopies", fork, parted, part_sent, has_slot=True, chooses=True, word="parted"),
        Kind("TakeCopies", copies_to_take, forks.take_copies, take_copies, chooses=True),
        Kind("Start", start, flights.begin, "start"),
        Kind("Settle", settle, flights.settle, with_names("settle"), chooses=True),
        Kind("Tick", tick, retention.advance, "advance_time", word="hint"),
        Kind("Hold", hold, outside.hold, "pin", word="outside"),
        Kind("Take", take, outside.take, take_served, chooses=True, word="outside"),
        Kind("LetGo", let_go, outside.let_go, "unpin", word="outside"),
        Kind("Resize", resize, resizing.resize, resize_told, word="resize"),
        Kind("CountOn", count_on, counted_on, "count_on", has_slot=True, word="lease"),
        Kind("Release", release, flights.release, end, has_slot=True, chooses=True),
        Kind("Trim", trim, transitions.trim, "trim", has_slot=True, chooses=True, word="trim"),
        Kind("Abort", abort, giving_up.abort, aborted, has_slot=True, chooses=True, word="abort"),
        Kind("Fold", fold, folding.fold, fold_named, has_slot=True, chooses=True, word="fold"),
        Kind("Shorten", shorten, shortening.shorten, shorten_named, has_slot=True, chooses=True, word="shorten"),
        Kind("Preempt", always, flights.preempt, preempt_told, has_slot=True, chooses=True, word="preempt"),
        Kind("Publish", publish, transitions.publish, publish_run, has_slot=True, word="later"),
        Kind("PublishEach", publish_each, transitions.publish_each, with_names("publish_each"), word="delayed"),
        Kind("Retain", retain, retention.retain, "retain", has_slot=True, word="hint"),
        Kind("ReleasePrefix", release_prefix, retention.release_prefix, "release_prefix", has_slot=True, word="hint"),
    )
}
