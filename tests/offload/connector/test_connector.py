"""Property: whatever is loaded, evicted, stored, failed, aborted or preempted, tokens read the bytes of their prefixes.

How: a small engine over real tensors serves random requests from a pool that is far too small, with a host tier of real
memory, in part of the runs a second tier below it, and handlers that refuse, raise, fail and report late; it checks
each slot that it reads, and after each load every block in the request's tables. At the end nothing may be pinned,
held or under way.
Not covered: the chain's own books (test_chain*.py), the handlers' copies (test_host*.py), a GPU.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from tests.offload.connector.engine import Engine, chunked, full, mamba, sinks, sliding

from blockwright import KVCacheSpec

KINDS: dict[str, list[KVCacheSpec]] = {
    "full": [full(4)],
    "sliding": [sliding(4, 6)],
    "full, sliding": [full(4), sliding(2, 5)],
    "sinks": [sinks(2, 3, 4)],
    "chunked, full": [chunked(4, 8), full(2)],
    "full, mamba": [full(4), mamba(4)],
}


def served(engine: Engine, steps: int = 60) -> Engine:
    """Serve random requests whose prompts share prefixes, aborting some; then stop."""
    random = engine.random
    for number in range(steps):
        if len(engine.waiting) < 3:
            length = random.choice([5, 9, 12, 13, 17, 20])
            stem = [random.randrange(3)] * 8
            engine.send(f"r{number}", (stem + [random.randrange(2) for _ in range(4)] + [7] * 12)[:length])
        engine.step()
        engine.connector.check()
        engine.manager.check()  # knows what loads and stores hold without being told
        everyone = [*engine.waiting, *engine.loading.values(), *engine.running]
        for request in everyone:
            is_done = request.num_output_tokens > 6 or (engine.flight and request.num_computed_tokens > 18)
            if is_done or random.random() < 0.04:
                engine.end(request)
        if engine.loading and random.random() < 0.2:
            engine.end(random.choice(list(engine.loading.values())))
    engine.stop()
    return engine


@pytest.mark.parametrize("store_on", ["publish", "evict"])
@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
def test_every_token_reads_its_prefix(specs: list[KVCacheSpec], store_on: str) -> None:
    for seed in range(2):
        engine = served(Engine(specs, store_on, seed=seed))
        stats = engine.connector.stats()
        assert engine.num_loaded > 0
        assert stats.stored_blocks > 0
        assert stats.loads_failed <= stats.loads
        assert stats.failed_blocks == stats.refused_transfers == 0


@pytest.mark.parametrize("store_on", ["publish", "evict"])
@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
def test_whatever_fails(specs: list[KVCacheSpec], store_on: str) -> None:
    """Transfers are refused, raise, fail and are reported late; a failed load is computed instead."""
    loads = 0
    for seed, write in enumerate(["back", "through"]):
        engine = Engine(specs, store_on, seed=seed, host_blocks=16, slow_blocks=40, rate=0.1, write=write)
        stats = served(engine, 80).connector.stats()
        assert stats.failed_blocks > 0
        loads += stats.loads
    assert loads > 0


@pytest.mark.parametrize("specs", [[full(4)], [full(4), sliding(2, 5)]])
@pytest.mark.parametrize("rate", [0.0, 0.15])
def test_offloaded_blocks_of_two_device_blocks(specs: list[KVCacheSpec], rate: float) -> None:
    loaded = 0
    for seed in range(2):
        loaded += served(Engine(specs, "publish", seed=seed, per_block=2, rate=rate)).num_loaded
    assert loaded > 0


@pytest.mark.parametrize("store_on", ["publish", "evict"])
@pytest.mark.parametrize("specs", [[full(4)], [full(4), sliding(2, 5)]])
def test_with_a_step_in_flight(specs: list[KVCacheSpec], store_on: str) -> None:
    """The step before may run as late as after the copies for the next one."""
    loaded = 0
    for seed in range(3):
        loaded += served(Engine(specs, store_on, seed=seed, overlap=True, rate=0.05)).num_loaded
    assert loaded > 0


@pytest.mark.parametrize("store_on", ["publish", "evict"])
@pytest.mark.parametrize(
    "options", [{}, {"rate": 0.1, "slow_blocks": 40}, {"overlap": True}], ids=["", "fails", "flight"]
)
@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
def test_hits_that_end_inside_blocks(specs: list[KVCacheSpec], options: dict[str, Any], store_on: str) -> None:
    engine = served(Engine(specs, store_on, seed=5, unit=1, **options))
    assert engine.num_loaded > 0


@pytest.mark.parametrize("store_on", ["publish", "evict"])
def test_at_the_threads_own_pace(store_on: str) -> None:
    engine = Engine([full(4), sliding(2, 5)], store_on, host_blocks=12, slow_blocks=20, rate=0.1, races=True)
    assert served(engine).connector.stats().stored_blocks > 0


@pytest.mark.parametrize("store_on", ["publish", "evict"])
def test_loads_may_free_the_copy_on_the_host(store_on: str) -> None:
    assert served(Engine([full(4)], store_on, on_load="free")).num_loaded > 0
