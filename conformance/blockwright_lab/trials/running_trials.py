"""Trials of running requests: what they are refused, promised and told, by short histories with a known answer.

REFUSE-2  a wrong call is refused by the check that it is meant for, in its words, and changes nothing
PLAN-1    a plan fits exactly if the call does, and `Never` means that an idle pool would refuse it as well
WRITE-2   only what another table holds is copied, not what is held outside of tables
COPY-3    a copy of a manager publishes what its own requests know
CHECK-1   a broken state is noticed, with both sides told
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import MAX_LENGTH, manager_of, shape_of, spec_of
from .check_trials import table

Told = tuple[str, Any, Callable[[], object], str]
"""What a call is, the manager it goes to, the call, and how its error begins; nothing if it is right."""


def raised(package: ModuleType, call: Callable[[], object]) -> str:
    """Make a call; give its error's type and words, nothing if there is none."""
    try:
        call()
    except package.errors.BlockwrightError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def running_refusals(package: ModuleType) -> Iterator[Fault]:
    """Give each call that is refused in other words than its own, or though it is right (REFUSE-2)."""
    for make in (while_loading, of_drafts, of_steps, of_hits, of_keys, of_lengths):
        rearm()
        for what, manager, call, wanted in make(package):
            before = shape_of(manager)
            found = raised(package, call)
            manager.check()
            if not found.startswith(wanted) or bool(found) != bool(wanted):
                yield Fault("REFUSE-2", f"{what}: expected {wanted or 'no error'}, found {found or 'none'}", 1)
            elif wanted and shape_of(manager) != before:
                yield Fault("REFUSE-2", f"{what}: refused, and something changed", 1)


def while_loading(package: ModuleType) -> Iterator[Told]:
    """Use a request while its only token to load is on its way, and after."""
    for overlaps in (False, True):
        manager = manager_of(package, "full", 4, 9, overlap_steps=overlaps)
        request = package.Request("r", [0] * 6, 4)
        manager.start_step() if overlaps else None
        manager.allocate_slots(request, 0, num_external_computed_tokens=1)
        give = partial(manager.allocate_slots, request, 1)
        loading = "InvalidArgumentError: request: 1 tokens of 'r' are being loaded"
        yield "a step of a request that loads", manager, give, loading
        fork = partial(manager.fork, request, request.fork("c"))
        yield "a fork of one", manager, fork, "InvalidArgumentError: parent: tokens of 'r' are being loaded"
        manager.finish_load(request, 1)
        request.num_computed_tokens = 1
        yield "its first step, the manager's first", manager, give, ""
        manager.settle_step(1) if overlaps else None
        request.num_computed_tokens = 2
        child = request.fork("c")
        yield "a fork after the load", manager, partial(manager.fork, request, child), ""
        nothing = "UnknownStepError: request: nothing is being loaded for 'c'"
        yield "the end of no load", manager, partial(manager.finish_load, child, 0), nothing


def of_drafts(package: ModuleType) -> Iterator[Told]:
    """Go on from drafts of a recurrent layer before it is known which hold, and after."""
    for is_known in (True, False):
        manager = manager_of(package, "mamba +1", 1, 20, overlap_steps=True)
        request = package.Request("r", [0] * 2, 1)
        manager.start_step()
        manager.allocate_slots(request, 3, num_draft_tokens=1)
        request.num_computed_tokens = 3
        request.append_output_token_ids([0]) if is_known else None
        manager.start_step()
        give = partial(manager.allocate_slots, request, 1)
        unknown = "InvalidArgumentError: request: a recurrent layer of 'r' must know which of 1 drafts hold"
        yield "drafts in flight", manager, give, unknown
        manager.settle_step(1)
        yield f"settled drafts, of which the tokens are known: {is_known}", manager, give, "" if is_known else unknown
    manager = manager_of(package, "mamba +1", 1, 20, overlap_steps=True)
    request = package.Request("r", [0] * 2, 1)
    for new, drafts in ((2, 0), (2, 1)):
        manager.start_step()
        manager.allocate_slots(request, new, num_draft_tokens=drafts)
        request.num_computed_tokens += new
    manager.settle_step(1)
    manager.settle_step(2, {"r": 1})
    request.num_computed_tokens = 3
    manager.start_step()
    yield "a step after the only draft was rejected", manager, partial(manager.allocate_slots, request, 1), ""
    manager = manager_of(package, "mamba +1", 1, 20)
    request = package.Request("r", [0] * 2, 1)
    give = partial(manager.allocate_slots, request, 3, num_draft_tokens=1, num_lookahead_tokens=2)
    yield "too many lookahead tokens", manager, give, "InvalidArgumentError: num_lookahead_tokens: a recurrent layer"
    manager.allocate_slots(request, 3, num_draft_tokens=1)
    request.num_computed_tokens = 2
    for name in ("first", "second"):
        fork = partial(manager.fork, request, request.fork(name))
        yield f"the {name} fork after a rejected draft", manager, fork, ""


def of_steps(package: ModuleType) -> Iterator[Told]:
    """Settle steps out of order, go on without one, and fork what a step computes."""
    manager = manager_of(package, "full", 4, 9, overlap_steps=True)
    request = package.Request("r", [0] * 8, 4)
    manager.start_step()
    manager.allocate_slots(request, 1)
    request.num_computed_tokens = 1
    manager.settle_step(1)
    manager.start_step()
    manager.settle_step(2)
    give = partial(manager.allocate_slots, request, 1)
    yield "slots while no step is open", manager, give, "UnknownStepError: allocate_slots: no step has been started"
    numbers = [manager.start_step(), manager.start_step()]
    if numbers != [3, 4] or manager.steps_in_flight != [3, 4]:
        yield f"steps {numbers}, in flight {manager.steps_in_flight}", manager, int, "the third and the fourth step"
    order = "UnknownStepError: step: 4 is not the oldest step in flight; the oldest is 3"
    yield "a younger step settled", manager, partial(manager.settle_step, 4), order
    manager.settle_step(3)
    give()
    request.num_computed_tokens = 2
    manager.start_step()
    fork = partial(manager.fork, request, request.fork("c"))
    yield "a fork before the older step", manager, fork, "UnknownStepError: parent: a step in flight computes tokens"


def of_hits(package: ModuleType) -> Iterator[Told]:
    """Adopt what is no hit of the manager, or too late."""
    manager, other = manager_of(package, "full"), manager_of(package, "full")
    for each in (manager, other):
        first = package.Request("first", [0] * 2, 1)
        each.allocate_slots(first, 2)
        each.free(first)
    fresh, late = package.Request("new", [0] * 5, 1), package.Request("late", [0] * 5, 1)
    (hit, length), (theirs, _) = manager.get_computed_blocks(fresh), other.get_computed_blocks(fresh)
    give = manager.allocate_slots
    foreign = "StaleHitError: new_computed_blocks: the hit is another manager's"
    yield "another's hit of no tokens", manager, partial(give, fresh, 1, 0, theirs), foreign
    none = type(hit)(manager.block_pool, [])
    groups = "StaleHitError: new_computed_blocks: 0 groups, the manager has 1"
    yield "a hit of no groups", manager, partial(give, fresh, 1, 0, none), groups
    late.num_computed_tokens = 1
    begun = "InvalidArgumentError: num_computed_tokens: must be 0 before a hit is adopted, not 1"
    yield "a hit of a request that has begun", manager, partial(give, late, 1, length, hit), begun
    manager = manager_of(package, "full", enable_caching=False)
    manager.allocate_slots(package.Request("first", [0] * 2, 1), 2)
    blocks = manager.get_blocks("first")
    uncached = "InvalidArgumentError: new_computed_blocks: the manager was made without enable_caching"
    yield "adopted, uncached", manager, partial(manager.allocate_slots, fresh, 1, 2, blocks), uncached


def of_keys(package: ModuleType) -> Iterator[Told]:
    """Run and fork requests whose keys will not do, where keys are needed and where not."""
    weak = package.FunctionHasher(lambda parent, block: bytes([sum(parent) % 251, sum(block) % 251]) * 8)
    refused = "InvalidArgumentError: request: the hasher of 'c' is not collision resistant"
    for caching, size, sizes, wanted in (
        (False, 2, (3, 3), ""),
        (True, 1, (None, None), ""),
        (True, 1, (None, 1), refused),
    ):
        manager = manager_of(package, "full", size, enable_caching=caching)
        parent, child = (
            package.Request(name, [0] * 4, each, hasher=weak) for name, each in zip("rc", sizes, strict=True)
        )
        what = f"blocks of {size}, caching {caching}, requests of {sizes}"
        yield what, manager, partial(manager.allocate_slots, parent, 3), ""
        parent.num_computed_tokens = child.num_computed_tokens = 3
        yield f"{what}, forked", manager, partial(manager.fork, parent, child), wanted


def of_lengths(package: ModuleType) -> Iterator[Told]:
    """Go beyond the longest request where its last block has room for more tokens."""
    for size, caching, at_once in product((3, 5, 6, 7), (False, True), (False, True)):
        manager = manager_of(package, "full", size, enable_caching=caching)
        request = package.Request("r", [0] * MAX_LENGTH, size)
        manager.allocate_slots(request, MAX_LENGTH)
        request.num_computed_tokens = MAX_LENGTH
        request.append_output_token_ids([0])
        give = partial(manager.allocate_slots_batch, [request]) if at_once else partial(manager.allocate_slots, request)
        long = "InvalidArgumentError: num_new_tokens: request 'r' would have 9 tokens, max_model_len is 8"
        yield f"blocks of {size}, caching {caching}, in a batch {at_once}", manager, partial(give, 1), long


# --- promises


def running_plans(package: ModuleType) -> Iterator[Fault]:
    """Plan new requests beside one that runs, after a hit or not; and steps where groups differ in size (PLAN-1)."""
    for length, cached, held, whole, at_once in product(range(1, 8), (0, 2), (0, 1, 2), (False, True), (False, True)):
        manager = manager_of(package, "full", 1, 6)
        first = package.Request("first", [0] * 2, 1)
        manager.allocate_slots(first, 2)
        manager.free(first)
        if held:
            manager.allocate_slots(package.Request("other", [1] * held, 1), held)
        request = package.Request("r", [0] * length, 1)
        hit, found = manager.get_computed_blocks(request) if cached else (None, 0)
        new, free = length - found if at_once else 1, manager.block_pool.get_num_free_blocks()
        wanted = length if whole else found + new
        says = "Fits" if wanted <= free else "NotNow" if wanted <= 5 else "Never"
        plan = manager.plan(request, new, found, hit, full_sequence_must_fit=whole)
        given = manager.allocate_slots(request, new, found, hit, full_sequence_must_fit=whole)
        if type(plan).__name__ != says or (given is None) != (says != "Fits"):
            what = f"{new} of {length} tokens after a hit of {found}, {free} of 5 blocks free, whole {whole}"
            yield Fault("PLAN-1", f"{what}: {plan} and {given}, expected {says}", 1)
    for num_blocks in range(4, 13):
        specs = [spec_of(package, "full", size) for size in (1, 8)]
        groups = [package.KVCacheGroupSpec([f"layer {at}"], spec) for at, spec in enumerate(specs)]
        config = package.KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=groups)
        manager = package.KVCacheManager(config, max_model_len=8)
        request = package.Request("r", [0] * 8, 1)
        manager.allocate_slots(request, 1)
        request.num_computed_tokens = 1
        free = manager.block_pool.get_num_free_blocks()
        if (manager.allocate_slots(request, 7) is None) != (free < 7):
            yield Fault("PLAN-1", f"7 blocks of {free} that are free, groups of blocks of 1 and 8", 1)


def running_pins(package: ModuleType) -> Iterator[Fault]:
    """Hold the block that a request writes outside of tables, before and after it was forked (WRITE-2)."""
    for forked in (False, True):
        manager = manager_of(package, "full", 4)
        request = package.Request("r", [0] * 6, 4)
        manager.allocate_slots(request, 1)
        request.num_computed_tokens = 1
        if forked:
            child = request.fork("c")
            given = manager.fork(request, child)
            shared = given.get_block_ids()
            for each in (child, request):
                manager.allocate_slots(each, 1)
                each.num_computed_tokens = 2
            manager.take_copies()
            if given.get_block_ids() != shared:
                yield Fault("WRITE-2", f"blocks {shared} that a fork gave are {given.get_block_ids()} after a step", 2)
        (blocks,) = manager.get_block_ids("r")
        manager.block_pool.touch(blocks)
        plan = manager.plan(request, 1)
        if plan.num_blocks != 0:
            yield Fault("WRITE-2", f"{plan} for a step within a block, forked before: {forked}", 1)
        manager.commit(plan)
        if manager.get_block_ids("r") != (blocks,) or manager.take_copies() != [[]]:
            yield Fault("WRITE-2", f"a block that no other table holds is copied, forked before: {forked}", 1)
        manager.check(dict.fromkeys(blocks, 1))


# --- what is told


def running_facts(package: ModuleType) -> Iterator[Fault]:
    """Give what is published, nulled or read otherwise than it should be at the end of a short history."""
    for make in (known_to_copies, published, nulled, states):
        rearm()
        for law, what, found, wanted in make(package):
            if found != wanted:
                yield Fault(law, f"{what}: expected {wanted}, found {found}", 1)


Fact = tuple[str, str, object, object]
"""A law, what is asked, what was found, and what is wanted."""


def known_to_copies(package: ModuleType) -> Iterator[Fact]:
    """Copy a manager that publishes on settlement; then one token more is known to the original, or to the copy."""
    for named in (False, True):
        manager = manager_of(package, "full", overlap_steps=True, publish_on_settlement=True)
        request = package.Request("r", [0], 1)
        for _ in range(2):
            manager.start_step()
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        twin, its = manager.copy(), request.copy()
        if named:
            twin.get_state_block_ids(its)
        (its if named else request).append_output_token_ids([0])
        for step in (1, 2):
            twin.settle_step(step)
        yield "COPY-3", f"published by a copy, its request named {named}", twin.num_published("r"), (1 + named,)


def published(package: ModuleType) -> Iterator[Fact]:
    """Settle without caching; and end a load half-way where one group keeps states, which are worth nothing then."""
    manager = manager_of(package, "full", enable_caching=False, overlap_steps=True, publish_on_settlement=True)
    manager.start_step()
    manager.allocate_slots(package.Request("r", [0] * 2, 1), 1)
    manager.settle_step(1)
    yield "PUB-1", "published on settlement, uncached", manager.num_published("r"), (0,)
    manager = manager_of(package, "full, mamba")
    request = package.Request("r", [0] * 4, 1)
    manager.allocate_slots(request, 0, num_external_computed_tokens=2)
    yield "LOAD-1", "a load of which half came", manager.finish_load(request, 1), False
    found = [group for group in manager.block_pool.block_groups() if group is not None]
    yield "LOAD-1", "groups of what is published after it", found, [0]


def nulled(package: ModuleType) -> Iterator[Fact]:
    """Take a batch after a load whose first blocks were given back: it tells what itself gave back."""
    manager = manager_of(package, "sliding")
    request = package.Request("r", [0] * 6, 1)
    manager.allocate_slots(request, 0, num_external_computed_tokens=4)
    manager.finish_load(request, 4)
    request.num_computed_tokens = 4
    done = manager.allocate_slots_batch([request], 1)
    yield "BATCH-1", "nulled entries", (list(done.nulled_entries), list(done.nulled_offsets)), ([], [0, 0])


def states(package: ModuleType) -> Iterator[Fact]:
    """Ask which block has the state that a step begins from, while it runs, and after it was given back."""
    manager = manager_of(package, "mamba +1", 1, 20)
    request = package.Request("r", [0] * 2, 1)
    for new, drafts in ((2, 0), (2, 1)):
        manager.allocate_slots(request, new, num_draft_tokens=drafts)
        request.num_computed_tokens += new
        request.append_output_token_ids([0] * new if drafts else [0])
    (drafted,) = manager.get_draft_block_ids("r")
    yield "MAMBA-3", "state of an accepted draft", manager.get_state_block_ids(request), drafted
    manager.allocate_slots(request, 1)
    yield "MAMBA-3", "the same during the next step", manager.get_state_block_ids(request), drafted
    manager = manager_of(package, "mamba", 1, 20)
    request = package.Request("r", [0] * 4, 1)
    manager.allocate_slots(request, 3)
    request.num_computed_tokens = 3
    manager.allocate_slots(request, 1)
    manager.remove_skipped_blocks(request, 4)
    yield "TRIM-1", "a state that was given back", manager.get_state_block_ids(request), [0]


# --- the self-check


def share_first(manager: Any) -> None:
    """Have "b" hold the first block of "a"; every counter agrees."""
    first, second = (table(manager, name).blocks for name in "ab")
    manager.block_pool.touch_entries(first[:1])
    manager.block_pool.release(second, 0, 1)
    second[0] = first[0]


def cut(manager: Any) -> None:
    """Take the last block of "a"; every counter agrees."""
    held = table(manager, "a")
    manager.block_pool.release(held.blocks, len(held.blocks) - 1, len(held.blocks))
    held.blocks = held.blocks[:-1]


def lose_states(manager: Any) -> None:
    """Take the blocks for drafts of "a"."""
    held = table(manager, "a")
    held.states = held.states[:0]


COVERED = "TABLE-1: entries that cover what is written of request 'a': expected"
BROKEN: tuple[tuple[str, int, dict[str, int], Callable[[Any], None], str], ...] = (
    (
        "full",
        8,
        {},
        share_first,
        "WRITE-1: unpublished blocks with several holders, and no request was forked: expected [], found [1]",
    ),
    (
        "full",
        2,
        {},
        share_first,
        "WRITE-1: request 'a' shares the block it writes next, entry 0: expected False, found True",
    ),
    ("full", 8, {"num_draft_tokens": 6}, cut, f"{COVERED} 2, found 1"),
    ("full", 0, {"num_external_computed_tokens": 7}, cut, f"{COVERED} 2, found 1"),
    ("mamba", 0, {"num_external_computed_tokens": 7}, cut, f"{COVERED} 2, found 1"),
    ("mamba +2", 2, {}, lose_states, "MAMBA-3: states of drafts of request 'a': expected 2, found 0"),
)
"""Layer, what two requests ask for, what is broken, and what must be told."""


def running_checks(package: ModuleType) -> Iterator[Fault]:
    """Break tables of two requests, in blocks of 4 tokens that are not cached (CHECK-1)."""
    for kind, new, counts, damage, wanted in BROKEN:
        manager = manager_of(package, kind, 4, 20, enable_caching=kind == "mamba")
        for name in "ab":
            length = 2 if "num_draft_tokens" in counts else 8
            manager.allocate_slots(package.Request(name, [ord(name)] * length, 4), new, **counts)
        manager.check()
        damage(manager)
        found = raised(package, manager.check)
        if found != f"InvariantError: {wanted}":
            yield Fault("CHECK-1", f"{kind}: expected {wanted}, found {found or 'a sound state'}", 1)
