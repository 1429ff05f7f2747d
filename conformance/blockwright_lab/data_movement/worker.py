"""A worker under test: one `InputBatch`, and what the specification says of its rows and of what it hands out.

Every call is made on both sides. Where a row goes, and in which order rows lie behind a step, is open: it is read from
the batch, and must be one of the choices left open.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from blockwright import Request
from blockwright.device.inputs import InputBatch, StepInputs
from blockwright.errors import BlockwrightError
from blockwright_conformance.kv_cache.parts import name_of
from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import NULL, Config, Copy, Table
from blockwright_spec.reads import Cross, Mamba
from blockwright_spec.worker import rows as spec
from blockwright_spec.worker.input_laws import ROW_LAWS, RowCall
from blockwright_spec.worker.inputs import GroupInputs, Inputs, Work, end, inputs, slot_at, stepped
from blockwright_spec.worker.rows import Row, RowRefusal, Rows, row_of


class InputsError(Exception):
    """A history met a violation of a law."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law, self.detail = law, detail


class Worker:
    """One batch of inputs and the specification's rows of it.

    `staged`: the batch keeps its tables apart from the tensors and copies what has changed, as for a device; it is then
    told of requests by records that have an id and a count, and otherwise by `Request` objects.
    """

    def __init__(self, config: Config, kv_cache_config: Any, num_rows: int, encoder: int, staged: bool) -> None:
        self.config, self.staged = config, staged
        self.most_tokens = num_rows * config.max_model_len
        self.batch = InputBatch(
            kv_cache_config,
            max_num_requests=num_rows,
            max_num_tokens=self.most_tokens,
            max_model_len=config.max_model_len,
            enable_caching=config.caching,
            max_encoder_len=encoder,
            staged=staged,
        )
        self.rows: Rows = (None,) * num_rows
        self.requests: dict[int, Any] = {}
        self.addresses: list[int] = []

    # --- requests, as a worker knows them

    def request(self, slot: int, begin: int = 0) -> Any:
        """Give what stands for a request in a call: the same object as long as it has a row."""
        if slot not in self.requests:
            name = name_of(slot)
            made: Any = SimpleNamespace(request_id=name) if self.staged else Request(name, [0], block_size=1)
            self.requests[slot] = made
        self.requests[slot].num_computed_tokens = begin
        return self.requests[slot]

    @property
    def order(self) -> list[int | None]:
        """The slots of the requests by the batch's rows; what it leaves out at the end is free."""
        ids = {name_of(slot): slot for slot in range(len(self.rows))}
        found = [None if each is None else ids[each] for each in self.batch.request_ids]
        return found + [None] * (len(self.rows) - len(found))

    # --- calls

    def settle(self, outcome: Rows | RowRefusal, named: frozenset[int], call: Callable[[], Any]) -> Any:
        """Make a call on the batch, of which the specification has told what comes.

        Raises:
            InputsError: the batch refuses where the specification does not, or the rows lie in other places.
        """
        assert not isinstance(outcome, RowRefusal), outcome
        answer = call()
        for law in ROW_LAWS:
            if not law.holds(RowCall(self.rows, outcome, named)):
                raise InputsError(law.id, law.statement)
        self.rows = outcome
        wanted = [None if row is None else row.slot for row in outcome]
        if wanted != self.order:
            raise InputsError("ROW-2", f"expected the rows of requests {wanted}, found {self.order}")
        return answer

    def add(self, slot: int, tables: tuple[Table, ...], states: tuple[Table, ...], encoder: int, blocks: Any) -> None:
        """Have the batch take a request's tables as they are; `blocks` are its blocks as the manager gives them."""
        self.batch.add_request(name_of(slot), blocks, states, encoder)
        place = self.order.index(slot)
        row = Row(slot, tables, states, encoder)
        self.settle(spec.add(self.rows, row, place), frozenset({slot}), lambda: None)

    def remove(self, slot: int) -> None:
        """Have the batch forget a request."""
        self.requests.pop(slot, None)
        outcome = spec.remove(self.rows, slot)
        self.settle(outcome, frozenset({slot}), lambda: self.batch.remove_request(name_of(slot)))

    def apply(self, slots: Sequence[int], steps: Sequence[Done], allocation: Any) -> None:
        """Have the batch follow what a call for several requests tells; `slots` are all that were asked for."""
        requests = [self.request(slot) for slot in slots]
        told = tuple(zip(slots, steps, strict=False))
        outcome = spec.apply(self.rows, told)
        self.settle(outcome, frozenset(slots), lambda: self.batch.apply(requests, allocation))

    def swap(self, one: int, other: int) -> None:
        """Have two places change their rows."""
        self.settle(spec.swap(self.rows, one, other), frozenset(), lambda: self.batch.swap(one, other))

    def move(self, slot: int, place: int) -> None:
        """Move a request's row to a free place."""
        outcome = spec.move(self.rows, slot, place)
        self.settle(outcome, frozenset(), lambda: self.batch.move_request(name_of(slot), place))

    def compact(self) -> None:
        """Close the gaps."""
        moves = tuple((source, target) for source, target in self.batch.compact())
        self.settle(spec.compact(self.rows, moves), frozenset(), lambda: None)

    def step(
        self, works: tuple[Work, ...], copies: tuple[Copy, ...], told: tuple[tuple[int, Done], ...], allocation: Any
    ) -> Inputs:
        """Hand a step to the kernels, and compare everything that the batch gives.

        `told`: what `allocation` tells of the first requests of the step, where the step is to apply it.

        Raises:
            InputsError: something differs; the message names the field.
        """
        requests = [self.request(work.slot, work.begin) for work in works]
        pairs = [[copy[1:] for copy in copies if copy[0] == at] for at in range(len(self.config.groups))]
        news, drafts = [work.new for work in works], [work.drafts for work in works]
        given = self.batch.step(requests, news, allocation, pairs, num_draft_tokens=drafts)
        slots = tuple(work.slot for work in works)
        if told:
            followed = spec.apply(self.rows, told)
            assert not isinstance(followed, RowRefusal), followed
            self.rows = followed
        places = [None if row is None else row.slot for row in self.rows]
        if sorted(map(str, places)) != sorted(map(str, self.order)):
            raise InputsError("ROW-2", f"rows of requests {places} became {self.order}")
        self.settle(spec.arrange(self.rows, slots, order_of(places, self.order)), frozenset(slots), lambda: None)
        wanted = inputs(self.config, self.rows, works, copies)
        assert not isinstance(wanted, RowRefusal), wanted
        found = self.read(given, works)
        for law, fault in differing(wanted, found):
            raise InputsError(law, fault)
        self.check_tensors(given)
        self.check_padded(given)
        self.check_slots(works[0])
        self.rows = stepped(self.rows, works)
        return found

    def refuses(self, reason: Rows | Inputs | RowRefusal, call: Callable[[InputBatch], Any]) -> str:
        """Make a call that the specification refuses; the rows must stay. Gives the reason.

        Raises:
            InputsError: it was not refused, or the rows have changed.
        """
        assert isinstance(reason, RowRefusal), reason
        before = self.order
        try:
            call(self.batch)
        except BlockwrightError:
            if self.order != before:
                raise InputsError("ROW-3", f"a refused call changed the rows of {before} to {self.order}") from None
            return reason.name
        raise InputsError("REF-0", f"accepted; expected {reason}")

    # --- what the batch hands out

    def read(self, given: StepInputs, works: tuple[Work, ...]) -> Inputs:
        """Give what was handed out in the specification's terms; nothing may stand behind a table's entries.

        Raises:
            InputsError: something does.
        """
        groups = []
        for at in range(len(self.config.groups)):
            block_tables: list[list[int]] = given.block_tables[at].tolist()
            for place, row in enumerate(self.rows):
                own = row.tables[at] if row else ()
                shown = tuple(block_tables[place])
                if shown != own + (NULL,) * (len(shown) - len(own)):
                    raise InputsError("ROW-1", f"group {at}, row {place}: expected {row}, found {shown}")
            tables = tuple(
                tuple(block_tables[place][: len(row.tables[at])])
                for place, row in enumerate(self.rows[: len(works)])
                if row
            )
            slots = tuple(None if slot == -1 else slot for slot in given.slot_mapping[at].tolist())
            written = tuple(map(tuple, given.state_writes[at].tolist()))
            is_state = isinstance(self.config.groups[at].kind, Mamba)
            counts = [(1 + work.drafts) * (is_state and work.new > 0) for work in works]
            if any(any(blocks[count:]) for blocks, count in zip(written, counts, strict=True)):
                raise InputsError("STATE-2", f"group {at}: blocks {written} behind {counts} states of {works}")
            kept = tuple(blocks[:count] for blocks, count in zip(written, counts, strict=True))
            pairs = tuple((int(source), int(target)) for source, target in given.copies[at].tolist())
            groups.append(GroupInputs(tables, slots, tuple(given.state_reads[at].tolist()), kept, pairs))
        return Inputs(
            tuple(groups),
            tuple(given.positions.tolist()),
            tuple(given.query_start_loc.tolist()),
            tuple(given.num_computed_tokens.tolist()),
            tuple(given.seq_lens.tolist()),
            tuple(given.encoder_lens.tolist()),
        )

    def check_tensors(self, given: StepInputs) -> None:
        """Check counts and types, that the tensors lie where they lay before, and what stands behind them if padded.

        Raises:
            InputsError: something is not so.
        """
        lines = (given.positions, given.query_start_loc, given.num_computed_tokens, given.seq_lens, given.encoder_lens)
        groups = (given.block_tables, given.slot_mapping, given.state_reads, given.state_writes)
        everything = [*lines, *(each for group in groups for each in group)]
        addresses = [each.data_ptr() for each in everything]
        if self.addresses and self.addresses != addresses:
            raise InputsError("REF-0", "the tensors do not lie where they lay in the step before")
        self.addresses = addresses
        wide = (torch.int64, torch.int32, torch.int32, torch.int32, torch.int32)
        if tuple(each.dtype for each in lines) != wide:
            raise InputsError("REF-0", f"types {[each.dtype for each in lines]}, expected {wide}")
        news = (given.query_start_loc[1:] - given.query_start_loc[:-1]).tolist()
        counts = (given.num_requests, given.num_tokens, given.max_query_len, given.max_seq_len)
        if counts != (len(news), sum(news), max(news), max(given.seq_lens.tolist())):
            raise InputsError("LEN-2", f"counts {counts} of {news} tokens up to {given.seq_lens.tolist()}")

    def check_padded(self, given: StepInputs) -> None:
        """Check what stands behind the inputs of a step when they are padded, as for a captured graph.

        Raises:
            InputsError: it could be taken for a token or a request.
        """
        requests, tokens = given.num_requests, given.num_tokens
        own = [each.tolist() for each in (*given.slot_mapping, given.positions)]
        padded = given.padded(len(self.rows), min(tokens + 3, self.most_tokens))
        if own != [each[:tokens].tolist() for each in (*padded.slot_mapping, padded.positions)]:
            raise InputsError("SLOT-1", "padding has changed the slots of the step")
        lens = (padded.num_computed_tokens, padded.seq_lens, padded.encoder_lens, *padded.state_reads)
        writes = tuple(each.sum(1) for each in padded.state_writes)
        if any((each[tokens:] != -1).any() for each in padded.slot_mapping):
            raise InputsError("SLOT-1", f"slots behind {tokens} tokens: {padded.slot_mapping}")
        if any(each[requests:].any() for each in (*lens, *writes)):
            raise InputsError("LEN-2", f"lengths or states behind {requests} requests: {lens}, {writes}")
        if (padded.query_start_loc[requests:] != tokens).any():
            raise InputsError("LEN-2", f"starts behind {requests} requests: {padded.query_start_loc}")

    def check_slots(self, work: Work) -> None:
        """Compare the slots of positions that a caller asks for, such as the encoder's tokens.

        Raises:
            InputsError: they differ, or a position without a block has one.
        """
        row = row_of(self.rows, work.slot)
        assert row is not None
        for at, group in enumerate(self.config.groups):
            if isinstance(group.kind, Mamba):
                continue
            stop = row.encoder if isinstance(group.kind, Cross) else end(work)
            wanted = [slot_at(group.block_size, row.tables[at], position) for position in range(stop)]
            first = next((place for place in range(stop - 1, -1, -1) if wanted[place] is None), -1) + 1
            found = self.batch.slots(name_of(work.slot), at, first, stop).tolist()
            if found != wanted[first:]:
                raise InputsError("SLOT-1", f"group {at}: slots {found} of {first}..{stop}, expected {wanted[first:]}")
            if first:
                self.refuses(RowRefusal.NO_BLOCK, partial(asked_slots, work.slot, at, first - 1))


def asked_slots(slot: int, at: int, position: int, batch: InputBatch) -> None:
    """Ask for the slot of a position."""
    batch.slots(name_of(slot), at, position, position + 1)


def order_of(before: list[int | None], after: list[int | None]) -> tuple[int, ...]:
    """Give the place from which each row of `after` came; free places come in their order."""
    free = iter([place for place, slot in enumerate(before) if slot is None])
    return tuple(next(free) if slot is None else before.index(slot) for slot in after)


NAMES = {
    "tables": "ROW-1",
    "slots": "SLOT-1",
    "states_read": "STATE-1",
    "states_written": "STATE-2",
    "copies": "COPY-3",
    "positions": "LEN-2",
    "starts": "LEN-2",
    "computed": "LEN-2",
    "lengths": "LEN-2",
    "encoder": "CROSS-2",
}
"""The law that a wrong field breaks."""


def differing(wanted: Inputs, found: Inputs) -> list[tuple[str, str]]:
    """Name the fields in which two inputs differ, and the laws that those break."""
    pairs = [("", wanted, found)]
    pairs += [
        (f"group {at}: ", one, other)  # type: ignore[misc]
        for at, (one, other) in enumerate(zip(wanted.groups, found.groups, strict=True))
    ]
    return [
        (NAMES[name], f"{where}{name}: expected {getattr(one, name)}, found {getattr(other, name)}")
        for where, one, other in pairs
        for name in one.__slots__
        if name != "groups" and getattr(one, name) != getattr(other, name)
    ]
