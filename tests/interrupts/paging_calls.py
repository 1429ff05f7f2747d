"""The calls of the block manager: sequences that run, share, wait and lie on the CPU, each of an engine's own class.

Not covered: an engine's own allocators, and tables that are used without the manager.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.interrupts.ended import AS_THEY_ARE, Call, Given, require_refused, touched

from blockwright.paging import Device, SelfAttnBlockSpaceManager, SequenceStatus, SimpleSequenceGroup


class OwnSequence:
    """An engine's sequence, each of whose answers may raise."""

    def __init__(self, seq_id: int, token_ids: list[int]) -> None:
        self.seq_id = seq_id
        self.token_ids = token_ids
        self.status = SequenceStatus.WAITING
        self.num_computed_tokens = 0

    def get_len(self) -> int:
        touched()
        return len(self.token_ids)

    def get_token_ids(self) -> list[int]:
        touched()
        return self.token_ids

    def get_num_computed_tokens(self) -> int:
        touched()
        return self.num_computed_tokens

    def extra_hash(self) -> int | None:
        touched()
        return None


class World:
    """A running sequence with a child, one on the CPU, and groups that wait, one with an encoder."""

    def __init__(self, given: Given = AS_THEY_ARE, *, caching: bool, window: int | None = None) -> None:
        self.given = given
        self.manager = SelfAttnBlockSpaceManager(2, 40, 20, 0.0, window, caching)
        self.parent = self.sequence(1, 7)
        self.child = self.sequence(2, 7)
        self.away = self.sequence(3, 6, 50)
        self.waiting = self.sequence(4, 9)
        self.twin = self.sequence(5, 9)
        self.running = SimpleSequenceGroup("running", [self.parent])
        self.swapped = SimpleSequenceGroup("swapped", [self.away])
        self.both = SimpleSequenceGroup("both", [self.parent, self.child])
        self.new = SimpleSequenceGroup("new", [self.waiting, self.twin])
        self.manager.allocate(self.running)
        self.manager.allocate(self.swapped)
        self.manager.fork(self.parent, self.child)
        self.parent.status = self.away.status = SequenceStatus.RUNNING
        self.manager.swap_out(self.swapped)
        self.away.status = SequenceStatus.SWAPPED
        self.parent.token_ids += [given.number(token) for token in (90, 91, 92)]
        self.parent.num_computed_tokens = 7
        self.extra: Any = None

    def sequence(self, seq_id: int, length: int, first: int = 0) -> OwnSequence:
        number = self.given.number
        return OwnSequence(number(seq_id), [number(first + i) for i in range(length)])

    def with_encoder(self) -> SimpleSequenceGroup:
        alone = self.sequence(6, 5, 70)
        return SimpleSequenceGroup(self.given.text("encoded"), [alone], encoder_seq=self.sequence(7, 6, 80))

    def dump(self) -> object:
        manager = self.manager
        manager.check()
        pools = [manager.block_allocator.on(device).pool for device in (Device.GPU, Device.CPU)]
        marks = [range(pool.first_id + 1, pool.first_id + 1 + pool.num_total()) for pool in pools]
        return (
            {seq_id: table.physical_block_ids for seq_id, table in manager.block_tables.items()},
            {name: table.physical_block_ids for name, table in manager.cross_block_tables.items()},
            [
                (table.num_full_slots, table.num_computed_tokens, table.num_found_tokens)
                for table in manager.block_tables.values()
            ],
            [pool.free_block_ids() for pool in pools],
            [(pool.has_data(mark), pool.is_whole(mark)) for pool, at in zip(pools, marks, strict=True) for mark in at],
        )

    def require_refusals(self) -> None:
        """See that a torn manager serves no call."""
        require_refused(*(partial(act, self) for act in ACTS.values()), self.manager.check, self.manager.copy)


ACTS: dict[str, Callable[[World], object]] = {
    "allocate": lambda w: w.manager.allocate(w.new),
    "append": lambda w: w.manager.append_slots(w.parent, w.given.number(3)),
    "append to a copy": lambda w: w.manager.append_slots(w.child, w.given.number(1)),
    "fork": lambda w: w.manager.fork(w.parent, w.twin),
    "free": lambda w: w.manager.free(w.parent),
    "swap out": lambda w: w.manager.swap_out(w.running),
    "swap in": lambda w: w.manager.swap_in(w.swapped),
    "mark": lambda w: w.manager.mark_blocks_as_computed(w.both, w.given.number(5)),
    "cached": lambda w: w.manager.get_num_cached_tokens(w.waiting),
    "reset": lambda w: w.manager.reset_prefix_cache(),
}
"""Calls that change something; all of them are refused by a torn manager."""

READS: dict[str, Callable[[World], object]] = {
    "may append": lambda w: w.manager.can_append_slots(w.both, w.given.number(2)),
    "may swap": lambda w: w.manager.can_swap_in(w.swapped, w.given.number(2)),
    "table": lambda w: w.manager.get_block_table(w.parent),
    "copy": lambda w: w.manager.copy(),
}

CACHED, PLAIN, WINDOW = (
    partial(World, caching=True),
    partial(World, caching=False),
    partial(World, caching=False, window=4),
)
CALLS: dict[str, Call] = {
    f"tables, {kind}: {name}": Call(make, act)
    for kind, make in (("cached", CACHED), ("window", WINDOW))
    for name, act in {**ACTS, **READS}.items()
    if kind == "cached" or name != "cached"
} | {
    "tables: allocate, an encoder": Call(PLAIN, lambda w: w.manager.allocate(w.extra), World.with_encoder),
    "tables: free an encoder": Call(
        PLAIN,
        lambda w: w.manager.free_cross(w.extra),
        lambda w: (group := w.with_encoder(), w.manager.allocate(group))[0],
    ),
    "tables: access": Call(CACHED, lambda w: w.manager.access_all_blocks_in_seq(w.parent, 3.0)),
}
