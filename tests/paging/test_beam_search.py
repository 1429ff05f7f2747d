"""Property: beam search holds a block for each distinct full content, and no more than one partial block per beam.

How: width 8, 200 steps, blocks of 16, on a synthetic model: a fixed function of a beam's newest tokens scores its
continuations. After each step the blocks held are counted, and every beam is read back through torch tensors that hold
the whole prefix in each slot. With prefix caching the full blocks are the distinct full contents; without, those that
the forks imply: contents made by different beams apart are different blocks.
Not covered: other widths and block sizes; windows.
"""

import pytest

from blockwright.paging import SelfAttnBlockSpaceManager, SequenceStatus, SimpleSequence, SimpleSequenceGroup
from blockwright_lab.data_movement.tables_tensors import TokenCaches, code

WIDTH, STEPS, SIZE, PROMPT = 8, 200, 16, [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
VOCABULARY = 5

Beam = tuple[float, SimpleSequence, list[int], list[int]]
"""A beam: its score, its sequence, the numbers of its prefixes, and the blocks that it would hold by itself: ids of the
writes that filled them, the same for beams that were forked after that."""


def score(tokens: list[int], token: int) -> float:
    """What the synthetic model says of a continuation: fixed, and of the newest tokens only."""
    return (hash((tuple(tokens[-3:]), token)) % 1000) / 1000


class Search:
    """Beams on a block manager."""

    def __init__(self, caching: bool) -> None:
        self.manager = SelfAttnBlockSpaceManager(SIZE, 160, 0, watermark=0, enable_caching=caching)
        self.caches = TokenCaches(160, 0, SIZE)
        self.ids, self.writes = 1, 0
        seq = SimpleSequence(0, PROMPT)
        self.group = SimpleSequenceGroup("beams", [seq])
        self.manager.allocate(self.group)
        seq.status = SequenceStatus.RUNNING
        codes: list[int] = []
        for token in PROMPT:
            codes.append(code(codes[-1] if codes else 0, token))
        self.caches.write(self.manager.get_block_table(seq), 0, codes, PROMPT)
        self.beams: list[Beam] = [(0.0, seq, codes, [self.new_write() for _ in range(len(PROMPT) // SIZE)])]

    def new_write(self) -> int:
        """Number a block that a beam fills."""
        self.writes += 1
        return self.writes

    def step(self) -> None:
        """Score all continuations, keep the best, fork the beams that have several, and end those without any."""
        found = [
            (total + score(seq.token_ids, token), at, token)
            for at, (total, seq, _, _) in enumerate(self.beams)
            for token in range(VOCABULARY)
        ]
        best = sorted(found, reverse=True)[:WIDTH]
        kept: list[tuple[Beam, int]] = []
        used: set[int] = set()
        for total, at, token in best:
            _, seq, codes, blocks = self.beams[at]
            if at in used:
                child = seq.fork(self.ids)
                self.ids += 1
                self.manager.fork(seq, child)
                self.group.seqs.append(child)
                seq = child
            used.add(at)
            kept.append(((total, seq, codes[:], blocks[:]), token))
        for at, (_, seq, _, _) in enumerate(self.beams):
            if at not in used:
                self.manager.free(seq)
                self.group.seqs.remove(seq)
        self.beams = [self.grown(beam, token) for beam, token in kept]

    def grown(self, beam: Beam, token: int) -> Beam:
        """Append a token to a beam, execute the copies, and write it."""
        total, seq, codes, blocks = beam
        seq.token_ids.append(token)
        self.caches.copy(self.manager.append_slots(seq, 0))
        codes.append(code(codes[-1], token))
        self.caches.write(self.manager.get_block_table(seq), len(codes) - 1, codes[-1:], [token])
        if len(codes) % SIZE == 0:
            blocks.append(self.new_write())
        return total, seq, codes, blocks

    def held(self) -> tuple[int, int]:
        """Count the blocks held: those full of tokens, and the others."""
        full = {id for _, seq, codes, _ in self.beams for id in self.manager.get_block_table(seq)[: len(codes) // SIZE]}
        held = 160 - self.manager.get_num_free_gpu_blocks()
        return len(full), held - len(full)


@pytest.mark.parametrize("caching", [True, False])
def test_beams_share_what_they_can_and_read_back_their_own(caching: bool) -> None:
    search, forked = Search(caching), 0
    for _ in range(STEPS):
        assert search.manager.can_append_slots(search.group, 0)
        search.step()
        full, partial = search.held()
        contents = {
            tuple(seq.token_ids[:end])
            for _, seq, _, _ in search.beams
            for end in range(SIZE, len(seq.token_ids) + 1, SIZE)
        }
        implied = {write for _, _, _, blocks in search.beams for write in blocks}
        assert full == (len(contents) if caching else len(implied))
        assert partial <= WIDTH
        for _, seq, codes, _ in search.beams:
            assert search.caches.reads_back(search.manager.get_block_table(seq), 0, codes, seq.token_ids)
        forked = max(forked, search.ids)
    assert len(search.beams) == WIDTH
    assert forked > STEPS
    for _, seq, _, _ in search.beams:
        search.manager.free(seq)
    assert search.manager.get_num_free_gpu_blocks() == 160
