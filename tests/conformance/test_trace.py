"""Property: the checker of traces judges each step as the page of the block machine does, and a trace is what happened.

How: Hypothesis draws steps, legal and illegal, for a small machine; page and checker judge each. A manager is traced from
its beginning and from the middle of a run; faults planted in its pool are found at their step; files that are cut off,
are of another version or are none say so.
Not covered: whole engines (tests/engines), and `prefix_match_unit`, which is not traced.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, SlidingWindowSpec
from blockwright.errors import InvalidArgumentError
from blockwright.observe import trace
from blockwright_conformance.trace import Checker, Step, Trace, check
from blockwright_spec import block_machine as page
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sinks, Sliding

KINDS = (Full(), Sliding(1), Sliding(3), Sinks(1, 3), Chunked(4), Mamba(), Cross())
SIZE = 2


def words(now: page.Machine, verb: str, place: page.Place, block: int, count: tuple[int, int]) -> list[tuple[object, ...]]:
    """Return a step of the page in the verbs of a trace; its tables are requests 1 and 2, its pins those of nobody."""
    holder = place[0]
    match verb:
        case "take" | "hold":
            return [(verb, holder, block)]
        case "drop":
            return [(verb, holder, now.held[place])]
        case "null":
            old = now.held.get(place, 0)
            return [("null", holder, 0, place[1], place[1] + 1)] + [("drop", holder, old)] * (old > 0)
        case "advance":
            return [(verb, holder, 0, *count)]
    return [(verb, 0, block)]


@settings(max_examples=150)
@given(st.data(), st.sampled_from(KINDS))
def test_the_checker_judges_as_the_page_does(data: st.DataObject, kind: page.Kind) -> None:
    now = page.pool(4, {name: page.Table(kind, SIZE) for name in (1, 2)})
    checker, number = Checker(4, [Group(kind, SIZE)]), 0
    for _ in range(data.draw(st.integers(1, 25))):
        verb = data.draw(st.sampled_from([step.__name__ for step in page.STEPS]))
        held = [place for place, block in now.held.items() if block]
        place = (data.draw(st.integers(0 if verb in ("hold", "drop") else 1, 2)), number := number + 1)
        if verb == "drop":
            place = data.draw(st.sampled_from(held)) if held else place
            if place not in now.held:
                continue
        if verb == "null":
            place = (place[0], data.draw(st.integers(0, 4)))
        block, counts = data.draw(st.integers(1, 3)), tuple(sorted(data.draw(st.tuples(*[st.integers(0, 9)] * 2))))
        arguments = {"take": (place, block), "hold": (place, block), "write": (block, number), "drop": (place,)}
        arguments |= {"null": (place,), "advance": (place[0], *counts)}
        after = getattr(page, verb)(now, *arguments.get(verb, (block,)))
        steps = [Step(number, *each) for each in words(now, verb, place, block, counts)]
        assert all(not checker.judge(step) for step in steps) == (after is not None), (verb, place, block, counts)
        now = now if after is None else after
        keyed = sum(each.key is not None for each in now.blocks)
        assert not checker.judge(Step(0, "end", 0, len(now.free), 0, keyed))
