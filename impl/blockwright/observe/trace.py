"""A trace: all that a manager does with its blocks, in a file that ``blockwright conform --trace`` checks.

A line of JSON (layout, version, the pool, its groups of layers) and then words of 64 bits, as `core.pool.tape` defines
them; "name" has the length of a request's id, which follows. It begins with steps from an empty pool to the state.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
from pathlib import Path
from typing import Any, Final

import blockwright
from blockwright.arguments import integer
from blockwright.core.manager import KVCacheManager
from blockwright.core.pool.tape import DROP, HOLD, HOLDERS, PUBLISH, TAKE, Tape
from blockwright.errors import InvalidArgumentError, UnsupportedError

ORIGIN: Final = [1, blockwright.__version__, sys.byteorder]
"""Of a file: the number of its layout, the version that wrote it, and the order of bytes in its words."""
_WORDS: Final = 16384
VERBS: Final = (
    "take", "hold", "hit", "write", "publish", "drop", "forget", "reset", "name", "null", "advance", "gone", "copy",
    "end",
)  # fmt: skip
"""By number. A "hit" holds what a lookup found, a "copy" moves its holder to a new block, "gone" ends a request."""
_NAME: Final = VERBS.index("name") << 59
CLOSED, FULL = 0, 1
"""Why a trace ends: its last word names nobody, and has this number."""
# The kinds of layers in the specification, with their numbers; a recurrent one has its blocks beside the table.
_KINDS = {
    "FullAttentionSpec": ("Full",),
    "SlidingWindowSpec": ("Sinks", "sink_len", "sliding_window"),
    "ChunkedLocalAttentionSpec": ("Chunked", "attention_chunk_size"),
    "MambaSpec": ("Mamba",),
    "CrossAttentionSpec": ("Cross",),
}


class Trace:
    """The trace of a manager, which goes on until `close`, or until the file is as large as it may be.

    Attributes:
        is_on: whether the manager still writes.
        num_bytes: the size of the file, without the 128 KiB at most that wait in memory.
    """

    def __init__(self, manager: KVCacheManager, path: str | Path, limit_bytes: int) -> None:
        """See `trace`."""
        pool, state = manager.block_pool, manager._state
        pool.require_whole()
        if manager.prefix_match_unit is not None:
            raise UnsupportedError("prefix_match_unit: parts of blocks are not traced; trace a manager without it")
        if pool._tape is not None or not state.groups:
            raise InvalidArgumentError("manager: is traced already, or has no layers; close the other trace first")
        self._limit = integer("limit_bytes", limit_bytes, 2**20, 2**62)
        groups = []
        for group in state.groups:
            kind, *names = _KINDS[type(group.spec).__name__]
            numbers = [getattr(group.spec, name) for name in names] + [int(group.num_states)] * (kind == "Mamba")
            groups.append((kind, numbers, int(group._block_size)))
        header = {"blockwright_trace": ORIGIN, "num_blocks": pool.max_num_blocks, "groups": groups}
        line = json.dumps(header).encode() + b"\n"
        self._file = open(path, "wb")  # noqa: SIM115
        self.num_bytes = self._file.write(line)
        self.is_on = True
        self._state, self._known = state, set[int]()
        self._tape = Tape(_WORDS, self._note)
        pool._record(self._tape)
        self._begin()
        self._tape.flush()
        atexit.register(self.close)

    def _begin(self) -> None:
        """Write steps from an empty pool to the state: each block is taken, published, and held by those that do."""
        state, tape, pool = self._state, self._tape, self._state.pool
        held: list[tuple[int, Any]] = [(0, copy[1:]) for copy in pool.pending_copies()]
        held += [(0, blocks) for left in state.all_left() for blocks in left.blocks]
        held += [(0, [block] * times) for block, times in enumerate(pool.holders_apart())]
        held.append((0, range(pool.num_blocks, pool.max_num_blocks)))  # which the pool holds itself
        for tables in state.running.values():
            held += [(tables.uid % HOLDERS, [*table.blocks, *table.states]) for table in tables.by_group]
        holders: dict[int, list[int]] = {}
        for holder, blocks in held:
            for block in blocks:
                holders.setdefault(int(block), []).append(holder)
        for number, is_published in enumerate(pool.published()):
            if number > 0 and (is_published or number in holders):
                steps = [(0, TAKE), *[(0, PUBLISH)] * is_published, *((who, HOLD) for who in holders.get(number, ()))]
                for tape.holder, verb in [*steps, (0, DROP)]:
                    tape.put(verb, number)
        for tables in state.running.values():
            state.listeners.goes_on(tables, tables.num_settled)
            state.listeners.filled(tables, None)
        tape.end(pool.num_free, pool._index.num_keyed)

    def _note(self, words: Any, count: int) -> None:
        """Write down words, behind the names of requests; a trace that cannot go on ends, and says so."""
        names = self._tape.names | {int(each.uid) % HOLDERS: each.request_id for each in self._state.running.values()}
        self._tape.names = {}
        # Each name is written once, before the first words with its holder.
        data = [_named(holder, names[holder]) for holder in names.keys() - self._known]
        self._known = set(names)
        try:
            written = b"".join([*data, memoryview(words)[:count].tobytes()])
            if self.num_bytes + len(written) <= self._limit and self.is_on:
                self.num_bytes += self._file.write(written)
                self._file.flush()
            elif self.is_on:
                logging.getLogger(__name__).warning("limit_bytes: the trace has %d bytes and ends", self.num_bytes)
                self._end(FULL)
        except Exception:
            self.is_on = False
            logging.getLogger(__name__).exception("the trace of a manager ends, since it cannot be written")
        if not self.is_on:
            self._state.pool._record(None)

    def _end(self, why: int) -> None:
        self.is_on = False
        with self._file:
            self.num_bytes += self._file.write((_NAME | why).to_bytes(8, sys.byteorder))

    def close(self) -> None:
        """Write what waits in memory, and end the trace."""
        atexit.unregister(self.close)
        if self.is_on:
            self._tape.flush()
        if self.is_on:
            self._state.pool._record(None)
            self._end(CLOSED)


def _named(holder: int, name: str) -> bytes:
    data = name.encode(errors="replace")[:1024]
    return (_NAME | holder << 31 | len(data)).to_bytes(8, sys.byteorder) + data + bytes(-len(data) % 8)


def trace(manager: KVCacheManager, path: str | Path, limit_bytes: int = 2**30) -> Trace:
    """Write all that a manager does with its blocks from now on to a file; ``blockwright conform --trace`` checks it.

    A step takes 8 or 16 bytes. The manager may be in the middle of a run; its copies are not traced.

    Args:
        manager: made without ``prefix_match_unit``.
        path: the file, which is written over.
        limit_bytes: the size at which the trace ends and logs a warning, at least 1 MiB.

    Raises:
        InvalidArgumentError: the manager is traced already, or the limit is out of range.
        UnsupportedError: made with ``prefix_match_unit``.
    """
    return Trace(manager, path, limit_bytes)
