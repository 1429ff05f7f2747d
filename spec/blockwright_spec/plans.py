"""Chapter 7: planning a step: whether it may be asked for, whether it fits, and what it takes.

A plan changes nothing. What it counts is what the step then takes (PLAN-1), as if dead entries were already trimmed.
A request that joins others leaves a watermark and a reserve free; alone it need not, and so is served (LIVE-1).
"""

from dataclasses import replace

from .hits import sound
from .outcomes import Fits, Plan, Reason, Refusal, Step
from .reads import Cross, Full, Group, Mamba, Prefix, dead, entries, filled, peak
from .state import (
    NULL,
    Config,
    Hit,
    Running,
    State,
    Table,
    Waiting,
    certain,
    covers,
    draft_states,
    heads,
    holders,
    is_loading,
    recurrent,
    span,
)


def misuse(config: Config, prefix: Prefix, adopted: int, begin: int, step: Step) -> Refusal | None:
    """Refuse a step from token `begin` on that no state of the pool could serve."""
    first, known = begin + step.external, len(prefix[1])
    if min(step.new, step.lookahead, step.drafts, step.external, step.encoder, step.reserve) < 0:
        return Refusal(Reason.NEGATIVE)
    if step.new + step.external + adopted == 0:
        return Refusal(Reason.NO_TOKENS)
    if step.external > 0 and (step.new > 0 or first >= known):
        return Refusal(Reason.LOAD_ALONE)
    if step.encoder > 0 and not any(isinstance(group.kind, Cross) for group in config.groups):
        return Refusal(Reason.NO_ENCODER)
    if first + step.new > config.max_model_len:
        return Refusal(Reason.TOO_LONG)
    if step.drafts > 0 and (step.drafts >= step.new or first + step.new - step.drafts < known):
        return Refusal(Reason.TOO_MANY_DRAFTS)
    return overdrafted(config, known, first, step)


def overdrafted(config: Config, known: int, first: int, step: Step) -> Refusal | None:
    """Refuse to run a recurrent state beyond what it can be taken back from (MAMBA-3).

    With steps in flight, one token may be unknown that is no draft: the one that the step before will give.
    """
    most, certain = draft_states(config), step.new - step.drafts
    if most is None or (
        max(step.drafts, step.lookahead) <= most and (first + certain <= known or (config.overlaps and certain == 1))
    ):
        return None
    return Refusal(Reason.STATE_DRAFTED)


def trimmed(config: Config, group: Group, table: Table, settled: int) -> Table:
    """Replace the dead entries of a table by the null block (TRIM-1)."""
    size = span(config, group)
    return tuple(
        NULL if block == NULL or dead(group.kind, size, settled, entry) else block for entry, block in enumerate(table)
    )


def trimmed_tables(config: Config, tables: tuple[Table, ...], settled: int) -> tuple[Table, ...]:
    """Trim the table of every group (TRIM-1)."""
    return tuple(trimmed(config, group, table, settled) for group, table in zip(config.groups, tables, strict=True))


def nulled(before: tuple[Table, ...], after: tuple[Table, ...]) -> tuple[tuple[int, ...], ...]:
    """Give, per group, the entries that held a block and hold none now."""
    return tuple(
        tuple(entry for entry, block in enumerate(old) if block != new[entry])
        for old, new in zip(before, after, strict=True)
    )


def let_go(tables: tuple[Table, ...], gone: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Give, per group, the blocks at some entries."""
    return tuple(tuple(table[entry] for entry in dying) for table, dying in zip(tables, gone, strict=True))


def reach(config: Config, begin: int, step: Step) -> int:
    """Give the slots that a step from token `begin` on asks for: they end at the model's maximum length."""
    return min(begin + step.external + step.new + step.lookahead, config.max_model_len)


def wanted(config: Config, group: Group, held: int, begin: int, step: Step) -> tuple[bool, ...]:
    """Tell for each entry after the first `held` whether it takes a block (TABLE-1).

    A state jumps over entries, and those of drafts have blocks of their own (MAMBA-1, MAMBA-3).
    """
    if isinstance(group.kind, Cross):
        return (True,) * entries(group.block_size, step.encoder)
    slots = reach(config, begin, step)
    end = begin + step.external + step.new - step.drafts if isinstance(group.kind, Mamba) else slots
    kept = filled(group.kind, span(config, group), begin, end)
    return tuple(entry in kept for entry in range(held, covers(config, group, end)))


def planned(state: State, start: Running, begin: int, step: Step, is_new: bool) -> Plan:
    """Count what a step from token `begin` on takes, and tell whether the pool has it (PLAN-1)."""
    config = state.config
    tables = trimmed_tables(config, start.tables, start.settled)
    gone = nulled(start.tables, tables)
    sized = zip(config.groups, tables, strict=True)
    wants = tuple(wanted(config, group, len(table), begin, step) for group, table in sized)
    states = tuple(group.kind.drafts if is_new and isinstance(group.kind, Mamba) else 0 for group in config.groups)
    new = sum(sum(takes) for takes in wants) + sum(states)
    held = tuple(block for table in tables for block in table if block != NULL)
    own = (*trimmed_tables(config, tables, begin), *start.states)
    kept = sum(block != NULL for table in own for block in table)
    demand = new + sum(block in state.queue for block in held)
    whole = whole_demand(state, start, begin, step) if is_new and step.whole else 0
    if max(kept + new, whole) > config.num_blocks - 1:  # what is settled once nothing is in flight counts no more
        return Refusal(Reason.POOL_TOO_SMALL)
    alone = sum(holders(state, block) == 1 for blocks in let_go(start.tables, gone) for block in blocks)
    missing = max(demand, whole - shared(state, tables)) + spare(state, step, is_new) - len(state.queue) - alone
    return Refusal(Reason.NO_FREE_BLOCKS, missing) if missing > 0 else Fits(demand, tables, gone, wants, states)


def spare(state: State, step: Step, is_new: bool) -> int:
    """Give the blocks that must stay free: the watermark and the reserve, where a request joins others (PLAN-2)."""
    is_idle = len(state.queue) == state.config.num_blocks - 1
    return state.config.watermark + step.reserve if is_new and not is_idle else 0


def whole_demand(state: State, start: Running, begin: int, step: Step) -> int:
    """Count the most blocks that a request holds until all its tokens are computed, in steps as large as this (PLAN-2).

    Kinds that recycle blocks need less than their tokens cover.
    """
    config = state.config
    tokens = max(len(start.prefix[1]), reach(config, begin, step))
    size = max(step.new, step.external, 1)

    def most(group: Group) -> int:
        match group.kind:
            case Cross():
                return entries(group.block_size, step.encoder)
            case Mamba(drafts):
                return peak(group.kind, span(config, group), tokens, size) + drafts
            case _:
                return peak(group.kind, group.block_size, tokens, size)

    return sum(most(group) for group in config.groups)


def shared(state: State, tables: tuple[Table, ...]) -> int:
    """Count the blocks of a hit that others hold, in groups that keep all: the request never takes blocks for them."""
    return sum(
        block != NULL and block not in state.queue
        for group, table in zip(state.config.groups, tables, strict=True)
        if isinstance(group.kind, Full)
        for block in table
    )


def starting(state: State, slot: int, hit: Hit, step: Step) -> Running | Refusal:
    """Give a waiting request as it starts on the blocks of its hit, or refuse."""
    config, request = state.config, state.requests[slot]
    if not isinstance(request, Waiting):
        return Refusal(Reason.NOT_WAITING)
    if refusal := misuse(config, request.prefix, hit.length, hit.length, step):
        return refusal
    if config.overlaps and step.new > 0 and not state.flights:
        return Refusal(Reason.NO_STEP)
    if step.external > 0 and is_loading(state, slot):
        return Refusal(Reason.LOADING)
    tables = heads(config, hit)
    sized = zip(config.groups, tables, strict=True)
    if any(hit.length != len(table) * group.block_size for group, table in sized):
        return Refusal(Reason.HIT_LENGTH)
    if not sound(state, request.prefix, hit):
        return Refusal(Reason.HIT_STALE)
    looked = tuple(len(table) for table in tables)
    length = hit.length
    return Running(request.prefix, length, length, length, tables, looked, trimmed=length, encoder=step.encoder)


def wrong(state: State, slot: int, computed: int, step: Step) -> Refusal | None:
    """Refuse a step that a running request cannot ask for; `computed` is the engine's own count.

    It may take drafts back, but nothing that is certain; what is in flight is counted in full.
    """
    config, request = state.config, state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if refusal := misuse(config, request.prefix, 0, computed, step):
        return refusal
    if step.encoder > 0:
        return Refusal(Reason.NO_ENCODER)
    if step.external > 0:
        return Refusal(Reason.LOAD_ALONE)
    if request.loading > 0:
        return Refusal(Reason.LOADING)
    if computed > request.written:
        return Refusal(Reason.UNWRITTEN)
    if computed < (request.written if config.overlaps else max(certain(request), request.settled)):
        return Refusal(Reason.WENT_BACK)
    return hurried(state, slot, request) if config.overlaps else None


def hurried(state: State, slot: int, request: Running) -> Refusal | None:
    """Refuse a second step for a request in the open one, or one before its drafts are settled and known (MAMBA-3)."""
    if not state.flights:
        return Refusal(Reason.NO_STEP)
    if any(flight.slot == slot for flight in state.flights[-1]):
        return Refusal(Reason.REPEATED)
    is_open = any(flight.slot == slot and flight.drafts for step in state.flights for flight in step)
    is_unknown = request.drafts > 0 and request.computed < request.written
    return Refusal(Reason.DRAFTS_IN_FLIGHT) if recurrent(state.config) and (is_open or is_unknown) else None


def going(state: State, slot: int, computed: int, step: Step) -> Running | Refusal:
    """Give a running request as it goes on from `computed` tokens, or refuse; all before them is done by then.

    With steps in flight it goes on from what it was given slots for, and is told what is done by `settle`.
    """
    request, refusal = state.requests[slot], wrong(state, slot, computed, step)
    if refusal or not isinstance(request, Running):
        return refusal or Refusal(Reason.NOT_RUNNING)
    return request if state.config.overlaps else replace(request, computed=computed, settled=computed)


def plan_admission(state: State, slot: int, hit: Hit, step: Step) -> Plan:
    """Tell whether a waiting request can start, and what it takes: ``plan`` (PLAN-1, PLAN-2)."""
    start = starting(state, slot, hit, step)
    return start if isinstance(start, Refusal) else planned(state, start, hit.length, step, True)


def plan_growth(state: State, slot: int, computed: int, step: Step) -> Plan:
    """Tell whether a running request can go on, and what it takes: ``plan`` (PLAN-1)."""
    start = going(state, slot, computed, step)
    return start if isinstance(start, Refusal) else planned(state, start, computed, step, False)
