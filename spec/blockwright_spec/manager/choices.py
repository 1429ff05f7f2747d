"""Part one, chapter 6: what a step leaves open.

Which free blocks are taken, which duplicate serves a hit, and in what order the blocks of one batch are released: any
legal answer keeps every law. A transition asks its `Choice` and refuses an illegal answer; a policy (`lru`) settles all
questions; a recorded choice repeats what some manager did, so that its legality can be judged.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """Answers to the open questions of a step.

    `take(queue, count)` gives the blocks to take, in the order of the new entries, group by group; `order(batch)` the
    order in which the blocks of a batch are released, given per group in table order; `serve(holders)` the one that
    serves a hit, of the blocks published under its prefix, oldest first.
    """

    take: Callable[[tuple[int, ...], int], tuple[int, ...]]
    order: Callable[[tuple[tuple[int, ...], ...]], tuple[int, ...]]
    serve: Callable[[tuple[int, ...]], int]


def recorded(taken: tuple[int, ...], served: tuple[int, ...], policy: Choice) -> Choice:
    """Return the choice that takes and serves the recorded blocks, and releases in the order of a policy."""
    return Choice(
        take=lambda queue, count: taken,
        order=policy.order,
        serve=lambda holders: next((block for block in holders if block in served), policy.serve(holders)),
    )


def legal_taking(queue: tuple[int, ...], count: int, taken: tuple[int, ...]) -> bool:
    """Return whether `count` different free blocks were taken."""
    return len(taken) == count == len(set(taken)) and set(taken) <= set(queue)


def legal_order(batch: tuple[int, ...], released: tuple[int, ...]) -> bool:
    """Return whether a batch was released whole, each block once."""
    return sorted(batch) == sorted(released)
