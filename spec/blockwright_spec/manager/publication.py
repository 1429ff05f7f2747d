"""Part one, chapter 14: publication: which blocks become findable, as what, and when.

Blocks are published with the step that fills them, for engines that run steps in order: whoever hits them computes
later, or in the same step, in which every layer writes what all tokens need before any of them reads it. A recurrent
layer does not: one request would read a state while another writes it. So a state is *due* until its step has run
(MAMBA-5): until its request is given slots again or ends, or until a step is started. What became known too late for
the last step, tokens or keys, is published when the request lets go of its blocks (PUB-5).
"""

from collections.abc import Callable
from dataclasses import replace

from ..reads import Ahead, Group, Mamba, saved_end
from .facts import certain, keys_of, runs_ahead
from .hits import useful
from .keys import end_of, keyed, named
from .preconditions import awaited
from .seam import publish_keys
from .state import NULL, Config, Flight, Request, Running, State


def put_request(state: State, slot: int, request: Request) -> State:
    """Put a request in its slot."""
    return replace(state, requests=(*state.requests[:slot], request, *state.requests[slot + 1 :]))


def publishable(
    request: Running, group: Group, at: int, count: int, stop: int | None, most: int, inside: int
) -> tuple[int, ...]:
    """Return the entries of a group that end at or before `count` tokens and were not looked at yet (PUB-1).

    None that ends beyond `most` tokens, behind which tokens of its key are not known yet (PUB-4).

    Of a recurrent layer, that is the state after `count` tokens, if a block ends there and a step that has run stopped
    there; `stop` is None while the step has still to run (MAMBA-5). So is the one that it left `inside` (MAMBA-7). A
    layer that runs ahead also leaves the state at the last block end among the tokens that hold; of several block ends,
    only that one.
    """
    size, looked = group.block_size, request.published[at]
    last = tuple(range(looked, count // size)[-1:])
    if not isinstance(group.kind, Mamba):
        return tuple(range(looked, min(count, most) // size))
    end = saved_end(request.saved, group.block_size, count)
    is_left = (isinstance(group.kind, Ahead) and stop is not None and end > 0) or count == stop == count // size * size
    left = last if is_left and count // size * size <= most else ()
    is_inside = stop is not None and looked * size < inside <= min(count, most)
    return (inside // size - 1, *left) if is_inside else left


def publish_count(state: State, slot: int, count: int, stop: int | None) -> State:
    """Publish what `count` tokens filled in each group, after a step that ended at `stop`, group by group (PUB-1).

    Blocks that no hit can need are passed over: as candidates they would only outlive useful ones (PUB-2). Chapters may
    publish more if the step has run.
    """
    after = publish_blocks(state, slot, count, stop)
    return after if stop is None else publish_more(after, slot, count)


def publish_more(state: State, slot: int, count: int) -> State:
    """Publish of the first `count` tokens, which have run, what else chapters publish."""
    for chapter in state.config.chapters:
        state = chapter.publish(state, slot, count)
    return state


def publish_blocks(state: State, slot: int, count: int, stop: int | None, kind: type = object) -> State:
    """Publish whole blocks, or the states at their ends, in layers of some kind."""
    request, config = state.requests[slot], state.config
    if not isinstance(request, Running) or not config.caching:
        return state
    most, inside = keyed(config, request.prefix), request.inside
    full = tuple(
        publishable(request, group, at, count if isinstance(group.kind, kind) else 0, stop, most, inside)
        for at, group in enumerate(config.groups)
    )
    keys = tuple(
        (request.tables[at][entry], named(config, at, request.prefix, (entry + 1) * group.block_size))
        for at, group in enumerate(config.groups)
        for entry in full[at]
        if request.tables[at][entry] != NULL and not is_whole(state, request.tables[at][entry])
        if useful(config, at, entry)
    )
    looked = tuple(max((was, *(entry + 1 for entry in one))) for was, one in zip(request.published, full, strict=True))
    if looked == request.published:
        return state
    return put_request(publish_keys(state, keys), slot, replace(request, published=looked))


def is_whole(state: State, block: int) -> bool:
    """Return whether a block is published as a whole."""
    sizes = tuple(group.block_size for group in state.config.groups)
    return any(end_of(state.config, content) % sizes[content[0]] == 0 for content in keys_of(state, block))


def holds_state(config: Config, request: Running, end: int) -> bool:
    """Return whether the tables of recurrent layers hold the state after `end` tokens, where the last step stopped.

    Where a step ran ahead, it is known only later which entry has which state.
    """
    return end == certain(request) and not (runs_ahead(config) and request.uncertain)


def publish_due(state: State, slot: int, stop: int) -> State:
    """Publish what a step that ended at `stop` left to be published once it has run: states, and what chapters add.

    Whole blocks of other layers were published with the step, as far as its tokens were known then.
    """
    request = state.requests[slot]
    if not isinstance(request, Running):
        return state
    count = min(stop, len(request.prefix[1]))
    return publish_more(publish_blocks(state, slot, count, stop, Mamba), slot, count)


def is_private(config: Config, request: Running) -> bool:
    """Return whether a request publishes nothing, since something that it holds was forgotten."""
    return any(count > config.max_model_len for count in request.published)


def stops(config: Config, request: Running) -> bool:
    """Return whether the last step leaves what is publishable once it has run: a state, or what a chapter says (PUB-1).

    That is a state at a block's end, after known tokens, its own or one inside.
    """
    end, states = certain(request), tuple(group for group in config.groups if isinstance(group.kind, Mamba))
    if runs_ahead(config) and request.uncertain:
        return False  # which states they leave is not known before they are settled
    if any(chapter.leaves(config, request) for chapter in config.chapters):
        return True
    is_known = config.caching and end <= len(request.prefix[1])
    is_left = awaited(config, request) > 0 or any(end % group.block_size == 0 for group in states)
    return is_known and is_left


def without_slot(due: tuple[int, ...], slot: int) -> tuple[int, ...]:
    """Strike a slot off the list of those with a state to be published."""
    return tuple(other for other in due if other != slot)


def publish_due_states(state: State, slot: int) -> State:
    """Publish the state that a request's last step left, now that the step has run (MAMBA-5).

    Until then it must not be found: a request that hit it in the same step would read it while it is written. Other
    layers may be hit at once, since each writes what the step computes in it before it reads.
    """
    request = state.requests[slot]
    if slot not in state.due or not isinstance(request, Running):
        return state
    stop = certain(request)
    done = request.settled if state.config.overlaps else max(request.settled, stop)
    run = put_request(replace(state, due=without_slot(state.due, slot)), slot, replace(request, settled=done))
    return publish_due(run, slot, stop)


def publish_step(state: State, slot: int, publishes: bool, is_delayed: bool) -> State:
    """Publish what a step fills, if that does not wait; a state that it leaves is due."""
    request = state.requests[slot]
    if not isinstance(request, Running):
        return state
    delayed = put_off(state, slot, is_delayed)
    if not publishes:
        return delayed
    ready = replace(delayed, due=(*state.due, slot)) if stops(state.config, request) else delayed
    return publish_count(ready, slot, request.computed, None)


def put_off(state: State, slot: int, is_delayed: bool) -> State:
    """Note whether a request puts off the publication of what it has computed: then it ends without it."""
    request = state.requests[slot]
    if not isinstance(request, Running) or not state.config.caching:
        return state
    return put_request(state, slot, replace(request, is_delayed=is_delayed))


def changed_flights(state: State, slot: int, change: Callable[[Flight], Flight]) -> tuple[tuple[Flight, ...], ...]:
    """Return the steps in flight with a change of what they do for a request."""
    return tuple(tuple(change(each) if each.slot == slot else each for each in step) for step in state.flights)
