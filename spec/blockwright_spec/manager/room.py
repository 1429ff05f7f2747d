"""Part one, chapter 9: room: what a request holds in a step, and whether it can read a hit beside what it writes.

A step that reads a recurrent state holds it beside the one that it writes. Where a pool has no room for both, nothing
is hit: so a hit takes no block that the request would not need without it (LIVE-1, LIVE-3).
"""

from functools import cache

from ..reads import Ahead, Cross, Group, Mamba, entries, filled, hit_entries, num_states
from .facts import entries_of_states, goes_back, recurrent, span
from .state import Config


@cache
def has_room(config: Config, known: int, length: int) -> bool:
    """Return whether a request alone fits the pool with a hit of a length in each step in which it fits without.

    Only beside recurrent layers may it not, which can compute or look ahead by as many drafts as they have states for.
    Of all steps that end after as many tokens it is asked of the one with most slots: that holds most. A shorter hit
    has no room either: it leaves as many states to read, and as much to fill.
    """
    most = goes_back(config) or 0
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


def held_in_step(config: Config, group: Group, known: int, at: int, stop: int, slots: int, beside: int = 0) -> int:
    """Count the blocks of a group that a request holds in a step over tokens at..stop-1: those read and those filled.

    Those for slots `beside` its tokens are held all the time, and so are those for the states of drafts.
    """
    if isinstance(group.kind, Cross):
        return entries(group.block_size, beside)
    size = span(config, group)
    if isinstance(group.kind, Ahead):
        return len(hit_entries(group.kind, size, at) | {*entries_of_states(config, group, known, stop)})
    if isinstance(group.kind, Mamba):
        return len(hit_entries(group.kind, size, at) | filled(group.kind, size, at, stop)) + num_states(group.kind)
    return len(hit_entries(group.kind, size, at) | filled(group.kind, size, at, slots))
