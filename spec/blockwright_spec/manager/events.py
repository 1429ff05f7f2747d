"""Part one, chapter 43: events: what is reported of what can be found.

A router sends a request to the engine that has cached most of its prefix. All it knows of an engine are events, so what
they say, one after the other, must be what a lookup finds: for whoever has heard them all, and for whoever joined late
and was given a *snapshot*, which is a list of events as well. Which events report a step is left open: what is taken
and published again within one step may be reported or not. The laws judge any listener in any state; `news` and
`snapshot` are the shortest reports that uphold them. What tiers off the device hold is reported under the names of
their media, and each medium is folded apart; part three says so of a tier (TIER-5).

With a unit (chapter `units`), parts of blocks are reported as well: the number of tokens tells a part from a block, and
both name the prefix before their block. A block that is filled is reported as a whole, and its parts stay known.

What a hit needs of each group of layers is reported too. So whoever was told of everything knows what the engine's own
lookup returns of any prompt, as long as he can place what he was told of: an event names the tokens of its own block,
and those before it are known by the events of earlier blocks, of whatever group. Where some group reads everything, all
of a hit can be placed. A window or a state that was published alone cannot. Nor does anyone outside know of the room in
the pool that a hit needs beside recurrent layers (`room.has_room`).

Where the device's memory outlives the process, what can be found may be *dumped*, and *restored* by the next one. That
is bookkeeping alone: no block is written, so whatever is restored must be what stood there.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import accumulate

from ..reads import Prefix, cut
from .chapters import Chapter
from .hits import holding
from .keys import hit_lengths, longest, num_ahead, upto
from .state import Content, State


@dataclass(frozen=True, slots=True)
class Events(Chapter):
    """The outside is told what can be found."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A content can be found from now on.

    What is reported of it: the prefix before the block (None for the first one), whether that is absent now, the
    tokens of the block or part alone, the extra keys, and the tokens behind that its key also covers (PUB-4).
    """

    content: Content
    parent: Prefix | None
    is_orphan: bool
    tokens: tuple[int, ...]
    extra: Hashable
    ahead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """A content cannot be found any more."""

    content: Content


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing can be found any more."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Listener:
    """One who was given a snapshot when he joined, and has heard every event since; the first one was given nothing."""

    snapshot: tuple[Stored, ...]
    events: tuple[Event, ...]


def index(state: State) -> frozenset[Content]:
    """Return what can be found."""
    return frozenset(content for _, content in state.keys)


def heard(known: frozenset[Content], event: Event) -> frozenset[Content]:
    """Return a listener's knowledge after an event."""
    match event:
        case Stored(content):
            return known | {content}
        case Removed(content):
            return known - {content}
        case Cleared():
            return frozenset()


def known(listener: Listener) -> tuple[frozenset[Content], ...]:
    """Return a listener's knowledge before each event, and in the end."""
    return tuple(accumulate((*listener.snapshot, *listener.events), heard, initial=frozenset()))


def parent(state: State, content: Content) -> Prefix | None:
    """Return what the block before is published as, or None where a content's block is the first."""
    start = len(block_end(state, content)[1]) - num_own(state, content)
    ahead = num_ahead(state.config)
    return cut(content[1], start + ahead) if start else None


def block_end(state: State, content: Content) -> Prefix:
    """Return the prefix up to the end of a content, without the tokens that its key looks ahead at."""
    return cut(content[1], len(content[1][1]) - num_ahead(state.config))


def num_own(state: State, content: Content) -> int:
    """Return how many tokens of its last block a content has: all of them, or those of a part."""
    return (len(block_end(state, content)[1]) - 1) % state.config.groups[content[0]].block_size + 1


def stored(state: State, content: Content) -> Stored:
    """Return the event that reports a content, when all else that can be found in a state is known."""
    at, (extra, tokens) = content[0], block_end(state, content)
    before = parent(state, content)
    own, ahead = tokens[-num_own(state, content) :], content[1][1][len(tokens) :]
    return Stored(content, before, before is not None and (at, before) not in index(state), own, extra, ahead)


def news(before: State, after: State) -> tuple[Event, ...]:
    """Return the fewest events that report a step: removals, then additions, parents before children."""
    gone, new = index(before) - index(after), index(after) - index(before)
    return (
        *(Removed(content) for content in dict.fromkeys(content for _, content in before.keys) if content in gone),
        *(stored(after, content) for content in sorted(new, key=lambda content: len(content[1][1]))),
    )


def snapshot(state: State) -> tuple[Stored, ...]:
    """Return the report to a listener that joins now: all that can be found, parents before children."""
    return tuple(stored(state, content) for content in sorted(index(state), key=lambda content: len(content[1][1])))


def law_events_are_the_index(state: State, listener: Listener) -> bool:
    """EV-1: whoever has heard all events knows exactly what can be found, and each event was news."""
    if listener.snapshot:
        return True
    return known(listener)[-1] == index(state) and all(
        isinstance(event, Cleared) or (event.content in before) == isinstance(event, Removed)
        for before, event in zip(known(listener), listener.events, strict=False)
    )


def law_latecomers_know_the_same(state: State, listener: Listener) -> bool:
    """EV-2: a snapshot and the events after it report exactly what can be found, whenever it was taken."""
    contents = frozenset(event.content for event in listener.snapshot)
    return known(listener)[-1] == index(state) and len(contents) == len(listener.snapshot)


def reports(listener: Listener) -> tuple[tuple[frozenset[Content], Stored], ...]:
    """Return each content that was reported to a listener, with its knowledge before."""
    pairs = zip(known(listener), (*listener.snapshot, *listener.events), strict=False)
    return tuple((before, event) for before, event in pairs if isinstance(event, Stored))


def law_parents_come_first(state: State, listener: Listener) -> bool:
    """EV-3: each event names the prefix before its block, which is known by then, or marked as absent."""
    return all(
        event.parent == parent(state, event.content)
        and event.is_orphan == (event.parent is not None and (event.content[0], event.parent) not in before)
        for before, event in reports(listener)
    )


def law_key_serves_alone(state: State, listener: Listener) -> bool:
    """EV-4: each key that was reported can be hit on its own: it is of one block, which holds exactly that.

    A block that is also published as a part holds that, and goes on.
    """
    return all(len(event.tokens) == num_own(state, event.content) for _, event in reports(listener)) and all(
        any(upto(state.contents[block], len(end[1])) == (content[0], end) for block in holding(state, content))
        for content in known(listener)[-1]
        for end in (block_end(state, content),)
    )


def law_events_tell_all_that_decides(state: State, listener: Listener) -> bool:
    """EV-5: an event names all that its key covers: the tokens of its block, those that it looks ahead at, extra keys.

    Extra keys are what tokens do not show: adapter, salt, multimodal items.
    """
    return all(
        said.content[1] == (said.extra, said.content[1][1][: -len(said.tokens + said.ahead)] + said.tokens + said.ahead)
        and len(said.ahead) == num_ahead(state.config)
        for _, said in reports(listener)
    )


@dataclass(frozen=True, slots=True)
class Routed:
    """The answer of a router that has heard every event: so many tokens of a prompt would be hit."""

    prompt: Prefix
    length: int


def placed(state: State) -> frozenset[Content]:
    """Return what can be found and placed: the blocks before it, of whatever group, can be found as well."""
    parents = {content: parent(state, content) for content in index(state)}
    known = frozenset[Prefix | None]([None])
    while more := {content[1] for content, before in parents.items() if before in known} - known:
        known = known | more
    return frozenset(content for content, before in parents.items() if before in known)


def matched(state: State, contents: frozenset[Content], prompt: Prefix) -> int:
    """Return the longest hit of a prompt if just these contents can be found."""
    config, lengths = state.config, hit_lengths(state.config, len(prompt[1]))
    return longest(config, enumerate(config.groups), contents, prompt, config.eagle, lengths)


def law_routers_find_what_the_engine_finds(state: State, routed: Routed) -> bool:
    """EV-7: a router finds what the engine's lookup finds, of all kinds of layers, as far as it can be placed."""
    # A hit that needs no block, where a chunk begins, it may miss: any engine serves it as well.
    most, of_none = (matched(state, each, routed.prompt) for each in (index(state), frozenset[Content]()))
    least = (most > of_none) * matched(state, placed(state), routed.prompt)
    return routed.length == most or least <= routed.length < most


Queue = tuple[tuple[int, Content | None], ...]
"""What nobody holds, first to be taken first: blocks, and the content that each is found under."""


def law_restart_finds_what_stood_there(before: Queue, may: bool, after: Queue) -> bool:
    """RESTART-1: what nobody held is found again in the same blocks, to be evicted in the same order, and nothing else.

    `before` is what nobody held when the dump was made, `after` what nobody holds once another process was given it.
    Who may not restore it finds nothing: it is not whole, no manager wrote it, or it is of another memory,
    configuration or seed.
    """
    found = tuple(pair for pair in before if may and pair[1] is not None)
    return tuple(pair for pair in after if pair[1] is not None) == found == after[len(after) - len(found) :]
