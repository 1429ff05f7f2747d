"""The worker under test: Blockwright's `InputBatch`, on plain memory or staged as for a device."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Self

import torch
from librt.vecs import vec
from mypy_extensions import i32

from blockwright import BatchAllocation, Request
from blockwright.device.inputs import InputBatch, StepInputs
from blockwright.errors import BlockwrightError
from blockwright_spec.manager.state import Copy
from blockwright_spec.reads import Mamba
from blockwright_spec.worker.inputs import GroupInputs, Inputs, Work
from blockwright_spec.worker.rows import Row

from ..checker.lockstep import LawError
from ..kv_cache.blockwright import kv_cache_config
from ..kv_cache.parts import name_of
from .actions import Places, Told
from .scopes import WorkerScope


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have a call made again on a copy: a batch is copied by the calls that made it."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        self.calls.append((method, arguments))
        return method(self, *arguments)

    return call


class BlockwrightWorker:
    """One batch, with its engine's records of requests, which are named by slot.

    `errors` are those by which a wrong call is refused. A staged batch gets requests as records with an id and a count,
    the other as `Request` objects.
    """

    errors: tuple[type[Exception], ...] = (BlockwrightError,)

    def __init__(self, scope: WorkerScope) -> None:
        self.scope, self.config = scope, scope.engine.config
        self.most_tokens = scope.engine.slots * self.config.max_model_len
        self.batch = InputBatch(
            kv_cache_config(self.config),
            max_num_requests=scope.rows,
            max_num_tokens=self.most_tokens,
            max_model_len=self.config.max_model_len,
            enable_caching=self.config.caching,
            max_encoder_len=scope.engine.encoder,
            staged=scope.staged,
        )
        self.requests: dict[int, Any] = {}
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.addresses: list[int] = []
        self.batches = 0
        self.given: StepInputs | None = None

    def copy(self) -> Self:
        twin = type(self)(self.scope)
        for call, arguments in self.calls:
            with suppress(BlockwrightError):
                call(twin, *arguments)
        twin.calls = list(self.calls)
        return twin

    def request(self, slot: int, begin: int = 0) -> Any:
        """Return the object of a request in a call: the same one as long as it has a row."""
        if slot not in self.requests:
            name, staged = name_of(slot), self.scope.staged
            made: Any = SimpleNamespace(request_id=name) if staged else Request(name, [0], block_size=1)
            self.requests[slot] = made
        self.requests[slot].num_computed_tokens = begin
        return self.requests[slot]

    @remembered
    def add(self, row: Row) -> None:
        self.batch.add_request(name_of(row.slot), row.tables, row.states, row.encoder)

    @remembered
    def remove(self, slot: int) -> None:
        self.requests.pop(slot, None)
        self.batch.remove_request(name_of(slot))

    @remembered
    def apply(self, result: Told) -> None:
        self.batch.apply([self.request(slot) for slot, *_ in result], self.allocation(result))

    @remembered
    def swap(self, one: int, other: int) -> None:
        self.batch.swap(one, other)

    @remembered
    def move(self, slot: int, place: int) -> None:
        self.batch.move_request(name_of(slot), place)

    @remembered
    def compact(self) -> tuple[tuple[int, int], ...]:
        return tuple(self.batch.compact())

    @remembered
    def step(self, works: tuple[Work, ...], copies: tuple[Copy, ...], result: Told) -> Inputs:
        requests = [self.request(work.slot, work.begin) for work in works]
        pairs = [[copy[1:] for copy in copies if copy[0] == at] for at in range(len(self.config.groups))]
        news, drafts = (in_short([getattr(work, name) for work in works]) for name in ("new", "drafts"))
        told_of = self.allocation(result) if result else None
        self.given = self.batch.step(requests, news, told_of, pairs, num_draft_tokens=drafts)
        return self.read(self.given, works)

    def check(self) -> None:
        """Check the inputs of the last step beyond their values: counts, types, padding, and places of tensors."""
        if self.given is not None:
            given, self.given = self.given, None
            self.check_tensors(given)
            self.check_padded(given)

    def slots(self, slot: int, group: int, first: int, last: int) -> tuple[int, ...]:
        return tuple(self.batch.slots(name_of(slot), group, first, last).tolist())

    def places(self) -> Places:
        slots = {name_of(slot): slot for slot in range(self.scope.engine.slots)}
        shown = [None if each is None else slots[each] for each in self.batch.request_ids]
        return (*shown, *[None] * (self.scope.rows - len(shown)))

    def allocation(self, result: Told) -> BatchAllocation:
        """Return the report of a batch as a manager makes it; a request of which only counts changed has no name."""
        self.batches += 1
        groups = len(self.config.groups)
        parts = [[tables or ((),) * groups for tables in (new, nulled)] for _, new, nulled, _ in result]
        flat: list[list[int]] = []
        for at in (0, 1):
            cuts = [part for each in parts for part in each[at]]
            flat += [
                [entry for part in cuts for entry in part],
                [sum(map(len, cuts[:end])) for end in range(len(cuts) + 1)],
            ]
        entries = [number for at, (*_, each) in enumerate(result) for entry in each for number in (at, *entry)]
        names = [
            name_of(slot) if any(map(any, (map(len, new), map(len, nulled), each))) else ""
            for slot, new, nulled, each in result
        ]
        new, new_ends, nulled, nulled_ends = (vec[i32](each) for each in flat)
        buffers = new, new_ends, nulled, nulled_ends, vec[i32](entries)
        return BatchAllocation(len(result), None, *buffers, self.batches, names)

    def read(self, given: StepInputs, works: tuple[Work, ...]) -> Inputs:
        groups = []
        for at, group in enumerate(self.config.groups):
            slots = tuple(None if slot == -1 else slot for slot in given.slot_mapping[at].tolist())
            written = tuple(map(tuple, given.state_writes[at].tolist()))
            counts = [(1 + work.drafts) * (isinstance(group.kind, Mamba) and work.new > 0) for work in works]
            if any(any(blocks[count:]) for blocks, count in zip(written, counts, strict=True)):
                raise LawError("STATE-2", f"group {at}: blocks {written} behind {counts} states of {works}")
            kept = tuple(blocks[:count] for blocks, count in zip(written, counts, strict=True))
            copies = tuple((int(source), int(target)) for source, target in given.copies[at].tolist())
            tables = tuple(map(tuple, given.block_tables[at].tolist()))
            groups.append(GroupInputs(tables, slots, tuple(given.state_reads[at].tolist()), kept, copies))
        lines = given.positions, given.query_start_loc, given.num_computed_tokens, given.seq_lens, given.encoder_lens
        return Inputs(tuple(groups), *(tuple(each.tolist()) for each in lines))

    def check_tensors(self, given: StepInputs) -> None:
        lines = (given.positions, given.query_start_loc, given.num_computed_tokens, given.seq_lens, given.encoder_lens)
        groups = (given.block_tables, given.slot_mapping, given.state_reads, given.state_writes)
        grouped = (each for group in groups for each in group)
        addresses = [each.data_ptr() for each in (given.cu_seqlens_k, *lines, *grouped)]
        if self.addresses and self.addresses != addresses:
            raise LawError("REF-0", "the tensors do not lie where they lay in the step before")
        self.addresses = addresses
        if given.cu_seqlens_k.tolist() != [0, *accumulate(given.seq_lens.tolist())]:
            raise LawError("LEN-2", f"starts of keys {given.cu_seqlens_k} of lengths {given.seq_lens}")
        wide = (torch.int64, torch.int32, torch.int32, torch.int32, torch.int32)
        if tuple(each.dtype for each in lines) != wide:
            raise LawError("REF-0", f"types {[each.dtype for each in lines]}, expected {wide}")
        news = (given.query_start_loc[1:] - given.query_start_loc[:-1]).tolist()
        counts = (given.num_requests, given.num_tokens, given.max_query_len, given.max_seq_len)
        if counts != (len(news), sum(news), max(news), max(given.seq_lens.tolist())):
            raise LawError("LEN-2", f"counts {counts} of {news} tokens up to {given.seq_lens.tolist()}")

    def check_padded(self, given: StepInputs) -> None:
        """Check that nothing behind the inputs of a padded step could be taken for a token or a request."""
        requests, tokens = given.num_requests, given.num_tokens
        own = [each.tolist() for each in (*given.slot_mapping, given.positions)]
        padded = given.padded(self.scope.rows, min(tokens + 3, self.most_tokens))
        if own != [each[:tokens].tolist() for each in (*padded.slot_mapping, padded.positions)]:
            raise LawError("SLOT-1", "padding has changed the slots of the step")
        lens = (padded.num_computed_tokens, padded.seq_lens, padded.encoder_lens, *padded.state_reads)
        writes = tuple(each.sum(1) for each in padded.state_writes)
        if any((each[tokens:] != -1).any() for each in padded.slot_mapping):
            raise LawError("SLOT-1", f"slots behind {tokens} tokens: {padded.slot_mapping}")
        if any(each[requests:].any() for each in (*lens, *writes)):
            raise LawError("LEN-2", f"lengths or states behind {requests} requests: {lens}, {writes}")
        if (padded.cu_seqlens_k[requests:] != given.cu_seqlens_k[-1]).any():
            raise LawError("LEN-2", f"starts of keys behind {requests} requests: {padded.cu_seqlens_k}")
        if (padded.query_start_loc[requests:] != tokens).any():
            raise LawError("LEN-2", f"starts behind {requests} requests: {padded.query_start_loc}")


def in_short(counts: list[int]) -> int | list[int]:
    return counts[0] if len(set(counts)) == 1 else counts
