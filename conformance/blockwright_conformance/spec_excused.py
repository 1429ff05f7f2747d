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


IMPLIED: dict[str, tuple[tuple[str, ...], str]] = {}
"""Laws that no mutant breaks alone: some of which others are always broken with them, and why."""


@cache
def patterns() -> tuple[re.Pattern[str], ...]:
    """Give the compiled rules."""
    return tuple(re.compile(each.pattern) for each in EXCUSED)


def reason_for(mutation: Mutation) -> int | None:
    """Give the number of the rule that excuses a mutant."""
    return next((at for at, pattern in enumerate(patterns()) if pattern.match(mutation.key)), None)
