"""What a contract is, and how it is judged: confirmed by CrossHair over all paths, or tried and searched.

A contract is a function. The assertions at its head say for which values it is made, and those after them what holds.
CrossHair runs the functions that it calls, uncompiled, with integers that stand for all of those values at once. It
confirms a contract once it has seen every path. A contract that has too many paths for that lists values instead: all
of them are tried, and CrossHair searches within the bounds for a while, which proves nothing.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, NamedTuple


class Contract(NamedTuple):
    """A statement about one part of the product, and the function that says it."""

    part: str
    layer: str
    statement: str
    function: Callable[..., None]
    tried: tuple[Iterable[Any] | Callable[[], Iterable[Any]], ...] = ()
    """By argument the values that are tried, or what makes them; none if the contract is confirmed."""

    def fault(self, tries: tuple[float, ...], search: float) -> str:
        """Return why it does not hold, or is confirmed in no try of so many seconds; where values are tried, search."""
        values = [each() if callable(each) else each for each in self.tried]
        for arguments in product(*values) if values else ():
            try:
                self.function(*arguments)
            except Exception as error:
                return f"{type(error).__name__} for {arguments}: {error}"
        for seconds in (search,) if values else tries:
            if (said := asked(self.function, seconds)) != ("CANNOT_CONFIRM",):
                break
        holds = said in (("CONFIRMED",), ("CANNOT_CONFIRM",) if values else ())
        return "" if holds else "; ".join(said) or "no contract"


def asked(function: Callable[..., None], seconds: float) -> tuple[str, ...]:
    """Return what CrossHair says of a function within some seconds; of a fault, with which values."""
    from crosshair.core_and_libs import AnalysisKind, MessageType, analyze_function, run_checkables
    from crosshair.options import AnalysisOptionSet

    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.asserts],
        per_condition_timeout=seconds,
        per_path_timeout=seconds,
        max_uninteresting_iterations=10**9,  # only time ends a search
        report_all=True,
    )
    fine = (MessageType.CONFIRMED, MessageType.CANNOT_CONFIRM)
    said = run_checkables(analyze_function(function, options))
    return tuple(each.state.name + f": {each.message}" * (each.state not in fine) for each in said)


CONTRACTS: list[Contract] = []
