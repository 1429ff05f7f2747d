"""Forks: a request that goes on from where another is, on the same blocks.

A fork shares every block of its parent, a partial one included. Whichever of them writes to that first has it copied
(`RunningRequests._unshare`): a new block, and a copy that the engine runs before its step.
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.blocks import KVCacheBlocks
from blockwright.core.request import Request
from blockwright.core.tables import GroupTable, RequestTables
from blockwright.core.timed import TimedRequests
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, UnknownStepError, UnsupportedError


class ForkedRequests(TimedRequests):
    """Running requests that may be forked."""

    def fork(self, parent: Request, child: Request) -> KVCacheBlocks | None:
        """Start `child` on the blocks of `parent`, with as many computed tokens; return its blocks, or None: not now.

        The tokens are those of steps that have run: what a step has still to write would be missing from a copy.
        Make the child with ``parent.fork(request_id)``, or with any tokens that go on from those that the parent has
        computed. Both then run on alike. A block that both hold is copied when one of them first writes to it: after
        allocating for a step and before running it, do what `take_copies` tells. Drafts of the parent that are not
        accepted by now are given up. Takes no blocks, but for the states of drafts of recurrent layers; where these are
        not free the answer is None and nothing changed. Complexity: O(blocks shared + output tokens).
        law: WRITE-1, REF-1.

        Raises:
            UnknownRequestError: the parent holds no blocks.
            DuplicateRequestError: the child runs already.
            InvalidArgumentError: the child's tokens, extra keys or ``num_computed_tokens`` are not the parent's; or the
                parent's own count is out of range, its tokens are being loaded or not appended after settling, or the
                copies for its last step have not been taken.
            UnknownStepError: a step in flight computes tokens of the parent; settle it first.
            UnsupportedError: the parent's last tokens are accepted drafts, whose recurrent state cannot be shared;
                compute a step first.
        """
        tables = self._require(parent)
        computed: i64 = self._check_fork(parent, tables, child)
        demand: i64 = 0
        for manager in self.managers:
            demand += manager.num_states
        if demand > self.block_pool._num_free:
            return None
        has_begun = False
        try:
            groups: list[GroupTable] = []
            for manager, table in zip(self.managers, tables.groups):
                twin = manager.twin(table, computed)
                manager.open(child._request_id, twin)
                groups.append(twin)
            new = RequestTables(child, self._owner, groups)
            self._running[child._request_id] = new
            given = KVCacheBlocks(self.block_pool, [table.blocks[:] for table in groups])
            has_begun = True
            for manager, table in zip(self.managers, groups):
                manager.adopt(table.blocks)
            for manager, table in zip(self.managers, groups):
                manager.fill_states(table)
            self._publish_state(tables, parent)
            for table, twin in zip(tables.groups, groups):
                twin.num_published = table.num_published
            self._num_forks += 1
            tables.num_written = computed
            tables.num_certain = computed
            tables.num_drafts = 0
            tables.is_forked = True
            tables.quiet = 0
            new.num_written = computed
            new.num_certain = computed
            new.num_settled = tables.num_settled
            new.trim_at = tables.trim_at
            new.is_forked = True
            child._held = new
        except BaseException:
            self._undo(child, None, has_begun)
            raise
        return given

    def _check_fork(self, parent: Request, tables: RequestTables, child: Request) -> i64:
        """Check that a request can start where another is; return the tokens it starts with."""
        name = parent.request_id
        if self._tables_of(child) is not None:
            raise DuplicateRequestError(f"child: {child.request_id!r} runs already; fork to a request of another id")
        if tables.num_loading > 0:
            raise InvalidArgumentError(f"parent: tokens of {name!r} are being loaded; call finish_load first")
        computed = parent._num_computed
        known = min(int(tables.num_written), parent.num_tokens)
        if self._overlaps:
            if len(self._steps) > 0 and tables.last_step >= self._steps[0].number:
                raise UnknownStepError(f"parent: a step in flight computes tokens of {name!r}; settle it first")
            if known < int(tables.num_written):
                raise InvalidArgumentError(f"parent: append the settled tokens of {name!r} first")
        if not int(tables.num_certain) <= computed <= known:
            raise InvalidArgumentError(
                f"num_computed_tokens: {name!r} has {tables.num_certain} to {known} computed tokens, not {computed}"
            )
        if self._most_drafts >= 0 and computed != int(tables.num_written - tables.num_drafts):
            raise UnsupportedError(
                f"parent: the recurrent state after {computed} tokens of {name!r} is an accepted draft's, which is not "
                "shared; compute its next step before forking it"
            )
        if self.block_pool.has_copies():
            self._check_copied(name, tables)
        if child._num_computed != computed or not parent.shares_prefix(child, computed):
            raise InvalidArgumentError(
                f"child: {child.request_id!r} must have the {computed} computed tokens of {name!r}, its extra keys and "
                f"its num_computed_tokens; make it with {name}.fork(...)"
            )
        if self.enable_caching and child._block_size > 0:
            for manager in self.managers:
                self._units(child, manager)
        return computed

    def _check_copied(self, name: str, tables: RequestTables) -> None:
        """Check that no copy to a block of a request is still to come."""
        pool = self.block_pool
        if any([pool.is_destination(i64(block)) for table in tables.groups for block in table.blocks]):
            raise InvalidArgumentError(
                f"parent: the last step of {name!r} needs copies; run what take_copies tells first"
            )

    def take_copies(self) -> list[list[tuple[int, int]]]:
        """Return, per group, the (source, destination) block ids to copy before the next step, oldest first.

        Each copy is told once. All are independent: no block is a source and a destination, or a destination twice, so
        that any order and any parallelism will do. Both ends stay held until they are told. Call it after allocating
        for a step, and run the copies before the step. Complexity: O(copies). law: COPY-1, COPY-2.
        """
        pool = self.block_pool
        pool.require_whole()
        copies: list[list[tuple[int, int]]] = [[] for _ in self.managers]
        for group, source, destination in pool.pending_copies():
            copies[group].append((source, destination))
        try:
            pool.end_copies()
        except BaseException:
            if pool.is_torn:
                self._tear()
            raise
        return copies
