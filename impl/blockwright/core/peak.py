"""How many blocks one request holds at most: what `KVCacheManager` counts, before there is a manager or a pool."""

from __future__ import annotations

from blockwright.core.group import LAST_STATE, GroupTables, layout_for
from blockwright.core.plan import Ask, count_of
from blockwright.core.pool import BlockPool
from blockwright.kinds import KVCacheSpec


def most_blocks(
    spec: KVCacheSpec,
    num_tokens: int,
    step: int,
    enable_caching: bool,
    num_encoder_tokens: int = 0,
    steps_in_flight: int = 1,
) -> int:
    """Return the most blocks of one group that a request holds until `num_tokens` tokens are computed.

    With one step in flight this is what ``allocate_slots(..., full_sequence_must_fit=True)`` counts. With more, windows
    and chunks keep what the oldest of them reads, and a recurrent layer one state more for each.

    Complexity: O(block_size) for windows, O(1) for the others. law: PLAN-2.

    Args:
        spec: the kind.
        num_tokens: tokens of the whole request.
        step: slots that one step fills at most, lookahead included.
        enable_caching: whether prefixes are shared.
        num_encoder_tokens: tokens of the encoder, of cross attention only.
        steps_in_flight: steps that are under way at once, 1 or more.

    Raises:
        InvalidArgumentError: a count is out of range.
        UnsupportedError: no known kind.
    """
    tokens = count_of("num_tokens", num_tokens)
    tables = GroupTables(spec, BlockPool(2, enable_caching), 0, spec.block_size)
    ask = Ask()
    ask.new = count_of("step", min(step * steps_in_flight, num_tokens))
    ask.encoder = count_of("num_encoder_tokens", num_encoder_tokens)
    most = int(tables.peak(tokens, tokens, ask))
    if layout_for(spec, enable_caching) == LAST_STATE:
        more = int(tables.entries_for(tokens)) - 2
        most += max(0, min(steps_in_flight - 1, more))
    return most
