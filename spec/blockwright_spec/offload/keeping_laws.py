"""Part three, chapter 10: laws of the blocks that a chain keeps: which may be lost, and which part of a request stays.

A cached block is of use only with all blocks before it. So the first blocks of a request are the ones to keep, on every
tier and of every load.
"""

from collections.abc import Iterator

from ..law import listed
from .chain_calls import finish, hand_out, load, make_room
from .chain_outcomes import ChainDone, ChainReason, ChainRefusal
from .chain_state import Chain, Kind, chain_lookup, is_full
from .tier_state import Key, entry_of, num_free, phase_of


def law_nothing_goes_while_below_has_room(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-14: written back, a block is evicted only if the tier below has it, has no room, or could not be written.

    None is dropped on its way down. Written through, a block is dropped only if a tier below has no room. Where a tier
    becomes smaller, a block goes too if no place below is free.
    """
    last = len(before.tiers) - 1
    if before.config.through:
        return not outcome.dropped or any(is_full(outcome.state, at) for at in range(1, last + 1))
    return not outcome.dropped and (
        all(
            at == last
            or (at, key) in before.stuck
            or (key in outcome.resized and not num_free(outcome.state.tiers[at + 1]))
            or any(phase_of(state.tiers[at + 1], key) or is_full(state, at + 1) for state in (before, outcome.state))
            for at, key in outcome.evicted
        )
    )


def law_found_can_be_loaded(state: Chain) -> bool:
    """CHAIN-15: one load brings all found blocks to the device: it is not refused for want of room."""
    return all(has_room(state, asked[: chain_lookup(state, asked)]) for asked in questions(state))


def law_offered_fits_once_there_is_room(state: Chain) -> bool:
    """CHAIN-18: all that the tiers hold and tier 0 can pass through can be loaded once `make_room` has had its effect.

    What is on its way down lands, and what is idle goes down. A block of tier 0 that a load or a store uses is no room.
    """
    offers = ((asked, chain_lookup(state, asked, room_made=True)) for asked in questions(state))
    more = ((asked[:count], count) for asked, count in offers if count > chain_lookup(state, asked))
    return all(has_room(with_room(state, count), keys) for keys, count in more)


def questions(state: Chain) -> Iterator[tuple[Key, ...]]:
    """Return what may be asked for: the blocks there are, from each of them on, forwards and backwards."""
    known = tuple(sorted({entry.key for tier in state.tiers for entry in tier.entries}))
    return (asked for at in range(len(known)) for asked in (known[at:], known[at::-1]))


def has_room(state: Chain, keys: tuple[Key, ...]) -> bool:
    """Return whether a load of blocks, to blocks of the device that nothing uses, is not refused for want of room."""
    spare = range(len(state.device), len(state.device) + len(keys) * state.config.span)
    return load(state, keys, tuple(spare)) != ChainRefusal(ChainReason.NO_ROOM_TO_LOAD)


def with_room(state: Chain, count: int) -> Chain:
    """Make room in tier 0 for so many blocks: ask for it, and let what goes down land, until nothing more goes."""
    while True:
        after = hand_out(make_room(state, count).state).state
        at = next((at for at, each in enumerate(after.transfers) if each.kind is Kind.DEMOTE), None)
        landed = None if at is None else finish(after, at, success=True)
        if not isinstance(landed, ChainDone):
            return after
        state = landed.state


def law_first_stored_goes_last(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-16: of the blocks of a store the first named was used last, so that it is the last of them to go."""
    stored = (each.keys for each in outcome.state.transfers if each.kind is Kind.STORE and each not in before.transfers)
    entries = outcome.state.tiers[0].entries
    return all(
        order == sorted(order, reverse=True)
        for keys in stored
        for order in ([at for key in keys for at, entry in enumerate(entries) if entry.key == key],)
    )


def law_load_keeps_its_first_part(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-17: where a block cannot be brought up, a load that waits for it goes on with all blocks before it."""
    promotions = (each for each, success in outcome.ended if each.kind is Kind.PROMOTE and not success)
    failed = {each.keys[0] for each in promotions if alone(each.keys)}
    kept = {(each.keys, each.device) for each in outcome.state.transfers if each.kind is Kind.LOAD}
    return all(
        (each.keys[:at], each.device[: at * before.config.span]) in kept
        for each in before.transfers
        if each.kind is Kind.LOAD and not each.started
        for at, key in enumerate(each.keys)
        if at and key in failed and entry_of(before.tiers[0], key)
    )


def alone(keys: tuple[Key, ...]) -> bool:
    """Return whether a transfer moves one block: of several that failed together, each is tried again."""
    return len(keys) == 1


KEEPING_LAWS = (
    listed(law_found_can_be_loaded, "sgl-project/sglang#40193: a hit longer than the host"),
    listed(law_offered_fits_once_there_is_room, "sgl-project/sglang#40193, LMCache/LMCache#559; known bugs E260"),
)
"""The laws of states."""

KEEPING_STEP_LAWS = (
    listed(law_nothing_goes_while_below_has_room, "write-back beside an empty disk; known bugs"),
    listed(law_first_stored_goes_last, "llm-d/llm-d-inference-sim#704: blocks without their first"),
    listed(law_load_keeps_its_first_part, "LMCache: a retrieval ends at the first chunk that is missing"),
)
"""The laws of calls."""
