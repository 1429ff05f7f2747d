"""One request's demand for one step, and the counts made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

from librt.vecs import append, vec
from mypy_extensions import i64

from blockwright.core.keys.request import count_of, item_count
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.errors import InvalidArgumentError


@final
class StepRequest:
    """One request's demand for one step, and the counts made of it.

    ::

        | computed | hit | external | new (the last of them drafts) | ahead |
                         ^ begin    ^ resumed             ^ certain ^ stop  ^ slots

    `resumed` is where tokens are computed: behind the load, or before the last known token if all of them are loaded.
    `outgrown` counts the published states that the step writes over, and `saves` says that they are copied first.
    """

    def __init__(self) -> None:
        self.new: i64 = 0
        self.ahead: i64 = 0
        self.drafts: i64 = 0
        self.external: i64 = 0
        self.encoder: i64 = 0
        self.checkpoint: i64 = 0
        self.reserve: i64 = 0
        self.is_whole = False
        self.is_delayed = False
        self.hit: KVCacheBlocks | None = None
        self.hit_length: i64 = 0
        # Of a plan, per group: the blocks that leave the free queue, and the states that it saves beside them.
        self.is_planned = False
        self.by_group: vec[i64] = vec[i64]()
        self.saved_by_group: vec[i64] = vec[i64]()
        # Counted.
        self.begin: i64 = 0
        self.known: i64 = 0
        self.certain: i64 = 0
        self.stop: i64 = 0
        self.slots: i64 = 0
        self.settled: i64 = 0
        self.resumed: i64 = 0
        self.demand: i64 = 0
        self.missing: i64 = 0
        self.most: i64 = 0
        self.outgrown: i64 = 0
        self.saves = False
        self.is_too_long = False
        # What passing blocks are worth to it (`Wanted.lengths`).
        self.served: i64 = 0
        self.lacks = False

    def take(self, drafts: int, external: int, encoder: int, reserve: int, checkpoint: int) -> None:
        """Take what few steps ask for, checked; zeros ask for nothing."""
        self.drafts = count_of("num_draft_tokens", drafts)
        self.external = count_of("num_external_computed_tokens", external)
        self.encoder = count_of("num_encoder_tokens", encoder)
        self.reserve = count_of("reserved_blocks", reserve)
        self.checkpoint = count_of("num_checkpoint_tokens", checkpoint)


def counts_of(name: str, given: int | Sequence[int], size: i64) -> vec[i64]:
    """Return one count per request, each in the safe range of 64 bits; an empty vector means zero for all."""
    if isinstance(given, int):
        count: i64 = count_of(name, given)
        # An empty vector means zero for all, which spares the batch a read per request.
        return vec[i64]([count] * size) if count > 0 else vec[i64]()
    counts = vec[i64](capacity=size)
    for each in cast("Sequence[object]", given):
        counts = append(counts, item_count(name, each))
    if i64(len(counts)) != size:
        raise InvalidArgumentError(f"{name}: {len(counts)} counts for {size} requests; give one each, or one for all")
    return counts


def all_or_each(name: str, given: int | Sequence[int], size: i64) -> tuple[i64, vec[i64]]:
    """Return the one count of all requests and no others, or 0 and those of each; checked as by `counts_of`."""
    if isinstance(given, int):
        return count_of(name, given), vec[i64]()
    return 0, counts_of(name, given, size)
