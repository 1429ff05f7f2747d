"""To begin with, chapter 1: the block machine: everything that may ever happen to a block.

Read this page first: a pool of blocks, the tables that hold them, eight steps and four invariants. A *place* holds a
block: it is an entry of a table, and so a *user* of the block; or a *pin*, which only keeps it until some other work is
done, such as a copy that is still to be made. A block is

- null: the one in entries of tables that no token will read;
- free: no place holds it, and it has no content; - free and findable: no place holds it, but a lookup still finds its
  content; it is a candidate for eviction;
- held, by any number of places: its only user may write to it;
- held and findable: a lookup finds it as well, so that others may share it.

A lookup finds what a block's only user wrote, and nothing is written to the block until lookups find it no more.

The other chapters define which step comes when. Whatever they do to a block, in a manager, in block tables or in tiers
off the device, is a sequence of these steps, or none at all: the gate `refinement` follows every transition.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from .reads import Kind, dead, filled, hit_entries

NULL = 0
"""The null block."""

Place = tuple[Hashable, int]
"""A place: an entry of a table, by the table's name and a number; or a pin, whose name is no table's."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block: its reference count, its content, and its key in lookups; None means that there is none."""

    count: int = 0
    content: Hashable = None
    key: Hashable = None


@dataclass(frozen=True, slots=True)
class Table:
    """A request's table for one group of layers: its tokens are done up to `done`, and under way up to `stop`."""

    kind: Kind
    block_size: int
    done: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The blocks by number, which of them are free, the tables by name, and which block each place holds."""

    blocks: tuple[Block, ...]
    free: frozenset[int]
    tables: Mapping[Hashable, Table]
    held: Mapping[Place, int]


def pool(num_blocks: int, tables: Mapping[Hashable, Table]) -> Machine:
    """Return a new pool: every block but the null block is free, and no table has an entry."""
    return Machine((Block(),) * num_blocks, frozenset(range(1, num_blocks)), tables, {})


# --- the steps: each returns the machine after it, or None where it may not happen


def take(now: Machine, place: Place, block: int) -> Machine | None:
    """Take a free block into an empty place: its content is lost, and no lookup finds it any more."""
    if block in now.free and place not in now.held:
        return joined(put(now, block, Block()), place, block)
    return None


def hold(now: Machine, place: Place, block: int) -> Machine | None:
    """Hold a block, as it is, in an empty place: one that other places hold already, or that a lookup finds."""
    if (now.blocks[block].count > 0 or now.blocks[block].key is not None) and place not in now.held:
        return joined(now, place, block)
    return None


def write(now: Machine, block: int, content: Hashable) -> Machine | None:
    """Write to a block as its only user, while no lookup finds it."""
    if block != NULL and now.blocks[block].key is None and users(now, block) == 1:
        return put(now, block, replace(now.blocks[block], content=content))
    return None


def publish(now: Machine, block: int) -> Machine | None:
    """Let lookups find a block from now on by its content, if there is any."""
    if now.blocks[block].content is not None and now.blocks[block].key is None:
        return put(now, block, replace(now.blocks[block], key=now.blocks[block].content))
    return None


def drop(now: Machine, place: Place) -> Machine | None:
    """Release the block of a place: when the last place releases a block, it is free."""
    if place in now.held:
        return vacated(now, place)
    return None


def null(now: Machine, place: Place) -> Machine | None:
    """Make a dead entry null, and let go of its block if it has one."""
    name, entry = place
    if name in now.tables and unread(now.tables[name], entry):
        return joined(vacated(now, place) if place in now.held else now, place, NULL)
    return None


def forget(now: Machine, block: int) -> Machine | None:
    """Let no lookup find a block any more: if no place holds it either, its content is lost."""
    if now.blocks[block].key is not None:
        return put(now, block, replace(now.blocks[block], key=None))
    return None


def advance(now: Machine, name: Hashable, done: int, stop: int) -> Machine | None:
    """Let the tokens of a table go on, and never back; a table without entries may begin anew."""
    table, is_empty = now.tables[name], all(name != other for other, _ in now.held)
    if is_empty or (table.done <= done and table.stop <= stop):
        return replace(now, tables={**now.tables, name: replace(table, done=done, stop=stop)})
    return None


STEPS = (take, hold, write, publish, drop, null, forget, advance)

# --- the invariants, true after any steps


def law_count_is_of_places(now: Machine) -> bool:
    """BLOCK-1: the reference count of a block is the number of places that hold it."""
    return all(each.count == list(now.held.values()).count(block) for block, each in enumerate(now.blocks) if block)


def law_null_block_is_one(now: Machine) -> bool:
    """BLOCK-2: there is one null block, which only tables hold, and which is never free, counted, written or found."""
    holders = (name for (name, _), block in now.held.items() if block == NULL)
    return NULL not in now.free and now.blocks[NULL] == Block() and all(name in now.tables for name in holders)


def law_candidates_are_unheld(now: Machine) -> bool:
    """BLOCK-3: a block is free if and only if unheld; only its content finds it; a free one is found or empty."""
    return all(
        (block in now.free) == (each.count == 0) and (each.key == each.content or (each.count > 0 and each.key is None))
        for block, each in enumerate(now.blocks)
        if block != NULL
    )


def law_null_entry_is_dead(now: Machine) -> bool:
    """BLOCK-4: an entry of a table is null only if no token still reads it, and no step under way fills it."""
    nulls = (place for place, block in now.held.items() if block == NULL and place[0] in now.tables)
    return all(unread(now.tables[name], entry) for name, entry in nulls)


def users(now: Machine, block: int) -> int:
    """Count the entries of tables that hold a block."""
    return sum(held == block and name in now.tables for (name, _), held in now.held.items())


def unread(table: Table, entry: int) -> bool:
    """Return whether an entry is dead to all tokens to come: no token reads it, and no step under way fills it."""
    kind, size = table.kind, table.block_size
    kept = hit_entries(kind, size, table.done) | filled(kind, size, table.done, table.stop)
    return entry not in kept and dead(kind, size, table.stop, entry)


def put(now: Machine, block: int, record: Block) -> Machine:
    """Replace the record of a block; one that is neither held nor findable has no content."""
    new = record if record.count or record.key is not None else Block()
    return replace(now, blocks=(*now.blocks[:block], new, *now.blocks[block + 1 :]))


def recounted(now: Machine, block: int, change: int) -> Machine:
    """Count one holder more or less of a block: it is free when there is none. The null block is not counted."""
    if block == NULL:
        return now
    count = now.blocks[block].count + change
    free = now.free - {block} if count else now.free | {block}
    return replace(put(now, block, replace(now.blocks[block], count=count)), free=free)


def joined(now: Machine, place: Place, block: int) -> Machine:
    """Put a block in an empty place."""
    return replace(recounted(now, block, 1), held={**now.held, place: block})


def vacated(now: Machine, place: Place) -> Machine:
    """Empty a place."""
    held = {other: block for other, block in now.held.items() if other != place}
    return replace(recounted(now, now.held[place], -1), held=held)


def standing(now: Machine, block: int) -> str:
    """Return the status of a block, in the words of the opening."""
    if block == NULL:
        return "null"
    whose = "free" if block in now.free else "held"
    return whose if now.blocks[block].key is None else f"{whose} and findable"
