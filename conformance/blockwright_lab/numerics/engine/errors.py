"""What the engine says when something is wrong: which law of the numerics, and where.

NUMERICS-0  every call that an engine makes by the book is served, and every schedule comes to its end
NUMERICS-1  logits and tokens are those of a dense recomputation of each request
NUMERICS-2  nothing is read that was not written for the request that reads it: poison never reaches a result
NUMERICS-3  at the end no block is held, and every invariant of the manager holds
"""


class NumericsError(AssertionError):
    """A schedule that shows a violation of a law, or of one of the manager's own self-check, perhaps in a step."""

    def __init__(self, law: str, detail: str, step: int | None = None) -> None:
        super().__init__(law, detail, step)
        self.law, self.detail, self.step = law, detail, step

    def __str__(self) -> str:
        when = "" if self.step is None else f"step {self.step}: "
        return f"{self.law}: {when}{self.detail}"
