"""The data plane under the state machine: rows of tables on a device, and memory with a number for each token's prefix.

A worker (`InputBatch`) keeps the tables of running requests; tokens are written to the slots that it names, copies are
executed by the device's own operation, drafts and lookahead leave garbage. Then every slot that a block's content
covers, and every position that a request reads next, must hold the number of its own prefix.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch

from blockwright.device import copy_blocks
from blockwright_spec.manager.facts import span
from blockwright_spec.manager.in_time.forks import written_next
from blockwright_spec.manager.state import NULL, Content, Running, State, Waiting
from blockwright_spec.manager.table_laws import following
from blockwright_spec.reads import Cross, Mamba, cut, needed, writes
from blockwright_spec.worker.rows import Row

from .kv_cache.calls import Call
from .kv_cache.parts import running
from .kv_cache.requests import GrowEach
from .kv_cache.scopes import Scope
from .kv_cache.symmetry import Names
from .worker.blockwright import BlockwrightWorker
from .worker.scopes import WorkerScope

NOTHING, GARBAGE = -1, -2
"""What a slot holds that was never written, and one that a draft was written to."""


class Plane:
    def __init__(self, scope: Scope) -> None:
        self.config, self.names = scope.config, Names()
        self.worker = BlockwrightWorker(WorkerScope(scope))
        self.rows: dict[int, Row] = {}
        self.sources: dict[tuple[int, int], torch.Tensor] = {}  # as they were when they were copied first
        self.sizes = [1 if isinstance(each.kind, Mamba) else each.block_size for each in self.config.groups]
        self.pages = torch.full((self.config.num_blocks, max(self.sizes)), NOTHING, dtype=torch.int64)
        self.groups = [
            at
            for at, each in enumerate(self.config.groups)
            if not isinstance(each.kind, Cross) and (not isinstance(each.kind, Mamba) or type(each.kind) is Mamba)
            if not getattr(each.kind, "drafts", 0)
        ]
        """Those with data that is followed; the states of drafts are the worker's own gate."""

    def number(self, content: Content) -> int:
        at, prefix = content
        return self.names.number(prefix) * len(self.config.groups) + at

    def follow(self, before: State, action: Any, outcome: Any) -> None:
        """Do on the device what an action came to: first copies, then the rows, then what its steps write."""
        after: State = outcome.state
        new = after.copies[len(before.copies) :] if after.copies[: len(before.copies)] == before.copies else ()
        if not before.copies:
            self.sources.clear()
        for at, source, target in new:
            # All copies are made before the step, but here the step of another request may have run by now.
            old = self.sources.setdefault((at, source), self.pages[source].clone())
            now, content, is_state = (
                self.pages[source].clone(),
                after.contents[target],
                isinstance(self.config.groups[at].kind, Mamba),
            )
            if is_state and content is not None and int(old[0]) == self.number(content):
                self.pages[source] = old
            copy_blocks([self.pages], [(source, target)]).synchronize()
            self.pages[source] = now
        if isinstance(action, Call) and action.kind == "ForkWithCopies" and outcome.done:
            slot, child = action.arguments[:2]
            for at, entry in written_next(before, slot):
                ends = [running(state, each).tables[at][entry] for state, each in ((before, slot), (after, child))]
                copy_blocks([self.pages], [(ends[0], ends[1])]).synchronize()
        if isinstance(action, GrowEach) and outcome.done:
            self.reported(action, outcome)
        elif isinstance(action, Call) and action.kind == "FinishLoad" and outcome.done:
            self.load(before, *action.arguments)
        for slot, request in enumerate(after.requests):
            self.keep(slot, request)
            if isinstance(request, Running) and not (isinstance(action, Call) and action.kind.startswith("Fork")):
                self.write(before, outcome.hit, slot, request)

    def reported(self, action: GrowEach, outcome: Any) -> None:
        """Let the worker follow a batch by its report alone."""
        told = []
        for (slot, _), done in zip(action.asks, outcome.done, strict=False):
            targets = {group: target for group, _, target in done.state.copies}
            entries = tuple((at, each, targets[at]) for at, each in enumerate(done.copied) if each is not None)
            told.append((slot, done.new, done.nulled, entries))
            request = done.state.requests[slot]
            self.rows[slot] = Row(slot, request.tables, request.states, request.beside)
        self.worker.apply(tuple(told))

    def load(self, before: State, slot: int, count: int) -> None:
        """Write what came of a load, before the request gives its blocks up if that was not all."""
        request = before.requests[slot]
        if isinstance(request, Running) and request.coming:
            stop = min(request.written + count, len(request.prefix[1]))
            self.fill(slot, request, request.written, stop, states=count == request.coming)

    def keep(self, slot: int, request: Any) -> None:
        if not isinstance(request, Running):
            if self.rows.pop(slot, None) is not None:
                self.worker.remove(slot)
            return
        row = Row(slot, request.tables, request.states, request.beside)
        if self.rows.get(slot) != row:
            self.rows[slot] = row
            self.worker.add(row)

    def write(self, before: State, hit: Any, slot: int, request: Running) -> None:
        old = before.requests[slot]
        if isinstance(old, Running):
            start, is_step = old.computed, request.written > old.written
        else:
            found = old.hit if isinstance(old, Waiting) and hit is None else hit
            start, is_step = found.length if found else 0, True
        self.fill(slot, request, start, request.computed)
        for at in self.groups if is_step and not request.coming else ():
            group = self.config.groups[at]
            if not isinstance(group.kind, Mamba):
                end = min(len(request.tables[at]) * group.block_size, self.config.max_model_len)
                first = max(request.computed, request.settled)
                self.put(slot, at, first, [GARBAGE] * (end - first))

    def fill(self, slot: int, request: Running, start: int, stop: int, states: bool = True) -> None:
        """Write the tokens of a request from one to another; of recurrent layers the state that a step leaves."""
        for at in self.groups:
            group, table = self.config.groups[at], request.tables[at]
            if isinstance(group.kind, Mamba):
                inside = [request.inside - 1] * (request.inside > start)
                for place in (*inside, *writes(group.kind, start, request.computed)) if states else ():
                    block = table[place // span(self.config, group)]
                    self.pages[block, 0] = self.number((at, cut(request.prefix, place + 1)))
                continue
            places = [place for place in range(start, stop) if table[place // group.block_size] != NULL]
            for _, each in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):  # what runs on without a gap
                run = [place for _, place in each]
                self.put(slot, at, run[0], [self.number((at, cut(request.prefix, place + 1))) for place in run])

    def put(self, slot: int, group: int, start: int, values: list[int]) -> None:
        if values:
            slots = torch.tensor(self.worker.slots(slot, group, start, start + len(values)))
            size = self.sizes[group]
            self.pages[slots // size, slots % size] = torch.tensor(values)

    def misread(self, state: State) -> list[str]:
        memory = self.pages.tolist()
        return [*self.wrong_blocks(state, memory), *self.wrong_reads(state, memory)][:3]

    def wrong_blocks(self, state: State, memory: list[list[int]]) -> Iterator[str]:
        for block, content in enumerate(state.contents):
            if content is None or content[0] not in self.groups:
                continue
            at, prefix = content
            size, length = self.sizes[at], len(prefix[1])
            first = (length - 1) // size * size
            places = [length - 1] if isinstance(self.config.groups[at].kind, Mamba) else range(first, length)
            for offset, place in enumerate(places):
                if memory[block][offset] != self.number((at, cut(prefix, place + 1))):
                    yield f"block {block}, group {at}: slot {offset} does not hold position {place} of {prefix}"

    def wrong_reads(self, state: State, memory: list[list[int]]) -> Iterator[str]:
        for slot, request in enumerate(state.requests):
            if not isinstance(request, Running) or request.coming:
                continue
            for at in self.groups:
                group, size = self.config.groups[at], self.sizes[at]
                if isinstance(group.kind, Mamba):
                    continue
                for place in needed(group.kind, following(state, request)):
                    if place >= request.computed:
                        break
                    where = self.worker.slots(slot, at, place, place + 1)[0]
                    if memory[where // size][where % size] != self.number((at, cut(request.prefix, place + 1))):
                        yield f"{slot}, group {at}: slot {where} does not hold position {place} as it is read"
