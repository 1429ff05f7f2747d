"""How far each request has come: which of its steps the core has heard of, and what of them is published.

Most steps of decoding change no table, so the core hears of them with the next step that does. A step that fills a
block is *due*: it is published when a lookup comes, or when the next step starts where states are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blockwright import KVCacheManager as Manager
from blockwright.engines.vllm.readers import Readers
from blockwright.engines.vllm.requests import FOR_EVER, NEVER, Twin
from blockwright.engines.vllm.settings import Settings
from blockwright.errors import InvariantError


class Progress:
    """The counts of running requests, kept between what vLLM schedules and what the core is told.

    Attributes:
        left: states that steps since the last start leave: the tokens, and the request.
        fills_in_place: whether a step that fills a block within its table changes counts here alone.
        checkpoint: where the worker leaves a state inside a step (`kinds.checkpoint_rule`); None: nowhere.
    """

    def __init__(self, settings: Settings, core: Manager, readers: Readers, running: Mapping[str, Any]) -> None:
        """Begin without requests."""
        self._settings, self._core, self._readers, self._running = settings, core, readers, running
        self.left: list[tuple[int, Any]] = []
        self.checkpoint: Callable[[int, int], int] | None = None
        self._due: dict[str, Any] = {}
        self._dying: list[Any] = []
        self._unit, self._trims = settings.unit, settings.next_trim
        self._has_states, self._is_certain = settings.has_states, settings.is_certain
        self.fills_in_place = self._is_certain or not self._has_states

    # ------------------------------------------------------------------ what vLLM has scheduled

    def note_step(self, request: Any, twin: Twin, begin: int, stop: int, ahead: int, inside: int = 0) -> None:
        """Note what a step that the core gave slots to has changed."""
        twin.request.num_computed_tokens = stop
        known = twin.request.num_tokens
        if self._is_certain:
            twin.is_exact = stop <= known
        elif self._has_states:
            twin.is_exact = stop <= known - twin.lookahead
            if twin.is_exact:
                self.left.append((stop, request))
            if stop - stop % self._unit > twin.published:
                self._due[request.request_id] = request
                twin.early = min(stop, known)
        if inside:
            self.left.append((inside, request))
        twin.certain = stop if stop <= known else known if known > begin else begin
        twin.cover = max(twin.cover, -(-(stop + ahead) // self._unit) * self._unit)
        table = FOR_EVER if twin.cover >= self._settings.max_model_len else twin.cover - ahead
        if self._trims is not None:
            twin.trim = self._trims(begin)
            if self._is_certain:
                self._dying.append(request)
            elif twin.trim < table - 1:  # what dies one step before the next block is needed is trimmed with that step
                table = twin.trim
        self.note_filled(request, twin, stop, table)

    def note_filled(self, request: Any, twin: Twin, stop: int, table: int) -> None:
        """Note that tokens up to `stop` have slots, and set the bounds of steps that change nothing."""
        settings = self._settings
        sure = request.num_tokens - settings.behind
        if twin.is_session and sure > stop - settings.behind:  # the token behind the step may be dropped
            sure = stop - settings.behind
        # Several modules of drafts write their last tokens once more: what may still change is not published.
        if sure > stop - settings.again:
            sure = stop - settings.again
        if self._is_certain:
            if sure == stop:
                self.left.append((stop, request))
            if stop >= twin.fill and stop > twin.published:
                twin.due = stop
                twin.early = stop if sure == stop else 0
                self._due[request.request_id] = request
            sure = stop  # its last token is known when the next step is scheduled
        elif sure >= twin.fill and settings.caches and sure > twin.published:
            twin.due = sure
            self._due[request.request_id] = request
        twin.table = table
        twin.fill = (sure // self._unit + 1) * self._unit if settings.caches else FOR_EVER
        # Up to there `allocate_slots` is one comparison. The step that fills a block must not be among them.
        request._blockwright_quiet = table if table < twin.fill else twin.fill - 1
        if settings.num_drafts or twin.is_session:  # each step has its entries for the states of drafts, or is noted
            request._blockwright_quiet = NEVER

    def hold(self, request: Any) -> None:
        """Publish nothing of the step that was just given slots before the next call says so."""
        self._due.pop(request.request_id, None)
        request._blockwright.due = request._blockwright.early = 0
        request._blockwright.fill = request._blockwright_quiet = NEVER

    def forget(self, request: Any) -> None:
        """Forget a request that holds nothing any more."""
        self._due.pop(request.request_id, None)
        self._readers.forget(request)
        request._blockwright.forget()
        request._blockwright_quiet = NEVER

    def inside(self, request: Any, start: int, stop: int) -> int:
        """Return the tokens after which a step also leaves recurrent states, where their prompt ends; 0 for none."""
        if self.checkpoint is None:
            return 0
        last = max(request.num_prompt_tokens, request.num_tokens - 1)
        return self.checkpoint(start, stop) if last <= stop <= request.num_tokens else 0

    # ------------------------------------------------------------------ what the core hears

    def catch_up(self, twin: Twin, stop: int, is_later: bool = True) -> None:
        """Tell the core of steps that changed no table, up to `stop` tokens; what they filled is published later."""
        own, begin = twin.request, twin.written
        self._core.allocate_slots(own, stop - begin, 0, None, 0, is_later)
        twin.certain = max(begin, min(stop, own.num_tokens))
        own.num_computed_tokens = stop

    def begin_of(self, request: Any, twin: Twin, stop: int) -> tuple[int, bool, int]:
        """Return where the next step, which needs a block or lets an entry die, begins for the core."""
        # And whether what is settled is published before it, and how many tokens of it are known.
        computed = request.num_computed_tokens
        if self._has_states:
            twin.learn(request, stop)
            return self.settle(request, twin), True, 0
        begin = max(twin.certain, computed - request.num_in_flight_tokens)
        sure = twin.learn(request, begin)
        if (
            twin.due <= begin <= twin.written
            and sure <= begin
            and begin - twin.published // self._unit * self._unit < self._settings.unread
            and not self._settings.again
        ):
            return begin, False, sure  # one call trims, publishes what is settled, and gives slots
        return self.settle(request, twin), True, sure

    def settle(self, request: Any, twin: Twin) -> int:
        """Publish what a request has filled, before it is trimmed, and return how many tokens cannot go back."""
        computed: int = request.num_computed_tokens
        due = min(twin.due, computed)
        if not self._is_certain or computed > request.num_tokens:  # else what is in flight cannot be taken back
            computed -= request.num_in_flight_tokens
        settled = max(twin.certain, min(twin.heard, computed))
        is_more = settled > twin.written
        # Two calls of the core in one: steps that changed no table, and what they have filled.
        if is_more and due <= settled and not self._has_states and not self._settings.again:  # one call publishes too
            known = twin.learn(request, settled)
            self.catch_up(twin, settled, False)
            self.note_published(request, twin, min(settled, known))
        else:
            self.publish(request, due)
            if is_more and self._is_unheard(twin, settled):
                return twin.written
            if is_more:
                self.catch_up(twin, settled)
        return max(settled, twin.certain)  # publishing may have told the core of more, which is certain then

    def note_published(self, request: Any, twin: Twin, count: int) -> None:
        """Note that the core has published what the first `count` tokens fill, with the step that it was told of."""
        twin.published = max(twin.published, count // self._unit * self._unit)
        self._readers.tell(request, twin.published)

    def _is_unheard(self, twin: Twin, settled: int) -> bool:
        """Return whether the core need not hear of steps up to `settled` apart: the next is told as one with them."""
        # All of them read and write the state of one block, and no window ends among them.
        if not self._has_states or self._settings.unread < FOR_EVER or twin.written == 0:
            return False
        return all((twin.written - 1) // size == (settled - 1) // size for size in self._settings.state_sizes)

    def trim_late(self) -> bool:
        """Trim what could have been trimmed one step earlier, where blocks are short; say whether there was any."""
        num_free = self._core.block_pool.num_free
        for request in self._running.values():
            self._trim(request)
        return self._core.block_pool.num_free > num_free

    def _trim(self, request: Any) -> bool:
        """Trim what no step reads any more; return whether nothing is left that dies with a step already scheduled."""
        twin: Twin = request._blockwright
        settled = min(twin.heard, request.num_computed_tokens - request.num_in_flight_tokens)
        if twin.trim > settled or twin.loading is not None or self._trims is None:
            return bool(twin.trim > request.num_computed_tokens)
        if self._is_certain:
            settled, twin.trim = min(settled, twin.written), FOR_EVER
        else:
            settled = self.settle(request, twin)
            twin.trim = self._trims(settled)
        self._core.remove_skipped_blocks(twin.request, settled)
        twin.certain = max(twin.certain, settled)
        return True

    # ------------------------------------------------------------------ publication

    def start_step(self) -> None:
        """Publish what the steps scheduled so far have filled, and let the states that they leave be found."""
        if self._has_states:
            self._tell_filled()
        else:
            self.publish_due()
        self._core.new_step_starts()
        if self._readers.are_each:
            for _, request in self.left:
                self._readers.offer(request)
        self.left.clear()

    def _tell_filled(self) -> None:
        """Tell the core, in one call for all requests, of the steps that filled their last block in place."""
        # Those blocks are published, and their states once the step starts. Then trim what the last step was the last
        # to read.
        told, counts = [], []
        for request in list(self._due.values()):
            twin: Twin = request._blockwright
            count, written = twin.due, twin.written
            if (
                self._readers.are_each
                or not written < count <= request.num_computed_tokens
                or count > request.num_tokens
            ):
                self.publish(request, count)
                continue
            twin.learn(request, request.num_tokens)
            told.append(twin.request)
            counts.append(count - written)
            twin.certain = twin.published = count
            del self._due[request.request_id]
        if told:
            self._core.allocate_slots_batch(told, counts)
            for own, count in zip(told, counts, strict=True):
                own.num_computed_tokens += count
        if self._dying:
            self._dying = [request for request in self._dying if not self._trim(request)]

    def publish_due(self) -> None:
        """Publish what the steps scheduled so far have filled, for a lookup."""
        for request in list(self._due.values()):
            self.publish(request, request._blockwright.due)
        if not self._has_states:  # a state waits until it is known which drafts hold
            self._due.clear()

    def publish_for_readers(self) -> None:
        """Publish what a lookup or a connector may find; states and parts only once the step that left them has run."""
        # By then no request can be preempted any more that was given slots in this step.
        if not self._settings.is_later:
            self.publish_due()
            return
        for request in list(self._due.values()):
            twin = request._blockwright
            if request.is_finished() or (self._is_certain and twin.due <= request.num_computed_tokens):
                self.publish(request, twin.due)
            elif twin.early > 0:
                if twin.early > twin.written:
                    twin.learn(request, twin.early)
                    self.catch_up(twin, twin.early)
                self._core.cache_blocks(twin.request, twin.early, has_run=False)
                self._readers.tell(request, twin.early)
                twin.early = 0

    def publish(self, request: Any, count: int) -> None:
        """Publish the first tokens of a running request, which are known and were given slots."""
        twin: Twin = request._blockwright
        if self._is_certain:
            count = min(count, request.num_computed_tokens, request.num_tokens, twin.heard)
            # Only what was due is done with; what a later step fills is noted by that step.
            if count >= twin.due:
                self._due.pop(request.request_id, None)
        elif self._has_states:
            count = self._num_left(request, twin)
            if count >= twin.written - twin.written % self._unit:
                self._due.pop(request.request_id, None)
        else:
            count -= count % self._unit
        if count // self._unit > twin.published // self._unit:
            count = min(count, twin.learn(request, count))
            if count > twin.written:
                self.catch_up(twin, count)
            self._core.cache_blocks(twin.request, count)
            twin.certain = max(twin.certain, count)
            twin.published = count
            self._readers.tell(request, count)

    def _num_left(self, request: Any, twin: Twin) -> int:
        """Return the tokens after which recurrent states may be found: where a step ended that cannot go back."""
        # The end of a step within the known tokens is certain, even while it runs: steps run in order. Beyond, it is
        # where the last step ended that has run. Tokens beyond the request's end are not known: if they passed a block
        # end, the state at the one before was not kept.
        computed: int = request.num_computed_tokens
        if twin.is_exact and twin.written <= computed:
            return twin.written
        sizes = self._settings.state_sizes
        if self._settings.num_drafts >= min(sizes) and request.is_finished():
            return 0  # 0.33 cuts the count at the request's end, so it does not show which block ends were passed
        count: int = min(twin.written, computed - request.num_in_flight_tokens)
        known: int = min(count, min(request.num_tokens, twin.heard) - twin.lookahead)
        return known if all(count // size == known // size for size in sizes) else 0

    def check(self) -> None:
        """Compare the counts of requests that run with the core's; raise an `InvariantError` if one disagrees."""
        for name, request in self._running.items():
            twin, quiet = request._blockwright, request._blockwright_quiet
            tables, counts = self._core.get_block_ids(name), self._core.num_published(name)
            # Where states are cached, publications wait for the next step. Where nothing waits or is due, no step
            # without a call is beyond the core's lease, except for one after which an entry dies a step early.
            is_right = twin.loading is not None or all(
                (quiet <= len(table) * size or quiet == FOR_EVER)
                and (twin.published // size <= published or self._settings.is_later or not self._settings.caches)
                for (spec, size), table, published in zip(self._settings.layouts, tables, counts, strict=True)
                if not (spec.is_recurrent or spec.reads_encoder)
            )
            is_put_off = self._settings.is_later or self._settings.state_sizes or name in self._due
            if not is_put_off and quiet < FOR_EVER:
                is_right = is_right and quiet <= self._core.lease(twin.request) + 1
            if not is_right:
                raise InvariantError("LEASE-1", f"bounds beside the core of {name!r}", counts, (quiet, twin.published))

    # ------------------------------------------------------------------ the end of a request

    def publish_end(self, request: Any) -> None:
        """Publish all that a request has filled, before it is released; say how many of its tokens hold."""
        twin: Twin = request._blockwright
        computed: int = request.num_computed_tokens
        self.publish(request, max(min(twin.due, computed), self._num_known_last(request, twin)))
        if self._settings.match_unit is not None:  # parts are published as a request ends
            count = min(computed - request.num_in_flight_tokens, request.num_tokens, twin.heard)
            if count > 0:
                twin.learn(request, count)
                if self._has_states and computed > max(count, twin.written):
                    self.catch_up(twin, computed)  # what is in flight writes over the state
                if count > twin.written:
                    self.catch_up(twin, count)
                self._core.cache_blocks(twin.request, count)
                twin.certain = max(twin.certain, count)
        twin.request.num_computed_tokens = max(twin.certain, min(computed, twin.written))

    def _num_known_last(self, request: Any, twin: Twin) -> int:
        """Return the computed tokens of a request that ends if they fill a block that was not due before, else 0."""
        # Its last tokens, or those behind it that its hash covers, have become known after the step that filled it.
        if self._has_states or twin.fill == NEVER:
            return 0
        ran: int = request.num_computed_tokens - request.num_in_flight_tokens - self._settings.again
        count: int = min(ran, request.num_tokens - twin.lookahead)
        return count if count >= twin.fill else 0
