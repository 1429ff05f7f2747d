"""Checks the trace of a running manager (`blockwright.observe.trace`) against the block machine, a step at a time.

The checker is the page `block_machine` over mutable records: a holder and a block stand for the places of the page, and
entries of tables are named where they become null. A test lets both judge the same steps.
"""

import json
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from blockwright import __version__
from blockwright.core.pool.tape import VERBS
from blockwright.errors import InvalidArgumentError
from blockwright.observe.trace import CLOSED, LAYOUT
from blockwright_spec.reads import Ahead, Chunked, Cross, Full, Group, Kind, Mamba, Sinks, Sliding, drafts_beside

LIFE: Final = 12
"""Steps of a block that are shown."""
OF_BLOCKS: Final = VERBS[1:8]
CHUNK: Final = 1 << 17


class Step(NamedTuple):
    """A step of a trace: its number, its verb, the request that acts (0 is none), and a block or other numbers."""

    number: int
    verb: str
    holder: int
    value: int
    high: int = 0
    low: int = 0


class Trace:
    """A file with a trace: its pool, the names of its requests as far as they were read, and whether it has its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.names, self.end = path, dict[int, str](), ""
        try:
            with path.open("rb") as file:
                header = json.loads(file.readline(1 << 20))
                self.start = file.tell()
            layout, version, self.num_blocks = (header[name] for name in ("blockwright_trace", "version", "num_blocks"))
            if layout == LAYOUT and version == __version__:
                self.groups = [kind_of(*each) for each in header["groups"]]
        except OSError as error:
            raise InvalidArgumentError(f"--trace: cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"--trace: {path} is no trace; blockwright.observe.trace writes one") from error
        if layout != LAYOUT or version != __version__:
            raise InvalidArgumentError(
                f"--trace: {path} is of version {version} (layout {layout}), this is {__version__} ({LAYOUT}); "
                "check it with the version that wrote it"
            )
        self.is_swapped = header["order"] != sys.byteorder

    def words(self) -> Iterator[int]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            while data := file.read(CHUNK):
                words = array("q", data[: len(data) // 8 * 8])
                if self.is_swapped:
                    words.byteswap()
                yield from words

    def steps(self) -> Iterator[Step]:
        """Yield the steps that are whole, in order."""
        words, number = self.words(), 0
        self.end = "The file is cut off behind its last step (a crash, or it is still written)"
        for word in words:
            verb, holder, value = VERBS[word >> 59], word >> 31 & 0xFFFFFFF, word & 0x7FFFFFFF
            if verb == "name" and holder:
                data = b"".join(each.to_bytes(8, sys.byteorder) for each in islice(words, -(-value // 8)))
                self.names[holder] = data[:value].decode(errors="replace")
            elif verb == "name":
                self.end = "" if value == CLOSED else "The trace has reached its limit of bytes and ends there"
            else:
                more = next(words, -1) if verb in ("null", "advance", "end") else 0
                if more >= 0:
                    number += 1
                    yield Step(number, verb, holder, value, more >> 32, more & 0xFFFFFFFF)

    def told(self, step: Step) -> str:
        """Return a step in words."""
        who = f" by {self.names.get(step.holder, f'request number {step.holder}')!r}" if step.holder else ""
        what = f" block {step.value}" if step.verb in OF_BLOCKS else ""
        return f"step {step.number:,}: {step.verb}{what}{who}"


def kind_of(name: str, block_size: int, options: dict[str, Any]) -> Group:
    """Return a group of layers as the specification has it."""
    sinks, drafts = options.get("sink_len", 0), options.get("num_speculative_blocks", 0)
    kinds: dict[str, Kind] = {"FullAttentionSpec": Full(), "CrossAttentionSpec": Cross()}
    if name == "SlidingWindowSpec":
        kinds[name] = Sinks(sinks, options["sliding_window"]) if sinks else Sliding(options["sliding_window"])
    elif name == "ChunkedLocalAttentionSpec":
        kinds[name] = Chunked(options["attention_chunk_size"])
    elif name == "MambaSpec":
        kinds[name] = Ahead(drafts) if options["runs_ahead"] else Mamba(drafts)
    return Group(kinds[name], block_size)


def unread(kind: Kind, size: int, done: int, stop: int, entry: int) -> bool:
    """Return what `block_machine.unread` returns, in constant time."""
    first, end = entry * size, (entry + 1) * size
    if isinstance(kind, Cross | Full) or end > stop:
        return False
    if isinstance(kind, Mamba):
        return all(entry != (length - 1) // size for length in (done, stop) if length > 0)
    if done < stop and end > done:
        return False
    match kind:
        case Chunked(chunk):
            return all(end <= length // chunk * chunk for length in (done, stop))
        case Sliding(window):
            sinks = 0
        case Sinks(sinks, window):
            pass
    return first >= min(sinks, done) and all(end <= max(sinks, length - window + 1) for length in (done, stop))


class Checker:
    """The machine as it is after the steps so far."""

    def __init__(self, num_blocks: int, groups: list[Group]) -> None:
        self.groups = groups
        self.counts, self.users = [0] * num_blocks, [0] * num_blocks
        self.is_keyed, self.is_written = [False] * num_blocks, [False] * num_blocks
        self.num_free, self.num_keyed = num_blocks - 1, 0
        self.held: dict[int, Counter[int]] = {}
        self.tables: dict[int, tuple[int, int]] = {}
        self.passed: dict[int, dict[tuple[int, int], int]] = {}
        self.ended: list[int] = []
        self.verbs = {verb: getattr(self, verb) for verb in VERBS[1:-1]}

    def judge(self, step: Step) -> str:
        """Make a step, and return why it may not happen or which invariant it breaks; "" if all is well."""
        if step.verb in OF_BLOCKS and not 0 < step.value < len(self.counts):
            return f"BLOCK-2: {step.value} is the null block, or none of the pool"
        found: str = self.verbs[step.verb](step)
        return found

    def take(self, step: Step) -> str:
        block = step.value
        if self.counts[block]:
            return "it is not free"
        self._unkey(block)
        self.is_written[block] = step.holder == 0  # whoever takes blocks from outside also writes them
        return self._join(step)

    def hold(self, step: Step) -> str:
        is_there = self.counts[step.value] or self.is_keyed[step.value]
        return self._join(step) if is_there else "no place holds it, and no lookup finds it"

    def hit(self, step: Step) -> str:
        return self._join(step) if self.is_keyed[step.value] else "no lookup may find it: its content is lost"

    def write(self, step: Step) -> str:
        if self.is_keyed[step.value]:
            return "lookups find it, so it is not written to"
        if self.users[step.value] != 1:
            return f"{self.users[step.value]} tables use it, so it is not written to"
        self.is_written[step.value] = True
        return ""

    def publish(self, step: Step) -> str:
        if self.is_keyed[step.value] or not self.is_written[step.value]:
            return "it is published already" if self.is_keyed[step.value] else "it has no content"
        self.is_keyed[step.value] = True
        self.num_keyed += 1
        return ""

    def drop(self, step: Step) -> str:
        block, own = step.value, self.held.get(step.holder)
        if own is None or not own[block]:
            return "this holder does not hold it"
        own[block] -= 1
        if not own[block]:
            del own[block]
        self.users[block] -= step.holder != 0
        self.counts[block] -= 1
        if not self.counts[block]:
            self.num_free += 1
            self.is_written[block] = self.is_keyed[block]
        return ""

    def forget(self, step: Step) -> str:
        if not self.is_keyed[step.value]:
            return "no lookup finds it"
        self._unkey(step.value)
        return ""

    def reset(self, _: Step) -> str:
        for block, is_keyed in enumerate(self.is_keyed):
            if is_keyed:
                self._unkey(block)
        return ""

    def gone(self, step: Step) -> str:
        if step.value:  # a fence holds its blocks from now on
            pins = self.held.setdefault(0, Counter())
            for block, times in self.held.pop(step.holder, Counter()).items():
                pins[block] += times
                self.users[block] -= times
        self.tables.pop(step.holder, None)
        self.passed.pop(step.holder, None)
        self.ended.append(step.holder)
        return ""

    def null(self, step: Step) -> str:
        group, passed = self.groups[step.value], self.passed.setdefault(step.holder, {})
        done, stop = self.tables.get(step.holder, (0, 0))
        done = stop if drafts_beside(group.kind) else done
        for entry in range(max(step.high, passed.get((step.value, step.high), 0)), step.low):
            if not unread(group.kind, group.block_size, done, stop, entry):
                return f"BLOCK-4: entry {entry} of group {step.value} is null, and read at {done} of {stop} tokens"
        passed[step.value, step.high] = step.low
        return ""

    def advance(self, step: Step) -> str:
        done, stop = self.tables.get(step.holder, (0, 0))
        if (step.high < done or step.low < stop) and (self.held.get(step.holder) or self.passed.get(step.holder)):
            return f"its tokens go back from {done} of {stop} to {step.high} of {step.low}"
        self.tables[step.holder] = step.high, step.low
        return ""

    def end(self, step: Step) -> str:
        for holder in self.ended:
            if self.held.pop(holder, None):
                return f"BLOCK-1: request number {holder} has ended, and its blocks are not released"
        self.ended.clear()
        if self.num_free != step.value:
            return f"BLOCK-3: the manager has {step.value} free blocks; no place holds {self.num_free}"
        if self.num_keyed != step.low:
            return f"BLOCK-3: the manager finds {step.low} blocks; {self.num_keyed} are published"
        return ""

    def _join(self, step: Step) -> str:
        block = step.value
        self.held.setdefault(step.holder, Counter())[block] += 1
        self.users[block] += step.holder != 0
        self.counts[block] += 1
        self.num_free -= self.counts[block] == 1
        return ""

    def _unkey(self, block: int) -> None:
        self.num_keyed -= self.is_keyed[block]
        self.is_keyed[block] = False
        self.is_written[block] &= self.counts[block] > 0


def check(path: Path) -> int:
    """Check a trace and print what is found; 1 where a step may not happen or breaks an invariant."""
    started, trace = time.perf_counter(), Trace(path)
    checker = Checker(trace.num_blocks, trace.groups)
    count, found, last = 0, "", Step(0, "", 0, 0)
    for last in trace.steps():
        count = last.number
        if found := checker.judge(last):
            break
    seconds, many = time.perf_counter() - started, "1 violation" if found else "no violation"
    print(f"{path}: {count:,} steps on {trace.num_blocks - 1:,} blocks, {seconds:.1f} s: {many}")
    if not found:
        print(trace.end or "The trace is whole.")
        return 0
    print(f"{trace.told(last)}: {found}")
    if last.verb in OF_BLOCKS:
        steps = islice(trace.steps(), last.number)
        life = deque((each for each in steps if each.verb in OF_BLOCKS and each.value == last.value), LIFE)
        print(f"The last steps of block {last.value}:", *map(trace.told, life), sep="\n  ")
    return 1
