"""Trials of the whole block manager, in which known bugs of block tables show."""

from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

from .known_bug import Fault
from .watch import rearm


def appends_under_a_window(package: ModuleType) -> Iterator[Fault]:
    """Append what ``can_append_slots`` allows: it never runs out, though the null block may be taken (PAGE-13)."""
    paging: Any = package.paging
    for num_gpu in range(4, 12):
        rearm()
        manager = paging.SelfAttnBlockSpaceManager(1, num_gpu, 0, watermark=0.0, sliding_window=1)
        parent = paging.SimpleSequence(1, [0])
        group = paging.SimpleSequenceGroup("r", [parent])
        manager.allocate(group)
        manager.fork(parent, parent.fork(2))  # shares what the window leaves behind, so that this frees nothing
        parent.status = paging.SequenceStatus.RUNNING
        for length in range(2, 12):
            parent.num_computed_tokens = length - 1
            parent.token_ids.append(0)
            if not manager.can_append_slots(group, 0):
                break
            try:
                manager.append_slots(parent, 0)
            except package.errors.NoFreeBlocksError as error:
                yield Fault("PAGE-13", f"{num_gpu} blocks, {length} tokens: said to fit, then {error}", 2 * length)
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


def chunks_of_a_prompt(package: ModuleType) -> Iterator[Fault]:
    """Compute a prompt in chunks: no more tokens are reported cached than have been computed (PAGE-16)."""
    paging: Any = package.paging
    for chunk in range(1, 9):
        rearm()
        manager = paging.SelfAttnBlockSpaceManager(2, 8, 0, watermark=0.0, enable_caching=True)
        seq, other = paging.SimpleSequence(1, [0] * 8), paging.SimpleSequence(2, [0] * 8)
        group = paging.SimpleSequenceGroup("r", [seq])
        manager.allocate(group)
        for done in range(chunk, 8, chunk):
            manager.mark_blocks_as_computed(group, chunk)
            cached = manager.get_num_cached_tokens(seq), manager.get_num_cached_tokens(other)
            if max(cached) > done:
                yield Fault("PAGE-16", f"{done} tokens computed, {cached} are said to be cached", 1 + done // chunk)
                return
            seq.num_computed_tokens = done
