"""Part one, chapter 46: an order that goes by age or by use, whichever would have hit more of late.

What goes first is a choice like any other (chapter `orders`); this chapter says which rule is in force, and how each
rule ranks, as a function of what was released and who was admitted. It knows contents by their digests alone.

Two shadows are caches of digests, one under each rule: of every `2**shift`-th digest, in as large a part of the pool. A
prompt that is admitted for the first time asks both how many of its sampled blocks they have, up to the first that is
missing; that is added to 399/400 of what was found before. The rule that found more is in force, and a tie changes
nothing. Whoever is preempted is asked of and counted once.

Beside recurrent layers nothing is left out (`shift` is 0), and one entry is for the states of all these layers, so that
it takes a block of each. A hit ends with a state: a shadow has as many blocks of a prompt as it has of full attention,
up to the last at whose end it has the states too.
"""

from dataclasses import dataclass, replace

from .chapters import Chapter

POINT = 16
"""Scores are in parts of a block, 2**-16 each."""
MOST_USES = 63
STATE = 0x5A5A5A5A5A5A5A5A
"""Mixed into digests of states, so that their uses are counted apart from the block of full attention."""
FAR = 1 << 20
"""The depth of states that a request has moved past: of their rank they go first."""


@dataclass(frozen=True, slots=True)
class Adaptive(Chapter):
    """What goes follows the rule in force: a choice that is observed, since a state knows contents without digests."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A content that was released: its digest, how deep in its prefix it stands, how often it was used, and its rank.

    The rank is the uses and what the last one evicted was ranked; `takes` is how many blocks it takes.
    """

    digest: int
    depth: int
    uses: int
    rank: int
    takes: int = 1


@dataclass(frozen=True, slots=True)
class Shadow:
    """A cache of `size` blocks under one rule: its contents, oldest first, and its hits of late.

    `past` remembers the uses of what went, in as many slots as it has entries: the slot is in the digest, and so is the
    tag by which it knows whose the uses are; who comes later takes the slot.
    """

    size: int
    by_use: bool
    entries: tuple[Entry, ...] = ()
    floor: int = 0
    past: tuple[tuple[int, int], ...] = ()
    found: int = 0
    last: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which rule is in force, since how many first admissions, of how many; and the shadows by age and by use.

    `plain` and `states` are how many layer groups there are of full attention, and how many recurrent ones.
    """

    shift: int
    by_age: Shadow
    by_use: Shadow
    is_by_use: bool = False
    admitted: int = 0
    since: int = 0
    plain: int = 1
    states: int = 0


def first(shadow: Shadow) -> Entry:
    """Return the entry that goes first."""
    return min(shadow.entries, key=lambda entry: (entry.rank, -distance(entry))) if shadow.by_use else shadow.entries[0]


def distance(entry: Entry) -> int:
    """Return how far from the beginning of its prefix an entry is, in half powers of two: the farther goes first."""
    shift = max(0, (entry.depth + 1).bit_length() - 2)
    return min(2 * shift + (entry.depth + 1 >> shift) - 1, 31)


def tag(digest: int) -> int:
    """Return the part of a digest that `past` knows it by."""
    return (digest >> 32) & 0x7FFFFFC0


def uses_before(shadow: Shadow, digest: int) -> int:
    """Return how often a content was used, as far as that is still known."""
    held = [entry.uses for entry in shadow.entries if entry.digest == digest]
    known, uses = shadow.past[(digest >> 8) % len(shadow.past)]
    return held[0] if held else uses if known == tag(digest) else 0


def without_first(shadow: Shadow) -> Shadow:
    """Evict what goes first, and remember its uses."""
    gone = first(shadow)
    at = (gone.digest >> 8) % len(shadow.past)
    past = (*shadow.past[:at], (tag(gone.digest), gone.uses), *shadow.past[at + 1 :])
    entries = tuple(entry for entry in shadow.entries if entry != gone)
    return replace(shadow, entries=entries, past=past, floor=max(shadow.floor, gone.rank))


def with_room(shadow: Shadow, takes: int) -> Shadow:
    """Evict until there is room for something that takes so many blocks, or nothing is left."""
    is_full = sum(entry.takes for entry in shadow.entries) + takes > shadow.size
    return with_room(without_first(shadow), takes) if is_full and shadow.entries else shadow


def released(shadow: Shadow, digest: int, depth: int, is_use: bool, takes: int = 1) -> Shadow:
    """Note the release of a content, which is a use of it and of all before it: a table is released from its end."""
    known = [entry.depth for entry in shadow.entries if entry.digest == digest]
    depth = known[0] if known and not is_use else depth
    room = shadow if known else with_room(shadow, takes)
    if takes > room.size:
        return room
    own = min(uses_before(room, digest) + is_use, MOST_USES)
    uses = max(own, room.last[1]) if depth + 1 == room.last[0] else own
    entry = Entry(digest, depth, uses, room.floor + uses, takes)
    others = tuple(each for each in room.entries if each.digest != digest)
    return replace(room, entries=(*others, entry), last=(depth, uses))


def told(rule: Rule, digest: int, depth: int, is_use: bool = True, is_state: bool = False) -> Rule:
    """Tell both shadows of a block that a holder releases, if its digest is sampled; of states, in one group alone.

    Each release of states counts as a use: a request moves past those that it has hit.
    """
    if digest % (1 << rule.shift):
        return rule
    content, takes = (digest ^ STATE, rule.states) if is_state else (digest, rule.plain)
    depth = FAR if is_state and not is_use else depth
    by_age, by_use = (released(each, content, depth, is_use or is_state, takes) for each in (rule.by_age, rule.by_use))
    return replace(rule, by_age=by_age, by_use=by_use)


def hit(rule: Rule, shadow: Shadow, sampled: tuple[int, ...]) -> int:
    """Return how many sampled blocks of a prompt a shadow has, up to the first that is missing."""
    held = frozenset(entry.digest for entry in shadow.entries)
    missing = (at for at, digest in enumerate(sampled) if rule.plain and digest not in held)
    shown = next(missing, len(sampled))
    ends = [0, *(end for end in range(1, shown + 1) if sampled[end - 1] ^ STATE in held)]
    return ends[-1] if rule.states else shown


def asked(rule: Rule, shadow: Shadow, sampled: tuple[int, ...]) -> Shadow:
    """Count the hit on a prompt, beside what was found before."""
    more = hit(rule, shadow, sampled) << rule.shift + POINT
    return replace(shadow, found=shadow.found - shadow.found // 400 + more)


def admitted(rule: Rule, digests: tuple[int, ...]) -> Rule:
    """Ask the shadows for the blocks of a prompt that is admitted for the first time, and let the better rule be."""
    sampled = tuple(digest for digest in digests if digest % (1 << rule.shift) == 0)
    by_age, by_use = (asked(rule, each, sampled) for each in (rule.by_age, rule.by_use))
    count, ahead = rule.admitted + 1, by_use.found - by_age.found
    is_by_use = ahead > 0 or (ahead == 0 and rule.is_by_use)
    since = rule.since if is_by_use == rule.is_by_use else count
    return replace(rule, by_age=by_age, by_use=by_use, is_by_use=is_by_use, admitted=count, since=since)


def in_order(shadow: Shadow) -> tuple[int, ...]:
    """Return the digests of a cache in the order in which they go."""
    return () if not shadow.entries else (first(shadow).digest, *in_order(without_first(shadow)))


def new_rule(blocks: int, shift: int, plain: int = 1, states: int = 0) -> Rule:
    """Return the rule of a pool of so many blocks: the least recently used goes, and nothing was found yet."""
    size = max(1, blocks >> shift)
    past = ((0, 0),) * max(8, 1 << (2 * size + 1).bit_length())
    by_age, by_use = (Shadow(size, by_use, past=past) for by_use in (False, True))
    return Rule(shift, by_age, by_use, plain=plain, states=states)
