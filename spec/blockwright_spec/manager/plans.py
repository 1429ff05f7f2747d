"""Part one, chapter 13: planning a step: whether it fits, and the blocks it takes.

A plan changes nothing. It counts the blocks that the step then takes (PLAN-1), as if dead entries were already trimmed.
A request that joins others leaves a watermark and a reserve free; alone it need not, and so is served (LIVE-1).
"""

from ..reads import Ahead, Cross, Full, Group, Mamba, dead, entries, filled, states_beside, writes
from .chapters import adopted, caught_up
from .facts import comes_free, covers, entries_of_states, holders, sharers, span
from .keys import is_longer, stride
from .outcomes import Fits, Plan, Reason, Refusal, Step
from .preconditions import request_from, start_of, trim_end, trim_tables
from .room import held_in_step
from .state import NULL, Config, Hit, Running, State, Table


def stands(config: Config, tables: tuple[Table, ...], count: int) -> bool:
    """Return whether each recurrent layer holds a state after so many tokens, as it does not inside a jump."""
    pairs = [(each, table) for each, table in zip(config.groups, tables, strict=True) if isinstance(each.kind, Mamba)]
    return not any(table[: 1 + (count - 1) // span(config, each)][-1:] == (NULL,) for each, table in pairs if count)


def nulled_entries(before: tuple[Table, ...], after: tuple[Table, ...]) -> tuple[tuple[int, ...], ...]:
    """Return, per group, the entries that held a block and hold none now."""
    return tuple(
        tuple(entry for entry, block in enumerate(old) if block != new[entry])
        for old, new in zip(before, after, strict=True)
    )


def let_go(tables: tuple[Table, ...], gone: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return, per group, the blocks at some entries."""
    return tuple(tuple(table[entry] for entry in dying) for table, dying in zip(tables, gone, strict=True))


def wanted(config: Config, group: Group, held: int, start: Running, begin: int, step: Step) -> tuple[bool, ...]:
    """Return, for each entry after the first `held`, whether it takes a block (TABLE-1).

    A state jumps over entries, except to a state inside, and those of drafts have separate blocks (MAMBA-1, MAMBA-3,
    MAMBA-7). What is dead once a load has come takes none (READ-1).
    """
    inside = step.inside() // group.block_size - 1
    if isinstance(group.kind, Cross):
        return (True,) * entries(group.block_size, step.beside())
    stop, size = begin + step.coming() + step.new, span(config, group)
    slots = min(stop + step.ahead(), config.max_model_len)
    if isinstance(group.kind, Ahead):
        ahead = entries_of_states(config, group, len(start.prefix[1]), stop)
        return tuple(entry in ahead or entry == inside for entry in range(held, ahead.stop))
    end = stop - step.uncertain() if isinstance(group.kind, Mamba) else slots
    kept = {entry for entry in filled(group.kind, size, begin, end) if not dead(group.kind, size, start.trimmed, entry)}
    kept = kept | {inside} if isinstance(group.kind, Mamba) else kept
    return tuple(entry in kept for entry in range(held, covers(config, group, end)))


def rewritten(
    state: State, start: Running, group: Group, table: Table, begin: int, step: Step, is_new: bool
) -> int | None:
    """Return the entry that a step from token `begin` on writes to though its block must stay as it is (WRITE-2).

    Others hold it, or it is published as more than is computed. What nobody holds, a newcomer may write over.
    """
    is_state = isinstance(group.kind, Mamba)
    entry = first_written(state, group, table, start, begin, step)
    if is_state and is_new and begin % span(state.config, group) and table:
        entry = len(table) - 1  # its owner writes over it, wherever the newcomer goes on
    if entry is None:
        return None
    may = stride(state.config) > 0 and not (is_new or is_state)
    is_held = holders(state, table[entry]) > 0 if is_new else sharers(state, table[entry]) > 1
    return entry if is_held or (may and is_longer(state, table[entry], begin)) else None


def first_written(state: State, group: Group, table: Table, start: Running, begin: int, step: Step) -> int | None:
    """Return the first entry that a step from token `begin` on may write to, if a table holds a block there."""
    size, stop = span(state.config, group), begin + step.coming() + step.new
    if isinstance(group.kind, Ahead) and stop > begin:
        entry = entries_of_states(state.config, group, len(start.prefix[1]), stop).start
    else:
        entry = next((place // size for place in writes(group.kind, begin, stop - step.uncertain())), len(table))
    return entry if entry < len(table) and table[entry] != NULL else None


def planned(state: State, slot: int, start: Running, begin: int, step: Step) -> Plan:
    """Count what a step from token `begin` on takes, and whether the pool has it (PLAN-1).

    It fits if ``max(demand, whole - shared) + spare <= free + freed``. On the left, `demand` is what this step takes
    out of the queue: new blocks, copies, and the blocks of its hit that are free. If the whole request must fit,
    `whole - shared` is what it takes until all its tokens are computed. And `spare` must stay free. On the right are
    the blocks that are free already, and those that the step's own trim frees. Chapters may add to a plan that fits.

    It never fits if the pool has fewer blocks than the request is to hold at a time: those it keeps and the new ones of
    this step, or the most that the whole of it holds. Copies do not count: alone, it needs none.
    """
    config, is_new = state.config, not isinstance(state.requests[slot], Running)
    tables = trim_tables(config, start.tables, trim_end(config, start, start.settled))
    gone = nulled_entries(start.tables, tables)
    groups = tuple(zip(config.groups, tables, strict=True))
    wants = tuple(wanted(config, group, len(table), start, begin, step) for group, table in groups)
    states = tuple(states_beside(group.kind) if is_new else 0 for group in config.groups)
    copied = tuple(rewritten(state, start, group, table, begin, step, is_new) for group, table in groups)
    news = tuple(sum(takes) + count for takes, count in zip(wants, states, strict=True))
    by_group = tuple(
        new + (entry is not None) + sum(block in state.queue for block in table)
        for new, entry, table in zip(news, copied, tables, strict=True)
    )
    whole = whole_demand(state, start, begin, step) if is_new and step.whole else 0
    if max(num_kept(config, start, begin) + sum(news), whole) > config.num_blocks - 1:
        return Refusal(Reason.POOL_TOO_SMALL)
    free = len(state.queue) + sum(comes_free(state, block) for table in let_go(start.tables, gone) for block in table)
    missing = max(sum(by_group), whole - shared(state, tables, copied)) + spare(state, step, is_new) - free
    if missing > 0:
        return Refusal(Reason.NO_FREE_BLOCKS, missing, num_waiting(state), by_group)
    plan = Fits(by_group, tables, gone, wants, states, copied)
    for chapter in config.chapters:
        plan = chapter.plan(state, slot, start, begin, step, plan, missing)
    return plan


def num_waiting(state: State) -> int:
    """Count the blocks that only batches hold: no request has them, but chapters keep them a while.

    An engine that misses no more blocks than these preempts nobody: it waits (LIVE-2).
    """
    kept = [block for batch in state.batches for table in batch.tables for block in table if block != NULL]
    return sum(comes_free(state, block, kept.count(block)) for block in set(kept))


def num_kept(config: Config, start: Running, begin: int) -> int:
    """Count the pool's blocks that a request keeps in a step from token `begin` on, once nothing else is in flight."""
    own = (*trim_tables(config, start.tables, begin), *start.states)
    return sum(NULL < block < config.num_blocks for table in own for block in table)


def spare(state: State, step: Step, is_new: bool) -> int:
    """Return the blocks that must stay free: the watermark and the reserve, where a request joins others (PLAN-2)."""
    is_idle = len(state.queue) == state.config.num_blocks - 1
    return state.config.watermark + step.reserve if is_new and not is_idle else 0


def whole_demand(state: State, start: Running, begin: int, step: Step) -> int:
    """Count the most blocks that a request holds until all its tokens are computed, in steps as large as this (PLAN-2).

    The first step begins behind its hit and load, and each takes as many slots ahead; after a load, which says
    nothing of them, steps are of one token. The blocks of all groups are counted in the same step, so that the answer
    is exact: alone, in these steps, the request gets through if and only if the pool has as many.
    """
    config, known = state.config, len(start.prefix[1])
    tokens, size = max(known, begin + step.coming() + step.new), max(step.new, 1)
    return max(
        sum(held_in_step(config, group, known, at, stop, slots, step.beside()) for group in config.groups)
        for at in range(start.trimmed, tokens, size)
        for stop in (min(at + size, tokens),)
        for slots in (min(stop + step.ahead(), config.max_model_len),)
    )


def shared(state: State, tables: tuple[Table, ...], copied: tuple[int | None, ...]) -> int:
    """Count the blocks of a hit that others hold, in groups that keep all: the request never takes blocks for them."""
    return sum(
        block not in state.queue
        for group, table, own in zip(state.config.groups, tables, copied, strict=True)
        if isinstance(group.kind, Full)
        for block in table[:own]
    )


def plan_admission(state: State, slot: int, hit: Hit, step: Step) -> Plan:
    """Return whether a waiting request can start, and the blocks it takes: ``plan`` (PLAN-1, PLAN-2)."""
    start = start_of(state, slot, hit, step)
    if isinstance(start, Refusal):
        return start
    own, step = adopted(state.config, hit, step)
    return planned(state, slot, start, own.length, step)


def plan_growth(state: State, slot: int, computed: int, step: Step) -> Plan:
    """Return whether a running request can go on, and the blocks it takes: ``plan`` (PLAN-1)."""
    told = caught_up(state, slot, computed)
    start = request_from(told, slot, computed, step)
    return start if isinstance(start, Refusal) else planned(told, slot, start, computed, step)
