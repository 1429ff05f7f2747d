"""The side of offloading that moves bytes: handlers of transfers, and the worker that chooses among them.

Source: section 6 of the named systems (`OffloadingHandler`, `OffloadingWorker`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from blockwright.errors import InterruptedCallError, InvalidArgumentError
from blockwright.offload.failures import name_of
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.metrics import Pair, TransferStats
from blockwright.offload.tiers.interfaces import LoadStoreSpec
from blockwright.offload.tiers.wholeness import Wholeness

_log = logging.getLogger(__name__)

TransferSpec = tuple[LoadStoreSpec, LoadStoreSpec]
"""Where a transfer reads, and where it writes."""

TransferResult = tuple[int, bool]
"""Which transfer has ended, and whether all of it arrived."""


class OffloadingHandler(ABC):
    """Moves blocks from one medium to another, asynchronously."""

    @abstractmethod
    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Begin a transfer; False if it is refused, for example since too many wait already."""

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that have ended since the last call; nothing touches their blocks any more."""

    def cancel(self, job_id: int) -> bool:
        """Ask a transfer to end early, as a failure that `get_finished` reports; False if it cannot or has ended."""
        return False

    def wait(self, job_ids: Collection[int]) -> None:
        """Let what comes later on the host, or on the current stream of a GPU, come after these transfers."""
        raise NotImplementedError

    def stats(self) -> Mapping[Pair, TransferStats]:
        """Return what became of the transfers, for each pair of media; empty if the handler does not count."""
        return {}

    def places_of(self, medium: str) -> int | None:
        """Return how many blocks of a medium it reaches, counted from 0, or None if it does not report this."""
        return None

    def identities(self) -> Collection[CacheIdentity]:
        """Return the identities of the stores that it moves blocks to, as far as they report them."""
        return ()

    def close(self) -> None:
        """End all transfers, and release the handler's resources."""
        return


class PairStats(NamedTuple):
    """The jobs of one source medium and one destination medium, as the worker saw them.

    Attributes:
        submitted: given to `transfer_async`.
        refused: for which that returned False, whatever the reason; those in the next field among them.
        raised: transfers for which the handler raised an error.
        succeeded: reported as a success.
        failed: reported as a failure.
        transfers: the handler's own counts, or None.
    """

    submitted: int = 0
    refused: int = 0
    raised: int = 0
    succeeded: int = 0
    failed: int = 0
    transfers: TransferStats | None = None


class OffloadingWorker:
    """Gives every transfer to the handler of its pair of media, and keeps what handlers do wrong from the engine.

    Called from one thread. A handler may serve several pairs. After a call that was ended in its middle, by an
    interrupt or for want of memory, in the worker or in a handler, every later one raises `InterruptedCallError`.
    """

    def __init__(self) -> None:
        self._handlers: dict[Pair, OffloadingHandler] = {}
        self._jobs: dict[int, Pair] = {}
        self._counts: dict[Pair, Counter[str]] = {}
        self._num_handler_errors = 0
        self._whole = Wholeness("close the worker, and make a new one with new handlers")

    @property
    def num_handler_errors(self) -> int:
        """How often a handler raised an error, or reported a transfer that it was not given."""
        return self._num_handler_errors

    @property
    def num_under_way(self) -> int:
        """Number of jobs that have begun and were not reported yet."""
        return len(self._jobs)

    def register_handler(
        self, src_cls: type[LoadStoreSpec], dst_cls: type[LoadStoreSpec], handler: OffloadingHandler
    ) -> None:
        """Let `handler` serve the transfers from one medium to another.

        Raises:
            InvalidArgumentError: the pair has a handler already.
        """
        pair = (src_cls.medium(), dst_cls.medium())
        if pair in self._handlers:
            raise InvalidArgumentError(f"{pair[0]} to {pair[1]} has a handler already; register one for each pair")
        self._handlers[pair] = handler

    def handler_of(self, pair: Pair) -> OffloadingHandler | None:
        """Return what serves the transfers from one medium, by its name, to another; None if nothing does."""
        return self._handlers.get(pair)

    def handlers(self) -> list[OffloadingHandler]:
        """Return the handlers, each once."""
        return list({id(handler): handler for handler in self._handlers.values()}.values())

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Begin a transfer.

        Returns:
            False if it has failed at once, and no byte of it is moved: no handler serves the media, the handler
            refuses or raises (which is logged), or `job_id` is under way. `get_finished` does not report it then.
        """
        pair = (spec[0].medium(), spec[1].medium())
        with self._whole:
            counts = self._counts_of(pair)
            counts["submitted"] += 1
            if not self._begun(job_id, pair, spec):
                counts["refused"] += 1
                return False
            self._jobs[job_id] = pair
            return True

    def _begun(self, job_id: int, pair: Pair, spec: TransferSpec) -> bool:
        handler = self._handlers.get(pair)
        if handler is None:
            _log.warning("job %d is refused: no handler serves %s to %s", job_id, *pair)
            return False
        if job_id in self._jobs:
            _log.warning("job %d is refused: a job with this id is under way", job_id)
            return False
        try:
            return bool(handler.transfer_async(job_id, spec))
        except InterruptedCallError:
            raise
        except Exception as error:
            self._counts_of(pair)["raised"] += 1
            self._blame(f"refused job {job_id} from {pair[0]} to {pair[1]}", error)
            return False

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs that have ended since the last call, each once.

        A handler that raises is logged, and does not hide the results of the others.
        """
        finished: list[TransferResult] = []
        with self._whole:
            for handler in self.handlers():
                try:
                    # A handler of another make may answer with anything; it is read here, where its errors are caught.
                    results = [(job_id, bool(success)) for job_id, success in handler.get_finished()]
                except InterruptedCallError:
                    raise
                except Exception as error:
                    self._blame("could not say what it has finished", error)
                    continue
                finished += [result for result in results if self._settle(handler, *result)]
        return finished

    def _settle(self, handler: OffloadingHandler, job_id: int, success: bool) -> bool:
        pair = self._jobs.get(job_id)
        # Else a handler that reports twice would end a job of another one that has the number again.
        if pair is None or self._handlers[pair] is not handler:
            self._blame(f"reported job {job_id}, which it was not given or has reported")
            return False
        del self._jobs[job_id]
        counts = self._counts_of(pair)
        counts["succeeded" if success else "failed"] += 1
        return True

    def cancel(self, job_id: int) -> bool:
        """Ask a job to end early; it is reported as a failure then. False if it cannot, or is not under way."""
        self._whole.require()
        pair = self._jobs.get(job_id)
        if pair is None:
            return False
        try:
            return bool(self._handlers[pair].cancel(job_id))
        except InterruptedCallError:
            raise
        except Exception as error:
            self._blame(f"could not cancel job {job_id}", error)
            return False

    def wait(self, job_ids: Collection[int]) -> None:
        """Let what comes later, on the host or on the current stream of a GPU, come after these jobs.

        Jobs that are not under way are passed over; `get_finished` still reports the others.

        Raises:
            any error of a handler's `wait`, once all handlers were waited for. The caller must see it, because its next
            action could meet blocks under transfer.
        """
        failure = self.waited(job_ids)
        if failure is not None:
            raise failure

    def waited(self, job_ids: Collection[int]) -> Exception | None:
        """Wait as `wait` does, and return the error that a handler has raised."""
        self._whole.require()
        under_way = {job_id: self._jobs[job_id] for job_id in job_ids if job_id in self._jobs}
        failure: Exception | None = None
        for handler in self.handlers():
            # Each handler is asked for its own: a number means nothing to the others.
            mine = [job_id for job_id, pair in under_way.items() if self._handlers[pair] is handler]
            if mine:
                try:
                    handler.wait(mine)
                except InterruptedCallError:
                    raise
                except Exception as error:
                    self._blame("could not be waited for", error)
                    failure = error
        return failure

    def stats(self) -> dict[Pair, PairStats]:
        """Return what became of the jobs, for each pair of media that is served or was asked for."""
        theirs: dict[Pair, TransferStats] = {}
        for handler in self.handlers():
            try:
                counted = handler.stats()
            except Exception as error:
                self._blame("could not give its counts", error)
                continue
            # A handler may count pairs that it is not registered for.
            theirs |= {pair: stats for pair, stats in counted.items() if self._handlers.get(pair) is handler}
        counts = {pair: self._counts.get(pair, Counter[str]()) for pair in (*self._handlers, *self._counts)}
        return {pair: PairStats(**mine, transfers=theirs.get(pair)) for pair, mine in counts.items()}

    def close(self) -> None:
        """Close all handlers; an error of one is logged and does not spare the others. Jobs may still be reported."""
        for handler in self.handlers():
            try:
                handler.close()
            except Exception as error:
                self._blame("could not be closed", error)

    def _counts_of(self, pair: Pair) -> Counter[str]:
        return self._counts.setdefault(pair, Counter())

    def _blame(self, what: str, error: BaseException | None = None) -> None:
        self._num_handler_errors += 1
        _log.warning("a handler %s%s", what, "" if error is None else f": {name_of(error)}")
