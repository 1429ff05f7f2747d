"""A generated workload is the same for the same seed, and is made of conversations that share what they should.

How: two generations are compared, and one is pinned by a digest, so that another Python version or platform that drew
other numbers would be noticed; then the structure of prompts is checked against the description in the module.

Not covered: whether real users behave so; the distributions beyond their means.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from statistics import fmean

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright.replay.workload import WorkloadOptions, generate_workload

SMALL = WorkloadOptions(conversations=20, turns=3, system_prompts=2, seed=7)


def test_the_seed_decides_everything() -> None:
    assert generate_workload(SMALL) == generate_workload(SMALL)
    assert generate_workload(SMALL).requests != generate_workload(replace(SMALL, seed=8)).requests


def test_the_workload_of_a_seed_is_pinned() -> None:
    digest = hashlib.sha256()
    for request in generate_workload(SMALL).requests:
        digest.update(repr((list(request.contents), list(request.lengths), round(request.arrival, 3))).encode())
    assert digest.hexdigest()[:16] == "cd799000391f15ae"


def test_limit_keeps_the_first_requests() -> None:
    whole = generate_workload(SMALL).requests
    assert generate_workload(SMALL, limit=5).requests == whole[:5]


def test_prompts_open_with_a_system_prompt_and_grow_with_their_conversation() -> None:
    trace = generate_workload(SMALL)
    arrivals = [request.arrival for request in trace.requests]
    assert arrivals == sorted(arrivals)
    systems = {(request.contents[0], request.lengths[0]) for request in trace.requests}
    assert len(systems) == 2
    last: dict[int, list[int]] = {}
    for request in trace.requests:
        contents = list(request.contents)
        assert len(contents) % 2 == 0  # system, user, then an answer and a user message per further turn
        before = last.get(contents[1], [])
        # A later turn continues the turn before it by the answer and a new message; a first turn has nothing before it.
        assert contents[: len(before)] == before
        assert len(contents) == (len(before) + 2 if before else 2)
        last[contents[1]] = contents
    assert len(last) == 20
    assert len({content for contents in last.values() for content in contents[1:]}) == sum(
        len(contents) - 1 for contents in last.values()
    )


def test_options_are_means_and_bounds() -> None:
    options = WorkloadOptions(conversations=2000, turns=4, user_tokens=50, output_tokens=80, max_tokens=100_000)
    requests = generate_workload(options).requests
    assert fmean([request.lengths[-1] for request in requests]) == pytest.approx(50, rel=0.1)
    assert fmean([request.num_output_tokens for request in requests]) == pytest.approx(80, rel=0.1)
    assert len(requests) / 2000 == pytest.approx(4, rel=0.1)
    short = generate_workload(replace(options, max_tokens=1000))
    assert 900 < short.max_prompt_tokens <= 1000


def test_one_turn_conversations() -> None:
    trace = generate_workload(WorkloadOptions(conversations=9, turns=1))
    assert [len(request.contents) for request in trace.requests] == [2] * 9


@pytest.mark.parametrize(
    "name",
    [
        "conversations",
        "turns",
        "system_prompts",
        "system_tokens",
        "user_tokens",
        "output_tokens",
        "think",
        "max_tokens",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 2**24 + 1])
def test_options_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name}: must be from 1 to .*, not {value}"):
        replace(SMALL, **{name: value})
