"""Part three, chapter 3: the laws of one tier, of its states and of its calls (given the state before)."""

from collections import Counter

from ..law import listed
from .tier_calls import TierDone
from .tier_state import Entry, Phase, Tier, beyond, entry_of, idle, phase_of, rank_in, ready


def law_ready_is_written(state: Tier) -> bool:
    """TIER-1: what can be read is completely written: the content of its place equals its key."""
    return all(state.contents[entry.place] == entry.key for entry in state.entries if entry.phase is Phase.READY)


def law_place_is_of_one_block(state: Tier) -> bool:
    """TIER-2: a place belongs to one block, or is free, or was never used; there are no others."""
    used = sorted((*(entry.place for entry in state.entries), *state.freed))
    inside = [place for place in used if place < state.end]
    return len(used) == len(set(used)) and inside == list(range(min(state.fresh, state.end)))


def law_phase_has_its_readers(state: Tier) -> bool:
    """TIER-3: a block that is being written has no reader, and a bad block is present only as long as it has one."""
    least, most = {Phase.DOOMED: 1}, {Phase.WRITING: 0}
    return all(least.get(one.phase, 0) <= one.readers <= most.get(one.phase, one.readers) for one in state.entries)


def law_key_is_present_once(state: Tier) -> bool:
    """TIER-4: a key has one block, and one place in the order of use."""
    keys = [entry.key for entry in state.entries]
    return len(keys) == len(set(keys))


def law_events_tell_the_index(state: Tier) -> bool:
    """TIER-5: a replay of the events gives exactly the blocks that can be read."""
    return state.announced == ready(state)


def law_beyond_the_end_is_given_back(state: Tier) -> bool:
    """TIER-13: beyond the end of a tier no block is found, and no place is free to be taken."""
    end = state.end
    return all(place < end for place in state.freed) and not ready(state) & frozenset(beyond(state))


def law_busy_block_stays(before: Tier, outcome: TierDone) -> bool:
    """TIER-6: only an idle block is evicted, and a new one takes no place that was in use."""
    kept = {entry.place for entry in before.entries if entry.key not in outcome.evicted}
    new = (entry for entry in outcome.state.entries if entry_of(before, entry.key) is None)
    return set(outcome.evicted) <= set(idle(before)) and all(entry.place not in kept for entry in new)


def law_nothing_comes_beyond_the_end(before: Tier, outcome: TierDone) -> bool:
    """TIER-14: no block comes to lie beyond the end, so that places there are given back once their blocks have gone.

    A tier that is resized loses no other block.
    """
    lost = (entry for entry in before.entries if entry_of(outcome.state, entry.key) is None)
    return all(entry_of(before, key) for key in beyond(outcome.state)) and (
        before.end == outcome.state.end or all(entry.place >= outcome.state.end for entry in lost)
    )


def law_block_keeps_its_place(before: Tier, outcome: TierDone) -> bool:
    """TIER-7: a block keeps its place until it is gone; then the place is free, another's, or beyond the end."""
    state = outcome.state
    taken = {entry.place for entry in state.entries} | set(state.freed) | set(range(state.end, len(state.contents)))
    kept = ((entry, entry_of(outcome.state, entry.key)) for entry in before.entries)
    return all(entry.place in taken and (now is None or now.place == entry.place) for entry, now in kept)


def law_phases_follow(before: Tier, outcome: TierDone) -> bool:
    """TIER-8: a block is ready only after it was written by a store that did not fail; one found bad never is again."""
    became = ready(outcome.state) - ready(before)
    return all(
        phase_of(before, key) is Phase.WRITING
        and any(key in event.keys and not event.removed for event in outcome.events)
        for key in became
    )


def law_only_touch_refreshes(before: Tier, outcome: TierDone) -> bool:
    """TIER-9: blocks that stay keep their order of use, and new ones come after them, in every call but `touch`."""
    if outcome.touched:
        return True
    keys = tuple(entry.key for entry in outcome.state.entries)
    old = tuple(entry.key for entry in before.entries if entry.key in keys)
    return keys[: len(old)] == old


def law_share_is_not_starved(before: Tier, outcome: TierDone) -> bool:
    """TIER-10: a tenant loses a block of its share only where no other may go that a tenant has above its share."""
    counts, shares = Counter(each.said.tenant for each in outcome.state.entries), Counter(dict(before.shares))
    gone = {each.said.tenant for each in before.entries if each.key in outcome.evicted}
    others = {each.said.tenant for each in spared(before, outcome)}
    return not any(counts[one] < shares[one] and counts[two] > shares[two] for one in gone for two in others)


def law_hint_keeps(before: Tier, outcome: TierDone) -> bool:
    """TIER-11: of one tenant's blocks none goes that is kept with a higher priority than one that could have gone."""
    return all(
        each.said.tenant != other.said.tenant or rank_in(before, each) <= rank_in(before, other)
        for each in before.entries
        for other in (spared(before, outcome) if each.key in outcome.evicted else ())
    )


def law_last_used_is_out_of_reach(before: Tier, outcome: TierDone) -> bool:
    """TIER-12: of the last `guard` blocks used none goes while another of a tenant above its share could have gone.

    So hits under any hints are at least those of plain LRU in a tier of as many places (HINT-3).
    """
    counts, shares = Counter(each.said.tenant for each in outcome.state.entries), Counter(dict(before.shares))
    last = before.entries[max(0, len(before.entries) - before.guard) :]
    others = (each for each in spared(before, outcome) if each not in last)
    return not any(each.key in outcome.evicted for each in last) or not any(
        counts[each.said.tenant] > shares[each.said.tenant] for each in others
    )


def spared(before: Tier, outcome: TierDone) -> tuple[Entry, ...]:
    """Return the blocks that could have gone for a store, and did not. A resize takes all beyond the end."""
    if before.end != outcome.state.end:
        return ()
    free = frozenset(idle(before)) - frozenset(outcome.named) - frozenset(outcome.evicted)
    return tuple(entry for entry in before.entries if entry.key in free)


TIER_LAWS = (
    listed(law_ready_is_written, "vLLM BlockStatus.is_ready; known bug B52"),
    listed(law_place_is_of_one_block, "vLLM CPUBackend; known bugs B18, B51"),
    listed(law_phase_has_its_readers, "vLLM BlockStatus.ref_cnt; known bug B18"),
    listed(law_key_is_present_once, "vLLM LRUOffloadingManager.blocks"),
    listed(law_events_tell_the_index, "vLLM OffloadingManager.take_events; known bug B64"),
    listed(law_beyond_the_end_is_given_back, "RESIZE-1 on the device"),
)
"""Every law of the states of a tier."""

TIER_STEP_LAWS = (
    listed(law_busy_block_stays, "vLLM LRUOffloadingManager.prepare_store; known bug B50"),
    listed(law_block_keeps_its_place, "vLLM Backend.free; known bug B18"),
    listed(law_nothing_comes_beyond_the_end, "RESIZE-2 on the device"),
    listed(law_phases_follow, "vLLM LRUOffloadingManager.complete_store"),
    listed(law_only_touch_refreshes, "vLLM LRUOffloadingManager.touch"),
    listed(law_share_is_not_starved, "LMCache quotas per salt; SHARE-3 on the device"),
    listed(law_hint_keeps, "SGLang HiCache retention; chapter `hints`"),
    listed(law_last_used_is_out_of_reach, "HINT-3 on the device; known bug E264"),
)
"""Every law of calls on a tier."""
