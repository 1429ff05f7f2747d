"""Least frequently used, with aging: the candidate goes whose content was hit least, and of these the oldest.

A content keeps its count when its block is evicted, so that a prefix never counts less than what goes on from it
(POLICY-1). After eight hits for each candidate, of which as many are reckoned as there were at most, all counts are
halved: what was popular long ago goes too, and few are kept. Each call is amortized O(log candidates).
"""

from heapq import heapify, heappop, heappush

from blockwright import Candidate, Candidates

Entry = tuple[bool, int, int, Candidate]


class Order:
    """A heap of candidates; those that were taken are dropped at its top, or once they are as many as the others."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, bytes], int] = {}
        self.entries: dict[int, Entry] = {}
        self.heap: list[Entry] = []
        self.num_hits = self.num_released = self.most = 0

    def hit(self, block: Candidate) -> None:
        """Count a hit of a content; all counts are halved now and then, so that old hits weigh less."""
        content = block.group_id, block.block_hash
        self.counts[content] = self.counts.get(content, 0) + 1
        self.num_hits += 1
        if self.num_hits > 8 * self.most:
            self.num_hits, self.counts = 0, {each: count // 2 for each, count in self.counts.items() if count > 1}
            self.line_up([self.entry(block, age) for _, _, age, block in self.entries.values()])

    def released(self, block: Candidate) -> None:
        """Add a candidate."""
        self.num_released += 1
        self.entries[block.block_id] = entry = self.entry(block, self.num_released)
        self.most = max(self.most, len(self.entries))
        heappush(self.heap, entry)
        if len(self.heap) > 2 * len(self.entries):
            self.line_up(list(self.entries.values()))

    def taken(self, block: Candidate) -> None:
        """Remove a candidate that was taken; its entry in the heap is skipped later."""
        del self.entries[block.block_id]

    def choose(self, candidates: Candidates) -> Candidate:
        """Return the first candidate."""
        while self.entries.get(self.heap[0][3].block_id) is not self.heap[0]:
            heappop(self.heap)
        return self.heap[0][3]

    def entry(self, block: Candidate, age: int) -> Entry:
        """Return the key that a candidate is ranked by, and the candidate: passing ones are evicted first."""
        return not block.is_passing, self.counts.get((block.group_id, block.block_hash), 0), age, block

    def line_up(self, entries: list[Entry]) -> None:
        """Rebuild the heap from these entries."""
        self.entries = {each[3].block_id: each for each in entries}
        self.heap = entries
        heapify(self.heap)
