"""Property: a call of the block manager that ends in its middle leaves all as before or after, or none is served later.

How: every call that changes tables, in a fresh world, ended at one point after another: where the engine's own sequence
or token is asked something (both builds; there nothing may tear), and at a line of the uncompiled code. A sample of the
points; all with ``BLOCKWRIGHT_ALL_POINTS=1``.

Not covered: allocators and tables that are used without the manager; an engine's own allocators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.calls.interrupted import Ending, Stop, a_line_of_the_core
from tests.core.calls.test_interrupts import ALL, OWN, an_object_of_the_caller, touched
from tests.core.support import pure_only

from blockwright.errors import InterruptedCallError
from blockwright.paging import (
    Device,
    SelfAttnBlockSpaceManager,
    SequenceStatus,
    SimpleSequenceGroup,
)


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
    """A running sequence with a child, one on the CPU, and a group that waits."""

    def __init__(self, caching: bool) -> None:
        self.manager = SelfAttnBlockSpaceManager(2, 40, 20, 0.0, None if caching else 4, caching)
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
        self.parent.token_ids += [OWN.number(token) for token in (90, 91, 92)]
        self.parent.num_computed_tokens = 7

    def sequence(self, seq_id: int, length: int, first: int = 0) -> OwnSequence:
        return OwnSequence(OWN.number(seq_id), [OWN.number(first + i) for i in range(length)])

    def dump(self) -> object:
        manager = self.manager
        manager.check()
        tables = {seq_id: table.physical_block_ids for seq_id, table in manager.block_tables.items()}
        full = [table.num_full_slots for table in manager.block_tables.values()]
        free = [manager.block_allocator.on(device).pool.free_block_ids() for device in (Device.GPU, Device.CPU)]
        counts = [(table.num_computed_tokens, table.num_found_tokens) for table in manager.block_tables.values()]
        data = []
        for device in (Device.GPU, Device.CPU):
            pool = manager.block_allocator.on(device).pool
            marks = range(pool.first_id + 1, pool.first_id + 1 + pool.num_total())
            data += [(pool.has_data(mark), pool.is_whole(mark)) for mark in marks]
        return tables, full, free, counts, data


CALLS: dict[str, Callable[[World], object]] = {
    "allocate": lambda w: w.manager.allocate(w.new),
    "append": lambda w: w.manager.append_slots(w.parent, OWN.number(3)),
    "append to a copy": lambda w: w.manager.append_slots(w.child, OWN.number(1)),
    "fork": lambda w: w.manager.fork(w.parent, w.twin),
    "free": lambda w: w.manager.free(w.parent),
    "swap out": lambda w: w.manager.swap_out(w.running),
    "swap in": lambda w: w.manager.swap_in(w.swapped),
    "mark": lambda w: w.manager.mark_blocks_as_computed(w.both, OWN.number(5)),
    "reset": lambda w: w.manager.reset_prefix_cache(),
}


def became(call: Callable[[World], object], ending: Ending, at: int, caching: bool) -> str:
    """End a call at its chance number `at`; return what became of the state."""
    world = World(caching)
    before = world.dump()
    try:
        try:
            ending.start(at)
            call(world)
        finally:
            ending.stop()
        return "whole"
    except Stop:
        pass
    try:
        found = world.dump()
    except InterruptedCallError:
        for other in CALLS.values():
            with pytest.raises(InterruptedCallError):
                other(world)
        return "torn"
    if found == before:
        return "unchanged"
    after = World(caching)
    call(after)
    assert found == after.dump()
    return "changed"


def results(name: str, ending: Ending, caching: bool, stride: int) -> Any:
    """End a call at all points, or at each so-manieth."""
    for at in range(1, 100_000, 1 if ALL else stride):
        result = became(CALLS[name], ending, at, caching)
        yield result
        if result == "whole":
            return


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_the_engines_objects(name: str, caching: bool) -> None:
    assert set(results(name, an_object_of_the_caller, caching, 1)) <= {"unchanged", "changed", "whole"}


@pure_only
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_lines(name: str, caching: bool) -> None:
    assert set(results(name, a_line_of_the_core, caching, 13)) <= {"unchanged", "changed", "torn", "whole"}
