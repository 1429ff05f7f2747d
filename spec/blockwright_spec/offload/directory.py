"""Part three, chapter 4: a tier's blocks in a directory, which a restart finds again: its answers, and its laws.

A directory has a header with its identity, and numbered places. A place has a record, which names its block, and the
block's bytes. A separate file records when each block was last used: a hint, the loss of which costs an order and
nothing else. The process may end at any moment, and before the next one opens the directory its files may become
anything; the cost depends on the file (`Altered`).

No manager is asked to repair anything. It serves right bytes or none, forgets blocks that it cannot trust, and goes on.
A check does so before anybody asks.
"""

from dataclasses import dataclass
from enum import Enum

from ..law import listed
from .tier_state import Key


class Altered(Enum):
    """The change of a directory while it was closed; the value is the cost it may have."""

    HEADER = "a refusal to open the directory"
    KIND = "likewise: a link, or a file that others own, may write to or know by another name, in place of a file"
    PLACE = "the blocks of the places whose records or bytes were altered"
    RECENCY = "the order in which blocks leave: the hint says anything, or is no file at all"
    REST = "nothing: a lock, what a crash left behind of a file that was being written"


@dataclass(frozen=True, slots=True)
class Place:
    """The knowledge of a place: the blocks of which one may be there, and the one that must be, if one must.

    A block that was acknowledged must be there, until it is being overwritten, or the place was altered.
    """

    may: frozenset[Key]
    must: Key | None


@dataclass(frozen=True, slots=True)
class Served:
    """A block that was found: its place, the requested key, and the key of the bytes that came, or None."""

    place: int
    key: Key
    content: Key | None


@dataclass(frozen=True, slots=True)
class Reopened:
    """A directory that was opened again, and what came of it.

    `used` is the order in which the blocks of unaltered places were last used, as it was noted, `order` the one in
    which all blocks would leave now. A directory is `renewed` if a block could be written to every place and read back,
    then and after the next opening, and `private` if no other user can read or write it. `outside` is whether anything
    outside the directory changed.
    """

    places: tuple[Place, ...]
    altered: frozenset[Altered]
    refused: bool
    served: frozenset[Served]
    used: tuple[Key, ...]
    order: tuple[Key, ...]
    renewed: bool
    private: bool
    outside: bool


def law_bytes_are_the_keys_own(after: Reopened) -> bool:
    """DISK-1: no byte is served that was not written under the key that was asked for."""
    return all(each.content == each.key for each in after.served)


def law_acknowledged_is_there(after: Reopened) -> bool:
    """DISK-2: a block that was acknowledged, and neither overwritten nor altered since, is there."""
    found = {(each.place, each.key) for each in after.served}
    return after.refused or all(one.must is None or (at, one.must) in found for at, one in enumerate(after.places))


def law_nothing_comes_back(after: Reopened) -> bool:
    """DISK-3: nothing is there that was not written last, or was being written, to its place."""
    return all(each.key in after.places[each.place].may for each in after.served)


def law_hint_is_an_order(after: Reopened) -> bool:
    """DISK-4: the record of the use of blocks decides the order in which they leave, and nothing else.

    Noted rightly it is that order. DISK-2 and DISK-5, on served and written blocks, hold whatever it contains.
    """
    known = tuple(key for key in after.used if key in after.order)
    ordered = tuple(key for key in after.order if key in known)
    return Altered.RECENCY in after.altered or ordered == known


def law_directory_takes_new_blocks(after: Reopened) -> bool:
    """DISK-5: every place takes a new block and keeps it, unless the directory is refused, which has a cause."""
    return bool(after.altered & {Altered.HEADER, Altered.KIND}) if after.refused else after.renewed


def law_directory_is_its_owners_alone(after: Reopened) -> bool:
    """DISK-6: a directory is used only if every file in use is its owner's alone, and nothing outside it changes."""
    return not after.outside and (after.refused or (after.private and Altered.KIND not in after.altered))


@dataclass(frozen=True, slots=True)
class Resized:
    """A directory that was opened with another number of places.

    `used` is the order in which its blocks were last used, `found` the blocks that are there now, in that order, and
    `wrong` whether a byte is another key's.
    """

    used: tuple[Key, ...]
    places: int
    found: tuple[Key, ...]
    wrong: bool


def law_other_size_keeps_blocks(after: Resized) -> bool:
    """DISK-7: opened with another number of places, a directory keeps those used last that fit, in order."""
    kept = after.used[max(0, len(after.used) - after.places) :]
    return not after.wrong and after.found[len(after.found) - len(kept) :] == kept


@dataclass(frozen=True, slots=True)
class Checked:
    """A directory that was checked and repaired while no store used it.

    `sound` are the places that nothing had altered, `named` those that the check called damaged, and `again` those that
    a check after the repair does. `unreadable` is how many of the blocks that a store then lists cannot be read.
    """

    sound: frozenset[int]
    named: frozenset[int]
    again: frozenset[int]
    unreadable: int


def law_check_names_what_is_damaged(after: Checked) -> bool:
    """DISK-8: a check names no sound place; after a repair it names none, and every block that is left can be read."""
    return not (after.sound & after.named or after.again or after.unreadable)


CHECKED_LAWS = (listed(law_check_names_what_is_damaged, "the scrub of file systems: ZFS, Btrfs"),)
"""The laws of a directory that is checked."""

RESIZED_LAWS = (listed(law_other_size_keeps_blocks, "LMCache/LMCache#4564: a quota that changes at a restart"),)
"""The laws of a directory that is opened with another size."""

DIRECTORY_LAWS = (
    listed(law_bytes_are_the_keys_own, "the central law of storage: LMCache, disks that tear and reorder writes"),
    listed(law_acknowledged_is_there, "Rebello et al., Can applications recover from fsync failures? (2020)"),
    listed(law_nothing_comes_back, "places that are written again"),
    listed(law_hint_is_an_order, "a count read from a file of hints, from which no block could be numbered on"),
    listed(law_directory_takes_new_blocks, "likewise: a tier that wrote nothing any more, over restarts"),
    listed(law_directory_is_its_owners_alone, "files opened through links: CWE-59"),
)
"""Every law of directories."""
