"""The journal of a manager: what each call asked and did, so that metrics and timelines are folds over it.

A manager that is not recorded pays nothing: `KVCacheManager.record` returns an object that is used in its place, passes
every name on, and notes the calls that change something.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from blockwright.core.keys.request import Request
from blockwright.core.manager import KVCacheManager
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.pool.journal import Eviction
from blockwright.core.steps.outcomes import BatchAllocation


class Fact(NamedTuple):
    """One thing that happened.

    Attributes:
        at: when, in seconds of the clock.
        kind: "lookup", "admit", "grow", "refuse", "fork", "free", "preempt", "start", "settle", "loaded", "reset" or
            "outside" (a lookup beyond the device).
        request: of which request; "" where of none.
        tokens: looked up, given slots, or loaded.
        prompt: tokens of the request's prompt, where it is admitted.
        hit: tokens found, or adopted from the device.
        queries: tokens looked up before, of a request that is admitted for the first time.
        external: tokens that are loaded from elsewhere.
        new: blocks taken, all groups one after the other.
        held: blocks of the hit, held once more.
        evicted: blocks taken with which the last copy of something went, where the manager tracks evictions.
        free: free blocks afterwards.
        step: the step that was started or settled.
    """

    at: float
    kind: str
    request: str = ""
    tokens: int = 0
    prompt: int = 0
    hit: int = 0
    external: int = 0
    new: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    free: int = 0
    step: int = 0
    queries: int = 0


class RecordedManager:
    """A manager that notes its calls. All other names are the manager's own.

    Attributes:
        manager: the manager itself.
    """

    def __init__(
        self, manager: KVCacheManager, note: Callable[[Fact], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Stand before a manager.

        Args:
            manager: made with ``track_evictions=True`` if evictions are to be seen.
            note: called with each fact: the ``append`` of a list or bounded deque, or a `metrics.Metrics`.
            clock: the time that facts carry, in seconds.
        """
        self.manager = manager
        self._note = note
        self._clock = clock
        most = max(1024, 4 * manager.block_pool.num_blocks)  # more than a step evicts
        self._evictions: deque[Eviction] = deque(maxlen=most)
        self._running = set(manager.request_ids())

    def __getattr__(self, name: str) -> Any:
        """Pass all other names on."""
        return getattr(self.manager, name)

    def _write(self, kind: str, request: str = "", **what: Any) -> None:
        """Note a fact."""
        evicted = self.manager.take_evictions()
        self._evictions += evicted
        pool = self.manager.block_pool
        blocks = tuple([each.block_id for each in evicted])
        self._note(Fact(self._clock(), kind, request, evicted=blocks, free=pool.get_num_free_blocks(), **what))

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Look a request up."""
        hit, length = self.manager.get_computed_blocks(request)
        self._write("lookup", request.request_id, tokens=request.num_tokens, hit=length)
        return hit, length

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *rest: Any,
        **more: Any,
    ) -> KVCacheBlocks | None:
        """Give slots."""
        is_new = request.request_id not in self._running
        queries = 0 if request._was_admitted else request._num_looked_up
        blocks = self.manager.allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, *rest, **more
        )
        if blocks is None:
            self._write("refuse", request.request_id, tokens=num_new_tokens)
            return None
        what: dict[str, Any] = {"tokens": num_new_tokens, "new": _ids(blocks)}
        if is_new:
            self._running.add(request.request_id)
            what |= {"hit": num_new_computed_tokens, "held": _ids(new_computed_blocks), "queries": queries}
            what |= {"prompt": request.num_prompt_tokens, "external": more.get("num_external_computed_tokens", 0)}
        self._write("admit" if is_new else "grow", request.request_id, **what)
        return blocks

    def allocate_slots_batch(
        self, requests: Sequence[Request], num_new_tokens: int | Sequence[int] = 1, *rest: Any, **more: Any
    ) -> BatchAllocation:
        """Give slots to several requests; the new blocks of each are its own fact."""
        batch = self.manager.allocate_slots_batch(requests, num_new_tokens, *rest, **more)
        count, offsets, new = len(self.manager.managers), batch.new_block_offsets, batch.new_block_ids
        for at, request in enumerate(requests[: batch.num_served]):
            taken = tuple([int(block) for block in new[offsets[at * count] : offsets[(at + 1) * count]] if block])
            tokens = num_new_tokens if isinstance(num_new_tokens, int) else num_new_tokens[at]
            self._write("grow", request.request_id, tokens=tokens, new=taken)
        if batch.refused is not None:
            self._write("refuse", requests[batch.refused].request_id)
        return batch

    def free(self, request: Request) -> None:
        """Release a request's blocks."""
        self._release(request, "free")

    def preempt(self, request: Request) -> None:
        """Release the blocks of a request that goes on later: `free`, counted as a preemption."""
        self._release(request, "preempt")

    def _release(self, request: Request, kind: str) -> None:
        self.manager.free(request)
        self._running.discard(request.request_id)
        self._write(kind, request.request_id)

    def fork(self, parent: Request, child: Request) -> KVCacheBlocks | None:
        """Fork a request; the child's blocks are held once more."""
        blocks = self.manager.fork(parent, child)
        if blocks is not None:
            self._running.add(child.request_id)
            self._write("fork", child.request_id, held=_ids(blocks))
        return blocks

    def start_step(self) -> int:
        """Start a step."""
        step = self.manager.start_step()
        self._write("start", step=step)
        return step

    def settle_step(self, step: int, *rest: Any, **more: Any) -> None:
        """Settle a step."""
        self.manager.settle_step(step, *rest, **more)
        self._write("settle", step=step)

    def finish_load(self, request: Request, num_loaded_tokens: int) -> bool:
        """End a load."""
        is_running = self.manager.finish_load(request, num_loaded_tokens)
        self._write("loaded", request.request_id, tokens=num_loaded_tokens)
        return is_running

    def reset_prefix_cache(self) -> bool:
        """Reset the prefix cache."""
        was_reset = self.manager.reset_prefix_cache()
        if was_reset:
            self._write("reset")
        return was_reset

    def found_outside(self, request: Request, num_queried: int, num_found: int) -> None:
        """Note a lookup beyond the device: the tokens that a connector was asked for, and those it found."""
        self._write("outside", request.request_id, tokens=num_queried, hit=num_found)

    def take_evictions(self) -> list[Eviction]:
        """Return the evictions since the last call, oldest first.

        The last 4 for each block of the pool are kept, at least 1,024: an engine that needs them calls this each step.
        """
        evictions = list(self._evictions)
        self._evictions.clear()
        return evictions


def _ids(blocks: KVCacheBlocks | None) -> tuple[int, ...]:
    """Return the blocks of all groups, without null entries."""
    groups: Iterable[list[int]] = (blocks and blocks.get_block_ids()) or ()
    return tuple([block for ids in groups for block in ids if block])
