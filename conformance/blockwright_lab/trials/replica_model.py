"""A plain model of the rows that a worker keeps: lists and dictionaries, and nothing shared with the implementation.

A refused call raises `Refused` with the name of the error; what the model did by then is thrown away by who calls it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple


class Refused(Exception):  # noqa: N818  (an answer, not a failure)
    """The call is wrong; the name of the error that says so."""


class Shape(NamedTuple):
    """A group: tokens per block, entries per row, blocks for states of drafts, and what its blocks hold."""

    block_size: int
    width: int
    drafts: int
    holds: str
    """"slots" of the request's tokens, "encoder" tokens, "states", or the one "state" that every step overwrites."""

    @property
    def recurrent(self) -> bool:
        """Whether blocks hold states."""
        return self.holds in ("states", "state")


@dataclass
class Told:
    """What a batch tells: per request and group new blocks and nulled entries, and entries that were replaced."""

    new: list[list[list[int]]]
    nulled: list[list[list[int]]]
    replaced: list[tuple[int, int, int, int]] = field(default_factory=list)
    number: int = 0
    names: tuple[str, ...] = ()

    @property
    def served(self) -> int:
        """How many requests were served."""
        return len(self.new)


@dataclass
class PlainRow:
    """What is known of one request."""

    name: str
    tables: list[list[int]]
    states: list[list[int]]
    encoder: int
    begin: int | None = None
    certain: int | None = None
    reads: list[int] = field(default_factory=list)


class Ask(NamedTuple):
    """A request of a step: where it begins, its new tokens and how many of them are drafts."""

    name: str
    begin: int
    new: int
    drafts: int


@dataclass
class PlainReplica:
    """Rows by their places."""

    shapes: list[Shape]
    rows: list[PlainRow | None]
    num_blocks: int
    max_tokens: int
    max_len: int
    applied: int = 0

    def names(self) -> list[str | None]:
        """Give who has which row, up to the last that is taken."""
        found = [row.name if row else None for row in self.rows]
        while found and found[-1] is None:
            found.pop()
        return found

    def place(self, name: str) -> int:
        """Give the place of a request's row."""
        for place, row in enumerate(self.rows):
            if row and row.name == name:
                return place
        raise Refused("UnknownRequestError")

    def row(self, name: str) -> PlainRow:
        """Give the row of a request."""
        row = self.rows[self.place(name)]
        assert row is not None
        return row

    def cells(self) -> list[int]:
        """Give the tables as one vector: groups, rows, entries with zeros behind; then the entries of each row."""
        found: list[int] = []
        lengths: list[int] = []
        for at, shape in enumerate(self.shapes):
            for row in self.rows:
                table = row.tables[at] if row else []
                found += table + [0] * (shape.width - len(table))
                lengths.append(len(table))
        return found + lengths

    def check(self, block: int) -> None:
        """Refuse a block that is none of the pool."""
        if not 0 <= block < self.num_blocks:
            raise Refused("BlockError")

    def add(self, name: str, tables: list[list[int]], states: list[list[int]], encoder: int) -> None:
        """Give a request the first free row, or its own anew."""
        for block in (block for lists in (tables, states) for each in lists for block in each):
            self.check(block)
        cover = max((each.width * each.block_size for each in self.shapes if each.holds == "encoder"), default=0)
        fits = [
            len(table) <= shape.width and len(blocks) <= shape.drafts
            for shape, table, blocks in zip(self.shapes, tables, states, strict=True)
        ]
        known = name in self.names()
        if not all(fits) or not 0 <= encoder <= cover or (not known and None not in self.rows):
            raise Refused("InvalidArgumentError")
        if not known:
            self.rows[self.rows.index(None)] = PlainRow(name, [], [], 0, reads=[0] * len(self.shapes))
        row = self.row(name)
        row.tables, row.states, row.encoder = [list(each) for each in tables], [list(each) for each in states], encoder

    def remove(self, name: str) -> None:
        """Free a request's row; when all are free, another manager's allocations may follow."""
        self.rows[self.place(name)] = None
        if not self.names():
            self.applied = 0

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        if not (0 <= one < len(self.rows) and 0 <= other < len(self.rows)):
            raise Refused("InvalidArgumentError")
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]

    def compact(self) -> list[tuple[int, int]]:
        """Move the last rows to the first free ones before them."""
        moves: list[tuple[int, int]] = []
        while None in (names := self.names()):
            moves.append((len(names) - 1, names.index(None)))
            self.swap(*moves[-1])
        return moves

    def located(self, names: Sequence[str]) -> None:
        """Refuse requests that are too many, have no row or stand twice."""
        if len(names) > len(self.rows):
            raise Refused("InvalidArgumentError")
        for at, name in enumerate(names):
            self.place(name)
            if name in names[:at]:
                raise Refused("DuplicateRequestError")

    def apply(self, names: Sequence[str], told: Told) -> None:
        """Follow what a batch tells."""
        self.located(names)
        if 0 < told.number <= self.applied or told.served > len(names):
            raise Refused("InvalidArgumentError")
        if told.names and len(told.names) < told.served:
            raise Refused("InvalidArgumentError")
        for at, (new, nulled) in enumerate(zip(told.new, told.nulled, strict=True)):
            if any(new) or any(nulled):
                self.named(told, names, at)
            row = self.row(names[at])
            for shape, table, blocks, entries in zip(self.shapes, row.tables, new, nulled, strict=True):
                if len(table) + len(blocks) > shape.width:
                    raise Refused("InvalidArgumentError")
                for block in blocks:
                    self.check(block)
                    table.append(block)
                for entry in entries:
                    put(table, entry, 0)
        for at, group, entry, block in told.replaced:
            if not (0 <= at < told.served and 0 <= group < len(self.shapes)):
                raise Refused("InvalidArgumentError")
            table = self.row(names[at]).tables[group]
            if 0 <= entry < len(table):
                self.check(block)
            put(table, entry, block)
            self.named(told, names, at)
        self.applied = max(self.applied, told.number)

    def named(self, told: Told, names: Sequence[str], at: int) -> None:
        """Refuse a request that is not the one of the batch; one without a name there is not looked at."""
        if told.names and told.names[at] not in ("", names[at]):
            raise Refused("InvalidArgumentError")

    def step(self, asks: Sequence[Ask], told: Told | None) -> tuple[list[list[int]], list[list[int]]]:
        """Apply, bring the rows in order, and give the words and the counts of the step."""
        names = [ask.name for ask in asks]
        self.located(names)
        for ask in asks:
            if ask.begin < 0 or ask.begin + ask.new > self.max_len or 0 < ask.drafts >= ask.new:
                raise Refused("InvalidArgumentError")
        if sum(ask.new for ask in asks) > self.max_tokens:
            raise Refused("InvalidArgumentError")
        if told is not None:
            self.apply(names, told)
        words = [[at for ask in asks for at in range(ask.begin, ask.begin + ask.new)]]
        states: list[list[int]] = []
        read_by: list[list[int]] = []
        for number, shape in enumerate(self.shapes):
            if shape.holds == "slots":
                words.append([self.slot(ask.name, number, at) for ask in asks for at in positions(ask)])
            elif shape.recurrent:
                read_by.append([self.read(ask, number) for ask in asks])
                states += [read_by[-1], [block for ask in asks for block in self.written(ask, number)]]
        for at, name in enumerate(names):
            self.swap(at, self.place(name))
        recurrent = [number for number, shape in enumerate(self.shapes) if shape.recurrent]
        for at, ask in enumerate(asks):
            if ask.new:
                row = self.row(ask.name)
                row.begin, row.certain = ask.begin, ask.begin + ask.new - ask.drafts
                for number, reads in zip(recurrent, read_by, strict=True):
                    row.reads[number] = reads[at]
        lens = [ask.begin + ask.new for ask in asks]
        starts = [0, *accumulate(ask.new for ask in asks)]
        encoder = [self.row(name).encoder for name in names]
        return words, [starts, [ask.begin for ask in asks], lens, encoder, *states]

    def slot(self, name: str, number: int, position: int) -> int:
        """Give the slot of a position."""
        size, table = self.shapes[number].block_size, self.row(name).tables[number]
        block = table[position // size] if position // size < len(table) else 0
        if not block:
            raise Refused("BlockError")
        return block * size + position % size

    def slots(self, name: str, number: int, start: int, stop: int) -> list[int]:
        """Give the slots of some positions, of an encoder's too."""
        self.place(name)
        if self.shapes[number].recurrent:
            raise Refused("UnsupportedError")
        if not 0 <= start <= stop:
            raise Refused("InvalidArgumentError")
        return [self.slot(name, number, position) for position in range(start, stop)]

    def state(self, name: str, number: int, tokens: int) -> int:
        """Give the block of the state after some tokens; 0: none."""
        shape, table = self.shapes[number], self.row(name).tables[number]
        entry = 0 if shape.holds == "state" else (tokens - 1) // shape.block_size
        return table[entry] if entry < len(table) else 0

    def read(self, ask: Ask, number: int) -> int:
        """Give the block of the state that a step begins with."""
        row = self.row(ask.name)
        if ask.begin == 0:
            return 0
        if self.shapes[number].drafts and ask.begin == row.begin:
            found = row.reads[number]
        elif row.certain is not None and ask.begin > row.certain:
            accepted = ask.begin - row.certain
            found = row.states[number][accepted - 1] if accepted <= len(row.states[number]) else 0
        else:
            found = self.state(ask.name, number, ask.begin)
        if not found and ask.new:
            raise Refused("BlockError")
        return found

    def written(self, ask: Ask, number: int) -> list[int]:
        """Give the blocks of the states that a step writes, with zeros behind."""
        found: list[int] = []
        if ask.new:
            found.append(self.state(ask.name, number, ask.begin + ask.new - ask.drafts))
            states = self.row(ask.name).states[number]
            if not found[0] or ask.drafts > len(states):
                raise Refused("BlockError")
            found += states[: ask.drafts]
        return found + [0] * (1 + self.shapes[number].drafts - len(found))


def positions(ask: Ask) -> range:
    """Give the positions that a step computes."""
    return range(ask.begin, ask.begin + ask.new)


def put(table: list[int], entry: int, block: int) -> None:
    """Put a block in an entry that there is."""
    if not 0 <= entry < len(table):
        raise Refused("InvalidArgumentError")
    table[entry] = block
