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
        """Count a use."""
        content = block.group_id, block.block_hash
        self.counts[content] = self.counts.get(content, 0) + 1
        self.num_hits += 1
        if self.num_hits > 8 * self.most:
            self.num_hits, self.counts = 0, {each: count // 2 for each, count in self.counts.items() if count > 1}
            self.line_up([self.entry(block, age) for _, _, age, block in self.entries.values()])

    def released(self, block: Candidate) -> None:
        """Give a candidate its place."""
        self.num_released += 1
        self.entries[block.block_id] = entry = self.entry(block, self.num_released)
        self.most = max(self.most, len(self.entries))
        heappush(self.heap, entry)
        if len(self.heap) > 2 * len(self.entries):
            self.line_up(list(self.entries.values()))

    def taken(self, block: Candidate) -> None:
        """Take a candidate out."""
        del self.entries[block.block_id]

    def choose(self, candidates: Candidates) -> Candidate:
        """Return the first candidate."""
        while self.entries.get(self.heap[0][3].block_id) is not self.heap[0]:
            heappop(self.heap)
        return self.heap[0][3]

    def entry(self, block: Candidate, age: int) -> Entry:
        """Return a candidate behind what it is ranked by: passing ones, which no wanted hit needs, go first."""
        return not block.is_passing, self.counts.get((block.group_id, block.block_hash), 0), age, block

    def line_up(self, entries: list[Entry]) -> None:
        """Make the heap of the candidates anew."""
        self.entries = {each[3].block_id: each for each in entries}
        self.heap = entries
        heapify(self.heap)
