"""Property: a router that was told of everything finds what the engine's own lookup finds, for every kind of layer.

How: random prompts with shared beginnings, in steps of several lengths, with outputs, evictions and resets; after each
step some prompts are asked of the manager and of three indexes: of its events, of the same over the wire, and of a
snapshot. Then what no engine tells: ranks, copies, kinds alone, an order of items. Laws: EV-7.
Not covered: engines with tiers (tests/offload/connector/test_told.py), other engines (tests/engines/test_routing.py).
"""

from __future__ import annotations

from random import Random
from struct import pack
from typing import Any

import pytest

msgspec = pytest.importorskip("msgspec")

from blockwright import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    Sha256Hasher,
    SlidingWindowSpec,
)
from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheLayout, GroupLayout
from blockwright.observe import EventStream, FleetIndex, PrefixIndex
from blockwright.observe.wire import Encoder, decode, kinds_of

HEADS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}


def full(size: int = 4) -> KVCacheSpec:
    return FullAttentionSpec(size, **HEADS)


def window(tokens: int, size: int = 4, sinks: int = 0) -> KVCacheSpec:
    return SlidingWindowSpec(size, **HEADS, sliding_window=tokens, sink_len=sinks)


def chunks(tokens: int, size: int = 4) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(size, **HEADS, attention_chunk_size=tokens)


def states(size: int = 4, drafts: int = 0) -> KVCacheSpec:
    return MambaSpec(size, ((1,),), ("float32",), num_speculative_blocks=drafts)


CASES: dict[str, tuple[list[KVCacheSpec], dict[str, Any]]] = {
    "full": ([full()], {}),
    "full, draft head": ([full()], {"use_eagle": True}),
    "full, keys ahead": ([full()], {"lookahead": 1}),
    "full, units": ([full()], {"prefix_match_unit": 2}),
    "window": ([full(), window(7)], {}),
    "short window": ([full(), window(2)], {}),
    "window, draft head": ([full(), window(7)], {"use_eagle": True}),
    "window, keys ahead": ([full(), window(7)], {"lookahead": 2}),
    "window, units": ([full(), window(7)], {"prefix_match_unit": 1}),
    "window with sinks": ([full(), window(6, sinks=5)], {}),
    "windows of two sizes of block": ([full(8), window(9, 4), window(17, 8)], {}),
    "chunks": ([full(), chunks(8)], {}),
    "chunks, draft head": ([full(), chunks(12)], {"use_eagle": True}),
    "chunks, units": ([full(8), chunks(16, 4)], {"prefix_match_unit": 2}),
    "states": ([full(), states()], {}),
    "large states": ([full(4), states(8)], {}),
    "states, units, keys ahead": ([full(4), states(8)], {"prefix_match_unit": 2, "lookahead": 1}),
    "states, wanted kept": ([full(), states()], {"keep_wanted": True}),
    "all kinds": ([full(), window(6), chunks(8), states()], {}),
}
ALONE: dict[str, tuple[list[KVCacheSpec], dict[str, Any]]] = {
    "window alone": ([window(7)], {}),
    "states alone": ([states()], {}),
    "chunks alone": ([chunks(8)], {}),
    "chunks and window": ([chunks(8), window(6)], {}),
}


class Engine:
    """A manager whose requests share beginnings, and the indexes of three routers."""

    def __init__(self, specs: list[KVCacheSpec], options: dict[str, Any], seed: int) -> None:
        self.random, self.count = Random(seed), 0
        options = dict(options)
        ahead, self.unit = options.pop("lookahead", 0), options.get("prefix_match_unit")
        groups = [KVCacheGroupSpec([f"{at}"], spec) for at, spec in enumerate(specs)]
        config = KVCacheConfig(self.random.choice([40, 60, 90]) * len(specs), groups)
        self.manager = KVCacheManager(config, 64, enable_kv_cache_events=True, **options)
        self.hasher, self.stream, self.heard = Sha256Hasher(b"s", ahead), EventStream(), 0
        self.direct, self.wired, self.part, self.fleet = PrefixIndex(), PrefixIndex(), PrefixIndex(), FleetIndex()
        self.encode = Encoder(groups=kinds_of(specs))
        self.size = self.manager.hash_block_size
        self.running: list[Request] = []

    def made(self, tokens: list[int], **owner: Any) -> Request:
        self.count += 1
        return Request(f"r{self.count}", tokens, self.size, hasher=self.hasher, **owner)

    def prompt(self) -> list[int]:
        random = self.random
        tokens = [random.randrange(3)] * random.randrange(30) + [
            random.randrange(2) for _ in range(random.randrange(1, 9))
        ]
        return tokens + [random.choice([9, 9 + (1 << 40)])] * random.randrange(20)

    def owner(self) -> dict[str, Any]:
        return self.random.choice(
            [{}, {}, {}, {"cache_salt": "one"}, {"lora_name": ""}, {"lora_name": "a", "cache_salt": ""}]
        )

    def step(self) -> None:
        random, manager = self.random, self.manager
        for request in [*self.running]:
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids([random.randrange(2)])
            count = min(request.num_tokens - request.num_computed_tokens, random.choice([4, 7, 16, 60]))
            if request.num_tokens > 60 or random.random() < 0.1 or manager.allocate_slots(request, count) is None:
                manager.free(request)
                self.running.remove(request)
                continue
            request.num_computed_tokens += count
        if len(self.running) < 3:
            request = self.made(self.prompt(), **self.owner())
            hit, length = manager.get_computed_blocks(request)
            count = min(request.num_tokens - length, random.choice([4, 9, 60]))
            if manager.allocate_slots(request, count, length, hit) is not None:
                request.num_computed_tokens = length + count
                self.running.append(request)
        manager.take_copies()
        manager.new_step_starts()
        if not self.running and random.random() < 0.05:
            manager.reset_prefix_cache()
        self.stream.record(manager.take_events())
        for batch in self.stream.since(self.heard):
            self.direct.apply(batch.events)
            self.wired.apply(decode(self.encode(batch.events, 0.0)))
            self.fleet.apply("direct", batch.events)
            self.fleet.apply("wired", decode(self.encode(batch.events, 0.0)))
            if random.random() < 0.6:  # another engine, of which some batches are lost
                self.part.apply(batch.events)
                self.fleet.apply("part", batch.events)
            self.heard = batch.sequence + 1

    def asked(self) -> tuple[int, list[int]]:
        """What the manager finds of a prompt, and what the routers do."""
        tokens, owner = self.prompt(), self.owner()
        if self.running and self.random.random() < 0.5:
            one = self.random.choice(self.running)
            tokens, owner = [*one.all_token_ids, 5], {"cache_salt": one.cache_salt, "lora_name": one.lora_name}
        _, length = self.manager.get_computed_blocks(self.made(tokens, **owner))
        late = PrefixIndex(self.stream.snapshot().events)
        found = [each.match(tokens, leave=1, **owner) for each in (self.direct, self.wired, late)]
        together = self.fleet.match(tokens, leave=1, **owner)
        assert [together.get("direct", 0), together.get("wired", 0)] == found[:2]
        # Of the tree of all engines, what was lost is known: then no less is found.
        assert together.get("part", 0) >= self.part.match(tokens, leave=1, **owner)
        return length, found


@pytest.mark.parametrize("case", CASES)
def test_a_router_finds_what_the_engine_finds(case: str) -> None:
    hits = 0
    for seed in range(3):
        engine = Engine(*CASES[case], seed)
        for _ in range(60):
            engine.step()
            for _ in range(4):
                wanted, found = engine.asked()
                assert found == [wanted] * 3
                hits += wanted > 0
    assert hits > 30


@pytest.mark.parametrize("case", ALONE)
def test_where_no_layer_reads_everything_a_router_never_finds_more(case: str) -> None:
    """A block whose beginning was never told of, or before the router joined, cannot be placed."""
    hits = equal = 0
    for seed in range(3):
        engine = Engine(*ALONE[case], seed)
        for _ in range(60):
            engine.step()
            wanted, found = engine.asked()
            assert max(found) <= wanted
            hits += wanted > 0
            equal += 0 < wanted == found[0]
    assert hits > 20
    assert equal or case == "states alone"


def stored(number: int, parent: int | None, tokens: list[int], **fields: Any) -> BlockStored:
    return BlockStored(number, parent, pack(f"<{len(tokens)}i", *tokens), len(tokens))._replace(**fields)


CHAIN = [stored(1, None, [7, 8]), stored(2, 1, [9, 10])]
PROMPT = [7, 8, 9, 10]


def test_a_content_is_there_until_its_last_copy_is_gone() -> None:
    counted, told_anew = PrefixIndex([*CHAIN, *CHAIN]), PrefixIndex([*CHAIN, *CHAIN], tells_hits=True)
    for wanted in ((4, 2), (2, 2)):
        for index in (counted, told_anew):
            index.apply([BlockRemoved(2)])
        assert (counted.match(PROMPT), told_anew.match(PROMPT)) == wanted
    bare = stored(2, None, [], block_size=2, medium="CPU")
    index = PrefixIndex([*CHAIN, bare, CHAIN[1]._replace(medium="CPU"), BlockRemoved(2)])
    assert [index.match(PROMPT, medium=each) for each in ("GPU", "CPU", ("GPU", "CPU"))] == [2, 0, 4]
    index.apply([BlockRemoved(2, 0, "CPU")])  # told of better, not twice
    assert index.match(PROMPT, medium=("GPU", "CPU")) == 2
    index.apply([AllBlocksCleared("CPU")])
    assert index.copy().match(PROMPT) == 2
    index.apply([AllBlocksCleared()])
    assert len(index) == index.match(PROMPT) == 0


def test_ranks_are_kept_apart() -> None:
    def of(rank: Any, *events: Any) -> Any:
        payload = msgspec.msgpack.decode(Encoder()(events, 0.0))
        return decode(msgspec.msgpack.encode([*payload[:2], rank]))

    index = PrefixIndex(of(0, *CHAIN))
    for each in (of(1, CHAIN[0]), of(1, BlockRemoved(2)), of("1", AllBlocksCleared()), of(1, CHAIN[0])):
        index.apply(each)
    assert [index.match(PROMPT, rank=rank) for rank in (None, 0, 1, 2)] == [4, 4, 2, 0]
    assert (index.ranks(), len(index.known_keys(1)), len(index)) == ([0, 1], 1, 3)


def test_items_are_given_in_any_order() -> None:
    items = [("B", 2, 1), ("A", 0, 1), ("C", 2, 1)]
    index = PrefixIndex([stored(1, None, PROMPT, mm_items=(("A", 0, 1), ("B", 2, 1), ("C", 2, 1)))])
    assert [index.match(PROMPT, mm_items=each) for each in (items, items[::-1], items[:2])] == [4, 4, 0]


def test_prefixes_are_remembered_while_blocks_behind_them_are_known() -> None:
    """And swept out after that, so that the tree stays as large as what is known."""
    layout = CacheLayout((GroupLayout("sliding_window", 2, 3),), 2)
    index, prompt = PrefixIndex(layout=layout), list(range(400))
    for at in range(200):
        index.apply([stored(at + 1, at or None, prompt[2 * at : 2 * at + 2])])
    index.apply([BlockRemoved(each) for each in range(1, 198)])
    assert (len(index), index.match(prompt)) == (3, 400)
    index.apply([BlockRemoved(each) for each in range(198, 201)])
    for at in range(1000, 1500):
        index.apply([stored(at, None, [at, at]), BlockRemoved(at)])
    assert len(index._ranks[0].children.get(None, ())) < 300
    assert not index._ranks[0].children.get(5)
