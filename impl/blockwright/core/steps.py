"""Steps in flight, and the blocks that wait for them.

A step is started, requests are given slots in it, and it is settled when it is known to be done. What a request held
when it was released meanwhile stays behind a fence until the last step that touches it is settled (laws: FLIGHT-1,
FENCE-1, SETTLE-1).
"""

from __future__ import annotations

from typing import final

from librt.vecs import append, extend, pop, vec
from mypy_extensions import i32, i64

from blockwright.core.tables import GroupTable, RequestTables


@final
class StepInFlight:
    """One step: who computes how many tokens in it, and the batches of blocks that return when it is settled.

    Attributes:
        number: the step's number, from 1.
        tables: one per request served; one whose request has been released since has no owner.
        news: tokens that each computes, drafts included.
        drafts: how many of them are drafts.
        fenced: batches of blocks, per group, in the order in which they were given up.
    """

    def __init__(self, number: i64) -> None:
        """Start without requests."""
        self.number: i64 = number
        self.tables: list[RequestTables] = []
        self.news: vec[i64] = vec[i64]()
        self.drafts: vec[i64] = vec[i64]()
        self.fenced: list[list[vec[i32]]] = []

    def fly(self, tables: RequestTables, new: i64, drafts: i64) -> None:
        """Record that the step computes `new` tokens of a request. O(1)."""
        news = append(self.news, new)
        noted = append(self.drafts, drafts)
        self.tables.append(tables)  # the last to take memory
        self.news = news
        self.drafts = noted

    def ground(self, tables: RequestTables | None) -> None:
        """Take back what `fly` recorded last, if it was of these tables, however far it came. O(1)."""
        if len(self.tables) > 0 and self.tables[-1] is tables:
            self.tables.pop()
        while len(self.news) > len(self.tables):
            self.news, _ = pop(self.news)
        while len(self.drafts) > len(self.tables):
            self.drafts, _ = pop(self.drafts)

    def copy_for(self, owner: i64, running: dict[str, RequestTables]) -> StepInFlight:
        """Return a copy for another manager; requests that were released meanwhile matter no more."""
        twin = StepInFlight(self.number)
        i: i64 = 0
        while i < i64(len(self.tables)):
            tables = self.tables[i]
            if tables.owner != 0:
                twin.tables.append(running[tables.request_id])
                twin.news = append(twin.news, self.news[i])
                twin.drafts = append(twin.drafts, self.drafts[i])
            i += 1
        twin.fenced = self.fenced[:]
        return twin


def held_blocks(table: GroupTable) -> vec[i32]:
    """Return all that a table holds, in the order in which it is released backwards. O(entries)."""
    return extend(table.blocks[:], table.states)
