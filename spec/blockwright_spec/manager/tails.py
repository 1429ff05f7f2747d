"""Part one, chapter 23: tails: which parts of a request's blocks are published, beside those that are full."""

from collections.abc import Iterable
from dataclasses import replace

from ..reads import Full, Mamba
from .facts import certain, recurrent
from .keys import ends_in, keyed, named, num_ahead, stride
from .marks import notes_of
from .publication import holds_state, put_request
from .seam import publish_keys
from .state import NULL, Config, Running, State


def with_tails(request: Running, tails: tuple[int, ...], end_tails: tuple[int, ...]) -> Running:
    """Return a request with other tails."""
    return replace(request, notes=replace(notes_of(request), tails=tails, end_tails=end_tails))


def tail_lengths(config: Config, known: int, hit: int, junction: int) -> tuple[int, ...]:
    """Return the tails of a request of `known` tokens that it is to publish, ascending: none that it has hit."""
    inside = halves(config, known - num_ahead(config), hit) if shows_partings(config) else ()
    return tuple(sorted({*end_tails(config, known, hit, junction), *inside}))


def end_tails(config: Config, known: int, hit: int, junction: int) -> tuple[int, ...]:
    """Return those of the tails of a request where recurrent layers publish the state: its ends and its junction."""
    unit, most = stride(config), known - num_ahead(config)
    ends = (end // unit * unit for end in (most, min(most, known - 1))) if unit else ()
    return tuple(sorted(length for length in {*ends, junction} if length > hit and is_inside(config, length)))


def is_inside(config: Config, length: int) -> bool:
    """Return whether a length ends inside a block of some group."""
    return any(length % group.block_size for group in config.groups)


def shows_partings(config: Config) -> bool:
    """Return whether tails tell later prompts where they part: hits end there, or layers that read everything do."""
    reads_all = any(isinstance(group.kind, Full) for group in config.groups)
    return stride(config) > 0 and (reads_all or not recurrent(config))


def halves(config: Config, known: int, hit: int) -> tuple[int, ...]:
    """Return the lengths 1, 2, 4, ... units behind a hit, and behind the start of each block that follows it."""
    unit, size = stride(config), widest(config)
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


def held(config: Config, at: int, lengths: Iterable[int], last: int) -> tuple[int, ...]:
    """Return those of some lengths that the blocks of a table hold for a hit.

    A recurrent layer holds no other state inside a block than the `last` one: copies have the others (UNIT-7).
    """
    group = config.groups[at]
    is_whole = not isinstance(group.kind, Mamba)
    return tuple(length for length in lengths if is_whole or length == last or length % group.block_size == 0)


def publish_tails(state: State, slot: int, count: int) -> State:
    """Publish the parts of a request's blocks up to its tails within `count` tokens (UNIT-2).

    Recurrent layers have only the tail where the last step stopped, drafts aside. Entries without one are passed over.
    """
    request, config = state.requests[slot], state.config
    if not isinstance(request, Running) or request.is_lost or not due_tails(request, count):
        return state
    parts = (
        (request.tables[at][end // group.block_size], named(config, at, request.prefix, end))
        for end in due_tails(request, count)
        for at, group in enumerate(config.groups)
        if ends_in(config, at, end)
        if is_tail_of(config, request, at, end)
    )
    keys = tuple(part for part in dict.fromkeys(parts) if part[0] != NULL and part not in state.keys)
    notes = notes_of(request)
    left, ends = (tuple(end for end in each if end > count) for each in (notes.tails, notes.end_tails))
    return put_request(publish_keys(state, keys), slot, with_tails(request, left, ends))


def is_tail_of(config: Config, request: Running, at: int, end: int) -> bool:
    """Return whether a group publishes the part up to a tail.

    Beside recurrent layers, those that read everything do in any case; others only where they can be hit with a state.
    """
    is_hit = not recurrent(config) or (end in notes_of(request).end_tails and holds_state(config, request, end))
    return is_hit or isinstance(config.groups[at].kind, Full)


def due_tails(request: Running, count: int) -> tuple[int, ...]:
    """Return the tails within `count` tokens that are still to be published."""
    return tuple(end for end in notes_of(request).tails if end <= count)


def last_end(config: Config, request: Running, count: int) -> int:
    """Return the end of the part that a request publishes as it ends, of so many tokens; 0 if none, or without units.

    Beside recurrent layers only where its last step stopped at a unit: other states inside blocks are not there.
    """
    unit, most = stride(config), max(0, min(count, keyed(config, request.prefix)))
    left = certain(request) if recurrent(config) else most
    is_left = not recurrent(config) or (left % (unit or 1) == 0 and holds_state(config, request, left))
    return left if unit and left <= most and is_left else 0


def make_private(config: Config, request: Running) -> Running:
    """Let a request publish nothing more: no entry is left that publication has not passed, and no tail."""
    published = (config.max_model_len + 1,) * len(config.groups)
    return replace(with_tails(request, (), ()) if request.notes else request, published=published)
