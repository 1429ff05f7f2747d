"""Mutants of the specification that its laws need not notice, by rules that a reviewer can check.

Two sorts. What is *the same* says nothing else than before, in any state that can be reached. What is *no law's
business* is the definition of something, or of a refusal, that laws are stated with or leave open: it is pinned by
lock-step, which must notice it.
"""

import re
from dataclasses import dataclass
from functools import cache

from .mutation import Mutation


@dataclass(frozen=True, slots=True)
class Excuse:
    """A rule: which mutants (a pattern that their names match from the start), why, and of which sort."""

    pattern: str
    reason: str
    is_same: bool


EXCUSED: tuple[Excuse, ...] = ()
"""All rules; the first that matches counts."""


IMPLIED: dict[str, tuple[tuple[str, ...], str]] = {}
"""Laws that no mutant breaks alone: which others are always broken with them, and why."""


@cache
def patterns() -> tuple[re.Pattern[str], ...]:
    """Give the compiled rules."""
    return tuple(re.compile(each.pattern) for each in EXCUSED)


def reason_for(mutation: Mutation) -> int | None:
    """Give the number of the rule that excuses a mutant."""
    return next((at for at, pattern in enumerate(patterns()) if pattern.match(mutation.key)), None)
