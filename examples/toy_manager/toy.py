"""A paged KV-cache manager such as many engines have: full attention, prefix caching. It knows nothing of Blockwright.

`EagerManager` has a bug that tests by hand rarely meet: it takes a hit's idle blocks for free ones, too.
"""

from collections import OrderedDict


class NoBlocksError(Exception):
    """There are not enough free blocks."""


class TooLongError(ValueError):
    """A request has more tokens than the model takes."""


class ToyManager:
    """Hands out blocks 1 to ``num_blocks - 1``; block 0 stands for nothing."""

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.free_blocks = OrderedDict.fromkeys(range(1, num_blocks))  # first to be taken first
        self.ref_counts = [0] * num_blocks
        self.blocks_of: dict[tuple[int, ...], list[int]] = {}  # whole prefix: the blocks that end it, oldest first
        self.prefix_of: dict[int, tuple[int, ...]] = {}
        self.tables: dict[str, list[int]] = {}

    def cached_prefix(self, tokens: list[int]) -> list[int]:
        """Return the blocks of the longest cached prefix; one token is left to compute."""
        found: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            blocks = self.blocks_of.get(tuple(tokens[:end]))
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def admit(self, name: str, hit: list[int], num_tokens: int) -> list[int]:
        """Start a request on the blocks of a hit; return the new blocks."""
        idle = sum(block in self.free_blocks for block in hit)
        missing = self.blocks_for(num_tokens) - len(hit)
        if not self.has_room(missing, idle):
            raise NoBlocksError(name)
        for block in hit:
            self.free_blocks.pop(block, None)
            self.ref_counts[block] += 1
        self.tables[name] = list(hit)
        return self.take(name, missing)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks a request of so many tokens fills."""
        if num_tokens > self.max_model_len:
            raise TooLongError(f"{num_tokens} tokens, the model takes {self.max_model_len}")
        return -(-num_tokens // self.block_size)

    def has_room(self, missing: int, idle: int) -> bool:
        """Return whether blocks can be taken when idle ones of a hit are held first."""
        return missing + idle <= len(self.free_blocks)

    def grow(self, name: str, num_tokens: int) -> list[int]:
        """Give a running request room for all its tokens; return the new blocks."""
        missing = max(0, self.blocks_for(num_tokens) - len(self.tables[name]))
        if missing > len(self.free_blocks):
            raise NoBlocksError(name)
        return self.take(name, missing)

    def take(self, name: str, count: int) -> list[int]:
        """Take free blocks for a request, and forget what they held."""
        taken = [self.free_blocks.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.forget(block)
            self.ref_counts[block] = 1
        self.tables[name] += taken
        return taken

    def forget(self, block: int) -> None:
        """Forget the prefix of a block."""
        prefix = self.prefix_of.pop(block, None)
        if prefix is not None:
            self.blocks_of[prefix].remove(block)

    def publish(self, name: str, tokens: list[int]) -> None:
        """Let others find the full blocks of computed tokens."""
        for entry in range(len(tokens) // self.block_size):
            prefix, block = tuple(tokens[: (entry + 1) * self.block_size]), self.tables[name][entry]
            if block not in self.prefix_of:
                self.blocks_of.setdefault(prefix, []).append(block)
                self.prefix_of[block] = prefix

    def free(self, name: str) -> None:
        """Release what a request holds, its last block first."""
        for block in reversed(self.tables.pop(name, [])):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_blocks[block] = None

    def reset(self) -> bool:
        """Forget all prefixes, unless a block is held."""
        if self.tables:
            return False
        self.blocks_of.clear()
        self.prefix_of.clear()
        return True


class EagerManager(ToyManager):
    """The same, with a bug: idle blocks of a hit are counted as free ones, although the hit will hold them."""

    def has_room(self, missing: int, idle: int) -> bool:
        """Return, wrongly, whether there are enough blocks."""
        return missing <= len(self.free_blocks)
