"""Part three, chapter 13: the laws of the chain, of its states and of its calls.

Those of `tier_laws` hold in each tier as well.
"""

from collections import Counter
from itertools import chain as joined

from ..law import listed
from .chain_effects import parts_of
from .chain_outcomes import ChainDone
from .chain_state import (
    Chain,
    ChainConfig,
    Kind,
    Transfer,
    is_full,
    lowering,
    may_start,
    pins,
    promoted,
    readers,
    reads,
    writers,
    writes,
)
from .directory import CHECKED_LAWS, DIRECTORY_LAWS, RESIZED_LAWS
from .keeping_laws import KEEPING_LAWS, KEEPING_STEP_LAWS
from .parts import PART_LAWS
from .tier_events import FORGET_LAWS, TOLD_LAWS
from .tier_laws import TIER_LAWS, TIER_STEP_LAWS
from .tier_state import Key, Phase, beyond, idle, num_free, ready, said_of


def law_users_are_transfers(state: Chain) -> bool:
    """CHAIN-1: a block of a tier has one reader for each transfer that reads it, and one writer while it is written."""
    return all(
        (entry.readers, entry.phase is Phase.WRITING)
        == (readers(state, at, entry.key), writers(state, at, entry.key) > 0)
        for at, tier in enumerate(state.tiers)
        for entry in tier.entries
    )


def law_writer_shares_nothing(state: Chain) -> bool:
    """CHAIN-2: no other transfer writes the target of a transfer, or reads it once that was handed out."""
    written = Counter(spot for each in state.transfers for spot in writes(state, each))
    writing = frozenset(spot for each in state.transfers if each.started for spot in writes(state, each))
    read = frozenset(spot for each in state.transfers for spot in reads(state, each))
    return all(count == 1 for count in written.values()) and not read & writing


def law_nothing_under_way_is_quiet(state: Chain) -> bool:
    """CHAIN-3: with no transfer under way every block present can be read, and has no reader."""
    return bool(state.transfers) or all(
        entry.phase is Phase.READY and not entry.readers for tier in state.tiers for entry in tier.entries
    )


def law_store_goes_before_load(state: Chain) -> bool:
    """CHAIN-4: a load that was handed out has all it reads in tier 0, and waits for no store that reads its blocks."""
    return all(
        not (set(load.keys) - {entry.key for entry in state.tiers[0].entries if entry.phase is not Phase.WRITING})
        and not any(set(load.device) & set(each.device) for each in state.transfers if each.kind is Kind.STORE)
        for load in state.transfers
        if load.kind is Kind.LOAD and load.started
    )


def law_something_goes_on(state: Chain) -> bool:
    """CHAIN-9: as long as transfers are under way, one of them was handed out or may be: they never wait in a ring."""
    return not state.transfers or any(each.started or may_start(state, each) for each in state.transfers)


def law_pinned_block_is_the_loads(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-5: a block of the device that is pinned changes only by the load that pins it, handed out or landed."""
    loads = (*outcome.handed, *(each for each, _ in outcome.ended))
    own = frozenset(block for each in loads if each.kind is Kind.LOAD for block in each.device)
    return all(
        block in own or not pins(before, block) or outcome.state.device[block] == part
        for block, part in enumerate(before.device)
    )


def law_landed_load_is_there(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-6: a load that succeeded has put on the device what its keys name; one that failed claims nothing there."""
    return all(
        tuple(outcome.state.device[block] for block in each.device)
        == tuple(part for key in each.keys for part in parts_of(before, key if success else None))
        for each, success in outcome.ended
        if each.kind is Kind.LOAD and each.started
    )


def law_failure_leaves_nothing(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-7: a failed transfer leaves nothing present at its target, and a block that was read wrongly is not found.

    Blocks that failed together to come up are tried again one by one.
    """
    again = promoted(outcome.state)
    return all(
        not present(outcome.state, each.target) & failed
        and not (is_blamed(each) and ready(outcome.state.tiers[each.source or 0]) & failed)
        for each, success in outcome.ended
        if not success
        for failed in ({*each.keys} - again,)
    )


def present(state: Chain, tier: int | None) -> frozenset[Key]:
    """Return the blocks present in a tier; those of the device have no keys here."""
    return frozenset() if tier is None else frozenset(entry.key for entry in state.tiers[tier].entries)


def is_blamed(each: Transfer) -> bool:
    """Return whether the failure of a transfer is its source's: of those that bring a block up, once begun."""
    return each.started and each.kind in (Kind.LOAD, Kind.PROMOTE)


def law_readable_stays_readable(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-8: what can be read somewhere stays so, or is evicted, dropped, freed by a load, blamed, or forgotten.

    Where a tier becomes smaller, what leaves it for that is found again once it is below.
    """
    lost = index(before) - index(outcome.state)
    bad = (each for each, success in outcome.ended if is_blamed(each) and not success)
    loaded = (each for each, success in outcome.ended if each.kind is Kind.LOAD and success and before.config.frees)
    evicted = (key for _, key in outcome.evicted)
    moved = (key for each in (*bad, *loaded) for key in each.keys)
    return lost <= {*outcome.dropped, *evicted, *outcome.forgot, *outcome.resized, *moved}


def index(state: Chain) -> frozenset[Key]:
    """Return the blocks that can be read in some tier."""
    return frozenset(joined.from_iterable(map(ready, state.tiers)))


def law_reserve_is_kept(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-10: what takes places in tier 0, or lands, sends idle blocks down until the reserves are, or will be, free.

    No more are sent than the reserve of the tier, or of one above it, asks for. A block that the tier below is still
    writing, or that was found bad there, cannot go; none can while the tier below is full or has to send blocks further
    down first. After a failure none is sent, lest it fail for ever.
    """
    state = outcome.state
    new = tuple(each for each in state.transfers if not (each.started or each in before.transfers))
    is_due = any(success for _, success in outcome.ended) or any(each.target == 0 for each in new)
    return (
        before.config.through
        or not is_due
        or all(
            (spare <= most or all(each.source != at for each in new if each.kind is Kind.DEMOTE))
            and (
                spare >= reserve
                or is_emptied(state, at + 1)
                or is_full(state, at + 1)
                or set(idle(tier)) <= present(state, at + 1) - ready(state.tiers[at + 1])
            )
            for at, tier in enumerate(state.tiers)
            for spare, reserve in ((num_free(tier) + len(lowering(state, at)), reserve_of(state.config, at)),)
            for most in (max(reserve_of(state.config, each) for each in range(at + 1)),)
        )
    )


def is_emptied(state: Chain, tier: int) -> bool:
    """Return whether a tier is full until blocks have gone further down from it, or from one below it."""
    full = tier < len(state.tiers) and not num_free(state.tiers[tier])
    return full and (bool(lowering(state, tier)) or is_emptied(state, tier + 1))


def reserve_of(config: ChainConfig, tier: int) -> int:
    """Return the places to be kept free in a tier: 0 in the last, and in all where all is written through."""
    asked = () if config.through else config.reserve[: len(config.capacities) - 1]
    return asked[tier] if tier < len(asked) else 0


def law_written_through_goes_on(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-11: written through, what landed from above is present in the tier below, dropped, evicted or forgotten."""
    return not before.config.through or all(
        key in present(outcome.state, below) | {*outcome.dropped, *outcome.forgot} or (below, key) in outcome.evicted
        for each, success in outcome.ended
        for below in range(1, len(before.tiers))
        if success and each.target == below - 1 and each.kind is not Kind.PROMOTE
        for key in each.keys
        if key not in beyond(before.tiers[below - 1])
    )


def law_loaded_goes_if_loads_free(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-12: a loaded block leaves tier 0 if loads free it and it has no other reader; else it stays.

    Written back, it may make room there if the tier below has it.
    """
    state = outcome.state
    room = frozenset(joined.from_iterable(map(ready, () if state.config.through else state.tiers[1:])))
    return all(
        (key in present(state, 0)) == (not state.config.frees or readers(state, 0, key) > 0) or key in room
        for each, success in outcome.ended
        if success and each.kind is Kind.LOAD
        for key in ready(before.tiers[0]) & set(each.keys)
    )


def law_what_is_said_goes_along(before: Chain, outcome: ChainDone) -> bool:
    """CHAIN-13: a block that is sent to another tier keeps its tenant and its hint there."""
    tiers, known = outcome.state.tiers, frozenset((each.target, each.keys) for each in before.transfers)
    return all(
        said_of(tiers[each.source], key) == said_of(tiers[each.target], key)
        for each in outcome.state.transfers
        if each.source is not None and each.target is not None and (each.target, each.keys) not in known
        for key in each.keys
    )


CHAIN_LAWS = (
    listed(law_users_are_transfers, "LMCache pins and reference counts; known bugs B12, B19, B49, B50"),
    listed(law_writer_shares_nothing, "vLLM OffloadingConnector; known bugs B47, B49"),
    listed(law_nothing_under_way_is_quiet, "LMCache pins; known bugs B17, B20"),
    listed(law_store_goes_before_load, "vLLM OffloadingConnector; known bug B49"),
    listed(law_something_goes_on, "vLLM OffloadingConnector: loads and stores wait for each other"),
    *KEEPING_LAWS,
)
"""Every law of the states of a chain."""

CHAIN_STEP_LAWS = (
    listed(law_pinned_block_is_the_loads, "vLLM OffloadingConnector"),
    listed(law_landed_load_is_there, "the central law; known bugs B48, B49, B59"),
    listed(law_failure_leaves_nothing, "SGLang HiCache write-back; known bugs B52, B59"),
    listed(law_readable_stays_readable, "SGLang HiCache write-back; known bug B52"),
    listed(law_reserve_is_kept, "SGLang HiCache write-back"),
    listed(law_written_through_goes_on, "SGLang HiCache write-through; LMCache tiers"),
    listed(law_loaded_goes_if_loads_free, "chapter `chain_state`: `frees`"),
    listed(law_what_is_said_goes_along, "LMCache quotas per salt, at one level alone"),
    *KEEPING_STEP_LAWS,
    *FORGET_LAWS,
)
"""Every law of calls on a chain."""

OFFLOAD_LAWS = (
    *TIER_LAWS,
    *TIER_STEP_LAWS,
    *DIRECTORY_LAWS,
    *RESIZED_LAWS,
    *CHECKED_LAWS,
    *CHAIN_LAWS,
    *CHAIN_STEP_LAWS,
    *TOLD_LAWS,
    *PART_LAWS,
)
"""Every law of part three."""
