"""When a store that keeps failing is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from blockwright.errors import InvalidArgumentError


class CircuitBreaker:
    """Counts failures in a row; after enough of them, lets one call through per back-off time, until one succeeds.

    1. closed: every call may try.
    2. open: after `failures` in a row, none may try for `backoff` seconds.
    3. then one call may, and those of the next back-off time may not. If it succeeds, the breaker is closed; if it
       fails, the back-off time doubles, up to `longest_backoff`.

    Safe to use from several threads. All calls take constant time.
    """

    def __init__(
        self, failures: int, backoff: float, longest_backoff: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Close the breaker.

        Raises:
            InvalidArgumentError: a count below 1, or a time that is not positive.
        """
        numbers = all(isinstance(each, int | float) for each in (failures, backoff, longest_backoff))
        if not numbers or failures < 1 or not 0 < backoff <= longest_backoff:
            raise InvalidArgumentError(
                f"failures={failures}, backoff={backoff}, longest_backoff={longest_backoff}: "
                "pass at least 1, and positive seconds in ascending order"
            )
        self._most, self._first, self._longest, self._clock = failures, backoff, longest_backoff, clock
        self._lock = Lock()
        self._in_a_row = 0
        self._backoff = backoff
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether calls are being refused now."""
        return self._in_a_row >= self._most and self._clock() < self._until

    def may_try(self) -> bool:
        """Return whether a call may be made; it must be followed by `succeeded` or `failed`."""
        if self._in_a_row < self._most:  # the usual case; a race here lets one more call through, no harm
            return True
        with self._lock:
            if self._in_a_row >= self._most and self._clock() < self._until:
                return False
            self._until = self._clock() + self._backoff  # the others wait for what comes of this one
            return True

    def succeeded(self) -> bool:
        """Close the breaker; return whether it was open."""
        if not self._in_a_row:
            return False
        with self._lock:
            opened, self._in_a_row, self._backoff = self._in_a_row >= self._most, 0, self._first
            return opened

    def failed(self) -> bool:
        """Count a failure; return whether it opened the breaker, which further ones keep open."""
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row > self._most:
                self._backoff = min(2 * self._backoff, self._longest)
            if self._in_a_row >= self._most:
                self._until = self._clock() + self._backoff
            return self._in_a_row == self._most
