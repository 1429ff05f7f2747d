"""Checks a trace of a running manager (`blockwright.observe.trace`) against the block machine, a step at a time.

The checker is the page `block_machine` on mutable records, and a test lets both judge the same steps. A holder and a
block stand for the page's places: which entry of its table a request fills is not traced, only which become null.
"""

import json
import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from blockwright.errors import InvalidArgumentError
from blockwright.observe.trace import CLOSED, ORIGIN, VERBS
from blockwright_spec import reads as spec
from blockwright_spec.reads import Cross, Group, Kind, Mamba, reads, states_beside, writes

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


def words_of(path: Path, start: int) -> Iterator[int]:
    with path.open("rb") as file:
        file.seek(start)
        while data := file.read(1 << 17):
            yield from array("q", data[: len(data) // 8 * 8])


class Trace:
    """A file with a trace; `names` has the requests read so far, `end` says why it ends where it is cut."""

    def __init__(self, path: Path) -> None:
        self.path, self.names, self.end = path, dict[int, str](), ""
        try:
            with path.open("rb") as file:
                self.header = json.loads(file.readline(1 << 20))
                self.start, origin = file.tell(), self.header["blockwright_trace"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"--trace: {path} is no trace: {error!r}; observe.trace writes one") from error
        if origin != ORIGIN:
            raise InvalidArgumentError(f"--trace: {path} is of {origin}, not of {ORIGIN}; check it with that version")

    def steps(self) -> Iterator[Step]:
        words, number = words_of(self.path, self.start), 0
        self.end = "It is cut off behind that: the engine has crashed, or still runs."
        for word in words:
            verb, holder, value = VERBS[word >> 59], word >> 31 & 0xFFFFFFF, word & 0x7FFFFFFF
            if verb == "name" and holder:
                data = b"".join(each.to_bytes(8, sys.byteorder) for each in islice(words, (value + 7) // 8))
                self.names[holder] = data[:value].decode(errors="replace")
            elif verb == "name":
                self.end = "The trace is whole." if value == CLOSED else "It has reached its limit of bytes."
            elif (more := next(words, -1) if verb in WIDE else 0) >= 0:
                number += 1
                yield Step(number, verb, holder, value, more >> 32, more & 0xFFFFFFFF)

    def told(self, step: Step) -> str:
        who = f" by {self.names.get(step.holder, step.holder)!r}" if step.holder else ""
        return f"step {step.number:,}: {step.verb}{f' block {step.value}' * (step.verb in OF_BLOCKS)}{who}"


def unread(kind: Kind, size: int, done: int, stop: int, entry: int) -> bool:
    """Return what `block_machine.unread` returns, without a set of all positions."""
    first, end = entry * size, (entry + 1) * size
    used = reads(kind, done), writes(kind, done, stop), reads(kind, stop)
    is_unused = all(bisect_left(positions, first) == bisect_left(positions, end) for positions in used)
    return end <= stop and is_unused and not isinstance(kind, Cross)


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
        _, verb, holder, value, high, low = step
        block = value if verb in OF_BLOCKS else 0
        if verb in OF_BLOCKS and not 0 < block < len(self.counts):
            return f"BLOCK-2: {block} is the null block, or none of the pool"
        is_held, is_keyed, users = self.counts[block] > 0, self.is_keyed[block], self.users[block]
        match verb:
            case "take" if is_held:
                return "it is not free"
            case "hold" if not is_held and not is_keyed:
                return "no place holds it, and no lookup finds it"
            case "hit" | "forget" if not is_keyed:
                return "no lookup finds it"
            case "write" if is_keyed or users != 1:
                return f"{users} tables use it{', and lookups find it' * is_keyed}"
            case "publish" if is_keyed or not self.is_written[block]:
                return "lookups find it already" if is_keyed else "it has no content"
            case "drop" if not self.held[holder][block]:
                return "this holder does not hold it"
            case "take":
                self._unkey(block)
                self.is_written[block] = not holder  # who takes blocks from outside writes them, unseen
                self._count(holder, block, 1)
            case "hold" | "hit":
                self._count(holder, block, 1)
            case "write":
                self.is_written[block] = True
            case "publish":
                self.is_keyed[block] = True
                self.num_keyed += 1
            case "drop":
                self._count(holder, block, -1)
            case "forget":
                self._unkey(block)
            case "reset":
                for each in range(len(self.counts)):
                    self._unkey(each)
            case "copy":  # until it is run it holds its source and the new block; the writer lets go of the shared one
                steps = ("hold", 0, high), ("hold", 0, low), ("drop", holder, value)
                return next(filter(None, (self.judge(Step(0, *each)) for each in steps)), "")
            case "gone":
                self.tables.pop(holder, None)
                self.ended.append(holder)
                for each in [*self.held[holder].elements()] if high else ():  # until a step or a load is done
                    self._count(0, each, 1)
                    self._count(holder, each, -1)
            case "null":
                nulls = self.tables.setdefault(holder, (0, 0, {}))[2]
                known = max(high, nulls.get((value, high), 0))
                if found := self._read(holder, value, range(known, low)):
                    return found
                nulls[value, high] = low
            case "advance":
                done, stop, nulls = self.tables.get(holder, (0, 0, {}))
                if (high < done or low < stop) and (nulls or self.held[holder].total()):
                    return f"tokens go back from {done}..{stop} to {high}..{low}"
                self.tables[holder] = high, low, nulls
                for (group, first), end in nulls.items():
                    if isinstance(self.groups[group].kind, Mamba):  # in others, a dead entry stays dead
                        read = ((length - 1) // self.groups[group].block_size for length in (high, low))
                        if found := self._read(holder, group, [entry for entry in read if first <= entry < end]):
                            return found
            case "end":
                return self._end((value, low))
        return ""

    def _read(self, holder: int, group: int, entries: Iterable[int]) -> str:
        """Return the fault if one of the entries, which are null, may still be read or filled."""
        kind, size = self.groups[group].kind, self.groups[group].block_size
        done, stop, _ = self.tables[holder]
        done = stop if states_beside(kind) else done  # the states of drafts are beside the table
        for entry in entries:
            if not unread(kind, size, done, stop, entry):
                return f"BLOCK-4: entry {entry} of group {group} is null, and read at {done}..{stop} tokens"
        return ""

    def _end(self, said: tuple[int, int]) -> str:
        while self.ended:
            if left := +self.held.pop(holder := self.ended.pop(), Counter()):
                return f"BLOCK-1: request number {holder} has ended, and blocks {[*left]} are still counted as its"
        mine = self.num_free, self.num_keyed
        return "" if said == mine else f"BLOCK-3: the manager counts {said} free and findable blocks, which are {mine}"

    def _count(self, holder: int, block: int, change: int) -> None:
        was = self.counts[block]
        self.held[holder][block] += change
        self.users[block] += change * (holder > 0)
        self.counts[block] += change
        self.num_free += (was > 0) - (was + change > 0)
        self.is_written[block] &= was + change > 0 or self.is_keyed[block]

    def _unkey(self, block: int) -> None:
        self.num_keyed -= self.is_keyed[block]
        self.is_keyed[block] = False
        self.is_written[block] &= self.counts[block] > 0


def check(path: Path) -> int:
    """Check a trace and print the findings; 1 where a step may not happen or breaks an invariant."""
    started, trace, step = time.perf_counter(), Trace(path), Step(0, "", 0, 0)
    groups = [Group(getattr(spec, kind)(*numbers), size) for kind, numbers, size in trace.header["groups"]]
    checker = Checker(trace.header["num_blocks"], groups)
    found = ""
    for step in trace.steps():
        if found := checker.judge(step):
            break
    seconds, number = time.perf_counter() - started, "1 violation" if found else "no violation"
    print(f"{step.number:,} steps of {len(checker.counts):,} blocks, {seconds:.1f} s, {number}")
    print(f"{trace.told(step)}: {found}" if found else trace.end)
    if found and step.verb in OF_BLOCKS:
        steps = islice(trace.steps(), step.number)
        life = deque((each for each in steps if each.verb in OF_BLOCKS and each.value == step.value), 12)
        print(f"The last steps of block {step.value}:", *map(trace.told, life), sep="\n  ")
    return int(bool(found))
