"""Property: requests share a block only if all that identifies the prefix is equal; nothing else is confused with it.

How: many identities (adapter, salt, multimodal items) that a careless encoding would confuse, pairwise, on every
hasher; the same drawn at random; hits between requests of different identity in every kind of layer; hashers that
collide on purpose, which are refused, or are never believed where tokens are verified (known bugs B60, B61, B62, B63).

Not covered: that SHA-256 and SipHash do not collide.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core import support
from tests.core.support import SETUPS, Setup, admit, every_setup, full, manager_dump, manager_of, sliding, table

from blockwright import (
    BlockHasher,
    BlockPool,
    FunctionHasher,
    KVCacheManager,
    KVCacheSpec,
    MultiModalItem,
    Request,
    Sha256Hasher,
    SipHasher,
    get_manager_for_kv_cache_spec,
)
from blockwright.errors import InvalidArgumentError, StaleHitError

HASHERS: dict[str, BlockHasher] = {
    "sip": SipHasher(bytes(16)),
    "sha256": Sha256Hasher(b""),
    "function": FunctionHasher(lambda parent, data: hashlib.md5(parent + data).digest(), is_collision_resistant=True),
}
each_hasher = pytest.mark.parametrize("hasher", HASHERS.values(), ids=HASHERS.keys())

Identity = tuple[str | None, str | None]
IDENTITIES: list[Identity] = [
    (None, None), ("", None), (None, ""), ("", ""), ("a", None), (None, "a"), ("a", "a"), ("a", "b"), ("b", "a"),
    ("ab", None), (None, "ab"), ("a", "bS"), ("aS", "b"), ("S", None), (None, "L"), ("L", "S"), ("S", "L"),
    ("a\0", None), ("a", "\0"), ("a\0\0", None), ("aS\1\0\0\0\0\0\0\0b", None), ("é", None), ("e\u0301", None),
    ("\ud800", None), (None, "\ud800"), ("\ud800\udc00", None), ("\U00010000", None), ("None", None), (None, "None"),
    ("x" * 300, None), ("x" * 301, None), ("x" * 556, None), (None, "x" * 300), ("y" * 100_000, None),
    ("y" * 99_999 + "z", None),
]  # fmt: skip

PROMPT = list(range(24))
ITEMS: list[tuple[MultiModalItem, ...]] = [
    (),
    (MultiModalItem("i", 5, 2),),
    (MultiModalItem("j", 5, 2),),
    (MultiModalItem("i", 6, 2),),
    (MultiModalItem("i", 5, 3),),
    (MultiModalItem("i", 5, 1),),
    (MultiModalItem("i", 5, 1), MultiModalItem("i", 6, 1)),
    (MultiModalItem("i", 5, 2), MultiModalItem("i", 5, 2)),
    (MultiModalItem("i", 5, 2), MultiModalItem("j", 5, 2)),
    (MultiModalItem("ij", 5, 2),),
    (MultiModalItem("k" * 64, 5, 2),),
    (MultiModalItem("k" * 65, 5, 2),),
    (MultiModalItem("k" * 64 + "l", 5, 2),),
    (MultiModalItem("i", 5, 14),),
    (MultiModalItem("i", 5, 15),),
    (MultiModalItem("iM\1\0\0\0\0\0\0\0j", 5, 2),),
]


def request(hasher: BlockHasher, identity: Identity = (None, None), items: tuple[MultiModalItem, ...] = ()) -> Request:
    lora, salt = identity
    return Request("r", PROMPT, 4, lora_name=lora, cache_salt=salt, mm_items=items, hasher=hasher)


@each_hasher
def test_adapter_and_salt_change_every_block(hasher: BlockHasher) -> None:
    hashes = {identity: request(hasher, identity).block_hashes for identity in IDENTITIES}
    every_key = [key for keys in hashes.values() for key in keys]
    assert len(set(every_key)) == len(every_key) == 6 * len(IDENTITIES)


@each_hasher
def test_items_change_their_blocks_and_later_ones(hasher: BlockHasher) -> None:
    for first, second in combinations(ITEMS, 2):
        one, other = request(hasher, items=first).block_hashes, request(hasher, items=second).block_hashes
        assert one[0] == other[0]  # no item reaches into it
        assert one[5] != other[5]
    for items in ITEMS[1:]:
        with_items, without = request(hasher, items=items).block_hashes, request(hasher).block_hashes
        assert all(one != other for one, other in zip(with_items[1:], without[1:], strict=True))


@each_hasher
def test_items_are_not_adapters_or_salts(hasher: BlockHasher) -> None:
    keys = [
        tuple(request(hasher, identity, items).block_hashes)
        for identity in [(None, None), ("i", None), (None, "i"), ("i", "i")]
        for items in [(), (MultiModalItem("i", 0, 1),), (MultiModalItem("i", 0, 24),)]
    ]
    flat = [key for each in keys for key in each]
    assert len(set(flat)) == len(flat)


identities = st.tuples(st.none() | st.text(max_size=3), st.none() | st.text(max_size=3))
item_tuples = st.lists(
    st.builds(MultiModalItem, st.sampled_from(["a", "b", "ab"]), st.integers(0, 3), st.integers(1, 20)), max_size=2
).map(lambda items: tuple(sorted(items, key=lambda item: (item.offset, item.identifier, item.length))))


@each_hasher
@given(identities, identities, item_tuples, item_tuples, st.integers(0, 1), st.integers(0, 1))
def test_keys_tell_identities_apart(
    hasher: BlockHasher,
    first: Identity,
    second: Identity,
    first_items: tuple[MultiModalItem, ...],
    second_items: tuple[MultiModalItem, ...],
    first_token: int,
    second_token: int,
) -> None:
    """Every item starts within the first block, so that it must show in all of them."""
    one = (first, first_items, first_token)
    other = (second, second_items, second_token)
    made = [
        Request("r", [token, *PROMPT], 4, lora_name=lora, cache_salt=salt, mm_items=items, hasher=hasher).block_hashes
        for (lora, salt), items, token in (one, other)
    ]
    assert [a == b for a, b in zip(*made, strict=True)] == [one == other] * 6


def test_order_of_items_does_not_matter() -> None:
    items = (MultiModalItem("i", 5, 2), MultiModalItem("j", 1, 2), MultiModalItem("a", 5, 3))
    for hasher in HASHERS.values():
        assert request(hasher, items=items).block_hashes == request(hasher, items=items[::-1]).block_hashes


@every_setup
def test_no_hit_for_another_identity(setup: Setup) -> None:
    """A request finds the blocks of its own identity only, in every kind of layer, and as many as if it were alone."""
    chosen: list[tuple[Identity, tuple[MultiModalItem, ...]]] = [
        *((identity, ()) for identity in IDENTITIES[:12]),
        *(((None, None), items) for items in ITEMS[1:6]),
    ]
    alone = setup.manager()
    first = Request("first", PROMPT, setup.spec.block_size)
    nothing = admit(alone, first)  # what a kind finds in an empty cache, since it reads nothing there
    alone.free(first)
    found = alone.get_computed_blocks(first)[1]
    manager = setup.manager(33 * len(chosen))
    for (lora, salt), items in chosen:
        known = Request("r", PROMPT, setup.spec.block_size, lora_name=lora, cache_salt=salt, mm_items=items)
        before = {id for id, count in enumerate(manager.block_pool.ref_counts()) if count}
        shared_items = any(item.offset >= 5 for item in items)  # blocks before the item are those of the bare prompt
        if not shared_items:
            assert manager.get_computed_blocks(known)[1] == nothing
        admit(manager, known)
        if not shared_items:
            assert not before & set(table(manager, "r"))
        manager.free(known)
        assert manager.get_computed_blocks(known)[1] == found
    manager.check()


def test_hit_of_another_salt_is_refused() -> None:
    """A hit carried from one request to another is stale unless it is that request's own prefix."""
    manager = manager_of(SETUPS["full"].spec)
    for salt in (None, "s"):
        one = Request("one", PROMPT, 4, cache_salt=salt)
        admit(manager, one)
        manager.free(one)
    hit, num_hit = manager.get_computed_blocks(Request("asks", PROMPT, 4, cache_salt="s"))
    assert num_hit == 20
    state = manager_dump(manager)
    for other in (Request("r", PROMPT, 4), Request("r", PROMPT, 4, lora_name="s"), Request("r", PROMPT[::-1], 4)):
        with pytest.raises(StaleHitError, match="new_computed_blocks"):
            manager.allocate_slots(other, 1, num_hit, hit)
    assert manager_dump(manager) == state
    assert manager.allocate_slots(Request("r", PROMPT, 4, cache_salt="s"), 1, num_hit, hit) is not None


# ---------------------------------------------------------------------- forced collisions

COLLIDING: dict[str, Callable[[bytes, bytes], bytes]] = {
    "constant": lambda parent, data: bytes(16),
    "empty": lambda parent, data: b"",
    "16-bit": lambda parent, data: hashlib.md5(parent + data).digest()[:1] + parent[:1],
    "blind to the parent": lambda parent, data: hashlib.md5(data).digest(),
    "blind to the first token": lambda parent, data: hashlib.md5(data[4:]).digest(),
}
each_collision = pytest.mark.parametrize("function", COLLIDING.values(), ids=COLLIDING.keys())


def refused(manager: KVCacheManager, weak: Request) -> Iterator[Callable[[], object]]:
    yield lambda: manager.get_computed_blocks(weak)
    yield lambda: manager.allocate_slots(weak, 1)
    yield lambda: manager.allocate_slots_batch([weak], 1)


@pytest.mark.parametrize("name", [name for name, setup in SETUPS.items() if setup.caching])
def test_weak_hasher_needs_verification(name: str) -> None:
    setup = SETUPS[name]
    manager = setup.manager()
    weak = Request("r", PROMPT, setup.spec.block_size, hasher=FunctionHasher(COLLIDING["constant"]))
    state = manager_dump(manager)
    for call in refused(manager, weak):
        with pytest.raises(InvalidArgumentError, match="verify_tokens"):
            call()
    assert manager_dump(manager) == state
    manager.check()


def test_weak_hasher_needs_verification_below_the_manager() -> None:
    pool, spec = BlockPool(9), SETUPS["full"].spec
    weak = Request("r", PROMPT, 4, hasher=FunctionHasher(COLLIDING["constant"]))
    group = get_manager_for_kv_cache_spec(spec, pool, 0)
    group.allocate_new_blocks("r", 24)
    with pytest.raises(InvalidArgumentError, match="verify_tokens"):
        group.cache_blocks(weak, 24)
    with pytest.raises(InvalidArgumentError, match="verify_tokens"):
        pool.cache_full_blocks(weak, pool.get_new_blocks(1), 0, 1, 4)


def test_verifying_pool_does_not_trust_bare_hashes() -> None:
    manager = manager_of(SETUPS["full"].spec, verify_tokens=True)
    one = Request("one", PROMPT, 4, hasher=FunctionHasher(COLLIDING["constant"]))
    other = Request("other", PROMPT[::-1], 4, hasher=FunctionHasher(COLLIDING["constant"]))
    admit(manager, one)
    with contextlib.suppress(NotImplementedError):  # refused, as find_longest_cache_hit does
        assert manager.block_pool.get_cached_block(other.block_hashes[0], [0]) is None


@each_collision
@every_setup
@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=6), st.booleans())
def test_collisions_never_alias(
    setup: Setup, function: Callable[[bytes, bytes], bytes], prompts: list[list[int]], keep: bool
) -> None:
    """With verification a colliding hasher gives exactly the hits of a good one."""
    weak, good = setup.manager(64, verify_tokens=setup.caching), setup.manager(64)
    hashers = {id(weak): FunctionHasher(function), id(good): HASHERS["sha256"]}
    for number, prompt in enumerate(prompts):
        hits, lengths = [], []
        for manager in (weak, good):
            one = Request(f"r{number}", prompt, setup.spec.block_size, hasher=hashers[id(manager)])
            hits.append(manager.get_computed_blocks(one)[0].get_block_ids())
            lengths.append(admit(manager, one))
            if not keep:
                manager.free(one)
            manager.check()
        assert lengths[0] == lengths[1]
        assert hits[0] == hits[1]
    assert weak.block_pool.free_block_ids() == good.block_pool.free_block_ids()


@each_collision
@pytest.mark.parametrize("specs", [[full(4)], [full(4), sliding(2, 5)], [full(2), support.mamba(4)]], ids=len)
@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=6))
def test_collisions_inside_blocks_never_alias(
    specs: list[KVCacheSpec], function: Callable[[bytes, bytes], bytes], prompts: list[list[int]]
) -> None:
    """With verification a colliding hasher gives exactly the hits of a good one where hits end inside blocks, too."""
    weak = support.manager_over(specs, 65, verify_tokens=True, prefix_match_unit=1)
    good = support.manager_over(specs, 65, prefix_match_unit=1)
    for number, prompt in enumerate(prompts):
        lengths = []
        for manager, hasher in ((weak, FunctionHasher(function)), (good, HASHERS["sha256"])):
            one = Request(f"r{number}", prompt, 1, hasher=hasher)
            manager.new_step_starts()
            lengths.append(admit(manager, one))
            manager.take_copies()
            manager.free(one)
            manager.check()
        assert lengths[0] == lengths[1]
    assert weak.block_pool.free_block_ids() == good.block_pool.free_block_ids()


def test_a_part_that_collides_is_not_adopted() -> None:
    """A hit that ends inside a block is refused once another prompt with the same keys has taken the block."""
    manager = support.manager_over([full(4)], 4, verify_tokens=True, prefix_match_unit=1)
    hasher = FunctionHasher(COLLIDING["constant"])
    one, other = Request("one", [1, 2, 3], 1, hasher=hasher), Request("other", [7] * 11, 1, hasher=hasher)
    admit(manager, one)
    manager.free(one)
    again = Request("again", [1, 2, 3, 4], 1, hasher=hasher)
    hit, num_hit = manager.get_computed_blocks(again)
    assert num_hit == 3
    admit(manager, other)
    manager.free(other)
    with pytest.raises(StaleHitError, match="up to 3 tokens"):
        manager.allocate_slots(again, 1, num_hit, hit)
    manager.check()


def test_collision_is_not_adopted() -> None:
    """A colliding hit, found while it was right, is refused once its block holds other content."""
    spec = sliding(4, 5)
    manager = manager_of(spec, 9, verify_tokens=True)
    hasher = FunctionHasher(COLLIDING["constant"])
    one = Request("one", PROMPT[:9], 4, hasher=hasher)
    admit(manager, one)
    manager.free(one)
    again = Request("again", PROMPT[:9], 4, hasher=hasher)
    hit, num_hit = manager.get_computed_blocks(again)
    assert num_hit == 8
    other = Request("other", [7] * 32, 4, hasher=hasher)
    assert manager.allocate_slots(other, 32) is not None
    with pytest.raises(StaleHitError):
        manager.allocate_slots(again, 1, num_hit, hit)
    manager.check()
