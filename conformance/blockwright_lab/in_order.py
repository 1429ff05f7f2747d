"""Parts of a gate in several processes, their results in the order of the parts."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_parallel

R = TypeVar("R")


def in_order(
    work: Callable[..., R], calls: Sequence[tuple[Any, ...]], names: Sequence[str], jobs: int, progress: Advance
) -> list[R]:
    """Make calls, say which part has ended by its name, and return what came of them in their order."""
    found: dict[int, R] = {}
    for index, result in in_parallel(work, calls, jobs):
        found[index] = result
        progress(1, names[index])
    return [found[index] for index in range(len(calls))]
