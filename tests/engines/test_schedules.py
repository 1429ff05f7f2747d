"""vLLM's real schedulers over both managers, side by side through the same random arrivals, aborts and resets."""

import os
from pathlib import Path
from typing import Any

import pytest

STEPS = int(os.environ.get("BLOCKWRIGHT_ENGINE_STEPS", "700"))

# name: groups, blocks, options of the scheduler, steps in flight, drafts, whether the schedules are equal step by step.
# Where a pool is wide they are for every kind; where it is tight a layer that trims may let ours admit or keep more.
WALKS: dict[str, tuple[str, int, dict[str, Any], int, int, bool]] = {
    "full": ("full", 60, {}, 0, 0, True),
    "full, tight": ("full", 24, {}, 0, 0, True),
    "priorities": ("full", 24, {"scheduling_policy": "priority"}, 0, 0, True),
    "no caching": ("full", 24, {"caching": False}, 0, 0, True),
    "watermark": ("full", 24, {"watermark": 0.1}, 0, 0, True),
    # The last block that drafts or loads fill is found once a request has ended (PUB-5); with vLLM's manager it is not.
    "drafts": ("full", 30, {}, 0, 3, False),
    "in flight": ("full", 24, {}, 1, 0, True),
    "in flight, drafts": ("full", 30, {}, 1, 3, True),
    "in flight, priorities": ("full", 24, {"scheduling_policy": "priority"}, 1, 0, True),
    "sliding": ("full sliding", 1500, {}, 0, 0, True),
    "sliding, tight": ("full sliding", 50, {}, 0, 0, False),
    "sliding, drafts": ("full sliding", 50, {}, 0, 3, False),
    "sliding, in flight": ("full sliding", 50, {}, 1, 0, False),
    "sliding, in flight, drafts": ("full sliding", 50, {}, 1, 3, False),
    "five sliding": ("full five", 3000, {}, 0, 0, True),
    "five sliding, tight": ("full five", 150, {}, 0, 0, False),
    "chunked": ("full chunked", 1500, {}, 0, 0, False),
    "chunked, tight": ("full chunked", 50, {}, 0, 0, False),
    "recurrent": ("full state", 60, {}, 0, 0, False),
    "recurrent, uncached": ("full whole-state", 60, {"caching": False}, 0, 0, False),
    "recurrent, drafts": ("full state", 120, {}, 0, 3, False),
    "recurrent, drafts, uncached": ("full whole-state", 120, {"caching": False}, 1, 3, False),
    "recurrent, drafts, tight": ("full state", 44, {}, 0, 3, False),
    "recurrent, in flight": ("full state", 60, {}, 1, 0, False),
    "recurrent, in flight, tight": ("full state", 36, {}, 1, 0, False),
    "recurrent, in flight, drafts": ("full state", 120, {}, 1, 3, False),
    "recurrent, in flight, drafts, tight": ("full state", 44, {}, 1, 3, False),
    "small recurrent, in flight, drafts": ("small small-state", 240, {}, 1, 3, False),
    "three recurrent, in flight, drafts": ("full states", 160, {}, 1, 3, False),
    "large recurrent, in flight, drafts": ("full large-state", 120, {}, 1, 3, False),
    "checkpoints, in flight": ("full checkpoint-state", 60, {}, 1, 0, False),
    "draft head": ("full", 30, {"eagle": True}, 0, 3, False),
    "draft head, in flight": ("full", 30, {"eagle": True}, 1, 3, False),
    "draft head, sliding, in flight": ("full sliding", 60, {"eagle": True}, 1, 3, False),
    "draft head, chunked": ("full chunked", 60, {"eagle": True}, 0, 3, False),
    "draft head, recurrent, in flight": ("full state", 120, {"eagle": True}, 1, 3, False),
    "several modules": ("full", 30, {"eagle": True, "modules": True}, 0, 3, False),
    "several modules, in flight": ("full", 30, {"eagle": True, "modules": True}, 1, 3, False),
    "several modules, sliding": ("full sliding", 60, {"eagle": True, "modules": True}, 0, 4, False),
    "several modules, sliding, in flight": ("full sliding", 60, {"eagle": True, "modules": True}, 1, 4, False),
    "reference window": ("reference", 40, {}, 0, 0, False),
    "reference window, in flight": ("full reference", 60, {}, 1, 3, False),
    "rows": ("full", 24, {"rows": True}, 0, 0, False),
    "rows, in flight, drafts": ("full", 30, {"rows": True}, 1, 3, False),
    "rows, recurrent, in flight": ("full state", 60, {"rows": True}, 1, 0, False),
    "metrics": ("full", 24, {"kv_cache_metrics": True, "kv_cache_metrics_sample": 1.0}, 0, 0, True),
    "loads": ("full", 60, {"loads": {}}, 0, 0, False),
    "loads, tight": ("full", 24, {"loads": {}}, 0, 0, False),
    "loads, fail": ("full", 60, {"loads": {"policy": "fail"}}, 0, 0, False),
    "loads later": ("full", 60, {"loads": {"is_async": True}}, 0, 0, False),
    "loads later, tight": ("full", 24, {"loads": {"is_async": True}}, 0, 0, False),
    "loads later, in flight": ("full", 60, {"loads": {"is_async": True}}, 1, 0, False),
    "loads later, recurrent": ("full state", 120, {"loads": {"is_async": True, "leaves_last": True}}, 0, 0, False),
}

ALONE: dict[str, tuple[str, int, dict[str, Any], int, int, bool]] = {
    "more drafts than a block has tokens": ("small small-state", 300, {}, 0, 6, True),
    "more drafts than a block has tokens, in flight": ("small small-state", 300, {}, 1, 6, True),
    "parts": ("full sliding", 60, {"unit": 4}, 0, 0, False),
    "parts, in flight": ("full sliding", 60, {"unit": 4}, 1, 0, False),
    "parts, drafts, tight": ("full sliding", 50, {"unit": 2}, 0, 3, False),
    "parts, in flight, drafts": ("full five", 300, {"unit": 8}, 1, 3, False),
    "parts, chunked, in flight, drafts": ("full chunked", 60, {"unit": 4}, 1, 3, False),
    "loads later, sliding": ("full sliding", 120, {"loads": {"is_async": True}}, 0, 0, False),
    "loads later, sliding alone": ("sliding", 60, {"loads": {"is_async": True}}, 0, 0, False),
    "loads later, chunked alone, in flight": ("chunked", 60, {"loads": {"is_async": True}}, 1, 0, False),
    "loads later, recurrent alone": ("state", 60, {"loads": {"is_async": True, "leaves_last": True}}, 0, 0, False),
    "loads later, recurrent alone, in flight": (
        "large-state",
        40,
        {"loads": {"is_async": True, "leaves_last": True}, "events": True},
        1,
        0,
        False,
    ),
    "loads later, recurrent alone, parts": (
        "large-state",
        60,
        {"loads": {"is_async": True, "leaves_last": True}, "unit": 8, "events": True},
        0,
        0,
        False,
    ),
    "loads later, recurrent alone, fail": (
        "state",
        40,
        {"loads": {"is_async": True, "leaves_last": True, "policy": "fail"}},
        1,
        0,
        False,
    ),
}
"""Walks in which vLLM's own manager is wrong, so that ours is driven alone.

It publishes states that its worker has not left. It frees what the window has passed after all loaded tokens, though
the last of them is computed again. Where a load has failed in part, it goes on from a state, or from a window, that is
the null block."""


@pytest.mark.parametrize("name", [*WALKS, *ALONE])
def test_both_managers_serve_the_same_tokens(name: str, models_folder: Path) -> None:
    from tests.engines import stub

    groups, blocks, options, depth, drafts, is_exact = {**WALKS, **ALONE}[name]
    options = {"interval": None if is_exact else 0} | options  # with vLLM's default ours may hit more
    kinds = stub.drafting([kind for word in groups.split() for kind in stub.KINDS[word]()], drafts)
    sides = [
        stub.Side(
            stub.scheduler(models_folder, ours, kinds, blocks, is_async=depth > 0, drafts=drafts, **options),
            kinds,
            depth=depth,
            drafts=drafts,
        )
        for ours in (False, True)
        if ours or name in WALKS
    ]
    stub.walk(sides, 1, STEPS, sides[0].scheduler.hash_block_size, exact=is_exact)
    theirs, ours = sides[0], sides[-1]
    print(name, [(side.queries, side.hits, side.preemptions, side.external, side.failed) for side in sides])
    if "loads" in options:
        assert ours.external
        assert ours.failed
        assert len(ours.errors) <= len(theirs.errors)
    if is_exact:
        assert (theirs.queries, theirs.hits, theirs.preemptions) == (ours.queries, ours.hits, ours.preemptions)


def test_what_was_scheduled_and_never_ran_is_not_found(models_folder: Path) -> None:
    """A running request may be preempted by another in the step that it is scheduled for: those blocks hold nothing."""
    from tests.engines import stub

    manager = stub.scheduler(models_folder, True, [stub.full()], 60).kv_cache_manager
    one, other = (stub.request(name, list(range(3, 200)), 16, 9) for name in ("one", "other"))
    for _ in range(2):
        assert manager.allocate_slots(one, 64) is not None
        one.num_computed_tokens = 64  # the first has run, the second never does
    manager.free(one)
    assert manager.get_computed_blocks(other)[1] == 64
    manager.core.check({})


@pytest.mark.parametrize(("size", "blocks"), [(256, 63), (16, 126)])
def test_samples_of_one_prompt_run_together(size: int, blocks: int, models_folder: Path) -> None:
    """None waits for another to end, though all would fill a block in one step if they began together."""
    from tests.engines import stub

    kinds, steps = [stub.full(size), *[stub.state(size)] * 3], list[int]()
    prompt = list(range(3, 793))
    for ours in (False, True):
        made = stub.scheduler(models_folder, ours, kinds, blocks, max_num_batched_tokens=2048)  # a prompt in a step
        side = stub.Side(made, kinds)
        for number in range(8):
            side.scheduler.add_request(stub.request(f"r{number}", prompt, size, 60))
        steps.append(0)
        while side.scheduler.requests:
            side.step()
            steps[-1] += 1
    assert 60 < steps[1] <= steps[0] * 1.15, steps


@pytest.mark.parametrize("batched", [24, 70, 100, 300])
def test_windows_narrower_than_a_block_are_found_again(batched: int, models_folder: Path) -> None:
    """Steps in flight that end inside a block: a window's blocks are published before they are given up."""
    from tests.engines import stub

    kinds, tokens, found = [stub.sliding(24, 64), stub.full(64)], [3 + at % 90 for at in range(420)], []
    for ours in (False, True):
        made = stub.scheduler(models_folder, ours, kinds, 60, is_async=True, max_num_batched_tokens=batched)
        side = stub.Side(made, kinds, depth=1)
        made.add_request(stub.request("one", tokens, 64, 20))
        for _ in range(40):
            side.step()
        side.check()
        found.append(made.kv_cache_manager.get_computed_blocks(stub.request("other", tokens, 64, 1))[1])
    assert found == [384, 384]


@pytest.mark.parametrize(("words", "depth"), [("full", 0), ("full sliding", 1), ("full state", 1)])
def test_everything_is_forgotten_while_requests_run(words: str, depth: int, models_folder: Path) -> None:
    """After ``pause(mode="keep", clear_cache=False)`` and new weights: vLLM's own manager refuses, and goes on hitting.

    The requests that run go on, and publish nothing of what the old weights have computed, preempted ones excepted,
    which compute all anew.
    """
    from tests.engines import stub

    tokens, hits = [3 + at % 90 for at in range(140)], []
    for ours in (False, True):
        kinds = [kind for word in words.split() for kind in stub.KINDS[word]()]
        made = stub.scheduler(models_folder, ours, kinds, 120, is_async=depth > 0)
        size = made.hash_block_size
        side = stub.Side(made, kinds, depth=depth)
        made.add_request(stub.request("runs", tokens, size, 40))
        for _ in range(8):
            side.step()
        assert made.running
        assert made.reset_prefix_cache() is ours
        found = [made.kv_cache_manager.get_computed_blocks(stub.request("asks", tokens, size, 1))[1]]
        for _ in range(20):  # it fills more blocks, of which nothing may be found
            side.step()
            side.check()
        found.append(made.kv_cache_manager.get_computed_blocks(stub.request("asks", tokens, size, 1))[1])
        made.add_request(stub.request("new", tokens, size, 4))  # with the new weights
        for _ in range(60):
            side.step()
        side.check()
        assert not made.requests
        found.append(made.kv_cache_manager.get_computed_blocks(stub.request("asks", tokens, size, 1))[1])
        hits.append([count > 0 for count in found])
        assert side.tokens["runs"] == side.worker.answer([(tokens, 40, ())])
        if ours:
            made.kv_cache_manager.core.check({})
    assert hits == [[True, True, True], [False, False, True]]


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_a_pause_forgets_what_the_old_weights_have_computed(mode: str, models_folder: Path) -> None:
    """By default a pause resets running requests, and they compute all anew: either manager, as the engine calls it."""
    from tests.engines import stub

    tokens = [3 + at % 90 for at in range(200)]
    for ours in (False, True):
        kinds = [stub.full()]
        made = stub.scheduler(models_folder, ours, kinds, 60)
        side = stub.Side(made, kinds)
        made.add_request(stub.request("runs", tokens, 16, 30))
        for _ in range(5):
            side.step()
        if mode == "abort":
            side.abort("runs")
        assert made.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        assert made.kv_cache_manager.get_computed_blocks(stub.request("asks", tokens, 16, 1))[1] == 0
        for _ in range(40):
            side.step()
        side.check()
        assert not made.requests
        assert mode == "abort" or side.tokens["runs"] == side.worker.answer([(tokens, 30, ())])
