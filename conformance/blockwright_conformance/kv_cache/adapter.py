"""The interface that a block manager must offer to the gates.

An adapter is the engine's side of a manager: it makes requests, calls the manager by its public names, and shows its
state in the specification's terms. Every manager is compared on what its calls return and refuse, and on its tables;
beyond that on whatever it exposes: a field that an `Observation` leaves None is not compared.
"""

from typing import NamedTuple, Protocol, Self

from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.events import Listener
from blockwright_spec.manager.metrics import Counts, Life
from blockwright_spec.manager.orders import Told
from blockwright_spec.manager.state import Content, Copy, Table
from blockwright_spec.reads import Prefix

Tables = tuple[Table, ...]
"""A table, or a part of one, for each group."""
Copies = tuple[tuple[tuple[int, int], ...], ...]
"""Copies to come, for each group: source and target."""

EXTRAS: tuple[dict[str, str], ...] = (
    {},
    {"cache_salt": "salt"},
    {"lora_name": "adapter"},
    {"cache_salt": "salt", "lora_name": "adapter"},
    {"cache_salt": "other"},
)
"""What the extra keys 0, 1, ... of a scope mean to a request."""


class Found(NamedTuple):
    """The result of a lookup: the length of the hit and its block ids per group, 0 where the entry is null.

    Without a hit there are no tables, or one without blocks for each group.
    """

    length: int
    tables: Tables


class Served(NamedTuple):
    """The answer for one request, per group: new entries, and the entries that became null (None if not reported)."""

    new: Tables
    nulled: tuple[tuple[int, ...], ...] | None = None
    replaced: tuple[tuple[int, int, int], ...] | None = None
    """Entries whose shared block was copied: group, entry, and the block that stands there now (None: not told)."""


Asks = tuple[tuple[str, int, int], ...]
Batch = tuple[tuple[Served, ...], bool]


class Planned(NamedTuple):
    """A manager's forecast of a step: blocks it takes if it fits, else those missing; neither if never.

    `waiting` of the missing blocks are on their way, and `by_group` is what the step takes, or would take, in each
    group; a manager that does not report these leaves them None.
    """

    demand: int | None = None
    missing: int | None = None
    waiting: int | None = None
    by_group: tuple[int, ...] | None = None


class Explained(NamedTuple):
    """Why a hit is as long as it is: the hit, the longer length that was looked at, and a group's part for each.

    A part is the group's own hit, the end of the first block that the longer length lacks there, and the limit by name;
    whatever became of a missing block is MISSING.
    """

    length: int
    candidate: int | None
    parts: tuple[tuple[int, int | None, str], ...]


class Counted(NamedTuple):
    """What a manager counts: at the last observation, now, and what the facts come to that were read since.

    `life` is what the engine knew of the request of its last call, when that was last admitted.
    """

    before: Counts
    after: Counts
    read: Counts
    life: Life


class Observation(NamedTuple):
    """A manager's whole state in the specification's terms; per block by id, per request in the order asked for."""

    tables: tuple[Tables | None, ...]
    """Block tables, one per group; None for a request that holds none."""
    queue: tuple[int, ...] | None = None
    """Free blocks, first to be taken first."""
    references: tuple[int, ...] | None = None
    """Reference counts; that of the null block is not compared."""
    keys: tuple[Content | None, ...] | None = None
    """What each block is published as: the number of a group, and the prefix."""
    published: tuple[tuple[int, ...] | None, ...] | None = None
    """Leading entries looked at for publication, per group; None for a request that holds no table."""
    free: int | None = None
    states: tuple[Tables | None, ...] | None = None
    """Blocks for the states of drafts, one tuple per group; None for a request that holds no table."""
    settled: tuple[int | None, ...] | None = None
    """Settled tokens; None for a request that holds no table, and where steps are not kept apart."""
    copies: tuple[Copy, ...] | None = None
    """Copies to come, oldest first."""
    evicted: tuple[tuple[int, Content, bool], ...] | None = None
    """Blocks taken since the last observation with which the last copy of a content was lost, and whether they were
    passing, oldest first."""
    listeners: tuple[Listener, ...] | None = None
    """Where events are told: what somebody knows who joined at the first observation, the second, and so on."""
    outside: tuple[int, ...] | None = None
    """Blocks held from outside, each as often as it is held there, in ascending order."""
    passing: tuple[int, ...] | None = None
    """Passing blocks, where blocks are told apart so, in ascending order."""
    tips: tuple[tuple[int, int], ...] | None = None
    """Free blocks with which a prompt (1) or an output (2) ended that no request has gone on from, likewise."""
    spares: int | None = None
    """How many of the last passing blocks go as others do."""
    counted: Counted | None = None
    """Where what happens is counted: the counts."""
    tails: tuple[tuple[int, ...], ...] | None = None
    """Where hits may end inside blocks: per block, the other lengths that it is published as, ascending."""
    told: Told | None = None
    """Where an order of eviction chooses: what it was told, of hits since the last observation."""
    kept: tuple[int, ...] | None = None
    """Of a manager that forgets: the free blocks with contents that a lookup may still find."""


class ManagerAdapter(Protocol):
    """A manager under test, with the engine that calls it. Requests have names; prefixes are the specification's.

    `errors` are the exceptions by which the manager refuses a wrong call, `stale` those for a hit that no longer holds;
    any other exception is a violation, and may carry the id of a broken law as its attribute `law`. `follows_policy`
    tells whether the manager makes the choices of the LRU policy; if not, the specification follows its choices and
    judges whether they are legal.

    Every scope calls `copy`, `send`, `append`, `find`, `allocate`, `free`, `forget`, `observe`, `check` and
    `common_prefix`. The others are called in scopes that need the call of that name, which `capabilities`, an attribute
    of this class if there is one, must declare. Scopes with "forget" call ``unlearn(name, extra)``: it forgets what a
    request has cached or, where `name` is None, what the owner of `EXTRAS[extra]` has. Those with "clear" call
    ``unlearn_all()``: it forgets everything that is cached, while requests run. Those with "delayed" call
    ``allocate_each_later(asks, lookahead)``, which is `allocate_each` but puts publication off, and
    ``publish_each(asks)``, which publishes for pairs of a name and tokens in one call. Those with "shorten" call
    ``shorten(name, computed, count)``: the step behind `computed` tokens, which has not run, is to end at `count`.
    Those with "fold" call ``fold(name, computed)``: it points the request at blocks that others published first, and
    returns its entries that it did so with: group, entry and block. Those with "parted" call
    ``fork_with_copies(name, child, prefix, computed)``, which is `fork` with copies of the blocks that the child goes
    on to write, and leaves in an attribute `copied`, per group, the pairs of blocks that the engine copies now.
    Those with "resize" call ``resize(num_blocks)``, which returns how many blocks beyond the new end of the pool are
    held, and the names of the running requests that hold some, in order.

    A method ``held_alone(name)``, if there is one, is asked for the number of blocks that would come free if a running
    request were preempted now. An attribute `changed`, if there is one, has the `nulled` and the `replaced` entries
    (`Served`) of the last `allocate` or `commit`.
    """

    errors: tuple[type[Exception], ...]
    stale: tuple[type[Exception], ...]
    follows_policy: bool

    def copy(self) -> Self:
        """Return an independent copy of everything."""

    def send(self, name: str, prefix: Prefix) -> None:
        """Make a request: extra keys (0 for no keys) and prompt."""

    def forget(self, name: str) -> None:
        """Drop the engine's own record of a request that holds no blocks; it may have none."""

    def find(self, name: str) -> Found:
        """Look a request up (``get_computed_blocks``) and keep the hit under its name."""

    def touch(self, name: str, most: int) -> Found:
        """Look a request up, up to some tokens, and count the hit as used (``touch``); only in scopes with "use"."""

    def allocate(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Tables | None:
        """Allocate slots (``allocate_slots``) with the hit kept under `hit_of`, claimed to be `length` tokens long.

        Returns, per group, the new entries of the table after those of the hit, or None for "not now".
        """

    def plan(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Planned:
        """Plan what `allocate` would do (``plan``), and keep the plan under the name; nothing changes."""

    def commit(self, name: str) -> Tables:
        """Carry out the last plan under a name (``commit``); returns what `allocate` would."""

    def start(self) -> None:
        """Start a step (``start_step``); where steps do not overlap, only in scopes with "start" among their calls."""

    def settle(self, rejected: tuple[tuple[str, int], ...]) -> None:
        """Settle the oldest step in flight (``settle_step``), in which drafts of some requests were rejected."""

    def finish_load(self, name: str, count: int) -> None:
        """End a load of a request, of which `count` tokens came (``finish_load``)."""

    def allocate_each(self, asks: Asks, lookahead: int) -> Batch:
        """Serve several requests (name, computed, new) in one call; return which were served and whether all were."""

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        """Append output tokens to a request."""

    def publish(self, name: str, end: int) -> None:
        """Publish the blocks filled by the first `end` tokens (``cache_blocks``)."""

    def publish_before(self, name: str, end: int) -> None:
        """Do the same before the request's last step has run; only in scopes with "before" among their calls."""

    def trim(self, name: str, end: int) -> None:
        """Null the entries dead at `end` tokens (``remove_skipped_blocks``)."""

    def free(self, name: str) -> None:
        """Release a request's blocks (``free``); the engine keeps its record of the request.

        In scopes that count, one that has a method `preempt` is told so of a request that goes on later.
        """

    def free_before(self, name: str, computed: int, preempted: bool = False) -> None:
        """Do the same before the last step has run, with the engine's count; only in scopes with "abort".

        Where it counts that the request goes on later, `preempted` says so.
        """

    def fork(self, name: str, child: str, prefix: Prefix, computed: int) -> bool:
        """Fork a request with `computed` tokens to another (``fork``), made with a prefix if it is not there.

        Return whether it was; only called in scopes with "fork" among their calls.
        """

    def take_copies(self) -> Copies:
        """Take the copies to come, per group (``take_copies``); called in scopes with forks, or hits inside blocks."""

    def reset(self) -> bool:
        """Reset the prefix cache and return whether it was."""

    def common_prefix(self, name: str, running: int) -> tuple[int, ...] | None:
        """Count, per group, the leading blocks that `running` requests share; None if the manager does not count."""

    def pin(self, blocks: tuple[int, ...]) -> None:
        """Hold blocks from outside of tables (``block_pool.touch``).

        Only called in scopes with "pin" or "outside" among their calls, and the next two only with "outside".
        """

    def take(self, count: int) -> tuple[int, ...] | None:
        """Take free blocks from outside (``block_pool.get_new_blocks``); None if there are too few."""

    def unpin(self, blocks: tuple[int, ...]) -> None:
        """Let go of blocks that are held from outside (``block_pool.free_blocks``), in this order."""

    def explain(self, name: str) -> Explained:
        """Explain the hit of a request (``explain_hit``); only called in scopes with "explain" among their calls."""

    def lease(self, name: str) -> int:
        """Return how far a request needs no call (``lease``); called in scopes with "lease" among their calls."""

    def count_on(self, name: str, count: int) -> None:
        """Let a request go on to a count without a call of its manager; called in the same scopes."""

    def retain(self, name: str, tokens: int, priority: int, until: int) -> None:
        """Have the first tokens of a request kept (``retain``); only called in scopes with "hint" among their calls."""

    def release_prefix(self, name: str, first: int) -> None:
        """Mark a request's tokens from one on to be evicted first (``release_prefix``); called in the same scopes."""

    def advance_time(self, now: int) -> None:
        """Set the time (``advance_time``); called in the same scopes."""

    def observe(self, names: tuple[str, ...]) -> Observation:
        """Show the whole state."""

    def check(self) -> None:
        """Recompute the manager's own invariants, and raise where one is broken."""
