"""What a running request holds: one block table per group of layers.

Plain records. The managers write them, the pool's counters follow them (law: REF-1).
"""

from __future__ import annotations

from typing import final

from librt.vecs import vec
from mypy_extensions import i32, i64


@final
class GroupTable:
    """One request's blocks in one group.

    Attributes:
        blocks: block ids in order of positions; 0 where nothing is held.
        num_published: leading entries that publication has passed (their full blocks carry a key).
        num_trimmed: leading entries that trimming has passed (all of them are null).
        num_covered: slots covered by the last growth; the tokens behind the state that a recurrent layer keeps.
    """

    def __init__(self, blocks: vec[i32], num_published: i64, num_trimmed: i64, num_covered: i64) -> None:
        """Take the fields as they are."""
        self.blocks: vec[i32] = blocks
        self.num_published: i64 = num_published
        self.num_trimmed: i64 = num_trimmed
        self.num_covered: i64 = num_covered

    def copy(self) -> GroupTable:
        """Return an independent copy."""
        return GroupTable(self.blocks[:], self.num_published, self.num_trimmed, self.num_covered)


@final
class RequestTables:
    """One running request in one manager.

    Attributes:
        request_id: id of the request.
        uid: identity of the `Request` object and its copies, so that another request under the same id is noticed.
        owner: number of the manager that made it; 0 once released.
        num_written: tokens whose slots the last call handed out for writing (lookahead not counted).
        quiet: slots up to which serving the request changes only counts: no block is missing, none becomes full, no
            entry dies. A lower bound, kept by `KVCacheManager`.
        batch: number of the last batch that served it, so that a repetition within a batch is noticed.
        groups: the tables, one per group.
    """

    def __init__(self, request_id: str, uid: i64, owner: i64, num_written: i64, groups: list[GroupTable]) -> None:
        """Take the fields as they are."""
        self.request_id = request_id
        self.uid: i64 = uid
        self.owner: i64 = owner
        self.num_written: i64 = num_written
        self.quiet: i64 = 0
        self.batch: i64 = 0
        self.groups = groups

    def copy(self, owner: i64) -> RequestTables:
        """Return an independent copy that belongs to another manager."""
        groups = [table.copy() for table in self.groups]
        return RequestTables(self.request_id, self.uid, owner, self.num_written, groups)
