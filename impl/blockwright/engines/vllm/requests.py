"""A request of vLLM as the manager's own: its tokens and block hashes enter once, and only when they are needed."""

from __future__ import annotations

from typing import Any

from blockwright import GivenHasher, Request
from blockwright.core.keys.request import MAX_TOKEN_ID
from blockwright.errors import InvalidArgumentError

NEVER = -1
"""A bound that no step is within: the manager is asked."""

FOR_EVER = 1 << 62
"""More tokens than any request has."""


class Twin:
    """What the adapter knows of one vLLM request while both live; it hangs on the request (`_blockwright`).

    All are counts of tokens. Beside it hangs `_blockwright_quiet`: a step that ends at or before it changes no table.

    Attributes:
        request: the manager's request, which learns tokens late: before lookups and publications.
        certain: cannot go back.
        written: have slots, as far as the manager has heard; steps that changed no table may have gone further.
        published: may be found by lookups.
        due: given slots, and to be found by the next lookup as far as they are known.
        fill: where the first block ends that is neither published nor due.
        cover: slots that all tables have.
        trim: from when on a further table entry is not read.
        table: a step that ends beyond it needs the manager.
        loading: tokens of the hit under a load, and of the load; None where none is under way.
        is_exact, end: of the last step that the manager has heard of, whether it ends within the known tokens, and the
            last block end that it may pass; where layers are recurrent.
        early: its known tokens, whose blocks other layers have yet to publish; where layers are recurrent.
        junction: up to where other layers had the prefix at the last lookup, if that was beyond the hit.
        noted: hashes that were kept for a connector, by their number.
        offered: of each group with recurrent states, the tokens of the last one that a connector was offered.
        takes_whole: whether its next hit is to end with blocks, since a connector brings what follows.
        lookahead: tokens behind a block that its hash also covers (0.33); the block is published once they are known.
        is_session: further turns may be added to it (vLLM's resumable requests), of which none is told.
        num_prompt: of its turns so far, as vLLM counts the prompt. It grows with a turn, and with nothing else.
        heard: of a session, tokens that were known when its last step was given slots, or was said to be computed. What
            comes after them may be dropped with the next turn, so nothing is learned of it, trimmed by it or published.
        stop: of a session, where that step ends.
    """

    __slots__ = (
        "certain", "cover", "due", "early", "end", "fill", "heard", "is_exact", "is_session", "junction", "loading",
        "lookahead", "noted", "num_prompt", "offered", "published", "request", "stop", "table",
        "takes_whole", "trim", "written",
    )  # fmt: skip

    def __init__(self, request: Any, hash_block_size: int | None, lookahead: int, first: int) -> None:
        """Make the manager's request of one of vLLM's; the key of its first block is hash number `first`."""
        tokens = request.all_token_ids[:]
        hasher = GivenHasher(request.block_hashes, key_lookahead=lookahead, first=first)
        self.lookahead = lookahead
        self.is_session = bool(getattr(request, "resumable", False))
        self.num_prompt: int = request.num_prompt_tokens
        self.request = self.request_of(request.request_id, tokens, hash_block_size, hasher)
        self.forget()

    @staticmethod
    def request_of(name: str, tokens: list[int], hash_block_size: int | None, hasher: GivenHasher) -> Request:
        """Return the manager's request of tokens, placeholders among them."""
        try:
            return Request(name, tokens, hash_block_size, hasher=hasher)
        except InvalidArgumentError:
            return Request(name, _masked(tokens), hash_block_size, hasher=hasher)

    def forget(self) -> None:
        """Hold nothing."""
        self.table = self.fill = NEVER
        self.trim = FOR_EVER
        self.is_exact = self.takes_whole = False
        self.end = self.early = self.junction = self.stop = 0
        self.heard = FOR_EVER
        self.cover = self.written = self.certain = self.due = self.published = self.noted = 0
        self.loading: tuple[int, int] | None = None
        self.offered: dict[int, int] = {}
        self.request.num_computed_tokens = 0

    def learn(self, request: Any, stop: int) -> int:
        """Learn the tokens below `stop` that vLLM knows, and those that their hashes look ahead at. O(new tokens).

        Return how many may be published then.
        """
        known = self.request.num_tokens
        stop += self.lookahead
        if stop > self.heard:
            stop = self.heard
        if stop > known and (tokens := request.all_token_ids[known:stop]):
            try:
                self.request.append_output_token_ids(tokens)
            except InvalidArgumentError:
                self.request.append_output_token_ids(_masked(tokens))
            known += len(tokens)
        return known - self.lookahead


def _masked(tokens: list[int]) -> list[int]:
    """Return tokens that can be packed: placeholders may be negative, and what identifies them is in vLLM's hashes."""
    return [token if 0 <= token <= MAX_TOKEN_ID else 0 for token in tokens]
