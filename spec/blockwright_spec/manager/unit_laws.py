"""Part one, chapter 42: what hits that end inside blocks need: laws of tails, of copies made of them, and of room."""

from ..reads import hit_ends
from .facts import certain, key, keys_of, recurrent, running, runs_ahead
from .hits import found
from .keys import aligned, end_of, ends_in, hit_lengths, keyed, named, stride
from .lru import LRU
from .marks import notes_of
from .outcomes import Done
from .pool_laws import asked
from .prompts import LastPrompts
from .publication import holds_state, is_private
from .room import has_room
from .state import NULL, Content, Request, Running, State
from .step_laws import begun, is_state, publishes, written_over
from .table_laws import has_run
from .tails import due_tails, is_tail_of, shows_partings, widest
from .told import copies, cut_off, outgrown, saving


def law_copied_has_run(before: State, done: Done) -> bool:
    """UNIT-1: what a step copies was written by a step that has run, in every group."""
    overlaps, kept = before.config.overlaps, {target: source for _, source, target in saving(done)}
    starts = {
        (at, block): begun(old, new, overlaps)
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(new, Running)
        for at, table in enumerate(new.tables)
        for block in table
    }
    return all(
        has_run(done.state, slot, request) >= starts[at, kept.get(target, target)]
        for at, source, target in copies(done)
        for slot, request in enumerate(done.state.requests)
        if isinstance(request, Running) and source in request.tables[at]
    )


def law_tail_is_found(before: State, done: Done) -> bool:
    """UNIT-2: once a tail is published no more, every block that its request holds is found under that length.

    Recurrent layers have it where the last step stopped, unless the state is given up (UNIT-7). Other layers beside
    them that do not read everything publish it only there, too.
    """
    return all(
        content in contents or (is_state(before, content) and not saves(before, done))
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(old, Running) and isinstance(new, Running) and not is_private(before.config, new)
        for contents in (tuple(one for _, one in done.state.keys),)
        for content in tail_contents(done.state, old, new)
    )


def tail_contents(state: State, old: Running, new: Running) -> tuple[Content, ...]:
    """Return the contents of the blocks that end with the tails which a request has published in this step."""
    return tuple(
        named(state.config, at, new.prefix, length)
        for at, group in enumerate(state.config.groups)
        for length in set(notes_of(old).tails) - set(notes_of(new).tails)
        if ends_in(state.config, at, length)
        if new.tables[at][length // group.block_size] != NULL
        if is_tail_of(state.config, old, at, length)
    )


def saves(before: State, done: Done) -> bool:
    """Return whether a step must copy the states that it writes over.

    A block is free for each, and to none of theirs a copy is still to come: then the engine has left a step out.
    """
    targets = {target for _, _, target in before.copies}
    over = outgrown(before, done)
    return len(done.state.queue) >= len(over) and not targets & set(over)


def law_state_is_saved(before: State, done: Done) -> bool:
    """UNIT-7: a state that was found inside a block is found after its block is written over, if blocks are free.

    So its block has no key any more, and a request that runs has it.
    """
    tables = tuple(table for request in running(before) for table in request.tables)
    found_now = {content for _, content in done.state.keys}
    return all(
        any(block in table for table in tables)
        and key(done.state, block) is None
        and (not saves(before, done) or all(content in found_now for content in keys_of(before, block)))
        for block in outgrown(before, done)
    )


def law_part_goes_on(before: State, done: Done) -> bool:
    """UNIT-8: a newcomer writes over what is found only where nobody held it, and where it writes to it."""
    return all(block in before.queue and written_over(before, done) for block in cut_off(before, done))


def law_tail_comes_in_time(state: State) -> bool:
    """UNIT-3: a tail that has run is published, or is due, or its request puts publication off.

    Tails of layers that run ahead wait until the engine says which states are left (MAMBA-5).
    """
    return all(
        not due_tails(request, min(request.settled, request.computed))
        or slot in state.due
        or request.is_delayed
        or runs_ahead(state.config)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running)
    )


def law_part_found_has_run(state: State) -> bool:
    """UNIT-5: no part of a block is found while the step that writes it has still to run."""
    sizes = tuple(group.block_size for group in state.config.groups)
    return not stride(state.config) or not any(
        end % sizes[at] and end > has_run(state, slot, request)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running)
        for at, table in enumerate(request.tables)
        for block in table
        if block != NULL
        for end in (end_of(state.config, content) for content in keys_of(state, block))
    )


def law_resend_hits(before: State, done: Done) -> bool:
    """UNIT-4: when a request lets go of its blocks, the same tokens hit each unit that it has computed (PUB-5).

    That is, unless a whole block is gone that such a hit needs, or the request did not publish it. Drafts that were
    accepted last are not certain yet, and nothing is if its last step had not run.
    """
    return done.kept is not None or all(
        found(done.state, old.prefix, LRU).length >= length
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(old, Running) and ended(before, done.state, old, new) and publishes(before.config, old)
        for length in longest_units(done.state, old)
        if has_blocks(done.state, old, length)
    )


def ended(before: State, after: State, old: Running, new: Request) -> bool:
    """Return whether a request has let go of its blocks, and no step in flight or load holds them."""
    if old.is_lost:
        return False
    return stride(before.config) > 0 and new is not old and not isinstance(new, Running) and not after.batches


def longest_units(state: State, request: Running) -> tuple[int, ...]:
    """Return the longest length that the tokens of a request could hit, among those that it computed for certain."""
    config, known, most = state.config, len(request.prefix[1]), max(certain(request), request.settled)
    least = min(request.computed, most, keyed(config, request.prefix))
    lengths = (length for length in hit_lengths(config, known) if length <= least)
    return tuple(length for length in lengths if has_room(config, known, length))[-1:]


def has_blocks(state: State, request: Running, length: int) -> bool:
    """Return whether all whole blocks that a hit needs can be found, and the last part's block was held."""
    contents, groups = frozenset(content for _, content in state.keys), tuple(enumerate(state.config.groups))
    is_left = not recurrent(state.config) or holds_state(state.config, request, length)
    return all(
        named(state.config, at, request.prefix, end) in contents
        for at, group in groups
        for end in hit_ends(group, length, state.config.eagle)
        if end % group.block_size == 0
    ) and all(
        any(request.tables[at][length // group.block_size :][:1])  # an accepted draft's state has no entry
        and (is_left or named(state.config, at, request.prefix, length) in contents)
        for at, group in groups
        if ends_in(state.config, at, length)
    )


def law_parts_are_near(before: State, done: Done) -> bool:
    """UNIT-6: wherever a prompt parts from an admitted one, a tail or block covers half of what they share of a block.

    Only tokens that the admitted request computes count. Beside recurrent layers, which leave no state there, layers
    that read everything publish these, so that the prompt finds its junction there; if there are any.
    """
    return not shows_partings(before.config) or all(
        any(2 * (end - start) >= length - start for end in ends if start < end <= length)
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(new, Running) and not isinstance(old, Running) and done.new
        for hit in (begun(old, new, before.config.overlaps),)
        for ends in ((*notes_of(new).tails, *range(0, len(new.prefix[1]) + 1, widest(before.config))),)
        for length in range(aligned(before.config) + hit, len(new.prefix[1]), aligned(before.config))
        if length < keyed(before.config, new.prefix)
        for start in (max(hit, (length - 1) // widest(before.config) * widest(before.config)),)
    )


def law_parting_is_seen(before: State, done: Done) -> bool:
    """UNIT-9: where the last prompts are remembered, whoever begins like one just admitted hits all that they share.

    Or it has its junction there, or farther on, if there is room for that. A fork, which has no new entries, is none.
    """
    config = before.config
    return not any(isinstance(each, LastPrompts) for each in config.chapters) or all(
        max(hit.length, hit.junction) >= length
        for old, new in zip(before.requests, done.state.requests, strict=True)
        if isinstance(new, Running) and not isinstance(old, Running) and done.new
        for prefix in asked(done.state)
        for hit in (found(done.state, prefix, LRU),)
        for length in hit_lengths(config, len(prefix[1]))
        if length <= min(keyed(config, new.prefix), keyed(config, prefix))
        if named(config, 0, new.prefix, length) == named(config, 0, prefix, length)
        if has_room(config, len(prefix[1]), length)
    )
