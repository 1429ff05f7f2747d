"""One tier under test: any manager of offloaded blocks, called by its public names and shown in the spec's terms.

A manager of a foreign backend is copied by making all its calls again on a new one: the data of a backend in plain
Python cannot be copied from outside.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import blockwright.offload
from blockwright.errors import (
    BlockNotReadyError,
    BlockwrightError,
    InvalidArgumentError,
    NotPreparedError,
    UnknownBlockHashError,
)
from blockwright_spec.hints import Said
from blockwright_spec.offload.tier_calls import TierReason
from blockwright_spec.offload.tier_state import Event, Key, Phase, Tier, entry_of, idle, num_free, said_of

from ..checker.world import twin_of

ERRORS: dict[TierReason, type[BlockwrightError]] = {
    TierReason.NOT_PRESENT: UnknownBlockHashError,
    TierReason.NOT_READY: BlockNotReadyError,
    TierReason.NOT_PREPARED: NotPreparedError,
    TierReason.NO_SIZE: InvalidArgumentError,
}
"""What each refusal raises; `NO_ROOM` is the answer None."""

TOKENS = 16
"""Tokens in a block: no matter here."""


class ForeignPlaces:
    """Somebody else's backend, in plain Python: numbered places, fresh ones first, then the last freed."""

    offload: ClassVar[Any] = blockwright.offload

    def __init__(self, num_blocks: int, recovered: Sequence[Key] = ()) -> None:
        super().__init__(TOKENS, "FOREIGN")  # type: ignore[call-arg]
        self.placed: Any = self.offload.status.PlacedBlockStatus
        self.blocks = {at: self.placed(at) for at in range(len(recovered))}
        self.recovered = [(key, self.blocks[at]) for at, key in enumerate(recovered)]
        for status in self.blocks.values():
            status.ref_cnt = 0
        self.unused = list(range(len(recovered), num_blocks))[::-1]
        self.freed: list[int] = []

    def get_num_free_blocks(self) -> int:
        return len(self.unused) + len(self.freed)

    def allocate_blocks(self, block_hashes: list[bytes]) -> list[Any]:
        given: list[Any] = []
        for _ in block_hashes:
            place = self.unused.pop() if self.unused else self.freed.pop()
            self.blocks[place] = self.placed(place)
            given.append(self.blocks[place])
        return given

    def free(self, block: Any) -> None:
        assert self.blocks.pop(block.block_id) is block
        self.freed.append(block.block_id)

    def get_load_store_spec(self, block_hashes: Iterable[bytes], blocks: Iterable[Any]) -> Any:
        return self.offload.CPULoadStoreSpec([block.block_id for block in blocks])

    def recovered_blocks(self) -> list[tuple[bytes, Any]]:
        return list(self.recovered)


def foreign_backend(offload: Any) -> Any:
    return type("ForeignBackend", (ForeignPlaces, offload.Backend), {"offload": offload})


class Stored(NamedTuple):
    keys: tuple[Key, ...]
    places: tuple[int, ...]
    evicted: tuple[Key, ...]


def made(offload: Any, name: str, capacity: int, recovered: Sequence[Key]) -> Any:
    """Make a manager of a copy of `blockwright.offload` by its name: "LRU", "ARC foreign", "LRU silent", "LRU a=1",
    "LRU guard:1".
    """
    policy, *words = name.split()
    own = foreign_backend(offload)(capacity, recovered) if "foreign" in words else offload.CPUBackend(TOKENS, capacity)
    more: dict[str, Any] = {"shares": dict(shares_of(name))} if "=" in name else {}
    more |= {"hint_guard": guard_of(name) / capacity} if guard_of(name) else {}
    return getattr(offload, f"{policy}OffloadingManager")(own, enable_events="silent" not in words, **more)


def shares_of(name: str) -> tuple[tuple[str, int], ...]:
    return tuple([(tenant, int(share)) for word in name.split() for tenant, _, share in [word.partition("=")] if share])


def guard_of(name: str) -> int:
    return next((int(word.removeprefix("guard:")) for word in name.split() if word.startswith("guard:")), 0)


class TierShown(NamedTuple):
    """The whole state of a tier, as far as a manager shows it."""

    statuses: tuple[int | None, ...]
    """Of each key there is: None if not present, -1 while written, -2 once found bad, else its readers."""
    recency: tuple[Key, ...]
    """The blocks present, the least recently used first; sorted where a policy has an order of its own."""
    idle: tuple[Key, ...]
    free: int
    said: tuple[Said, ...]


def in_order(keys: Iterable[Key], ordered: bool) -> tuple[Key, ...]:
    return tuple(keys if ordered else sorted(keys))


def shown_by(manager: Any, keys: Sequence[Key], ordered: bool = True) -> TierShown:
    return TierShown(
        tuple([manager.status_of(key) for key in keys]),
        in_order(manager.recency(), ordered),
        in_order(manager.idle_blocks(len(keys)), ordered),
        manager.num_free,
        tuple([said_by(manager, key) for key in keys]),
    )


def said_by(manager: Any, key: Key) -> Said:
    """Return a manager's hint for a key, at whole times; managers of other makes have none."""
    hint = getattr(manager, "hint_of", lambda key: None)(key)
    return Said() if hint is None else Said(hint.tenant, hint.priority, int(hint.until))


def expected_of(state: Tier, keys: Sequence[Key], ordered: bool = True) -> TierShown:
    return TierShown(
        tuple([status_in(state, key) for key in keys]),
        in_order((entry.key for entry in state.entries), ordered),
        in_order(idle(state), ordered),
        num_free(state),
        tuple([said_of(state, key) for key in keys]),
    )


def status_in(state: Tier, key: Key) -> int | None:
    entry = entry_of(state, key)
    if entry is None:
        return None
    return {Phase.WRITING: -1, Phase.DOOMED: -2}.get(entry.phase, entry.readers)


def events_of(manager: Any) -> tuple[Event, ...]:
    return tuple(Event(tuple(event.block_hashes), event.removed) for event in manager.take_events())


class TierUnderTest:
    package: ClassVar[Any] = blockwright
    errors: ClassVar[dict[TierReason, type[Exception]]] = {**ERRORS}

    def __init__(self, name: str, capacity: int, recovered: Sequence[Key] = ()) -> None:
        self.made = (name, capacity, recovered)
        self.manager = made(self.package.offload, name, capacity, recovered)
        self.silent, self.ordered, self.foreign = "silent" in name, "ARC" not in name, "foreign" in name
        self.log: list[tuple[str, tuple[Any, ...]]] = []

    def copy(self) -> Self:
        if self.foreign:
            new = type(self)(*self.made)
            for name, arguments in self.log:
                new.call(name, *arguments)
                new.manager.take_events()
            return new
        return twin_of(self, manager=self.manager.copy(), log=[])

    def call(self, name: str, *arguments: Any) -> Any:
        answer = getattr(self.manager, name)(*arguments)
        if self.foreign:
            self.log.append((name, arguments))
        return answer

    def policy(self) -> object:
        """Return the records of the manager's policy beyond the state, of any type with distinct texts."""
        return None if self.ordered else self.manager.policy_state()

    def events(self) -> tuple[Event, ...]:
        return events_of(self.manager)

    def check(self) -> None:
        self.manager.check()
        if self.foreign:
            backend = self.manager.backend
            held = sorted(status.ref_cnt for status in backend.blocks.values())
            statuses = [self.manager.status_of(key) for key in self.manager.recency()]
            shown = sorted(1 if each == -2 else each for each in statuses)  # what is found bad has a reader at least
            assert held == shown, f"statuses of the backend: expected {shown}, found {held}"
