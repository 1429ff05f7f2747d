"""Time: steps that are in flight until they are settled, and tokens that are loaded from elsewhere."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from librt.vecs import vec
from mypy_extensions import i64

from blockwright.core.asking import CheckedRequests
from blockwright.core.plan import count_of
from blockwright.core.request import Request
from blockwright.core.steps import StepInFlight
from blockwright.core.tables import RequestTables
from blockwright.errors import InvalidArgumentError, UnknownStepError, UnsupportedError


class TimedRequests(CheckedRequests):
    """Running requests whose steps may be in flight, and whose tokens may be loaded."""

    def start_step(self) -> int:
        """Start a step and return its number; slots are given in it from now on. O(1). law: SETTLE-1.

        Raises:
            UnsupportedError: the manager was made without `overlap_steps`.
        """
        if not self._overlaps:
            raise UnsupportedError("start_step: steps are kept apart only with overlap_steps=True")
        self.block_pool.require_whole()
        step = StepInFlight(self._num_steps + 1)
        has_begun = False
        try:
            self._steps.append(step)
            has_begun = True
            self._publish_states()
            self._num_steps += 1
        except BaseException:
            if has_begun:
                self._tear()
            elif len(self._steps) > 0 and self._steps[-1] is step:
                self._steps.pop()
            raise
        return self._num_steps

    def new_step_starts(self) -> None:
        """Say that a step starts, for engines whose steps do not overlap: slots given so far are computed before it.

        Recurrent states that the last step left may be found from now on. Without this call each is found once its own
        request has got its next slots or has ended, so it matters to lookups that come before those calls.
        Complexity: O(requests whose last step stopped at the end of a block). law: MAMBA-5.

        Raises:
            UnsupportedError: the manager was made with `overlap_steps`.
        """
        if self._overlaps:
            raise UnsupportedError("new_step_starts: with overlap_steps=True a step is started by start_step")
        self.block_pool.require_whole()
        try:
            self._publish_states()
        except BaseException:
            self._tear()
            raise

    def settle_step(self, step: int, num_rejected_tokens: Mapping[str, int] | None = None) -> None:
        """Say that the oldest step in flight is done, and how many drafts of which request were rejected.

        The tokens of the step count as settled: what they no longer read is trimmed at the request's next slots, what
        they filled is published now if the manager publishes on settlement, and blocks that waited for the step are
        released. Rejected drafts move the request and its later steps back: lower ``num_computed_tokens`` by as much,
        and append the step's tokens afterwards. Complexity: O(requests of the step + blocks released).
        law: SETTLE-1, FENCE-1, PUB-3.

        Args:
            step: the number that `start_step` gave.
            num_rejected_tokens: by request id; requests that run and had drafts in this step.

        Raises:
            UnknownStepError: the step is not in flight, or an older one is.
            InvalidArgumentError: more tokens are rejected than were drafted.
        """
        if len(self._steps) == 0 or step != int(self._steps[0].number):
            oldest = f"the oldest is {self._steps[0].number}" if self._steps else "none is"
            raise UnknownStepError(f"step: {step} is not the oldest step in flight; {oldest}")
        self.block_pool.require_whole()
        done = self._steps[0]
        rejected = self._rejections(done, num_rejected_tokens)
        try:
            del self._steps[0]
            i: i64 = 0
            while i < i64(len(done.tables)):
                tables = done.tables[i]
                if tables.owner == self._owner:
                    back: i64 = 0 if rejected is None else rejected[i]
                    self._land(tables, done.news[i], done.drafts[i], back)
                i += 1
            for batch in done.fenced:
                self._return(batch)
        except BaseException:
            if len(self._steps) == 0 or self._steps[0] is not done:
                self._tear()
            raise

    def _rejections(self, done: StepInFlight, given: Mapping[str, int] | None) -> vec[i64] | None:
        """Return the rejected drafts by place in the step, checked; None if there are none."""
        if not given:
            return None
        rejected = vec[i64]([0] * len(done.tables))
        left = dict(given)
        i: i64 = 0
        while i < i64(len(done.tables)):
            tables = done.tables[i]
            count = operator.index(left.pop(tables.request_id, 0)) if tables.owner == self._owner else 0
            if not 0 <= count <= int(done.drafts[i]):
                raise InvalidArgumentError(
                    f"num_rejected_tokens: {count} of {tables.request_id!r}, which had {done.drafts[i]} drafts in step "
                    f"{done.number} (num_draft_tokens)"
                )
            rejected[i] = count
            i += 1
        if left:
            raise InvalidArgumentError(f"num_rejected_tokens: {sorted(left)} computed nothing in step {done.number}")
        return rejected

    def _land(self, tables: RequestTables, new: i64, drafts: i64, back: i64) -> None:
        """Count one request's tokens of a step as settled, and publish them if that waits for it."""
        stopped = tables.num_settled + new - drafts
        tables.num_settled += new - back
        tables.num_written -= back
        tables.num_certain = tables.num_written
        if back > 0 and (len(self._steps) == 0 or tables.last_step < self._steps[0].number):
            tables.num_drafts -= back
        if self._settles and self.enable_caching:
            request = tables.request
            count = min(tables.num_settled, request._num_prompt + i64(len(request._output)))
            for manager, table in zip(self.managers, tables.groups):
                self._publish(manager, table, request, count, stopped)
        elif len(self._steps) == 0 or tables.last_step < self._steps[0].number:
            self._publish_state(tables, tables.request)

    def finish_load(self, request: Request, num_loaded_tokens: int) -> bool:
        """Say that a load has ended and how many of its tokens came; return whether the request runs on.

        What no token after the whole load reads has no block, and is not loaded. If all the rest came, it is published:
        set ``num_computed_tokens`` to the hit and the load, or to one less than the known tokens if that is all of them
        (the last is computed again), and go on. If not, what came is published, the request is freed, and False is
        returned: set ``num_computed_tokens = 0`` and look it up again. Its hit is what came, cut back to where every
        layer has what the next token reads: with windows or recurrent layers often to the hit before the load. For a
        request that was freed while it was loading, its blocks return now, the answer is False, and nothing else is to
        be done, even if it runs again. Complexity: O(blocks). law: LOAD-1, READ-1, TRIM-1.

        Args:
            request: the request that loads.
            num_loaded_tokens: n says that of the first n tokens after the hit everything came that had to be loaded.

        Raises:
            UnknownStepError: nothing is being loaded for the request.
            DuplicateRequestError: another request runs under its id, and what is being loaded is not of an older one.
            InvalidArgumentError: more tokens than were to be loaded.
        """
        count = count_of("num_loaded_tokens", num_loaded_tokens)
        self.block_pool.require_whole()
        batch = self._loads.get(request._request_id)
        if batch is not None:  # whoever runs under the id now is not loading: that is refused until this has ended
            try:
                del self._loads[request._request_id]
                self._return(batch)
            except BaseException:
                self._tear()
                raise
            return False
        tables = self._tables_of(request)
        if tables is None or tables.num_loading == 0:
            raise UnknownStepError(f"request: nothing is being loaded for {request.request_id!r}")
        if count > tables.num_loading:
            raise InvalidArgumentError(
                f"num_loaded_tokens: {count} of {tables.num_loading} that {request.request_id!r} was to load"
            )
        is_whole = count == tables.num_loading
        stop = min(tables.num_written + count, i64(request.num_tokens) - 1)
        try:
            tables.num_loading = 0
            tables.num_written = stop
            tables.num_certain = stop
            tables.num_settled = stop
            for manager, table in zip(self.managers, tables.groups):
                if self.enable_caching:
                    self._publish(manager, table, request, stop, stop)
            if not is_whole:
                self._vacate(tables, stop)
                request._held = None
        except BaseException:
            self._tear()
            raise
        return is_whole

    def get_draft_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return, per group, the blocks for the states of draft tokens, the first draft's first. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple([[int(block) for block in table.states] for table in self._named(request_id).groups])

    def get_state_block_ids(self, request: Request) -> list[int]:
        """Return, per group, the block with the state after ``request.num_computed_tokens`` tokens. O(groups).

        0 for groups that keep no state, and where there is none. After accepted drafts it is the block of the last of
        them. law: MAMBA-3.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        tables = self._require(request)
        return [
            int(manager.state_block(table, request._num_computed))
            for manager, table in zip(self.managers, tables.groups)
        ]

    @property
    def steps_in_flight(self) -> list[int]:
        """The numbers of the steps in flight, oldest first."""
        return [int(step.number) for step in self._steps]
