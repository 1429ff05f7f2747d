"""Loads of external hits: from the lookup to the end of the transfer, one at most for each request."""

from __future__ import annotations

from dataclasses import dataclass, field

from blockwright.core.keys.request import Request
from blockwright.core.manager import KVCacheManager
from blockwright.errors import UnknownRequestError
from blockwright.offload.hits import NeededBlock
from blockwright.offload.results import LoadResult


@dataclass(frozen=True)
class FoundHit:
    """An external hit as it was last reported.

    Attributes:
        num_computed: tokens of the device's own hit.
        num_external: tokens that can be loaded behind it, at least 1.
        needed: the blocks to load, in order of the tokens.
    """

    num_computed: int
    num_external: int
    needed: list[NeededBlock]


@dataclass
class Load:
    """A load under way, or one that never began (`job_id` None).

    Attributes:
        num_tokens: that it brings. num_computed: tokens before them, a multiple of every block size.
        needed: the blocks that it brings, in order of the tokens.
        num_arrived: how many of the first tokens have come, up to `num_tokens`.
        reason: why not all of them have.
        spare: blocks of the pool that take the parts of offloaded blocks which the request has no place for.
    """

    request: Request
    num_tokens: int
    num_computed: int
    needed: list[NeededBlock]
    job_id: int | None = None
    num_arrived: int = 0
    reason: str = ""
    spare: list[int] = field(default_factory=list)

    def arrive(self, num_blocks: int) -> None:
        """Count the tokens before the first block that has not come, if the first `num_blocks` have."""
        # Blocks of several groups come in order of their ends: a later one may begin before an earlier one ends.
        starts = [block.first_token for block in self.needed[num_blocks:]]
        end = max(0, min(starts) - self.num_computed) if starts else self.num_tokens
        self.num_arrived = min(end, self.num_tokens)


def is_running(manager: KVCacheManager, request_id: str) -> bool:
    """Return whether a request holds blocks. O(groups)."""
    try:
        manager.num_published(request_id)
    except UnknownRequestError:
        return False
    return True


def destinations(
    needed: list[NeededBlock], tables: tuple[list[int], ...], starts: list[int], stops: list[int], per_block: int
) -> list[int | None]:
    """Return the device block that each part of the offloaded blocks is loaded to; None where the request has none.

    The request's own are those after its hit and before the end of the load; what lies before is shared with others.
    """
    places: list[int | None] = []
    for block in needed:
        table, start, stop = tables[block.group], starts[block.group], stops[block.group]
        for entry in range(block.first_entry, block.first_entry + per_block):
            # A null entry: a window has passed it, so that nothing of it is read.
            places.append(table[entry] or None if start <= entry < stop else None)
    return places


def end_load(manager: KVCacheManager, load: Load) -> LoadResult | None:
    """Tell the manager that a load has ended; return the result for the engine, if the request still waits for it."""
    name = load.request.request_id
    was_running = is_running(manager, name)
    if manager.finish_load(load.request, load.num_arrived):
        return LoadResult(name, load.num_tokens, load.num_computed + load.num_tokens)
    # Freed meanwhile, or freed now since not all came. Whoever runs under the name after the call is another admission.
    return LoadResult(name, 0, 0) if was_running and not is_running(manager, name) else None
