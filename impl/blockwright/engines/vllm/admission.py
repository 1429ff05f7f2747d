"""Who begins, and who waits: newcomers leave to those that run the states that these take next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.request import RequestStatus

from blockwright import Fits, KVCacheBlocks
from blockwright import KVCacheManager as Manager
from blockwright.engines.vllm.progress import Progress
from blockwright.engines.vllm.readers import Readers
from blockwright.engines.vllm.requests import Twin
from blockwright.engines.vllm.settings import Settings
from blockwright.errors import UnsupportedError

_CROWD = 32
"""The states that requests take in one step, as they fill a block together, are at most such a part of the pool."""


class Admission:
    """What is kept free, or kept cached, for others than the request that is served.

    Attributes:
        spared: states that the hit of a request that was refused ends with.
    """

    def __init__(
        self, settings: Settings, core: Manager, progress: Progress, readers: Readers, running: dict[str, Any]
    ) -> None:
        """Keep nothing yet; requests that are admitted come to `running`."""
        self._settings, self._core, self._progress, self._running = settings, core, progress, running
        self._readers = readers
        self._undrafted: set[str] = set()  # those that run and have had no step with drafts
        self.spared: list[int] = []

    def reserve(self) -> int:
        """Return how many blocks stay free when a request is admitted beside others that are scheduled."""
        # A request takes a block in each recurrent layer as it fills one, and those for the states of drafts as it
        # begins to decode.
        settings, soon = self._settings, 0
        if self._running and settings.num_drafts:
            soon = sum(settings.drafts) * (len(self._undrafted) + 1)
        elif self._running and settings.has_states:
            soon = len(settings.state_sizes)
        return settings.watermark + soon

    def note_step(self, request: Any, twin: Twin) -> None:
        """Note whether a step went beyond the known tokens, so that the request has its states for drafts."""
        if self._undrafted and twin.written > twin.request.num_tokens and self._settings.has_states:
            self._undrafted.discard(request.request_id)

    def forget(self, request: Any) -> None:
        """Forget a request that runs no more."""
        self._undrafted.discard(request.request_id)

    def _is_crowded(self, stop: int) -> bool:
        """Return whether a newcomer with `stop` tokens would fill its blocks in the same steps as too many others."""
        # As it fills a block, a request holds two states in each group for a step. Requests of one prompt that begin
        # together would do so together for good, so a newcomer waits for another step.
        settings = self._settings
        if not settings.has_states or settings.num_drafts or not self._running:
            return False
        size, others = settings.state_sizes[0], 0
        for request in self._running.values():
            if request.status == RequestStatus.RUNNING:  # a session that waits for its next turn stands still
                after = max(request._blockwright.written, request.num_computed_tokens + 1)  # decoding is not told of
                others += (after - stop) % size == 0
        states = len(settings.state_sizes) * (others + 1)
        # Of all steps in which it might fill its first block, half have no more than twice the average.
        return others * size > 2 * len(self._running) and states * _CROWD > self._core.block_pool.num_blocks

    def _is_left_this_step(self, request: Any, length: int) -> bool:
        """Return whether this step leaves a recurrent state that lengthens a request's hit: it is found in the next."""
        # Other layers have the prefix of the state, and with a draft head a block more.
        hashes, unit, sizes = request.block_hashes, self._settings.hash_unit or 1, self._settings.state_sizes
        for count, other in self._progress.left:
            if length < count <= request._blockwright.junction and not any(count % size for size in sizes):
                at = count // unit - 1
                if other.block_hashes[at] == hashes[at]:
                    return True
        return False

    def _is_copied_this_step(self, hit: KVCacheBlocks | None) -> bool:
        """Return whether this step copies a state that a hit ends with: no copy is made of it before the next."""
        pool = self._core.block_pool
        return hit is not None and any(pool.is_destination(int(ids[-1])) for ids in hit.ids if len(ids))

    def spare(self, hit: KVCacheBlocks) -> None:
        """Count a hit as used, though its request is refused: while it waits, others would evict what it has found."""
        # Until a request is asked for again, those that run do not take the states that it ends with: a block a group.
        # Without them the request would take the whole prefix in blocks of its own, though those that run share it.
        pool = self._core.block_pool
        for spec, ids in zip(self._settings.specs, hit.ids, strict=True):
            pool.touch(ids)
            pool.free_blocks(ids[::-1])
            if spec.is_recurrent:
                self.spared += ids[-1:]

    def release(self) -> None:
        """Let a newcomer take what another waits for, last of all."""
        if self.spared:
            with self.sparing():
                self.spared = []

    def may_release(self, request: Any) -> bool:
        """Let the only request that runs take what another waits for; return whether there is something."""
        if not self.spared or any(
            other is not request and other.status == RequestStatus.RUNNING for other in self._running.values()
        ):
            return False
        self.spared = []
        return True

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Hold what a request that runs is not to take, while it is served."""
        pool = self._core.block_pool
        self.spared = spared = [block for block in self.spared if pool.block_key(block) is not None]
        pool.touch(spared)
        try:
            yield
        finally:
            pool.free_blocks(spared)

    def admit(
        self, request: Any, new: int, length: int, hit: Any, external: int, late: bool, ahead: int, coded: int, fit: Any
    ) -> KVCacheBlocks | None:
        """Start a request, or a load for it."""
        settings, progress, twin = self._settings, self._progress, request._blockwright
        self._require_served(request, new, external, late)
        own, stop = twin.request, length + external + new
        if settings.has_states and (self._is_left_this_step(request, length) or self._is_copied_this_step(hit)):
            return None
        own.num_computed_tokens = 0
        twin.learn(request, request.num_tokens)
        if self._is_crowded(stop):
            return None
        inside = progress.inside(request, length + external, stop) if new else 0
        trims = settings.next_trim is not None
        if external and (not new or trims):
            blocks = self._load(own, new, length, hit, external, ahead, inside, fit)
        else:  # what is loaded within the step is for the core a part of it, published when it has come
            is_later = late or bool(external) or settings.again > 0
            more = {**fit, "num_encoder_tokens": coded, "num_checkpoint_tokens": inside}
            blocks = self._core.allocate_slots(own, external + new, length, hit, ahead, is_later, **more)
        if blocks is None:
            return None
        self._running[request.request_id] = request
        if twin.is_session:
            twin.heard, twin.stop = request.num_tokens, stop
        if settings.num_drafts:
            self._undrafted.add(request.request_id)
        twin.takes_whole = False
        if not new:
            twin.loading = (length, external)
            return blocks
        is_held = late or (bool(external) and not trims)
        is_published = not is_held and not settings.again
        twin.published = max(length, min(stop, own.num_tokens - twin.lookahead)) if is_published else length
        self._readers.begin(request, length + external)
        progress.note_step(request, twin, length if is_held else length + external, stop, ahead, inside)
        self.note_step(request, twin)
        if is_held:
            progress.hold(request)
        self._readers.tell(request, twin.published)
        return blocks

    def _require_served(self, request: Any, new: int, external: int, is_late: bool) -> None:
        """Return if what vLLM's scheduler asks for a newcomer is served."""
        trims, why, remedy = self._settings.next_trim is not None, "", ": use a connector that loads asynchronously"
        if not new and not is_late:
            why, remedy = "delay_cache_blocks=False with a hit or a load and no token to compute (a replay)", ""
        elif new and external and trims and is_late:
            why = "delay_cache_blocks=True with a load and new tokens in one step, where layers have windows,"
        elif new and external and trims and len(self._settings.sizes) == 1:  # of several, vLLM refuses what failed
            why = "a synchronous load into layers with windows alone, which could not be computed again if it failed,"
        if why:
            raise UnsupportedError(f"request {request.request_id!r}: {why} is not supported under Blockwright{remedy}")

    def _load(
        self, own: Any, new: int, length: int, hit: Any, external: int, ahead: int, inside: int, fits: dict[str, Any]
    ) -> KVCacheBlocks | None:
        """Take blocks for a load, and for tokens that are computed right behind it."""
        if new:
            plan = self._core.plan(own, external + new, length, hit, ahead, **fits, num_checkpoint_tokens=inside)
            if not isinstance(plan, Fits):
                return None
            fits = {}
        blocks = self._core.allocate_slots(own, 0, length, hit, num_external_computed_tokens=external, **fits)
        if blocks is None or not new:
            return blocks
        self._core.finish_load(own, external)
        own.num_computed_tokens = length + external
        after = self._core.allocate_slots(own, new, 0, None, ahead, num_checkpoint_tokens=inside)
        if after is None:
            raise UnsupportedError(f"request {own.request_id!r}: no blocks for tokens after a load")
        return blocks + after
