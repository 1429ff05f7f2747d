"""The calls of the core: a manager with requests in every situation, and all that changes it or builds something."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.core.support import (
    SHA256,
    Options,
    full,
    group_of,
    mamba,
    manager_dump,
    manager_over,
    pool_dump,
    request_dump,
    sliding,
)
from tests.interrupts.ended import AS_THEY_ARE, Call, Given, require_refused

from blockwright import KVCacheSpec, Request, append_output_token_ids_batch


class World:
    """A manager with requests in every situation: running, forked, in flight, loading, new with a hit."""

    def __init__(
        self, given: Given = AS_THEY_ARE, *, specs: int = 0, overlap: bool = False, notes: bool = False
    ) -> None:
        kinds: list[KVCacheSpec] = [full(2), mamba(2, 2) if specs else sliding(1, 3)]
        options: Options = {
            "overlap_steps": overlap,
            "log_stats": True,
            "enable_kv_cache_events": notes,
            "explain_evictions": notes,
            "track_evictions": notes,
        }
        self.given = given
        self.manager = manager = manager_over(kinds, 120, 200, **options)
        if notes:
            manager.start_journal(99)
        self.unit = 1 if specs == 0 else 2
        self.running = self.request("running", 40)
        self.other = self.request("other", 40, 100)
        self.loading = self.request("loading", 30, 200)
        self.new = self.request("new", 40)
        for request, count in ((self.running, 7), (self.other, 8)):
            if overlap:
                manager.start_step()
            manager.allocate_slots(request, count)
            if overlap:
                manager.settle_step(manager.steps_in_flight[0])
            request.num_computed_tokens = count
        manager.allocate_slots(self.loading, 0, num_external_computed_tokens=12)
        self.child = self.running.fork(given.text("child"))
        self.extra: Any = None
        if overlap:
            manager.start_step()
            manager.allocate_slots(self.other, given.number(3), num_draft_tokens=0)
            self.other.num_computed_tokens = 11
            manager.start_step()

    def request(self, name: str, length: int, first: int = 0) -> Request:
        tokens = self.given.sequence([self.given.number(first + i) for i in range(length)])
        return Request(self.given.text(name), tokens, self.unit, hasher=SHA256)

    def dump(self) -> object:
        self.manager.check()
        requests = [self.running, self.other, self.loading, self.new, self.child]
        copies = self.manager.block_pool.pending_copies()
        manager: Any = manager_dump(self.manager)
        pool = self.manager.block_pool
        apart = pool.holders_apart()
        due = [tables.request_id for tables in self.manager._state.due.in_order()]
        return manager[:-1], copies, apart, due, [request_dump(request) for request in requests]

    def require_refusals(self) -> None:
        """See that a torn manager serves no call."""
        manager, pool = self.manager, self.manager.block_pool
        overlaps = manager.overlap_steps
        require_refused(
            manager.check,
            manager.copy,
            pool.copy,
            pool.reset_prefix_cache,
            manager.reset_prefix_cache,
            manager.take_copies,
            lambda: manager.get_computed_blocks(self.new),
            lambda: manager.allocate_slots(self.new, 4),
            lambda: manager.allocate_slots(self.running, 1),
            lambda: manager.allocate_slots_batch([self.running], 1),
            lambda: manager.plan(self.running, 1),
            lambda: manager.free(self.running),
            lambda: manager.fork(self.running, self.child),
            lambda: manager.finish_load(self.loading, 12),
            lambda: manager.get_block_ids("running"),
            lambda: manager.get_num_common_prefix_blocks("running", 1),
            lambda: manager.can_load(self.new, 0, 4),
            manager.start_step if overlaps else manager.new_step_starts,
            lambda: pool.get_new_blocks(1),
            lambda: pool.touch([1]),
            lambda: pool.free_blocks([1]),
        )


STATES = partial(World, specs=1)
STEPS = partial(World, overlap=True)
STEPS_OF_STATES = partial(World, specs=1, overlap=True)
EVENTS = partial(World, notes=True)


def _hit(world: World) -> object:
    return world.manager.get_computed_blocks(world.new)


def _adopt(world: World) -> object:
    hit, count = world.extra
    return world.manager.allocate_slots(world.new, world.given.number(20), count, hit)


def _forked(world: World) -> object:
    world.manager.fork(world.running, world.child)
    return None


def _empty(world: World) -> None:
    for request in (world.running, world.other):
        world.manager.free(request)
    world.manager.finish_load(world.loading, 0)


class _Pins:
    """Blocks that are held through the pool's own names."""

    def __init__(self, world: World) -> None:
        self.pool = world.manager.block_pool
        self.blocks = self.pool.get_new_blocks(4)
        self.ids = [block.block_id for block in self.blocks]


def _pool(world: World) -> object:
    pool = world.manager.block_pool
    pool.check()
    return pool_dump(pool)


def _group(world: World) -> object:
    group = world.extra
    group.block_pool.check()
    tables = {name: [block.block_id for block in blocks] for name, blocks in group.req_to_blocks.items()}
    return tables, group.num_cached_block, pool_dump(group.block_pool)


def _single(world: World) -> object:
    group = group_of(sliding(1, 3), 40)
    group.allocate_new_blocks(world.given.text("r"), 9)
    group.cache_blocks(Request("r", list(range(40)), 1, hasher=SHA256), 4)
    return group


def _single_call(name: str, *arguments: Any) -> Callable[[World], object]:
    def act(world: World) -> object:
        made = [
            world.given.text(each) if isinstance(each, str) else world.given.number(each) if type(each) is int else each
            for each in arguments
        ]
        return getattr(world.extra, name)(*made)

    return act


_PUBLISHER = Request("r", list(range(40)), 1, hasher=SHA256)

CALLS: dict[str, Call] = {
    "look up": Call(World, _hit),
    "explain": Call(World, lambda w: w.manager.explain_hit(w.new)),
    "copy": Call(World, lambda w: w.manager.copy()),
    "plan": Call(World, lambda w: w.manager.plan(w.new, w.given.number(20))),
    "allocate, new": Call(World, lambda w: w.manager.allocate_slots(w.new, w.given.number(20))),
    "allocate, a hit": Call(World, _adopt, _hit),
    "allocate, a load": Call(
        World, lambda w: w.manager.allocate_slots(w.new, 0, num_external_computed_tokens=w.given.number(9))
    ),
    "allocate, running": Call(
        World, lambda w: w.manager.allocate_slots(w.running, w.given.number(9), 0, None, w.given.number(2))
    ),
    "allocate, one token": Call(World, lambda w: w.manager.allocate_slots(w.running, w.given.number(1))),
    "allocate, a state": Call(
        STATES, lambda w: w.manager.allocate_slots(w.running, w.given.number(5), num_draft_tokens=w.given.number(0))
    ),
    "allocate, a new state": Call(STATES, lambda w: w.manager.allocate_slots(w.new, w.given.number(4))),
    "allocate, after a state": Call(STATES, lambda w: w.manager.allocate_slots(w.other, w.given.number(2))),
    "allocate, in a step": Call(STEPS, lambda w: w.manager.allocate_slots(w.running, w.given.number(4))),
    "commit": Call(World, lambda w: w.manager.commit(w.extra), lambda w: w.manager.plan(w.new, 20)),
    "batch": Call(
        World,
        lambda w: w.manager.allocate_slots_batch(
            w.given.sequence([w.running, w.other, w.new]), w.given.sequence([w.given.number(n) for n in (9, 1, 3)])
        ),
    ),
    "batch of one": Call(
        World, lambda w: w.manager.allocate_slots_batch(w.given.sequence([w.running]), w.given.number(9))
    ),
    "batch, in a step": Call(STEPS, lambda w: w.manager.allocate_slots_batch([w.running, w.other, w.new], 3)),
    "append to each": Call(
        World,
        lambda w: append_output_token_ids_batch(
            [w.running, w.other], w.given.sequence([w.given.number(7)] * 9), w.given.number(1), [8, 1]
        ),
    ),
    "publish": Call(
        World,
        lambda w: w.manager.cache_blocks(w.new, w.given.number(8)),
        lambda w: w.manager.allocate_slots(w.new, 8, delay_cache_blocks=True),
    ),
    "publish, a state": Call(
        STEPS_OF_STATES,
        lambda w: w.manager.cache_blocks(w.running, w.given.number(8)),
        lambda w: w.manager.allocate_slots(w.running, 1, delay_cache_blocks=True),
    ),
    "trim": Call(World, lambda w: w.manager.remove_skipped_blocks(w.running, w.given.number(7))),
    "free": Call(World, lambda w: w.manager.free(w.running)),
    "free, in a step": Call(STEPS, lambda w: w.manager.free(w.other)),
    "free, a state": Call(STATES, lambda w: w.manager.free(w.other)),
    "free, loading": Call(World, lambda w: w.manager.free(w.loading)),
    "fork": Call(World, lambda w: w.manager.fork(w.running, w.child)),
    "fork, a state": Call(STATES, lambda w: w.manager.fork(w.running, w.child)),
    "fork, after a state": Call(
        STATES, lambda w: w.manager.fork(w.other, w.extra), lambda w: w.other.fork(w.given.text("twin"))
    ),
    "copy on write": Call(
        World,
        lambda w: w.manager.allocate_slots(w.child, w.given.number(3)),
        _forked,
    ),
    "take copies": Call(
        World,
        lambda w: w.manager.take_copies(),
        lambda w: (_forked(w), w.manager.allocate_slots(w.child, 3)),
    ),
    "start a step": Call(STEPS, lambda w: w.manager.start_step()),
    "start a step, a state": Call(
        STEPS_OF_STATES, lambda w: w.manager.start_step(), lambda w: w.manager.allocate_slots(w.running, 1)
    ),
    "a step starts": Call(STATES, lambda w: w.manager.new_step_starts()),
    "common prefix": Call(
        STEPS,
        lambda w: w.manager.get_num_common_prefix_blocks(w.given.text("running"), w.given.number(1)),
        lambda w: w.manager.free(w.other),
    ),
    "settle a step": Call(
        STEPS,
        lambda w: w.manager.settle_step(
            w.given.number(w.manager.steps_in_flight[0]), w.given.mapping({w.given.text("other"): w.given.number(0)})
        ),
    ),
    "settle, and return": Call(
        STEPS, lambda w: w.manager.settle_step(w.manager.steps_in_flight[0]), lambda w: w.manager.free(w.other)
    ),
    "finish a load": Call(World, lambda w: w.manager.finish_load(w.loading, w.given.number(12))),
    "finish a part": Call(World, lambda w: w.manager.finish_load(w.loading, w.given.number(5))),
    "finish, freed": Call(
        World, lambda w: w.manager.finish_load(w.loading, w.given.number(5)), lambda w: w.manager.free(w.loading)
    ),
    "reset": Call(
        World,
        lambda w: w.manager.reset_prefix_cache(),
        _empty,
    ),
    "request, made": Call(World, lambda w: w.request("made", 20), reads=lambda w: ()),
    "request, appended": Call(
        World, lambda w: w.new.append_output_token_ids(w.given.sequence([w.given.number(i) for i in range(50)]))
    ),
    "request, forked": Call(World, lambda w: w.new.fork(w.given.text("fork"))),
    "pool, take": Call(World, lambda w: w.manager.block_pool.get_new_blocks(w.given.number(30)), reads=_pool),
    "pool, touch": Call(
        World, lambda w: w.manager.block_pool.touch(w.given.sequence(w.extra.blocks)), _Pins, reads=_pool
    ),
    "pool, free": Call(
        World,
        lambda w: w.manager.block_pool.free_blocks(w.given.sequence([w.given.number(i) for i in w.extra.ids])),
        _Pins,
        reads=_pool,
    ),
    "pool, publish": Call(
        World,
        lambda w: w.manager.block_pool.cache_full_blocks(
            _PUBLISHER, w.given.sequence(w.extra.ids), w.given.number(0), w.given.number(4), 1
        ),
        _Pins,
        reads=_pool,
    ),
    "group, new": Call(World, _single_call("allocate_new_blocks", "new", 6), _single, reads=_group),
    "group, grow": Call(World, _single_call("allocate_new_blocks", "r", 15), _single, reads=_group),
    "group, publish": Call(World, _single_call("cache_blocks", _PUBLISHER, 9), _single, reads=_group),
    "group, trim": Call(World, _single_call("remove_skipped_blocks", "r", 8), _single, reads=_group),
    "group, free": Call(World, _single_call("free", "r"), _single, reads=_group),
    "events, allocate": Call(EVENTS, lambda w: w.manager.allocate_slots(w.new, w.given.number(38))),
    "events, free": Call(EVENTS, lambda w: w.manager.free(w.running)),
    "events, taken": Call(EVENTS, lambda w: w.manager.take_events()),
}
"""By name, every call that changes the state of the core, and the readers that build something."""
