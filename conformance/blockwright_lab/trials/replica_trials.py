"""Trials of the rows that a worker keeps, beside a plain model of them: no torch, no manager, no engine.

ROW-1     the tables are what was told, cell by cell; a copy that is sent the changes only is the same
ROW-3     a call writes nothing but what changes
LEN-2     the words and counts of a step, number by number
REFUSE-2  a wrong call raises the error that the model names, and leaves every number as it was
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.watch import rearm
from .replica_model import Ask, PlainReplica, Refused, Told
from .replica_worlds import BLOCKS, ENCODER, LENGTH, ROWS, WORLDS, packed, plain_of, replica_of, seen, shapes_of

NAMES = ("a", "b", "c", "d", "e")
STEPS = 600

Call = tuple[str, Callable[[Any], Any], Callable[[PlainReplica], Any]]
"""A call: its text, and how it is made on the rows and on the model."""


class Walk:
    """A walk of calls on the rows and on the model."""

    def __init__(self, package: ModuleType, world: str, keeps: bool, seed: int) -> None:
        """Start with free rows."""
        groups, caching = WORLDS[world]
        self.shapes = shapes_of(groups, caching)
        self.replica, self.plain = replica_of(package, groups, caching, keeps), plain_of(self.shapes)
        self.random, self.keeps, self.number = Random(f"{world} {seed}"), keeps, 0
        self.title, self.errors = f"{world}{', kept' * keeps}, walk {seed}", package.errors
        self.encoder = any(each.holds == "encoder" for each in self.shapes)
        self.asked = {name: package.Request(name, [0] * LENGTH) for name in NAMES[:3]}
        self.asked |= {name: SimpleNamespace(request_id=name, num_computed_tokens=0) for name in NAMES[3:]}
        self.sent = list(self.replica.tables)

    def block(self) -> int:
        """Give a block: now and then the null block, or one that is none of the pool."""
        return (
            self.random.choice((0, *range(1, BLOCKS)))
            if self.random.random() > 0.01
            else self.random.choice((-1, BLOCKS))
        )

    def blocks(self, most: int) -> list[int]:
        """Give up to as many blocks, mostly all of them."""
        return [self.block() for _ in range(self.random.choice((most, most, self.random.randint(0, most))))]

    def call(self) -> Call:
        """Give a call by chance."""
        random = self.random
        kind = random.choice(
            (
                "add",
                "add",
                "apply",
                "apply",
                "step",
                "step",
                "step",
                "step",
                "step",
                "remove",
                "swap",
                "compact",
                "slots",
            )
        )
        name = random.choice(NAMES)
        if kind == "add":
            return self.added(name)
        if kind == "apply":
            names, told = self.batch(random.sample(NAMES, random.randint(0, ROWS)))
            requests, given = [self.asked[each] for each in names], packed(told)
            return f"apply {names} {told}", lambda it: it.apply(requests, given), lambda it: it.apply(names, told)
        if kind == "step":
            return self.stepped()
        if kind == "remove":
            return f"remove {name}", lambda it: it.remove_request(name), lambda it: it.remove(name)
        if kind == "slots":
            number, start = random.randrange(len(self.shapes)), random.randint(-1, LENGTH)
            stop = start + random.randint(-1, 4)
            return (
                f"slots {name} {number} {start} {stop}",
                lambda it: list(it.slots(name, number, start, stop)),
                lambda it: it.slots(name, number, start, stop),
            )
        if kind == "swap":
            one, other = random.choices(range(-1, ROWS + 1) if random.random() < 0.1 else range(ROWS), k=2)
            return f"swap {one} {other}", lambda it: it.swap_rows(one, other), lambda it: it.swap(one, other)
        return "compact", lambda it: it.compact(), lambda it: it.compact()

    def added(self, name: str) -> Call:
        """Give a call that adds a request: its blocks in lists or packed, or none of them."""
        random = self.random
        over = random.random() < 0.05
        tables = [self.blocks(each.width + over) for each in self.shapes]
        states = [self.blocks(each.drafts + (random.random() < 0.03)) for each in self.shapes]
        encoder = random.choice((0, ENCODER, -1 if over else 1)) if self.encoder else int(random.random() < 0.05)
        given: Any = tables
        if random.random() < 0.5:
            given = SimpleNamespace(ids=tuple(vec[i32](each) for each in tables))
        elif random.random() < 0.2:
            given, tables = (), [[] for _ in self.shapes]
        return (
            f"add {name} {tables} {states} {encoder}",
            lambda it: it.add_request(name, given, states, encoder),
            lambda it: it.add(name, tables, states, encoder),
        )

    def batch(self, names: list[str]) -> tuple[list[str], Told]:
        """Give a batch of requests that have rows, now and then of one that has none, and what it tells."""
        random, wrong = self.random, self.random.random() < 0.1
        if not self.plain.names():
            self.number = 0
        elif random.random() < 0.3:
            names = [name for name in self.plain.names() if name]
        names = [name for name in names if wrong or name in self.plain.names()]
        told = Told([], [])
        for name in names[: random.randint(0, len(names)) if wrong else None]:
            row = self.plain.row(name) if name in self.plain.names() else None
            told.new.append([])
            told.nulled.append([])
            for at, shape in enumerate(self.shapes):
                held = len(row.tables[at]) if row else 0
                told.new[-1].append(
                    self.blocks(shape.width - held + (random.random() < 0.01))[: random.choice((0, 1, 9))]
                )
                held += len(told.new[-1][-1])
                drop = [entry for entry in range(held + (random.random() < 0.01)) if random.random() < 0.1]
                told.nulled[-1].append(drop)
                if held and random.random() < 0.1:
                    told.replaced.append((len(told.new) - 1, at, random.randrange(held), self.block()))
        if random.random() < 0.5:
            self.number += 1
            told.number = random.choice((self.number, self.number, random.randint(1, self.number)))
            told.names = random.choice(((), tuple(random.choice((name, name, "")) for name in names)))
            if wrong:
                told.names = tuple(random.sample(NAMES, random.randint(1, 5)))
        return names, told

    def stepped(self) -> Call:
        """Give a step of some requests: where they were, further on, or at the start again."""
        random = self.random
        names, told = self.batch(random.sample(NAMES, random.randint(0, ROWS)))
        given = random.choice((None, packed(told)))
        asks: list[Ask] = []
        drafts = max(each.drafts for each in self.shapes)
        for name in names:
            row = self.plain.row(name) if name in self.plain.names() else None
            at = (row.begin or 0, row.certain or 0) if row else (0, 0)
            begin = random.choice((0, *at, at[1] + random.randint(0, drafts), random.randint(-1, LENGTH)))
            new = random.choice((0, 1, 1, 1 + drafts, 3, random.randint(0, LENGTH)))
            asks.append(Ask(name, begin, new, random.randint(0, min(drafts, new))))
        for ask in asks:
            self.asked[ask.name].num_computed_tokens = max(ask.begin, 0) if ask.name in NAMES[:3] else ask.begin
        asks = [ask._replace(begin=self.asked[ask.name].num_computed_tokens) for ask in asks]
        news: Any = [ask.new for ask in asks]
        counts = tuple(ask.drafts for ask in asks)
        if len(set(news)) == 1 and random.random() < 0.5:
            news = news[0]
        requests, tells = [self.asked[name] for name in names], None if given is None else told
        return (
            f"step {asks} {tells}",
            lambda it: it.step(requests, news, counts, given),
            lambda it: it.step(asks, tells),
        )

    def agrees(self) -> str:
        """Say what differs between rows and model."""
        replica, plain = self.replica, self.plain
        cells = plain.cells()
        if list(replica.tables) != cells:
            return f"tables: expected {cells}, found {list(replica.tables)}"
        if replica.request_ids != plain.names():
            return f"names: expected {plain.names()}, found {replica.request_ids}"
        for place, name in enumerate(plain.names()):
            if name and (replica.row_of(name) != place or replica.block_ids(name) != plain.row(name).tables):
                return f"row {place}: found row {replica.row_of(name)}, {replica.block_ids(name)}"
        return ""

    def changed(self, before: list[int], text: str) -> str:
        """Say what is wrong with the changes that are told."""
        replica = self.replica
        indices, values = replica.changes()
        if len(indices) != replica.num_changes:
            return f"{len(indices)} changes are told of {replica.num_changes}"
        after, moved = list(replica.tables), list(self.sent if self.keeps else before)
        for index, value in zip(indices, values, strict=True):
            moved[index] = value
        if moved != after:
            return f"the changes {list(indices)} do not make up for what changed"
        differ = [index for index, value in enumerate(before) if value != after[index]]
        if self.keeps or text.startswith("slots"):
            return ""
        once, again = text.startswith(("add", "remove", "swap")), text.startswith("step") and not text.endswith("None")
        if sorted(indices) != differ if once else not differ and not again and len(indices):
            return f"expected changes of {differ}, found {list(indices)}"
        return ""

    def take(self) -> Iterator[Fault]:
        """Make one call, and compare everything."""
        text, call, plainly = self.call()
        before, inputs = list(self.replica.tables), self.inputs()
        twin, wanted, error = deepcopy(self.plain), None, ""
        try:
            wanted = plainly(twin)
            self.plain = twin
        except Refused as refused:
            error = str(refused)
        found, raised = None, ""
        try:
            found = call(self.replica)
        except self.errors.BlockwrightError as refusal:
            raised = type(refusal).__name__
        if raised != error:
            yield Fault("REFUSE-2", f"{text}: expected {error or 'no error'}, found {raised or 'none'}", 1)
        elif error and self.inputs() != inputs:
            yield Fault("REFUSE-2", f"{text}: refused, but the inputs changed", 1)
        elif isinstance(wanted, tuple):
            yield from self.compared(text, *wanted)
        elif found != wanted:
            yield Fault("ROW-3", f"{text}: expected {wanted}, found {found}", 1)
        if differ := self.agrees():
            yield Fault("REFUSE-2" if error else "ROW-1", f"{text}: {differ}", 1)
        if differ := "" if error and not self.keeps else self.changed(before, text):
            yield Fault("ROW-3", f"{text}: {differ}", 1)
        if self.keeps and self.random.random() < 0.2:
            yield from self.forgotten()

    def inputs(self) -> object:
        """Give all numbers of the last step."""
        return list(self.replica.words), list(self.replica.counts), sizes_of(self.replica)

    def compared(self, text: str, words: list[list[int]], counts: list[list[int]]) -> Iterator[Fault]:
        """Compare the words and counts of a step, and their sizes."""
        news = [stop - begin for begin, stop in zip(counts[1], counts[2], strict=True)]
        wanted = words, counts, (len(news), sum(news), max(news, default=0), max(counts[2], default=0))
        found = *seen(self.replica, self.shapes, self.encoder), sizes_of(self.replica)
        if found != wanted:
            yield Fault("LEN-2", f"{text}: expected {wanted}, found {found}", 1)

    def forgotten(self) -> Iterator[Fault]:
        """Have the changes forgotten, as when they were sent."""
        self.replica.forget_changes()
        self.sent = list(self.replica.tables)
        if self.replica.num_changes or len(self.replica.changes()[0]):
            yield Fault("ROW-3", f"{self.replica.num_changes} changes after they were forgotten", 1)


def sizes_of(replica: Any) -> tuple[int, ...]:
    """Give the sizes of the last step."""
    return replica.num_requests, replica.num_tokens, replica.max_query_len, replica.max_seq_len


def walk_in(world: str, keeps: bool, seed: int) -> Trial:
    """Give the trial that walks through a world."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        walk = Walk(package, world, keeps, seed)
        for number in range(STEPS):
            rearm()
            for fault in walk.take():
                yield fault._replace(detail=f"{walk.title}: {fault.detail}", length=number + 1)
                return

    trial.__name__ = f"rows alone: {world}{', kept' * keeps}, walk {seed}"
    return trial


WALKS: tuple[Trial, ...] = tuple(walk_in(world, bool(seed), seed) for world in WORLDS for seed in range(2))
