"""What a connector tells its engine: how loads ended, and what it has counted."""

from __future__ import annotations

from typing import NamedTuple


class LoadResult(NamedTuple):
    """How a load ended, for a request that still waits for it.

    Attributes:
        request_id: of the request.
        num_tokens: tokens loaded; 0 if the load failed: the request holds no blocks any more, and waits again.
        num_computed_tokens: what the engine sets the request's own count to.
    """

    request_id: str
    num_tokens: int
    num_computed_tokens: int


class ConnectorStats(NamedTuple):
    """Counts since the connector was made.

    Attributes:
        lookups, lookups_hit: calls of `get_num_new_matched_tokens`, and those that found something.
        loads, loads_failed: loads begun, and those of them (or that could not begin) that failed.
        loaded_blocks: offloaded blocks that were loaded.
        stored_blocks: offloaded blocks whose store landed.
        known_blocks: to be stored, and present already.
        refused_blocks: not stored since the chain had no room.
        failed_blocks: whose store failed.
        refused_transfers: transfers that the worker would not begin.
    """

    lookups: int
    lookups_hit: int
    loads: int
    loads_failed: int
    loaded_blocks: int
    stored_blocks: int
    known_blocks: int
    refused_blocks: int
    failed_blocks: int
    refused_transfers: int
