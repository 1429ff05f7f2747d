"""Blockwright's events as vLLM's: one per run of blocks of a request or part of one, with all that consumers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils as utils
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from blockwright import KVCacheManager as Manager
from blockwright import events


class Events:
    """What happened since it was last taken, in vLLM's words."""

    def __init__(
        self,
        core: Manager,
        groups: Sequence[Any],
        sizes: Sequence[int],
        hash_block_size: int,
        lookahead: int,
        first: int,
        running: Mapping[str, Any],
    ) -> None:
        """Listen to a manager whose groups, with blocks of these sizes, vLLM declared so.

        Hashes may look ahead, by so many tokens; that of the first unit is number `first`.
        """
        self._core, self._sizes, self._unit, self._first = core, sizes, hash_block_size, first
        # Before 0.33 an event has no field for the tokens that a hash looks ahead at.
        self._lookahead = lookahead if "lookahead_token_ids" in BlockStored.__struct_fields__ else 0
        self._running = running
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
        """Take the manager's events; what was stored is `request`'s, or else of another that runs."""
        run: list[int] = []
        group, whose, others = 0, request, dict[Any, Any]()
        for event in (*self._core.take_events(), None):
            owner, end, at = request, 0, group
            if isinstance(event, events.BlockStored):
                if request is None or event.block_hash not in request.block_hashes:
                    others = others or {each: other for other in self._running.values() for each in other.block_hashes}
                    owner = others[event.block_hash]
                number = owner.block_hashes.index(event.block_hash)
                end, at = (number + 1 - self._first) * self._unit, event.group_id
            is_next = event is not None and end == (run or [0])[-1] + self._sizes[group]
            if run and not (is_next and owner is whose and at == group):
                self._stored(whose, group, run)
                run = []
            if isinstance(event, events.BlockStored):
                whose, group = owner, at
                run.append(end)
            elif isinstance(event, events.BlockRemoved):
                removed = utils.maybe_convert_block_hash(event.block_hash)
                self._events.append(BlockRemoved(block_hashes=[removed], medium=MEDIUM_GPU, group_idx=event.group_id))
            elif event is not None:
                self._events.append(AllBlocksCleared())

    def repeat(self, request: Any, num_tokens: int) -> None:
        """Report a hit as if it were stored now, for a request that asked for all that it shares."""
        for group, size in enumerate(self._sizes):
            if num_tokens >= size:
                self._stored(request, group, list(range(size, num_tokens + 1, size)))
            if num_tokens % size:
                self._stored(request, group, [num_tokens])

    def _stored(self, request: Any, group: int, ends: list[int]) -> None:
        """Report that consecutive blocks of a request, or one part of a block, can be found; they end at `ends`.

        A part is reported with its own tokens behind the block before it, so that a router which has that block can
        place the part. vLLM's own manager reports the last unit alone, behind a unit that it mostly never reports.
        """
        ahead, lora = self._lookahead, request.lora_request
        start = (ends[0] - 1) // self._sizes[group] * self._sizes[group]
        size = ends[0] - start
        before = self._first - 1  # a hash's number less that of its units
        hashes = [request.block_hashes[end // self._unit + before] for end in ends]
        parent = request.block_hashes[start // self._unit + before] if start else None
        keys = [utils.generate_block_hash_extra_keys(request, end - size, end + ahead, 0)[0] for end in ends]
        more = {"lookahead_token_ids": [request.all_token_ids[end : end + ahead] for end in ends]} if ahead else {}
        kind, window = self._kinds[group]
        self._events.append(
            BlockStored(
                block_hashes=[utils.maybe_convert_block_hash(each) for each in hashes],
                parent_block_hash=None if parent is None else utils.maybe_convert_block_hash(parent),
                token_ids=request.all_token_ids[start : ends[-1]],
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
