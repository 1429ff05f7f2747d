"""Hands the chain's transfers to the worker, in order, and reports their ends to the chain.

A transfer that the worker refuses is tried again once others have ended, since their end may make room; while nothing
is under way a refusal is final, and the transfer has failed. Those between other media go on meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Final

from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.transfers import DEMOTE, Transfer
from blockwright.offload.worker import OffloadingWorker

LONGEST_PAUSE: Final = 0.01
"""Seconds between two looks at transfers that are waited for within a time."""


class TransferDesk:
    """Passes transfers from one chain to one worker, and their ends back.

    Attributes:
        num_refused: transfers that failed because the worker would not begin them.
        num_ended, num_lowered: transfers that have ended, and how many of them went to a lower tier.
    """

    def __init__(self, chain: OffloadChain, worker: OffloadingWorker) -> None:
        self._chain = chain
        self._worker = worker
        self._waiting: deque[Transfer] = deque()
        self._under_way: set[int] = set()
        self.num_refused = self.num_ended = self.num_lowered = 0

    @property
    def under_way(self) -> frozenset[int]:
        """Return the transfers that the worker has begun and not reported."""
        return frozenset(self._under_way)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not self._waiting and not self._under_way

    def submit(self) -> None:
        """Begin every transfer that may start, except those that the worker refuses for now."""
        while True:
            self._waiting.extend(self._chain.take_transfers())
            kept: deque[Transfer] = deque()
            # A refusal concerns its pair of media: later ones would be refused too, or overtake it.
            full: set[tuple[str, str]] = set()
            while self._waiting:
                transfer = self._waiting.popleft()
                media = (transfer.source.medium(), transfer.destination.medium())
                if media in full or not self._begin(transfer):
                    full.add(media)
                    kept.append(transfer)
            if not kept:
                return
            self._waiting = kept
            if self._under_way:
                return
            self._fail(self._waiting.popleft())  # nothing is under way whose end could make room

    def run_first(self, job_ids: Collection[int]) -> Exception | None:
        """Begin these transfers before all that wait, and have what comes later on the device come after them.

        One that cannot be begun has failed, because its source will be overwritten. Returns the error that a handler
        has raised during the wait.
        """
        failure = None
        for transfer in self.take(job_ids):
            if self._begin(transfer):
                continue
            # The worker is full: what it has must end first, as this copy cannot wait for the step.
            failure = self._worker.waited(self._under_way) or failure
            self.collect()
            if not self._begin(transfer):
                self._fail(transfer)
        failure = self._worker.waited([job_id for job_id in job_ids if job_id in self._under_way]) or failure
        self.collect()
        return failure

    def take(self, job_ids: Collection[int]) -> list[Transfer]:
        """Take transfers that have not begun out of those that wait, in order; the caller sees to them."""
        self._waiting.extend(self._chain.take_transfers())
        taken = [transfer for transfer in self._waiting if transfer.job_id in job_ids]
        self._waiting = deque(transfer for transfer in self._waiting if transfer.job_id not in job_ids)
        return taken

    def collect(self) -> bool:
        """Tell the chain of every transfer that has ended; return whether one has."""
        ended = [each for each in self._worker.get_finished() if each[0] in self._under_way]
        for job_id, success in ended:
            self._under_way.remove(job_id)
            self.num_ended += 1
            self.num_lowered += self._chain.finish(job_id, success).kind == DEMOTE
        return bool(ended)

    def landed(self, timeout: float) -> bool:
        """Begin what may start, wait until a transfer has ended, and return whether one has in `timeout` seconds.

        By looking again and again, since a handler may not come back from being waited for.
        """
        self.submit()
        end, pause = time.monotonic() + timeout, 0.0001
        while self._under_way:
            if self.collect():
                return True
            left = end - time.monotonic()
            if left <= 0:
                break
            # Short at first, as most transfers of a block end within a millisecond.
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return False

    def _begin(self, transfer: Transfer) -> bool:
        if not self._worker.transfer_async(transfer.job_id, (transfer.source, transfer.destination)):
            return False
        self._under_way.add(transfer.job_id)
        return True

    def _fail(self, transfer: Transfer) -> None:
        self.num_refused += 1
        self._chain.finish(transfer.job_id, False)
