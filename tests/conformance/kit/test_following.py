"""Property: of a manager that is followed, what is as specified shows nothing, and a fault shows by its law.

How: Blockwright itself is followed through scopes of every kind of layer, as if it were of another make: nothing may be
found, and as many states reached as its own explorer reaches. Then faults are planted.
Not covered: managers of other makes (`test_vllm_conformance`); what a manager hides (it is not part of its states).
"""

from typing import Any

import pytest

from blockwright_conformance.capabilities import Deviation, Standing
from blockwright_conformance.kv_cache.adapter import Found
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import Scope, of_groups, scope, strings
from blockwright_conformance.kv_cache.world import explorer
from blockwright_lab.peers.follower import Follower
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.state import State, Table
from blockwright_spec.reads import Chunked, Full, Mamba, Sliding

SCOPES = (
    scope(Full(), 2, "followed", 4, 3, "trim reset preempt"),
    scope(Sliding(2), 1, "followed", 4, 3, "trim"),
    scope(Chunked(2), 2, "followed", 4, 3, "later"),
    scope(Mamba(), 2, "followed", 4, 3, "chunks"),
    of_groups(((Full(), 2), (Sliding(2), 1)), "followed", 6, 3, "preempt", prompts=strings(1, 2, 3)),
)


class Followed(BlockwrightAdapter):
    """Blockwright as a manager of another make."""

    log: list[str] | None = None

    def copy(self) -> Any:
        twin = super().copy()
        twin.log = None
        return twin

    def given(self, name: str, blocks: Any) -> Any:
        self.manager.new_step_starts()  # each call is followed as a step of its own
        return super().given(name, blocks)

    def engine_would(self, state: State, action: Any) -> bool:
        return True

    def listen(self) -> None:
        pass

    def law_of(self, error: Exception) -> str:
        return "REF-0"


class TrimsNothing(Followed):
    def trim(self, name: str, end: int) -> None:
        pass


class FindsNothing(Followed):
    def find(self, name: str) -> Found:
        super().find(name)
        self.hits.pop(name, None)
        return Found(0, ())

    def allocate(
        self, name: str, computed: int, step: Step, length: int, hit_of: str | None
    ) -> tuple[Table, ...] | None:
        return super().allocate(name, computed, step, length, None)


class LooksUpWithEffect(Followed):
    def find(self, name: str) -> Found:
        found = super().find(name)
        self.manager.reset_prefix_cache()
        return found


def laws(adapter: type[Followed], at: int, **known: Any) -> set[tuple[str, str]]:
    follower = Follower(SCOPES[at], adapter, max_transitions=600, **known)
    follower.run()
    return {(finding.law, finding.detail.partition(":")[0]) for finding in follower.findings}


@pytest.mark.parametrize("small", SCOPES, ids=lambda small: str(small.name))
def test_a_manager_that_does_as_specified_shows_nothing(small: Scope) -> None:
    follower = Follower(small, Followed)
    result = follower.run()
    assert follower.findings == ()
    whole = explorer(small, BlockwrightAdapter).run()
    if "mamba" not in small.name:  # the explorer starts no steps: there a state is found later
        assert (result.states, result.transitions) == (whole.states, whole.transitions)


@pytest.mark.parametrize(
    ("adapter", "at", "finding"),
    [
        (TrimsNothing, 1, ("TRIM-1", "state")),
        (FindsNothing, 0, ("HIT-2", "hit")),
        (LooksUpWithEffect, 0, ("REF-0", "lookup")),
    ],
)
def test_a_fault_shows_by_its_law(adapter: type[Followed], at: int, finding: tuple[str, str]) -> None:
    assert finding in laws(adapter, at)


def test_states_that_break_a_law_are_gone_on_from_only_where_the_list_says_so() -> None:
    goes_on = tuple(
        Deviation(law, law, "followed", Standing.CHOICE, "it never trims", goes_on=True) for law in ("TRIM-1", "REF-0")
    )
    counts = []
    for known in ((), goes_on):
        follower = Follower(SCOPES[1], TrimsNothing, known)
        counts.append(follower.run().states)
    assert counts[0] < counts[1]
