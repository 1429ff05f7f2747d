"""Part three, chapter 11: events of tiers: what a router is told of them, and what must be forgotten.

A router chooses an engine by what the engine could load as well as by what it holds on the device. So an event of a
tier names a block as an event of the device does (chapter `events` of part one): by the tokens of the block, the prefix
before it and the extra keys, and by its hash, which is the same on every medium. Each medium is folded apart, and one
medium may have several tiers: a block is gone from it when the last of them has lost it.

To *forget* a block means that no later lookup finds it, in any tier (chapter `chain_calls`). A transfer that reads it
reads on; one that writes it lands, and then the block goes.
"""

from dataclasses import dataclass

from ..law import listed
from .chain_outcomes import ChainDone
from .chain_state import Chain, source_of
from .tier_state import Entry, Key, ready


@dataclass(frozen=True, slots=True)
class Told:
    """What an index of all events says: which blocks there are by medium, and the answers to requests.

    An answer has a medium, the keys of a request, and how many of the first of them, in a row, are found on it.
    """

    media: tuple[str, ...]
    """Of each tier."""
    known: frozenset[tuple[str, Key]]
    answers: tuple[tuple[str, tuple[Key, ...], int], ...]


def offered(state: Chain, media: tuple[str, ...], medium: str) -> frozenset[Key]:
    """Return the blocks that the tiers of a medium offer: those that can be read there."""
    return frozenset(key for own, tier in zip(media, state.tiers, strict=True) if own == medium for key in ready(tier))


def law_index_is_what_is_offered(state: Chain, told: Told) -> bool:
    """EV-6: what the index of a tier's events says is what the connector offers from it, for each request."""
    offers = {medium: offered(state, told.media, medium) for medium in told.media}
    return told.known == frozenset((medium, key) for medium, keys in offers.items() for key in keys) and all(
        count == next((at for at, key in enumerate(keys) if key not in offers[medium]), len(keys))
        for medium, keys, count in told.answers
    )


def law_forgotten_is_not_found(before: Chain, outcome: ChainDone) -> bool:
    """FORGET-3: what was forgotten is found by no later lookup, in no tier and on the way to none."""
    return all(source_of(outcome.state, key) is None for key in {*outcome.forgot, *before.forgotten})


def law_nothing_else_is_lost(before: Chain, outcome: ChainDone) -> bool:
    """FORGET-4: to forget loses nothing else: all other blocks stay, and every transfer goes on, readers too."""
    gone = frozenset(outcome.forgot)
    return (
        bool(outcome.ended)
        or not gone
        or (others(before, gone), before.transfers, before.device)
        == (others(outcome.state, gone), outcome.state.transfers, outcome.state.device)
    )


def others(state: Chain, keys: frozenset[Key]) -> tuple[tuple[Entry, ...], ...]:
    """Return the blocks of each tier but for some keys."""
    return tuple(tuple(entry for entry in tier.entries if entry.key not in keys) for tier in state.tiers)


TOLD_LAWS = (listed(law_index_is_what_is_offered, "vLLM OffloadingConnector.take_events; known bugs D90 to D92"),)
"""The laws of an index of events."""

FORGET_LAWS = (
    listed(law_forgotten_is_not_found, "vLLM #57727, #28827; SGLang #27058; known bug D96a"),
    listed(law_nothing_else_is_lost, "vLLM reset_prefix_cache, which takes all or nothing; known bug D96b"),
)
"""The laws of forgetting."""
