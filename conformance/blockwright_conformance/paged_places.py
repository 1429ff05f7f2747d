"""Where the museum shows its exhibits of block tables: small scopes, and trials of the whole block manager."""

from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

from .exhibit import Fault, TablesPlace
from .paged_scopes import paged_scope
from .scopes import strings
from .watch import rearm

ONE: dict[str, Any] = {"prompts": strings(1, 1, 2)}
TWO: dict[str, Any] = {"prompts": strings(2, 1, 2), "outputs": ((0,), (1,))}

FORKS = TablesPlace(paged_scope("museum, forks", 2, 4, 0, 4, "delay", **ONE))
NAIVE = TablesPlace(paged_scope("museum, forks", 2, 4, 0, 4, "delay", **ONE, caching=False))
WINDOW = TablesPlace(paged_scope("museum, window", 1, 5, 0, 5, "", **ONE, window=1))
SHARED = TablesPlace(paged_scope("museum, shared content", 2, 4, 0, 4, "", **TWO))
SWAPS = TablesPlace(paged_scope("museum, swaps", 2, 3, 3, 4, "swap", **ONE))
RETURNS = TablesPlace(paged_scope("museum, swaps with content", 1, 3, 2, 3, "swap", **TWO))
ACCESS = TablesPlace(paged_scope("museum, access", 1, 3, 0, 2, "access", slots=1, prompts=strings(2, 1, 2)))


def appends_under_a_window(package: ModuleType) -> Iterator[Fault]:
    """Append what ``can_append_slots`` allows: it never runs out, though the null block may be taken (PAGE-13)."""
    for num_gpu, computed in product(range(3, 8), (0, 1)):
        rearm()
        paging: Any = package.paging
        manager = paging.SelfAttnBlockSpaceManager(1, num_gpu, 0, watermark=0.0, sliding_window=1)
        seq = paging.SimpleSequence(1, [0])
        group = paging.SimpleSequenceGroup("r", [seq])
        manager.allocate(group)
        seq.status = paging.SequenceStatus.RUNNING
        for length in range(2, 12):
            seq.num_computed_tokens = length - 1 - computed
            seq.token_ids.append(0)
            if not manager.can_append_slots(group, 0):
                break
            try:
                manager.append_slots(seq, 0)
            except package.errors.NoFreeBlocksError as error:
                yield Fault("PAGE-13", f"{num_gpu} blocks, {length} tokens: said to fit, then {error}", length)
                return


def comes_back(package: ModuleType) -> Iterator[Fault]:
    """Swap a group out and in: it comes back where all others are gone (LIVE-1)."""
    paging: Any = package.paging
    for caching, rounds in product((False, True), (1, 2, 3)):
        rearm()
        manager = paging.SelfAttnBlockSpaceManager(2, 6, 4, watermark=0.0, enable_caching=caching)
        seq = paging.SimpleSequence(1, [1, 2, 3, 4, 5])
        group = paging.SimpleSequenceGroup("r", [seq])
        manager.allocate(group)
        for calls in range(rounds):
            seq.status = paging.SequenceStatus.RUNNING
            if not manager.can_swap_out(group):
                yield Fault("LIVE-1", f"caching {caching}: an empty host has no room", 2 + 2 * calls)
                return
            manager.swap_out(group)
            seq.status = paging.SequenceStatus.SWAPPED
            if manager.can_swap_in(group, 0) is not paging.AllocStatus.OK:
                yield Fault("LIVE-1", f"caching {caching}: an empty GPU has no room", 3 + 2 * calls)
                return
            manager.swap_in(group)
