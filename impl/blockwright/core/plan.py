"""What a step asks for, and the answer: whether it fits, and what it takes.

Planning counts and changes nothing; what it counted is exactly what the step then takes (law: PLAN-1). `allocate_slots`
plans and commits in one go; `KVCacheManager.plan` hands the answer out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from librt.vecs import append, vec
from mypy_extensions import i64

from blockwright.core.blocks import KVCacheBlocks
from blockwright.core.request import MAX_LENGTH, Request
from blockwright.errors import InvalidArgumentError


@final
class Ask:
    """One request's wishes for one step, and what counting them came to.

    ::

        | computed | hit | external | new (the last of them drafts) | ahead |
                         ^ begin    ^ resumed             ^ certain ^ stop  ^ slots

    `resumed` is where tokens are computed: behind the load, or before the last known token if all of them are loaded.
    """

    def __init__(self) -> None:
        """Ask for nothing."""
        self.new: i64 = 0
        self.ahead: i64 = 0
        self.drafts: i64 = 0
        self.external: i64 = 0
        self.encoder: i64 = 0
        self.reserve: i64 = 0
        self.is_whole = False
        self.is_delayed = False
        self.hit: KVCacheBlocks | None = None
        self.hit_length: i64 = 0
        self.is_planned = False
        # Counted.
        self.begin: i64 = 0
        self.certain: i64 = 0
        self.stop: i64 = 0
        self.slots: i64 = 0
        self.settled: i64 = 0
        self.resumed: i64 = 0
        self.demand: i64 = 0
        self.missing: i64 = 0
        self.most: i64 = 0
        self.is_too_long = False

    def take(self, drafts: int, external: int, encoder: int, reserve: int) -> None:
        """Take what few steps ask for, checked; zeros ask for nothing."""
        self.drafts = count_of("num_draft_tokens", drafts)
        self.external = count_of("num_external_computed_tokens", external)
        self.encoder = count_of("num_encoder_tokens", encoder)
        self.reserve = count_of("reserved_blocks", reserve)


class Plan:
    """An answer to "can this step happen?": `Fits`, `NotNow` or `Never`.

    Attributes:
        request_id: the request.
    """

    def __init__(self, request_id: str) -> None:
        """Answer for a request."""
        self.request_id = request_id


@final
class Fits(Plan):
    """The step can happen; `KVCacheManager.commit` makes it, as long as the pool and the request stay as they are.

    Attributes:
        num_blocks: blocks that leave the free queue: new ones, and hits that are free now.
    """

    def __init__(self, request: Request, ask: Ask, owner: i64, version: i64, moment: tuple[int, ...]) -> None:
        """Keep what was counted, and the state it was counted in."""
        super().__init__(request.request_id)
        self.num_blocks: int = ask.demand
        self._request = request
        self._ask = ask
        self._owner: i64 = owner
        self._version: i64 = version
        self._moment = moment

    def __repr__(self) -> str:
        """Show the demand."""
        return f"Fits({self.request_id!r}, num_blocks={self.num_blocks})"


@final
class NotNow(Plan):
    """The step can happen once others have released blocks.

    Attributes:
        num_missing_blocks: blocks that must become free first, watermark and reserve included.
    """

    def __init__(self, request_id: str, num_missing_blocks: int) -> None:
        """Say what is missing."""
        super().__init__(request_id)
        self.num_missing_blocks = num_missing_blocks

    def __repr__(self) -> str:
        """Show what is missing."""
        return f"NotNow({self.request_id!r}, num_missing_blocks={self.num_missing_blocks})"


@final
class Never(Plan):
    """The step cannot happen with this pool or this model, however many blocks are free.

    Attributes:
        reason: what is too long or too small, with both numbers.
    """

    def __init__(self, request_id: str, reason: str) -> None:
        """Say why."""
        super().__init__(request_id)
        self.reason = reason

    def __repr__(self) -> str:
        """Show the reason."""
        return f"Never({self.request_id!r}, {self.reason!r})"


def counts_of(name: str, given: int | Sequence[int], size: i64) -> vec[i64]:
    """Return one count per request, each within what 64 bits hold safely."""
    if isinstance(given, int):
        count: i64 = count_of(name, given)
        return vec[i64]([count] * size)
    counts = vec[i64](capacity=size)
    for each in given:
        counts = append(counts, count_of(name, each))
    if i64(len(counts)) != size:
        raise InvalidArgumentError(f"{name}: {len(counts)} counts for {size} requests; give one each, or one for all")
    return counts


def count_of(name: str, given: int) -> i64:
    """Return a count, checked to be an integer in a safe range."""
    count = int(given) if isinstance(given, int) else -1  # an exact one, which runs no foreign code any more
    if count < 0 or count > MAX_LENGTH:
        raise InvalidArgumentError(f"{name}: must be an integer within 0..{MAX_LENGTH}, not {given!r}")
    return count
