"""Part one, chapter 20: what else a step may ask for: slots ahead, an encoder's tokens, a state at a checkpoint.

Slots ahead of its own, in which nothing is computed yet, are for drafts to come. An encoder's output comes whole as its
request is admitted, and stays until that ends (CROSS-1). With a checkpoint, a step over a prompt leaves the recurrent
state at the last block end before its own as well, which other prompts are more likely to hit (MAMBA-7).
"""

from dataclasses import dataclass

from ..reads import Mamba
from . import outcomes
from .keys import stride
from .outcomes import Reason
from .state import Config


@dataclass(frozen=True, slots=True)
class Step(outcomes.Step):
    """A step with `lookahead` slots behind its tokens, slots for those of an `encoder`, and a `checkpoint`."""

    lookahead: int = 0
    encoder: int = 0
    checkpoint: int = 0

    def ahead(self) -> int:
        """Return the lookahead."""
        return self.lookahead

    def beside(self) -> int:
        """Return the encoder's tokens."""
        return self.encoder

    def inside(self) -> int:
        """Return the checkpoint."""
        return self.checkpoint

    def refusal(self, config: Config, known: int, begin: int) -> Reason | None:
        """Refuse a checkpoint that is not the end of the last entry but one of a step over known tokens (MAMBA-7)."""
        stop, sizes = begin + self.new, tuple(each.block_size for each in config.groups if isinstance(each.kind, Mamba))
        is_plain = config.caching and stop <= known and not (config.overlaps or stride(config) or self.external)
        is_kept = all(begin + size <= self.checkpoint == (stop - 1) // size * size for size in sizes)
        return Reason.NO_CHECKPOINT if self.checkpoint > 0 and not (sizes and is_plain and is_kept) else None
