"""The small worlds in which known bugs of the manager show."""

from typing import Any

from blockwright_conformance.kv_cache.scopes import of_groups, of_three, scope, strings
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

from .instrumented import CollidingAdapter, FineAdapter, SplitAdapter, ToldAdapter
from .known_bug import Place

HALVES = ((0, (0, 0, 0)), (0, (0, 1, 0)))
"""Prompts that differ in the second half of their first block."""

TWO = ((0, (0, 0)), (0, (0, 1)), (0, (1, 1)))
"""Prompts of which two part after their first block."""
APART = ((0, (0,)), (0, (0, 0)), (0, (1, 1)))
TENANTS = ((1, (0, 0)), (4, (0, 0)))
"""Prompts of two tenants."""

FULL = Place(scope(Full(), 1, "known bugs", 4, 3, "chunks trim reset preempt"))
TIGHT = Place(scope(Full(), 1, "known bugs, tight", 4, 4, "batch", prompts=strings(1, 2, 3)))
TOLD = Place(scope(Full(), 1, "known bugs, told", 4, 3, "reset preempt", tells=True), ToldAdapter)
TOLD_SALTED = Place(
    scope(Full(), 1, "known bugs, told with salts", 4, 3, "", prompts=strings(1, 2, 2, (0, 1)), tells=True), ToldAdapter
)
TOLD_SLIDING = Place(scope(Sliding(2), 1, "known bugs, told", 4, 4, "chunks preempt", tells=True), ToldAdapter)
HINTED = Place(scope(Full(), 1, "known bugs, hints", 5, 2, "hint", prompts=TWO, slots=1, retains=True))
HINTED_TIGHT = Place(scope(Full(), 1, "known bugs, hints, tight", 3, 2, "hint", prompts=APART, slots=1, retains=True))
SHARED = Place(
    scope(Full(), 1, "known bugs, shares", 5, 2, "", prompts=TENANTS, slots=1, retains=True, floors=((1, 2), (4, 1)))
)
UNCACHED = Place(scope(Full(), 1, "known bugs", 4, 4, "preempt", caching=False))
LATER = Place(scope(Full(), 1, "known bugs, put off", 4, 3, "later"))
DRAFTS = Place(scope(Full(), 1, "known bugs, drafts", 6, 3, "", slots=1, lookaheads=(0, 1, 2), max_model_len=4))
EAGLE = Place(scope(Full(), 1, "known bugs", 5, 4, "", eagle=True))
SLIDING = Place(scope(Sliding(2), 1, "known bugs", 4, 4, "chunks preempt"))
SLIDING_BATCH = Place(scope(Sliding(2), 1, "known bugs, batches", 4, 4, "batch"))
SLIDING_UNCACHED = Place(scope(Sliding(2), 1, "known bugs", 4, 4, "chunks", caching=False))
SLIDING_LATER = Place(scope(Sliding(2), 1, "known bugs, put off", 5, 4, "later trim", slots=1))
SLIDING_NARROW = Place(scope(Sliding(1), 1, "known bugs", 4, 3, "chunks"))
SLIDING_WIDE = Place(scope(Sliding(2), 2, "known bugs", 4, 5, ""))
SLIDING_EAGLE = Place(scope(Sliding(3), 1, "known bugs", 5, 5, "", eagle=True))
CHUNKED = Place(scope(Chunked(2), 1, "known bugs", 4, 5, "chunks"))
MAMBA = Place(scope(Mamba(), 2, "known bugs", 4, 5, "chunks"))
MAMBA_NARROW = Place(scope(Mamba(), 1, "known bugs, alone", 5, 4, "chunks", slots=1))
MAMBA_EAGLE = Place(scope(Mamba(), 1, "known bugs", 4, 3, "", eagle=True))
FINE = Place(scope(Full(), 2, "known bugs, fine units", 4, 4, "", prompts=HALVES), FineAdapter)
SPLIT = Place(scope(Full(), 2, "known bugs, split blocks", 4, 4, "", prompts=HALVES), SplitAdapter)
COLLIDING = Place(scope(Full(), 1, "known bugs, colliding", 4, 3, "reset", prompts=strings(2, 1, 2)), CollidingAdapter)
SALTED = Place(scope(Full(), 1, "known bugs, salted", 4, 3, "", prompts=strings(1, 2, 2, (0, 1))))

BOTH: tuple[tuple[Kind, int], ...] = ((Full(), 1), (Sliding(2), 1))
"""A hybrid model."""

FEW: dict[str, Any] = {"prompts": strings(1, 1, 2), "max_model_len": 3}

FLYING = Place(of_groups(((Full(), 1),), "known bugs, in flight", 4, 3, "preempt", in_flight=1, **FEW))
FLYING_FAR = Place(of_groups(((Full(), 1),), "known bugs, two in flight", 4, 3, "", in_flight=2, slots=1, **FEW))
FLYING_BOTH = Place(of_groups(BOTH, "known bugs, in flight", 6, 3, "", in_flight=1, **FEW))
FLYING_SLIDING = Place(
    of_groups(((Sliding(2), 1),), "known bugs, in flight", 5, 4, "", in_flight=2, prompts=strings(1, 2, 2), slots=1)
)
FLYING_DRAFTS = Place(
    of_groups(((Full(), 1),), "known bugs, drafts in flight", 5, 3, "", in_flight=1, drafts=1, slots=1, **FEW)
)
SETTLING = Place(of_groups(((Full(), 1),), "known bugs, published late", 4, 2, "", in_flight=1, settles=True, **FEW))
LOADING = Place(of_groups(((Full(), 1),), "known bugs, loads", 4, 3, "load preempt", **FEW))
PINNED = Place(scope(Full(), 1, "known bugs, pinned", 4, 3, "pin", **FEW))
LOADING_BOTH = Place(of_groups(BOTH, "known bugs, loads", 7, 3, "load", prompts=strings(1, 1, 3)))
PLANNED = Place(scope(Full(), 1, "known bugs, planned", 4, 3, "plan"))
PLANNED_DRAFTS = Place(
    of_groups(((Mamba(1), 1),), "known bugs, planned drafts", 7, 3, "plan", drafts=1, prompts=strings(1, 1, 2))
)
ADMITTED = Place(of_groups(((Sliding(2), 1),), "known bugs, admitted", 4, 4, "whole chunks", prompts=strings(1, 1, 4)))
ADMITTED_AHEAD = Place(scope(Sliding(2), 1, "known bugs, ahead", 4, 5, "whole chunks", lookaheads=(0, 1), slots=1))
ADMITTED_LATE = Place(
    scope(Chunked(4), 1, "known bugs, hits", 5, 6, "whole", prompts=strings(1, 4, 5), max_model_len=7)
)
UNEQUAL_WINDOW = Place(of_groups(((Full(), 2), (Sliding(2), 1)), "known bugs, unequal", 8, 4, "chunks", slots=1))
THRICE, THREE_FORKED, THREE_UNCACHED, THREE_LOADING = map(Place, of_three())
ENCODER = Place(
    of_groups(
        ((Full(), 1), (Cross(), 2)), "known bugs, encoder", 7, 3, "", encoder=3, caching=False, prompts=strings(1, 1, 2)
    )
)
FORKED = Place(scope(Full(), 2, "known bugs, forked", 5, 3, "fork", prompts=strings(1, 1, 1), outputs=(0, 1)))
MAMBA_UNCACHED = Place(scope(Mamba(), 1, "known bugs", 4, 3, "chunks", caching=False))
BOTH_TIGHT = Place(of_groups(BOTH, "known bugs, tight", 7, 4, "", prompts=strings(1, 2, 3)))
BOTH_BATCH = Place(of_groups(BOTH, "known bugs, batches", 9, 4, "batch", prompts=strings(1, 2, 2)))
UNEQUAL = Place(of_groups(((Full(), 1), (Mamba(), 2)), "known bugs, unequal", 8, 4, "chunks", slots=1))
