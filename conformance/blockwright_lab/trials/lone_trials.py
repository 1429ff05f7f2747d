"""Trials of what a manager of all layers stands on: managers of one kind, pools, requests; and its self-check.

REFUSE-2  a wrong call raises the error that its documentation names
MAMBA-3   a request takes the blocks for states of drafts once, and is told the block of its last state
PIN-1     a pool says that others than tables hold blocks as long as they do
HASH-5    a request's keys and content depend on its tokens and identity up to there, and on nothing after
CHECK-1   a broken state is noticed under the name of the law, and a sound one passes
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

from librt.vecs import vec
from mypy_extensions import i64

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import manager_of, spec_of
from .edge_trials import same

LIMIT = 2**31 - 1
HASH = bytes(16)
Wrong = tuple[str, Callable[[], object], str]
"""What a call does, the call, and how the message begins."""


def refusals(package: ModuleType, calls: list[Wrong], error: str = "InvalidArgumentError") -> Iterator[Fault]:
    """Give REFUSE-2 for each call that does not raise this error with this message."""
    for what, call, words in calls:
        rearm()
        try:
            call()
        except getattr(package.errors, error) as found:
            if str(found).startswith(words):
                continue
            what = f"{what} ({found})"
        except (ArithmeticError, AttributeError, LookupError, TypeError) as other:
            what = f"{what} ({other!r})"
        yield Fault("REFUSE-2", f"{what} is not refused with {words!r}", 1)


def lone_managers(package: ModuleType) -> Iterator[Fault]:
    """Use managers of one kind alone (MAMBA-3, REFUSE-2)."""
    pool, core = package.BlockPool(12), package.core.managers
    lone = core.get_manager_for_kv_cache_spec(spec_of(package, "mamba2", 2), pool, 0)
    for tokens, blocks in ((1, 3), (2, 0), (3, 1)):
        yield from same("MAMBA-3", f"missing for {tokens} tokens", lone.get_num_blocks_to_allocate("r", tokens), blocks)
        free = pool.get_num_free_blocks()
        lone.allocate_new_blocks("r", tokens)
        yield from same("MAMBA-3", f"taken for {tokens} tokens", free - pool.get_num_free_blocks(), blocks)
    tight = core.get_manager_for_kv_cache_spec(spec_of(package, "mamba2", 2), package.BlockPool(3), 0)
    need = [("three of two blocks", lambda: tight.allocate_new_blocks("r", 1), "num_tokens: request 'r' needs 3 more")]
    yield from refusals(package, need, "NoFreeBlocksError")
    yield from same("MAMBA-3", "the longest request", lone.get_num_blocks_to_allocate("new", LIMIT), 3)
    manages = core.SingleTypeKVCacheManager.manages(lone, lone.kv_cache_spec)
    yield from same("REFUSE-2", "what the base is for", manages, False)
    yield from adopted(package)


def adopted(package: ModuleType) -> Iterator[Fault]:
    """Find hits by bare hashes and adopt them, where a request runs and where none does."""
    for kind, size in (("full", 1), ("mamba", 1), ("full", 2), ("sliding", 1)):
        pool = package.BlockPool(9)
        spec = spec_of(package, kind, size)
        lone = package.core.managers.get_manager_for_kv_cache_spec(spec, pool, 0)
        request = package.Request("r", [0] * 3 * size, size)
        for tokens in range(size, 3 * size + 1, size):
            lone.allocate_new_blocks("r", tokens)
            lone.cache_blocks(request, tokens)
        (hit,) = type(lone).find_longest_cache_hit(request.block_hashes, LIMIT, [0], pool, spec)
        yield from same("HIT-1", f"{kind}, block {size}, entries of a hit", len(hit), 3)
        again = partial(lone.save_new_computed_blocks, "r", hit[-1:])
        yield from refusals(package, [("a hit for a request that runs", again, "new_computed_blocks: ")])
        lone.save_new_computed_blocks("new", hit)
        state = lone.state_block(lone.table_of("new"), 3 * size)
        yield from same("MAMBA-3", f"{kind}, the state of a hit", state, hit[-1].block_id if kind == "mamba" else 0)


def lone_pools(package: ModuleType) -> Iterator[Fault]:
    """Use pools alone (REFUSE-2, PIN-1, COPY-1)."""
    pool, strict = package.BlockPool(4), package.BlockPool(4, verify_tokens=True)
    told = package.BlockPool(4, enable_kv_cache_events=True)
    request, keyless = package.Request("r", [0] * 2, 1), package.Request("k", [0] * 2)
    blocks = pool.get_new_blocks(3)
    yield from refusals(
        package,
        [
            ("a hash of group -1", lambda: pool.get_cached_block(HASH, [-1]), "kv_cache_group_id: "),
            ("blocks of 0 tokens", lambda: pool.cache_full_blocks(request, blocks, 0, 0, 0), "block_size: "),
            ("group -1", lambda: pool.cache_full_blocks(request, blocks, 0, 1, 1, -1), "kv_cache_group_id: "),
            ("no keys", lambda: pool.cache_full_blocks(keyless, blocks, 0, 1, 1), "request: 'k' was made with"),
            ("keys for this process", lambda: told.units_for(request, 1), "request: events need keys"),
            ("a block's digest without keys", lambda: keyless.block_digest(0), "request: 'k' was made without"),
            ("content of bare hashes", lambda: bare(package, [0, 0]).content(0, 1), "verify_tokens: needs a request"),
        ],
    )
    yield from refusals(package, [("a block before the first", lambda: pool.touch([-1]), "blocks: -1 ")], "BlockError")
    wrong: list[Wrong] = [("a bare hash", lambda: strict.get_cached_block(HASH, [0]), "block_hash: this pool verifies")]
    yield from refusals(package, wrong, "UnsupportedError")
    yield from same("EV-2", "who records events", [each.records_events for each in (pool, told)], [False, True])
    pinned = [[int(pool.num_apart(block)) for block in range(4)]]
    for ids in ([1], [2, 3]):
        pool.free_blocks(ids)
        pinned.append([int(pool.num_apart(block)) for block in range(4)])
    yield from same("PIN-1", "held by others than tables", pinned, [[0, 1, 1, 1], [0, 0, 1, 1], [0] * 4])
    block = pool.take_one()
    pool.cache_full_blocks(request, [block], 0, 1, 1)
    pool.touch_entries(pool.ids_of([block]))
    new = pool.copy_on_write(block, 9)
    yield from same("COPY-1", "a copy of group 9", pool.take_copies(), [(9, block, new)])


def bare(package: ModuleType, words: list[int]) -> Any:
    """Give keys without a request."""
    return package.core.request.BlockKeys(vec[i64](words), 1, None)


def lone_requests(package: ModuleType) -> Iterator[Fault]:
    """Look at copies, content and lengths of requests (HASH-5, COPY-3, REFUSE-2)."""
    items = [package.MultiModalItem("a", 0, 1), package.MultiModalItem("b", 2, 1)]
    both = package.Request("r", [0] * 4, 2, mm_items=items)
    one = package.Request("r", [0] * 4, 2, mm_items=items[:1])
    first = [each.prefix_content(2) for each in (both, one)]
    yield from same("HASH-5", "the content before another item", *first)
    for at in (0, 1):
        content = both.keys(1).content(at, 2)
        yield from same("HASH-5", f"the content of block {at}", content, both.prefix_content(2 * at + 2))
    shared = [both.shares_prefix(other, count) for other in (both.fork("f"), one) for count in range(1, 5)]
    yield from same("HASH-5", "the prefixes shared", shared, [True] * 4 + [True, True, False, False])
    for count in range(1, 9):
        original = package.Request("r", [0], 1)
        for _ in range(count):
            original.append_output_token_ids(1)
        twin = original.copy()
        twin.append_output_token_ids(2)
        original.append_output_token_ids(3)
        ends = [each.output_token_ids[-1] for each in (twin, original)]
        yield from same("COPY-3", f"the last of {count + 2} tokens, of a copy and the original", ends, [2, 3])
    yield from failing(package)
    yield from longest(package)


def failing(package: ModuleType) -> Iterator[Fault]:
    """Append tokens while the hasher fails midway, and again (HASH-5)."""
    asked: list[bytes] = []

    def digest(parent: bytes, block: bytes) -> bytes:
        asked.append(block)
        if len(asked) == 3:
            raise ValueError(block)
        return bytes([1 + sum(parent) % 100]) * 16

    hasher = package.FunctionHasher(digest, True)
    request = package.Request("r", [0], 2, hasher=hasher)
    try:
        request.append_output_token_ids([1] * 3)
    except ValueError:
        request.append_output_token_ids([1] * 3)
    whole = package.Request("w", [0, 1, 1, 1], 2, hasher=hasher)
    yield from same("HASH-5", "keys after a failure", request.block_hashes, whole.block_hashes)


def longest(package: ModuleType) -> Iterator[Fault]:
    """Make requests as long as they may be; where the source runs, with a limit that memory has room for (REFUSE-2)."""
    module = package.core.request
    if not str(module.__file__).endswith(".py"):
        return
    with patch.object(module, "MAX_LENGTH", 6):
        request = package.Request("r", [0] * 6)
        yield from same("REFUSE-2", "tokens of the longest prompt", request.num_tokens, 6)
        grown = package.Request("r", [0] * 3)
        grown.append_output_token_ids([1, 1])
        longer, more = partial(package.Request, "r", [0] * 7), partial(grown.append_output_token_ids, [1, 1])
        yield from refusals(package, [("a longer prompt", longer, "prompt_token_ids: needs 1..6 tokens, not 7")])
        yield from refusals(package, [("too many output tokens", more, "token_ids: a request has at most 6 ")])
        grown.append_output_token_ids([1])
        yield from same("REFUSE-2", "tokens of the longest output", grown.num_tokens, 6)
    pool = package.core.pool
    with patch.object(pool, "MAX_BLOCKS", 6):
        yield from same("REFUSE-2", "blocks of the largest pool", pool.BlockPool(6).num_blocks, 6)
        yield from refusals(package, [("a larger pool", lambda: pool.BlockPool(7), "num_blocks: must be within 2..6 ")])


def shared_states(package: ModuleType) -> Iterator[Fault]:
    """Check states that are sound though something is shared, and break others (CHECK-1)."""
    manager = manager_of(package, "full, cross", 2, enable_caching=False)
    parent = package.Request("r", [0] * 4, 2)
    manager.allocate_slots(parent, 2, num_encoder_tokens=3)
    parent.num_computed_tokens = 2
    child = parent.fork("child")
    manager.fork(parent, child)
    for request in (parent, child):
        manager.allocate_slots(request, 1)
    manager.check()
    drafted(package)
    yield from broken(package)


def drafted(package: ModuleType) -> None:
    """Check while a step with drafts flies, which has more tokens than the table of a recurrent layer covers."""
    manager = manager_of(package, "mamba1", 2, overlap_steps=True)
    manager.start_step()
    manager.allocate_slots(package.Request("r", [0] * 2, 2), 3, num_draft_tokens=1)
    manager.check()
    other = package.Request("other", [0] * 3, 2)
    hit, length = manager.get_computed_blocks(other)
    manager.allocate_slots(other, 1, length, hit)
    manager.check()


def broken(package: ModuleType) -> Iterator[Fault]:
    """Give two requests the block that one of them writes, and one request two states."""
    for kind, caching, drafts, entry in (("full", True, 3, 3), ("full", False, 3, 3), ("mamba", False, 0, 0)):
        manager = manager_of(package, kind, 2, 20, enable_caching=caching)
        tokens = 4 if kind == "full" else 2
        requests = [package.Request(name, [at] * tokens, 2) for at, name in enumerate("ab")]
        for request in requests:
            manager.allocate_slots(request, tokens + drafts)
        manager.check()
        tables = [manager.managers[0].table_of(name) for name in "ab"]
        manager.block_pool.release(tables[1].blocks, entry, entry + 1)
        tables[1].blocks[entry] = tables[0].blocks[entry]
        manager.block_pool.touch_entries(tables[1].blocks[entry : entry + 1])
        told = f"WRITE-1, request 'a' shares the block it writes next, entry {entry}"
        yield from noticed(package, manager, f"{kind}, caching {caching}, a block written by two", told)
    manager = manager_of(package, "mamba", 2, enable_caching=False, overlap_steps=True)
    manager.start_step()
    manager.allocate_slots(package.Request("r", [0] * 3, 2), 3)
    held = manager.managers[0].table_of("r")
    held.blocks = manager.block_pool.take(1, held.blocks)
    yield from noticed(package, manager, "two states of one request", "MAMBA-1")


def noticed(package: ModuleType, manager: Any, what: str, told: str) -> Iterator[Fault]:
    """Check a broken state, whose fault is told with these words."""
    rearm()
    try:
        manager.check()
    except package.errors.InvariantError as error:
        text = f"{error.law}, {error}"
        if all(part in text for part in told.split(", ", 1)):
            return
        what = f"{what} ({text})"
    yield Fault("CHECK-1", f"{what}: expected {told}", 1)


TRIALS = (lone_managers, lone_pools, lone_requests, shared_states)
