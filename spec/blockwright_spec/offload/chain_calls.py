"""Part three, chapter 8: the transitions of the chain, one for each call, and the engine's own steps.

They have the shape of `manager.transitions`. Which transfers land when, and whether they fail, is open:
`finish` may name any that was handed out.
"""

from dataclasses import replace

from . import chain_effects as effects
from .chain_outcomes import ChainDone, ChainOutcome, ChainReason, ChainRefusal
from .chain_state import Chain, Kind, Part, Transfer, held, may_start, pins, readable_count, source_of
from .tier_calls import UNSAID, Saying, TierRefusal, complete_load, prepare_load, prepare_store, readable, touch
from .tier_state import Key, distinct, said_of


def wrong_blocks(state: Chain, keys: tuple[Key, ...], device: tuple[int, ...]) -> ChainRefusal | None:
    """Return the refusal of a store or load that names its blocks wrongly."""
    if len(distinct(keys)) < len(keys):
        return ChainRefusal(ChainReason.NAMED_TWICE)
    if len(device) != len(keys) * state.config.span:
        return ChainRefusal(ChainReason.WRONG_COUNT)
    loaded = frozenset(block for each in state.transfers if each.kind is Kind.LOAD for block in each.device)
    return ChainRefusal(ChainReason.LOADING) if loaded & frozenset(device) else None


def chain_touch(state: Chain, keys: tuple[Key, ...]) -> ChainDone:
    """Count blocks as just used, in every tier: ``OffloadChain.touch``."""
    # EFFECT
    return ChainDone(replace(state, tiers=tuple(touch(each, keys).state for each in state.tiers)))
    # SAME: what is present, transfers, the device.


def store(state: Chain, keys: tuple[Key, ...], device: tuple[int, ...], said: Saying = UNSAID) -> ChainOutcome:
    """Begin to copy blocks of the device to tier 0, those that are not present there: ``OffloadChain.store``.

    Their hints move with them (CHAIN-13). The first of them is evicted last.
    """
    # REFUSE
    if wrong := wrong_blocks(state, keys, device):
        return wrong
    if state.config.most is not None and len(state.transfers) >= state.config.most:
        return ChainRefusal(ChainReason.TOO_MANY)
    prepared = prepare_store(state.tiers[0], keys, said=said)
    if isinstance(prepared, TierRefusal) or effects.losing(state, 0, prepared.evicted):
        return ChainRefusal(ChainReason.NO_ROOM_TO_STORE)
    # EFFECT
    done = effects.on_tier(ChainDone(state, prepared.keys), 0, prepared)
    done = effects.on_tier(done, 0, touch(done.state.tiers[0], keys))
    if not prepared.keys:
        return done
    span = state.config.span
    blocks = tuple(
        block for at, key in enumerate(keys) if key in prepared.keys for block in device[at * span : (at + 1) * span]
    )
    return effects.reserved(effects.begun(done, Transfer(Kind.STORE, prepared.keys, None, 0, blocks)))
    # SAME: the device's contents, transfers that were under way.


def load(state: Chain, keys: tuple[Key, ...], device: tuple[int, ...]) -> ChainOutcome:
    """Begin to copy blocks to the device, by way of tier 0 those from below: ``OffloadChain.load``."""
    # REFUSE
    if wrong := wrong_blocks(state, keys, device):
        return wrong
    if len(frozenset(device)) < len(device):
        return ChainRefusal(ChainReason.LOADING)
    if readable_count(state, keys) < len(keys):
        return ChainRefusal(ChainReason.NOT_FOUND)
    sources = {key: source_of(state, key) for key in keys}
    done = effects.on_tier(ChainDone(state), 0, prepare_load(state.tiers[0], readable(state.tiers[0], keys)))
    said = {key: said_of(state.tiers[source], key) for key, source in sources.items() if source}
    prepared = prepare_store(done.state.tiers[0], tuple(said), said=said)
    if isinstance(prepared, TierRefusal) or effects.losing(state, 0, prepared.evicted):
        return ChainRefusal(ChainReason.NO_ROOM_TO_LOAD)
    # EFFECT
    done = effects.on_tier(done, 0, prepared)
    for at in sorted({source for source in sources.values() if source}):
        done = raising(done, at, tuple(key for key in keys if sources[key] == at))
    done = effects.on_tier(done, 0, touch(done.state.tiers[0], keys))
    done = effects.begun(done, Transfer(Kind.LOAD, keys, 0, None, device))
    return effects.reserved(done) if prepared.keys else done
    # SAME: contents, transfers that were under way.


def raising(done: ChainDone, at: int, keys: tuple[Key, ...]) -> ChainDone:
    """Begin to bring blocks of a lower tier up to tier 0, where places are prepared."""
    done = effects.on_tier(done, at, prepare_load(done.state.tiers[at], keys))
    done = effects.on_tier(done, at, touch(done.state.tiers[at], keys))
    return effects.begun(done, Transfer(Kind.PROMOTE, keys, at, 0))


def make_room(state: Chain, count: int) -> ChainDone:
    """Send idle blocks of tier 0 down until `count` places will be free: ``OffloadChain.make_room``.

    Where all is written through they are below already.
    """
    # EFFECT
    done = ChainDone(state)
    lowers = len(state.tiers) > 1 and not state.config.through
    return effects.sent_down(done, 0, count) if lowers else done
    # SAME: what can be read, the device.


def hand_out(state: Chain) -> ChainDone:
    """Hand out the transfers that may start now: ``OffloadChain.take_transfers``."""
    # EFFECT
    now = tuple(each for each in state.transfers if not each.started and may_start(state, each))
    transfers = tuple(replace(each, started=True) if each in now else each for each in state.transfers)
    overwritten = tuple(block for each in now if each.kind is Kind.LOAD for block in each.device)
    after = effects.onto_device(state, overwritten, (None,) * len(overwritten))
    return ChainDone(replace(after, transfers=transfers), handed=now)
    # SAME: everything else; what a load writes holds nothing until it has landed.


def finish(state: Chain, at: int, success: bool) -> ChainOutcome:
    """End a transfer that was handed out, the one of this number under way: ``OffloadChain.finish``."""
    # REFUSE
    if not 0 <= at < len(state.transfers) or not state.transfers[at].started:
        return ChainRefusal(ChainReason.NOT_UNDER_WAY)
    # EFFECT
    each = state.transfers[at]
    done = effects.over(ChainDone(effects.copied(state, each) if success else state), each, success)
    match each.kind, each.source:
        case Kind.STORE, _:
            done = effects.landed_store(done, each.keys, success)
        case Kind.DEMOTE, int(above):
            done = effects.landed_demotion(done, above, each.keys, success)
        case Kind.PROMOTE, int(below):
            done = effects.landed_promotion(done, below, each.keys, success)
        case _:
            done = effects.landed_load(done, each.keys, success)
    done = effects.settled(done)
    return effects.reserved(done) if success else done
    # SAME: other transfers, but for loads that waited for a promotion which failed: they are cut.


def cancel(state: Chain, at: int) -> ChainOutcome:
    """Drop a store or load that was not handed out: ``OffloadChain.cancel``; promotions for it go on."""
    # REFUSE
    each = state.transfers[at] if 0 <= at < len(state.transfers) else None
    if each is None or each.started or each.kind not in (Kind.STORE, Kind.LOAD):
        return ChainRefusal(ChainReason.TOO_LATE)
    # EFFECT
    holds = held(state, each)
    done = effects.over(ChainDone(state), each, success=False)
    if each.kind is Kind.STORE:
        return effects.settled(effects.landed_store(done, each.keys, success=False))
    return effects.settled(effects.on_tier(done, 0, complete_load(state.tiers[0], holds, success=True)))
    # SAME: other transfers, the device.


def forget(state: Chain, keys: tuple[Key, ...]) -> ChainDone:
    """Let no later lookup find some blocks, in whichever tier they are: ``OffloadChain.forget``."""
    # EFFECT
    return effects.forgotten(ChainDone(state), distinct(keys))
    # SAME: all other blocks, the device, all transfers: who reads a block reads on.


def overwrite(state: Chain, block: int, part: Part | None) -> ChainOutcome:
    """Write a block of the device, or give it up: a step of the engine, forbidden while a transfer uses the block."""
    # REFUSE
    if pins(state, block):
        return ChainRefusal(ChainReason.PINNED)
    # EFFECT
    return ChainDone(effects.onto_device(state, (block,), (part,)))
    # SAME: everything else.
