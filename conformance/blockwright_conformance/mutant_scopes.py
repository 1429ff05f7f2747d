"""Where mutants are looked for, fastest killers first: places of the museum, and more where a survivor asked for one."""

from blockwright_spec.reads import Chunked, Full, Mamba, Sliding

from . import places, trials
from .exhibit import Place, Trial
from .scopes import scope, strings
from .watched import CrowdedAdapter

WHERE: tuple[Place | Trial, ...] = (
    places.TIGHT,
    places.UNCACHED,
    places.FULL,
    places.SLIDING,
    places.TOLD,
    places.MAMBA,
    places.CHUNKED,
    places.LATER,
    places.DRAFTS,
    places.EAGLE,
    places.SLIDING_EAGLE,
    places.SLIDING_WIDE,
    places.SLIDING_NARROW,
    places.SLIDING_LATER,
    places.SLIDING_BATCH,
    places.SLIDING_UNCACHED,
    places.MAMBA_NARROW,
    places.MAMBA_EAGLE,
    places.FINE,
    places.SPLIT,
    places.COLLIDING,
    places.SALTED,
    trials.keys,
    trials.pool,
    Place(
        scope(Full(), 1, "mutants, crowded", 4, 3, "reset", prompts=strings(2, 1, 2), outputs=(0, 1)), CrowdedAdapter
    ),
    Place(scope(Full(), 1, "mutants, wrong calls", 4, 3, "chunks misuse preempt", prompts=strings(2, 1, 2))),
    Place(scope(Sliding(3), 2, "mutants, wrong calls", 4, 5, "chunks misuse trim")),
    Place(scope(Mamba(), 1, "mutants, wrong calls", 4, 3, "chunks misuse trim")),
    Place(scope(Mamba(), 2, "mutants, uncached", 4, 5, "chunks misuse preempt batch trim", caching=False)),
    Place(scope(Full(), 1, "mutants, held", 4, 3, "hold reset trim adopt")),
    Place(scope(Chunked(4), 2, "mutants", 5, 6, "chunks trim batch")),
    Place(scope(Sliding(2), 1, "mutants, drafts", 5, 4, "batch", lookaheads=(0, 1), drafts=1, max_model_len=5)),
)
