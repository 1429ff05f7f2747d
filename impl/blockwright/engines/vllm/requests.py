"""A request of vLLM as the manager's own: its tokens and block hashes enter once, and only when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blockwright import GivenHasher, Request
from blockwright.core.keys.request import MAX_TOKEN_ID
from blockwright.errors import InvalidArgumentError

if TYPE_CHECKING:
    from blockwright.engines.vllm.settings import Settings

NEVER = -1
"""A bound that no step is within: the manager is asked."""

FOR_EVER = 1 << 62
"""More tokens than any request has."""


class Twin:
    """What the adapter knows of one vLLM request while both live; it hangs on the request (`_blockwright`).

    All are counts of tokens. Beside it hangs `_blockwright_quiet`: a step that ends at or before it changes no table.
    """

    __slots__ = (
        "certain",  # cannot go back.
        "cover",  # slots that all tables have.
        "due",  # given slots, and to be found by the next lookup as far as they are known.
        "early",  # its known tokens, whose blocks other layers have yet to publish; where layers are recurrent.
        "fill",  # where the first block ends that is neither published nor due.
        # Of a session, tokens that were known when its last step was given slots, or was said to be computed. What
        # comes after them may be dropped with the next turn, so nothing is learned of it, trimmed by it or published.
        "heard",
        "is_exact",  # whether the last step that the core has heard of ends within the known tokens.
        "is_session",  # further turns may be added to it (vLLM's resumable requests), of which none is told.
        "junction",  # up to where other layers had the prefix at the last lookup, if that was beyond the hit.
        "loading",  # tokens of the hit under a load, and of the load; None where none is under way.
        # Tokens behind a block that its hash also covers (0.33); the block is published once they are known.
        "lookahead",
        "num_prompt",  # of its turns so far, as vLLM counts the prompt. It grows with a turn, and with nothing else.
        "published",  # may be found by lookups.
        "request",  # the manager's request, which learns tokens late: before lookups and publications.
        "stop",  # of a session, where that step ends.
        "table",  # a step that ends beyond it needs the manager.
        "takes_whole",  # whether its next hit is to end with blocks, since a connector brings what follows.
        "trim",  # from when on a further table entry is not read.
    )

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
        """Return the manager's request for tokens, some of which may be placeholders (-1) of steps in flight."""
        try:
            return Request(name, tokens, hash_block_size, hasher=hasher)
        except InvalidArgumentError:
            return Request(name, _masked(tokens), hash_block_size, hasher=hasher)

    @property
    def written(self) -> int:
        """Tokens with slots, as far as the core has heard; steps that changed no table may have gone further."""
        return self.request.num_computed_tokens

    def forget(self) -> None:
        """Hold nothing."""
        self.table = self.fill = NEVER
        self.trim = FOR_EVER
        self.is_exact = self.takes_whole = False
        self.early = self.junction = self.stop = 0
        self.heard = FOR_EVER
        self.cover = self.certain = self.due = self.published = 0
        self.loading: tuple[int, int] | None = None
        self.request.num_computed_tokens = 0

    def learn(self, request: Any, stop: int) -> int:
        """Learn the tokens below `stop` that vLLM knows, and those that their hashes look ahead at. O(new tokens)."""
        # Return how many may be published then.
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


def twin_of(request: Any, settings: Settings, running: Mapping[str, Any]) -> Twin:
    """Return what hangs on a request, made when it first matters."""
    twin: Twin | None = getattr(request, "_blockwright", None)
    is_other = twin is not None and twin.num_prompt != request.num_prompt_tokens  # a turn that begins anew
    if twin is None or (is_other and request.request_id not in running):
        twin = request._blockwright = Twin(request, settings.hash_unit, settings.lookahead, settings.first)
        request._blockwright_quiet = NEVER
    return twin


def _masked(tokens: list[int]) -> list[int]:
    """Return tokens that can be packed: placeholders may be negative, and what identifies them is in vLLM's hashes."""
    return [token if 0 <= token <= MAX_TOKEN_ID else 0 for token in tokens]
