"""Blockwright's events as vLLM's: one per run of blocks of one request, with all that its consumers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils as utils
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from blockwright import KVCacheManager as Manager
from blockwright import events


class Events:
    """What happened since it was last taken, in vLLM's words."""

    def __init__(
        self, core: Manager, groups: Sequence[Any], sizes: Sequence[int], hash_block_size: int, lookahead: int
    ) -> None:
        """Listen to a manager whose groups, with blocks of these sizes, vLLM declared so; hashes may look ahead."""
        self._core, self._sizes, self._unit, self._lookahead = core, sizes, hash_block_size, lookahead
        self._kinds = [
            (get_kv_cache_spec_kind(group.kv_cache_spec).value, get_kv_cache_spec_sliding_window(group.kv_cache_spec))
            for group in groups
        ]
        self._events: list[Any] = []

    def take(self) -> list[Any]:
        """Return the events since the last call, oldest first."""
        self.drain(None)
        taken, self._events = self._events, []
        return taken

    def drain(self, request: Any) -> None:
        """Take the manager's events; blocks that were stored are `request`'s."""
        run: list[int] = []
        group = 0
        for event in self._core.take_events():
            if isinstance(event, events.BlockStored):
                units = self._sizes[event.group_id] // self._unit
                index = (request.block_hashes.index(event.block_hash) + 1) // units - 1
                if run and (group != event.group_id or index != run[-1] + 1):
                    self._stored(request, group, run)
                    run = []
                group = event.group_id
                run.append(index)
                continue
            if run:
                self._stored(request, group, run)
                run = []
            if isinstance(event, events.BlockRemoved):
                removed = utils.maybe_convert_block_hash(event.block_hash)
                self._events.append(BlockRemoved(block_hashes=[removed], medium=MEDIUM_GPU, group_idx=event.group_id))
            else:
                self._events.append(AllBlocksCleared())
        if run:
            self._stored(request, group, run)

    def repeat(self, request: Any, num_tokens: int) -> None:
        """Report a hit as if it were stored now, for a request that asked for all that it shares."""
        for group, size in enumerate(self._sizes):
            self._stored(request, group, list(range(num_tokens // size)))

    def _stored(self, request: Any, group: int, indices: list[int]) -> None:
        """Report that consecutive blocks of a request can be found."""
        size, lora = self._sizes[group], request.lora_request
        units = size // self._unit
        hashes = [request.block_hashes[(index + 1) * units - 1] for index in indices]
        start = indices[0] * size
        parent = request.block_hashes[indices[0] * units - 1] if start else None
        ahead = self._lookahead
        keys = [
            utils.generate_block_hash_extra_keys(request, index * size, (index + 1) * size + ahead, 0)[0]
            for index in indices
        ]
        ends = [(index + 1) * size for index in indices]
        more = {"lookahead_token_ids": [request.all_token_ids[end : end + ahead] for end in ends]} if ahead else {}
        kind, window = self._kinds[group]
        self._events.append(
            BlockStored(
                block_hashes=[utils.maybe_convert_block_hash(each) for each in hashes],
                parent_block_hash=None if parent is None else utils.maybe_convert_block_hash(parent),
                token_ids=request.all_token_ids[start : start + len(indices) * size],
                block_size=size,
                lora_id=lora.adapter_id if lora else None,
                medium=MEDIUM_GPU,
                lora_name=lora.name if lora else None,
                extra_keys=utils.to_event_extra_keys(keys),
                group_idx=group,
                kv_cache_spec_kind=kind,
                kv_cache_spec_sliding_window=window,
                session_id=request.session_id,
                **more,
            )
        )
