"""Part three, chapter 5: a chain of tiers, and the transfers under way between them: its state, with ghosts.

The chain lies below the device. Tier 0 is the nearest to the device, and the only one that the device's blocks
come from and go to. A block of a tier may span several blocks of the device. Ghosts are the contents: of the device's
blocks here, of the places in the tiers.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum

from .tier_state import Key, Phase, Tier, idle, num_free, phase_of, places, ready, tier


class Kind(Enum):
    """The kind of a transfer."""

    STORE = "from the device to tier 0"
    LOAD = "from tier 0 to the device"
    DEMOTE = "from a tier to the next one below"
    PROMOTE = "from a lower tier to tier 0"


@dataclass(frozen=True, slots=True)
class ChainConfig:
    """The fixed options of a chain.

    `span` blocks of the device make a block; `reserve` places are kept free in each tier but the last, by demotion;
    `through` writes every block to all tiers instead, and demotes none; `frees` takes loaded blocks out of tier 0;
    under `most` transfers a store may begin. `shares` and `guard` are each tier's.
    """

    capacities: tuple[int, ...]
    num_device: int
    span: int = 1
    reserve: tuple[int, ...] = ()
    through: bool = False
    frees: bool = False
    most: int | None = None
    shares: tuple[tuple[Hashable, int], ...] = ()
    guard: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer under way: which blocks, between which tiers (None is the device), and which blocks of the device.

    It is under way from the call that begins it to its landing; `started` once it has been handed out.
    """

    kind: Kind
    keys: tuple[Key, ...]
    source: int | None
    target: int | None
    device: tuple[int, ...] = ()
    started: bool = False


Part = tuple[Key, int]
"""What a block of the device holds: which part of the content that a key names."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Everything the chain knows: tiers, blocks of the device, and the transfers in the order in which they began.

    `stuck` are blocks, by tier, that could not be written to the tier below when they were last sent there. `forgotten`
    are blocks that a transfer was writing when they were to be forgotten: they go when it lands.
    """

    config: ChainConfig
    tiers: tuple[Tier, ...]
    device: tuple[Part | None, ...]
    transfers: tuple[Transfer, ...] = ()
    stuck: frozenset[tuple[int, Key]] = frozenset()
    forgotten: frozenset[Key] = frozenset()


def chain(config: ChainConfig) -> Chain:
    """Return the state of a new chain."""
    tiers = tuple(tier(capacity, (), config.shares, config.guard) for capacity in config.capacities)
    return Chain(config, tiers, (None,) * config.num_device)


def promoted(state: Chain) -> frozenset[Key]:
    """Return the blocks that are on their way up to tier 0."""
    return frozenset(key for each in state.transfers if each.kind is Kind.PROMOTE for key in each.keys)


def source_of(state: Chain, key: Key) -> int | None:
    """Return the tier that a load of a key reads, or waits for: the nearest; a key present in tier 0 is only there."""
    phase = phase_of(state.tiers[0], key)
    if phase is not None:
        return 0 if phase is Phase.READY or key in promoted(state) - state.forgotten else None
    return next((at for at, each in enumerate(state.tiers) if phase_of(each, key) is Phase.READY), None)


def readable_count(state: Chain, keys: tuple[Key, ...]) -> int:
    """Count the first keys, in a row, that a tier has or that are on their way up."""
    return next((at for at, key in enumerate(keys) if source_of(state, key) is None), len(keys))


def chain_lookup(state: Chain, keys: tuple[Key, ...], room_made: bool = False) -> int:
    """Count the first keys, in a row, that one load can bring to the device: tier 0 has room for those from below.

    That is room now, or, if room is made first, once the blocks on their way down have landed. Now, only free places
    are room while a block of tier 0 has to move down before it may be evicted.
    """
    nearest, count = state.tiers[0], readable_count(state, keys)
    free, candidates = num_free(nearest), frozenset(idle(nearest))
    waiting = not room_made and not all(may_go(state, 0, key) for key in candidates)
    going = frozenset(key for key in lowering(state, 0) if readers(state, 0, key) == 1) & ready(nearest)
    others = frozenset() if waiting else candidates | (going if room_made else frozenset())

    def fits(number: int) -> bool:
        coming = sum(source_of(state, key) != 0 for key in keys[:number])
        return coming <= free + len(others - frozenset(keys[:number]))

    return next(number for number in range(count, -1, -1) if fits(number))


def may_go(state: Chain, at: int, key: Key) -> bool:
    """Return whether a block may be evicted: nothing is lost by it that the tier below could keep.

    Where all is written through, each block was offered to the tier below when it came.
    """
    if state.config.through or at + 1 == len(state.tiers) or (at, key) in state.stuck:
        return True
    return phase_of(state.tiers[at + 1], key) is not None or is_full(state, at + 1)


def is_full(state: Chain, at: int) -> bool:
    """Return whether a tier can take no block: no place is free, and no block may be evicted."""
    return not (num_free(state.tiers[at]) or idle(state.tiers[at]))


def awaited(state: Chain, load: Transfer) -> tuple[Key, ...]:
    """Return the blocks that a load waits for: they are on their way up."""
    return tuple(key for key in load.keys if phase_of(state.tiers[0], key) is Phase.WRITING)


def held(state: Chain, each: Transfer) -> tuple[Key, ...]:
    """Return the blocks that a transfer reads in its source tier; a load those that it does not wait for."""
    waits = awaited(state, each) if each.kind is Kind.LOAD else ()
    return tuple(key for key in each.keys if each.source is not None and key not in waits)


def readers(state: Chain, tier: int, key: Key) -> int:
    """Count the transfers under way that read a block of a tier."""
    return sum(each.source == tier and key in held(state, each) for each in state.transfers)


def writers(state: Chain, tier: int, key: Key) -> int:
    """Count the transfers under way that write a block of a tier."""
    return sum(each.target == tier and key in each.keys for each in state.transfers)


def lowering(state: Chain, tier: int) -> frozenset[Key]:
    """Return the blocks on their way down from a tier."""
    down = (each for each in state.transfers if each.kind is Kind.DEMOTE and each.source == tier)
    return frozenset(key for each in down for key in each.keys)


def waits(state: Chain, tier: int, lacking: int) -> bool:
    """Return whether a tier is full until blocks have gone further down, and enough of them are on their way."""
    further = lacking - len(lowering(state, tier))
    first = idle(state.tiers[tier])[:1]
    goes = num_free(state.tiers[tier]) > 0 or all(may_go(state, tier, key) for key in first)
    return not goes and (further <= 0 or waits(state, tier + 1, further))


def pins(state: Chain, block: int) -> int:
    """Count the transfers under way that read or write a block of the device."""
    return sum(block in each.device for each in state.transfers)


def may_start(state: Chain, each: Transfer) -> bool:
    """Return whether a transfer may be handed out: a load not before its blocks are there, and not to a block of the
    device that a store under way still reads.
    """
    stores = (other for other in state.transfers if other.kind is Kind.STORE)
    return each.kind is not Kind.LOAD or not (
        awaited(state, each) or any(set(other.device) & set(each.device) for other in stores)
    )


Spot = tuple[int | None, int]
"""A place of a tier, or a block of the device (None)."""


def reads(state: Chain, each: Transfer) -> Iterator[Spot]:
    """Return the blocks that a transfer reads, without those that it waits for."""
    source = each.source
    return ((source, at) for at in (each.device if source is None else places(state.tiers[source], held(state, each))))


def writes(state: Chain, each: Transfer) -> Iterator[Spot]:
    """Return the blocks that a transfer writes."""
    target = each.target
    return ((target, at) for at in (each.device if target is None else places(state.tiers[target], each.keys)))
