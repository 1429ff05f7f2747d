"""Worlds of block tables that are too large to visit whole: a manager's configuration, and what its engine does."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    most_ahead: int = 3
    max_tokens: int = 60
    symbols: int = 2

    @property
    def window(self) -> int | None:
        """Blocks that the window keeps, as the manager counts them."""
        return None if self.sliding_window is None else self.sliding_window // self.size + 2


FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("histories.toml").read_text(encoding="utf-8"))
HISTORIES: dict[str, World] = {name: World(**row) for name, row in FILE["tables"].items()}
"""The worlds, by what is told of them; where there is a watermark some prompts never fit beside it."""
