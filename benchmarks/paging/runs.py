"""What the paths of `blockwright.paging` set up: a manager of one side, and sequences that both sides are given alike.

Both get the same calls in the same order. What an engine of this design calls around the timed ones (looking up cached
tokens, recording the access time, marking blocks as computed) is called too, outside the timed region.
"""

from benchmarks.measure import require
from benchmarks.paging.sides import BenchGroup, BenchSequence, PagingSide
from benchmarks.sides import BLOCK_SIZE, Tokens

BATCH = 256
"""Running sequences of a decode step."""
STEPS = 64
"""Decode steps of one repetition: each sequence passes four block boundaries."""
SEQUENCES = 64
"""Sequences that are allocated, freed, or forked from one parent, in one repetition."""
LENGTH = 1_000
"""Tokens of a sequence: 62 full blocks and half a block."""
WIDTH = 4
"""Sequences of the group that is swapped, forked from one."""
PER_SEQUENCE = -(-(LENGTH + 1) // BLOCK_SIZE)
"""Blocks of a sequence, before and after its first decode step."""


class Run:
    """A manager and groups of one sequence each; every run starts with an empty pool."""

    def __init__(self, side: PagingSide, caching: bool, lengths: list[int], num_gpu: int, num_cpu: int) -> None:
        tokens = Tokens()
        self.side, self.num_gpu, self.num_cpu = side, num_gpu, num_cpu
        self.manager = side.manager(num_gpu, num_cpu, caching)
        self.prompts = [tokens.draw(length) for length in lengths]
        self.outputs = tokens.draw(max(STEPS, SEQUENCES))
        self.groups: list[BenchGroup] = []

    def empty(self) -> None:
        for group in self.groups:
            for seq in group.seqs:
                self.manager.free(seq)
        require(self.manager.get_num_free_gpu_blocks() == self.num_gpu)
        require(self.manager.reset_prefix_cache())
        self.groups = [
            BenchGroup(f"r{i}", [BenchSequence(i, list(prompt), self.side.waiting)])
            for i, prompt in enumerate(self.prompts)
        ]

    def start(self) -> None:
        self.empty()
        for group in self.groups:
            self.manager.allocate(group)
            self.prefilled(group)

    def prefilled(self, group: BenchGroup) -> None:
        """Do what an engine does once a prompt is computed."""
        group.mark(self.side.running)
        self.manager.mark_blocks_as_computed(group, len(group.seqs[0].token_ids))
        for seq in group.seqs:
            self.scheduled(seq)

    def scheduled(self, seq: BenchSequence) -> None:
        """Do what an engine does to a running sequence in every step."""
        self.manager.get_num_cached_tokens(seq)
        self.manager.access_all_blocks_in_seq(seq, 1.0)

    def held(self) -> int:
        """Return the blocks in use on the GPU."""
        return self.num_gpu - int(self.manager.get_num_free_gpu_blocks())


class Decoding(Run):
    """A batch of running sequences, evenly many at each offset within a block."""

    def __init__(self, side: PagingSide, caching: bool) -> None:
        lengths = [LENGTH + i % BLOCK_SIZE for i in range(BATCH)]
        num_blocks = sum(-(-(length + STEPS) // BLOCK_SIZE) for length in lengths)
        super().__init__(side, caching, lengths, num_blocks, 1)

    def advance(self, token_id: int) -> None:
        """Give each sequence the token of the step before."""
        for group in self.groups:
            group.seqs[0].append(token_id)

    def finish(self) -> None:
        """Check the tables, and that no block is held besides."""
        for group, prompt in zip(self.groups, self.prompts, strict=True):
            table = self.manager.get_block_table(group.seqs[0])
            require(len(set(table)) == -(-(len(prompt) + STEPS) // BLOCK_SIZE))
        require(self.held() == self.num_gpu)


class Forking(Run):
    """One running parent, and children that are not yet forked from it."""

    def __init__(self, side: PagingSide, caching: bool) -> None:
        super().__init__(side, caching, [LENGTH], PER_SEQUENCE + SEQUENCES, 1)

    def children(self) -> tuple[BenchSequence, list[BenchSequence]]:
        """Begin anew; return the parent and its children to be."""
        self.start()
        (parent,) = self.groups[0].seqs
        tokens, running = parent.token_ids, self.side.running
        return parent, [BenchSequence(i, list(tokens), running) for i in range(1, SEQUENCES + 1)]

    def finish(self, children: list[BenchSequence]) -> None:
        """Free the children, which leaves the parent as it was."""
        for child in children:
            self.scheduled(child)
            self.manager.free(child)
        require(self.held() == PER_SEQUENCE)


class Swapping(Run):
    """A group of `width` sequences, forked from one and each grown by a token of its own."""

    def __init__(self, side: PagingSide, caching: bool, width: int) -> None:
        num_blocks = width * PER_SEQUENCE
        super().__init__(side, caching, [LENGTH], num_blocks, num_blocks)
        self.width = width

    def group(self) -> BenchGroup:
        """Begin anew and return the group, running; full blocks are shared, each last block is not."""
        self.start()
        (group,) = self.groups
        (parent,) = group.seqs
        for i in range(1, self.width):
            child = BenchSequence(i, list(parent.token_ids), self.side.running)
            self.manager.fork(parent, child)
            self.scheduled(child)
            group.seqs.append(child)
        for seq, token_id in zip(group.seqs, self.outputs, strict=False):
            seq.append(token_id)
            self.manager.append_slots(seq, 0)
        require(self.held() == self.num_distinct)
        return group

    @property
    def num_distinct(self) -> int:
        """Blocks of the group, shared ones counted once."""
        return PER_SEQUENCE - 1 + self.width
