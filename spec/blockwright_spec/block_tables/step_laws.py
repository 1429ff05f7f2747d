"""Part two, chapter 8: the laws of calls, given the state before and what came of it; and the lists of both kinds."""

from ..law import listed
from . import laws
from .outcomes import PagedDone, PagedOutcome, PagedReason, PagedRefusal, rank
from .state import Paged, Pair, device_of, entries_of, free_on


def after(before: Paged, outcome: PagedOutcome) -> Paged:
    """Return the state after a call: a refused one changes nothing."""
    return before if isinstance(outcome, PagedRefusal) else outcome.state


def law_writer_is_alone(before: Paged, outcome: PagedOutcome) -> bool:
    """PAGE-11: a written block was free before, or held by one entry alone, and no other has joined it."""
    state = after(before, outcome)
    return all(
        block in before.free or entries_of(before, block) == 1 == entries_of(state, block)
        for block, content in enumerate(state.contents)
        if content is not None and content != before.contents[block]
    )


def law_source_stays(before: Paged, outcome: PagedOutcome) -> bool:
    """PAGE-12: the source of a new copy is as it was and others hold it; its destination has one holder at most."""
    state = after(before, outcome)
    return all(
        state.contents[source] == before.contents[source]
        and 0 < entries_of(state, source) < entries_of(before, source)
        and entries_of(state, target) <= 1
        for source, target in state.copies
        if (source, target) not in before.copies
    )


def law_counted_is_enough(before: Paged, outcome: PagedOutcome) -> bool:
    """PAGE-13: a call keeps free blocks of its device alone, no more than counted, and is short only if fewer are free.

    What only a pending copy holds after the call is free again once the copies are taken.
    """
    free = free_on(before, outcome.device)
    if isinstance(outcome, PagedRefusal):
        return outcome.reason is not PagedReason.NO_FREE_BLOCKS or outcome.counted > len(free)
    kept = {block for block in before.free if entries_of(outcome.state, block) or block == outcome.state.null}
    return kept <= set(free) and len(kept) <= outcome.counted


def law_oldest_goes_first(before: Paged, outcome: PagedOutcome) -> bool:
    """PAGE-14: no findable block was taken while one stayed free that had to be taken before it.

    A block that was taken and given up for known content is among the free ones without content.
    """
    state = after(before, outcome)
    evicted = tuple(block for block, key in enumerate(before.keys) if key is not None and key != state.keys[block])
    first = tuple(
        other
        for other in before.free & state.free
        for block in evicted
        if device_of(before.config, block) is device_of(before.config, other)
        and rank(before, other) < rank(before, block)
        and (state.keys[other] == before.keys[other] is not None or not adopted(before, state))
    )
    return before.tables == state.tables or not first


def adopted(before: Paged, state: Paged) -> tuple[int, ...]:
    """Return the blocks that were found, and that more entries hold now."""
    held = ((block, entries_of(state, block) > entries_of(before, block)) for block in range(len(state.keys)))
    return tuple(block for block, more in held if more and state.keys[block] == before.keys[block] is not None)


def law_swap_moves_each_block_once(before: Paged, outcome: PagedOutcome) -> bool:
    """PAGE-15: a swap moves each distinct block once, unless its content is known there; sharing and nulls stay."""
    moves = frozenset(
        pair
        for old, new in zip(before.tables, after(before, outcome).tables, strict=True)
        if old is not None and new is not None and old.device is not new.device
        for pair in zip(old.entries, new.entries, strict=True)
    )
    placed = frozenset((old, new) for old, new in moves if old != before.null)
    pairs = outcome.pairs if isinstance(outcome, PagedDone) else ()
    return not moves or (
        len({old for old, _ in moves}) == len(moves)
        and all(new == before.null for old, new in moves - placed)
        and len({new for _, new in pairs}) == len(pairs)
        and placed.issuperset(pairs)
        and all(is_known(before, pairs, old, new) for old, new in placed.difference(pairs))
        and not any(is_known(before, (), old, new) and new not in before.fresh for old, new in pairs)
    )


def is_known(before: Paged, pairs: tuple[Pair, ...], old: int, new: int) -> bool:
    """Return whether a block could be found by another's content before or was just copied from one of that content."""
    content = before.contents[old]
    copied = any(before.contents[source] == content for source, target in pairs if target == new)
    return content is not None and (before.keys[new] == content or copied)


PAGED_LAWS = (
    listed(laws.law_block_is_in_one_place, "vLLM V0 BlockAllocator; known bugs B01, B02, B22, B51"),
    listed(laws.law_null_is_unwritten, "vLLM V0 CpuGpuBlockAllocator.allocate_or_get_null_block"),
    listed(laws.law_dead_entry_is_null, "vLLM V0 BlockTable.append_token_ids; known bug B01"),
    listed(laws.law_sequence_reads_its_own, "the central law; PagedAttention (Kwon et al., 2023), section 4.4"),
    listed(laws.law_found_is_what_it_holds, "vLLM V0 PrefixCachingBlockAllocator; known bug B56"),
    listed(laws.law_content_has_one_block, "vLLM V0 promote_to_immutable_block; known bug B56"),
    listed(laws.law_free_block_is_found_or_empty, "chapter `state`: contents are ghosts; known bug B56"),
    listed(laws.law_copies_can_be_made_at_once, "vLLM V0 CopyOnWriteTracker; known bug B51"),
    listed(laws.law_table_covers_its_slots, "vLLM V0 BlockTable.ensure_num_empty_slots"),
    listed(laws.law_table_is_on_one_device, "vLLM V0 CpuGpuBlockAllocator.swap; known bugs B02, B24"),
    listed(laws.law_cached_is_computed, "vLLM V0 ComputedBlocksTracker.get_num_cached_tokens; known bug D10"),
    listed(laws.law_computed_stays_with_its_table, "vLLM V0 promote_to_immutable_block, swap_in; known bug D12"),
)
"""Every law of the states of block tables."""

PAGED_STEP_LAWS = (
    listed(law_writer_is_alone, "PagedAttention (Kwon et al., 2023), section 4.4; known bug B01"),
    listed(law_source_stays, "PagedAttention (Kwon et al., 2023), section 4.4; known bug B51"),
    listed(law_counted_is_enough, "vLLM V0 BlockTable.get_num_blocks_touched_by_append_slots; known bug B23"),
    listed(law_oldest_goes_first, "vLLM V0 LRUEvictor: refreshed access times had no effect"),
    listed(law_swap_moves_each_block_once, "vLLM V0 CpuGpuBlockAllocator.swap; known bugs B23, B24"),
)
"""Every law of calls on block tables."""
