"""Trials of managers at the edges of what a call may be: wrong counts on quiet steps, drafts, batches, hits, plans.

REFUSE-2  a wrong call raises an error of the package and changes nothing, however little the step would change
BATCH-2   a batch tells what its calls would tell one after another, and a greater number than any batch before
HIT-4     a hit is what it was when it was looked up, whoever has adopted it
PLAN-1    a plan comes to what the call comes to, and holds until something changes
PUB-3     what is published is what the last seen request knows, up to where its step stopped
CHECK-1   a broken state is noticed, and a sound one passes
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from librt.vecs import append, vec
from mypy_extensions import i32

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import manager_of, shape_of


def refused(
    package: ModuleType, manager: Any, what: str, call: Callable[[], object], error: str = "BlockwrightError"
) -> Iterator[Fault]:
    """Give REFUSE-2 unless a call raises an error of the package, of this name, and changes nothing."""
    rearm()
    before, raised = shape_of(manager), None
    kind = getattr(package.errors, error)
    try:
        call()
    except kind as found:
        raised = found
    if raised is None or shape_of(manager) != before:
        yield Fault("REFUSE-2", f"{what}: {raised or 'accepted'}, and {shape_of(manager)} follows {before}", 1)


def same(law: str, what: str, found: object, wanted: object) -> Iterator[Fault]:
    """Give a fault unless both are equal."""
    rearm()
    if found != wanted:
        yield Fault(law, f"{what}: expected {wanted}, found {found}", 1)


def steps(package: ModuleType, manager: Any, name: str, tokens: int, *news: int, size: int = 4) -> Any:
    """Give a request that has run some steps, each of so many tokens."""
    request = package.Request(name, [0] * tokens, size)
    for new in news:
        manager.allocate_slots(request, new)
        request.num_computed_tokens += new
    return request


def quiet_steps(package: ModuleType) -> Iterator[Fault]:
    """Ask wrongly where a step changes only counts, one by one and in a batch (REFUSE-2)."""
    manager = manager_of(package, "full", 8)
    request = steps(package, manager, "r", 4, 4, size=8)
    one, each = manager.allocate_slots, manager.allocate_slots_batch
    calls: list[tuple[str, Callable[[], object]]] = [
        ("all new tokens are drafts", lambda: one(request, 1, num_draft_tokens=1)),
        ("a running request loads", lambda: one(request, 1, num_external_computed_tokens=1)),
        ("encoder tokens without an encoder", lambda: one(request, 1, num_encoder_tokens=1)),
        ("a reserve below 0", lambda: one(request, 1, reserved_blocks=-1)),
        ("no new tokens, and room ahead", lambda: one(request, 0, num_lookahead_tokens=1)),
        ("in a batch, all new tokens are drafts", lambda: each([request], 1, 0, 1)),
        ("in a batch, no new tokens, and room ahead", lambda: each([request], 0, 1)),
    ]
    for what, call in calls:
        yield from refused(package, manager, what, call, "InvalidArgumentError")
    yield from refused(package, manager, "a running request has a hit", lambda: one(request, 1, 1), "StaleHitError")
    yield from certain_tokens(package)
    yield from settled_drafts(package)
    yield from settled_fork(package)
    yield from states_ahead(package)


def certain_tokens(package: ModuleType) -> Iterator[Fault]:
    """Go back behind output tokens that a batch has computed (REFUSE-2)."""
    manager = manager_of(package, "full", 8)
    request = steps(package, manager, "r", 2, 2, size=8)
    request.append_output_token_ids([1, 1])
    manager.allocate_slots_batch([request], 2)
    request.num_computed_tokens = 3
    yield from refused(package, manager, "back to 3 of 4 known tokens", lambda: manager.allocate_slots(request, 1))


def settled_drafts(package: ModuleType) -> Iterator[Fault]:
    """Reject drafts of a step that had some, and of one that had none (REFUSE-2)."""
    for batched in (False, True):
        manager = manager_of(package, "full", 8, overlap_steps=True)
        requests = [package.Request(name, [0] * 2, 8) for name in "ab"]
        for new, drafts in ((2, 0), (2, 1)):
            step = manager.start_step()
            for request, count in zip(requests, (0, drafts), strict=True):
                if batched:
                    manager.allocate_slots_batch([request], new, 0, count)
                else:
                    manager.allocate_slots(request, new, num_draft_tokens=count)
                request.num_computed_tokens += new
            if not drafts:
                manager.settle_step(step)
        what = f"batched {batched}, a rejected draft of"
        yield from refused(package, manager, f"{what} none", partial(manager.settle_step, step, {"a": 1}))
        try:
            manager.settle_step(step, {"b": 1})
        except package.errors.BlockwrightError as error:
            yield Fault("SETTLE-1", f"{what} one: {error}", 1)


def settled_fork(package: ModuleType) -> Iterator[Fault]:
    """Fork what a settled step has computed (SETTLE-1)."""
    manager = manager_of(package, "full", 8, overlap_steps=True)
    step = manager.start_step()
    request = steps(package, manager, "r", 4, 4, size=8)
    manager.settle_step(step)
    manager.fork(request, request.fork("child"))
    yield from same("SETTLE-1", "settled tokens of a fork", manager.num_settled("child"), 4)


def states_ahead(package: ModuleType) -> Iterator[Fault]:
    """Let recurrent states run ahead of what is known (REFUSE-2)."""
    manager = manager_of(package, "mamba", 4)
    request = steps(package, manager, "r", 6, 4, 1, 1)
    wrong = "a state of an unknown token"
    yield from refused(package, manager, wrong, lambda: manager.allocate_slots(request, 1), "InvalidArgumentError")
    manager = manager_of(package, "mamba1", 4)
    request = package.Request("r", [0] * 4, 4)
    batch = manager.allocate_slots_batch
    wrong = "more tokens ahead than states"
    yield from refused(package, manager, wrong, lambda: batch([request], 1, 2), "InvalidArgumentError")
    wrong = "more drafts than states"
    yield from refused(package, manager, wrong, lambda: batch([request], 6, 0, 2), "InvalidArgumentError")


def batch_answers(package: ModuleType) -> Iterator[Fault]:
    """Look at what batches tell beside the blocks (BATCH-2)."""
    manager = manager_of(package, "full", 4)
    requests = [package.Request(name, [0] * 5, 4) for name in "ab"]
    first = manager.allocate_slots_batch(requests, 2)
    yield from same("BATCH-2", "names of those that start", first.request_ids, ["a", "b"])
    for request in requests:
        request.num_computed_tokens = 2
    second = manager.allocate_slots_batch(requests, [1, 3])
    yield from same("BATCH-2", "names of those that change", second.request_ids, ["", "b"])
    third = manager.copy().allocate_slots_batch([], 1)
    numbers = [0, first.number, second.number, third.number]
    yield from same("BATCH-2", "numbers of batches in a row", numbers, sorted({*numbers}))
    yield from same("BATCH-2", "numbers of batches", len({*numbers}), 4)
    manager = manager_of(package, "full, sliding", 1, 6)
    requests = [package.Request(name, [int(name == "b")] * 4, 1) for name in "abc"]
    given = manager.allocate_slots_batch(requests, [2, 4, 1])
    told = [given.num_served, given.refused, *map(list, (given.new_block_offsets, given.nulled_offsets))]
    yield from same("BATCH-2", "two groups, the second refused", told, [1, 1, [0, 2, 4, 4, 4, 4, 4], [0] * 7])
    yield from left_over(package)
    yield from unnamed(package)
    yield from drafts_in_batches(package)
    yield from checked_before(package)


def unnamed(package: ModuleType) -> Iterator[Fault]:
    """Take steps that change only counts: a batch does not name their requests (BATCH-2)."""

    def names(new: int, ahead: int = 0) -> list[str]:
        told = list(manager.allocate_slots_batch([request], new, ahead).request_ids)
        request.num_computed_tokens += new
        return told

    manager, request = manager_of(package, "full", 8, overlap_steps=True), package.Request("a", [0] * 6, 8)
    for wanted in ("a", "", ""):
        step = manager.start_step()
        yield from same("BATCH-2", "names in steps that are settled before the next", names(2), [wanted])
        manager.settle_step(step)
    for computed in (3, 2):
        manager, request = manager_of(package, "full", 8), package.Request("a", [0] * 2, 8)
        names(4)
        request.num_computed_tokens = computed
        yield from same("BATCH-2", f"names after all but {computed} of 4 tokens were rejected", names(1), [""])
    manager, request = manager_of(package, "sliding", 4, enable_caching=False), package.Request("a", [0] * 8, 4)
    told = [names(new, ahead)[0] for new, ahead in ((3, 5), (1, 0), (1, 0), (1, 0), (1, 0))]
    told[2] = ""  # it may be named already
    yield from same("BATCH-2", "names in steps in a window, the fourth of which trims", told, ["a", "", "", "a", ""])


def left_over(package: ModuleType) -> Iterator[Fault]:
    """Trim and copy before a batch, by others and by single calls; it tells only of its own (BATCH-2)."""
    manager = manager_of(package, "full, sliding", 2)
    request = package.Request("r", [0] * 6, 2)
    for _ in range(6):
        told = manager.allocate_slots_batch([request], 1)
        request.num_computed_tokens += 1
        ends, nulled = list(told.nulled_offsets), len(told.nulled_entries)
        yield from same("BATCH-2", "the end of what the second of two groups nulled", ends, [0, 0, nulled])
    for dead in (1, 2):
        manager = manager_of(package, "sliding", 1)
        request = steps(package, manager, "r", 4, dead + 1, size=1)
        manager.allocate_slots(request, 1)
        told = manager.allocate_slots_batch([package.Request("new", [1], 1)], 1)
        found = (list(told.nulled_entries), list(told.nulled_offsets))
        yield from same("BATCH-2", f"nulled entries after a call that nulled {dead}", found, ([], [0, 0]))
    manager = manager_of(package, "full", 4)
    request = steps(package, manager, "r", 4, 2)
    manager.fork(request, request.fork("child"))
    manager.allocate_slots(request, 1)
    told = manager.allocate_slots_batch([package.Request("new", [1], 4)], 1)
    yield from same("BATCH-2", "replaced entries after a call that replaced one", list(told.replaced_entries), [])


def drafts_in_batches(package: ModuleType) -> Iterator[Fault]:
    """Give states to requests with drafts, one by one and in a batch (BATCH-2)."""
    for kind, size, new, drafts in (("mamba1", 2, 3, 1), ("mamba2", 1, 4, 2), ("full, mamba1", 2, 3, 1)):
        single, batch = manager_of(package, kind, size), manager_of(package, kind, size)
        requests = [package.Request("r", [0] * (new - drafts), size) for _ in range(2)]
        single.allocate_slots(requests[0], new, num_draft_tokens=drafts)
        batch.allocate_slots_batch([requests[1]], new, 0, drafts)
        yield from same("BATCH-2", f"{kind}, {drafts} drafts of {new}", shape_of(batch), shape_of(single))
        batch.check()


def checked_before(package: ModuleType) -> Iterator[Fault]:
    """Check all of a batch before its first request is served, and nothing that does not matter (REFUSE-2)."""
    manager = manager_of(package, "full", 1, enable_kv_cache_events=True)
    portable = package.Request("a", [0], 1, hasher=package.Sha256Hasher(b""))
    bare = package.Request("b", [0], 1)
    what = "the second's keys are no other process's"
    yield from refused(package, manager, what, lambda: manager.allocate_slots_batch([portable, bare], 1))
    manager = manager_of(package, "full", 4, enable_caching=False)
    try:
        manager.allocate_slots_batch([package.Request("c", [0], 3)], 1)
    except package.errors.BlockwrightError as error:
        yield Fault("BATCH-2", f"without caching, another block size: {error}", 1)


def adopted_hits(package: ModuleType) -> Iterator[Fault]:
    """Adopt one hit twice, in a buffer with room to spare, and one that is empty (HIT-4)."""
    for kind, size in (("full", 1), ("full", 2), ("sliding", 1), ("sliding", 2)):
        manager = manager_of(package, kind, size, 20)
        manager.free(steps(package, manager, "first", 4, *[size] * (4 // size), size=size))
        requests = [package.Request(name, [0] * 4 + [ord(name)] * 3, size) for name in "ab"]
        found, length = manager.get_computed_blocks(requests[0])
        room = vec[i32](capacity=64)
        for block in found.ids[0]:
            room = append(room, block)
        hit = package.KVCacheBlocks(manager.block_pool, [room])
        was = found.get_block_ids()
        for request in requests:
            manager.allocate_slots(request, 1, length, hit)
        manager.check()
        for request in requests:
            request.num_computed_tokens = length + 1
            manager.allocate_slots(request, 2)
            manager.remove_skipped_blocks(request, length + 3)
        manager.check()
        yield from same("HIT-4", f"{kind}, block {size}, a hit adopted twice", hit.get_block_ids(), was)
    manager, other = manager_of(package, "full, sliding"), manager_of(package, "full")
    request = package.Request("r", [0] * 4, 1)
    given = manager.allocate_slots(request, 1, 0, other.create_empty_block_list())
    yield from same("HIT-4", "another's empty hit of fewer groups", given and given.get_block_ids(), ([1], [2]))


def odd_plans(package: ModuleType) -> Iterator[Fault]:
    """Plan what is put off, what is too much, and what nothing has changed since (PLAN-1)."""
    manager = manager_of(package, "full", 1)
    manager.commit(manager.plan(package.Request("r", [0] * 2, 1), 2, delay_cache_blocks=True))
    yield from same("PUB-3", "published by a plan that puts it off", manager.num_published("r"), (0,))
    for count in (1, -1):
        request = package.Request("new", [0] * 2, 1)
        wrong = f"a hit of {count} without blocks"
        yield from refused(package, manager, wrong, partial(manager.plan, request, 1, count))
    manager = manager_of(package, "full", 1, 6)
    steps(package, manager, "r", 2, 2, size=1)
    given = manager.allocate_slots(package.Request("whole", [1] * 4, 1), 1, full_sequence_must_fit=True)
    yield from same("PLAN-1", "a start of which the rest will not fit", given, None)
    manager = manager_of(package, "sliding", 1, 6)
    request = steps(package, manager, "r", 7, 4, size=1)
    wanted = repr(manager.plan(request, 3))
    yield from same("PLAN-1", "dead blocks are given back first", wanted, "Fits('r', num_blocks=3)")
    yield from unchanged(package)
    yield from whole_hit(package)


def unchanged(package: ModuleType) -> Iterator[Fault]:
    """Do what takes no block and gives none back between a plan and its commit (PLAN-1)."""
    manager = manager_of(package, "sliding", 2)
    other = steps(package, manager, "other", 2, 1, size=2)
    plan = manager.plan(package.Request("r", [1] * 2, 2), 2)
    manager.remove_skipped_blocks(other, 1)
    manager.allocate_slots(other, 1)
    try:
        manager.commit(plan)
    except package.errors.StalePlanError as error:
        yield Fault("PLAN-1", f"nothing was taken or given back, and {error}", 1)


def whole_hit(package: ModuleType) -> Iterator[Fault]:
    """Adopt a hit and nothing else, if the whole request would fit: it grows by one token at least (PLAN-2)."""
    for kind, size in (("sliding", 1), ("sliding", 2), ("full", 1)):
        manager = manager_of(package, kind, size)
        manager.free(steps(package, manager, "first", 4, 4, size=size))
        steps(package, manager, "other", 1, 1, size=size)
        found = []
        for new in (0, 1):
            request = package.Request("r", [0] * 6, size)
            hit, length = manager.get_computed_blocks(request)
            found.append(repr(manager.plan(request, new, length, hit, full_sequence_must_fit=True, reserved_blocks=8)))
        yield from same("PLAN-2", f"{kind}, block {size}, a hit alone", *found)


def publication(package: ModuleType) -> Iterator[Fault]:
    """Publish by a copy of the request, and after a step with drafts (PUB-3)."""
    manager = manager_of(package, "full", 2, overlap_steps=True, publish_on_settlement=True)
    request = package.Request("r", [0] * 3, 2)
    numbers = []
    for new in (3, 1):
        numbers.append(manager.start_step())
        manager.allocate_slots(request, new)
        request.num_computed_tokens += new
    manager.settle_step(numbers[0])
    later = request.copy()
    later.append_output_token_ids([1])
    manager.cache_blocks(later, 0)
    manager.settle_step(numbers[1])
    yield from same("PUB-3", "published of a request as last seen", manager.num_published("r"), (2,))
    manager = manager_of(package, "mamba1", 2)
    request = package.Request("r", [0] * 4, 2)
    manager.allocate_slots(request, 5, num_draft_tokens=1, delay_cache_blocks=True)
    manager.cache_blocks(request, 4)
    yield from same("PUB-3", "a state before a draft", manager.num_published("r"), (2,))


TRIALS = (quiet_steps, batch_answers, adopted_hits, odd_plans, publication)
