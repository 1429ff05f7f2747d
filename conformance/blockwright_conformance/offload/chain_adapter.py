"""A chain under test: `OffloadChain` over managers of two or more tiers, shown in the spec's terms.

The specification names a transfer by its number under way; `jobs` are the chain's own names for them, None before one
is known.
"""

from collections.abc import Sequence
from functools import cache
from struct import pack
from typing import Any, ClassVar, NamedTuple, Self

import blockwright.observe
import blockwright.offload
import blockwright.offload.naming
from blockwright import errors
from blockwright_spec.offload.chain_outcomes import ChainDone, ChainReason
from blockwright_spec.offload.chain_state import Chain, ChainConfig, Kind, Transfer, pins, reads, writes
from blockwright_spec.offload.tier_events import Told
from blockwright_spec.offload.tier_state import Event, Key

from ..checker.world import twin_of
from .tier_adapter import TOKENS, TierShown, events_of, expected_of, shown_by

CHAIN_ERRORS: dict[ChainReason, type[errors.BlockwrightError]] = {
    ChainReason.NO_ROOM_TO_LOAD: errors.NoFreeBlocksError,
    ChainReason.LOADING: errors.BlockError,
    ChainReason.NOT_FOUND: errors.UnknownBlockHashError,
    ChainReason.NAMED_TWICE: errors.InvalidArgumentError,
    ChainReason.WRONG_COUNT: errors.InvalidArgumentError,
    ChainReason.NO_SIZE: errors.InvalidArgumentError,
    ChainReason.NOT_UNDER_WAY: errors.UnknownTransferError,
}
"""What each refusal raises; others are answers: None of `store`, False of `cancel`."""


ASKED = (Kind.STORE, Kind.LOAD)
"""The transfers that a caller asks for; the others a chain begins by itself."""


class Handed(NamedTuple):
    kind: str
    keys: tuple[Key, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Ended(NamedTuple):
    job: int | None
    kind: str
    keys: tuple[Key, ...]
    device: tuple[int, ...]
    success: bool


class ChainShown(NamedTuple):
    """The whole state of a chain, as far as it shows it; and what came of the last call."""

    tiers: tuple[TierShown, ...]
    pins: dict[int, int]
    events: tuple[tuple[Event, ...], ...]
    handed: tuple[Handed, ...]
    ended: tuple[Ended, ...]
    dropped: int
    told: Told | None = None
    """In a scope with media, what an index of all events says; then the events are not compared one by one."""


class ChainUnderTest:
    """A chain under test; another one by a subclass with another `made`."""

    package: ClassVar[Any] = blockwright
    errors: ClassVar[dict[ChainReason, type[Exception]]] = {**CHAIN_ERRORS}

    def __init__(
        self, config: ChainConfig, media: tuple[str, ...] = (), asked: tuple[tuple[Key, ...], ...] = ()
    ) -> None:
        self.chain = self.made(config, media)
        self.media, self.asked = media, asked
        self.names: Any = self.package.offload.naming.BlockNames(self.chain.tiers) if media else None
        self.index: Any = self.package.observe.PrefixIndex() if media else None
        self.jobs: tuple[int | None, ...] = ()
        self.dropped = 0
        self.handed: tuple[Any, ...] = ()

    @classmethod
    def made(cls, config: ChainConfig, media: tuple[str, ...] = ()) -> Any:
        offload = cls.package.offload
        named = media or ("CPU",) * len(config.capacities)
        makes = {"CPU": offload.CPUBackend, "SHELF": shelf_kind(offload)}
        tiers = [makes[medium](TOKENS, each) for medium, each in zip(named, config.capacities, strict=True)]
        managers = [
            offload.LRUOffloadingManager(
                each,
                enable_events=True,
                shares=dict(config.shares) or None,
                hint_guard=config.guard / capacity if config.guard else 0.0,
            )
            for each, capacity in zip(tiers, config.capacities, strict=True)
        ]
        return offload.OffloadChain(
            managers,
            device_blocks_per_block=config.span,
            write="through" if config.through else "back",
            reserve=list(config.reserve) or 0,
            on_load="free" if config.frees else "keep",
            max_transfers=config.most,
        )

    def copy(self) -> Self:
        chain = self.chain.copy()
        new = twin_of(self, chain=chain, handed=())
        if self.names is not None:
            new.names = self.names.copy(chain.tiers)
            new.index = self.index.copy()
        return new

    def job_at(self, at: int) -> int:
        """Return the chain's own name of a transfer under way; of others one that it never gave."""
        job = self.jobs[at] if at < len(self.jobs) else None
        return -1 if job is None else job

    def begin(self) -> tuple[int | None, ...]:
        """Forget what was handed out before, and return the names of the transfers under way."""
        self.handed = ()
        return self.jobs

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.chain, name)(*arguments)

    def hand_out(self) -> None:
        self.handed = tuple(self.chain.take_transfers())

    def renamed(self, before: Chain, outcome: ChainDone, job: int | None) -> None:
        """Follow the transfers under way: ended ones, new ones (`job` is one's name), and reported ones."""
        gone = [each for each, _ in outcome.ended]
        pairs = zip(before.transfers, self.jobs, strict=True)
        kept = [(each, name) for each, name in pairs if not any(each is other for other in gone)]
        begun = outcome.state.transfers[len(kept) :]
        jobs = [name for _, name in kept] + [job if each.kind in ASKED else None for each in begun]
        for each, reported in zip(outcome.handed, self.handed, strict=False):
            jobs[next(at for at, (own, _) in enumerate(kept) if own is each)] = reported.job_id
        self.jobs = tuple(jobs)

    def name(self, keys: tuple[Key, ...]) -> None:
        """Note the contents of stored blocks, as a connector does; each key but the first has it before it."""
        for key in keys if self.names is not None else ():
            parent = None if key == self.asked[0][0] else self.asked[0][0]
            self.names.note(key, self.package.events.BlockStored(key, parent, pack("<i", key[-1]), 1))

    def told(self) -> Told | None:
        if self.names is None:
            return None
        self.names.collect()
        self.index.apply([each for event in self.names.take() for each in event.told])
        known = frozenset([(medium, block_hash) for block_hash, _, medium in self.index.known_keys()])
        media = dict.fromkeys(self.media)
        found = [
            (medium, keys, self.index.match([key[-1] for key in keys], medium=medium))
            for medium in media
            for keys in self.asked
        ]
        return Told(self.media, known, tuple(found))

    def shown(self, keys: Sequence[Key]) -> ChainShown:
        now = self.chain.num_dropped
        dropped, self.dropped = now - self.dropped, now
        tiers, told = self.chain.tiers, self.told()
        return ChainShown(
            tuple([shown_by(each, keys) for each in tiers]),
            dict(self.chain.pins()),
            tuple([events_of(each) for each in tiers]),
            tuple([handed_of(each) for each in self.handed]),
            tuple([ended_of(each) for each in self.chain.take_finished()]),
            dropped,
            told,
        )


@cache
def shelf_kind(offload: Any) -> Any:
    class Shelf(offload.tiers.backend.SlotBackend):  # type: ignore[misc]
        """Places of a medium that a caller has named."""

        def __init__(self, block_size: int, num_blocks: int) -> None:
            super().__init__(block_size, "SHELF", num_blocks)

        def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> Any:
            return offload.CPULoadStoreSpec(block_ids)

        def copy(self) -> Any:
            twin = Shelf(self.block_size, self.num_blocks)
            self.copy_to(twin)
            return twin

    return Shelf


def handed_of(each: Any) -> Handed:
    return Handed(each.kind, tuple(each.block_hashes), tuple(each.source.block_ids), tuple(each.destination.block_ids))


def ended_of(each: Any) -> Ended:
    return Ended(each.job_id, each.kind, tuple(each.block_hashes), tuple(each.device_ids), each.success)


def chain_expected(before: Chain, outcome: ChainDone, jobs: Sequence[int | None], keys: Sequence[Key]) -> ChainShown:
    """Return the observation of a chain after a call; `jobs` are the names of the transfers before it."""
    state = outcome.state
    names = {id(each): job for each, job in zip(before.transfers, jobs, strict=True)}
    return ChainShown(
        tuple([expected_of(each, keys) for each in state.tiers]),
        {block: count for block in range(len(state.device)) if (count := pins(state, block))},
        tuple([tuple([event for at, event in outcome.events if at == tier]) for tier in range(len(state.tiers))]),
        tuple([handing(state, each) for each in outcome.handed]),
        tuple([ending(each, success, names) for each, success in outcome.ended if each.kind in ASKED]),
        len(outcome.dropped),
    )


def handing(state: Chain, each: Transfer) -> Handed:
    sources, targets = (tuple([at for _, at in side(state, each)]) for side in (reads, writes))
    return Handed(each.kind.name.lower(), each.keys, sources, targets)


def ending(each: Transfer, success: bool, names: dict[int, int | None]) -> Ended:
    return Ended(names.get(id(each)), each.kind.name.lower(), each.keys, each.device, success)
