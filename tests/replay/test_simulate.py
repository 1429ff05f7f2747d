"""A replay counts exactly the hits, evictions and refusals of a prefix cache with least-recently-used eviction.

How: an independent model of such a cache, written over dictionaries and prefixes, serves the same requests; every count
of the replay must equal the model's, for three kinds of layer, several block sizes and pools from tiny to ample. The
recurrent kind and prefill in steps are checked on cases whose result can be worked out by hand.

Not covered: the manager in general, which the conformance kit compares with the specification; speed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockwright import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec
from blockwright.policies import Adaptive
from blockwright.replay.keeping import Keeping
from blockwright.replay.records import Trace, TraceRequest
from blockwright.replay.simulate import PoolResult, replay
from blockwright.replay.traces import load_trace
from blockwright.replay.workload import WorkloadOptions, generate_workload


class Model:
    """A prefix cache of one layer kind whose requests come one after another.

    `first_read(n)` is the first position that the token at n reads. Prefixes are numbered, equal ones equally.
    """

    def __init__(self, num_blocks: int, block_size: int, first_read: Callable[[int], int]) -> None:
        self.block_size, self.first_read = block_size, first_read
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.prefix_of: dict[int, int] = {}
        self.blocks_with: dict[int, list[int]] = {}
        self.numbers: dict[tuple[int, bytes], int] = {}
        self.hits = self.evictions = self.refused = self.peak = 0

    def prefixes(self, tokens: array[int]) -> Iterator[int]:
        """Number the prefixes up to the end of every full block."""
        number = -1
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            step = (number, tokens[end - self.block_size : end].tobytes())
            number = self.numbers.setdefault(step, len(self.numbers))
            yield number

    def read_blocks(self, length: int) -> range:
        """Return the blocks that the token at `length`, a block boundary, reads."""
        return range(self.first_read(length) // self.block_size, length // self.block_size)

    def serve(self, tokens: array[int]) -> None:
        size, prefixes = self.block_size, list(self.prefixes(tokens))
        lengths = range((len(tokens) - 1) // size * size, -1, -size)
        hit = next(n for n in lengths if all(self.blocks_with.get(prefixes[i]) for i in self.read_blocks(n)))
        table: list[int] = [self.blocks_with[prefixes[i]][0] for i in self.read_blocks(hit)]
        missing = -(-len(tokens) // size) - hit // size
        if missing + len(table) > len(self.free):
            self.refused += 1
            return
        self.hits += hit // size
        for block in table:
            del self.free[block]
        fresh = [self.take() for _ in range(missing)]
        for index, block in enumerate(fresh, hit // size):
            if index < len(prefixes) and index in self.read_blocks((index + 1) * size):  # some hit reads it
                self.prefix_of[block] = prefixes[index]
                self.blocks_with.setdefault(prefixes[index], []).append(block)
        self.peak = max(self.peak, len(table) + len(fresh))
        for block in reversed(table + fresh):
            self.free[block] = None
            self.free.move_to_end(block, last=block in self.prefix_of)

    def take(self) -> int:
        block, _ = self.free.popitem(last=False)
        if block in self.prefix_of:
            self.evictions += 1
            self.blocks_with[self.prefix_of.pop(block)].remove(block)
        return block


def full(block_size: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="uint8")


def sliding(block_size: int, window: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="uint8", sliding_window=window)


def chunked(block_size: int, chunk: int) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype="uint8", attention_chunk_size=chunk
    )


def mamba(block_size: int) -> MambaSpec:
    return MambaSpec(block_size=block_size, shapes=((1,),), dtypes=("uint8",))


def first_read_by(spec: KVCacheSpec) -> Callable[[int], int]:
    if isinstance(spec, SlidingWindowSpec):
        return lambda n: max(0, n - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return lambda n: n // spec.attention_chunk_size * spec.attention_chunk_size
    return lambda n: 0


def model_of(trace: Trace, spec: KVCacheSpec, num_blocks: int) -> Model:
    model = Model(num_blocks, spec.block_size, first_read_by(spec))
    for request in trace.requests:
        model.serve(request.token_ids())
    return model


def agree(result: PoolResult, model: Model) -> None:
    ours = (result.hit_blocks, result.evictions, result.refused, result.peak_used)
    assert ours == (model.hits, model.evictions, model.refused, model.peak), f"{result.blocks} blocks"


def trace_of(*prompts: list[tuple[int, int]]) -> Trace:
    requests = [
        TraceRequest(array("i", [run[0] for run in prompt]), array("i", [run[1] for run in prompt]), 0.0, 1)
        for prompt in prompts
    ]
    return Trace("by hand", "generated", tuple(requests), 0.0)


WORKLOAD = generate_workload(
    WorkloadOptions(conversations=25, turns=4, system_prompts=3, system_tokens=60, user_tokens=12, output_tokens=20)
)
SPECS = [
    full(1), full(4), full(7), full(16),
    sliding(4, 1), sliding(4, 3), sliding(4, 5), sliding(4, 6), sliding(5, 40),
    chunked(4, 4), chunked(4, 16), chunked(8, 64),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_counts_equal_those_of_the_model(spec: KVCacheSpec) -> None:
    whole = -(-WORKLOAD.max_prompt_tokens // spec.block_size)
    shortest = min(request.num_tokens for request in WORKLOAD.requests) // spec.block_size + 1
    sizes = [shortest, whole, 2 * whole, 5 * whole, WORKLOAD.num_references(spec.block_size)]
    result = replay(WORKLOAD, spec, sizes, check_every=50, keep_wanted=False)
    models = [model_of(WORKLOAD, spec, size) for size in sizes]
    for pool, model in zip(result.pools, models, strict=True):
        agree(pool, model)
        assert pool.checks == -(-len(WORKLOAD.requests) // 50)
    # The cases are worth something: a small pool refuses (with full attention: other kinds may need few blocks after a
    # hit), some pool evicts (unless nothing is kept, for want of a hit that reads it), the largest does neither.
    assert models[0].refused > 0 or not isinstance(spec, FullAttentionSpec)
    assert any(model.evictions for model in models) or spec in (sliding(4, 1), chunked(4, 4))
    assert models[-1].evictions == models[-1].refused == 0 < models[-1].hits


@pytest.mark.parametrize("block_size", [100, 512, 1024])
def test_the_first_mooncake_requests_equal_the_model(traces: Path, block_size: int) -> None:
    trace = load_trace(traces / "mooncake_conversation_trace.jsonl", limit=150)
    sizes = [2000 * 512 // block_size, 200 * 512 // block_size]
    for pool in replay(trace, full(block_size), sizes).pools:
        agree(pool, model_of(trace, full(block_size), pool.blocks))


def test_a_prompt_never_hits_whole() -> None:
    result = replay(trace_of([(1, 8)], [(1, 8)], [(1, 9)]), full(4), [10]).pools[0]
    assert result.hit_blocks == 0 + 1 + 2
    assert result.hit_rate == pytest.approx(3 / (2 + 2 + 3))
    assert result.token_hit_rate == pytest.approx(12 / 25)


def test_a_partial_block_counts_as_a_reference_and_is_never_hit() -> None:
    result = replay(trace_of([(1, 6)], [(1, 6)]), full(4), [10]).pools[0]
    assert (result.hit_blocks, result.hit_rate) == (1, 1 / 4)


def test_prompts_that_cannot_fit_are_counted_and_passed_over() -> None:
    result = replay(trace_of([(1, 8)], [(2, 9)], [(1, 8)]), full(4), [2], check_every=1).pools[0]
    assert (result.refused, result.hit_blocks, result.peak_used, result.mean_used) == (1, 1, 2, 2.0)


def test_recurrent_layers_hit_at_the_last_block_boundary_of_an_earlier_prompt() -> None:
    trace = trace_of([(1, 10)], [(1, 10), (2, 5)], [(1, 7), (3, 9)])
    result = replay(trace, mamba(4), [8], check_every=1).pools[0]
    # States at 8 and 12 are published. The second prompt continues at 8; the third shares 7 tokens and so no state.
    assert result.hit_blocks == 2
    # A step holds the state it reads and the state it writes, never more, however long the prompt.
    assert result.peak_used == 2


def test_steps_bound_what_a_window_holds() -> None:
    trace = trace_of([(1, 400)], [(1, 401)])
    whole = replay(trace, sliding(4, 9), [200]).pools[0]
    steps = replay(trace, sliding(4, 9), [200], step_tokens=8, check_every=1).pools[0]
    assert whole.peak_used == 100
    # Before a step the window holds at most ceil(8 / 4) + 1 blocks, and the step adds two.
    assert steps.peak_used <= 5
    assert steps.hit_blocks == whole.hit_blocks == 100
    small = replay(trace, sliding(4, 9), [5], step_tokens=8).pools[0]
    assert (small.refused, small.hit_blocks) == (0, 100)


def test_steps_change_no_hit_of_full_attention() -> None:
    for size in (40, 400):
        whole, steps = (replay(WORKLOAD, full(16), [size], step_tokens=step).pools[0] for step in (None, 33))
        assert (steps.hit_blocks, steps.evictions) == (whole.hit_blocks, whole.evictions)


def test_arguments_are_checked() -> None:
    trace = trace_of([(1, 8)])
    for sizes, step, every, message in (
        ([], None, None, "pool_sizes: must name"),
        ([0], None, None, "pool_sizes: must be an integer within 1..2147483647, not 0"),
        ([4], 0, None, "step_tokens: must be an integer within 1..2147483647, not 0"),
        ([4], None, -1, "check_every: must be an integer within 1..2147483647, not -1"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            replay(trace, full(4), sizes, step_tokens=step, check_every=every)


def test_pools_side_by_side_learn_as_each_alone() -> None:
    """What one pool has admitted is new to the next, so that who learns from first admissions learns there too."""
    # Popular prompts, each beside others that come once: of use is how often they came.
    runs = [(each, 1000 + 2 * at, 1001 + 2 * at) for at in range(300) for each in (at % 6,)]
    requests = [TraceRequest(array("i", run), array("i", [16] * 3), float(at), 1) for at, run in enumerate(runs)]
    trace, keeping = Trace("prompts", "made", tuple(requests), 0.0), Keeping("adaptive", Adaptive)
    both = replay(trace, full(4), [40, 60], keeping=keeping).pools
    assert [each.hit_blocks for each in both] == [
        replay(trace, full(4), [size], keeping=keeping).pools[0].hit_blocks for size in (40, 60)
    ]
    plain = replay(trace, full(4), [40, 60]).pools
    assert all(learned.hit_blocks > lru.hit_blocks for learned, lru in zip(both, plain, strict=True))
