"""Chapter 5: finding a hit, and telling whether one that was found earlier still holds."""

from .choices import Choice
from .reads import Mamba, Prefix, cut, dead, longest_hit
from .state import NULL, Config, Hit, State, key


def holding(state: State, prefix: Prefix) -> tuple[int, ...]:
    """Give the blocks published under a prefix, oldest publication first."""
    return tuple(block for block, other in state.keys if other == prefix)


def margin(config: Config) -> int:
    """Give the draft margin of a hit: one block under EAGLE; a recurrent layer has none (HIT-1)."""
    return config.block_size if config.eagle and not isinstance(config.kind, Mamba) else 0


def found(state: State, prefix: Prefix, choice: Choice) -> Hit:
    """Give the longest hit of a prefix: which duplicate serves each entry is open (HIT-1, HIT-2)."""
    kind, size = state.config.kind, state.config.block_size
    published = frozenset(other for _, other in state.keys)
    length = longest_hit(kind, size, published.__contains__, prefix, margin(state.config))
    ends = range(size, length + 1, size)
    blocks = tuple(
        NULL if dead(kind, size, length, entry) else choice.serve(holding(state, cut(prefix, end)))
        for entry, end in enumerate(ends)
    )
    return Hit(length, blocks)


def sound(state: State, prefix: Prefix, hit: Hit) -> bool:
    """Tell whether each block of a hit carries this prefix now, null entries are dead, and a token is left (HIT-1)."""
    kind, size = state.config.kind, state.config.block_size
    return hit.length < len(prefix[1]) and all(
        dead(kind, size, hit.length, entry) if block == NULL else key(state, block) == cut(prefix, (entry + 1) * size)
        for entry, block in enumerate(hit.blocks)
    )
