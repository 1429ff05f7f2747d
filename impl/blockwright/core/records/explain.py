"""Why a hit is as long as it is: for each group of layers, the block that a longer hit lacks, and its fate.

A hit of several groups is explained by one *candidate*, a longer length that is a multiple of the common alignment:
each group either has all blocks that a hit of that length needs, or names the first one it lacks. The candidate is the
hit without any lost key, where losses are remembered and made a difference; otherwise it is the next multiple.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from mypy_extensions import i64

from blockwright._text import printable
from blockwright.core.keys.request import Request
from blockwright.core.pool.listener import EVICTED, RESET, TRIMMED
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.inside import lacks_part, longest_inside
from blockwright.core.tables.window import Probe, common_hit
from blockwright.kinds import KVCacheSpec


class HitLimit(Enum):
    """Why a group's part of a hit is no longer."""

    NOTHING = "as long as can be: a token is left to compute"
    NEVER_PUBLISHED = "was never published, as far as is remembered"
    EVICTED = "was evicted after its last request had ended or was preempted"
    TRIMMED = "was evicted after its last request no longer read it"
    RESET = "was dropped by a reset of the prefix cache"
    NOT_ALIGNED = "would hit longer, but not by a multiple of the alignment"
    DRAFT_MARGIN = "the block after the hit, which a draft head recomputes"
    NO_ROOM = "would hit, but not beside the state that is written: the pool is too small"
    NOT_ASKED = "not looked up: no caching, no keys, or prompt log-probabilities"
    OTHER_GROUP = "would hit longer; another group limits"
    UNKNOWN_LOSS = "is missing; explain_evictions=True would tell why"


class GroupHit(NamedTuple):
    """What limits a hit in one group of layers.

    Attributes:
        group: number of the group.
        kind: name of its kind, with the window or chunk.
        block_size: tokens per block.
        num_tokens: its own longest hit, were it alone.
        missing_end: tokens up to the end of the first block that the candidate lacks here, or of the part in which it
            ends; None if it lacks none.
        limit: why this group hits no longer.
        cause: what became of the missing block: NEVER_PUBLISHED, EVICTED, TRIMMED, RESET or UNKNOWN_LOSS; None if none
            is missing, or a draft margin would end beyond `max_length`.
    """

    group: int
    kind: str
    block_size: int
    num_tokens: int
    missing_end: int | None
    limit: HitLimit
    cause: HitLimit | None

    def __str__(self) -> str:
        words = self.limit.value
        if self.missing_end is not None:
            block = f"the block that ends at {self.missing_end}"
            fate = "would end beyond the prompt" if self.cause is None else self.cause.value
            words = f"{block} {fate}" + (" (draft margin)" if self.limit is HitLimit.DRAFT_MARGIN else "")
        return f"group {self.group}, {self.kind}, blocks of {self.block_size}: {self.num_tokens} alone; {words}"


class HitExplanation(NamedTuple):
    """Why the hit of a request is as long as it is; printed, a line and one more for each group.

    Attributes:
        request_id: the request.
        num_tokens: tokens of the hit, common to all groups.
        max_length: tokens that it may have at most: one is left to compute.
        alignment: tokens that every common hit is a multiple of.
        candidate: the longer length that was compared; None where no longer hit is possible, or no lookup was made.
        num_tokens_without_losses: the length of the hit without the remembered losses; None if losses are not
            remembered.
        limiting_groups: numbers of the groups that lack a block of the candidate; with all of their missing blocks
            published, the candidate is a hit.
        groups: one each.
    """

    request_id: Any
    num_tokens: int
    max_length: int
    alignment: int
    candidate: int | None
    num_tokens_without_losses: int | None
    limiting_groups: tuple[int, ...]
    groups: tuple[GroupHit, ...]

    def __str__(self) -> str:
        """Describe it in a line, and one more for each group."""
        first = f"{printable(str(self.request_id))}: hit of {self.num_tokens} of at most {self.max_length} tokens, "
        first += f"in multiples of {self.alignment}"
        if self.candidate is not None:
            groups = ", ".join([str(group) for group in self.limiting_groups])
            first += f"; {self.candidate} is limited by group {groups}"
        return "\n  ".join([first, *[str(group) for group in self.groups]])


def without_room(found: HitExplanation) -> HitExplanation:
    """Return an explanation as it is where the request has no room for the hit beside the state that it writes."""
    groups = [each._replace(missing_end=None, limit=HitLimit.NO_ROOM, cause=None) for each in found.groups]
    return found._replace(num_tokens=0, candidate=None, limiting_groups=(), groups=tuple(groups))


class EvictionStats(NamedTuple):
    """Keys of whole blocks lost since the last call of `make_eviction_stats`, by group.

    A prefix of several blocks is lost with its last.

    Attributes:
        evicted: taken for new blocks, or gone with the end of a pool that was resized, after the last request that held
            them had ended or was preempted.
        trimmed: likewise, after the last request that held them no longer read them.
        reset: dropped by a reset of the prefix cache.
    """

    evicted: tuple[int, ...]
    trimmed: tuple[int, ...]
    reset: tuple[int, ...]


def eviction_stats(counts: dict[int, int], num_groups: int) -> EvictionStats:
    """Put counts by ``3 * group + cause - 1`` in order."""
    by_cause = [
        tuple([counts.get(3 * group + cause - 1, 0) for group in range(num_groups)])
        for cause in (EVICTED, TRIMMED, RESET)
    ]
    return EvictionStats(by_cause[0], by_cause[1], by_cause[2])


def kind_name(spec: KVCacheSpec) -> str:
    name = type(spec).__name__.removesuffix("Spec")
    length = spec.window or spec.chunk
    return f"{name}({length}{f', sinks {spec.sink_len}' if spec.sink_len else ''})" if length else name


def loss_named(loss: i64) -> HitLimit:
    """Name what `BlockStore.loss` returned."""
    if loss < 0:
        return HitLimit.UNKNOWN_LOSS
    if loss == EVICTED:
        return HitLimit.EVICTED
    if loss == TRIMMED:
        return HitLimit.TRIMMED
    return HitLimit.RESET if loss == RESET else HitLimit.NEVER_PUBLISHED


def explain(groups: list[GroupTables], alignment: i64, whole: i64, use_eagle: bool, request: Request) -> HitExplanation:
    """Explain the hit of a request; whole blocks end hits at multiples of `whole`. law: EXPLAIN-1."""
    max_length: i64 = min(request.num_tokens - 1, request.num_keyed())
    pool = groups[0].block_pool if groups else None
    if pool is None or not pool.enable_caching or request.prompt_logprobs or request._block_size == 0:
        unasked = [
            GroupHit(at, kind_name(group.spec), int(group._block_size), 0, None, HitLimit.NOT_ASKED, None)
            for at, group in enumerate(groups)
        ]
        return HitExplanation(request.request_id, 0, max_length, alignment, None, None, (), tuple(unasked))
    probes = start(groups, request, max_length, use_eagle)
    length = longest_hit(request, groups, probes, alignment, whole, max_length)
    before: int | None = None
    candidate = length + alignment
    if pool.explains_evictions:
        # A second set of probes: in the first, a lost block must stay missing.
        restored = start(groups, request, max_length, use_eagle)
        for probe in restored:
            probe.restore()
        once = longest_hit(request, groups, restored, alignment, whole, max_length)
        before = once
        if once > length:
            candidate = once
    request.hash_until(min(candidate, max_length) // request._block_size)
    hits = [
        explain_group(request, at, group, probe, alignment, length, candidate, max_length)
        for at, (group, probe) in enumerate(zip(groups, probes))
    ]
    return HitExplanation(
        request.request_id,
        length,
        max_length,
        alignment,
        candidate if candidate <= max_length else None,
        before,
        tuple([group.group for group in hits if group.missing_end is not None]),
        tuple(hits),
    )


def start(groups: list[GroupTables], request: Request, max_length: i64, use_eagle: bool) -> list[Probe]:
    return [
        group.probe(request.keys(group.block_pool._units_for(request, group._block_size)), max_length, use_eagle)
        for group in groups
    ]


def longest_hit(
    request: Request, groups: list[GroupTables], probes: list[Probe], alignment: i64, whole: i64, max_length: i64
) -> i64:
    """Return the longest hit of groups, of whole blocks or, where the alignment is smaller, of parts too."""
    length = common_hit([group.rule for group in groups], probes, whole, max_length)
    if alignment < whole:
        length = longest_inside(request, groups, probes, alignment, length, max_length)
    return length


def explain_group(
    request: Request,
    number: int,
    group: GroupTables,
    probe: Probe,
    alignment: i64,
    length: i64,
    candidate: i64,
    max_length: i64,
) -> GroupHit:
    """Return the first block that a group lacks of a candidate, a longer length than the common hit."""
    size = group._block_size
    alone = longest_hit(request, [group], [probe], alignment, size, max_length)
    end: int | None = None
    cause: HitLimit | None = None
    limit = HitLimit.NOTHING
    if candidate > max_length:
        if alone > length:
            limit = HitLimit.NOT_ALIGNED
    else:
        stop = candidate // size + probe.margin
        kept = group.first_kept(candidate)
        i: i64 = 0
        while i < stop and ((i < kept and not group.stays(i)) or probe.cached(i)):
            i += 1
        if i == stop and lacks_part(request, group, probe, candidate):
            end = candidate
            limit = cause = loss_named(group.block_pool.part_loss(request, candidate, group._group))
        elif i == stop:
            limit = HitLimit.OTHER_GROUP
        elif stop > probe.limit:
            limit = HitLimit.DRAFT_MARGIN
            end = stop * size
        else:
            end = (i + 1) * size
            cause = loss_named(probe.loss(i))
            limit = HitLimit.DRAFT_MARGIN if (i + 1) * size > candidate else cause
    return GroupHit(number, kind_name(group.spec), int(size), alone, end, limit, cause)
