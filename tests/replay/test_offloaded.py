"""Property: a host tier behind a replayed pool adds the hits that it holds, counted apart from the device's.

How: with store on evict, device and host together must hit as a single pool of both sizes does, nearly, for every kind
of layer; with store on publish no more than that and, nearly, no less than the device alone. Small cases are worked out
by hand, and where the traces are, the Mooncake trace must reach its reference shares.
Not covered: the connector in general (tests/offload); the times of real transfers.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from blockwright import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec, build_info
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec
from blockwright.offload.media import SharedLoadStoreSpec
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec
from blockwright.policies import Lru
from blockwright.replay.keeping import Keeping
from blockwright.replay.offloaded import InstantHandler, Link, OffloadOptions, SharedBlocks, TierResult
from blockwright.replay.pools import Way
from blockwright.replay.records import Trace, TraceRequest
from blockwright.replay.simulate import PoolResult, replay, replay_ways
from blockwright.replay.step_time import Linear
from blockwright.replay.timed import Overlap
from blockwright.replay.traces import load_trace
from blockwright.replay.workload import WorkloadOptions, generate_workload

WORKLOAD = generate_workload(WorkloadOptions(conversations=40, turns=4, system_tokens=300, max_tokens=3000, seed=3))
SIZES = {"num_kv_heads": 1, "head_size": 1, "dtype": "uint8"}
KINDS: dict[str, KVCacheSpec] = {
    "full": FullAttentionSpec(block_size=16, **SIZES),  # type: ignore[arg-type]
    "sliding": SlidingWindowSpec(block_size=16, sliding_window=100, **SIZES),  # type: ignore[arg-type]
    "chunked": ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=256, **SIZES),  # type: ignore[arg-type]
    "mamba": MambaSpec(block_size=16, shapes=((1,),), dtypes=("uint8",)),
}


def run(
    spec: KVCacheSpec,
    blocks: int,
    offload: OffloadOptions | None = None,
    trace: Trace = WORKLOAD,
    every: int | None = 40,
) -> PoolResult:
    return replay(trace, spec, [blocks], step_tokens=512, check_every=every, offload=offload).pools[0]


def tier_of(pool: PoolResult) -> TierResult:
    assert pool.offload is not None
    assert pool.offload.device_hit_blocks + pool.offload.host_hit_blocks == pool.hit_blocks
    assert pool.offload.device_hit_rate + pool.offload.host_hit_rate == pytest.approx(pool.hit_rate)
    return pool.offload


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_on_evict_is_as_good_as_a_larger_device(kind: str) -> None:
    device, host = {"mamba": (20, 30), "sliding": (150, 500)}.get(kind, (300, 500))
    alone, both = run(KINDS[kind], device), run(KINDS[kind], device + host)
    for on_load in ("free", "keep"):
        pool = run(KINDS[kind], device, OffloadOptions(host, "evict", on_load))
        tier = tier_of(pool)
        assert tier.host_hit_blocks > 0
        assert alone.hit_rate < pool.hit_rate
        # While a request is served, what it loads is on neither side; before a window, slots are given that stay
        # unused; and what the host keeps of what was loaded is there twice.
        near = (0.02 if kind == "full" else 0.08) if on_load == "free" else 0.1
        assert pool.hit_rate == pytest.approx(both.hit_rate, abs=near)
        assert tier.refused_blocks == 0
    published = run(KINDS[kind], device, OffloadOptions(host))
    # A block that a store still holds as its window moves on is let go of a little later, and so in another order.
    assert alone.hit_rate - 0.005 <= published.hit_rate <= both.hit_rate + 0.01
    assert tier_of(published).loaded_blocks > 0


def trace_of(*contents: int) -> Trace:
    """Prompts of two blocks of 4 tokens and a token more."""
    requests = [TraceRequest(array("i", [content]), array("i", [9]), 0.0, 1) for content in contents]
    return Trace("hand-made", "test", tuple(requests), 0.0)


def test_a_case_by_hand() -> None:
    """Three blocks: each prompt drives out the one before; the second round is all on the host."""
    spec = FullAttentionSpec(block_size=4, **SIZES)  # type: ignore[arg-type]
    trace = trace_of(1, 2, 1, 2)
    assert run(spec, 3, trace=trace).hit_blocks == 0
    tier = tier_of(run(spec, 3, OffloadOptions(8, "evict"), trace, every=1))
    assert (tier.device_hit_blocks, tier.host_hit_blocks, tier.stored_blocks, tier.loaded_blocks) == (0, 4, 6, 4)
    assert tier.on_load == "free"
    tier = tier_of(run(spec, 3, OffloadOptions(8), trace, every=1))
    assert (tier.device_hit_blocks, tier.host_hit_blocks, tier.stored_blocks, tier.loaded_blocks) == (0, 4, 4, 4)
    assert tier.on_load == "keep"
    tier = tier_of(run(spec, 6, OffloadOptions(0), trace, every=1))
    assert (tier.device_hit_blocks, tier.host_hit_blocks, tier.refused_blocks) == (4, 0, 8)


@pytest.mark.parametrize("store_on", ["publish", "evict"])
def test_a_disk_and_a_store_add_what_they_hold(store_on: Literal["publish", "evict"]) -> None:
    """Blocks come from the tier that has them; one of a few blocks adds little, and one of all adds all."""
    device, host = 300, 100
    alone = run(KINDS["full"], device, OffloadOptions(host, store_on))
    most = run(KINDS["full"], 30_000)
    for medium in ("from_disk", "from_store"):
        is_disk = medium == "from_disk"
        small, large = (
            run(KINDS["full"], device, OffloadOptions(host, store_on, None, n * is_disk, n * (not is_disk)))
            for n in (300, 30_000)
        )
        assert alone.hit_rate < small.hit_rate < large.hit_rate
        # A load passes through the host, so that a hit that is longer is cut.
        assert large.hit_rate == pytest.approx(most.hit_rate, abs=0.04)
        assert getattr(tier_of(large), medium) > 0
        assert tier_of(alone).from_disk == tier_of(alone).from_store == 0


def test_engines_share_a_store() -> None:
    """Turns go to another engine each time: in a store they find what the others wrote, on disks of their own less."""
    options = Overlap(8, arrivals=0.5)
    found: list[PoolResult] = []
    for below in (OffloadOptions(200, disk_blocks=20_000), OffloadOptions(200, store_blocks=20_000)):
        way = Way(300, Keeping("lru", Lru), None, below, engines=3)
        found += replay_ways(WORKLOAD, [KINDS["full"]], [way], overlap=options, check_every=40).pools
    assert found[0].hit_rate < found[1].hit_rate


def test_a_block_that_a_store_has_no_more_is_computed_again() -> None:
    shared = SharedBlocks(2, Link(0.0))
    assert shared.use([b"a", b"b"], is_written=True)
    assert shared.use([b"a"], is_written=False)
    assert shared.use([b"c"], is_written=True)
    assert shared.contains([b"a", b"b", b"c"]) == [True, False, True]
    assert not shared.use([b"a", b"b"], is_written=False)
    handler = InstantHandler(shared)
    assert handler.transfer_async(7, (SharedLoadStoreSpec([b"b"]), CPULoadStoreSpec([0])))
    assert handler.transfer_async(8, (SharedLoadStoreSpec([b"c"]), CPULoadStoreSpec([0])))
    assert handler.get_finished() == [(7, False), (8, True)]
    assert handler.read == {SharedLoadStoreSpec.medium(): 1}


def test_options_are_checked() -> None:
    for options in (
        {"host_blocks": -1},
        {"host_blocks": 1, "store_on": "x"},
        {"host_blocks": 1, "on_load": "x"},
        {"host_blocks": 1, "disk_blocks": -1},
        {"host_blocks": 0, "store_blocks": 1},
    ):
        with pytest.raises(InvalidArgumentError):
            OffloadOptions(**options)


def test_shares_of_the_mooncake_trace(traces: Path) -> None:
    if build_info().kind != "compiled":
        pytest.skip("the whole trace takes long uncompiled; the compiled build replays it")
    trace = load_trace(traces / "mooncake_conversation_trace.jsonl")
    spec = FullAttentionSpec(block_size=512, **SIZES)  # type: ignore[arg-type]
    both = replay(trace, spec, [25_000]).pools[0].hit_rate
    for options, share in (
        (OffloadOptions(20_000, "evict"), both),
        (OffloadOptions(20_000, "evict", "keep"), both),
        (OffloadOptions(20_000, "publish"), 0.294),
    ):
        pool = replay(trace, spec, [5_000], offload=options).pools[0]
        assert pool.hit_rate == pytest.approx(share, abs=0.01)
        assert tier_of(pool).device_hit_rate == pytest.approx(0.1185, abs=0.003)


@pytest.mark.parametrize(("seconds", "last", "first_token"), [(0.0, 400.0, 1), (4.0, 400.0, 9), (4.0, 304.0, 14)])
def test_what_comes_from_a_disk_or_a_store_delays_the_first_token(
    seconds: float, last: float, first_token: float
) -> None:
    """Of four prompts of two blocks, four blocks fit the device and the host, so that the first is on the disk again.

    A second a step: its two blocks take so many seconds each, one after another, and then it computes the rest. Where
    it comes at 304 s, the fourth prompt's are written until 309 s.
    """
    contents = [(1, 2), (3, 4), (5, 6), (7, 8), (1, 2)]
    requests = [
        TraceRequest(array("i", (*each, 99 - at)), array("i", (4, 4, 1)), min(100.0 * at, last), 1)
        for at, each in enumerate(contents)
    ]
    trace = Trace("disk", "made", tuple(requests), 0.0)
    spec = FullAttentionSpec(block_size=4, **SIZES)  # type: ignore[arg-type]
    for disk, store in ((16, 0), (0, 16)):
        offload = OffloadOptions(4, "publish", None, disk, store, seconds if disk else 0.0, seconds if store else 0.0)
        options = Overlap(2, Linear(1.0))
        (pool,) = replay(trace, spec, [4], overlap=options, offload=offload, check_every=1).pools
        tier = tier_of(pool)
        assert pool.timed is not None
        assert pool.timed.first_token[3] == first_token
        assert (tier.from_disk + tier.from_store, tier.to_disk + tier.to_store) == (2, 8)
        # A device that fails meanwhile begins again with empty tiers of its own; a store has what it had.
        failing = replace(options, fails=((0, 401.0, 50.0), (1, 0.5, 300.0)))
        way = Way(4, Keeping("lru", Lru), offload=offload, engines=2)
        (pool,) = replay_ways(trace, [spec], [way], overlap=failing, check_every=1).pools
        assert pool.timed is not None
        assert pool.timed.output_tokens == 5
