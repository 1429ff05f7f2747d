"""Trials of calls that no scope makes: wrong ones, batches that admit, requests that are never cached.

REFUSE-2  a wrong call raises an error of the package and changes nothing
BATCH-2   a batch does what its calls would do one after another, up to the first that does not fit
LOOKUP-2  a request without keys, or one that needs log-probabilities of its prompt, hits nothing
EV-2      a manager that records no events tells none
PIN-1     shared blocks are counted by the tables that hold them, whoever else does
PLAN-1    a plan of any admission counts what the call takes, and fits exactly if the call succeeds
"""

from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

from ..known_bugs.known_bug import Fault

Call = tuple[str, Any, Callable[..., object], tuple[object, ...], bool]
"""What a call is, the manager it goes to, the call and its arguments, and whether it is wrong."""

MAX_LENGTH = 8
WALKS = 10
STEPS = 20


def spec_of(package: ModuleType, kind: str, block_size: int) -> Any:
    """Give the declaration of a layer, by a short name."""
    sizes: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
    if kind == "sliding":
        return package.SlidingWindowSpec(**sizes, sliding_window=2)
    if kind == "chunked":
        return package.ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=4)
    if kind.startswith("mamba"):
        drafts = int(kind.removeprefix("mamba").strip(" +") or 0)
        return package.MambaSpec(
            block_size=block_size, shapes=((1,),), dtypes=("float32",), num_speculative_blocks=drafts
        )
    if kind == "cross":
        return package.CrossAttentionSpec(**sizes)
    return package.FullAttentionSpec(**sizes)


def manager_of(package: ModuleType, kind: str, block_size: int = 1, num_blocks: int = 9, **rest: Any) -> Any:
    """Give a manager of one layer, or of several that are listed with commas."""
    kinds = kind.split(", ")
    groups = [package.KVCacheGroupSpec([f"layer {each}"], spec_of(package, each, block_size)) for each in kinds]
    config = package.KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=groups)
    return package.KVCacheManager(config, max_model_len=MAX_LENGTH, **rest)


def shape_of(manager: Any) -> tuple[object, ...]:
    """Give all that can be seen of a manager."""
    pool = manager.block_pool
    tables = [(name, manager.get_block_ids(name), manager.num_published(name)) for name in manager.request_ids()]
    return tables, pool.free_block_ids(), pool.ref_counts(), pool.block_keys(), pool.get_num_free_blocks()


def started(package: ModuleType, manager: Any, name: str = "r", tokens: int = 4) -> Any:
    """Give a request that runs, with all its tokens computed, one at a time."""
    request = package.Request(name, [0] * tokens, 1)
    for _ in range(tokens):
        manager.allocate_slots(request, 1)
        request.num_computed_tokens += 1
    return request


def refusals(package: ModuleType) -> Iterator[Fault]:
    """Give each wrong call that is accepted, and each refused one that changes something or is not wrong at all."""
    for make in (of_counts, of_hits, of_batches, of_steps_back):
        for what, manager, call, arguments, is_wrong in make(package):
            before, raised = shape_of(manager), None
            try:
                call(*arguments)
            except package.errors.BlockwrightError as error:
                raised = error
            manager.check()
            if (raised is not None) != is_wrong:
                yield Fault("REFUSE-2", f"{what}: expected {'an error' if is_wrong else 'none'}, found {raised}", 1)
            elif is_wrong and shape_of(manager) != before:
                yield Fault("REFUSE-2", f"{what}: refused, and something changed", 1)


def of_counts(package: ModuleType) -> Iterator[Call]:
    """Give calls with wrong counts."""
    manager = manager_of(package, "full")
    runs, fresh, low = started(package, manager), package.Request("new", [0] * 4, 1), package.Request("low", [0] * 4, 1)
    low.num_computed_tokens = -1
    give, empty = manager.allocate_slots, manager.create_empty_block_list()
    yield "computed tokens below 0", manager, give, (low, 1), True
    yield "a count that is no integer", manager, give, (fresh, "1"), True
    yield "a hit without blocks", manager, give, (fresh, 1, 1), True
    yield "less than no hit", manager, give, (fresh, 1, -1), True
    yield "too long, with an empty hit", manager, give, (fresh, MAX_LENGTH + 1, 0, empty), True
    yield "no tokens, with an empty hit", manager, give, (fresh, 0, 0, empty), True
    yield "publish below 0", manager, manager.cache_blocks, (runs, -1), True
    yield "publish unknown tokens", manager, manager.cache_blocks, (runs, 5), True
    yield "trim below 0", manager, manager.remove_skipped_blocks, (runs, -1), True
    groups = [package.KVCacheGroupSpec(["layer"], spec_of(package, "chunked", 2))]
    config = package.KVCacheConfig(num_blocks=4, kv_cache_groups=groups)
    yield "chunks with drafts", manager, lambda: package.KVCacheManager(config, 8, use_eagle=True), (), True


def of_hits(package: ModuleType) -> Iterator[Call]:
    """Give hits that are another's, or leave too little to compute, or are followed by too much."""
    for kind in ("full", "mamba"):
        manager, other = manager_of(package, kind), manager_of(package, kind)
        for each in (manager, other):
            each.free(started(package, each))
        fresh, short = package.Request("new", [0] * 6, 1), package.Request("short", [0] * 4, 1)
        (hit, length), (theirs, _) = manager.get_computed_blocks(fresh), other.get_computed_blocks(fresh)
        give = manager.allocate_slots
        yield "another manager's hit", manager, give, (fresh, 2, length, theirs), True
        yield "no token left", manager, give, (short, 1, length, hit), True
        yield "too long after the hit", manager, give, (fresh, 5, length, hit), True
        yield "unknown tokens after the hit", manager, give, (fresh, 3, length, hit), kind == "mamba"
        fresh = package.Request("last", [0] * 6, 1)
        yield "another's empty hit", manager, give, (fresh, 1, 0, other.create_empty_block_list()), False


def of_batches(package: ModuleType) -> Iterator[Call]:
    """Give batches with one wrong ask at the end, or one request twice."""
    manager = manager_of(package, "full")
    runs, fresh, large = started(package, manager), package.Request("new", [0], 1), package.Request("large", [0], 2)
    give = manager.allocate_slots_batch
    yield "a running request twice", manager, give, ([runs, runs], 1), True
    yield "a new request twice", manager, give, ([fresh, fresh], 1), True
    yield "the second too long", manager, give, ([fresh, runs], [1, MAX_LENGTH]), True
    yield "the second asks nothing", manager, give, ([fresh, runs], [1, 0]), True
    yield "the second of another block size", manager, give, ([fresh, large], 1), True
    yield "too few counts", manager, give, ([fresh, runs], [1]), True
    keyless = package.Request("keyless", [0], None)
    yield "one after another", manager, give, ([runs, fresh, keyless], 1), False
    yield "the same again, uncounted", manager, give, ([runs, fresh, keyless], 1), True
    for request in (fresh, keyless):
        request.num_computed_tokens = 1
    yield "the next ones", manager, give, ([runs, fresh, keyless], 1), False
    yield "a batch of none", manager, give, ([], 1), False


def of_steps_back(package: ModuleType) -> Iterator[Call]:
    """Give requests that go back behind what is kept, and one whose copy was freed before."""
    for kind in ("sliding", "mamba", "full"):
        manager = manager_of(package, kind)
        request = started(package, manager)
        manager.allocate_slots(request, 1) if kind != "mamba" else None
        request.num_computed_tokens = 2
        yield f"back to 2 of 4, {kind}", manager, manager.allocate_slots, (request, 1), True
    manager = manager_of(package, "sliding", 2)
    request = started(package, manager)
    yield "back within a block", manager, manager.allocate_slots, (request, 1), False
    yield "and once more", manager, manager.allocate_slots, (request, 1), False
    manager = manager_of(package, "full")
    request = started(package, manager)
    copy = request.copy()
    manager.free(request)
    yield "free a copy of a freed request", manager, manager.free, (copy,), False


def batches(package: ModuleType) -> Iterator[Fault]:
    """Give BATCH-2 for the first batch that differs from its calls in a row."""
    for walk in range(WALKS):
        random = Random(walk)
        kind = ("full", "sliding", "mamba", "chunked")[walk % 4]
        size, caching = random.choice((1, 2)) if kind != "chunked" else 2, walk % 3 > 0
        batch = manager_of(package, kind, size, 8, enable_caching=caching)
        lengths = [random.randint(1, 5) for _ in range(4)]
        mine = [package.Request(f"r{number}", [0] * length, size) for number, length in enumerate(lengths)]
        for step in range(STEPS):
            single, copies = batch.copy(), [request.copy() for request in mine]
            wrong = compared(random, kind, batch, mine, single, copies)
            if wrong:
                yield Fault("BATCH-2", f"{kind}, block {size}, caching {caching}: {wrong}", step + 1)
                return


def compared(random: Random, kind: str, batch: Any, mine: list[Any], single: Any, theirs: list[Any]) -> str:
    """Make a step of some requests, in one call and one by one; free what is done, and say what differs."""
    picked = random.sample(range(len(mine)), random.randint(1, len(mine)))
    asks = []
    for number in picked:
        room = MAX_LENGTH - mine[number].num_computed_tokens
        known = mine[number].num_tokens - mine[number].num_computed_tokens
        asks.append(random.randint(1, max(1, min(room, known))))
    aheads = [0 if kind == "mamba" else random.randint(0, 3) for _ in picked]
    done = batch.allocate_slots_batch([mine[number] for number in picked], asks, aheads)
    offsets, nulled = list(done.new_block_offsets), list(done.nulled_offsets)
    if len(offsets) != len(picked) + 1 or len(nulled) != len(picked) + 1:
        return f"{len(picked)} requests, offsets {offsets} and {nulled}"
    for at, number in enumerate(picked):
        request = theirs[number]
        was = single.get_block_ids(request.request_id)[0] if request.request_id in single.request_ids() else []
        given = single.allocate_slots(request, asks[at], num_lookahead_tokens=aheads[at])
        if (given is None) != (at >= done.num_served) or (given is None) != (done.refused == at):
            return f"one by one {request} is {'refused' if given is None else 'served'}, in the batch {done}"
        if given is None:
            break
        table = single.get_block_ids(request.request_id)[0]
        replica = was + list(done.new_block_ids)[offsets[at] : offsets[at + 1]]
        for entry in list(done.nulled_entries)[nulled[at] : nulled[at + 1]]:
            if not replica[entry]:
                return f"entry {entry} of {was} became null, and was"
            replica[entry] = 0
        if replica != table:
            return f"table {table}, rebuilt from the batch {replica}"
    if shape_of(batch) != shape_of(single):
        return f"one by one {shape_of(single)}, in the batch {shape_of(batch)}"
    for at in range(done.num_served):
        finish(random, batch, mine[picked[at]], asks[at])
    if done.refused is not None:
        end(batch, mine[picked[done.refused]])
    return ""


def finish(random: Random, manager: Any, request: Any, new: int) -> None:
    """Count a step, and append a token where all are computed; end a request that is long, or at random."""
    request.num_computed_tokens = min(request.num_computed_tokens + new, request.num_tokens)
    if request.num_tokens == MAX_LENGTH or random.random() < 0.1:
        end(manager, request)
    elif request.num_computed_tokens == request.num_tokens:
        request.append_output_token_ids([0])


def end(manager: Any, request: Any) -> None:
    """Release a request; it starts again."""
    manager.free(request)
    request.num_computed_tokens = 0


def keyless(package: ModuleType) -> Iterator[Fault]:
    """Give LOOKUP-2 where a request that must not hit finds something, or is published."""
    manager = manager_of(package, "full")
    manager.free(started(package, manager))
    keys = manager.block_pool.block_keys()
    for request in (package.Request("p", [0] * 4, 1, prompt_logprobs=True), package.Request("k", [0] * 4, None)):
        hit, length = manager.get_computed_blocks(request)
        if length or any(len(ids) for ids in hit.ids):
            yield Fault("LOOKUP-2", f"{request} hits {length} tokens", 1)
    if manager.take_events() != [] or manager_of(package, "full", verify_tokens=True).take_events() != []:
        yield Fault("EV-2", "a manager without events tells some", 1)
    manager.allocate_slots(package.Request("k", [1] * 4, None), 4)
    manager.check()
    if [key for key in manager.block_pool.block_keys() if key not in keys]:
        yield Fault("LOOKUP-2", "a request without keys was published", 1)


def pins(package: ModuleType) -> Iterator[Fault]:
    """Give PIN-1 where a block that is held outside of tables is counted for a table."""
    manager = manager_of(package, "full")
    requests = [started(package, manager, "one"), package.Request("two", [0] * 5, 1)]
    hit, length = manager.get_computed_blocks(requests[1])
    manager.allocate_slots(requests[1], 1, length, hit)
    for held in ((), (1,), (1, 2)):
        manager.block_pool.touch(held)
        shared = [manager.get_num_common_prefix_blocks(request.request_id, 2) for request in requests]
        if shared != [[4], [4]]:
            yield Fault("PIN-1", f"with {held} held, 4 shared blocks are counted as {shared}", 1)
    manager.block_pool.free_blocks((1, 1, 2))
    if manager.get_num_common_prefix_blocks("one", 2) != [4]:
        yield Fault("PIN-1", "after their release the shared blocks are counted otherwise", 1)


KINDS = ("full", "sliding", "mamba", "mamba +1", "full, sliding", "full, mamba +2", "full, cross")
MOST_ASKED = 3
"""Tokens of each sort that an admission asks for at most."""


def plans(package: ModuleType) -> Iterator[Fault]:
    """Give PLAN-1 for the first plan of each model that is not what the call comes to."""
    for kinds, size in product(KINDS, (1, 2)):
        manager = manager_of(package, kinds, size, 6, enable_caching="cross" not in kinds)
        first = package.Request("first", [0] * 2, size)
        manager.allocate_slots(first, 2)
        manager.free(first)
        counts = product(range(MOST_ASKED), range(MOST_ASKED), (0, 1), (0, 1), (0, 3) if "cross" in kinds else (0,))
        wrong = next((text for each in counts if (text := misplanned(package, manager, size, *each))), "")
        if wrong:
            yield Fault("PLAN-1", f"{kinds}, block {size}: {wrong}", 3)


def misplanned(
    package: ModuleType, manager: Any, size: int, new: int, external: int, ahead: int, drafts: int, encoder: int
) -> str:
    """Plan an admission and make it; say what differs."""
    request = package.Request("r", [0] * 5, size)
    hit, length = manager.get_computed_blocks(request)
    counts = {"num_lookahead_tokens": ahead, "num_draft_tokens": drafts}
    counts |= {"num_external_computed_tokens": external, "num_encoder_tokens": encoder}
    asked = f"{new} new tokens after a hit of {length}, {counts}"
    try:
        plan = manager.plan(request, new, length, hit, **counts)
    except package.errors.InvalidArgumentError:
        return ""
    free = manager.block_pool.get_num_free_blocks()
    given = manager.allocate_slots(request, new, length, hit, **counts)
    taken = free - manager.block_pool.get_num_free_blocks()
    manager.free(request)
    if given is not None and external:
        manager.finish_load(request, 0)
    wanted = plan.num_blocks if isinstance(plan, package.Fits) else None
    if wanted != (None if given is None else taken):
        return f"{asked}: {plan}, and {'nothing is given' if given is None else f'{taken} blocks are taken'}"
    return ""
