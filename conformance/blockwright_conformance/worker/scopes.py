"""Scopes of workers: a manager's scope, whose requests are handed out step by step, and how its worker keeps rows."""

from dataclasses import dataclass, replace
from typing import Any

from blockwright_spec.reads import Full, Mamba, Sliding

from ..kv_cache.scopes import Layers, Scope, layers, of_groups, strings


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """What an engine does, and whether its worker stages what has changed, as for a device."""

    engine: Scope
    staged: bool = False
    misuse: bool = True
    """Whether calls are made that are wrong."""
    spare: int = 0
    """Rows beyond those of the requests that may run at once."""

    @property
    def rows(self) -> int:
        return self.engine.slots + self.spare

    @property
    def name(self) -> str:
        """Return the name of the engine's scope, with what is special about the worker."""
        return f"{self.engine.name}{', staged' if self.staged else ''}"


def worker_scope(groups: Layers, name: str, blocks: int, tokens: int, **rest: Any) -> WorkerScope:
    """Return a scope whose engine preempts, forks, loads and trims, but where `words` say otherwise."""
    words = rest.pop("words", "load chunks trim preempt fork")
    own = {flag: rest.pop(flag) for flag in ("staged", "misuse") if flag in rest}
    return WorkerScope(of_groups(groups, name, blocks, tokens, words, **rest), **own)


PROMPTS = tuple((extra, (0,) * same + (1,) * other) for extra in (0, 1) for same in (2, 5, 11) for other in (0, 1, 6))


def large(groups: Layers, name: str, blocks: int, **rest: Any) -> WorkerScope:
    """Return a scope of six requests of up to 30 tokens, with drafts and loads."""
    options = {"slots": 6, "prompts": PROMPTS, "outputs": (0, 1), "max_model_len": 34, "drafts": 2, **rest}
    return worker_scope(groups, name, blocks, 30, **options)


WINDOWS = layers("full, block 4 + sliding 6, block 4 + sliding 9, block 2 + sliding 3, block 4 + sliding 1, block 4")
STATES = layers("full, block 4 + chunked 8, block 4 + mamba +2, block 8")
ENCODED = layers("full, block 4 + cross, block 4 + sliding 5, block 3")

PLAIN = (
    large(WINDOWS, "inputs", 110, watermark=2, lookaheads=(0, 1)),
    large(WINDOWS, "inputs, in flight", 110, in_flight=2, settles=True),
    large(STATES, "inputs", 48),
    large(STATES, "inputs, in flight", 52, in_flight=2),
    large(((Full(), 3), (Mamba(2), 4)), "inputs, uncached", 50, caching=False),
    large(ENCODED, "inputs", 70, encoder=7, caching=False),
    large(((Mamba(), 2), (Sliding(30), 4)), "inputs", 60, drafts=0),
)
LARGE: dict[str, WorkerScope] = {each.name: each for scope in PLAIN for each in (scope, replace(scope, staged=True))}
"""Scopes for long histories, by their names: each with a worker on plain memory, and with one that stages."""

TWO = strings(1, 2, 2)
SMALL: tuple[WorkerScope, ...] = (
    worker_scope(((Mamba(1), 2),), "rows, drafts", 5, 4, words="", prompts=TWO, drafts=1, max_model_len=5, slots=1),
    worker_scope(((Full(), 2), (Sliding(2), 1)), "rows", 7, 3, words="", prompts=TWO, staged=True),
    worker_scope(((Full(), 2),), "rows, forks", 4, 3, words="fork", prompts=TWO, misuse=False),
    worker_scope(((Full(), 1),), "rows, preempted", 5, 3, words="preempt", prompts=TWO, misuse=False),
)
"""Scopes that are explored whole, by their size."""
PROFILES = {"quick": SMALL[:1], "pr": SMALL[:2], "nightly": SMALL}
