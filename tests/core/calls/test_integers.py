"""Property: no integer, however odd, crashes or corrupts: it is served, or refused by a typed error that names it.

How: every integer parameter of every public call gets zero, negatives, the edges of 31, 32, 63 and 64 bits, more than
any machine word. A refusal is a `BlockwrightError` whose message names the argument, and leaves everything as it was;
after what is accepted the self-check passes.

Not covered: values of other types than integers (test_arguments.py); that accepted calls do the right thing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.core.support import (
    chunked,
    cross,
    full,
    group_of,
    mamba,
    manager_dump,
    manager_of,
    manager_over,
    request_dump,
    single_dump,
    sliding,
    started,
)

from blockwright import (
    BlockPool,
    FullAttentionManager,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    MultiModalItem,
    Request,
    append_output_token_ids_batch,
    get_manager_for_kv_cache_spec,
    siphash128,
)
from blockwright.errors import BlockwrightError, NeverFitsError


class World:
    """One of everything, in the middle of its life."""

    def __init__(self) -> None:
        self.manager = manager_of(full(), 17, 60, log_stats=True)
        self.running = started(self.manager, "running", 9)
        self.running.append_output_token_ids([1])
        self.new = Request("new", list(range(20, 30)), 4)
        self.group = group_of(sliding(), 17)
        self.member = Request("member", list(range(12)), 4)
        self.group.allocate_new_blocks("member", 12)
        self.group.cache_blocks(self.member, 5)
        self.pool = self.group.block_pool
        self.own = [block.block_id for block in self.pool.get_new_blocks(3)]
        self.config = KVCacheConfig(5, [KVCacheGroupSpec(["layers.0"], full())])

    def dump(self) -> object:
        requests = [request_dump(request) for request in (self.running, self.new, self.member)]
        return manager_dump(self.manager), single_dump(self.group), requests

    def check(self) -> None:
        self.manager.check()
        self.pool.check()

    def computed(self, value: Any) -> object:
        """Have the engine's own count be this value for one call."""
        before = self.running.num_computed_tokens
        try:
            self.running.num_computed_tokens = value
            return self.manager.allocate_slots(self.running, 1)
        finally:
            self.running.num_computed_tokens = before

    def forked(self, value: Any) -> object:
        """Have the engine's own count be this value for a fork."""
        before = self.running.num_computed_tokens
        try:
            self.running.num_computed_tokens = value
            return self.manager.fork(self.running, self.running.fork("child"))
        finally:
            self.running.num_computed_tokens = before


class StepWorld:
    """Managers with a step in flight, with a load, and with an encoder, each in the middle of its life."""

    def __init__(self) -> None:
        self.steps = manager_over([full(), mamba(4, 2)], 40, 60, overlap_steps=True)
        self.steps.start_step()
        self.steps.settle_step(1)
        self.steps.start_step()
        self.flying = Request("flying", list(range(5)), 4)
        assert self.steps.allocate_slots(self.flying, 7, num_draft_tokens=2) is not None
        self.plain = manager_of(full(), 17, 60)
        self.running, self.new = Request("running", list(range(9)), 4), Request("new", list(range(20, 30)), 4)
        assert self.plain.allocate_slots(self.running, 9) is not None
        self.running.num_computed_tokens = 9
        self.running.append_output_token_ids([1])
        self.loading = Request("loading", list(range(50, 60)), 4)
        assert self.plain.allocate_slots(self.loading, 0, num_external_computed_tokens=8) is not None
        self.encoder = manager_over([full(), cross()], 17, 60, caching=False)

    def check(self) -> None:
        for manager in self.managers():
            manager.check()

    def dump(self) -> object:
        requests = [request_dump(each) for each in (self.flying, self.running, self.new, self.loading)]
        return [manager_dump(each) for each in self.managers()], requests

    def managers(self) -> list[KVCacheManager]:
        return [self.steps, self.plain, self.encoder]


def settled(world: StepWorld, value: Any) -> None:
    world.steps.settle_step(2, {"flying": value})


NAMED = [
    "num_new_tokens", "num_new_computed_tokens", "num_lookahead_tokens", "num_draft_tokens",
    "num_external_computed_tokens", "num_encoder_tokens", "reserved_blocks", "num_checkpoint_tokens",
]  # fmt: skip


def asked(call: str, name: str) -> Callable[[StepWorld, Any], object]:
    def ask(world: StepWorld, value: Any) -> object:
        given: dict[str, Any] = {"num_new_tokens": 0 if name == "num_external_computed_tokens" else 10, name: value}
        manager = world.encoder if name == "num_encoder_tokens" else world.plain
        return getattr(manager, call)(world.new, **given)

    return ask


class Case(NamedTuple):
    """A call with one integer in it, the argument's name, whether any is harmless there, and the most allowed."""

    call: Callable[[Any, Any], object]
    name: str
    harmless: bool = False
    world: type[World] | type[StepWorld] = World
    most: int = 2**31 - 1


def attention(**fields: Any) -> FullAttentionSpec:
    return FullAttentionSpec(**{"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": "fp8", **fields})


CASES: dict[str, Case] = {
    # what a model declares
    "full.block_size": Case(lambda w, v: attention(block_size=v), "block_size"),
    "full.num_kv_heads": Case(lambda w, v: attention(num_kv_heads=v), "num_kv_heads"),
    "full.head_size": Case(lambda w, v: attention(head_size=v), "head_size"),
    "sliding.window": Case(lambda w, v: sliding(4, v), "sliding_window"),
    "sliding.sinks": Case(lambda w, v: sliding(4, 6, v), "sink_len"),
    "chunked.chunk": Case(lambda w, v: chunked(1, v), "attention_chunk_size"),
    "chunked.block_size": Case(lambda w, v: chunked(v, 8), "block_size"),
    "mamba.block_size": Case(lambda w, v: mamba(v), "block_size"),
    "cross.block_size": Case(lambda w, v: cross(v), "block_size"),
    "config.num_blocks": Case(lambda w, v: KVCacheConfig(v, w.config.kv_cache_groups), "num_blocks"),
    # requests
    "request.block_size": Case(lambda w, v: Request("r", [1] * 9, v), "block_size"),
    "request.token": Case(lambda w, v: Request("r", [1, v, 3], 4), "prompt_token_ids", most=2**62 - 1),
    "request.item.offset": Case(
        lambda w, v: Request("r", [1] * 9, 4, mm_items=[MultiModalItem("i", v, 1)]), "mm_items"
    ),
    "request.item.length": Case(
        lambda w, v: Request("r", [1] * 9, 4, mm_items=[MultiModalItem("i", 0, v)]), "mm_items"
    ),
    "request.append": Case(lambda w, v: w.running.append_output_token_ids(v), "token_ids"),
    "request.append.token": Case(lambda w, v: w.running.append_output_token_ids([1, v, 1]), "token_ids"),
    "append.token": Case(lambda w, v: append_output_token_ids_batch([w.running, w.new], [1, v]), "token_ids"),
    "append.computed": Case(
        lambda w, v: append_output_token_ids_batch([w.new, w.running], [1, 1], v), "num_computed_tokens"
    ),
    "append.count": Case(lambda w, v: append_output_token_ids_batch([w.running], [1, 1], 0, [v]), "n"),
    # the manager
    "manager.max_model_len": Case(lambda w, v: KVCacheManager(w.config, v), "max_model_len"),
    "manager.dcp_world_size": Case(lambda w, v: KVCacheManager(w.config, 9, dcp_world_size=v), "dcp_world_size"),
    "slots.new": Case(lambda w, v: w.manager.allocate_slots(w.running, v), "num_new_tokens"),
    "slots.new of a new one": Case(lambda w, v: w.manager.allocate_slots(w.new, v), "num_new_tokens"),
    "slots.hit": Case(lambda w, v: w.manager.allocate_slots(w.new, 1, v), "num_new_computed_tokens"),
    "slots.lookahead": Case(lambda w, v: w.manager.allocate_slots(w.running, 1, 0, None, v), "num_lookahead_tokens"),
    "slots.computed": Case(lambda w, v: w.computed(v), "num_computed_tokens"),
    "fork.computed": Case(lambda w, v: w.forked(v), "num_computed_tokens"),
    "batch.new": Case(lambda w, v: w.manager.allocate_slots_batch([w.running, w.new], v), "num_new_tokens"),
    "batch.new each": Case(lambda w, v: w.manager.allocate_slots_batch([w.running, w.new], [1, v]), "num_new_tokens"),
    "batch.lookahead": Case(lambda w, v: w.manager.allocate_slots_batch([w.running], 1, v), "num_lookahead_tokens"),
    "batch.lookahead each": Case(lambda w, v: w.manager.allocate_slots_batch([w.new], 1, [v]), "num_lookahead_tokens"),
    "cache_blocks": Case(lambda w, v: w.manager.cache_blocks(w.running, v), "num_computed_tokens"),
    "remove_skipped_blocks": Case(lambda w, v: w.manager.remove_skipped_blocks(w.running, v), "num_computed_tokens"),
    "retain.tokens": Case(lambda w, v: w.manager.retain(w.running, v, 1, 9), "num_tokens"),
    "retain.priority": Case(lambda w, v: w.manager.retain(w.running, 1, v, 9), "priority"),
    "release_prefix": Case(lambda w, v: w.manager.release_prefix(w.running, v), "first_token"),
    "common_prefix": Case(
        lambda w, v: w.manager.get_num_common_prefix_blocks("running", v), "num_running_requests", True
    ),
    # the pool
    "pool.num_blocks": Case(lambda w, v: BlockPool(v), "num_blocks"),
    "pool.get_new_blocks": Case(lambda w, v: w.pool.get_new_blocks(v), "num_blocks"),
    "pool.get_cached_block.group": Case(
        lambda w, v: w.pool.get_cached_block(w.member.block_hashes[0], [0, v]), "group_id", True
    ),
    "pool.touch": Case(lambda w, v: w.pool.touch([1, v]), "blocks"),
    "pool.free_blocks": Case(lambda w, v: w.pool.free_blocks([1, v]), "blocks"),
    "pool.cache.blocks": Case(lambda w, v: w.pool.cache_full_blocks(w.member, [w.own[0], v], 0, 2, 4), "blocks"),
    "pool.cache.first": Case(lambda w, v: w.pool.cache_full_blocks(w.member, w.own, v, 2, 4), "num_full_blocks"),
    "pool.cache.last": Case(lambda w, v: w.pool.cache_full_blocks(w.member, w.own, 0, v, 4), "num_full_blocks"),
    "pool.cache.block_size": Case(lambda w, v: w.pool.cache_full_blocks(w.member, w.own, 0, 2, v), "block"),
    "pool.cache.group": Case(lambda w, v: w.pool.cache_full_blocks(w.member, w.own, 0, 2, 4, v), "group_id"),
    # the manager of one kind
    "group.id": Case(lambda w, v: get_manager_for_kv_cache_spec(full(), w.pool, v), "kv_cache_group_id"),
    "group.dcp_world_size": Case(lambda w, v: FullAttentionManager(full(), w.pool, 0, v), "dcp_world_size"),
    "group.demand": Case(lambda w, v: w.group.get_num_blocks_to_allocate("x", v, []), "num_tokens"),
    "group.demand.hit": Case(lambda w, v: w.group.get_num_blocks_to_allocate("x", 8, [1, v]), "blocks"),
    "group.adopt": Case(lambda w, v: w.group.save_new_computed_blocks("x", [v]), "blocks"),
    "group.grow": Case(lambda w, v: w.group.allocate_new_blocks("member", v), "num_tokens"),
    "group.cache_blocks": Case(lambda w, v: w.group.cache_blocks(w.member, v), "num_tokens"),
    "group.trim": Case(lambda w, v: w.group.remove_skipped_blocks("member", v), "num_computed_tokens"),
    "group.common_prefix": Case(
        lambda w, v: w.group.get_num_common_prefix_blocks("member", v), "num_running_requests", True
    ),
    "group.hit.length": Case(
        lambda w, v: type(w.group).find_longest_cache_hit(w.member.block_hashes, v, [0], w.pool, sliding()),
        "max_length",
    ),
    "group.hit.group": Case(
        lambda w, v: type(w.group).find_longest_cache_hit(w.member.block_hashes, 8, [v], w.pool, sliding()),
        "kv_cache_group_id",
        True,
    ),
    "siphash.compression": Case(lambda w, v: siphash128(bytes(16), b"", v, 3), "compression"),
    "siphash.finalisation": Case(lambda w, v: siphash128(bytes(16), b"", 1, v), "finalisation"),
    # plans, steps in flight, loads, drafts and encoders
    **{f"plan.{name}": Case(asked("plan", name), name, world=StepWorld) for name in NAMED},
    **{f"slots.{name}": Case(asked("allocate_slots", name), name, world=StepWorld) for name in NAMED},
    "batch.drafts": Case(
        lambda w, v: w.plain.allocate_slots_batch([w.running, w.new], 10, 0, v), "num_draft_tokens", world=StepWorld
    ),
    "batch.drafts each": Case(
        lambda w, v: w.plain.allocate_slots_batch([w.new], 10, 0, [v]), "num_draft_tokens", world=StepWorld
    ),
    "settle.step": Case(lambda w, v: w.steps.settle_step(v), "step", world=StepWorld),
    "settle.rejected": Case(settled, "num_rejected_tokens", world=StepWorld),
    "finish_load": Case(lambda w, v: w.plain.finish_load(w.loading, v), "num_loaded_tokens", world=StepWorld),
    "mamba.drafts": Case(lambda w, v: MambaSpec(4, ((1,),), ("fp8",), v), "num_speculative_blocks", world=StepWorld),
}
INSIDE = [0, 1, 4, 8, 2**31 - 1]
OUTSIDE = [-1, -4, -(2**31), -(2**63), -(2**63) - 1]
OUTSIDE += [2**31, 2**32, 2**32 + 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**70]
each_case = pytest.mark.parametrize("name", CASES)


def attempt(name: str, value: object) -> BaseException | None:
    """Make the call in a fresh world; return what it raised, after seeing that it left everything as it was."""
    case = CASES[name]
    world = case.world()
    before = world.dump()
    try:
        case.call(world, value)
    except Exception as error:
        assert world.dump() == before
        return error
    finally:
        world.check()
    return None


def is_refusal(name: str, error: BaseException | None) -> bool:
    never = CASES[name].world is StepWorld and isinstance(error, NeverFitsError)
    return never or (isinstance(error, BlockwrightError) and CASES[name].name in str(error))


@each_case
def test_integers_in_range(name: str) -> None:
    for value in INSIDE:
        error = attempt(name, value)
        idle = CASES[name].world is StepWorld and value == 0 and "num_new_tokens" in str(error)  # and none to load
        assert error is None or idle or is_refusal(name, error), f"{value!r} gave {error!r}"


@each_case
def test_integers_out_of_range(name: str) -> None:
    for value in OUTSIDE:
        error = attempt(name, value)
        if 0 <= value <= CASES[name].most:
            assert error is None
            continue
        harmless = CASES[name].harmless and (error is None or isinstance(error, BlockwrightError))
        assert harmless or is_refusal(name, error), f"{value!r} gave {error!r}"


def test_groups_are_not_confused() -> None:
    """A group id that does not fit is refused, not cut to the id of another group."""
    world = World()
    world.pool.cache_full_blocks(world.member, world.own, 0, 2, 4, 1)
    assert world.pool.get_cached_block(world.member.block_hashes[1], [1]) is not None
    assert world.pool.get_cached_block(world.member.block_hashes[1], [0]) is None


def test_huge_groups_are_not_confused() -> None:
    world = World()
    with contextlib.suppress(BlockwrightError):
        world.pool.cache_full_blocks(world.member, world.own, 0, 2, 4, 2**32)
    assert world.pool.get_cached_block(world.member.block_hashes[1], [0]) is None


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5])
def test_watermarks_are_shares(value: float) -> None:
    assert manager_of(full(), watermark=value).usage == 0.0
