"""Trials of names that a scheduler does not call: arguments of constructors, views, bare pools, managers of one kind.

REFUSE-2  a wrong argument is refused by a typed error, one at the limit is not
PACK-1    token ids are packed alike, whatever they are given in
SHOWN-1   what is shown of a pool, a manager or a request is what its calls came to
ONE-1     a manager of one kind, called by its own names, does what the manager of all kinds does
"""

from array import array
from collections.abc import Callable, Iterator
from copy import copy
from itertools import product
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm
from .call_trials import MAX_LENGTH, manager_of, spec_of

LIMIT = 2**31 - 1
Asked = tuple[str, Callable[[], object]]


def arguments(package: ModuleType) -> Iterator[Fault]:
    """Give arguments at their limits, and beyond them (REFUSE-2)."""
    errors = package.errors.BlockwrightError
    for wrong, asked in ((True, [*wrong_requests(package), *wrong_managers(package)]), (False, right(package))):
        for what, call in asked:
            rearm()
            try:
                call()
            except errors as error:
                if not wrong:
                    yield Fault("REFUSE-2", f"{what} is refused: {error}", 1)
            except Exception as error:
                yield Fault("REFUSE-2", f"{what}: {type(error).__name__}: {error}", 1)
            else:
                if wrong:
                    yield Fault("REFUSE-2", f"{what} is taken", 1)


def wrong_requests(package: ModuleType) -> Iterator[Asked]:
    """Give wrong requests, items and tokens."""
    make: Any = package.Request
    item: Any = package.MultiModalItem
    for name in ("", None, 1):
        yield f"the id {name!r}", lambda name=name: make(name, [1])  # type: ignore[misc]
        yield f"a fork's id {name!r}", lambda name=name: make("r", [1]).fork(name)  # type: ignore[misc]
    for size in (0, -1, True, LIMIT + 1):
        yield f"blocks of {size}", lambda size=size: make("r", [1], size)  # type: ignore[misc]
    for place in (("", 0, 1), (None, 0, 1), ("i", -1, 1), ("i", 0, 0), ("i", 0, 4), ("i", 3, 1), ("i", 2, 2)):
        yield f"item {place}", lambda place=place: make("r", [1, 2, 3], 1, mm_items=(item("a", 0, 1), item(*place)))  # type: ignore[misc]
    for value in (-1, LIMIT + 1, 1.0, "1", None):
        for at in range(3):
            tokens: list[Any] = [1, 2, 3]
            tokens[at] = value
            yield f"tokens {tokens}", lambda tokens=tokens: make("r", tokens)  # type: ignore[misc]
            yield f"tokens {tokens} in a tuple", lambda tokens=tokens: make("r", tuple(tokens))  # type: ignore[misc]
    for kind, at, length in product("iqQ", range(4), (4, 5)):
        shorts = array(kind, range(length))
        shorts[at] = -1 if kind != "Q" else LIMIT + 1
        yield f"tokens {shorts}", lambda shorts=shorts: make("r", shorts)  # type: ignore[misc]
    plane = memoryview(bytes(16)).cast("i", (2, 2))
    others: tuple[Any, ...] = (
        [],
        (),
        b"1234",
        "1234",
        bytearray(4),
        5,
        None,
        plane,
        array("d", [1.0]),
        array("f", [1.0]),
    )
    for given in others:
        yield f"tokens {given!r}", lambda given=given: make("r", given)  # type: ignore[misc]


def wrong_managers(package: ModuleType) -> Iterator[Asked]:
    """Give wrong pools and managers."""
    pool: Any = package.BlockPool
    for count in (1, 0, -1, True, 2**30 + 1):
        yield f"{count} blocks", lambda count=count: pool(count)  # type: ignore[misc]
    for option in ("enable_kv_cache_events", "explain_evictions", "track_evictions"):
        yield f"{option} without caching", lambda option=option: pool(4, False, **{option: True})  # type: ignore[misc]
    spec = spec_of(package, "full", 1)
    config = package.KVCacheConfig(num_blocks=4, kv_cache_groups=[package.KVCacheGroupSpec(["layer"], spec)])
    for longest in (0, -1, True, LIMIT + 1):
        yield f"{longest} tokens", lambda longest=longest: package.KVCacheManager(config, longest)  # type: ignore[misc]
    for share in (-0.1, 1.1):
        yield f"a watermark of {share}", lambda share=share: manager_of(package, "full", watermark=share)  # type: ignore[misc]
    yield "published on settlement", lambda: manager_of(package, "full", publish_on_settlement=True)
    yield "an encoder alone", lambda: manager_of(package, "cross", enable_caching=False)
    yield "an encoder cached", lambda: manager_of(package, "full, cross")
    yield "chunks with drafts", lambda: manager_of(package, "full, chunked", 2, use_eagle=True)
    make: Any = package.core.managers.get_manager_for_kv_cache_spec
    for ranks in (0, -1, LIMIT + 1):
        yield f"{ranks} ranks", lambda ranks=ranks: make(spec, pool(4), 0, ranks)  # type: ignore[misc]
    for group in (-1, True, LIMIT + 1):
        yield f"group {group}", lambda group=group: make(spec, pool(4), group)  # type: ignore[misc]
    for kind in ("sliding", "mamba", "cross", "chunked"):
        other = spec_of(package, kind, 2)
        yield f"ranks of {kind}", lambda other=other: make(other, pool(4), 0, 2)  # type: ignore[misc]
        yield f"{kind} kept whole", lambda other=other: package.core.managers.FullAttentionManager(other, pool(4), 0)  # type: ignore[misc]
    yield "no kind", lambda: make(SimpleNamespace(block_size=1), pool(4), 0)
    yield "no rule", lambda: package.core.group.rule_for(SimpleNamespace(block_size=1))


def right(package: ModuleType) -> Iterator[Asked]:
    """Give arguments at their limits."""
    make: Any = package.Request
    item: Any = package.MultiModalItem
    yield "the largest block", lambda: make("r", [1], LIMIT)
    yield "the smallest pool", lambda: package.BlockPool(2)
    yield "items at both ends", lambda: make("r", [1, 2], 1, mm_items=(item("a", 0, 1), item("b", 1, 1)))
    yield "the largest token", lambda: make("r", [0, LIMIT], 1)
    spec = spec_of(package, "full", 1)
    config = package.KVCacheConfig(num_blocks=4, kv_cache_groups=[package.KVCacheGroupSpec(["layer"], spec)])
    for longest in (1, LIMIT):
        yield f"{longest} tokens", lambda longest=longest: package.KVCacheManager(config, longest)  # type: ignore[misc]
    for share in (0.0, 1.0):
        yield f"a watermark of {share}", lambda share=share: manager_of(package, "full", watermark=share)  # type: ignore[misc]
    yield "events", lambda: package.BlockPool(4, True, enable_kv_cache_events=True)
    yield "settlement", lambda: manager_of(package, "full", publish_on_settlement=True, overlap_steps=True)
    yield "drafts", lambda: manager_of(package, "full, sliding", use_eagle=True)
    make_one: Any = package.core.managers.get_manager_for_kv_cache_spec
    yield "the last group", lambda: make_one(spec, package.BlockPool(2), LIMIT)
    yield "the most ranks", lambda: make_one(spec, package.BlockPool(2), 0, LIMIT)


class Listed:
    """Something with a method ``numpy``, as a tensor has."""

    def __init__(self, given: object) -> None:
        self.given = given

    def numpy(self) -> object:
        """Give what it stands for."""
        return self.given


class Index:
    """Something that stands for an integer."""

    def __index__(self) -> int:
        return 7


def packing(package: ModuleType) -> Iterator[Fault]:
    """Pack the same tokens, given in every way (PACK-1)."""
    for length in (1, 2, 3, 4, 7, 8):
        tokens = [(5 * at) ** 9 % LIMIT for at in range(length)]
        ways: list[Any] = [tokens, tuple(tokens), iter(tokens), dict.fromkeys(tokens), Listed(tokens)]
        ways += [array(kind, tokens) for kind in "iIlLqQ"] + [
            Listed(array("q", tokens)),
            memoryview(array("i", tokens)),
        ]
        ways += [memoryview(array("i", [each for token in tokens for each in (token, 1)]))[::2]]
        packed = b"".join(token.to_bytes(4, "little") for token in tokens)
        for given in ways:
            found = package.core.request.pack_tokens("tokens", given)
            if found != packed and len(set(tokens)) == length:
                yield Fault("PACK-1", f"{given!r} became {found!r}", 1)
    if package.core.request.pack_tokens("tokens", [1, Index()]) != bytes((1, 0, 0, 0, 7, 0, 0, 0)):
        yield Fault("PACK-1", "what stands for an integer is another one", 1)


def shown(package: ModuleType) -> Iterator[Fault]:
    """Ask for what is shown to people (SHOWN-1)."""
    request = package.Request("r", [5, 6, 7], 2, lora_name="adapter")
    request.append_output_token_ids([8, 9])
    manager = manager_of(package, "full, sliding", 2, 9, track_evictions=True, log_stats=True)
    pool, plain = manager.block_pool, package.BlockPool(5)
    before = manager.usage
    manager.allocate_slots(request, 4)
    blocks = manager.get_blocks("r")
    first = pool.views([1])[0]
    yield from differing(
        (before, 0.0),
        (manager.usage, 4 / 8),
        (pool.get_usage(), 4 / 8),
        ((pool.num_free, pool.num_blocks, plain.num_free), (4, 9, 4)),
        (blocks.get_block_ids(), manager.get_block_ids("r")),
        (manager.create_empty_block_list().get_block_ids(), ([], [])),
        (manager.create_empty_block_list().pool_is(pool), True),
        (manager.max_model_len, MAX_LENGTH),
        ((manager.overlap_steps, manager_of(package, "full", overlap_steps=True).overlap_steps), (False, True)),
        (copy(manager).get_block_ids("r"), manager.get_block_ids("r")),
        (copy(manager) is manager, False),
        (copy(plain) is plain or copy(pool).free_block_ids() != pool.free_block_ids(), False),
        ((request.num_prompt_tokens, request.num_output_tokens, request.num_tokens), (3, 2, 5)),
        ((request.prompt_token_ids, request.output_token_ids), ([5, 6, 7], [8, 9])),
        (list(request.all_token_ids), [5, 6, 7, 8, 9]),
        (
            (first.block_id, first.ref_cnt, first.is_null, pool.null_block.is_null, pool.null_block.block_id),
            (1, 1, False, True, 0),
        ),
        ((first.is_of(pool), first.is_of(plain)), (True, False)),
        (
            (first == pool.views([1])[0], first == pool.views([2])[0], first == plain.views([1])[0], first == 1),
            (True, False, False, False),
        ),
        (hash(first) == hash(pool.views([1])[0]) != hash(pool.views([2])[0]), True),
        (first.block_hash, pool.block_key(1)),
        (first.block_hash is None, False),
        (pool.views([pool.free_block_ids()[0]])[0].block_hash, None),
        ((pool.tracks_evictions, plain.tracks_evictions), (True, False)),
        ((pool.explains_evictions, package.BlockPool(4, explain_evictions=True).explains_evictions), (False, True)),
        (
            (
                package.BlockPool(4, track_evictions=True).explains_evictions,
                package.BlockPool(4, explain_evictions=True).tracks_evictions,
            ),
            (False, False),
        ),
        (pool.num_evictions, 0),
    )
    yield from evicted(package)


def differing(*pairs: tuple[object, object]) -> Iterator[Fault]:
    """Give the answers that are wrong, by their number."""
    for number, (found, wanted) in enumerate(pairs):
        if found != wanted:
            yield Fault("SHOWN-1", f"answer {number}: expected {wanted}, found {found}", 1)


def evicted(package: ModuleType) -> Iterator[Fault]:
    """Lose keys in two groups, and ask how many were lost in which way."""
    manager = manager_of(package, "full, sliding", 1, 8, explain_evictions=True)
    before = 0
    for walk in range(2):
        for token in range(3):
            request = package.Request(f"r{token}", [token] * 3, 1)
            manager.allocate_slots(request, 3)
            request.num_computed_tokens = 3
            manager.remove_skipped_blocks(request, 3)
            manager.free(request)
        told = manager.make_eviction_stats()
        total = sum(sum(counts) for counts in (told.evicted, told.trimmed, told.reset))
        if total != manager.block_pool.num_evictions - before:
            yield Fault("SHOWN-1", f"round {walk}: {told}, of {manager.block_pool.num_evictions} evictions", 9)
        before = manager.block_pool.num_evictions
        if len(told.evicted) != 2 or not (told.evicted[0] and told.trimmed[1]) or told.trimmed[0]:
            yield Fault("SHOWN-1", f"round {walk}: {told}", 9)
    manager.reset_prefix_cache()
    told = manager.make_eviction_stats()
    if not (told.reset[0] and told.reset[1]) or any(told.evicted + told.trimmed):
        yield Fault("SHOWN-1", f"after a reset: {told}", 10)


# --- the bare pool


def bare_pool(package: ModuleType) -> Iterator[Fault]:
    """Call a bare pool at random, beside counts of holders (SHOWN-1, REFUSE-2)."""
    for seed in range(4):
        rearm()
        if wrong := walked(package, Random(seed)):
            yield Fault("SHOWN-1", f"bare pool, walk {seed}: {wrong}", 1)


def walked(package: ModuleType, random: Random) -> str:
    """Make calls; say what went otherwise."""
    pool, held, keyed = package.BlockPool(6), [0] * 6, dict[int, int]()
    errors: Any = package.errors
    requests = [package.Request(f"r{at}", [at, at, at], 1) for at in range(3)]
    for step in range(120):
        some = [
            random.randrange(-1, 7) if random.random() < 0.1 else random.randrange(6)
            for _ in range(random.randrange(4))
        ]
        free = [at for at in range(1, 6) if not held[at]]
        known = all(0 <= block < 6 for block in some)
        move, error, wanted = random.choice(("take", "touch", "free", "free", "publish", "look")), None, False
        before = (pool.free_block_ids(), pool.ref_counts(), pool.block_keys())
        given: list[Any] = [pool.views([block])[0] if known and random.random() < 0.5 else block for block in some]
        try:
            if move == "take":
                count = random.randrange(-1, 4)
                wanted = count < 0 or count > len(free)
                taken = [each.block_id for each in pool.get_new_blocks(count)]
                if taken != before[0][:count] or any(block in taken for block in held if held[block]):
                    return f"step {step}: took {taken} of {before[0]}"
                for block in taken:
                    held[block], _ = 1, keyed.pop(block, None)
            elif move == "touch":
                wanted = not known or any(block and not held[block] and block not in keyed for block in some)
                pool.touch(given)
                for block in some:
                    held[block] += block != 0
            elif move == "free":
                wanted = not known or any(block and some.count(block) > held[block] for block in some)
                pool.free_blocks(given)
                gone = [block for block in dict.fromkeys(some[::-1]) if block and held[block] == some.count(block)][
                    ::-1
                ]
                for block in some:
                    held[block] -= block != 0
                queue = pool.free_block_ids()
                bare, cached = [each for each in gone if each not in keyed], [each for each in gone if each in keyed]
                if (cached and queue[-len(cached) :] != cached) or not set(bare) <= set(queue):
                    return f"step {step}: released {gone}, the queue became {queue}"
            elif move == "publish":
                request, start, stop = requests[step % 3], random.randrange(-1, 3), random.randrange(-1, 5)
                wanted = not known or not 0 <= start <= stop <= min(3, len(some))
                wanted = wanted or any(block and not held[block] for block in some[max(start, 0) : stop])
                pool.cache_full_blocks(request, given, start, stop, 1, 0)
                for at in range(start, stop):
                    if some[at]:
                        keyed.setdefault(some[at], 10 * (step % 3) + at)
            else:
                number, at = random.randrange(3), random.randrange(3)
                found = pool.get_cached_block(requests[number].block_hashes[at], [0])
                there = [block for block, key in keyed.items() if key == 10 * number + at]
                if (found is None) != (not there) or (found and found[0].block_id not in there):
                    return f"step {step}: found {found}, published {there}"
                if pool.get_cached_block(requests[number].block_hashes[at], [0, 1]) is not None:
                    return f"step {step}: found in a group that has none"
        except errors.BlockwrightError as raised:
            error = raised
        if (error is not None) != wanted:
            return f"step {step}: {move} {some}: expected {'an error' if wanted else 'none'}, found {error}"
        if wanted and before != (pool.free_block_ids(), pool.ref_counts(), pool.block_keys()):
            return f"step {step}: {move} {some} was refused, and something changed"
        pool.check()
        if pool.ref_counts() != held or {at for at, key in enumerate(pool.block_keys()) if key} != set(keyed):
            return f"step {step}: {move} {some}: {pool.ref_counts()} and {pool.block_keys()}, expected {held}, {keyed}"
        if [int(pool.num_apart(block)) for block in range(6)] != held:
            return f"step {step}: {move} {some}: not all that is noted as held outside of tables is held so: {held}"
    return ""
