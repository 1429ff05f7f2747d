"""Property: a replay of a recorded exploration of block tables judges an allocator as the explorer does.

How: the unchanged implementation passes every recorded transition; each exhibit of the museum that shows itself in such
a scope is noticed after as many transitions as by the explorer; an allocator that takes other free blocks without
content, which the specification allows, passes though it shows something else.
Not covered: which mutants are noticed (the gate says so).
"""

import pytest

from blockwright_conformance.block_tables.world import PagedExplorer
from blockwright_lab.known_bugs.gate import EXHIBITS, tables_on
from blockwright_lab.known_bugs.known_bug import Exhibit, TablesPlace
from blockwright_lab.known_bugs.paged_places import FORKS, NAIVE
from blockwright_lab.known_bugs.variants import Patch, load, variant
from blockwright_lab.known_bugs.watch import watch
from blockwright_lab.mutation.paged_recording import PagedRecording

SHOWN = [exhibit for exhibit in EXHIBITS if isinstance(exhibit.where, TablesPlace)]

LAST_FIRST = Patch(
    "paging/device_pool.py",
    "block = self.take_one()\n",
    "free = self.free_block_ids()\n        self._one[0] = i32(free[-1])\n        self.touch_entries(self._one)\n"
    "        block = i64(free[-1])\n",
)
"""Takes the free block that would be taken last."""


def test_the_unchanged_implementation_passes_every_transition() -> None:
    recording = PagedRecording(FORKS.scope)
    result = PagedExplorer(FORKS.scope, None).run()
    assert len(recording.states) == result.states
    with watch():
        assert recording.replay(tables_on(load())) == ([], result.transitions)


@pytest.mark.parametrize("exhibit", SHOWN, ids=[exhibit.id for exhibit in SHOWN])
def test_a_known_bug_is_noticed_as_soon_as_by_the_explorer(exhibit: Exhibit) -> None:
    assert isinstance(exhibit.where, TablesPlace)
    scope, tables = exhibit.where.scope, tables_on(variant(*exhibit.patches))
    recording = PagedRecording(scope)
    with watch():
        explored = PagedExplorer(scope, tables, ()).run()
        try:
            faults, steps = recording.replay(tables)
        except Exception as error:
            faults, steps = [str(error)], explored.transitions
    assert explored.violation is not None
    assert faults
    assert steps == explored.transitions


def test_another_legal_choice_is_no_fault() -> None:
    recording = PagedRecording(NAIVE.scope)
    tables = tables_on(variant(LAST_FIRST))
    with watch():
        assert recording.replay(tables) == ([], recording.explored(tables)[1])
