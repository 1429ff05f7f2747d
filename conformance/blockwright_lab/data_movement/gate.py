"""The gate of data that moves: histories of block tables and tiers with real data.

Worlds of offloading are too large to visit whole: chains of three tiers, between which requests move.

The content of a block, on the device and in each tier, is the specification's account; laws compare it with the key
under which it is found. A transfer may fail at any time, as one from a store that has lost the block does.
"""

import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from blockwright_conformance.checker.history import History, walks
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.offload.chain import ChainWorld
from blockwright_conformance.offload.scopes import ChainScope, Slice, request
from blockwright_conformance.rows import Listed, ran
from blockwright_spec.offload.chain_state import ChainConfig

from ..scopes import plain as tupled


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

BRANCHES, LONGEST, SLICES = 2, 3, 10


def drawn(name: str, capacities: tuple[int, int, int], groups: int, **config: Any) -> ChainScope:
    """Return a scope with requests that are paths in a tree drawn by its name; the device has some groups of blocks."""
    random, span = Random(name), config.get("span", 1)

    def path() -> tuple[bytes, ...]:
        whole = bytes(random.randrange(BRANCHES) for _ in range(1 + random.randrange(LONGEST)))
        return tuple(b"block " + whole[:end] for end in range(1, len(whole) + 1))

    def placed(keys: tuple[bytes, ...]) -> Slice:
        return request(span, *zip(keys, random.sample(range(groups), len(keys)), strict=True))

    paths = [path() for _ in range(SLICES)]
    stores = tuple(placed(keys[-1:]) for keys in paths)
    loads = tuple(placed(keys[-2:]) for keys in paths)
    return ChainScope(name, ChainConfig(capacities, groups * span, **config), stores, loads, 6, False, tuple(paths[:6]))


OFFLOAD_HISTORIES: dict[str, ChainScope] = {
    name: drawn(name, **{key: tupled(value) for key, value in row.items()}) for name, row in FILE["chains"].items()
}

LENGTHS: dict[str, Any] = {"quick": (1, 60), "pr": (8, 200), "nightly": (1000, 300)}


def row(name: str, profile: Profile) -> GateResult:
    if name in HISTORIES:
        from .tables_histories import histories as of_tables  # it imports torch

        return of_tables(name, profile.name)
    new = partial(History, ChainWorld(OFFLOAD_HISTORIES[name]))
    return ran("offload machine", name, [partial(walks, new, *LENGTHS[profile.name])])


GATE = Listed((*HISTORIES, *OFFLOAD_HISTORIES), row)
