"""Checks a trace of a running manager (`blockwright.observe.trace`) against the block machine, a step at a time.

The checker is the page `block_machine` on mutable records, and a test lets both judge the same steps. A holder and a
block stand for the page's places: which entry of its table a request fills is not traced, only which become null.
"""

import json
import sys
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from blockwright import __version__
from blockwright.core.pool.tape import VERBS
from blockwright.errors import InvalidArgumentError
from blockwright.observe.trace import CLOSED, LAYOUT
from blockwright_spec.reads import Ahead, Chunked, Cross, Full, Group, Kind, Mamba, Sinks, Sliding, drafts_beside

OF_BLOCKS, WIDE = VERBS[:7], VERBS[9:]
"""The verbs of one block, and those with a second word."""


class Step(NamedTuple):
    """A step: its number and verb, the request that acts (0 is none), and a block or other numbers."""

    number: int
    verb: str
    holder: int
    value: int
    high: int = 0
    low: int = 0


class Trace:
    """A file with a trace; `names` has the requests read so far, `end` says why it ends where it is cut."""

    def __init__(self, path: Path) -> None:
        self.path, self.names, self.end = path, dict[int, str](), ""
        try:
            with path.open("rb") as file:
                self.header = json.loads(file.readline(1 << 20))
                self.start = file.tell()
            origin = self.header["blockwright_trace"], self.header["version"]
        except OSError as error:
            raise InvalidArgumentError(f"--trace: cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"--trace: {path} is no trace; blockwright.observe.trace writes one") from error
        if origin != (LAYOUT, __version__):
            raise InvalidArgumentError(f"--trace: {path} is of {origin}, not {LAYOUT, __version__}: check it with that")

    def words(self) -> Iterator[int]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            while data := file.read(1 << 17):
                yield from array("q", data[: len(data) // 8 * 8])

    def steps(self) -> Iterator[Step]:
        words, number = self.words(), 0
        self.end = "It is cut off behind that: the engine has crashed, or still runs."
        for word in words:
            verb, holder, value = VERBS[word >> 59], word >> 31 & 0xFFFFFFF, word & 0x7FFFFFFF
            if verb == "name" and holder:
                data = b"".join(each.to_bytes(8, sys.byteorder) for each in islice(words, (value + 7) // 8))
                self.names[holder] = data[:value].decode(errors="replace")
            elif verb == "name":
                self.end = "" if value == CLOSED else "It has reached its limit of bytes, and ends there."
            elif (more := next(words, -1) if verb in WIDE else 0) >= 0:
                number += 1
                yield Step(number, verb, holder, value, more >> 32, more & 0xFFFFFFFF)

    def told(self, step: Step) -> str:
        who = f" by {self.names.get(step.holder, step.holder)!r}" if step.holder else ""
        return f"step {step.number:,}: {step.verb}{f' block {step.value}' * (step.verb in OF_BLOCKS)}{who}"


def kind_of(name: str, options: dict[str, Any]) -> Kind:
    match name:
        case "SlidingWindowSpec":
            window, sinks = options["sliding_window"], options["sink_len"]
            return Sinks(sinks, window) if sinks else Sliding(window)
        case "ChunkedLocalAttentionSpec":
            return Chunked(options["attention_chunk_size"])
        case "MambaSpec":
            return (Ahead if options["runs_ahead"] else Mamba)(options["num_speculative_blocks"])
    return Cross() if name == "CrossAttentionSpec" else Full()


def unread(kind: Kind, size: int, done: int, stop: int, entry: int) -> bool:
    """Return what `block_machine.unread` returns, in constant time."""
    first, end = entry * size, (entry + 1) * size
    if isinstance(kind, Cross | Full) or end > stop:
        return False
    if isinstance(kind, Mamba):
        return all(entry != (length - 1) // size for length in (done, stop) if length)
    if isinstance(kind, Chunked):
        lows = [length // kind.chunk * kind.chunk for length in (done, stop)]
    else:
        lows = [length - kind.window + 1 for length in (done, stop)]
    sinks = kind.sinks if isinstance(kind, Sinks) else 0
    return not done < min(stop, end) and first >= min(sinks, done) and end <= max(sinks, min(lows))


class Checker:
    """The machine after the steps so far."""

    def __init__(self, num_blocks: int, groups: list[Group]) -> None:
        self.groups, self.num_free, self.num_keyed = groups, num_blocks - 1, 0
        self.counts, self.users = [0] * num_blocks, [0] * num_blocks
        self.is_keyed, self.is_written = [False] * num_blocks, [False] * num_blocks
        self.held: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self.tables: dict[int, tuple[int, int, dict[tuple[int, int], int]]] = {}
        self.ended: list[int] = []

    def judge(self, step: Step) -> str:
        """Make a step; return why it may not happen, or what it breaks, and "" if all is well."""
        _, verb, holder, block, high, low = step
        if verb in OF_BLOCKS and not 0 < block < len(self.counts):
            return f"BLOCK-2: {block} is the null block, or none of the pool"
        match verb:
            case "take":
                if self.counts[block]:
                    return "it is not free"
                self._unkey(block)
                self.is_written[block] = not holder  # who takes blocks from outside writes them, unseen
                self._count(holder, block, 1)
            case "hold" | "hit":
                if not self.is_keyed[block] and (verb == "hit" or not self.counts[block]):
                    return "no lookup finds it" + ", and no place holds it" * (verb == "hold")
                self._count(holder, block, 1)
            case "write":
                if self.is_keyed[block] or self.users[block] != 1:
                    return f"{self.users[block]} tables use it" + ", and lookups find it" * self.is_keyed[block]
                self.is_written[block] = True
            case "publish":
                if self.is_keyed[block] or not self.is_written[block]:
                    return "lookups find it already" if self.is_keyed[block] else "it has no content"
                self.is_keyed[block] = True
                self.num_keyed += 1
            case "drop":
                if not self.held[holder][block]:
                    return "this holder does not hold it"
                self._count(holder, block, -1)
            case "forget":
                if not self.is_keyed[block]:
                    return "no lookup finds it"
                self._unkey(block)
            case "reset":
                for each in range(len(self.counts)):
                    self._unkey(each)
            case "copy":  # it holds its source and the new block; its holder lets go of the one that others share
                steps = ("hold", 0, high), ("hold", 0, low), ("drop", holder, block)
                return next(filter(None, (self.judge(Step(step.number, *each)) for each in steps)), "")
            case "gone":
                self.tables.pop(holder, None)
                self.ended.append(holder)
                for each, times in [*self.held[holder].items()] if high else ():  # until a step or a load is done
                    for _ in range(times):
                        self._count(0, each, 1)
                        self._count(holder, each, -1)
            case "null":
                return self._null(holder, block, high, low)
            case "advance":
                done, stop, nulls = self.tables.get(holder, (0, 0, {}))
                if (high < done or low < stop) and (nulls or self.held[holder].total()):
                    return f"tokens go back from {done}..{stop} to {high}..{low}"
                self.tables[holder] = high, low, nulls
            case "end":
                return self._end(block, low)
        return ""

    def _null(self, holder: int, group: int, first: int, end: int) -> str:
        done, stop, nulls = self.tables.setdefault(holder, (0, 0, {}))
        kind, size = self.groups[group].kind, self.groups[group].block_size
        done = stop if drafts_beside(kind) else done  # the states of drafts are beside the table
        for entry in range(max(first, nulls.get((group, first), 0)), end):
            if not unread(kind, size, done, stop, entry):
                return f"BLOCK-4: entry {entry} of group {group} is null, and read at {done}..{stop} tokens"
        nulls[group, first] = end
        return ""

    def _end(self, num_free: int, num_keyed: int) -> str:
        for holder in self.ended:
            if left := +self.held.pop(holder, Counter()):
                return f"BLOCK-1: request number {holder} has ended, and blocks {[*left]} are still counted as its"
        self.ended.clear()
        if (num_free, num_keyed) != (self.num_free, self.num_keyed):
            mine = f"{self.num_free} are unheld, and {self.num_keyed} are findable"
            return f"BLOCK-3: the manager has {num_free} free blocks, and finds {num_keyed}; {mine}"
        return ""

    def _count(self, holder: int, block: int, change: int) -> None:
        self.held[holder][block] += change
        self.users[block] += change * (holder > 0)
        was = self.counts[block]
        self.counts[block] += change
        self.num_free += (was > 0) - (was + change > 0)
        self.is_written[block] &= was + change > 0 or self.is_keyed[block]

    def _unkey(self, block: int) -> None:
        self.num_keyed -= self.is_keyed[block]
        self.is_keyed[block] = False
        self.is_written[block] &= self.counts[block] > 0


def check(path: Path) -> int:
    """Check a trace and print the findings; 1 where a step may not happen or breaks an invariant."""
    started, trace = time.perf_counter(), Trace(path)
    num_blocks, groups = trace.header["num_blocks"], trace.header["groups"]
    checker = Checker(num_blocks, [Group(kind_of(name, options), size) for name, size, options in groups])
    step, found = Step(0, "", 0, 0), ""
    for step in trace.steps():
        if found := checker.judge(step):
            break
    seconds = time.perf_counter() - started
    print(f"{step.number:,} steps of {num_blocks:,} blocks, {seconds:.1f} s, {1 if found else 'no'} violation")
    if not found:
        print(trace.end or "The trace is whole.")
        return 0
    print(f"{trace.told(step)}: {found}")
    if step.verb in OF_BLOCKS:
        steps = islice(trace.steps(), step.number)
        life = deque((each for each in steps if each.verb in OF_BLOCKS and each.value == step.value), 12)
        print(f"The last steps of block {step.value}:", *map(trace.told, life), sep="\n  ")
    return 1
