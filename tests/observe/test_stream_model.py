"""Property: a stream says what a fold by hand says, of what can be found, batches and gaps; and so does each copy.

How: random events of blocks on three media, of tiers and of resets, beside dictionaries. A stream is copied at any
time; either side goes on, and each side is asked first as often as the other. In what order the blocks of tiers are
reported again after a reset is open.
Not covered: what a manager tells (test_stream.py), threads (test_zmq.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import pytest

from blockwright.errors import EventGapError
from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent
from blockwright.observe import EventStream
from blockwright.observe.stream import Key, TierEvent
from blockwright.offload import OffloadingEvent

BACKLOG = 9
NAMES = [bytes([each]) for each in range(6)]
PARENTS: dict[BlockHash, BlockHash | None] = {name: (None, *NAMES)[at] for at, name in enumerate(NAMES)}
"""One chain; what is stored without its parent has none that can be found."""


class ByHand:
    """What a stream should say: every batch ever recorded, and what can be found."""

    def __init__(self) -> None:
        self.batches: list[list[KVCacheEvent]] = []
        self.found: dict[Key, BlockStored] = {}

    def copy(self) -> ByHand:
        twin = ByHand()
        twin.batches, twin.found = self.batches[:], dict(self.found)
        return twin

    def record(self, events: list[KVCacheEvent | TierEvent]) -> None:
        if events:
            self.batches.append([told for event in events for told in self.told(event)])

    def told(self, event: KVCacheEvent | TierEvent) -> Iterator[KVCacheEvent]:
        match event:
            case BlockStored():
                yield from self.stored(event)
            case BlockRemoved():
                self.found.pop((event.block_hash, event.group_id, event.medium), None)
                yield event
            case AllBlocksCleared():
                kept = [each for each in self.found.values() if each.medium != "GPU"]
                self.found = {}
                yield event
                for each in kept:
                    yield from self.stored(each)
            case _:
                for key in event.block_hashes:
                    place = key, 0, event.medium
                    if event.removed:
                        self.found.pop(place, None)
                        yield BlockRemoved(*place)
                    else:
                        yield from self.stored(self.on_tier(key, event.medium, event.block_size))

    def stored(self, event: BlockStored) -> Iterator[BlockStored]:
        known = self.found.get((event.block_hash, event.group_id, event.medium))
        if known is not None and known._replace(is_parent_absent=event.is_parent_absent) == event:
            return  # no news
        parent = event.parent_block_hash
        if parent is not None:
            is_absent = (parent, event.group_id, event.medium) not in self.found
            event = event._replace(is_parent_absent=is_absent)
        self.found[event.block_hash, event.group_id, event.medium] = event
        yield event

    def on_tier(self, key: bytes, medium: str, size: int) -> BlockStored:
        for known in (self.found.get((key, 0, "GPU")), self.found.get((key, 0, medium))):
            if known is not None:
                return known._replace(medium=medium, is_parent_absent=False)
        return BlockStored(key, None, b"", size, medium=medium, is_parent_absent=True)

    def kept(self) -> int:
        """The number of the oldest batch that is kept: so many events at most, but one batch whatever its size."""
        oldest = len(self.batches)
        while oldest > 0 and (oldest == len(self.batches) or sum(map(len, self.batches[oldest - 1 :])) <= BACKLOG):
            oldest -= 1
        return oldest


def some(random: Random) -> KVCacheEvent | TierEvent:
    name, group = random.choice(NAMES), random.choice([0, 0, 0, 1])
    match random.randrange(12):
        case 0:
            return AllBlocksCleared()
        case 1 | 2:
            return BlockRemoved(name, group, random.choice(["GPU", "GPU", "CPU"]))
        case 3 | 4 | 5 | 6:
            return OffloadingEvent(random.sample(NAMES, 2), 1, random.choice(["CPU", "DISK"]), random.random() < 0.3)
        case _:
            return BlockStored(
                name, PARENTS[name], name * 4, 1, None, group, medium=random.choice(["GPU"] * 4 + ["CPU"])
            )


def unmarked(events: Iterable[KVCacheEvent]) -> list[str]:
    return sorted(
        repr(each._replace(is_parent_absent=False) if isinstance(each, BlockStored) else each) for each in events
    )


def reported_again(events: list[KVCacheEvent]) -> list[BlockStored]:
    """What a batch reports after its last reset, marked by what was reported before it."""
    last = max(at for at, each in enumerate(events) if isinstance(each, AllBlocksCleared))
    model = ByHand()
    model.record(list(events[last + 1 :]))
    return [each for batch in model.batches for each in batch if isinstance(each, BlockStored)]


def compare(stream: EventStream, model: ByHand) -> None:
    following, oldest = len(model.batches), model.kept()
    assert stream.known_keys() == set(model.found)
    assert len(stream) == len(model.found)
    assert unmarked(stream.snapshot().events) == unmarked(model.found.values())
    for sequence in range(oldest):
        with pytest.raises(EventGapError):
            stream.since(sequence)
    assert [batch.sequence for batch in stream.since(oldest)] == list(range(oldest, following))
    for batch, wanted in zip(stream.since(oldest), model.batches[oldest:], strict=True):
        events = list(batch.events)
        if AllBlocksCleared() not in events:
            assert events == wanted
        else:
            assert unmarked(events) == unmarked(wanted)
            again = reported_again(events)
            assert [each for each in events if isinstance(each, BlockStored)][-len(again) :] == again or not again


@pytest.mark.parametrize("seed", range(12))
def test_streams_and_their_copies_say_what_a_fold_by_hand_says(seed: int) -> None:
    random = Random(seed)
    pairs = [(EventStream(BACKLOG), ByHand())]
    for _ in range(60):
        stream, model = random.choice(pairs)
        if len(pairs) < 3 and random.random() < 0.1:
            pairs.append((stream.copy(), model.copy()))
            continue
        events = [some(random) for _ in range(random.choice([0, 1, 1, 2, 5, 12]))]
        stream.record(events)
        model.record(events)
        if random.random() < 0.5:
            for each in random.sample(pairs, len(pairs)):
                compare(*each)
