"""A trace: all that a manager does with its blocks, in a file that ``blockwright conform --trace`` checks.

The file is a line of JSON (`LAYOUT`, the version, the pool and its groups of layers) and words of 64 bits, which
`blockwright.core.pool.tape` defines. It begins with steps that lead from an empty pool to the manager's state.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
from pathlib import Path
from typing import Any, Final

import blockwright
from blockwright.arguments import guard as _guard
from blockwright.arguments import integer
from blockwright.core.manager import KVCacheManager
from blockwright.core.pool.tape import DROP, HOLD, HOLDERS, PUBLISH, TAKE, VERBS, Tape
from blockwright.core.steps.tracing import go_on, note_nulls
from blockwright.errors import InvalidArgumentError, UnsupportedError

LAYOUT: Final = 1
_WORDS: Final = 16384
_NAME: Final = VERBS.index("name")
CLOSED, FULL = 0, 1
"""Why a trace ends, in its last word: a "name" of nobody."""


class Trace:
    """The trace of a manager, which goes on until `close`, or until the file is as large as it may be.

    Attributes:
        is_on: whether the manager still writes.
        num_bytes: the size of the file, without the words that wait in memory (128 KiB at most).
    """

    def __init__(self, manager: KVCacheManager, path: str | Path, limit_bytes: int) -> None:
        """See `trace`."""
        pool = manager.block_pool
        pool.require_whole()
        if manager.prefix_match_unit is not None:
            raise UnsupportedError("prefix_match_unit: parts of blocks are not traced; trace a manager without it")
        if pool._tape is not None or not manager.managers:
            raise InvalidArgumentError("manager: is traced already, or has no layers; close the other trace first")
        self._limit = integer("limit_bytes", limit_bytes, 2**20, 2**62)
        self._state = manager._state
        kinds = [_described(group, view.block_size) for group, view in zip(self._state.groups, manager.managers)]
        header = {"blockwright_trace": LAYOUT, "version": blockwright.__version__, "order": sys.byteorder}
        line = json.dumps(header | {"num_blocks": pool.num_blocks, "groups": kinds}).encode() + b"\n"
        self._file = Path(path).open("wb")
        self.num_bytes = self._file.write(line)
        self.is_on = True
        self._known: set[int] = set()
        self._tape = pool._tape = pool._index.tape = Tape(_WORDS, self._note)
        self._begin()
        atexit.register(self.close)

    def _begin(self) -> None:
        """Write steps from an empty pool to the state: each block is taken, published, and held by those that do."""
        state, tape, pool = self._state, self._tape, self._state.pool
        holders: dict[int, list[int]] = {}
        given_up = [batch for step in state.steps for batch in step.fenced] + list(state.loads.values())
        held = [(0, blocks) for batch in given_up for blocks in batch]
        held += [(0, copy[1:]) for copy in pool.pending_copies()]
        held += [(0, [block] * times) for block, times in enumerate(pool.holders_apart())]
        for tables in state.running.values():
            for table in tables.by_group:
                held += [(int(tables.uid) % HOLDERS, blocks) for blocks in (table.blocks, table.states)]
        for holder, blocks in held:
            for block in blocks:
                holders.setdefault(int(block), []).append(holder)
        for block, is_published in enumerate(pool.published()):
            if block > 0 and (is_published or block in holders):
                steps = [(0, TAKE), *[(0, PUBLISH)] * is_published, *((each, HOLD) for each in holders.get(block, ()))]
                for tape.holder, verb in [*steps, (0, DROP)]:
                    tape.put(verb, block)
        for tables in state.running.values():
            go_on(state, tables, tables.num_settled)
            note_nulls(state, tables)
        tape.end(pool.num_free, pool._index.num_keyed)

    def _note(self, words: Any, count: int) -> None:
        """Write down words, with the names of requests before them; a trace that cannot go on ends, and says so."""
        names, self._tape.names = self._tape.names, {}
        running = {int(each.uid) % HOLDERS: each.request_id for each in self._state.running.values()}
        new = [each for each in (names | running).items() if each[0] not in self._known]
        self._known = set(running)
        try:
            data = b"".join(_named(*each) for each in new) + memoryview(words)[:count].tobytes()
            if self.num_bytes + len(data) > self._limit:
                self._end(FULL)
                logging.getLogger(__name__).warning("limit_bytes: the trace has %d bytes and ends", self.num_bytes)
            elif self.is_on:
                self.num_bytes += self._file.write(data)
                self._file.flush()
        except Exception:
            self.is_on = False
            self._state.pool._tape = self._state.pool._index.tape = None
            logging.getLogger(__name__).exception("the trace of a manager ends: it cannot be written")

    def _end(self, why: int) -> None:
        if self.is_on:
            self.is_on = False
            self._state.pool._tape = self._state.pool._index.tape = None
            with self._file:
                self.num_bytes += self._file.write((_NAME << 59 | why).to_bytes(8, sys.byteorder))

    def close(self) -> None:
        """Write what waits in memory, and end the trace."""
        if self.is_on:
            self._tape.flush()
        self._end(CLOSED)
        atexit.unregister(self.close)

    def __enter__(self) -> Trace:
        """Return the trace, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the trace."""
        self.close()


def _described(group: Any, block_size: int) -> list[Any]:
    spec = group.spec
    names = ("sliding_window", "sink_len", "attention_chunk_size", "num_speculative_blocks", "runs_ahead")
    return [type(spec).__name__, block_size, {name: getattr(spec, name) for name in names if hasattr(spec, name)}]


def _named(holder: int, name: str) -> bytes:
    data = name.encode(errors="replace")[:1024]
    word = _NAME << 59 | holder << 31 | len(data)
    return word.to_bytes(8, sys.byteorder) + data + bytes(-len(data) % 8)


def trace(manager: KVCacheManager, path: str | Path, limit_bytes: int = 2**30) -> Trace:
    """Write all that a manager does with its blocks from now on to a file; ``blockwright conform --trace`` checks it.

    Args:
        manager: new, or in the middle of a run. Its copies are not traced.
        path: the file, which is written over.
        limit_bytes: the size at which the trace ends and logs a warning, at least 1 MiB: 8 or 16 bytes a step.

    Raises:
        InvalidArgumentError: the manager is traced already, or the limit is out of range.
        UnsupportedError: made with ``prefix_match_unit``.
    """
    return Trace(manager, path, limit_bytes)


_guard(globals(), ["trace"])
