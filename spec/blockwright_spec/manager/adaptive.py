"""Part one, chapter 46: an order that goes by age or by use, whichever would have hit more of late.

What goes first is a choice like any other (chapter `orders`); this chapter says which rule is in force, and how each
rule ranks, as a function of what was released and who was admitted. It knows contents by their digests alone.

Two shadows are caches of digests, one under each rule: of every `2**shift`-th digest, in as large a part of the pool. A
prompt that is admitted for the first time asks both how many of its sampled blocks they have, up to the first that is
missing; that is added to 399/400 of what was found before. The rule that found more is in force, and a tie changes
nothing. Whoever is preempted is asked of and counted once.
"""

from dataclasses import dataclass, replace

from .chapters import Chapter

POINT = 16
"""Scores are in parts of a block, 2**-16 each."""
MOST_USES = 63


@dataclass(frozen=True, slots=True)
class Adaptive(Chapter):
    """What goes follows the rule in force: a choice that is observed, since a state knows contents without digests."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A content that was released: its digest, how deep in its prefix it stands, how often it was used, and its rank.

    The rank is the uses and what the last one evicted was ranked.
    """

    digest: int
    depth: int
    uses: int
    rank: int


@dataclass(frozen=True, slots=True)
class Shadow:
    """A cache of so many digests under one rule: what it holds, oldest first, and how much it has found of late.

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
    """Which rule is in force, since how many first admissions, of how many; and the shadows by age and by use."""

    shift: int
    by_age: Shadow
    by_use: Shadow
    is_by_use: bool = False
    admitted: int = 0
    since: int = 0


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


def released(shadow: Shadow, digest: int, depth: int, is_use: bool) -> Shadow:
    """Note the release of a content, which is a use of it and of all before it: a table is released from its end."""
    known = any(entry.digest == digest for entry in shadow.entries)
    room = shadow if known or len(shadow.entries) < shadow.size else without_first(shadow)
    own = min(uses_before(room, digest) + is_use, MOST_USES)
    uses = max(own, room.last[1]) if depth + 1 == room.last[0] else own
    entry = Entry(digest, depth, uses, room.floor + uses)
    others = tuple(each for each in room.entries if each.digest != digest)
    return replace(room, entries=(*others, entry), last=(depth, uses))


def told(rule: Rule, digest: int, depth: int, is_use: bool = True) -> Rule:
    """Tell both shadows of a block that a holder releases, if its digest is sampled."""
    if digest % (1 << rule.shift):
        return rule
    by_age, by_use = (released(each, digest, depth, is_use) for each in (rule.by_age, rule.by_use))
    return replace(rule, by_age=by_age, by_use=by_use)


def asked(shadow: Shadow, sampled: tuple[int, ...], shift: int) -> Shadow:
    """Count how many sampled blocks of a prompt a shadow has, up to the first that is missing."""
    held = frozenset(entry.digest for entry in shadow.entries)
    hits = next((at for at, digest in enumerate(sampled) if digest not in held), len(sampled))
    return replace(shadow, found=shadow.found - shadow.found // 400 + (hits << shift + POINT))


def admitted(rule: Rule, digests: tuple[int, ...]) -> Rule:
    """Ask the shadows for the blocks of a prompt that is admitted for the first time, and let the better rule be."""
    sampled = tuple(digest for digest in digests if digest % (1 << rule.shift) == 0)
    by_age, by_use = (asked(each, sampled, rule.shift) for each in (rule.by_age, rule.by_use))
    count, ahead = rule.admitted + 1, by_use.found - by_age.found
    is_by_use = ahead > 0 or (ahead == 0 and rule.is_by_use)
    since = rule.since if is_by_use == rule.is_by_use else count
    return Rule(rule.shift, by_age, by_use, is_by_use, count, since)


def in_order(shadow: Shadow) -> tuple[int, ...]:
    """Return the digests of a cache in the order in which they go."""
    return () if not shadow.entries else (first(shadow).digest, *in_order(without_first(shadow)))


def new_rule(blocks: int, shift: int) -> Rule:
    """Return the rule of a pool of so many blocks: the least recently used goes, and nothing was found yet."""
    size = max(1, blocks >> shift)
    past = ((0, 0),) * max(8, 1 << (2 * size + 1).bit_length())
    return Rule(shift, Shadow(size, by_use=False, past=past), Shadow(size, by_use=True, past=past))
