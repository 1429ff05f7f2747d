"""What engines do with a chain: actions, their meaning in the specification, and which a scope allows.

The engine computes a key's content into the key's blocks of the device, stores and loads slices of its requests, and is
told of transfers in every order. Blocks of the device are named; transfers are by their number under way.
"""

from collections.abc import Iterator
from typing import NamedTuple

from blockwright_spec.offload import chain_calls as calls
from blockwright_spec.offload.chain_effects import parts_of
from blockwright_spec.offload.chain_outcomes import ChainOutcome, ChainRefusal
from blockwright_spec.offload.chain_state import Chain, Kind
from blockwright_spec.offload.tier_state import Key

from .scopes import ChainScope, Slice


class Compute(NamedTuple):
    """The engine writes a part of a key's content into a block of the device, or gives the block up (no key)."""

    block: int
    key: Key | None
    part: int = 0


class Store(NamedTuple):
    """Store blocks of the device under keys."""

    keys: tuple[Key, ...]
    device: tuple[int, ...]


class Load(NamedTuple):
    """Load keys into blocks of the device."""

    keys: tuple[Key, ...]
    device: tuple[int, ...]


class Take(NamedTuple):
    """Take the transfers that may start."""


class Land(NamedTuple):
    """A transfer under way, by its number, has ended."""

    at: int
    success: bool = True


class Cancel(NamedTuple):
    """Drop a transfer under way, by its number."""

    at: int


class Touch(NamedTuple):
    """Count keys as just used."""

    keys: tuple[Key, ...]


ChainAction = Compute | Store | Load | Take | Land | Cancel | Touch


class ChainTold(NamedTuple):
    """What comes of an action: its outcomes, one after the other, each with the state before it."""

    state: Chain
    steps: tuple[tuple[Chain, ChainOutcome], ...]

    @property
    def refusal(self) -> ChainRefusal | None:
        """Give why the action was refused, if it was."""
        outcome = self.steps[0][1]
        return outcome if isinstance(outcome, ChainRefusal) else None


def outcome_of(state: Chain, action: ChainAction) -> ChainOutcome:
    """Tell what the specification says of an action."""
    match action:
        case Compute(block, key, part):
            return calls.overwrite(state, block, None if key is None else (key, part))
        case Store(keys, device):
            return calls.store(state, keys, device)
        case Load(keys, device):
            return calls.load(state, keys, device)
        case Take():
            return calls.hand_out(state)
        case Land(at, success):
            return calls.finish(state, at, success)
        case Cancel(at):
            return calls.cancel(state, at)
        case Touch(keys):
            return calls.chain_touch(state, keys)


def chain_told(state: Chain, action: ChainAction, eager: bool) -> ChainTold:
    """Tell of an action, and of handing out what may start after it, if that is done at once."""
    outcome = outcome_of(state, action)
    if isinstance(outcome, ChainRefusal):
        return ChainTold(state, ((state, outcome),))
    if not eager:
        return ChainTold(outcome.state, ((state, outcome),))
    taken = calls.hand_out(outcome.state)
    return ChainTold(taken.state, ((state, outcome), (outcome.state, taken)))


def sliced(each: Slice) -> tuple[tuple[Key, ...], tuple[int, ...]]:
    """Give the keys of a slice, and its blocks of the device."""
    return tuple(key for key, _ in each), tuple(block for _, blocks in each for block in blocks)


def is_computed(state: Chain, each: Slice) -> bool:
    """Tell whether the blocks of a slice hold what its keys name: the engine stores nothing else."""
    return all(tuple(state.device[block] for block in blocks) == parts_of(state, key) for key, blocks in each)


def loads(state: Chain, each: Slice) -> bool:
    """Tell whether a load writes to blocks of a slice: an engine that does not know so tries to store them."""
    device = set(sliced(each)[1])
    return any(other.kind is Kind.LOAD and device & set(other.device) for other in state.transfers)


def chain_enabled(scope: ChainScope, state: Chain) -> Iterator[ChainAction]:
    """Give every action that a scope allows in a state."""
    for key, blocks in dict.fromkeys(pair for each in scope.stores for pair in each):
        for part, block in enumerate(blocks):
            if state.device[block] != (key, part):
                yield Compute(block, key, part)
    asked = sum(each.kind in (Kind.STORE, Kind.LOAD) for each in state.transfers)
    if asked < scope.under_way:
        yield from (Store(*sliced(each)) for each in scope.stores if is_computed(state, each) or loads(state, each))
        yield from (Load(*sliced(each)) for each in scope.loads)
    for at, transfer in enumerate(state.transfers):
        if transfer.started or scope.misuse:
            yield from (Land(at), Land(at, success=False))
        if not scope.eager or (scope.misuse and transfer.started):
            yield Cancel(at)
    yield from map(Touch, scope.touched)
    if not scope.eager:
        yield Take()
    if scope.misuse:
        yield from misuses(scope, state)


def misuses(scope: ChainScope, state: Chain) -> Iterator[ChainAction]:
    """Give calls that are wrong."""
    keys, device = sliced(scope.loads[0])
    yield Store(keys[:1] * 2, device[: scope.config.span] * 2)
    yield Load(keys[:1] * 2, device[: scope.config.span] * 2)
    yield Store(keys, device[1:])
    yield Load(keys, device[1:])
    yield Load(keys, device[:1] * len(device))
    yield Land(len(state.transfers))
    yield Cancel(len(state.transfers))
