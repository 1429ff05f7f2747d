"""Whether the books can be trusted: a call that ends in the middle of its change leaves nothing to rely on."""

from __future__ import annotations

from typing import final

from blockwright.errors import BlockwrightError, InterruptedCallError


@final
class Wholeness:
    """Refuses calls after one that did not finish its change. law: CALL-1.

    As a context manager it is whole again once the change is done. Where it `forgives`, so it is after an error of this
    package: such an error comes before a change or after it, unless code of others runs within.
    """

    def __init__(self, remedy: str = "make a new manager of an empty backend", forgives: bool = True) -> None:
        """Begin whole; `remedy` is advice for the error."""
        self._is_changing: bool = False
        self._remedy = remedy
        self._forgives = forgives

    @property
    def is_whole(self) -> bool:
        """Whether every change that began has ended."""
        return not self._is_changing

    def require(self) -> None:
        """Raise `InterruptedCallError` if a call has ended in the middle of a change."""
        if self._is_changing:
            raise InterruptedCallError(
                "an earlier call ended in the middle of a change (no memory, an interrupt), so that nothing is known "
                f"of the blocks; {self._remedy}"
            )

    def begin(self) -> None:
        """Begin a change: until `done` nothing else is served."""
        self._is_changing = True

    def done(self) -> None:
        self._is_changing = False

    def __enter__(self) -> None:
        self.require()
        self.begin()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Our own errors are raised before a change begins; of an interrupt nobody knows where it came.
        is_ours = isinstance(error, BlockwrightError) and not isinstance(error, InterruptedCallError)
        if error is None or (self._forgives and is_ours):
            self.done()
