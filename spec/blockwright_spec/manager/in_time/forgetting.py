"""Part one, chapter 38: what is forgotten on demand: of a request, a tenant or an adapter, or everything.

A tenant's data must go, an adapter is revoked, a prompt was poisoned: no later lookup may find what was cached. Blocks
that are held stay with their requests, which go on reading them. Such a request is *private*: it publishes nothing
more, since all that it computes from now on comes of what is forgotten. Part three says the like of tiers (FORGET-3,
FORGET-4).

When a model gets new weights while requests run, everything that was cached is forgotten, and every request that runs
is private, whether anything of it was published or not: it may be loading, its blocks may wait for publication, and a
fork of it is private as well (FORGET-5, FORGET-6). A hit that was found before is stale (HIT-1).
"""

from collections.abc import Callable, Hashable
from dataclasses import replace

from ...reads import Prefix, cut
from ..facts import owned, running
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..prompts import forget_prompts
from ..publication import is_private, put_request
from ..seam import forget_keys
from ..state import Absent, Running, State
from ..tails import make_private


@transition
def forget(state: State, slot: int) -> Outcome:
    """Let no later lookup find any block of a request's known tokens: ``forget(request)``."""
    # REFUSE
    request = state.requests[slot]
    if isinstance(request, Absent):
        return Refusal(Reason.NOT_RUNNING)
    # EFFECT
    known = len(request.prefix[1])
    prefixes = frozenset(cut(request.prefix, end) for end in range(1, known + 1))
    return forget_contents(state, lambda prefix: prefix in prefixes, frozenset((slot,)))
    # SAME: tables, other contents.


@transition
def forget_extra(state: State, extras: frozenset[Hashable]) -> Outcome:
    """Let no lookup find a block with some extra keys, of a salt or an adapter: ``forget(cache_salt=...)``."""
    # EFFECT
    runs = ((slot, each) for slot, each in enumerate(state.requests) if isinstance(each, Running))
    meant = frozenset(slot for slot, each in runs if each.prefix[0] in extras)
    return forget_contents(state, lambda prefix: prefix[0] in extras, meant)
    # SAME: tables, other contents.


@transition
def forget_all(state: State) -> Done:
    """Let no later lookup find anything that is cached by now, while requests run: ``forget()``."""
    # EFFECT
    return replace(forget_contents(state, lambda _: True, frozenset(range(len(state.requests)))), forgot_all=True)
    # SAME: tables.


def forget_contents(state: State, is_meant: Callable[[Prefix], bool], slots: frozenset[int]) -> Done:
    """Take the keys of some contents away: of held blocks, which stay held, and of free ones, which hold nothing now.

    A request that holds one of them, or is meant itself, publishes nothing more: its blocks are its own. Nothing
    is remembered of when a block without a key goes, nor of the last prompts.
    """
    gone = tuple(each for each in state.keys if is_meant(each[1][1]))
    blocks = frozenset(block for block, _ in gone)
    free = tuple(sorted(blocks & frozenset(state.queue)))
    contents = tuple(None if block in free else content for block, content in enumerate(state.contents))
    after = replace(
        forget_prompts(forget_keys(state, gone)),
        contents=contents,
        queue=(*free, *(block for block in state.queue if block not in blocks)),
    )
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running) and (slot in slots or any(blocks & {*table} for table in request.tables)):
            after = put_request(after, slot, make_private(state.config, request))
    return Done(after, forgot=frozenset(content for _, content in gone))


def law_forgotten_is_not_found(before: State, done: Done) -> bool:
    """FORGET-1: no lookup finds what was forgotten, and no request that holds some of it publishes anything more."""
    held_keys = {block for block, content in before.keys if content in done.forgot}
    return not any(content in done.forgot for _, content in done.state.keys) and all(
        is_private(done.state.config, request)
        for request in running(done.state)
        if held_keys & {block for table in request.tables for block in table}
    )


def law_everything_is_forgotten(before: State, done: Done) -> bool:
    """FORGET-5: once everything is forgotten nothing is found, and no request that runs publishes anything more."""
    return not done.forgot_all or (
        not done.state.keys and all(is_private(done.state.config, request) for request in running(done.state))
    )


def law_private_publishes_nothing(before: State, done: Done) -> bool:
    """FORGET-6: a private request stays so until it ends, and so do its forks: only others publish what they hold."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    private = tuple((old, new) for old, new in pairs if isinstance(old, Running) and is_private(before.config, old))
    if not private:
        return True
    others = tuple(each for each in running(before) if not is_private(before.config, each))
    own = {block for old, _ in private for table in owned(old) for block in table}
    shared = {block for each in others for table in owned(each) for block in table}
    return all(is_private(before.config, new) for _, new in private if isinstance(new, Running)) and not any(
        block in own - shared for block, _ in frozenset(done.state.keys) - frozenset(before.keys)
    )


def law_nothing_else_is_lost(before: State, done: Done) -> bool:
    """FORGET-2: to forget loses nothing else: other contents are found as before, and tables keep their blocks."""
    others = tuple(each for each in before.keys if each[1] not in done.forgot)
    tables = tuple(request.tables for request in running(before))
    return not done.forgot or (
        done.state.keys == others
        and tuple(request.tables for request in running(done.state)) == tables
        and sorted(done.state.queue) == sorted(before.queue)
        and all(done.state.contents[block] == before.contents[block] for table in sum(tables, ()) for block in table)
    )
