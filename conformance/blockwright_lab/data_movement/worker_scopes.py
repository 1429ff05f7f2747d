"""Worlds of workers: scopes whose requests are handed out step by step; see `scopes.large_scopes`."""

from typing import Any

from blockwright_conformance.kv_cache.scopes import Scope, of_groups
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

PROMPTS = tuple((extra, (0,) * same + (1,) * other) for extra in (0, 1) for same in (2, 5, 11) for other in (0, 1, 6))


def world(groups: tuple[tuple[Kind, int], ...], name: str, blocks: int, **rest: Any) -> Scope:
    """Give a world of six requests of up to 30 tokens, with drafts and loads."""
    options = {"slots": 6, "prompts": PROMPTS, "outputs": (0, 1), "max_model_len": 34, "drafts": 2, **rest}
    return of_groups(groups, name, blocks, 30, rest.pop("words", "load"), **options)


WINDOWS: tuple[tuple[Kind, int], ...] = (
    (Full(), 4),
    *((Sliding(window), size) for window, size in ((6, 4), (9, 2), (3, 4), (1, 4))),
)
STATES: tuple[tuple[Kind, int], ...] = ((Full(), 4), (Chunked(8), 4), (Mamba(2), 8))

INPUT_WORLDS: dict[str, Scope] = {
    each.name: each
    for each in (
        world(WINDOWS, "inputs", 110, watermark=2),
        world(WINDOWS, "inputs, in flight", 110, in_flight=2, settles=True),
        world(STATES, "inputs", 48),
        world(STATES, "inputs, in flight", 52, in_flight=2),
        world(((Full(), 3), (Mamba(2), 4)), "inputs, uncached", 50, caching=False),
        world(((Full(), 4), (Cross(), 4), (Sliding(5), 3)), "inputs", 70, encoder=7, caching=False),
        world(((Mamba(), 2), (Sliding(30), 4)), "inputs", 60, drafts=0),
    )
}
"""The worlds by their names."""
