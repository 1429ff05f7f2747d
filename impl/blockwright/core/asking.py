"""What may be asked for: every argument of a step, checked before anything is counted.

Each check raises one typed error that names the argument and the remedy, and leaves everything as it was.
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.blocks import KVCacheBlocks
from blockwright.core.plan import Ask
from blockwright.core.request import Request
from blockwright.core.running import RunningRequests
from blockwright.core.tables import RequestTables
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, StaleHitError, UnknownStepError


class CheckedRequests(RunningRequests):
    """Running requests that check what they are asked for."""

    def _check_ask(self, request: Request, tables: RequestTables | None, ask: Ask) -> None:
        """Check what a request asks for against what it has, and fill in where the step begins and ends."""
        written: i64 = 0
        certain: i64 = 0
        if tables is not None:
            written = tables.num_written
            certain = tables.num_certain
        given = request._num_computed
        if given < 0 or given > int(written):
            raise InvalidArgumentError(
                f"num_computed_tokens: request {request.request_id!r} says {given}, but has slots written for "
                f"{written} tokens; a request that was freed starts again at 0"
            )
        computed: i64 = given
        ask.begin = computed + ask.hit_length
        ask.stop = ask.begin + ask.external + ask.new
        ask.certain = ask.stop - ask.drafts
        if ask.stop == computed:
            raise InvalidArgumentError("num_new_tokens: must be at least 1 (or 0 together with a hit or a load)")
        if ask.external > 0 or ask.encoder > 0:
            self._check_admission(request, tables, ask)
        if ask.stop > self._max_len:
            if ask.is_planned:
                ask.is_too_long = True
                return
            raise InvalidArgumentError(
                f"num_new_tokens: request {request.request_id!r} would have {ask.stop} tokens, "
                f"max_model_len is {self._max_len}"
            )
        if ask.drafts > 0 or self._most_drafts >= 0:
            self._check_drafts(request, ask)
        if tables is None:
            if self._overlaps and ask.new > 0 and len(self._steps) == 0:
                raise UnknownStepError("allocate_slots: no step has been started; call start_step first")
            return
        if computed < certain:
            raise InvalidArgumentError(
                f"num_computed_tokens: request {request.request_id!r} went back from {written} to {computed}, but "
                f"{certain} tokens are certain; only drafts can be taken back, else free it and start again"
            )
        if tables.num_loading > 0:
            raise InvalidArgumentError(
                f"request: {tables.num_loading} tokens of {request.request_id!r} are being loaded; "
                "call finish_load first"
            )
        if self._overlaps:
            self._check_step(request, tables)

    def _check_admission(self, request: Request, tables: RequestTables | None, ask: Ask) -> None:
        """Check tokens that come from elsewhere: loaded ones, and the encoder's."""
        name = request.request_id
        if ask.external > 0:
            if tables is not None:
                raise InvalidArgumentError(
                    f"num_external_computed_tokens: {name!r} runs already; only a new request loads"
                )
            if ask.new > 0:
                raise InvalidArgumentError(
                    "num_external_computed_tokens: tokens are computed after the load has ended; pass num_new_tokens=0 "
                    "here, call finish_load, and allocate then"
                )
            if ask.stop >= request.num_tokens:
                raise InvalidArgumentError(
                    f"num_external_computed_tokens: {ask.stop} loaded tokens leave none to compute of "
                    f"{request.num_tokens} of {name!r}"
                )
            if name in self._loads:
                raise DuplicateRequestError(
                    f"request: an earlier load of {name!r} is still on its way; call finish_load for it first"
                )
        if ask.encoder > 0:
            if not any([manager.is_encoder for manager in self.managers]):
                raise InvalidArgumentError("num_encoder_tokens: no group of layers is cross attention")
            if tables is not None:
                raise InvalidArgumentError(
                    f"num_encoder_tokens: {name!r} runs already; it was given them when it started"
                )

    def _check_drafts(self, request: Request, ask: Ask) -> None:
        """Check that drafts are drafts, and that recurrent states can be taken back from them. law: MAMBA-3."""
        known: i64 = request._num_prompt + i64(len(request._output))
        if ask.drafts > 0 and (ask.drafts >= ask.new or ask.certain < known):
            raise InvalidArgumentError(
                f"num_draft_tokens: {ask.drafts} of {ask.new} new tokens cannot be drafts: {request.request_id!r} "
                f"knows {known} tokens, and a step computes at least one token that is none"
            )
        most = self._most_drafts
        if most < 0:
            return
        if ask.drafts > most or ask.ahead > most:
            name = "num_draft_tokens" if ask.drafts > most else "num_lookahead_tokens"
            raise InvalidArgumentError(
                f"{name}: a recurrent layer keeps the states of {most} drafts (num_speculative_blocks), "
                f"not of {max(ask.drafts, ask.ahead)}"
            )
        if ask.certain > known and not (self._overlaps and ask.new - ask.drafts == 1):
            raise InvalidArgumentError(
                f"num_new_tokens: a recurrent state must not run ahead of the {known} known tokens of "
                f"{request.request_id!r}; say how many are drafts by num_draft_tokens"
            )

    def _check_step(self, request: Request, tables: RequestTables) -> None:
        """Check that the open step can compute more tokens of a running request."""
        if len(self._steps) == 0:
            raise UnknownStepError("allocate_slots: no step has been started; call start_step first")
        if tables.last_step == self._num_steps:
            raise DuplicateRequestError(
                f"request: {request.request_id!r} has its slots in step {self._num_steps} already; start the next step"
            )
        if self._most_drafts < 0 or tables.num_drafts == 0:
            return
        known: i64 = request._num_prompt + i64(len(request._output))
        if tables.last_step >= self._steps[0].number or known < tables.num_written:
            raise InvalidArgumentError(
                f"request: a recurrent layer of {request.request_id!r} must know which of {tables.num_drafts} drafts "
                "hold; settle their step and append the accepted tokens first"
            )

    def _check_hit(
        self, request: Request, tables: RequestTables | None, num_new_computed_tokens: int, blocks: KVCacheBlocks | None
    ) -> i64:
        """Check a hit's shape; return its tokens."""
        expected: i64 = 0
        if blocks is not None:
            if not blocks.pool_is(self.block_pool):
                if any([len(ids) for ids in blocks.ids]):
                    raise StaleHitError("new_computed_blocks: the hit is another manager's")
            elif len(blocks.ids) != len(self.managers):
                raise StaleHitError(
                    f"new_computed_blocks: {len(blocks.ids)} groups, the manager has {len(self.managers)}"
                )
            else:
                expected = i64(len(blocks.ids[0])) * self.managers[0]._block_size
                for manager, ids in zip(self.managers, blocks.ids):
                    if i64(len(ids)) * manager._block_size != expected:
                        raise StaleHitError("new_computed_blocks: the groups' hits differ in length")
        if num_new_computed_tokens != int(expected):
            raise StaleHitError(
                f"num_new_computed_tokens: the hit holds {expected} tokens, not {num_new_computed_tokens}; "
                "pass both as get_computed_blocks returned them"
            )
        if expected == 0:
            return 0
        if tables is not None:
            raise InvalidArgumentError(
                f"new_computed_blocks: request {request.request_id!r} runs already; only a new request adopts a hit"
            )
        if request._block_size == 0:
            raise InvalidArgumentError(
                f"request: {request.request_id!r} was made with block_size=None, so it has no keys and adopts no hit"
            )
        if not self.enable_caching:
            raise InvalidArgumentError("new_computed_blocks: the manager was made without enable_caching")
        if request._num_computed != 0:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be 0 before a hit is adopted, not {request._num_computed}"
            )
        if expected >= request.num_tokens:
            raise StaleHitError(
                f"num_new_computed_tokens: a hit of {expected} leaves no token to compute of {request.num_tokens}"
            )
        return expected
