"""Part one, chapter 5: units: hits that end inside a block.

For a second reading. Where blocks are large, whole blocks make short hits: a prompt that is shorter than a block hits
nothing, and each turn computes up to a block again. With a *unit*, a number of tokens that divides every block, a hit
may end at each multiple of it.

The index would grow with the tokens if each unit were published. So a block is published when it is full, as without
units, and beside that only the parts of it that end at a *tail*: a length at which a prompt is likely to part from
this one (chapter `keeping`). These are the prompt, the prompt less one token, which the same prompt would hit, and the
tokens that a request has computed when it lets go of its blocks. One block may be published as several lengths. Each
names a part that is written already, so the block goes on while they are found, and all of them go with it (KEY-1).

Prompts also part where no request could foresee it, as behind a system prompt that is no whole number of blocks. So
tails also stand in each block of a prompt, 1, 2, 4, 8, ... units behind its start, and in the first block behind the
hit. Then the next prompt hits at least half of what it shares of that block, the one after it at least half of the
rest, and so on, with a few keys for each block (UNIT-6).

A request that hits a tail writes behind it, in the same block. So it takes the block itself only if nothing holds it
and it is published as no more than this part: a next turn goes on where its last one ended. Otherwise the request
gets that part as a copy, as a fork does: a new block takes the entry, and the engine runs the copy before its step
(COPY-1). As copies run before the step, a tail is published only once the step that writes it has run (UNIT-1), as a
recurrent state is (MAMBA-5). A hit inside a block comes with tokens to compute, so that it is settled at once which of
the two it is.

A copy takes one block more than the request goes on to hold, until the engine has run it. If no block is free for that
and nobody holds the block, the request takes the block itself all the same, and what is published of it beyond the hit
goes, as if it were evicted. So a hit inside a block takes no block that the request would not need without it (LIVE-1).

A load writes whole blocks, and may write before a copy has run. So tokens that are loaded after a hit inside a block
are loaded from the start of that block on, into a block of the request's own: of the hit it adopts the whole blocks,
and the part is left where it is (LOAD-2). A load may end inside a block, as a hit may.

A recurrent layer has only the state where a step stopped, not one for each part of a block. So it publishes none but
the ends of a prompt and its junction, and each only if the engine ends a step there. Beside it layers that read
everything publish the other tails too. No hit can end at one, but they show a later prompt where it parts: that is its
junction, where it leaves a state for those that follow (UNIT-6). Where no layer reads everything, no block can show
that: there the last prompts that were admitted are remembered, and the junction is where a prompt parts from the one
that it has most in common with (UNIT-9). A newcomer always gets the state as a copy if others
hold its block, because their next step writes over it. Before it does, the state is copied to a block of its own too,
and its key goes with it: the table of the request that goes on does not change (UNIT-7). If no block is free for that,
the state is given up, because no step is refused for it. Whoever hits the state before that copy has run gets it from
where the copy gets it, so that the order of copies still does not matter. A step that reads a state holds it beside the
one that it writes. So it may take a block more than without the hit, and where a pool has no room for that, nothing is
hit (`has_room`), with units or without. Where a step has run ahead of the known tokens, the states that it leaves are
not found inside blocks; nor are those that a later step has begun from, where blocks are published when they are
settled. Where states of drafts lie beside the table, the one that is found is where the step stopped before its drafts,
however many of them hold.

Wanted lengths (chapter `keeping`) are multiples of the unit. Events report parts too (chapter `events`). Draft heads
(EAGLE) know whole blocks only: no configuration with a unit has them.
Where keys look ahead, tails end where their keys are known, so that a draft head computes nothing of a hit again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import lcm

from ..hints import Tip
from ..reads import Ahead, Cross, Full, Group, Mamba, Prefix, cut, entries, filled, hit_ends, hit_entries
from .added import end_of, is_published, keyed, named
from .state import Config, Content, Copy, Running, State, Table, draft_states, entries_of_states, recurrent, span


def aligned(config: Config) -> int:
    """Return the tokens that the length of every hit is a multiple of: a unit, or the blocks of every group."""
    return config.added.unit or lcm(*(group.block_size for group in config.groups))


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
    inside = halves(config, known - config.added.key_lookahead, hit) if shows_partings(config) else ()
    return tuple(sorted({*end_tails(config, known, hit, junction), *inside}))


def end_tails(config: Config, known: int, hit: int, junction: int) -> tuple[int, ...]:
    """Return those of the tails of a request where recurrent layers publish the state: its ends and its junction."""
    unit, most = config.added.unit, known - config.added.key_lookahead
    ends = (end // unit * unit for end in (most, min(most, known - 1))) if unit else ()
    return tuple(sorted(length for length in {*ends, junction} if length > hit and is_inside(config, length)))


def shows_partings(config: Config) -> bool:
    """Return whether tails tell later prompts where they part: hits end there, or layers that read everything do."""
    reads_all = any(isinstance(group.kind, Full) for group in config.groups)
    return config.added.unit > 0 and (reads_all or not recurrent(config))


def halves(config: Config, known: int, hit: int) -> tuple[int, ...]:
    """Return the lengths 1, 2, 4, ... units behind a hit, and behind the start of each block that follows it."""
    unit, size = config.added.unit, widest(config)
    starts = (hit, *range(hit // size * size + size, known, size))
    return tuple(
        start + unit * 2**power
        for start in starts
        for power in range((size // unit).bit_length())
        if start + unit * 2**power < min(start // size * size + size, known)
    )


def remembered(state: State, prefix: Prefix) -> State:
    """Remember a prompt that is admitted, as far as it has keys, as the last one (UNIT-9).

    One that begins another says no more than that, so that only the longer is remembered.
    """
    added, step = state.config.added, aligned(state.config)
    _, told = named(added, 0, prefix, keyed(added, prefix) // step * step)
    known = any(cut(other, len(told[1])) == told for other in state.prompts)
    if not added.last_prompts or known or keyed(added, prefix) < step:
        return state
    others = tuple(other for other in state.prompts if cut(told, len(other[1])) != other)
    return replace(state, prompts=(*others, told)[-added.last_prompts :])


def is_remembered(state: State, prefix: Prefix, end: int) -> bool:
    """Return whether one of the last prompts begins with the same tokens up to an end, as keys tell."""
    added = state.config.added
    return is_published(added, {named(added, 0, other, end) for other in state.prompts}, 0, prefix, end)


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


def moved(state: State, blocks: Table, copies: tuple[Copy, ...], start: Running) -> State:
    """Let the keys of states that a step writes over go to their copies, or be dropped if there are none (UNIT-7).

    Parts of attention within the hit of a newcomer stay as they are. A copy of the state with which the prompt ends is
    a tip (chapter `keeping`).
    """
    targets = {source: target for _, source, target in copies if source in blocks}
    left = tuple(
        (block, content)
        for block, content in state.keys
        if block not in blocks or is_before(state, content, start.settled)
    )
    went = tuple((targets[block], content) for block, content in state.keys if block in targets)
    ends = frozenset(start.added.wants.lengths) - {*start.added.wants.proven}
    tips = {block for block, content in went if len(content[1][1]) in ends}
    marks = (replace(mark, tip=Tip.PROMPT) if block in tips else mark for block, mark in enumerate(state.marks))
    return replace(state, keys=left + went, marks=tuple(marks)) if blocks else state


def is_before(state: State, content: Content, begin: int) -> bool:
    """Return whether a step from token `begin` on leaves a content as it is, though it writes to its block."""
    return not isinstance(state.config.groups[content[0]].kind, Mamba) and end_of(state.config.added, content) <= begin
