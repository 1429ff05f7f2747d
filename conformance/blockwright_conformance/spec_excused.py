"""Mutants of the specification that are the same, and laws that others imply; by rules that a reviewer can check.

What is the same gives the same for everything that it can be asked: in any state that can be reached, by any call. Such
a mutant is looked for nearby all the same, and must not be noticed. An implied law is another view of the others: no
mutant may break it in a step in which it breaks none of those that imply it.
"""

import re
from dataclasses import dataclass
from functools import cache

from .mutation import Mutation


@dataclass(frozen=True, slots=True)
class Excuse:
    """A rule: which mutants (a pattern that their names match from the start), and why they are the same."""

    pattern: str
    reason: str


EXCUSED: tuple[Excuse, ...] = ()
"""All rules; the first that matches counts."""


IMPLIED: dict[str, tuple[tuple[str, ...], str]] = {
    "TABLE-2": (
        ("STEP-3", "WRITE-1", "READ-1"),
        "a block comes to a table in three ways: taken, and then STEP-3 says that it has this one holder, two "
        "entries of one request being two; for a draft's state, and then WRITE-1 says the same; or adopted with a "
        "hit, and then two entries would need two prefixes in one block, which READ-1 excludes",
    ),
    "CHAIN-3": (
        ("CHAIN-1", "TIER-3"),
        "with no transfer under way CHAIN-1 says of every block that it has no reader and is not being written, and "
        "TIER-3 that none has been found bad without a reader: what is left is ready, and nobody reads it",
    ),
    "SLOT-2": (
        ("SLOT-1", "STATE-2", "STEP-3", "WRITE-2"),
        "SLOT-1 says that a token's slot lies in the block of its entry, and STATE-2 the same of a state; by STEP-3 "
        "and WRITE-2 what is written has one holder, so that two entries, groups or requests never name one block",
    ),
}
"""Laws that no mutant breaks alone: some of which others are always broken with them, and why."""


@cache
def patterns() -> tuple[re.Pattern[str], ...]:
    """Give the compiled rules."""
    return tuple(re.compile(each.pattern) for each in EXCUSED)


def reason_for(mutation: Mutation) -> int | None:
    """Give the number of the rule that excuses a mutant."""
    return next((at for at, pattern in enumerate(patterns()) if pattern.match(mutation.key)), None)
