"""Who reads what is published beside lookups: vLLM's events name its request, and a connector asks for its hashes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core import kv_cache_utils as utils
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from blockwright import KVCacheManager as Manager
from blockwright import events
from blockwright.engines.vllm.pool import Pool
from blockwright.engines.vllm.settings import Settings


class Events:
    """What happened since it was last taken, in vLLM's words."""

    def __init__(self, settings: Settings, core: Manager, running: Mapping[str, Any]) -> None:
        """Follow what a manager publishes and loses."""
        self._core, self._sizes, self._first = core, settings.sizes, settings.first
        self._unit = settings.hash_unit or 0
        # Before 0.33 an event has no field for the tokens that a hash looks ahead at.
        self._lookahead = settings.lookahead if "lookahead_token_ids" in BlockStored.__struct_fields__ else 0
        self._running = running
        self._kinds = [
            (get_kv_cache_spec_kind(group.kv_cache_spec).value, get_kv_cache_spec_sliding_window(group.kv_cache_spec))
            for group in settings.declared.kv_cache_groups
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
        """Report that consecutive blocks of a request, or one part of a block, can be found; they end at `ends`."""
        # A part is reported with its own tokens behind the block before it, so that a router which has that block can
        # place the part. vLLM's own manager reports the last unit alone, behind a unit that it mostly never reports.
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


class Readers:
    """What is kept for them, while it is known of which request a block was published.

    Attributes:
        events: vLLM's, None where nobody asked for them.
    """

    def __init__(self, settings: Settings, core: Manager, pool: Pool, running: Mapping[str, Any], events: bool) -> None:
        """Keep nothing yet."""
        self._settings, self._core, self._pool, self._running = settings, core, pool, running
        self.events = Events(settings, core, running) if events and settings.caches else None
        self._noted: dict[str, int] = {}  # hashes of a request that the pool has kept
        self._passed: dict[str, dict[int, int]] = {}  # tokens of a request's last state that was offered, by group
        self._offers: dict[str, list[tuple[int, int, int]]] = {}

    @property
    def are_each(self) -> bool:
        """Whether publications must be told one by one, with their request."""
        return self.events is not None or self._pool.keeps_hashes

    def begin(self, request: Any, count: int) -> None:
        """Offer no states of a request's first tokens, which it has hit or loaded."""
        if self._pool.keeps_hashes:
            self._passed[request.request_id] = dict.fromkeys(range(len(self._settings.sizes)), count)

    def forget(self, request: Any) -> None:
        """Forget a request, which holds nothing any more, and what was offered of it."""
        if self._pool.keeps_hashes:
            for kept in (self._noted, self._passed, self._offers):
                kept.pop(request.request_id, None)

    def tell(self, request: Any, count: int) -> None:
        """Take in that blocks within the first tokens of a request were published."""
        if self.events is not None:
            self.events.drain(request)
        if self._pool.keeps_hashes:
            hashes, first, noted = request.block_hashes, self._settings.first, self._noted.get(request.request_id, 0)
            units = min(count // (self._settings.hash_unit or self._settings.unit), len(hashes) - first)
            self._pool.note(zip(hashes[noted + first : units + first], hashes[noted:units], strict=True))
            self._noted[request.request_id] = max(noted, units)
            self.offer(request)

    def offer(self, request: Any) -> None:
        """Offer a connector the states that were published of a running request since it was last offered one."""
        name = request.request_id
        if not (self._settings.has_states and self._pool.keeps_hashes and name in self._running):
            return
        passed = self._passed.setdefault(name, {})
        tables, published = self._core.get_block_ids(name), self._core.num_published(name)
        for group, (spec, size) in enumerate(zip(self._settings.specs, self._settings.sizes, strict=True)):
            entry = published[group] - 1
            end = published[group] * size
            if spec.is_recurrent and end > passed.get(group, 0):
                passed[group] = end
                if entry < len(tables[group]) and tables[group][entry]:  # of a private request all has been passed
                    self._offers.setdefault(name, []).append((group, tables[group][entry], end))

    def take_offers(self) -> dict[str, list[tuple[int, int, int]]]:
        """Return the states that were offered since the last call, as (group, block, tokens)."""
        # A block that was given up and taken since then holds another request's data, so it is left out.
        offers, self._offers = self._offers, {}
        unit, before = self._settings.hash_unit or self._settings.unit, self._settings.first - 1
        for name, states in offers.items():  # of requests that run: those of others went with them
            hashes, carries = self._running[name].block_hashes, self._pool.carries
            offers[name] = [each for each in states if carries(each[1], hashes[each[2] // unit + before], each[0])]
        return {name: states for name, states in offers.items() if states}
