"""What was written to each block: the contents that a manager never sees, and must have right all the same.

A slot's content is the prefix whose last token was written there; a recurrent layer's block holds one state, that after
a prefix. A prefix is the salt and the tokens. Steps write at once, as the manager publishes.
"""

from __future__ import annotations

from tests.core.support import Setup, needed

from blockwright import BlockPool, MambaSpec, Request

Prefix = tuple[str | None, tuple[int, ...]]


class Ghosts:
    """Contents by block and slot, and the prefix that each key stands for."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.size = setup, setup.spec.block_size
        self.recurrent = isinstance(setup.spec, MambaSpec)
        self.slots: dict[tuple[int, int], Prefix] = {}
        self.prefix_of: dict[bytes, Prefix] = {}

    def place(self, position: int, table: list[int]) -> tuple[int, int]:
        """Where a position's content lies: block and slot."""
        if self.recurrent:
            return table[position // self.size if self.setup.caching else 0], 0
        return table[position // self.size], position % self.size

    def read(self, request: Request, start: int, table: list[int]) -> None:
        """See that every position that the tokens from `start` on read is there (law READ-1)."""
        tokens = tuple(request.all_token_ids)
        for position in needed(self.setup.spec, start):
            block, slot = self.place(position, table)
            assert block != 0
            assert self.slots[block, slot] == (request.cache_salt, tokens[: position + 1])

    def null_entries(self, start: int, stop: int, length: int) -> list[int]:
        """The entries that are null once a request at `start` has its slots up to `stop` (laws TRIM-1, TRIM-2)."""
        if self.recurrent:
            kept = {(end - 1) // self.size for end in (start, stop) if end > 0} if self.setup.caching else {0}
        else:
            read = {position // self.size for position in needed(self.setup.spec, start)}
            kept = read | {entry for entry in range(length) if (entry + 1) * self.size > start}
        return [entry for entry in range(length) if entry not in kept]

    def write(self, request: Request, start: int, new: int, drafts: list[int], table: list[int]) -> None:
        """Write the contents of a step: known tokens, then drafts."""
        tokens = (*request.all_token_ids[: start + new], *drafts)
        known = request.num_tokens // self.size
        for entry, key in enumerate(request.block_hashes):
            self.prefix_of[key[:16]] = request.cache_salt, tuple(request.all_token_ids[: (entry + 1) * self.size])
        assert len(request.block_hashes) == known
        for position in range(start, len(tokens)) if not self.recurrent else [len(tokens) - 1] if new else []:
            place = self.place(position, table)
            assert place[0] != 0
            self.slots[place] = request.cache_salt, tokens[: position + 1]

    def match_keys(self, pool: BlockPool) -> None:
        """See that every published block holds what its key promises (law PUB-1)."""
        for block, key in enumerate(pool.block_keys()):
            if key is not None:
                salt, tokens = self.prefix_of[key]
                for slot in range(1 if self.recurrent else self.size):
                    end = len(tokens) if self.recurrent else len(tokens) - self.size + slot + 1
                    assert self.slots[block, slot] == (salt, tokens[:end])

    def longest_hit(self, request: Request, pool: BlockPool, use_eagle: bool) -> int:
        """The longest hit by definition (laws HIT-1, HIT-2), looking only at which keys are published."""
        if not self.setup.caching:
            return 0
        published, keys = set(pool.block_keys()), [key[:16] for key in request.block_hashes]
        margin = 1 if use_eagle and not self.recurrent else 0
        lengths = [
            blocks * self.size
            for blocks in range(
                min((request.num_tokens - 1) // self.size, request.num_tokens // self.size - margin) + 1
            )
            if {keys[position // self.size] for position in needed(self.setup.spec, blocks * self.size)} <= published
            and (not margin or keys[blocks] in published)
        ]
        return max(lengths, default=0)
