"""Property: what is found of an engine is judged strictly: nothing unlisted passes, nothing listed may be missing.

How: findings and lists made by hand.
Not covered: whether an engine's own list is true (`test_vllm_conformance`).
"""

import pytest

from blockwright_conformance.capabilities import Capabilities, Deviation, Finding, Needs, Standing, judge

TORN = Finding("EV-1", "sliding: put off", "events: 2 blocks, 3 tokens", count=4)
KNOWN = Deviation("torn", "EV-1", r"put off: events:", Standing.DOCUMENTED, "because")


def test_what_a_scope_needs_and_a_manager_lacks_is_named_with_the_reason() -> None:
    can = Capabilities(frozenset({"full"}), frozenset({"trim"}), frozenset(), absent={"fork": "it never forks"})
    needs = Needs(frozenset({"full", "mamba"}), frozenset({"trim", "fork"}), frozenset({"eagle"}))
    assert can.lacks(needs) == ["kind mamba", "call fork: it never forks", "feature eagle"]
    assert can.lacks(Needs(kinds=frozenset({"full"}))) == []


def test_a_listed_finding_is_known() -> None:
    verdict = judge([TORN], [KNOWN])
    assert verdict.known == ((KNOWN, (TORN,)),)
    assert verdict.unlisted == ()
    assert verdict.unseen == ()


@pytest.mark.parametrize(
    "other",
    [
        Finding("EV-1", "sliding: life", "events: 2 blocks, 3 tokens"),
        Finding("PUB-1", "sliding: put off", "events: 2 blocks, 3 tokens"),
        Finding("EV-1", "sliding: put off", "state: something else"),
    ],
    ids=["another scope", "another law", "another kind"],
)
def test_what_the_list_does_not_name_is_unlisted(other: Finding) -> None:
    assert judge([TORN, other], [KNOWN]).unlisted == (other,)


def test_a_deviation_that_does_not_show_is_out_of_date() -> None:
    assert judge([], [KNOWN]).unseen == (KNOWN,)


def test_a_bug_needs_a_script() -> None:
    with pytest.raises(ValueError, match=r"torn: name the script"):
        Deviation("torn", "EV-1", "events", Standing.BUG, "because")
