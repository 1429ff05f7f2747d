"""The reports of a connector to its engine: how loads ended, and its counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class LoadResult(NamedTuple):
    """How a load ended, for a request that still waits for it.

    Attributes:
        request_id: of the request.
        num_tokens: tokens loaded; 0 if not all came: the request holds no blocks any more, and waits again. The blocks
            before the first one that did not come are then found on the device.
        num_computed_tokens: the value to which the engine sets the request's own count.
    """

    request_id: str
    num_tokens: int
    num_computed_tokens: int


class ConnectorStats(NamedTuple):
    """Counts since the connector was made.

    Attributes:
        lookups, lookups_hit: calls of `get_num_new_matched_tokens`, and those that found something.
        loads, loads_failed: loads begun, and those of them (or that could not begin) of which not all came.
        loaded_blocks: offloaded blocks that were loaded.
        stored_blocks: offloaded blocks whose store landed.
        known_blocks: to be stored, and present already.
        refused_blocks: not stored since the chain had no room, and the device gave them up.
        failed_blocks: offloaded blocks with a failed store.
        refused_transfers: transfers that the worker would not begin.
        loads_in_part: of `loads_failed` those whose first part came, and was kept.
        load_failures: `loads_failed` by reason. ``"gone"``: found no more when the load began; ``"no room"`` in the
            nearest tier for blocks from below, or on the device for parts of blocks; ``"not brought up"``: a lower tier
            failed to give a block; ``"not copied"`` to the device; ``"cancelled"``: the request had ended.
        waiting_blocks: to be stored once there is room, now.
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
    loads_in_part: int
    load_failures: Mapping[str, int]
    waiting_blocks: int


class HostResizing(NamedTuple):
    """How far the host's tier is that was resized.

    Attributes:
        num_blocks: blocks of the host now.
        held: blocks beyond these that transfers still use; their memory is given back once it is 0.
        requests: ids of the requests that are loaded from some of them. The other transfers store blocks, or carry them
            down.
    """

    num_blocks: int
    held: int
    requests: tuple[str, ...]


class Forgotten(NamedTuple):
    """What `OffloadingConnector.forget` or `reset_prefix_cache` has done, and what it could not do.

    Attributes:
        device_blocks: blocks of the device that were found before, and are no more.
        tier_blocks: blocks of the tiers that are found no more, in each tier by itself.
        blocks_held: blocks of the device that kept `reset_prefix_cache` from resetting it, as they are held; else 0.
        not_erased: blocks that a disk or a shared store did not delete, so that a later process may find them.
        not_searched: by medium, the number of blocks that were left because their owner is not known here: they are of
            an earlier run, or, in a store that engines share (-1, not counted), of other engines too. Forget them by
            request, or reset the medium.
    """

    device_blocks: int
    tier_blocks: int
    blocks_held: int
    not_erased: int
    not_searched: Mapping[str, int]
