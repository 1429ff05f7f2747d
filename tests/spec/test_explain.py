"""Property: an explanation names a longer hit and exactly what it lacks, and why no longer one can be.

How: over every cache content of one and two groups with small prefixes, what was lost names the candidate. Examples of
each limit and of what was lost; states in which the law fails.
Not covered: that the blocks named are those missing (law EXPLAIN-1, in every state), managers (lock-step).
"""

from dataclasses import replace
from itertools import chain, combinations

import pytest

from blockwright_spec.manager.hits import found
from blockwright_spec.manager.in_time.explain import Explanation, Limit, Part, explained, law_explanation_is_exact
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import Config, Content, State, Waiting, initial
from blockwright_spec.reads import Chunked, Full, Group, Kind, Mamba, Prefix, Sliding, cut

PROMPT: Prefix = (0, (5, 6, 7, 8, 9, 4, 3))
GROUPS: tuple[tuple[tuple[Kind, int], ...], ...] = (
    ((Full(), 1),),
    ((Full(), 2),),
    ((Sliding(1), 2),),
    ((Sliding(3), 1),),
    ((Sliding(3), 2),),
    ((Chunked(4), 2),),
    ((Mamba(), 2),),
    ((Full(), 2), (Sliding(4), 2)),
    ((Full(), 1), (Mamba(), 3)),
    ((Full(), 2), (Sliding(4), 3)),
    ((Chunked(2), 2), (Mamba(), 3)),
)
CASES = [
    (groups, eagle)
    for groups in GROUPS
    for eagle in (False, True)
    if not eagle or not any(isinstance(kind, Chunked) for kind, _ in groups)
]


def holding(groups: tuple[tuple[Kind, int], ...], contents: tuple[Content, ...], eagle: bool = False) -> State:
    """A state in which these contents are published and free, and a request with PROMPT waits."""
    config = Config(tuple(Group(*group) for group in groups), 40, 20, eagle=eagle)
    state = replace(initial(config, 1), requests=(Waiting(PROMPT),))
    return replace(
        state,
        keys=tuple((block, content) for block, content in enumerate(contents, 1)),
        contents=(None, *contents, *(None,) * (39 - len(contents))),
    )


def blocks_of(groups: tuple[tuple[Kind, int], ...]) -> tuple[Content, ...]:
    """Whatever the groups may have published of PROMPT."""
    tokens = len(PROMPT[1])
    return tuple((at, cut(PROMPT, end)) for at, (_, size) in enumerate(groups) for end in range(size, tokens + 1, size))


def named(said: Explanation) -> tuple[Content, ...]:
    return tuple((at, cut(PROMPT, end)) for at, part in enumerate(said.parts) for end in part.missing)


@pytest.mark.parametrize(("groups", "eagle"), CASES, ids=str)
def test_what_was_lost_tells_the_candidate(groups: tuple[tuple[Kind, int], ...], eagle: bool) -> None:
    every = blocks_of(groups)
    for contents in chain.from_iterable(combinations(every, count) for count in range(len(every) + 1)):
        state, lost = holding(groups, contents, eagle), frozenset(every[::2])
        said, once = explained(state, PROMPT, lost), explained(holding(groups, every, eagle), PROMPT)
        with_lost = found(holding(groups, tuple({*contents, *lost}), eagle), PROMPT, LRU).length
        if with_lost > said.length:
            assert said.candidate == with_lost <= once.length
            assert set(named(said)) <= lost
        else:
            assert said == explained(state, PROMPT)


HYBRID = ((Full(), 2), (Mamba(), 2))
FULL = tuple((0, cut(PROMPT, end)) for end in (2, 4, 6))


def test_limits() -> None:
    def says(groups: tuple[tuple[Kind, int], ...], contents: tuple[Content, ...], eagle: bool = False) -> Explanation:
        return explained(holding(groups, contents, eagle), PROMPT)

    nothing, missing = Limit.NOTHING, Limit.MISSING
    assert says(((Full(), 2),), FULL) == Explanation(6, None, (Part(6, (), nothing),))
    assert says(((Full(), 2),), FULL[::2]) == Explanation(2, 4, (Part(2, (4,), missing),))
    assert says(HYBRID, FULL) == Explanation(0, 2, (Part(6, (), Limit.OTHER_GROUP), Part(0, (2,), missing)))
    wide = (*FULL, (1, cut(PROMPT, 4)))
    assert says(((Full(), 2), (Full(), 4)), wide) == Explanation(
        4, None, (Part(6, (), Limit.NOT_ALIGNED), Part(4, (), nothing))
    )
    assert says(((Full(), 2),), FULL, True) == Explanation(4, 6, (Part(4, (8,), Limit.DRAFT_MARGIN),))
    assert says(((Full(), 2),), FULL[:2], True) == Explanation(2, 4, (Part(2, (6,), Limit.DRAFT_MARGIN),))
    assert says(((Full(), 2),), FULL[:1], True) == Explanation(0, 2, (Part(0, (4,), Limit.DRAFT_MARGIN),))
    assert says(((Full(), 2),), (), True) == Explanation(0, 2, (Part(0, (2, 4), missing),))
    uncached = replace(holding(((Full(), 2),), ()).config, caching=False)
    assert explained(initial(uncached, 1), PROMPT) == Explanation(0, None, (Part(0, (), Limit.NOT_ASKED),))


def test_a_lost_state_is_the_candidate() -> None:
    said = explained(holding(HYBRID, FULL), PROMPT, frozenset({(1, cut(PROMPT, 6))}))
    assert said == Explanation(0, 6, (Part(6, (), Limit.OTHER_GROUP), Part(0, (6,), Limit.MISSING)))


def test_the_law_fails_where_keys_and_contents_differ() -> None:
    state = holding(((Full(), 2),), FULL)
    assert law_explanation_is_exact(state)
    hidden = replace(state, keys=(state.keys[0], (2, (0, (1, (5, 6, 7, 8)))), state.keys[2]))
    assert not law_explanation_is_exact(hidden), "a block is named that could be read"
    wrong = holding(((Full(), 2),), FULL[:1])
    assert law_explanation_is_exact(wrong)
    unread = replace(wrong, contents=(None, (0, (0, (5, 5))), None))
    assert not law_explanation_is_exact(unread), "a block is not named that could not be read"
