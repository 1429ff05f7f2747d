"""Part three, chapter 9: tiers that grow and shrink while they serve.

The places of a tier are those below its *end*, as the blocks of a pool are (chapter `resizing` of part one). Whoever
resizes it moves the end, at once and whatever runs. What stays keeps its place. Of the places that go, idle blocks are
evicted in the order of the tier; from the first tier of a chain that is written back they go down, if the tier below
has room. Blocks that are read or written wait for it, are found no more, and are gone then: `waits_for` names the
transfers. So the memory beyond the end is free as soon as no transfer is named any more.
"""

from dataclasses import replace

from . import chain_effects as effects
from .chain_outcomes import ChainDone, ChainOutcome, ChainReason, ChainRefusal
from .chain_state import Chain, reads, writes
from .tier_calls import (
    IllegalVictimsError,
    TierDone,
    TierOutcome,
    TierReason,
    TierRefusal,
    Victims,
    announcing,
    oldest,
    readable,
    without,
)
from .tier_state import Phase, Tier, beyond, idle, places


def resize_tier(state: Tier, end: int, victims: Victims = oldest) -> TierOutcome:
    """Let a tier end before a place: ``resize``. Blocks that stay keep their place, content and order of use.

    Beyond the end idle blocks are evicted. Blocks that are read are found no more, and go with their last reader; those
    that are written go when that has ended.
    """
    # REFUSE
    if end < sum(share for _, share in state.shares):
        return TierRefusal(TierReason.NO_SIZE)
    # CHOOSE
    candidates = tuple(key for key in idle(state) if places(state, (key,))[0] >= end)
    evicted = victims(candidates, len(candidates))
    if sorted(evicted) != sorted(candidates):
        raise IllegalVictimsError(evicted)
    # EFFECT
    after, events = announcing(without(state, evicted), evicted, removed=True)
    read = readable(after, beyond(replace(after, end=end)))
    after, more = announcing(after, read, removed=True)
    entries = tuple(replace(each, phase=Phase.DOOMED) if each.key in read else each for each in after.entries)
    held = frozenset(each.place for each in entries)
    comes = tuple(place for place in range(state.end, min(end, state.fresh)) if place not in held)[::-1]
    freed = (*(place for place in after.freed if place < end), *comes)
    guard = state.part * end // max(1, state.first)
    after = replace(after, entries=entries, freed=freed, end=end, guard=guard)
    after = replace(after, contents=(*after.contents, *((None,) * (end - len(after.contents)))))
    return TierDone(after, evicted=evicted, events=(*events, *more))
    # SAME: blocks below the end, order of use, readers.


def resize_chain(state: Chain, end: int) -> ChainOutcome:
    """Let tier 0 end before a place: ``OffloadChain.resize``. Written back, idle blocks beyond it go down, one by one.

    While they do no lookup finds them. The reserve stays the same number of places.
    """
    # REFUSE
    tier = state.tiers[0]
    if isinstance(resize_tier(tier, end), TierRefusal):
        return ChainRefusal(ChainReason.NO_SIZE)
    # EFFECT
    there, done = beyond(replace(tier, end=end)), ChainDone(state)
    if len(state.tiers) > 1 and not state.config.through:
        for key in idle(tier):
            if key in there:
                done = effects.lowered(done, 0, key)
    done = effects.on_tier(done, 0, resize_tier(done.state.tiers[0], end))
    return replace(done, resized=readable(tier, there))
    # SAME: lower tiers, except for what goes down; the device; transfers under way.


def waits_for(state: Chain) -> tuple[int, ...]:
    """Return the transfers under way that read or write blocks of tier 0 beyond its end, by their numbers."""
    end = state.tiers[0].end
    spots = ((*reads(state, each), *writes(state, each)) for each in state.transfers)
    return tuple(at for at, used in enumerate(spots) if any(tier == 0 and place >= end for tier, place in used))
