"""Part one, chapter 9: units: hits that end inside a block.

Where blocks are large, whole blocks make short hits: a prompt that is shorter than a block hits nothing, and each turn
computes up to a block again. With a *unit*, a number of tokens that divides every block, a hit may end at each one.

A block is published when it is full, as without units, and beside that only the parts of it that end at a *tail*, so
that the index stays small: at the prompt, at the prompt less one token, which the same prompt would hit, and at the
tokens that a request has computed when it lets go of its blocks. One block may be published as several lengths. Each
names a part that is written already, so the block goes on while they are found, and all of them go with it (KEY-1).
Prompts also part where no request could foresee it, as behind a system prompt that is no whole number of blocks. So
tails also stand 1, 2, 4, 8, ... units behind the start of each block, and behind the hit: the next prompt hits at least
half of what it shares of that block, the one after it half of the rest, with a few keys for each block (UNIT-6).

A request that hits a tail writes behind it, in the same block. It takes the block itself only if nothing holds it and
no more than this part is published, as when a next turn goes on. Otherwise it gets the part as a copy, as a fork does
(COPY-1). As copies run before the step, a tail is published once the step that writes it has run (UNIT-1). A copy takes
one block more until it has run. If no block is free for that and nobody holds the block, the request takes it all the
same, and what is published beyond the hit goes: so a hit inside a block takes no block that the request would not need
without it (LIVE-1). A load writes whole blocks, and may write before a copy has run. So it starts at the block, and of
the hit the request adopts the whole blocks (LOAD-2).

A recurrent layer has only the state where a step stopped. It publishes the ends of a prompt and its junction, if the
engine ends a step there. Layers that read everything beside it publish the other tails too: no hit ends there, but they
show a later prompt where it parts. That is its junction, where it leaves a state for those that follow. A newcomer gets
the state as a copy if others hold its block. Before the next step of its owner writes over it, it is copied to a block
of its own, and its key goes with it (UNIT-7). If no block is free for that, it is given up. Whoever hits it before that
copy has run gets it from where the copy gets it, so that the order of copies does not matter. A step that reads a state
holds it beside the one that it writes; where a pool has no room for that, nothing is hit (`has_room`), with units or
without. Where a step has run ahead of the known tokens, its states are not found inside blocks, nor are those that a
later step has begun from. Draft heads (EAGLE) know whole blocks only: no configuration with a unit has them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import lcm

from ..reads import Ahead, Cross, Full, Group, Mamba, cut, entries, filled, hit_ends, hit_entries
from .facts import draft_states, entries_of_states, recurrent, span
from .keys import end_of, num_ahead
from .page import Act
from .seam import publish_keys
from .state import Config, Content, Copy, Running, State, Table


def aligned(config: Config) -> int:
    """Return the tokens that the length of every hit is a multiple of: a unit, or the blocks of every group."""
    return config.unit or lcm(*(group.block_size for group in config.groups))


def hit_lengths(config: Config, known: int) -> Sequence[int]:
    """Return the lengths that a hit of a prompt of `known` tokens may have, ascending."""
    return range(0, known, aligned(config))


def is_inside(config: Config, length: int) -> bool:
    """Return whether a length ends inside a block of some group."""
    return any(length % group.block_size for group in config.groups)


@cache
def has_room(config: Config, known: int, length: int) -> bool:
    """Return whether a request alone fits the pool with a hit of a length in each step in which it fits without.

    Only beside recurrent layers may it not, which can compute or look ahead by as many drafts as they have states for.
    Of all steps that end after as many tokens it is asked of the one with most slots: that holds most. A shorter hit
    has no room either: it leaves as many states to read, and as much to fill.
    """
    most = draft_states(config) or 0
    stops = range(known, known + most + 1) if recurrent(config) and length else ()
    return all(
        slots <= length or held_alone(config, known, length, min(stop, slots), slots) < config.num_blocks
        for stop in stops
        for slots in (most_slots(config, known, stop, stop + most),)
    )


def most_slots(config: Config, known: int, stop: int, slots: int) -> int:
    """Return how many slots, of at most so many, a request alone can fill in one step from its start up to a token."""
    ends = range(min(slots, config.max_model_len), 0, -1)
    return next((end for end in ends if held_alone(config, known, 0, min(stop, end), end) < config.num_blocks), 0)


def held_alone(config: Config, known: int, at: int, stop: int, slots: int) -> int:
    """Count the blocks that a request of `known` tokens holds in a step over tokens at..stop-1, with so many slots."""
    return sum(held_in_step(config, group, known, at, stop, slots) for group in config.groups)


def held_in_step(config: Config, group: Group, known: int, at: int, stop: int, slots: int, encoder: int = 0) -> int:
    """Count the blocks of a group that a request holds in a step over tokens at..stop-1: those read and those filled.

    An encoder's blocks are held all the time, and so are those for the states of drafts.
    """
    if isinstance(group.kind, Cross):
        return entries(group.block_size, encoder)
    size = span(config, group)
    if isinstance(group.kind, Ahead):
        return len(hit_entries(group.kind, size, at) | {*entries_of_states(config, group, known, stop)})
    if isinstance(group.kind, Mamba):
        return len(hit_entries(group.kind, size, at) | filled(group.kind, size, at, stop)) + group.kind.drafts
    return len(hit_entries(group.kind, size, at) | filled(group.kind, size, at, slots))


def tail_lengths(config: Config, known: int, hit: int, junction: int) -> tuple[int, ...]:
    """Return the tails of a request of `known` tokens that it is to publish, ascending: none that it has hit."""
    inside = halves(config, known - num_ahead(config), hit) if shows_partings(config) else ()
    return tuple(sorted({*end_tails(config, known, hit, junction), *inside}))


def end_tails(config: Config, known: int, hit: int, junction: int) -> tuple[int, ...]:
    """Return those of the tails of a request where recurrent layers publish the state: its ends and its junction."""
    unit, most = config.unit, known - num_ahead(config)
    ends = (end // unit * unit for end in (most, min(most, known - 1))) if unit else ()
    return tuple(sorted(length for length in {*ends, junction} if length > hit and is_inside(config, length)))


def shows_partings(config: Config) -> bool:
    """Return whether tails tell later prompts where they part: hits end there, or layers that read everything do."""
    reads_all = any(isinstance(group.kind, Full) for group in config.groups)
    return config.unit > 0 and (reads_all or not recurrent(config))


def halves(config: Config, known: int, hit: int) -> tuple[int, ...]:
    """Return the lengths 1, 2, 4, ... units behind a hit, and behind the start of each block that follows it."""
    unit, size = config.unit, widest(config)
    starts = (hit, *range(hit // size * size + size, known, size))
    return tuple(
        start + unit * 2**power
        for start in starts
        for power in range((size // unit).bit_length())
        if start + unit * 2**power < min(start // size * size + size, known)
    )


def widest(config: Config) -> int:
    """Return the tokens per block of the group that has most."""
    return max(group.block_size for group in config.groups)


def num_adopted(config: Config, at: int, length: int) -> int:
    """Count the entries that a hit gives a group: of a block in which it ends only if some part of that is read."""
    return length // config.groups[at].block_size + ends_in(config, at, length)


def ends_in(config: Config, at: int, length: int) -> bool:
    """Return whether a tail ends inside a block of a group, and a hit of that length needs that part."""
    group = config.groups[at]
    return length % group.block_size > 0 and length in hit_ends(group, length, config.eagle)


def held(config: Config, at: int, lengths: Iterable[int], last: int) -> tuple[int, ...]:
    """Return those of some lengths that the blocks of a table hold for a hit.

    A recurrent layer holds no other state inside a block than the `last` one: copies have the others (UNIT-7).
    """
    group = config.groups[at]
    is_whole = not isinstance(group.kind, Mamba)
    return tuple(length for length in lengths if is_whole or length == last or length % group.block_size == 0)


def upto(content: Content | None, end: int) -> Content | None:
    """Return the part of a content up to a token."""
    return content and (content[0], cut(content[1], end))


def pass_keys_on(state: State, blocks: Table, copies: tuple[Copy, ...], start: Running) -> State:
    """Let the keys of states that a step writes over go to their copies, or be dropped if there are none (UNIT-7).

    Parts of attention within the hit of a newcomer stay as they are.
    """
    if not blocks:
        return state
    targets = {source: target for _, source, target in copies if source in blocks}
    gone = tuple(
        (block, content)
        for block, content in state.keys
        if block in blocks and not is_before(state, content, start.settled)
    )
    went = tuple((targets[block], content) for block, content in state.keys if block in targets)
    left = tuple(each for each in state.keys if each not in gone)
    forgets = tuple(Act("forget", block, content=content) for block, content in gone)
    state = publish_keys(replace(state, keys=left, steps=state.steps + forgets), went)
    for chapter in state.config.chapters:
        state = chapter.carry(state, start, went)
    return state


def is_before(state: State, content: Content, begin: int) -> bool:
    """Return whether a step from token `begin` on leaves a content as it is, though it writes to its block."""
    return not isinstance(state.config.groups[content[0]].kind, Mamba) and end_of(state.config, content) <= begin
