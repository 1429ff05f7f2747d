"""The small worlds in which the museum shows its exhibits."""

from blockwright_spec.reads import Chunked, Full, Mamba, Sliding

from .exhibit import Place
from .scopes import scope, strings
from .watched import CollidingAdapter, FineAdapter, SplitAdapter, ToldAdapter

HALVES = ((0, (0, 0, 0)), (0, (0, 1, 0)))
"""Prompts that differ in the second half of their first block."""

FULL = Place(scope(Full(), 1, "museum", 4, 3, "chunks trim reset preempt"))
TIGHT = Place(scope(Full(), 1, "museum, tight", 4, 4, "batch", prompts=strings(1, 2, 3)))
TOLD = Place(scope(Full(), 1, "museum, told", 4, 3, "reset preempt"), ToldAdapter)
UNCACHED = Place(scope(Full(), 1, "museum", 4, 4, "preempt", caching=False))
LATER = Place(scope(Full(), 1, "museum, put off", 4, 3, "later"))
DRAFTS = Place(scope(Full(), 1, "museum, drafts", 6, 3, "", slots=1, lookaheads=(0, 1, 2), max_model_len=4))
EAGLE = Place(scope(Full(), 1, "museum", 5, 4, "", eagle=True))
SLIDING = Place(scope(Sliding(2), 1, "museum", 4, 4, "chunks preempt"))
SLIDING_BATCH = Place(scope(Sliding(2), 1, "museum, batches", 4, 4, "batch"))
SLIDING_UNCACHED = Place(scope(Sliding(2), 1, "museum", 4, 4, "chunks", caching=False))
SLIDING_LATER = Place(scope(Sliding(1), 1, "museum, put off", 4, 3, "later trim", slots=1))
SLIDING_NARROW = Place(scope(Sliding(1), 1, "museum", 4, 3, "chunks"))
SLIDING_WIDE = Place(scope(Sliding(2), 2, "museum", 4, 5, ""))
SLIDING_EAGLE = Place(scope(Sliding(3), 1, "museum", 5, 5, "", eagle=True))
CHUNKED = Place(scope(Chunked(2), 1, "museum", 4, 5, "chunks"))
MAMBA = Place(scope(Mamba(), 2, "museum", 4, 5, "chunks"))
MAMBA_NARROW = Place(scope(Mamba(), 1, "museum, alone", 5, 4, "chunks", slots=1))
MAMBA_EAGLE = Place(scope(Mamba(), 1, "museum", 4, 3, "", eagle=True))
FINE = Place(scope(Full(), 2, "museum, fine units", 4, 4, "", prompts=HALVES), FineAdapter)
SPLIT = Place(scope(Full(), 2, "museum, split blocks", 4, 4, "", prompts=HALVES), SplitAdapter)
COLLIDING = Place(scope(Full(), 1, "museum, colliding", 4, 3, "", prompts=strings(2, 1, 2)), CollidingAdapter)
SALTED = Place(scope(Full(), 1, "museum, salted", 4, 3, "", prompts=strings(1, 2, 2, (0, 1))))
