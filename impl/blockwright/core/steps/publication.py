"""Which blocks become findable, as what, and when.

Blocks are published with the step that fills them, for engines that run steps in order: whoever hits them computes
later, or in the same step, in which every layer writes what all tokens need before any of them reads it. A recurrent
layer does not, so a state that a step leaves is *due* until the step has run (law: MAMBA-5).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from blockwright.core.keys.request import Request
from blockwright.core.steps.state import State
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import GroupTable, RequestTables

NOT_RUN: Final = -1
"""Where a step stopped that has still to run."""


def make_keys(state: State, request: Request, count: i64) -> None:
    """Make the keys of the blocks that `count` tokens fill: all the memory that publishing them takes, events aside."""
    if state.config.caching and request._block_size > 0:
        request.hash_until(count // request._block_size)


def publish_to(group: GroupTables, table: GroupTable, request: Request, count: i64, stopped: i64) -> None:
    """Publish what the first `count` tokens filled, all of them known and written.

    A recurrent layer's state only if a step that has run stopped there, after `stopped` tokens.
    """
    if group.publishes(table, count) and request._block_size > 0:
        group.publish(table, request, group._block_size // request._block_size, count, stopped)


def publish_filled(state: State, tables: RequestTables, request: Request, count: i64, stopped: i64) -> None:
    """Do so in every group."""
    for group, table in zip(state.groups, tables.by_group):
        publish_to(group, table, request, count, stopped)


def publish_due(state: State, tables: RequestTables, request: Request) -> None:
    """Publish the state that a request's last step left, if any, now that the step has run. law: MAMBA-5.

    Not before: a request that hit it in the same step would read it while it is written. Other layers may be hit at
    once, since each writes what the step computes in it before it reads.
    """
    if not state.due.remove(tables):
        return
    stopped = tables.num_written - tables.num_drafts
    for group, table in zip(state.groups, tables.by_group):
        if not group.is_row():
            publish_to(group, table, request, stopped, stopped)


def publish_all_due(state: State) -> None:
    """Publish the states that all steps up to now have left, in their order. O(requests that left one)."""
    tables = state.due.first
    while tables is not None:
        publish_due(state, tables, tables.request)
        tables = state.due.first
