"""Property: a counterexample is Python that can be pasted: it runs, and leads where the specification says.

How: random walks through scopes of every kind are written as scripts; each is executed in an empty namespace, and the
tables, keys and free blocks of its manager are those of the specification. Refused calls are written with their reason.
Not covered: layout of the lines.
"""

from dataclasses import replace
from typing import Any

import pytest

from blockwright_conformance.checker.history import walk
from blockwright_conformance.kv_cache.actions import (
    Action,
    Admit,
    Append,
    Find,
    Grow,
    GrowEach,
    LateHit,
    Preempt,
    Publish,
    Reset,
    Trim,
    WrongHit,
    WrongStep,
    meaning,
)
from blockwright_conformance.kv_cache.scopes import Scope, large_scopes, scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.state import Config, Running, State, initial
from blockwright_spec.reads import Full, Group, Prefix, Sliding

PROMPT: Prefix = (0, (1, 2, 3, 4, 5))


LARGE = large_scopes()
BOTH = replace(
    LARGE[0], name="full and sliding 5: histories", config=Config((Group(Full(), 4), Group(Sliding(5), 2)), 60, 48)
)


def accepted(scope: Scope, actions: list[Action]) -> tuple[list[Action], State]:
    """The actions that are not refused, which are those of a counterexample, and the state they lead to."""
    state, kept = initial(scope.config, scope.slots), []
    for action in actions:
        outcome = meaning(state, action)
        if outcome.refusal is None:
            kept.append(action)
            state = outcome.state
    return kept, state


@pytest.mark.parametrize("large", [*LARGE, BOTH], ids=lambda each: each.name)
def test_a_script_runs_and_leads_to_the_same_state(large: Scope) -> None:
    actions, state = accepted(large, walk(KVCacheWorld(large), 7, 150).actions)
    names: dict[str, Any] = {}
    exec(KVCacheWorld(large).script(actions), names)
    manager = names["manager"]
    tables = {
        f"r{slot}": tuple(map(list, each.tables))
        for slot, each in enumerate(state.requests)
        if isinstance(each, Running)
    }
    assert {name: manager.get_block_ids(name) for name in manager.request_ids()} == tables
    assert manager.block_pool.free_block_ids() == list(state.queue)
    manager.check()


def test_a_script_reads_like_a_session() -> None:
    actions: list[Action] = [Admit(0, PROMPT, 5), Append(0, (6,)), Grow(0, 1, 2)]
    world = KVCacheWorld(scope(Sliding(3), 2, "by hand", 8, 12, ""))
    lines = world.script(actions, "REF-0: tables: expected x, found y").splitlines()
    assert lines[4:] == [
        'specs = [SlidingWindowSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float32", sliding_window=3)]',
        'groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]',
        "config = KVCacheConfig(num_blocks=8, kv_cache_groups=groups)",
        "manager = KVCacheManager(config, max_model_len=12)",
        'r0 = Request("r0", [1, 2, 3, 4, 5], block_size=2)',
        "hit_r0, length_r0 = manager.get_computed_blocks(r0)",
        "manager.allocate_slots(r0, 5, length_r0, hit_r0)  # new blocks ((1, 2, 3),)",
        "r0.num_computed_tokens = 5",
        "r0.append_output_token_ids([6])",
        "r0.num_computed_tokens = 5",
        "manager.allocate_slots(r0, 1, num_lookahead_tokens=2)  # new blocks ((4,),)",
        "r0.num_computed_tokens = 6",
        "# REF-0: tables: expected x, found y",
    ]


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (Grow(0, 1), "manager.allocate_slots(r0, 1)"),
        (GrowEach(((0, 1),)), "manager.allocate_slots_batch([r0], [1], 0)"),
        (Preempt(0), "manager.free(r0)"),
        (Publish(0, 5), "manager.cache_blocks(r0, 5)"),
        (Trim(0, 5), "manager.remove_skipped_blocks(r0, 5)"),
        (Reset(), "manager.reset_prefix_cache()  # refused: a request holds blocks, so the cache cannot be reset"),
        (WrongStep(0, PROMPT, 5, 0), "manager.allocate_slots(r0, 0)  # an error: no token to compute"),
        (WrongHit(1, PROMPT, PROMPT, 3), "manager.allocate_slots(r1, 2, 3, hit_other)  # an error: the length"),
        (LateHit(0, PROMPT), "manager.allocate_slots(r0, 1, length_other, hit_other)  # an error: the request holds"),
        (Find(1, (3, (1, 2))), 'r1 = Request("r1", [1, 2], block_size=2, cache_salt="salt", lora_name="adapter")'),
    ],
    ids=str,
)
def test_every_action_has_its_call(action: Action, line: str) -> None:
    world = KVCacheWorld(scope(Full(), 2, "by hand", 8, 12, ""))
    text = world.script([Admit(0, PROMPT, 5), Append(0, (6,)), action])
    assert line in text
