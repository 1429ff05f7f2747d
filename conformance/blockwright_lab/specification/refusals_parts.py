"""Wrong calls on block tables, tiers, chains and a worker's rows, as `refusals` makes them on a manager.

Among them are calls that must not be refused, and counts that a call must tell as the questions before it do.
"""

from collections.abc import Iterator
from dataclasses import replace

from blockwright_conformance.worker.actions import STRANGER, Serving
from blockwright_spec.block_tables import effects as paged_effects
from blockwright_spec.block_tables import transitions as paged_tables
from blockwright_spec.block_tables.counts import appending, null_to_come, swapping
from blockwright_spec.block_tables.outcomes import PagedDone, PagedReason, lowest
from blockwright_spec.block_tables.state import Device, Paged, PagedTable, blocks_of, free_on
from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import NULL
from blockwright_spec.offload import chain_calls, chain_effects
from blockwright_spec.offload.chain_outcomes import ChainDone, ChainReason
from blockwright_spec.offload.chain_state import Chain, Kind, Transfer, may_start, pins
from blockwright_spec.offload.tier_calls import (
    IllegalVictimsError,
    TierDone,
    TierRefusal,
    Victims,
    complete_store,
    prepare_store,
)
from blockwright_spec.offload.tier_state import Entry, Key, Phase, Tier, idle, num_free, ready
from blockwright_spec.reads import Mamba
from blockwright_spec.worker import rows
from blockwright_spec.worker.inputs import Work, inputs, stepped
from blockwright_spec.worker.rows import Row, RowRefusal

from .refusals import Wrong, all_refused


def tables_refuse(state: Paged) -> bool:
    """Return whether block tables refuse what is wrong there."""
    return all_refused(wrong_tables(state))


def wrong_tables(state: Paged) -> Iterator[Wrong]:
    """Return the wrong calls on block tables: on those that are there, and on those that are not."""
    there = [slot for slot, table in enumerate(state.tables) if table is not None]
    for slot, table in enumerate(state.tables):
        if table is None:
            yield True, lambda slot=slot: appending(state, ((slot, 1),), 0) == null_to_come(state)  # type: ignore[misc]
            yield PagedReason.NO_BLOCKS, lambda slot=slot: paged_tables.free(state, slot)  # type: ignore[misc]
            yield PagedReason.NO_BLOCKS, lambda slot=slot: paged_tables.swap(state, (slot,), Device.CPU, lowest)  # type: ignore[misc]
            yield from of_allocating(state, slot)
        else:
            yield PagedReason.HAS_BLOCKS, lambda slot=slot: paged_tables.fork(state, slot, there[-1])  # type: ignore[misc]
            yield from of_counts(state, slot, table)
            yield from of_copies(state, slot, table)


def of_allocating(state: Paged, slot: int) -> Iterator[Wrong]:
    """Ask whether a new table takes free blocks of no device but the one that it says it was counted on."""
    for device in Device:
        made = paged_tables.allocate(state, slot, (0, (0,)), device, lowest)
        if isinstance(made, PagedDone):
            taken = state.free - made.state.free
            yield True, lambda made=made, taken=taken: taken <= {*blocks_of(state.config, made.device)}  # type: ignore[misc]


def of_copies(state: Paged, slot: int, table: PagedTable) -> Iterator[Wrong]:
    """Ask whether a copy that a table is given of a shared block holds what its source holds."""
    for entry, block in enumerate(table.entries if free_on(state, table.device) else ()):
        own = paged_effects.own(state, slot, entry, lowest)
        target = paged_effects.table_in(own, slot).entries[entry]
        yield True, lambda own=own, target=target, block=block: own.contents[target] == state.contents[block]  # type: ignore[misc]


def of_counts(state: Paged, slot: int, table: PagedTable) -> Iterator[Wrong]:
    """Ask whether calls on a table tell the count that a scheduler is told before them."""
    other = Device.CPU if table.device is Device.GPU else Device.GPU
    counts = (
        (appending(state, ((slot, 0),), 1), paged_tables.ensure(state, slot, 1, lowest)),
        (appending(state, ((slot, 1),), 0), paged_tables.append(state, slot, (0,), 0, table.computed, lowest)),
        (swapping(state, ((slot, 0),), other, 0), paged_tables.swap(state, (slot,), other, lowest)),
    )
    for count, outcome in counts:
        if isinstance(outcome, PagedDone) or outcome.reason is PagedReason.NO_FREE_BLOCKS:
            yield True, lambda count=count, outcome=outcome: outcome.counted == count  # type: ignore[misc]


def tier_refuses(state: Tier) -> bool:
    """Return whether a tier rejects victims that may not go, or not so many."""
    new: tuple[Key, ...] = (b"new",)
    if not isinstance(complete_store(state, (), success=True), TierDone):
        return False
    if isinstance(prepare_store(state, new), TierRefusal):
        return True
    return all(rejects(state, new, illegal) for illegal in (one_more, strangers, one_again))


def one_more(candidates: tuple[Key, ...], count: int) -> tuple[Key, ...]:
    """Evict one more than has to go, which nobody knows."""
    return (*candidates[:count], b"nobody")


def strangers(_candidates: tuple[Key, ...], count: int) -> tuple[Key, ...]:
    """Evict as many as have to go, which nobody knows; one more if none has to."""
    return tuple(bytes([at]) for at in range(max(1, count)))


def one_again(candidates: tuple[Key, ...], count: int) -> tuple[Key, ...]:
    """Evict one more than has to go, all of which may; or one who may go twice, where there is no other."""
    return candidates[: count + 1] if count < len(candidates) else (*candidates, *candidates[-1:])


def rejects(state: Tier, new: tuple[Key, ...], victims: Victims) -> bool:
    """Return whether a tier rejects a choice of victims, if it is not the right one."""
    try:
        return prepare_store(state, new, victims) == prepare_store(state, new)
    except IllegalVictimsError:
        return True
    except Exception:
        return False


def chain_refuses(state: Chain) -> bool:
    return all_refused(wrong_transfers(state))


def wrong_transfers(state: Chain) -> Iterator[Wrong]:
    """Return the wrong calls on a chain: on transfers that are not under way, were not handed out, or were already."""
    for at in (-1, len(state.transfers)):
        yield ChainReason.NOT_UNDER_WAY, lambda at=at: chain_calls.finish(state, at, True)  # type: ignore[misc]
        yield ChainReason.TOO_LATE, lambda at=at: chain_calls.cancel(state, at)  # type: ignore[misc]
    for key in (each.key for tier in state.tiers for each in tier.entries):
        yield (
            True,
            lambda key=key: all(  # type: ignore[misc]
                tier.entries[-1].key == key
                for tier in chain_calls.chain_touch(state, (key,)).state.tiers
                if key in (each.key for each in tier.entries)
            ),
        )
    yield from of_devices(state)
    yield from of_tiers(state)
    yield from of_reserves(state)
    if state.config.span == 1 < len(state.device):
        storing, loading = Transfer(Kind.STORE, (b"one",), None, 0, (0,)), Transfer(Kind.LOAD, (b"two",), 0, None, (1,))
        yield True, lambda: may_start(replace(state, transfers=(storing, loading)), loading)
    if state.config.span > 1:
        half = replace(state, device=((b"half", 0), *(None,) * (len(state.device) - 1)))
        partial = Transfer(Kind.STORE, (b"half",), None, 0, tuple(range(state.config.span)))
        yield True, lambda: chain_effects.content_of(half, partial, 0) is None
        yield True, lambda: chain_effects.content_of(half, replace(partial, device=partial.device[::-1]), 0) is None
    for at, each in enumerate(state.transfers):
        if not each.started:
            yield ChainReason.NOT_UNDER_WAY, lambda at=at: chain_calls.finish(state, at, True)  # type: ignore[misc]
        if each.started or each.kind in (Kind.DEMOTE, Kind.PROMOTE):
            yield ChainReason.TOO_LATE, lambda at=at: chain_calls.cancel(state, at)  # type: ignore[misc]


def of_devices(state: Chain) -> Iterator[Wrong]:
    """Write each block of the device that no transfer uses: it holds what was written, and others what they did."""
    for block in range(len(state.device)):
        if not pins(state, block):
            wanted = tuple((b"new", 0) if at == block else each for at, each in enumerate(state.device))
            done = chain_calls.overwrite(state, block, (b"new", 0))
            yield True, lambda done=done, wanted=wanted: done.state.device == wanted  # type: ignore[misc]


def of_tiers(state: Chain) -> Iterator[Wrong]:
    """Make room where none is to be made: in the last tier, where all is written through, and for a block found bad."""
    number, large = len(state.tiers), max(map(num_free, state.tiers)) + 9
    last = replace(state.config, through=False, reserve=(0,) * (number - 1) + (large,))
    through = replace(state.config, through=True, reserve=(large,) * number)
    for config in (last, through):
        same = ChainDone(replace(state, config=config))
        yield True, lambda same=same: chain_effects.reserved(same) == same  # type: ignore[misc]
    for key in idle(state.tiers[0]):
        bad = Entry(key, 0, Phase.DOOMED, 1)
        below = replace(state.tiers[1], entries=(bad,))
        same = ChainDone(replace(state, config=replace(last, reserve=()), tiers=(state.tiers[0], below)))
        yield True, lambda same=same, key=key: chain_effects.lowered(same, 0, key) == same  # type: ignore[misc]


def of_reserves(state: Chain) -> Iterator[Wrong]:
    """Make room in tier 0: as many go as places are short, or all that may; a load from below makes as much room."""
    nearest, number = state.tiers[0], len(state.tiers) - 1
    going = sum(len(each.keys) for each in state.transfers if (each.kind, each.source) == (Kind.DEMOTE, 0))
    for reserve in range(1, len(nearest.contents) + 1):
        short = max(0, reserve - num_free(nearest) - going)
        kept = len(idle(nearest)) - min(len(idle(nearest)), short)
        given = replace(state, config=replace(state.config, through=False, reserve=(reserve, *(0,) * (number - 1))))
        made = chain_effects.reserved(ChainDone(given)).state
        yield True, lambda made=made, kept=kept: len(idle(made.tiers[0])) == kept  # type: ignore[misc]
        for key in sorted(frozenset().union(*map(ready, state.tiers[1:])) - {each.key for each in nearest.entries}):
            loaded = chain_calls.load(given, (key,), tuple(range(state.config.span)))
            if isinstance(loaded, ChainDone):
                after = ChainDone(loaded.state)
                yield True, lambda after=after: chain_effects.reserved(after) == after  # type: ignore[misc]


def desk_refuses(desk: Serving) -> bool:
    """Return whether a worker's rows refuse what is wrong there."""
    return all_refused(wrong_rows(desk))


def wrong_rows(desk: Serving) -> Iterator[Wrong]:
    held, beyond = desk.rows, len(desk.rows)
    served = (STRANGER, Done(desk.manager))
    yield RowRefusal.NO_ROW, lambda: rows.remove(held, STRANGER)
    yield RowRefusal.NO_ROW, lambda: rows.move(held, STRANGER, 0)
    yield RowRefusal.NO_ROW, lambda: rows.apply(held, (served,))
    yield RowRefusal.NO_ROW, lambda: rows.arrange(held, (STRANGER,), tuple(range(beyond)))
    yield RowRefusal.NO_ROW, lambda: inputs(desk.manager.config, held, (Work(STRANGER, 0, 1),), ())
    yield RowRefusal.REPEATED, lambda: rows.apply(held, (served, served))
    yield RowRefusal.NO_PLACE, lambda: rows.swap(held, 0, beyond)
    yield RowRefusal.NO_PLACE, lambda: rows.swap(held, -1, 0)
    for place, row in enumerate(held):
        if row is not None:
            yield from wrong_row(desk, place, row)
    yield RowRefusal.ILLEGAL_ORDER, lambda: rows.compact(held, ((beyond, 0),))
    if None in held:
        free = held.index(None)
        yield RowRefusal.ILLEGAL_ORDER, lambda: rows.compact(held, ((free, free),))
    if not any(held):
        yield None, lambda: rows.compact(held, ())
    if any(held) and None in held[: max(place for place, row in enumerate(held) if row)]:
        yield RowRefusal.ILLEGAL_ORDER, lambda: rows.compact(held, ())


def wrong_row(desk: Serving, place: int, row: Row) -> Iterator[Wrong]:
    """Return the wrong calls about a request that has a row."""
    config, held, slot = desk.manager.config, desk.rows, row.slot
    strange, same, work = replace(row, slot=STRANGER), tuple(range(len(held))), Work(slot, 0, 1)
    full = tuple(each or strange for each in held)
    other = next((at for at, each in enumerate(held) if each is not None and at != place), None)
    yield RowRefusal.TAKEN, lambda: rows.add(held, strange, -1) if None in held else RowRefusal.TAKEN
    yield None, lambda: rows.add(full, row, place)
    yield True, lambda: rows.add(held, replace(row, certain=None), place)[place] == row  # type: ignore[index]
    yield None, lambda: rows.move(held, slot, place)
    if None in held:
        free = held.index(None)
        yield None, lambda: rows.move(held, slot, free)
        yield True, lambda: sum(each.slot == slot for each in rows.add(held, row, free) if each) == 1  # type: ignore[union-attr]
    yield True, lambda: stepped(held, (Work(slot, 1, 0),)) == held
    yield None, lambda: inputs(config, held, (Work(slot, 0, 0),), ())
    yield None, lambda: inputs(config, held, (Work(slot, config.max_model_len + 9, 0),), ())
    yield RowRefusal.NO_PLACE, lambda: rows.move(held, slot, len(held))
    yield RowRefusal.NO_PLACE, lambda: rows.move(held, slot, -1)
    yield RowRefusal.TAKEN, lambda: rows.add(held, strange, place) if None in held else RowRefusal.TAKEN
    yield RowRefusal.TAKEN, lambda: rows.add(held, strange, len(held)) if None in held else RowRefusal.TAKEN
    yield RowRefusal.NO_PLACE, lambda: rows.add(full, replace(row, slot=STRANGER + 1), place)
    yield RowRefusal.REPEATED, lambda: rows.arrange(held, (slot, slot), same)
    yield RowRefusal.ILLEGAL_ORDER, lambda: rows.arrange(held, (slot,), (place,) * len(held))
    behind = (*(at for at in same if at != place), place)
    yield RowRefusal.ILLEGAL_ORDER if len(held) > 1 else None, lambda: rows.arrange(held, (slot,), behind)
    yield RowRefusal.ILLEGAL_ORDER, lambda: rows.compact(held, ((place, place),))
    yield RowRefusal.REPEATED, lambda: inputs(config, held, (work, work), ())
    for begin, new, drafts in ((-1, 1, 0), (0, -1, 0), (0, 1, -1), (0, 1, 1)):
        wrong = Work(slot, begin, new, drafts)
        yield RowRefusal.WRONG_COUNT, lambda wrong=wrong: inputs(config, held, (wrong,), ())  # type: ignore[misc]
    if any(not is_encoder for is_encoder in (type(group.kind).__name__ == "Cross" for group in config.groups)):
        far = Work(slot, config.max_model_len + 9, 1)
        yield RowRefusal.NO_BLOCK, lambda: inputs(config, held, (far,), ())
        yield RowRefusal.NO_BLOCK, lambda: inputs(config, held, (Work(slot, 0, config.max_model_len + 9),), ())
    if isinstance(config.groups[0].kind, Mamba) and config.groups[0].block_size == 1 and len(row.tables[0]) > 1:
        bare = replace(row, tables=((NULL, *row.tables[0][1:]), *row.tables[1:]))
        without = tuple(bare if each is row else each for each in held)
        yield RowRefusal.NO_BLOCK, lambda: inputs(config, without, (Work(slot, 1, 1),), ())
    if other is not None:
        yield RowRefusal.TAKEN, lambda: rows.move(held, slot, other)
