"""A worker's side of a step: block tables kept from what changes, and the tensors that the kernels of a step read.

    scheduler: manager.allocate_slots_batch(requests, 1)  --allocation-->  worker: batch.step(requests, 1, allocation)

On the CPU the tensors are views of the memory that the compiled core writes, so a step is a few calls of compiled code
and none of torch. For another device the core writes the same memory on the host. A step's part of it goes through one
of two staging buffers, in one asynchronous copy, and is spread on the device: the step's own words and counts, and the
table entries that have changed. So the cost of both depends on the changes, not on the length of the contexts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from blockwright.arguments import integer, whole
from blockwright.config import KVCacheConfig
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.device.page_lists import PagedKV
from blockwright.device.planned import KVCachePlan
from blockwright.device.staging import Staging, Tensors, Views, view_of
from blockwright.errors import BlockError, InvalidArgumentError, UnknownStepError, UnsupportedError
from blockwright.worker.replica import TableReplica
from blockwright.worker.rows import listed

Copies = Sequence[Sequence[tuple[int, int]]]


@dataclass(slots=True)
class StepInputs:
    """The inputs of one step's kernels; valid until the next step of its batch.

    Row i of everything is request i of the step, G is the number of groups. The memory of each tensor (but `copies`)
    is the same in every step, so that a captured graph may be replayed over it.

    Attributes:
        num_requests, num_tokens: R and T below.
        max_query_len, max_seq_len: the most new tokens of a request, the most tokens behind a step's end.
        block_tables: per group int32 (max_num_requests, entries of the longest request): the block ids of row i, zeros
            behind them and where nothing is held. Rows behind R are of requests that are not in this step, or free.
        slot_mapping: per group int64 (T,): where the keys and values of each new token are written, row after row:
            ``block * block_size + offset``; -1 in groups of recurrent and of cross-attention layers.
        positions: int64 (T,).
        query_start_loc: int32 (R + 1,): row i's tokens are query_start_loc[i] .. query_start_loc[i + 1] - 1.
        cu_seqlens_k: int32 (R + 1,): the sums of seq_lens before row i; 2**31 - 1 where they are more.
        num_computed_tokens: int32 (R,): tokens before the step.
        seq_lens: int32 (R,): tokens behind it, drafts included.
        encoder_lens: int32 (R,): tokens that cross-attention layers read.
        state_reads: per group int32 (R,): the block of the state that recurrent layers begin with; 0 before position 0,
            and in other groups. law: MAMBA-3.
        state_writes: per group int32 (R, 1 + num_speculative_blocks): the block for the state after the step's certain
            tokens, then one for the state after each draft; 0 behind them and in other groups.
        copies: per group int64 (n, 2) on the host: (source, destination) blocks to be copied before the step
            (`copy_blocks`), of every layer of the group.
    """

    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    block_tables: Tensors
    slot_mapping: Tensors
    positions: torch.Tensor
    query_start_loc: torch.Tensor
    cu_seqlens_k: torch.Tensor
    num_computed_tokens: torch.Tensor
    seq_lens: torch.Tensor
    encoder_lens: torch.Tensor
    state_reads: Tensors
    state_writes: Tensors
    copies: Tensors
    _views: Views = field(repr=False, compare=False)
    _step: int = field(repr=False, compare=False)

    def padded(self, num_requests: int, num_tokens: int) -> StepInputs:
        """Return the inputs with more rows and tokens behind, for a graph that was captured with that many.

        The same memory: slots -1, positions, lengths and state blocks 0 behind the step's own, and query_start_loc
        `self.num_tokens`. Complexity: O(padding).

        Raises:
            UnknownStepError: the batch has made another step since, and its inputs are here now.
            InvalidArgumentError: fewer than the step has, or more than the batch was made for.
        """
        views = self._views
        self._check_step("padded")
        integer("num_requests", num_requests, self.num_requests, views.max_num_requests)
        integer("num_tokens", num_tokens, self.num_tokens, views.max_num_tokens)
        views.pad(self.num_requests, num_requests, self.num_tokens, num_tokens)
        return self._of(views, num_requests, num_tokens)

    def block_table(self, group: int) -> torch.Tensor:
        """Return a group's block table with the rows of this step only, int32 (R, entries). O(1)."""
        return self.block_tables[group][: self.num_requests]

    @property
    def host(self) -> StepInputs:
        """The same inputs in the host's memory, which nothing waits for: lengths to plan by. O(padding).

        On the CPU these inputs themselves.

        Raises:
            UnknownStepError: the batch has made another step since.
        """
        views = self._views
        if views.host is views:
            return self
        self._check_step("host")
        own = views.num_requests, views.num_tokens
        # These inputs were padded: the host's memory needs the same padding to show it.
        if own != (self.num_requests, self.num_tokens):
            views.host.pad(own[0], self.num_requests, own[1], self.num_tokens)
        return self._of(views.host, self.num_requests, self.num_tokens)

    def paged_kv(self, group: int) -> PagedKV:
        """Return the pages of each request in a group, in one line: the page table of FlashInfer.

        Written to the same memory in each step; the first call takes it: 4 bytes for each entry of the group's table,
        and 12 for those of the largest one. Complexity: O(requests + pages), without a wait for a GPU.

        Raises:
            UnknownStepError: the batch has made another step since.
            UnsupportedError: the group's layers are recurrent.
        """
        self._check_step("paged_kv")
        views = self._views
        integer("group", group, 0, len(views.groups) - 1)
        if views.groups[group].is_recurrent:
            raise UnsupportedError(f"group: the blocks of group {group} hold states and have no pages; use state_reads")
        host = self.host
        lens, lens_host = (
            (each.encoder_lens if views.groups[group].is_encoder else each.seq_lens) for each in (self, host)
        )
        lists = views.page_lists(group)
        found = lists.lengths(lens)
        found_host = found if host is self else views.host.page_lists(group).lengths(lens_host)
        return PagedKV(found[0], lists.indices(found[0], int(found_host[0][-1])), found[1], *found_host)

    def _check_step(self, name: str) -> None:
        if self._step != self._views.num_steps:
            raise UnknownStepError(
                f"{name}: these are the inputs of step {self._step}, but the batch has made {self._views.num_steps} "
                "and their memory is the last one's; call it before the next step"
            )

    def _of(self, views: Views, num_requests: int, num_tokens: int) -> StepInputs:
        longest = self.max_query_len, self.max_seq_len
        return _inputs(views, num_requests, num_tokens, *longest, self.copies, self._step)


def _inputs(
    views: Views, num_requests: int, num_tokens: int, query_len: int, seq_len: int, copies: Tensors, step: int
) -> StepInputs:
    """Return what views show of a step, or of a padded one."""
    positions, slot_mapping = views.of_tokens(num_tokens)
    counts = views.of_requests(num_requests)  # in the order of the fields
    tables = views.block_tables
    return StepInputs(
        num_requests, num_tokens, query_len, seq_len, tables, slot_mapping, positions, *counts, copies, views, step
    )


class InputBatch:
    """The block tables of a worker, and the inputs of its steps.

    A request's life here: `add_request` when it has its first slots, `step` with the allocation of each step, and
    `remove_request` when it ends or is preempted. Changes of a single `allocate_slots`, a fork or a finished load are
    in no allocation: call `add_request` again, with the request's blocks from the manager.

    Attributes:
        replica: the tables and inputs on the host.
        device: where the tensors are.

    Example:
        >>> from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
        >>> spec = FullAttentionSpec(block_size=4, num_kv_heads=8, head_size=128, dtype="bfloat16")
        >>> config = KVCacheConfig(num_blocks=9, kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)])
        >>> manager = KVCacheManager(config, max_model_len=64)
        >>> batch = InputBatch(config, max_num_requests=8, max_num_tokens=32, max_model_len=64)
        >>> request = Request("r1", list(range(6)), block_size=4)
        >>> batch.add_request("r1", manager.allocate_slots(request, 6))
        >>> batch.step([request], 6).slot_mapping[0].tolist()
        [4, 5, 6, 7, 8, 9]
        >>> request.num_computed_tokens = 6
        >>> request.append_output_token_ids([6, 7, 8])
        >>> batch.step([request], 3, manager.allocate_slots_batch([request], 3)).slot_mapping[0].tolist()
        [10, 11, 12]
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_num_requests: int,
        max_num_tokens: int,
        max_model_len: int,
        enable_caching: bool = True,
        max_encoder_len: int = 0,
        device: str | torch.device = "cpu",
        staged: bool | None = None,
    ) -> None:
        """Make a batch without requests.

        Memory: 4 bytes per request and block of the longest request in each group, on the host and, if that is another
        place, on the device.

        Args:
            config: the manager's.
            max_num_requests: requests that have a row at a time.
            max_num_tokens: tokens of one step.
            max_model_len: tokens of one request.
            enable_caching: as the manager's: it decides where recurrent layers keep their states.
            max_encoder_len: tokens that cross-attention layers of one request read; needed where there are such layers.
            device: where the kernels run.
            staged: send the inputs to separate tensors also where the device is the CPU (for tests). By default as
                the device needs it.

        Raises:
            InvalidArgumentError: names the argument.
        """
        integer("max_num_requests", max_num_requests, 1)
        integer("max_num_tokens", max_num_tokens, 1)
        integer("max_model_len", max_model_len, 1)
        reads_encoder = any(group.kv_cache_spec.reads_encoder for group in config.kv_cache_groups)
        integer("max_encoder_len", max_encoder_len, int(reads_encoder))  # without such layers any bound will do
        self.device = _device_of(device)
        if staged is False and self.device.type != "cpu":
            raise InvalidArgumentError(f"staged: inputs for {self.device} are staged; leave it out")
        self._is_staged = self.device.type != "cpu" or staged is True
        self.replica = TableReplica(
            config,
            max_num_requests=max_num_requests,
            max_num_tokens=max_num_tokens,
            max_model_len=max_model_len,
            max_encoder_len=max_encoder_len,
            enable_caching=enable_caching,
            keep_changes=self._is_staged,
        )
        host = (view_of(self.replica.words), view_of(self.replica.counts), view_of(self.replica.rows.tables))
        self._staging: Staging | None = None
        on_host = None
        if self._is_staged:
            self._staging = Staging(*host, self.device, max_num_tokens)
            self.device = self._staging.device
            on_host = Views(self.replica, *host)
            host = (self._staging.words, self._staging.counts, self._staging.tables)
        self._views = Views(self.replica, *host, on_host)
        self._no_copies: Tensors = tuple(torch.empty((0, 2), dtype=torch.int64) for _ in config.kv_cache_groups)
        self._num_blocks = config.num_blocks

    @classmethod
    def for_plan(
        cls,
        plan: KVCachePlan,
        *,
        max_num_requests: int,
        max_num_tokens: int,
        device: str | torch.device = "cpu",
        staged: bool | None = None,
    ) -> InputBatch:
        """Make a batch with the lengths and the caching that a plan was made for.

        Args:
            plan: from `plan_kv_cache`; make the manager with the same ``max_model_len`` and ``enable_caching``.
            max_num_requests, max_num_tokens, device, staged: as for `InputBatch`. `max_num_tokens` counts the tokens of
                all requests of a step, while the plan's ``max_num_batched_tokens`` counts those of one request.

        Raises:
            InvalidArgumentError: names the argument.
        """
        limits = plan.limits
        return cls(
            plan.config,
            max_num_requests=max_num_requests,
            max_num_tokens=max_num_tokens,
            max_model_len=limits.max_model_len,
            enable_caching=limits.enable_caching,
            max_encoder_len=limits.max_num_encoder_tokens,
            device=device,
            staged=staged,
        )

    # ------------------------------------------------------------------ rows

    @property
    def request_ids(self) -> list[Any]:
        """The request of each row, None where the row is free; up to the last row that is taken. O(rows)."""
        return self.replica.rows.request_ids

    def row_of(self, request_id: Hashable) -> int:
        """Return the row of a request. O(1).

        Raises:
            UnknownRequestError: it has none.
        """
        return self.replica.rows.row_of(request_id)

    def block_ids(self, request_id: Hashable) -> list[list[int]]:
        """Return a request's block ids per group, as its row has them. O(blocks).

        Raises:
            UnknownRequestError: it has no row.
        """
        return self.replica.rows.block_ids(request_id)

    def add_request(
        self,
        request_id: Hashable,
        block_ids: KVCacheBlocks | Sequence[Sequence[int]] = (),
        draft_block_ids: Sequence[Sequence[int]] = (),
        num_encoder_tokens: int = 0,
    ) -> None:
        """Give a request the first free row, or write its own anew.

        An existing row keeps the record of its last step, so that a state after accepted drafts is still read from
        their blocks; remove a preempted request before it is added again. Complexity: O(blocks).

        Args:
            request_id: of the request.
            block_ids: its blocks, a list per group: `manager.get_blocks(request_id)`. Leave it empty for a request that
                a batch has admitted: its blocks are in the allocation, which is still to be applied.
            draft_block_ids: the blocks for states of drafts: `manager.get_draft_block_ids(request_id)`; needed where
                recurrent layers are given drafts.
            num_encoder_tokens: tokens that its cross-attention layers read.

        Raises:
            InvalidArgumentError: the groups or their lengths do not fit, or no row is free; nothing changed.
            BlockError: a block id is none of the pool; nothing changed.
        """
        self.replica.rows.add_request(request_id, block_ids, draft_block_ids, num_encoder_tokens)

    def remove_request(self, request_id: Hashable) -> None:
        """Free the row of a request. O(blocks).

        Raises:
            UnknownRequestError: it has none.
        """
        self.replica.rows.remove_request(request_id)

    def move_request(self, request_id: Hashable, row: int) -> None:
        """Move a request to a free row. O(blocks).

        Raises:
            UnknownRequestError: it has no row.
            InvalidArgumentError: there is no such row, or it is taken.
        """
        origin = self.replica.rows.row_of(request_id)
        taken = self.replica.rows.request_ids
        place = whole(row)
        if place is not None and 0 <= place < len(taken) and place != origin and taken[place] is not None:
            raise InvalidArgumentError(f"row: {row} is that of {taken[place]!r}; swap them, or choose a free one")
        self.replica.rows.swap_rows(row, origin)

    def swap(self, row: int, other: int) -> None:
        """Exchange two rows, free ones too. O(blocks of both).

        Raises:
            InvalidArgumentError: there is no such row.
        """
        self.replica.rows.swap_rows(row, other)

    def compact(self) -> list[tuple[int, int]]:
        """Move the last rows to the free ones before them; return the moves, (from, to). O(blocks moved)."""
        return self.replica.rows.compact()

    # ------------------------------------------------------------------ steps

    def apply(self, requests: Sequence[Any], allocation: Any) -> None:
        """Change the rows as the manager changed the tables; `step` does it too, with the allocation it is given.

        Complexity: O(requests + changes).

        Args:
            requests: those of the batch, in order; the first ``allocation.num_served`` of them are changed.
            allocation: the answer of `manager.allocate_slots_batch`, pickled or not. Each is applied once, in the order
                of the calls. Another manager's may follow when no request has a row.

        Raises:
            UnknownRequestError: a request has no row; `add_request` it first, one that the batch admits without blocks.
            DuplicateRequestError: a request twice.
            InvalidArgumentError: the allocation is not of these requests in this order, was applied already, or one
                before it was missed.
            BlockError: a block id is none of the pool.
        """
        self.replica.rows.apply(_as_list(requests), allocation)

    def slots(self, request_id: Hashable, group: int, start: int, stop: int) -> torch.Tensor:
        """Return the slots of positions start .. stop - 1 of a request, such as its encoder's tokens.

        Int64 (stop - start,), on the device. Complexity: O(positions).

        Raises:
            UnknownRequestError: it has no row.
            UnsupportedError: the group's layers are recurrent.
            InvalidArgumentError: no such group, or the positions are not in order.
            BlockError: a position has no block.
        """
        found = self.replica.slots(request_id, group, start, stop)
        return view_of(found).to(self.device)

    def step(
        self,
        requests: Sequence[Any],
        num_new_tokens: int | Sequence[int],
        allocation: Any = None,
        copies: Copies = (),
        *,
        num_draft_tokens: int | Sequence[int] = 0,
    ) -> StepInputs:
        """Bring the tables up to date, the rows in order, and return the inputs of a step.

        Row i becomes that of request i; rows of requests that are not in the step lie behind. So keep the order of the
        requests from step to step, and when one ends, put the last in its place: moving a row costs time in proportion
        to its length. On a GPU, call it on the stream that runs the kernels, or let that one wait for the current
        stream, and the current one for the kernels of the step before.

        Complexity: O(requests * groups + tokens + changes), whatever the length of the contexts, plus O(blocks of rows
        that move).

        Args:
            requests: the requests of the step, each once, of `Request` or with its `request_id` and
                `num_computed_tokens`, where the step begins.
            num_new_tokens: tokens of the step, one count for all or one per request.
            allocation: what to `apply` first; None if nothing has changed, or it was applied.
            copies: the answer of `manager.take_copies`, to be run before the step.
            num_draft_tokens: how many of the new tokens are drafts.

        Raises:
            UnknownRequestError, DuplicateRequestError: as `apply`.
            InvalidArgumentError: as `apply`, or a count is out of range, or the step exceeds a limit of the batch.
            BlockError: as `apply`, or a new token or a state has no block. Nothing changed, whatever the error.
            torch.OutOfMemoryError, RuntimeError: the inputs did not get to the device. The rows are those of the step:
                call again without the allocation, and everything that the device lacks is sent.
        """
        # law: COPY-3
        # Most steps copy nothing: no list is read, and the same empty tensors are returned.
        is_plain = type(copies) in (list, tuple) and len(copies) in (0, len(self._no_copies))
        pairs = self._no_copies if is_plain and not any(copies) else self._checked_copies(copies)
        replica = self.replica
        replica.step(_as_list(requests), num_new_tokens, num_draft_tokens, allocation)
        num_requests, num_tokens = replica.num_requests, replica.num_tokens
        views = self._views
        # Counted once the memory is the new step's, so that older inputs refuse to be read.
        views.num_steps += 1
        views.num_requests, views.num_tokens, views.host.num_steps = num_requests, num_tokens, views.num_steps
        if self._staging is not None:
            self._staging.send(*replica.rows.changes(), num_tokens)
            # Only now: if sending fails, the next step sends them again.
            replica.rows.forget_changes()
        longest = replica.max_query_len, replica.max_seq_len
        return _inputs(views, num_requests, num_tokens, *longest, pairs, views.num_steps)

    @property
    def num_bytes_sent(self) -> int:
        """Bytes that the last step sent to the device; 0 where the tensors are the host's memory."""
        return 0 if self._staging is None else self._staging.num_bytes

    def _checked_copies(self, copies: Copies) -> Tensors:
        lists = [listed("copies", each, "a list of pairs per group") for each in listed("copies", copies, "lists")]
        if not any(lists):
            return self._no_copies
        if len(lists) != len(self._no_copies):
            raise InvalidArgumentError(
                f"copies: {len(lists)} lists of pairs; give one per group, {len(self._no_copies)} of them"
            )
        return tuple(
            torch.tensor([self._checked_pair(pair, number) for pair in pairs], dtype=torch.int64).reshape(-1, 2)
            for number, pairs in enumerate(lists)
        )

    def _checked_pair(self, pair: Any, number: int) -> list[int]:
        try:
            blocks = [whole(block) or 0 for block in pair]
        except TypeError:  # not iterable
            blocks = []
        if len(blocks) != 2 or not all(0 < block < self._num_blocks for block in blocks):
            raise BlockError(
                f"copies: {pair!r} in group {number} is no pair of blocks of this pool of {self._num_blocks}"
            )
        return blocks


def _device_of(given: Any) -> torch.device:
    try:
        device = torch.device(given)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgumentError(f"device: torch knows none by {given!r}; {error}") from error
    if device.type == "meta":
        raise InvalidArgumentError("device: tensors on 'meta' have no memory, so kernels could read nothing")
    return device


def _as_list(requests: Any) -> list[Any]:
    return requests if type(requests) is list else listed("requests", requests, "those of the step, in order")
