"""Calls that are ended in their middle, one fresh world each, and what became of the state.

An `Ending` ends a call at its k-th chance: an allocation that fails, a line of the core, an access to one of the
caller's objects. After it the state is

- ``unchanged``: everything observable is as before,
- ``changed``: everything is as after the whole call,
- ``torn``: every later call raises `InterruptedCallError`,

or else `BrokenStateError` is raised. ``whole`` means that the call came to its end: there was no k-th chance.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

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

import blockwright
from blockwright import KVCacheSpec, Request, append_output_token_ids_batch
from blockwright.errors import InterruptedCallError

PACKAGE = Path(blockwright.__file__).parent
COMPILED_FOLDERS = (str(PACKAGE / "core"), str(PACKAGE / "paging"))


class Stop(BaseException):
    """What ends a call."""


class BrokenStateError(AssertionError):
    """A state that is neither as before nor as after, and that does not refuse later calls."""


class Given(NamedTuple):
    """How arguments are handed over: as they are, or as objects of the caller's own classes."""

    text: Callable[[str], str] = str
    number: Callable[[int], int] = int
    sequence: Callable[[list[Any]], Any] = list
    mapping: Callable[[dict[Any, Any]], Mapping[Any, Any]] = dict


AS_THEY_ARE = Given()


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

    def prepared(self, prepare: Callable[[World], object]) -> World:
        """Keep what the call is about."""
        self.extra = prepare(self)
        return self

    def dump(self) -> object:
        """Everything observable; the manager's own check passes."""
        self.manager.check()
        requests = [self.running, self.other, self.loading, self.new, self.child]
        copies = self.manager.block_pool.pending_copies()
        manager: Any = manager_dump(self.manager)
        pool = self.manager.block_pool
        apart = [pool.num_apart(block) for block in range(pool.num_blocks)]
        due = [tables.request_id for tables in self.manager._state.due.in_order()]
        return manager[:-1], copies, apart, due, [request_dump(request) for request in requests]

    def require_refusals(self) -> None:
        """See that a torn manager serves no call."""
        manager, pool = self.manager, self.manager.block_pool
        overlaps = manager.overlap_steps
        for call in (
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
            lambda: manager.managers[0].allocate_new_blocks("z", 4),
            lambda: manager.managers[0].free("z"),
        ):
            try:
                call()
            except InterruptedCallError:
                continue
            raise BrokenStateError("a call is served after one that ended in its middle")


class Call(NamedTuple):
    """One call, the world that it is made in, and what is looked at afterwards beside the world's own dump."""

    act: Callable[[World], object]
    prepare: Callable[[World], object] | None = None
    specs: int = 0
    overlap: bool = False
    notes: bool = False
    reads: Callable[[World], object] | None = None

    def world(self, given: Given) -> World:
        """A fresh world for it."""
        world = World(given, specs=self.specs, overlap=self.overlap, notes=self.notes)
        return world if self.prepare is None else world.prepared(self.prepare)

    def dump(self, world: World) -> object:
        return self.reads(world) if self.reads is not None else world.dump()


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
    "look up": Call(_hit),
    "explain": Call(lambda w: w.manager.explain_hit(w.new)),
    "copy": Call(lambda w: w.manager.copy()),
    "plan": Call(lambda w: w.manager.plan(w.new, w.given.number(20))),
    "allocate, new": Call(lambda w: w.manager.allocate_slots(w.new, w.given.number(20))),
    "allocate, a hit": Call(_adopt, _hit),
    "allocate, a load": Call(
        lambda w: w.manager.allocate_slots(w.new, 0, num_external_computed_tokens=w.given.number(9))
    ),
    "allocate, running": Call(
        lambda w: w.manager.allocate_slots(w.running, w.given.number(9), 0, None, w.given.number(2))
    ),
    "allocate, one token": Call(lambda w: w.manager.allocate_slots(w.running, w.given.number(1))),
    "allocate, a state": Call(
        lambda w: w.manager.allocate_slots(w.running, w.given.number(5), num_draft_tokens=w.given.number(0)), specs=1
    ),
    "allocate, a new state": Call(lambda w: w.manager.allocate_slots(w.new, w.given.number(4)), specs=1),
    "allocate, after a state": Call(lambda w: w.manager.allocate_slots(w.other, w.given.number(2)), specs=1),
    "allocate, in a step": Call(lambda w: w.manager.allocate_slots(w.running, w.given.number(4)), overlap=True),
    "commit": Call(lambda w: w.manager.commit(w.extra), lambda w: w.manager.plan(w.new, 20)),
    "batch": Call(
        lambda w: w.manager.allocate_slots_batch(
            w.given.sequence([w.running, w.other, w.new]), w.given.sequence([w.given.number(n) for n in (9, 1, 3)])
        )
    ),
    "batch of one": Call(lambda w: w.manager.allocate_slots_batch(w.given.sequence([w.running]), w.given.number(9))),
    "batch, in a step": Call(lambda w: w.manager.allocate_slots_batch([w.running, w.other, w.new], 3), overlap=True),
    "append to each": Call(
        lambda w: append_output_token_ids_batch(
            [w.running, w.other], w.given.sequence([w.given.number(7)] * 9), w.given.number(1), [8, 1]
        )
    ),
    "publish": Call(
        lambda w: w.manager.cache_blocks(w.new, w.given.number(8)),
        lambda w: w.manager.allocate_slots(w.new, 8, delay_cache_blocks=True),
    ),
    "publish, a state": Call(
        lambda w: w.manager.cache_blocks(w.running, w.given.number(8)),
        lambda w: w.manager.allocate_slots(w.running, 1, delay_cache_blocks=True),
        specs=1,
        overlap=True,
    ),
    "trim": Call(lambda w: w.manager.remove_skipped_blocks(w.running, w.given.number(7))),
    "free": Call(lambda w: w.manager.free(w.running)),
    "free, in a step": Call(lambda w: w.manager.free(w.other), overlap=True),
    "free, a state": Call(lambda w: w.manager.free(w.other), specs=1),
    "free, loading": Call(lambda w: w.manager.free(w.loading)),
    "fork": Call(lambda w: w.manager.fork(w.running, w.child)),
    "fork, a state": Call(lambda w: w.manager.fork(w.running, w.child), specs=1),
    "fork, after a state": Call(
        lambda w: w.manager.fork(w.other, w.extra), lambda w: w.other.fork(w.given.text("twin")), specs=1
    ),
    "copy on write": Call(
        lambda w: w.manager.allocate_slots(w.child, w.given.number(3)),
        _forked,
    ),
    "take copies": Call(
        lambda w: w.manager.take_copies(),
        lambda w: (_forked(w), w.manager.allocate_slots(w.child, 3)),
    ),
    "start a step": Call(lambda w: w.manager.start_step(), overlap=True),
    "start a step, a state": Call(
        lambda w: w.manager.start_step(), lambda w: w.manager.allocate_slots(w.running, 1), specs=1, overlap=True
    ),
    "a step starts": Call(lambda w: w.manager.new_step_starts(), specs=1),
    "common prefix": Call(
        lambda w: w.manager.get_num_common_prefix_blocks(w.given.text("running"), w.given.number(1)),
        lambda w: w.manager.free(w.other),
        overlap=True,
    ),
    "settle a step": Call(
        lambda w: w.manager.settle_step(
            w.given.number(w.manager.steps_in_flight[0]), w.given.mapping({w.given.text("other"): w.given.number(0)})
        ),
        overlap=True,
    ),
    "settle, and return": Call(
        lambda w: w.manager.settle_step(w.manager.steps_in_flight[0]), lambda w: w.manager.free(w.other), overlap=True
    ),
    "finish a load": Call(lambda w: w.manager.finish_load(w.loading, w.given.number(12))),
    "finish a part": Call(lambda w: w.manager.finish_load(w.loading, w.given.number(5))),
    "finish, freed": Call(
        lambda w: w.manager.finish_load(w.loading, w.given.number(5)), lambda w: w.manager.free(w.loading)
    ),
    "reset": Call(
        lambda w: w.manager.reset_prefix_cache(),
        _empty,
    ),
    "request, made": Call(lambda w: w.request("made", 20), reads=lambda w: None),
    "request, appended": Call(
        lambda w: w.new.append_output_token_ids(w.given.sequence([w.given.number(i) for i in range(50)]))
    ),
    "request, forked": Call(lambda w: w.new.fork(w.given.text("fork"))),
    "pool, take": Call(lambda w: w.manager.block_pool.get_new_blocks(w.given.number(30)), reads=_pool),
    "pool, touch": Call(lambda w: w.manager.block_pool.touch(w.given.sequence(w.extra.blocks)), _Pins, reads=_pool),
    "pool, free": Call(
        lambda w: w.manager.block_pool.free_blocks(w.given.sequence([w.given.number(i) for i in w.extra.ids])),
        _Pins,
        reads=_pool,
    ),
    "pool, publish": Call(
        lambda w: w.manager.block_pool.cache_full_blocks(
            _PUBLISHER, w.given.sequence(w.extra.ids), w.given.number(0), w.given.number(4), 1
        ),
        _Pins,
        reads=_pool,
    ),
    "group, new": Call(_single_call("allocate_new_blocks", "new", 6), _single, reads=_group),
    "group, grow": Call(_single_call("allocate_new_blocks", "r", 15), _single, reads=_group),
    "group, publish": Call(_single_call("cache_blocks", _PUBLISHER, 9), _single, reads=_group),
    "group, trim": Call(_single_call("remove_skipped_blocks", "r", 8), _single, reads=_group),
    "group, free": Call(_single_call("free", "r"), _single, reads=_group),
    "events, allocate": Call(lambda w: w.manager.allocate_slots(w.new, w.given.number(38)), notes=True),
    "events, free": Call(lambda w: w.manager.free(w.running), notes=True),
    "events, taken": Call(lambda w: w.manager.take_events(), notes=True),
}
"""By name, every call that changes the state of the core, and the readers that build something."""


def became(call: Call, ending: Ending, at: int, given: Given = AS_THEY_ARE) -> str:
    """End a call at its chance number `at`; return what became of the state, after going on with it."""
    world = call.world(given)
    before = call.dump(world)
    try:
        try:
            ending.start(at)
            call.act(world)
        finally:
            ending.stop()
        return "whole"
    except (Stop, MemoryError):
        pass
    except SystemError as error:  # librt: a vec that cannot be had is said to be a result with an exception set
        if not isinstance(error.__cause__, MemoryError):
            raise
    try:
        found = call.dump(world)
    except InterruptedCallError:
        if call.reads is None:
            world.require_refusals()
        return "torn"
    except Exception as error:
        raise BrokenStateError(f"{type(error).__name__}: {error}") from error
    if found == before:
        call.act(world)  # as if nothing had been
        return "unchanged"
    after = call.world(given)
    call.act(after)
    if found == call.dump(after):
        return "changed"
    raise BrokenStateError(f"neither as before nor as after\nbefore {before}\nfound  {found}")


# ---------------------------------------------------------------------- the endings


class Ending(NamedTuple):
    """How a call is ended at its k-th chance. Plain functions: leaving a context manager would take memory."""

    start: Callable[[int], object]
    stop: Callable[[], object]


def trace_from(at: int) -> None:
    """Raise at the k-th line of uncompiled code of the package that runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(COMPILED_FOLDERS):
            return None
        if event == "line":
            count += 1
            if count == at:
                sys.settrace(None)
                raise Stop
        return trace

    sys.settrace(trace)


def failing_memory(once: bool) -> Ending | None:
    """Fail the k-th allocation, alone or with all after it; None where Python cannot do that."""
    try:
        import _testcapi  # type: ignore[import-not-found]
    except ImportError:
        return None
    return Ending(lambda at: _testcapi.set_nomemory(at, at + 1 if once else 0), _testcapi.remove_mem_hooks)


a_line_of_the_core = Ending(trace_from, lambda: sys.settrace(None))
SHORTAGES = {"once": failing_memory(True), "from then on": failing_memory(False)}


def in_a_child(call: Call, ending: Ending, at: int) -> str:
    """Do as `became` in a child process, since it may die: return how then, and what stood in its way."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "lost"
        try:
            faulthandler.disable()
            signal.alarm(60)
            os.dup2(write, 2)  # what the compiler's runtime says at last goes to the parent too
            said = became(call, ending, at)
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(write, said.encode()[:60_000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"died of signal {os.WTERMSIG(status)}"
    return said if os.WEXITSTATUS(status) == 0 else f"left with status {os.WEXITSTATUS(status)}: {said}"


def shortages(call: Call, ending: Ending, points: range, calm: int = 12) -> dict[str, list[int]]:
    """Let memory run out at each of these points, until a call has come to its end so often; points by what became."""
    found: dict[str, list[int]] = {}
    whole = 0
    for at in points:
        result = in_a_child(call, ending, at)
        found.setdefault(result, []).append(at)
        whole = whole + 1 if result == "whole" else 0
        if whole == calm:
            break
    return found
