"""Part one, chapter 20: what else a step may ask for: drafts, a load, an encoder's tokens, a checkpoint.

The last of its tokens may be drafts, which hold or not: a recurrent layer has a state to go back to (MAMBA-3). Tokens
that are kept elsewhere are loaded: they come alone (chapter `in_time.in_flight`). Slots ahead, still empty, are for
drafts to come. An encoder's output comes whole with the admission, and stays (CROSS-1). With a checkpoint, a step over
a prompt leaves the recurrent state at the last block end before its own, which others may hit (MAMBA-7).
"""

from dataclasses import dataclass

from ..reads import Cross, Mamba
from . import outcomes
from .facts import recurrent
from .keys import stride
from .outcomes import Reason
from .state import Config


@dataclass(frozen=True, slots=True)
class Step(outcomes.Step):
    """A step with `drafts` as its last tokens, or a load of `external` ones; `lookahead`, `encoder`, `checkpoint`."""

    drafts: int = 0
    external: int = 0
    lookahead: int = 0
    encoder: int = 0
    checkpoint: int = 0

    def uncertain(self) -> int:
        return self.drafts

    def coming(self) -> int:
        return self.external

    def ahead(self) -> int:
        return self.lookahead

    def beside(self) -> int:
        return self.encoder

    def inside(self) -> int:
        return self.checkpoint

    def mismatch(self, config: Config, known: int, begin: int) -> Reason | None:
        """Refuse a load of more than is known or beside other tokens, and encoder tokens that no layer reads."""
        end = begin + self.external
        if self.external > 0 and (self.new > 0 or end > known or (recurrent(config) and end == known)):
            return Reason.LOAD_ALONE
        is_read = any(isinstance(group.kind, Cross) for group in config.groups)
        return Reason.NO_ENCODER if self.encoder > 0 and not is_read else None

    def refusal(self, config: Config, known: int, begin: int) -> Reason | None:
        """Refuse drafts that are known or alone, and checkpoints but at the end of the last entry but one (MAMBA-7)."""
        end = begin + self.external + self.new - self.drafts
        if self.drafts > 0 and (self.drafts >= self.new or end < known):
            return Reason.TOO_MANY_DRAFTS
        stop, sizes = begin + self.new, tuple(each.block_size for each in config.groups if isinstance(each.kind, Mamba))
        is_plain = config.caching and stop <= known and not (config.overlaps or stride(config) or self.external)
        is_kept = all(begin + size <= self.checkpoint == (stop - 1) // size * size for size in sizes)
        return Reason.NO_CHECKPOINT if self.checkpoint > 0 and not (sizes and is_plain and is_kept) else None
