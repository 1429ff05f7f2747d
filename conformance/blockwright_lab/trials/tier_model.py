"""A plain model of one tier: lists and dictionaries, no packed array, and the published ARC beside LRU.

Unlike the specification, which leaves the choice of victims open to ARC, it says everything that the manager says, the
text of refusals and the memory of the policy included. `tier_trials` walks through both side by side.
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

Key = bytes
WRITING, READY, DOOMED = "writing", "ready", "doomed"


class Refused(Exception):  # noqa: N818  # it is what the model answers
    """A call that is refused: with which error, about which block, and why."""

    def __init__(self, error: str, key: Key, why: str) -> None:
        super().__init__(error)
        self.error, self.why = error, why
        self.shown = key[:8].hex() + ("..." if len(key) > 8 else "")


class Block(NamedTuple):
    """A block that is present."""

    state: str
    readers: int
    place: int


class TierModel:
    """What one tier must say."""

    def __init__(self, policy: str, capacity: int, recovered: Sequence[Key]) -> None:
        self.arc, self.capacity = policy == "ARC", capacity
        self.blocks = {key: Block(READY, 0, at) for at, key in enumerate(recovered)}
        """In order of use, the oldest first."""
        self.fresh, self.freed = len(recovered), list[int]()
        self.once, self.often = list(recovered), list[Key]()
        self.ghosts: tuple[list[Key], list[Key]] = [], []
        """What was evicted lately: of those seen once, and of those seen more often."""
        self.target = 0.0
        self.events: list[tuple[tuple[Key, ...], bool]] = []

    def copy(self) -> "TierModel":
        """Return an independent copy."""
        twin = object.__new__(TierModel)
        for name, held in vars(self).items():
            setattr(twin, name, held.copy() if isinstance(held, list | dict) else held)
        twin.ghosts = self.ghosts[0].copy(), self.ghosts[1].copy()
        return twin

    @property
    def num_free(self) -> int:
        """Count free places."""
        return self.capacity - len(self.blocks)

    def status_of(self, key: Key) -> int | None:
        """Give the number that tells the status of a block."""
        block = self.blocks.get(key)
        return block and {WRITING: -1, DOOMED: -2}.get(block.state, block.readers)

    def change(self, key: Key, **how: object) -> None:
        """Change a block where it stands."""
        self.blocks[key] = self.blocks[key]._replace(**how)  # type: ignore[arg-type]

    def is_idle(self, key: Key) -> bool:
        """Tell whether a block may go."""
        return self.blocks[key][:2] == (READY, 0)

    def tell(self, keys: Sequence[Key], removed: bool) -> None:
        """Note an event about some blocks."""
        if keys:
            self.events.append((tuple(keys), removed))

    def absent(self, keys: Sequence[Key]) -> None:
        """Refuse a call that names a block that is not present."""
        for key in keys:
            if key not in self.blocks:
                refuse("UnknownBlockHashError", key, "no block")

    # --- calls

    def lookup(self, keys: Sequence[Key]) -> int:
        """Count the first blocks that are ready."""
        are_ready = [key in self.blocks and self.blocks[key].state == READY for key in keys]
        return [*are_ready, False].index(False)

    def prepare_load(self, keys: Sequence[Key]) -> list[int]:
        """Begin to read."""
        if self.lookup(keys) < len(keys):
            self.absent(keys)
            key = keys[self.lookup(keys)]
            is_written = self.blocks[key].state == WRITING
            refuse("BlockNotReadyError", key, "is being written" if is_written else "could not be read before")
        for key in keys:
            self.change(key, readers=self.blocks[key].readers + 1)
        return [self.blocks[key].place for key in keys]

    def complete_load(self, keys: Sequence[Key], success: bool) -> None:
        """End reading."""
        self.absent(keys)
        for at, key in enumerate(keys):
            if self.blocks[key].readers < list(keys[: at + 1]).count(key):
                refuse("NotPreparedError", key, "is named more often than it is being read")
        doomed = []
        for key in keys:
            self.change(key, readers=self.blocks[key].readers - 1)
            if not success and self.blocks[key].state == READY:
                self.change(key, state=DOOMED)
                doomed.append(key)
        self.let_go([key for key in dict.fromkeys(keys) if self.blocks[key][:2] == (DOOMED, 0)], evicted=False)
        self.tell(doomed, removed=True)

    def touch(self, keys: Sequence[Key]) -> None:
        """Use blocks."""
        for key in reversed(keys):
            if key in self.blocks:
                self.blocks[key] = self.blocks.pop(key)
                self.hit(key)
            else:
                self.regret(key)

    def prepare_store(self, keys: Sequence[Key]) -> tuple[list[Key], list[int], list[Key]] | None:
        """Begin to write."""
        new = [key for key in dict.fromkeys(keys) if key not in self.blocks]
        count = max(0, len(new) - self.num_free)
        victims = self.victims(count, new, keys)
        if len(victims) < count:
            return None
        self.let_go(victims, evicted=True)
        self.tell(victims, removed=True)
        places = []
        for key in new:
            if self.fresh < self.capacity:
                places.append(self.fresh)
                self.fresh += 1
            else:
                places.append(self.freed.pop())
            self.blocks[key] = Block(WRITING, 0, places[-1])
        self.entered(new)
        return new, places, victims

    def complete_store(self, keys: Sequence[Key], success: bool) -> None:
        """End writing."""
        self.absent(keys)
        written = [key for key in dict.fromkeys(keys) if self.blocks[key].state == WRITING]
        if keys and not written:
            refuse("NotPreparedError", keys[0], "none of the blocks is being written")
        if success:
            for key in written:
                self.change(key, state=READY)
            self.tell(written, removed=False)
        else:
            self.let_go(written, evicted=False)

    def remove(self, keys: Sequence[Key]) -> None:
        """Let go of blocks."""
        self.absent(keys)
        for key in keys:
            if not self.is_idle(key):
                refuse("BlockNotReadyError", key, "is being written or read")
        gone = list(dict.fromkeys(keys))
        self.let_go(gone, evicted=True)
        self.tell(gone, removed=True)

    # --- the policy

    def victims(self, count: int, new: Sequence[Key] = (), named: Sequence[Key] = ()) -> list[Key]:
        """Give up to `count` blocks that go."""
        able = [key for key in self.blocks if self.is_idle(key) and key not in named]
        if not self.arc:
            return able[:count]
        once, often = ([key for key in held if key in able] for held in (self.once, self.often))
        chosen: list[Key] = []
        length, comers = len(self.once), list(new)
        for _ in range(len(new) - count):  # for these there is room
            length += comers.pop(0) not in self.ghosts[0] + self.ghosts[1]
        while len(chosen) < count and (once or often):
            comer = comers.pop(0) if comers else None
            wanted = length > self.target or (length == self.target and comer in self.ghosts[1])
            is_once = bool(once) and (wanted or not often)
            chosen.append((once if is_once else often).pop(0))
            length += (comer is not None and comer not in self.ghosts[0] + self.ghosts[1]) - is_once
        return chosen

    def hit(self, key: Key) -> None:
        """Move a block to the newest end of T2, or, while it cannot be read, of its own list."""
        held = self.once if key in self.once else self.often
        held.remove(key)
        (self.often if self.blocks[key].state == READY else held).append(key)

    def regret(self, key: Key) -> None:
        """Adapt the target."""
        once, often = self.ghosts
        for held, other, sign in ((once, often, 1), (often, once, -1)):
            if key in held:
                by = sign * max(1.0, len(other) / len(held))
                self.target = min(float(self.capacity), max(0.0, self.target + by))
                held.remove(key)
                held.append(key)

    def entered(self, new: Sequence[Key]) -> None:
        """Put new blocks in T1, or in T2, and forget ghosts beyond the bounds."""
        once, often = self.ghosts
        for key in new:
            (self.often if key in once + often else self.once).append(key)
            for held in self.ghosts:
                held.remove(key) if key in held else None
        while once and len(self.once) + len(once) > self.capacity:
            once.pop(0)
        while often and len(self.blocks) + len(once) + len(often) > 2 * self.capacity:
            often.pop(0)

    def let_go(self, keys: Sequence[Key], evicted: bool) -> None:
        """End blocks, and take their places back in this order."""
        for key in keys:
            self.freed.append(self.blocks.pop(key).place)
            was_once = key in self.once
            (self.once if was_once else self.often).remove(key)
            if evicted:
                self.ghosts[not was_once].append(key)


def refuse(error: str, key: Key, why: str) -> NoReturn:
    """Refuse a call.

    Raises:
        Refused: always.
    """
    raise Refused(error, key, why)
