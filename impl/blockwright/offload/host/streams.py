"""Blocks between a GPU and a `HostPool`: side streams that copy, and events that mark the end of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from blockwright.device import Transfer
from blockwright.offload.host.moves import Moves, Sides
from blockwright.offload.metrics import Counters, Outcome, Pair, TransferStats
from blockwright.offload.worker import OffloadingHandler, TransferResult, TransferSpec


@dataclass(frozen=True)
class _Queued:
    transfer: Transfer
    pair: Pair
    num_bytes: int
    begin: float


class StreamHandler(OffloadingHandler):
    """Transfers on two streams, one for each direction; called from one thread.

    A copy comes after all that the current stream held when it was queued. A GPU cannot be asked to stop, so that a
    transfer is neither cancelled nor out of time: it ends when its last copy has.
    """

    def __init__(self, sides: Sides, max_queued: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the streams; see `HostHandler` for the arguments."""
        self._sides = sides
        self._max_queued = max_queued
        self._clock = clock
        # One for each direction: a GPU copies both ways at the same time.
        self._streams = {to_host: torch.cuda.Stream(self._sides.tensors[0].device) for to_host in (True, False)}
        self._queued: dict[int, _Queued] = {}
        self._counters: dict[Pair, Counters] = {}
        self._closed = False

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Queue a transfer on the stream of its direction. After an error none of its copies is under way."""
        pair = (spec[0].medium(), spec[1].medium())
        counters = self._counters.setdefault(pair, Counters())
        if self._closed or job_id in self._queued or len(self._queued) >= self._max_queued:
            counters.refuse()
            return False
        try:
            self._queued[job_id] = self._begun(pair, self._sides.moves_of(spec))
        except BaseException:
            counters.refuse()
            raise
        counters.start()
        return True

    def _begun(self, pair: Pair, moves: Moves) -> _Queued:
        begin, stream = self._clock(), self._streams[moves.to_host]
        try:
            transfer = self._sides.swap(*moves, stream)
        except BaseException:
            stream.synchronize()  # what it has queued before the error touches blocks
            raise
        return _Queued(transfer, pair, self._sides.num_bytes(moves.pairs), begin)

    def get_finished(self) -> list[TransferResult]:
        ended = [job_id for job_id, queued in self._queued.items() if queued.transfer.done]
        for job_id in ended:
            queued = self._queued.pop(job_id)
            seconds = self._clock() - queued.begin
            self._counters[queued.pair].end(Outcome.FINISHED, queued.num_bytes, seconds)
        return [(job_id, True) for job_id in ended]

    def wait(self, job_ids: Collection[int]) -> None:
        """Let the current stream go on when these have ended; the host does not wait."""
        for job_id in job_ids:
            if job_id in self._queued:
                self._queued[job_id].transfer.wait()

    def stats(self) -> dict[Pair, TransferStats]:
        return {pair: counters.stats() for pair, counters in self._counters.items()}

    def close(self) -> None:
        """Let the host wait for the copies under way; from then on transfers are refused."""
        self._closed = True
        for queued in self._queued.values():
            queued.transfer.synchronize()
