"""The memory of a step's inputs: cut into tensors, and the way of them to another device."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from blockwright.device.page_lists import PageLists
from blockwright.errors import InvalidArgumentError
from blockwright.worker.replica import TableReplica

Tensors = tuple[torch.Tensor, ...]
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Tensors, Tensors]

MOST_VIEWS = 1024
"""Shapes of steps whose views are kept."""


class Views:
    """The tensors of a step, by its shape; each is cut once from memory that stays where it is.

    Attributes:
        max_num_requests, max_num_tokens: of the batch.
        block_tables: per group.
        num_steps: steps whose inputs have been written here; the memory holds the last one's.
        num_requests, num_tokens: of the last of them, without padding.
        host: the same of the host's memory; itself where that is all there is.
        groups: where each group's part of the replica lies.
    """

    def __init__(
        self,
        replica: TableReplica,
        words: torch.Tensor,
        counts: torch.Tensor,
        tables: torch.Tensor,
        host: Views | None = None,
    ) -> None:
        self.host = self if host is None else host
        self.max_num_requests = rows = replica.max_num_requests
        self.max_num_tokens = replica.max_num_tokens
        self.num_steps = self.num_requests = self.num_tokens = 0
        self._words = words.view(-1, self.max_num_tokens)
        self._no_slots = torch.full((self.max_num_tokens,), -1, dtype=torch.int64, device=words.device)
        self._starts = counts[: rows + 1]
        self._lens = counts[rows + 1 : 4 * rows + 1].view(3, rows)
        self._key_starts = counts[4 * rows + 1 : 5 * rows + 2]
        self.groups, self._lists, self._scratch = replica.groups, dict[int, PageLists](), words[:0].int()
        # Every group has a tensor of each kind, so that a caller can index them by group without asking for its kind.
        no_states = torch.zeros((rows, 1), dtype=torch.int32, device=words.device)
        block_tables, slots, reads, writes = [], [], [], []
        for group in replica.groups:
            block_tables.append(tables[group.first :][: rows * group.width].view(rows, group.width))
            slots.append(words[group.slots :][: self.max_num_tokens] if group.has_slots else self._no_slots)
            if group.is_recurrent:
                width = 1 + group.num_states
                reads.append(counts[group.reads :][:rows])
                writes.append(counts[group.writes :][: rows * width].view(rows, width))
            else:
                reads.append(no_states[:, 0])
                writes.append(no_states)
        self.block_tables: Tensors = tuple(block_tables)
        self._slots, self._reads, self._writes = slots, reads, writes
        self._by_tokens: dict[int, tuple[torch.Tensor, Tensors]] = {}
        self._by_requests: dict[int, Rows] = {}

    def of_tokens(self, count: int) -> tuple[torch.Tensor, Tensors]:
        found = self._by_tokens.get(count)
        if found is None:
            if len(self._by_tokens) >= MOST_VIEWS:
                self._by_tokens.clear()
            found = (self._words[0, :count], tuple([slots[:count] for slots in self._slots]))
            self._by_tokens[count] = found
        return found

    def of_requests(self, count: int) -> Rows:
        found = self._by_requests.get(count)
        if found is None:
            if len(self._by_requests) >= MOST_VIEWS:
                self._by_requests.clear()
            computed, lens, encoder = (row[:count] for row in self._lens)
            reads, writes = tuple([r[:count] for r in self._reads]), tuple([w[:count] for w in self._writes])
            found = (self._starts[: count + 1], self._key_starts[: count + 1], computed, lens, encoder, reads, writes)
            self._by_requests[count] = found
        return found

    def pad(self, num_requests: int, more_requests: int, num_tokens: int, more_tokens: int) -> None:
        self._words[0, num_tokens:more_tokens] = 0
        self._words[1:, num_tokens:more_tokens] = -1
        self._starts[num_requests + 1 : more_requests + 1] = num_tokens
        self._key_starts[num_requests + 1 : more_requests + 1] = self._key_starts[num_requests]
        self._lens[:, num_requests:more_requests] = 0
        for reads, writes in zip(self._reads, self._writes, strict=True):
            reads[num_requests:more_requests] = 0
            writes[num_requests:more_requests] = 0

    def page_lists(self, group: int) -> PageLists:
        """Return the maker of the page lists of a group with slots; its memory is taken by the first call."""
        lists = self._lists.get(group)
        if lists is None:
            table = self.block_tables[group]
            if self._scratch.numel() < 3 * table.numel():
                places = torch.arange(table.numel(), dtype=torch.int32, device=table.device)
                self._scratch = torch.stack([places] * 3)
            lists = self._lists[group] = PageLists(table, int(self.groups[group].block_size), self._scratch)
        return lists


class Staging:
    """The way of a step's inputs to tensors on a device.

    One buffer per step, in turn with another, so that the host can fill one while the other is still being read:

        | words of the step's tokens | changed indices | counts | changed values |

    They land in one place on the device. So a step that comes on another stream first waits, there, until the step
    before has been spread from it.

    Attributes:
        words, counts, tables: on the device.
        device: where they are.
        num_bytes: sent by the last step.
    """

    def __init__(
        self, words: torch.Tensor, counts: torch.Tensor, tables: torch.Tensor, device: torch.device, row: int
    ) -> None:
        self._host_words, self._host_counts = words.view(-1, row), counts
        self.words = torch.zeros_like(words, device=device)
        self.counts = torch.zeros_like(counts, device=device)
        self.tables = torch.zeros_like(tables, device=device)
        self.device = self.tables.device  # with an index, where "cuda" means the current device
        self._is_cuda = self.device.type == "cuda"
        self._turn = 0
        self._buffers: list[torch.Tensor] = []
        self._landing = torch.empty(0, dtype=torch.uint8, device=self.device)
        self._events: list[torch.cuda.Event | None] = [None, None]
        self._spread: torch.cuda.Event | None = None
        self.num_bytes = 0
        self._make_buffers(words.nbytes + counts.nbytes)
        if self._is_cuda:
            self._spread = torch.cuda.Event()
            self._spread.record(torch.cuda.current_stream(self.device))

    def _make_buffers(self, num_bytes: int) -> None:
        for event in (*self._events, self._spread):
            if event is not None:
                event.synchronize()
        buffers = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(2)]
        landing = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        self._buffers, self._landing = buffers, landing  # all of them or, where memory is short, none

    def send(self, indices: Any, values: Any, num_tokens: int) -> None:
        """Bring the device's tensors up to date, on its current stream; the host waits for nothing of this step."""
        rows, changed = len(self._host_words), len(values)
        num_words, num_counts = rows * num_tokens + changed, len(self._host_counts) + changed
        self.num_bytes = 8 * num_words + 4 * num_counts
        if self.num_bytes > len(self._landing):
            # Twice what is needed, so that steps that grow do not each take pinned memory.
            self._make_buffers(2 * self.num_bytes)
        self._turn = 1 - self._turn
        event = self._events[self._turn]
        # The copy out of this buffer, two steps ago, may still be under way.
        if event is not None:
            event.synchronize()
        staged = self._buffers[self._turn][: self.num_bytes]
        words, counts = staged[: 8 * num_words].view(torch.int64), staged[8 * num_words :].view(torch.int32)
        words[: rows * num_tokens].view(rows, num_tokens).copy_(self._host_words[:, :num_tokens])
        counts[: len(self._host_counts)].copy_(self._host_counts)
        if changed:
            words[rows * num_tokens :].copy_(view_of(indices))
            counts[len(self._host_counts) :].copy_(view_of(values))
        landed = self._landing[: self.num_bytes]
        stream = torch.cuda.current_stream(self.device) if self._is_cuda else None
        if stream is not None and self._spread is not None:
            stream.wait_event(self._spread)
        landed.copy_(staged, non_blocking=self._is_cuda)
        if stream is not None:
            event = self._events[self._turn] = event or torch.cuda.Event()
            event.record(stream)
        words, counts = landed[: 8 * num_words].view(torch.int64), landed[8 * num_words :].view(torch.int32)
        self.words.view(rows, -1)[:, :num_tokens].copy_(words[: rows * num_tokens].view(rows, num_tokens))
        self.counts.copy_(counts[: len(self.counts)])
        if changed:
            self.tables.scatter_(0, words[rows * num_tokens :], counts[len(self.counts) :])
        if stream is not None and self._spread is not None:
            self._spread.record(stream)


def view_of(numbers: Any) -> torch.Tensor:
    """Return a packed buffer, such as an allocation's `new_block_ids`, as a tensor over the same memory. O(1).

    Only read it: the memory is the manager's. An empty buffer is an empty tensor.

    >>> from librt.vecs import vec
    >>> from mypy_extensions import i32
    >>> view_of(vec[i32]([3, 5])), view_of(vec[i32]())
    (tensor([3, 5], dtype=torch.int32), tensor([], dtype=torch.int32))

    Raises:
        InvalidArgumentError: it is no buffer of integers with 32 or 64 bits.
    """
    try:
        with memoryview(numbers) as given:
            dtype, is_empty = _DTYPES[given.format], not given.nbytes
    except (TypeError, KeyError):
        raise InvalidArgumentError(f"numbers: must be a buffer of 32-bit or 64-bit integers, not {numbers!r}") from None
    if is_empty:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "not writable": torch may write, and only `padded` does
        return torch.frombuffer(numbers, dtype=dtype)


_DTYPES = {"i": torch.int32, "l": torch.int64, "q": torch.int64}
