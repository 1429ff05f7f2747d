"""The blocks that hold states: which of them a step reads and writes, checked, and done.

Tokens are numbered as in the step; each belongs to one request, and is one of its tokens in turn.
"""

from __future__ import annotations

import torch

from blockwright.device.operands import (
    FLOATS,
    IDS,
    SMALL_FLOATS,
    as_bytes,
    on_host,
    require_bound,
    require_tensor,
    require_written,
    stored,
)
from blockwright.errors import BlockError, InvalidArgumentError


class StateSteps:
    """The tokens of a step, request by request.

    Attributes:
        request: (tokens,) the request of each token; of padding, some request.
        place: (tokens,) which of its request's tokens it is in this step.
        real: (tokens,) False for padding.
        counts: (requests,) tokens of each request.
        longest: a bound of `counts`.
        drafts: (requests,) how many of them are drafts, the last ones.
    """

    def __init__(
        self,
        cache: torch.Tensor,
        tokens: int,
        state_reads: torch.Tensor,
        state_writes: torch.Tensor,
        query_start_loc: torch.Tensor,
        num_draft_tokens: torch.Tensor | None,
        max_query_len: int | None,
        check: bool,
    ) -> None:
        device = cache.device
        starts = require_tensor("query_start_loc", query_start_loc, ("requests + 1",), IDS, device)
        if not starts.shape[0]:
            raise InvalidArgumentError("query_start_loc is empty; pass 0 and then where each request's tokens end")
        requests = starts.shape[0] - 1
        self.reads = require_tensor("state_reads", state_reads, (requests,), IDS, device).long()
        self.writes = require_tensor("state_writes", state_writes, (requests, "1 + drafts"), IDS, device).long()
        if not self.writes.shape[1]:
            raise InvalidArgumentError(
                "state_writes has no columns; pass a block for the certain tokens of each request"
            )
        if num_draft_tokens is None:
            self.drafts = (self.writes[:, 1:] > 0).sum(1)
        else:
            self.drafts = require_tensor("num_draft_tokens", num_draft_tokens, (requests,), IDS, device).long()
        self.starts = starts.long()
        self.counts = self.starts.diff()
        require_bound("max_query_len", max_query_len)
        self.checked = on_host(starts, check)
        if self.checked:
            self._check(tokens, int(cache.shape[0]), max_query_len)
        if max_query_len is None or self.checked:
            max_query_len = int(self.counts.max()) if requests else 0
        self.longest = min(max_query_len, tokens)
        row = torch.arange(tokens, device=device)
        # Padding counts as the last request's, so that every row can index one; `real` tells it apart.
        self.request = torch.searchsorted(self.starts, row, right=True).sub(1).clamp(0, max(0, requests - 1))
        self.place = row - self.starts[self.request] if requests else row
        self.real = row < self.starts[-1]

    def _check(self, tokens: int, num_blocks: int, max_query_len: int | None) -> None:
        starts, counts = self.starts.tolist(), self.counts.tolist()
        if starts[0] != 0 or min(counts, default=0) < 0 or starts[-1] > tokens:
            raise InvalidArgumentError(
                f"query_start_loc must rise from 0 to at most the step's {tokens} tokens, not {starts}"
            )
        if max_query_len is not None and max(counts, default=0) > max_query_len:
            raise InvalidArgumentError(
                f"max_query_len={max_query_len}, and a request has {max(counts)}; on a GPU the rest would be left out"
            )
        written: set[int] = set()
        for request, (count, drafts, read, writes) in enumerate(
            zip(counts, self.drafts.tolist(), self.reads.tolist(), self.writes.tolist(), strict=True)
        ):
            # Padding: no state of it is read or written, so its blocks may be anything.
            if count == 0:
                continue
            if not 0 <= drafts < min(count, len(writes)):
                raise InvalidArgumentError(
                    f"num_draft_tokens: request {request} has {drafts} of {count} tokens and {len(writes)} columns of "
                    "state_writes; at least one token is certain, and each draft has a column"
                )
            if not 0 <= read < num_blocks:
                raise BlockError(
                    f"state_reads: block {read} of request {request} is not within the cache's {num_blocks}; "
                    "pass the block of its state, or 0 to begin from zero"
                )
            for block in writes[: drafts + 1]:
                if not 0 < block < num_blocks:
                    what = "the null block" if block == 0 else f"{block}, none of the cache's {num_blocks}"
                    raise BlockError(
                        f"state_writes: a state of request {request} would go to {what}; "
                        "give it its slots before the step"
                    )
                if block in written:
                    raise BlockError(f"state_writes: block {block} is written twice; each state needs a separate block")
                written.add(block)

    def begin(self, cache: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        begins = self.reads > 0
        if self.checked and not bool(begins.any()):
            return torch.zeros((self.reads.shape[0], *cache.shape[1:]), dtype=dtype, device=cache.device)
        state = as_bytes(cache)[self.reads].view(cache.dtype).to(dtype)
        return torch.where(begins.reshape(-1, *[1] * (cache.dim() - 1)), state, torch.zeros_like(state))

    def ends(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (tokens after which a state is written, the blocks, and whether it really is): flat, equally long."""
        column = torch.arange(self.writes.shape[1], device=self.writes.device)
        token = self.starts[:-1, None] + (self.counts - 1 - self.drafts)[:, None] + column
        used = (column <= self.drafts[:, None]) & (self.counts > 0)[:, None] & (self.writes > 0)
        token, block, used = token.flatten(), self.writes.flatten(), used.flatten()
        if self.checked:
            return token[used], block[used], used[used]
        return token.clamp(0, max(0, self.real.shape[0] - 1)), torch.where(used, block, 0), used


def write_states(
    cache: torch.Tensor, block: torch.Tensor, states: torch.Tensor, used: torch.Tensor, whole: bool
) -> None:
    """Write states to their blocks; where not `used`, the null block is rewritten with its own content."""
    new = as_bytes(stored(states, cache.dtype))
    with torch.inference_mode():  # caches may be written whether or not they were made in it
        words = as_bytes(cache)
        if not whole:
            new = torch.where(used.reshape(-1, *[1] * (cache.dim() - 1)), new, words[0])
        words.index_put_((block,), new)


def require_state_cache(name: str, cache: torch.Tensor, dims: int) -> torch.Tensor:
    """Return `cache` if it is a tensor of `dims` dimensions, blocks first, whose elements share no memory."""
    cache = require_tensor(name, cache, ("num_blocks", *("size",) * (dims - 1)), FLOATS + SMALL_FLOATS, cache.device)
    require_written(name, cache)
    return cache
