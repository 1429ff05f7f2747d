"""The abstraction on states and answers altered by hand: what differs is named as it is, and nothing else is.

Lock-step of a manager that is right shows no difference, so that what names one is not at work there. These trials call
it with one thing altered at a time; they are as quick as they are short, and go before the scopes.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

from blockwright_conformance.block_tables.abstraction import expected as tables_expected
from blockwright_conformance.block_tables.abstraction import refused_wrong
from blockwright_conformance.block_tables.actions import TablesReply
from blockwright_conformance.block_tables.adapter import PagedObservation
from blockwright_conformance.block_tables.blockwright import BlockwrightTables
from blockwright_conformance.block_tables.world import TablesWorld
from blockwright_conformance.checker.lockstep import differing
from blockwright_conformance.checker.world import Outcome
from blockwright_conformance.kv_cache.abstraction import compared, differences, expected
from blockwright_conformance.kv_cache.adapter import Found, Observation, Served
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.lockstep import compare, misreported, refusals, replaced
from blockwright_conformance.kv_cache.outcome import ManagerOutcome, Reply, outcome_of
from blockwright_conformance.offload.tier_adapter import in_order
from blockwright_spec.block_tables.outcomes import PagedDone, PagedReason, PagedRefusal
from blockwright_spec.block_tables.state import Device, paged
from blockwright_spec.manager.outcomes import Done, Reason, Refusal
from blockwright_spec.manager.state import Hit, initial

from ..known_bugs import paged_places, places
from ..known_bugs.known_bug import Fault

ONE, OTHER = (0, (0, (1,))), (0, (0, (2,)))
"""Two contents."""

Case = tuple[str, object, object]
"""What is asked, the answer that is right, and the answer found."""


class StaleError(Exception):
    """What an adapter raises for a hit that is stale."""


class WrongError(Exception):
    """What it raises for other calls that are wrong."""


def judged(cases: Iterator[Case]) -> Iterator[Fault]:
    """Give the answers that are not right, and questions that cannot even be asked."""
    for number, (what, wanted, found) in enumerate(cases):
        if wanted != found:
            yield Fault("REF-0", f"{what}: expected {wanted}, found {found}", number + 1)


def altered_in(shown: Any, name: str, value: object) -> Any:
    """Give what is shown with another value of one field."""
    return shown._replace(**{name: value})


def managers_by_hand(_package: ModuleType) -> Iterator[Fault]:
    """Compare states and answers of managers altered by hand."""
    yield from judged(of_states())
    yield from judged(of_requests())
    yield from judged(of_refusals())
    yield from judged(of_answers())


def of_states() -> Iterator[Case]:
    """Alter one field of a state."""
    wanted = expected(initial(places.TIGHT.scope.config, 2))._replace(queue=(1, 2), references=(0, 1, 0))
    altered: dict[str, object] = {
        "tables": (((1,),), None),
        "queue": (2, 1),
        "references": (0, 0, 1),
        "keys": (ONE, None, None),
        "published": ((1,), None),
        "free": 17,
        "states": (((1,),), None),
        "settled": (4, None),
        "copies": ((0, 1, 2),),
        "evicted": ((1, ONE),),
    }
    yield "nothing altered", [], differences(wanted, wanted)
    for name, value in altered.items():
        shown, want = altered_in(wanted, name, value), getattr(wanted, name)
        if name == "references":
            want, value = want[1:], (0, 1)
        told = [f"{name}: expected {want}, found {value}"]
        yield f"{name} altered", told, differences(wanted, shown)
        yield f"{name} altered, in any order", [] if name == "queue" else told, differences(wanted, shown, False)
        if name != "tables":
            yield f"{name} not shown", [], differences(wanted, altered_in(wanted, name, None))
    two = wanted._replace(free=17, settled=(4, None))
    told = [f"free: expected {wanted.free}, found 17", f"settled: expected {wanted.settled}, found (4, None)"]
    yield "two altered", told, differences(wanted, two)
    counted = wanted._replace(references=(5, 1, 0))
    yield "holders of the null block", [], differences(wanted, counted)
    yield "queues in any order", (1, 2), compared(wanted._replace(queue=(2, 1)), False).queue
    yield "queues that are not shown", None, compared(wanted._replace(queue=None), False).queue


def of_requests() -> Iterator[Case]:
    """Show a manager whose answers are made by hand."""
    keys: list[bytes | None] = [None, b"one", b"two", None, b"one"]
    pool = SimpleNamespace(
        free_block_ids=lambda: [2, 1],
        ref_counts=lambda: [0, 1, 2],
        block_groups=lambda: [None, 1, None, 1, 0],
        block_keys=lambda: keys,
        get_num_free_blocks=lambda: 2,
        pending_copies=lambda: [(0, 1, 2)],
        tracks_evictions=False,
    )
    manager = SimpleNamespace(
        request_ids=lambda: ["r2", "r0"],
        block_pool=pool,
        get_block_ids=lambda name: ([int(name[1]), 7],),
        num_published=lambda name: (int(name[1]),),
        get_draft_block_ids=lambda name: ([int(name[1]) + 1],),
        num_settled=lambda name: int(name[1]) + 5,
    )
    adapter: Any = SimpleNamespace(
        manager=manager, shared=SimpleNamespace(prefixes={b"one": ONE[1], b"two": OTHER[1]}), overlaps=True
    )
    shown = Observation(
        (((0, 7),), None, ((2, 7),)),
        (2, 1),
        (0, 1, 2),
        (None, (1, ONE[1]), None, None, (0, ONE[1])),
        ((0,), None, (2,)),
        2,
        (((1,),), None, ((3,),)),
        (5, None, 7),
        ((0, 1, 2),),
    )
    names = ("r0", "r1", "r2")
    yield "shown", shown, BlockwrightAdapter.observe(adapter, names)
    adapter.overlaps = False
    yield "no steps kept apart", shown._replace(settled=(None,) * 3), BlockwrightAdapter.observe(adapter, names)
    manager.take_evictions = lambda: [SimpleNamespace(block_id=3, group=1, block_hash=b"two")]
    yield "evictions", ((3, (1, OTHER[1])),), BlockwrightAdapter.evicted(adapter)
    keys.pop()
    for asked, raised in ((names, ValueError), (("r1",), AssertionError)):
        try:
            BlockwrightAdapter.observe(adapter, asked)
        except (ValueError, AssertionError) as error:
            yield "fewer keys than blocks, or more requests than there are", raised, type(error)
        else:
            yield "fewer keys than blocks, or more requests than there are", raised, None


def told_of(reason: Reason | None, **rest: Any) -> ManagerOutcome:
    """Give what the specification tells: a refusal or none."""
    refusal = None if reason is None else Refusal(reason)
    return outcome_of(initial(places.TIGHT.scope.config, 2), rest.get("done", ()), refusal, rest.get("hit"))


def of_refusals() -> Iterator[Case]:
    """Accept, refuse, and call wrong what should be another thing."""
    adapter: Any = SimpleNamespace(stale=StaleError)
    done, short, never = told_of(None), told_of(Reason.NO_FREE_BLOCKS), told_of(Reason.POOL_TOO_SMALL)
    long, wrong, stale = told_of(Reason.TOO_LONG), told_of(Reason.NEGATIVE), told_of(Reason.HIT_STALE)
    accepted, refused, error, old = Reply(), Reply(True), Reply(error=WrongError("no")), Reply(error=StaleError("no"))
    able = [(done, accepted), (short, refused), (never, refused), (long, refused), (long, error), (wrong, error)]
    for told, reply in [*able, (stale, old), (wrong, old)]:
        yield f"{told.refusal}, {reply}", [], refusals(told, reply, adapter)
    for told, reply in ((wrong, accepted), (wrong, refused), (stale, accepted)):
        want = [f"refusal: accepted, or refused for now; the call is wrong: {told.refusal}"]
        yield f"{told.refusal}, {reply}", want, refusals(told, reply, adapter)
    for told in (done, short, never):
        want = [f"refusal: called wrong (WrongError: no); expected {told.refusal or 'success'}"]
        yield f"{told.refusal}, {error}", want, refusals(told, error, adapter)
    want = ["refusal: wrong error for a stale hit: WrongError: no"]
    yield "a stale hit, called wrong", want, refusals(stale, error, adapter)
    yield "refused", ["refusal: refused; expected success"], refusals(done, refused, adapter)
    for told in (short, never, long):
        want = [f"refusal: not refused; expected {told.refusal}"]
        yield f"{told.refusal}, accepted", want, refusals(told, accepted, adapter)


def of_answers() -> Iterator[Case]:
    """Alter what a call answers."""
    state = initial(places.TIGHT.scope.config, 2)
    names, shown = ("r0", "r1"), expected(state)
    adapter: Any = SimpleNamespace(stale=StaleError, follows_policy=True, observe=lambda _: shown)
    hit = Hit(2, ((1,),))
    one = Done(state, ((3,),), ((0,),), evicted=((1, ONE),))
    told = told_of(None, hit=hit, done=(one,))
    right = Reply(hit=Found(2, ((1,),)), served=(Served(((3,),), ((0,),), ()),))
    yield "right answers", [], compare(told, right, adapter, adapter.observe(names))
    yield "no lookup made", [], compare(replace(told, hit=None), right, adapter, adapter.observe(names))
    yield "no lookup told", [], compare(told, right._replace(hit=None), adapter, adapter.observe(names))
    for found in (Found(1, ((1,),)), Found(2, ((2,),))):
        want = [f"hit: expected 2 tokens in ((1,),), found {found}"]
        yield "another hit", want, compare(told, right._replace(hit=found), adapter, adapter.observe(names))
    for field, words, value in (("new", "new blocks", ((4,),)), ("nulled", "nulled entries", ((1,),))):
        served = altered_in(right.served[0], field, value)
        want = [f"{words}: expected {getattr(one, field)}, found {value}"]
        yield words, want, compare(told, right._replace(served=(served,)), adapter, adapter.observe(names))
    entries = ((0, 0, 5),)
    served = right.served[0]._replace(replaced=entries)
    want = [f"replaced entries: expected (), found {entries}"]
    yield "replaced entries", want, compare(told, right._replace(served=(served,)), adapter, adapter.observe(names))
    silent = right.served[0]._replace(nulled=None, replaced=None)
    yield (
        "entries that are not told",
        [],
        compare(told, right._replace(served=(silent,)), adapter, adapter.observe(names)),
    )
    yield (
        "a refusal",
        ["refusal: refused; expected success"],
        compare(told_of(None), Reply(True), adapter, adapter.observe(names)),
    )
    other: Any = SimpleNamespace(stale=StaleError, follows_policy=True, observe=lambda _: shown._replace(free=17))
    yield "another state", [f"free: expected {shown.free}, found 17"], compare(told, right, other, other.observe(names))
    telling: Any = SimpleNamespace(stale=StaleError, follows_policy=True, observe=lambda _: shown._replace(evicted=()))
    want = [f"evicted: expected {[(1, ONE)]}, found []"]
    yield "an eviction that is not told", want, compare(told, right, telling, telling.observe(names))
    yield from of_evictions(one)


def of_evictions(one: Done) -> Iterator[Case]:
    """Alter what is told of evictions."""
    two = Done(one.state, evicted=((2, OTHER),))
    both = outcome_of(one.state, (one, two))
    lost = ((1, ONE), (2, OTHER))
    yield "evictions", [], misreported(both, lost)
    for shown in ((), lost[:1], lost[1:], lost[::-1], (*lost, (3, ONE))):
        want = [f"evicted: expected {list(lost)}, found {list(shown)}"]
        yield f"evictions {shown}", want, misreported(both, shown)
    again = replace(one, state=replace(one.state, keys=((4, ONE),)))
    told = outcome_of(one.state, (again, two))
    yield "what is published again, told", [], misreported(told, lost)
    yield "what is published again, not told", [], misreported(told, lost[1:])
    want = [f"evicted: expected {list(lost)}, found {list(lost[:1])}"]
    yield "what is not published again, not told", want, misreported(told, lost[:1])
    want = [f"evicted: expected {list(lost)}, found {list(lost[1:])}"]
    same = outcome_of(one.state, (replace(one, state=replace(one.state, keys=((1, ONE),))), two))
    yield "what its own block carries again, not told", want, misreported(same, lost[1:])
    late = outcome_of(one.state, (one, replace(two, state=again.state)))
    yield "what a later step publishes again, not told", want, misreported(late, lost[1:])
    after = SimpleNamespace(copies=((0, 9, 9), (1, 4, 5), (3, 6, 7)))
    copying: Any = SimpleNamespace(copied=(None, 3, None, 1), state=after)
    yield "entries that a step copied", ((1, 3, 5), (3, 1, 7)), replaced(copying)


def tables_by_hand(_package: ModuleType) -> Iterator[Fault]:
    """Compare states and answers of block tables altered by hand."""
    yield from judged(of_tables())
    yield from judged(of_pools())


def of_tables() -> Iterator[Case]:
    """Alter what an allocator shows and answers."""
    scope: Any = paged_places.FORKS.scope
    state = paged(scope.config, 2)
    wanted = tables_expected(state)
    yield "nothing altered", [], differing(wanted, wanted)
    for name in ("references", "copies", "times"):
        shown = altered_in(wanted, name, ((7, 8),))
        want = [f"{name}: expected {getattr(wanted, name)}, found ((7, 8),)"]
        yield f"{name} altered", want, differing(wanted, shown)
    world: Any = TablesWorld(scope)

    def faults_of(outcome: Outcome[Any], reply: TablesReply, shown: PagedObservation) -> list[str]:
        return world.differences(None, None, outcome, reply, shown)  # type: ignore[no-any-return]

    done = Outcome(state, ((state, PagedDone(state)),))
    pairs = ((1, 2), (0, 3))
    moved = Outcome(state, ((state, PagedDone(state, ((5, 6),))), (state, PagedDone(state, pairs))))
    yield "right", [], faults_of(done, TablesReply(), wanted)
    yield "pairs in any order", [], faults_of(moved, TablesReply(pairs=pairs[::-1]), wanted)
    for found in ((), pairs[:1], ((2, 1), (0, 3))):
        want = [f"pairs: expected {pairs}, found {found}"]
        yield f"pairs {found}", want, faults_of(moved, TablesReply(pairs=found), wanted)
    other = wanted._replace(null=3)
    yield "another state", ["null: expected None, found 3"], faults_of(done, TablesReply(), other)
    ends = replace(state, copies=((0, 1), (0, 2)), null=3)
    yield "ends of copies, and the null block", (2, 1, 1, 1), tables_expected(ends).references
    yield from of_table_refusals(done)


def of_pools() -> Iterator[Case]:
    """Show two pools whose answers are made by hand: block 1 of the second has the absolute id 2."""
    near = pool_of(0, 2, [2], [0, 4, 0], [None, b"one", b"new"], {1: 5.5, 2: -1.0}, [(0, 1, 2)], {1: True, 2: False})
    far = pool_of(2, 1, [], [0, 2], [None, None], {3: 0.5}, [(0, 1, 1)], {3: False})
    adapter: Any = SimpleNamespace(
        allocator=SimpleNamespace(
            on=lambda device: SimpleNamespace(pool={Device.GPU: near, Device.CPU: far}[device]),
            has_null_block=True,
            allocate_or_get_null_block=lambda: SimpleNamespace(block_id=1),
        ),
        device=lambda device: device,
        digests=SimpleNamespace(prefixes={b"one": ONE[1]}),
        shown=lambda slots: ("shown",) * slots,
    )
    shown = PagedObservation(
        ("shown", "shown"),  # type: ignore[arg-type]
        frozenset([1]),
        (4, 0, 2),
        1,
        ((0, 1), (2, 2)),
        (ONE[1], (-1, ()), None),
        frozenset([1]),
        (1, 0, 0),
    )
    yield "pools", shown, BlockwrightTables.observe(adapter, 2)
    near.time_of, far.time_of = {1: 2.5, 2: 1.5}.__getitem__, {3: 1.0}.__getitem__
    adapter.allocator.has_null_block = False
    yield "no null block", shown._replace(null=None, times=(2, 1, 1)), BlockwrightTables.observe(adapter, 2)


def pool_of(
    first: int, total: int, free: list[int], held: list[int], keys: list[Any], times: Any, copies: Any, computed: Any
) -> Any:
    """Give a pool that answers so: per block, or per mark, which is the absolute id and one."""
    return SimpleNamespace(
        first_id=first,
        num_total=lambda: total,
        free_block_ids=lambda: free,
        ref_counts=lambda: held,
        block_keys=lambda: keys,
        pending_copies=lambda: copies,
        is_known=lambda mark: keys[mark - first] is not None,
        is_computed=computed.__getitem__,
        time_of=times.__getitem__,
    )


def of_table_refusals(done: Outcome[Any]) -> Iterator[Case]:
    """Accept and refuse what should be another thing."""
    model: Any = SimpleNamespace(short=StaleError)

    def refusal_faults(outcome: Outcome[Any], reply: TablesReply) -> list[str]:
        return list(refused_wrong(model, outcome, reply))

    def refusing(reason: PagedReason) -> Outcome[Any]:
        return Outcome(done.state, (), PagedRefusal(reason))

    wrong, short = refusing(PagedReason.NO_TOKENS), refusing(PagedReason.NO_FREE_BLOCKS)
    in_use = refusing(PagedReason.BLOCKS_IN_USE)
    accepted, refused = TablesReply(), TablesReply(True)
    error, few = TablesReply(error=WrongError("no")), TablesReply(error=StaleError("no"))
    for outcome, reply in ((done, accepted), (in_use, refused), (short, few), (wrong, error)):
        yield f"{outcome.refusal}, {reply}", [], refusal_faults(outcome, reply)
    for reply, name in ((error, "WrongError: no"), (few, "StaleError: no"), (refused, "NoneType: None")):
        yield name, [f"refused ({name}); expected success"], refusal_faults(done, reply)
    yield "reset", ["reset though blocks are in use"], refusal_faults(in_use, accepted)
    for outcome, reason in ((short, "NO_FREE_BLOCKS"), (wrong, "NO_TOKENS")):
        yield reason, [f"accepted; expected {reason}"], refusal_faults(outcome, accepted)
    want = ["expected NO_FREE_BLOCKS, found WrongError: no"]
    yield "wrong, not short", want, refusal_faults(short, error)
    yield "short, not wrong", ["expected NO_TOKENS, found StaleError: no"], refusal_faults(wrong, few)


def tiers_by_hand(_package: ModuleType) -> Iterator[Fault]:
    """Compare orders."""
    yield from judged(of_orders())


def of_orders() -> Iterator[Case]:
    """Give keys in an order."""
    yield "in order", (b"b", b"a"), in_order([b"b", b"a"], True)
    yield "in any order", (b"a", b"b"), in_order([b"b", b"a"], False)
