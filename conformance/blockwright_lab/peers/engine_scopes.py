"""The scopes in which KV-cache managers of other makes are followed: smaller than Blockwright's own, of every kind.

Each is followed to the limit of the profile, shortest ways first. They are as small as they can be for what they are to
show: two requests, pools that two requests do not fit in, prompts that end on a block and beside one.
"""

from typing import Any

from blockwright_conformance.kv_cache.scopes import Scope, layers, of_groups, scope, strings
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

SINGLE = """full, block 1 + full, block 2 + sliding 1, block 1 + sliding 2, block 1 + sliding 3, block 2 +
    chunked 2, block 1 + chunked 2, block 2 + chunked 4, block 2 + mamba, block 1 + mamba, block 2"""
"""Layers alone, with their block sizes."""

HYBRID = """
    full, block 2 + sliding 2, block 2
    full, block 2 + sliding 3, block 2
    full, block 2 + chunked 2, block 2
    full, block 2 + mamba, block 2
    full, block 2 + sliding 2, block 1
    full, block 1 + sliding 3, block 2
    sliding 2, block 1 + full, block 1
    full, block 2 + sliding 3, block 2 + mamba, block 2
    full, block 2 + sliding 2, block 1 + chunked 2, block 2
"""
"""Models of several groups, with equal and with unequal block sizes."""


def of_kind(kind: Kind, size: int) -> list[Scope]:
    odd = 2 * size + 1
    pair = ((0, (0,) * odd), (0, (0,) * size + (1,) * (odd - size)), (0, (0,) * size))
    scopes = [
        scope(kind, size, "life", 4, odd, "chunks trim reset preempt"),
        scope(kind, size, "copies", 4, odd, "unasked adopt preempt"),
        scope(kind, size, "two symbols", 4, odd, "reset chunks", prompts=pair, outputs=(0, 1)),
        scope(kind, size, "uncached", 4, odd, "chunks preempt trim", caching=False),
        scope(kind, size, "admission", 5, odd, "whole chunks", prompts=strings(1, 1, odd - 1), watermark=1),
        scope(kind, size, "loads", 5, odd, "load preempt chunks", prompts=strings(1, 1, odd)),
    ]
    if not isinstance(kind, Mamba):
        ahead = {"lookaheads": (0, 2), "drafts": 1, "max_model_len": odd + 1}
        scopes += [
            scope(kind, size, "put off", 4, odd, "later chunks"),
            scope(kind, size, "drafts", 4, odd, "chunks", **ahead),
        ]
    if isinstance(kind, Full | Sliding):
        scopes.append(scope(kind, size, "eagle", 4, odd, "chunks", eagle=True, lookaheads=(0, 1)))
    return scopes


def of_hybrid(groups: tuple[tuple[Kind, int], ...]) -> list[Scope]:
    few, many = 3 + 2 * len(groups), 4 + 3 * len(groups)
    pair = ((0, (0, 0, 0, 0, 0)), (0, (0, 0, 1, 1, 1)))
    kinds = [kind for kind, _ in groups]
    scopes = [
        of_groups(groups, "life", few, 5, "chunks preempt", prompts=strings(1, 3, 4)),
        of_groups(groups, "two symbols", many, 5, "chunks reset", prompts=pair, outputs=(0, 1)),
        of_groups(groups, "loads", few, 5, "load preempt", prompts=strings(1, 1, 5)),
    ]
    if not any(isinstance(kind, Chunked | Mamba) for kind in kinds):
        scopes.append(of_groups(groups, "eagle", many, 5, "chunks", eagle=True, prompts=strings(1, 4, 5)))
    return scopes


ENCODER: dict[str, Any] = {"prompts": strings(1, 1, 3), "encoder": 3, "caching": False, "max_model_len": 5}
SCOPES: tuple[Scope, ...] = (
    *(each for kind, size in layers(SINGLE) for each in of_kind(kind, size)),
    scope(Full(), 1, "extra keys", 4, 3, "unasked", prompts=strings(2, 2, 2, (0, 1, 2, 3))),
    *(each for model in HYBRID.strip().splitlines() for each in of_hybrid(layers(model.strip()))),
    *(of_groups(((Full(), at), (Cross(), at)), "encoder", 7, 4, "chunks preempt", **ENCODER) for at in (1, 2)),
)
"""All of them."""
