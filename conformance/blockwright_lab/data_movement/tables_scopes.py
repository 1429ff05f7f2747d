"""Worlds of block tables that are too large to visit whole: a manager's configuration, and what its engine does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """A manager's configuration, and what its engine does."""

    size: int
    num_gpu: int
    num_cpu: int
    caching: bool
    sliding_window: int | None = None
    watermark: float = 0.02
    slots: int = 10
    """Sequences that there may be at once."""
    most_ahead: int = 3
    max_tokens: int = 60
    symbols: int = 2

    @property
    def window(self) -> int | None:
        """Blocks that the window keeps, as the manager counts them."""
        return None if self.sliding_window is None else self.sliding_window // self.size + 2


HISTORIES: dict[str, World] = {
    "naive, block 4": World(4, 24, 16, False),
    "prefix caching, block 4": World(4, 24, 16, True),
    "prefix caching, block 3, small": World(3, 12, 9, True, slots=6, max_tokens=24),
    "naive, block 4, sliding 9": World(4, 24, 16, False, 9),
    "prefix caching, block 4, sliding 6": World(4, 24, 16, True, 6),
    "naive, block 2, watermark 6": World(2, 16, 16, False, watermark=0.4, slots=3, max_tokens=30),
    "prefix caching, block 16": World(16, 40, 20, True, max_tokens=200, most_ahead=20),
}
"""The worlds, by what is told of them; where there is a watermark some prompts never fit beside it."""
