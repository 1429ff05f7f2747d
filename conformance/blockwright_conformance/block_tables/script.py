"""Counterexamples of block tables as calls: lines of Python over public names, to be pasted at a prompt."""

from collections.abc import Sequence

from blockwright_spec.block_tables.state import Device, Paged, paged
from blockwright_spec.manager.outcomes import When

from .actions import (
    Access,
    AccessFound,
    AccessUnknown,
    Allocate,
    AppendTokens,
    ClearCopies,
    Ensure,
    Fork,
    FreeTable,
    MarkComputed,
    MarkTable,
    PagedAction,
    PagedTold,
    ResetCache,
    Swap,
    blocks_accessed,
    paged_meaning,
    time_of,
)
from .scopes import PagedScope


def paged_script(scope: PagedScope, actions: Sequence[PagedAction], fault: str = "") -> str:
    """Give the calls of a path from a new allocator, and what was wrong at its end."""
    config, state = scope.config, paged(scope.config, scope.slots)
    kind = "prefix_caching" if config.caching else "naive"
    lines = [
        "from blockwright.paging import BlockTable, CpuGpuBlockAllocator, Device",
        f'allocator = CpuGpuBlockAllocator.create("{kind}", {config.num_gpu}, {config.num_cpu}, {config.block_size})',
        f"new = lambda: BlockTable({config.block_size}, allocator, max_block_sliding_window={config.window})",
        f"{', '.join(f't{slot}' for slot in range(scope.slots))} = {', '.join(['new()'] * scope.slots)}",
    ]
    for action in actions:
        told = paged_meaning(state, action)
        lines += [f"{line}{expects(told) if at == 0 else ''}" for at, line in enumerate(written(state, action))]
        state = told.state
    return "\n".join([*lines, *(f"# {line}" for line in fault.split("; ") if line)])


def written(state: Paged, action: PagedAction) -> list[str]:
    """Give the lines of an action."""
    match action:
        case Allocate(slot, (extra, tokens), device):
            lines = [f"t{slot}.allocate({list(tokens)}, {device}, {extra or None})"]
        case AppendTokens(slot, tokens, ahead, computed, delayed):
            lines = [f"t{slot}.append_token_ids({list(tokens)}, {ahead}, {computed})"]
            lines += [] if delayed else ["allocator.clear_copy_on_writes()"]
        case Ensure(slot, slots):
            lines = [f"t{slot}.ensure_num_empty_slots({slots})"]
        case Fork(parent, child):
            lines = [f"t{child} = t{parent}.fork()"]
        case FreeTable(slot):
            lines = [f"t{slot}.free()"]
        case Swap(slots, to):
            source = Device.CPU if to is Device.GPU else Device.GPU
            lines = [f"allocator.swap([{', '.join(f'*t{slot}.blocks' for slot in slots)}], {source}, {to})"]
        case ClearCopies():
            lines = ["allocator.clear_copy_on_writes()"]
        case Access() | AccessFound() | AccessUnknown():
            blocks = list(blocks_accessed(state, action))
            lines = [f"allocator.mark_blocks_as_accessed({blocks}, {time_of(state, action)})"]
        case MarkComputed():
            lines = ["allocator.mark_blocks_as_computed([])"]
        case MarkTable(slot, tokens):
            lines = [f"t{slot}.mark_computed({tokens})"]
        case ResetCache(device):
            lines = [f"allocator.reset_prefix_cache({device})"]
    return lines


def expects(told: PagedTold) -> str:
    """Give the comment that says what the specification expects."""
    if told.refusal is None:
        return ""
    when, words = told.refusal.reason.value
    return f"  # {'an error' if when is When.INVALID else 'refused'}: {words}"
