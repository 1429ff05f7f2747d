"""Whether the books can be trusted: a call that ends in the middle of its change leaves nothing to rely on."""

from __future__ import annotations

from typing import final

from blockwright.errors import InterruptedCallError


@final
class Wholeness:
    """Refuses calls after one that began a change and did not come to the end of it. law: CALL-1."""

    def __init__(self) -> None:
        """Begin whole."""
        self._is_changing: bool = False

    def require(self) -> None:
        """Raise `InterruptedCallError` if a call has ended in the middle of a change."""
        if self._is_changing:
            raise InterruptedCallError(
                "an earlier call ended in the middle of a change (no memory, an interrupt), so that nothing is known "
                "of the blocks; make a new manager of an empty backend"
            )

    def begin(self) -> None:
        """Begin a change: until `done` nothing else is served."""
        self._is_changing = True

    def done(self) -> None:
        """Come to the end of a change."""
        self._is_changing = False
