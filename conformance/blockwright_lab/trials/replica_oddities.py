"""Trials of a worker's rows by single calls: the edges of every limit, what no manager tells, what stands for a number.

ROW-1     rows begin empty; vectors of any length are zeros
LEN-2     a step may be as large as the limits, and of no request at all
STATE-1   a state is read where the table has it now, unless drafts of the last step have it
REFUSE-2  a wrong call raises the error, with words that say what is wrong, and leaves every number as it was
"""

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from librt.vecs import vec
from mypy_extensions import i32

from ..known_bugs.known_bug import Fault
from .replica_trials import sizes_of
from .replica_worlds import LENGTH, ROWS, TOKENS, replica_of

GROUPS = (("full", 2), ("mamba", 1), ("full", 3))
TABLES = {"a": [[1, 2, 3, 4, 5, 6], [0, 7, 8], [9]], "b": [[11, 12, 13, 14, 15], [16], [17, 18, 19, 20]]}
MOST = 2**31 - 1
SIZES = (0, 1, 4095, 4096, 4097, 5000)

Call = Callable[[Any], object]
Wrong = tuple[str, Call, str, str]
"""What a call is, the call, the error that it raises, and words that are in it."""


class Number:
    """What stands for an integer, such as one of numpy."""

    def __init__(self, value: int) -> None:
        """Stand for a number."""
        self.value = value

    def __index__(self) -> int:
        """Give the number."""
        return self.value


class Indexed:
    """What has items by number, but is nothing to be gone through."""

    def __getitem__(self, index: int) -> list[int]:
        """Give the item."""
        return [[1], [2], [3]][index]


class Watched:
    """A request that counts how often it is asked for its id."""

    num_computed_tokens = 0

    def __init__(self, name: str) -> None:
        """Be asked for nothing yet."""
        self.name, self.asked = name, 0

    @property
    def request_id(self) -> str:
        """Give the id."""
        self.asked += 1
        return self.name


def at(name: str, begin: int = 0) -> Any:
    """Give a request that is to go on somewhere."""
    return SimpleNamespace(request_id=name, num_computed_tokens=begin)


def running(package: ModuleType) -> Any:
    """Give rows of two requests."""
    replica = replica_of(package, GROUPS, True, False)
    for name, tables in TABLES.items():
        replica.add_request(name, tables, (), 0)
    return replica


def batch(
    new: tuple[list[int], list[int]] = ([], [0, 0, 0, 0]),
    nulled: tuple[list[int], list[int]] = ([], [0, 0, 0, 0]),
    replaced: tuple[int, ...] = (),
    **rest: object,
) -> Any:
    """Give what is told of one request: blocks and entries, and where each group's part ends."""
    return SimpleNamespace(
        num_served=1, new_block_ids=vec[i32](new[0]), new_block_offsets=vec[i32](new[1]),
        nulled_entries=vec[i32](nulled[0]), nulled_offsets=vec[i32](nulled[1]), replaced_entries=vec[i32](replaced),
        **rest,
    )  # fmt: skip


def applied(*requests: str, **told: Any) -> Call:
    """Give a call that applies a batch."""
    return lambda it: it.apply([at(each) for each in requests or ("a",)], batch(**told))


def stepped(*requests: Any, new: Any = 1, drafts: Any = 0, told: Any = None) -> Call:
    """Give a call that steps."""
    return lambda it: it.step(list(requests), new, drafts, told)


INVALID, BLOCK = "InvalidArgumentError", "BlockError"
WRONG: tuple[Wrong, ...] = (
    ("the most encoder tokens", lambda it: it.add_request("a", (), (), MOST), INVALID, f"{MOST} for 'a', but rows"),
    ("more than that", lambda it: it.add_request("a", (), (), MOST + 1), INVALID, "must be 0 or more, not"),
    ("fewer than none", lambda it: it.add_request("a", (), (), -1), INVALID, "must be 0 or more, not -1"),
    ("a text for a block", lambda it: it.add_request("a", [["x"], [], []], (), 0), BLOCK, "'x' of 'a' in group 0"),
    ("what has only items", lambda it: it.add_request("a", Indexed(), (), 0), INVALID, "block_ids: must be a list of"),
    ("ends too short", applied(new=([], [0, 0, 0])), INVALID, "not one of 3 groups"),
    ("much too short", applied(new=([], [0, 0])), INVALID, "not one of 3 groups"),
    ("three numbers replaced", applied(replaced=(0, 0, 0)), INVALID, "not one of 3 groups"),
    ("blocks from -1 on", applied("b", new=([21], [-1, 0, 0, 0])), INVALID, "new blocks -1..0 of 1"),
    ("blocks backwards", applied("b", new=([21, 22], [2, 1, 1, 1])), INVALID, "new blocks 2..1 of 2"),
    ("entries from -1 on", applied(nulled=([0], [-1, 0, 0, 0])), INVALID, "nulled entries -1..0 of 1"),
    ("entries backwards", applied(nulled=([0, 0], [2, 1, 1, 1])), INVALID, "nulled entries 2..1 of 2"),
    ("entry -1", applied(nulled=([-1], [0, 1, 1, 1])), INVALID, "entry -1 of 'a' in group 0 became null"),
    ("the entry behind", applied(nulled=([1], [0, 0, 0, 1])), INVALID, "entry 1 of 'a' in group 2 became null"),
    ("request -1 replaced", applied(replaced=(-1, 0, 0, 21)), INVALID, "an entry of request -1, group 0"),
    ("group -1 replaced", applied(replaced=(0, -1, 0, 21)), INVALID, "an entry of request 0, group -1"),
    ("entry -1 replaced", applied(replaced=(0, 2, -1, 21)), INVALID, "entry -1 of 'a' in group 2 was replaced"),
    ("the entry behind replaced", applied(replaced=(0, 2, 1, 21)), INVALID, "entry 1 of 'a' in group 2 was replaced"),
    ("no request", stepped(None), "UnknownRequestError", "None has no row"),
    ("no request, where no row is", stepped(at("a"), at("b"), None), "UnknownRequestError", "None has no row"),
    ("one token too many", stepped(at("a"), at("b"), new=[9, 8]), INVALID, "17 in all, but a step has at most 16"),
    ("a state that is not held", stepped(at("a", 1)), BLOCK, "the state after 1 tokens of 'a' in group 1"),
    ("a state to be written", stepped(at("a"), new=1), BLOCK, "the state after 1 tokens of 'a' in group 1"),
    ("slots of group -1", lambda it: it.slots("a", -1, 0, 1), INVALID, "group: must be within 0..2, not -1"),
    ("slots from -1 on", lambda it: it.slots("a", 0, -1, 1), INVALID, "positions in order, not -1 and 1"),
    ("slots far behind", lambda it: it.slots("a", 2, 7, 9), BLOCK, "position 7 of 'a' in group 2 has no block"),
    ("slots up to the last", lambda it: it.slots("a", 2, 0, MOST), BLOCK, "position 3 of 'a' in group 2 has no block"),
    ("slots behind a full row", lambda it: it.slots("a", 0, 12, 13), BLOCK, "position 12 of 'a' in group 0 has no"),
)


def numbers(replica: Any) -> object:
    """Give every number that can be seen."""
    names = replica.request_ids
    sizes = sizes_of(replica)
    return (
        list(replica.tables),
        list(replica.words),
        list(replica.counts),
        names,
        list(map(replica.block_ids, names)),
        sizes,
    )


def row_refusals(package: ModuleType) -> Iterator[Fault]:
    """Give each wrong call that is accepted, or is refused in other words, or changes something."""
    for what, call, error, words in WRONG:
        replica = running(package)
        before, raised = numbers(replica), ""
        try:
            call(replica)
        except package.errors.BlockwrightError as wrong:
            raised = f"{type(wrong).__name__}: {wrong}"
        if not raised.startswith(error) or words not in raised:
            yield Fault("REFUSE-2", f"{what}: expected {error} with {words!r}, found {raised or 'none'}", 1)
        if numbers(replica) != before:
            yield Fault("REFUSE-2", f"{what}: refused, but something changed", 1)


def first_rows(package: ModuleType) -> Iterator[Fault]:
    """Look at rows before the first call: they are empty, whatever their length (ROW-1)."""
    rows: Any = package.worker.rows
    for size in SIZES:
        if list(rows.zeros32(size)) != [0] * size or list(rows.zeros64(size)) != [0] * size:
            yield Fault("ROW-1", f"{size} zeros", 1)
    for keeps in (False, True):
        replica = replica_of(package, GROUPS, True, keeps)
        found = sizes_of(replica)
        if any((*found, replica.num_changes, *replica.request_ids, *replica.tables)):
            yield Fault("ROW-1", f"rows begin with {found}, {replica.num_changes} changes, {replica.request_ids}", 1)


def row_edges(package: ModuleType) -> Iterator[Fault]:
    """Make steps as large as the limits, and of none; give counts in other forms (LEN-2)."""
    replica = running(package)
    replica.apply([at("a")], batch(new=([], [5, 5, 5, 5]), nulled=([0], [0, 1, 1, 1])))
    if replica.block_ids("a")[0] != [0, *TABLES["a"][0][1:]]:
        yield Fault("ROW-1", f"nulled entry 0, nothing new: {replica.block_ids('a')}", 1)
    replica = replica_of(package, (("full", 2),), True, False)
    requests = [at(name) for name in "abcd"]
    for place, each in enumerate(requests):
        replica.add_request(each.request_id, [range(1 + 6 * place, 7 + 6 * place)], (), 0)
    most = LENGTH, TOKENS - LENGTH
    for count, new in ((ROWS, TOKENS // ROWS), (2, most), (2, range(2, 4)), (ROWS, Number(1)), (1, Number(0)), (0, [])):
        replica.step(requests[:count], new, Number(0), None)
        counts = list(new) if isinstance(new, (tuple, list, range)) else [int(new.__index__())] * count
        found = replica.num_requests, replica.num_tokens, replica.max_query_len
        if found != (count, sum(counts), max(counts, default=0)) or replica.num_changes:
            yield Fault("LEN-2", f"a step of {counts}: found {found}, {replica.num_changes} changes", 1)
    watched = Watched("a")
    for _ in range(3):
        replica.step([watched], 1, 0, None)
    if watched.asked != 1:
        yield Fault("LEN-2", f"a request that is where it was is looked up: {watched.asked} times", 3)


def row_states(package: ModuleType) -> Iterator[Fault]:
    """Make a step again: it reads its state where that is now, if no drafts can have it (STATE-1)."""
    for kind, is_new in (("mamba", False), ("mamba +1", True)):
        replica = replica_of(package, ((kind, 2),), True, False)
        for block in (5, 6):
            replica.add_request("a", [[block, 9]], (), 0)
            replica.step([at("a", 2)], 1, 0, None)
            read = int(replica.counts[4 * ROWS + 1])
            if read != block:
                yield Fault("STATE-1", f"the state after 2 tokens is read from {read}, but lies in {block}", 2)
            if is_new:
                replica.remove_request("a")


def row_managers(package: ModuleType) -> Iterator[Fault]:
    """Apply batches in order, and those of another manager when no request is left (ROW-1)."""
    replica = running(package)
    for number, fits in ((1, True), (Number(MOST), True), (1, False)):
        try:
            replica.apply([at("a")], batch(number=number))
        except package.errors.InvalidArgumentError:
            if fits:
                yield Fault("ROW-1", "a batch is not taken", 1)
            continue
        if not fits:
            yield Fault("ROW-1", "a batch of before is taken", 1)
    for name in TABLES:
        replica.remove_request(name)
    replica.add_request("a", TABLES["a"], (), 0)
    replica.apply([at("a")], batch(number=1))
    if replica.request_ids != ["a"]:
        yield Fault("ROW-1", f"one request is left, found {replica.request_ids}", 4)


ODDITIES = (row_refusals, first_rows, row_edges, row_states, row_managers)
