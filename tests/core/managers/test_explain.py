"""Property: an explanation of a hit names what limits it, and what became of what is missing, truly.

How: causes over random walks in small pools, by a model that watches tables, counters and keys, and the specification;
causes and errors by examples; parts of blocks, by the specification; copies, and that nothing changes.
Not covered: limits, and which blocks a longer hit lacks (the scopes named "explained"), time (benchmarks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import starmap
from random import Random

import pytest
from tests.core import support
from tests.core.support import chunked, cross, full, mamba, manager_dump, sliding

from blockwright import (
    BlockPool,
    EvictionStats,
    HitLimit,
    KVCacheManager,
    KVCacheSpec,
    Request,
    SipHasher,
)
from blockwright.errors import InvalidArgumentError
from blockwright_conformance.kv_cache.blockwright import kv_cache_spec
from blockwright_conformance.kv_cache.scopes import layers
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.in_time.explain import Limit, explained
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import Config, Content, State, initial
from blockwright_spec.manager.units import Units
from blockwright_spec.reads import Group, Prefix, cut


def manager_over(
    specs: Sequence[KVCacheSpec],
    num_blocks: int = 200,
    *,
    caching: bool = True,
    eagle: bool = False,
    remembers: bool = True,
) -> KVCacheManager:
    """A manager that remembers, unless told otherwise."""
    return support.manager_over(
        specs, num_blocks, caching=caching, use_eagle=eagle, explain_evictions=remembers, log_stats=True
    )


def ask(num_tokens: int, size: int = 2, first: int = 0, *, prompt_logprobs: bool = False) -> Request:
    return Request("q", list(range(first, first + num_tokens)), size, prompt_logprobs=prompt_logprobs)


def run(
    manager: KVCacheManager, num_tokens: int, *, name: str = "r", first: int = 0, size: int = 2, step: int = 0
) -> Request:
    request = Request(name, list(range(first, first + num_tokens)), size)
    hit, num_hit = manager.get_computed_blocks(request)
    step = step or num_tokens
    while request.num_computed_tokens < num_tokens:
        begin = request.num_computed_tokens + num_hit
        new = min(step, num_tokens - begin)
        blocks = manager.allocate_slots(request, new, num_hit, hit if num_hit else None)
        assert blocks is not None
        request.num_computed_tokens, num_hit = begin + new, 0
    return request


def flush(manager: KVCacheManager, first: int = 500) -> None:
    """Have every free block taken for something else, once."""
    blocks = manager.block_pool.get_new_blocks(manager.block_pool.get_num_free_blocks())
    manager.block_pool.free_blocks(blocks)


# --- causes ---


def test_what_was_trimmed_and_then_taken() -> None:
    manager = manager_over([sliding(2, 3)], 8)
    request = run(manager, 8, step=2)
    flush(manager)
    assert manager.explain_hit(ask(5)).groups[0][4:6] == (4, HitLimit.TRIMMED)
    manager.free(request)
    flush(manager)
    assert manager.explain_hit(ask(9)).groups[0][4:6] == (8, HitLimit.EVICTED)
    stats = manager.make_eviction_stats()
    assert stats is not None
    assert (sum(stats.evicted), sum(stats.trimmed)) == (2, 2)


def test_a_lost_state_counts_though_others_never_were() -> None:
    """A recurrent layer publishes where a step stopped; what would have helped is that, not the next multiple."""
    manager = manager_over([full(2), mamba(2)])
    manager.free(run(manager, 8))
    assert manager.explain_hit(ask(9)).num_tokens == 8
    flush(manager)
    said = manager.explain_hit(ask(11))
    assert (said.num_tokens, said.candidate, said.num_tokens_without_losses) == (0, 8, 8)
    assert [(part.missing_end, part.limit) for part in said.groups] == [(2, HitLimit.EVICTED), (8, HitLimit.EVICTED)]
    fresh = manager_over([full(2), mamba(2)])
    run(fresh, 8)
    said = fresh.explain_hit(ask(7))
    assert (said.num_tokens, said.candidate, said.limiting_groups) == (0, 2, (1,))
    assert [part.limit for part in said.groups] == [HitLimit.OTHER_GROUP, HitLimit.NEVER_PUBLISHED]
    assert [part.num_tokens for part in said.groups] == [6, 0]


@pytest.mark.parametrize("tracks", [False, True])
def test_without_memory_a_loss_has_no_cause(tracks: bool) -> None:
    manager = support.manager_over([full(2)], 6, track_evictions=tracks)
    manager.free(run(manager, 8))
    flush(manager)
    said = manager.explain_hit(ask(9))
    assert said.groups[0].limit is said.groups[0].cause is HitLimit.UNKNOWN_LOSS
    assert (said.candidate, said.num_tokens_without_losses) == (2, None)
    assert manager.make_eviction_stats() is None
    assert manager.block_pool.take_losses() == {}
    assert not manager.block_pool.explains_evictions


# --- limits ---


@pytest.mark.parametrize(
    ("manager", "request_"),
    [
        (manager_over([full(2), cross(2)], caching=False, remembers=False), ask(8)),
        (manager_over([full(2), full(2)]), Request("q", list(range(8)), None)),
        (manager_over([full(2), full(2)]), ask(8, prompt_logprobs=True)),
    ],
    ids=["no caching", "no keys", "prompt log-probabilities"],
)
def test_nothing_was_asked(manager: KVCacheManager, request_: Request) -> None:
    said = manager.explain_hit(request_)
    assert (said.num_tokens, said.candidate, said.limiting_groups) == (0, None, ())
    assert [part.limit for part in said.groups] == [HitLimit.NOT_ASKED] * 2


# --- all together ---


class Model:
    """What became of every key, told from tables, counters and keys alone."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager, self.pool = manager, manager.block_pool
        self.causes = [HitLimit.EVICTED] * self.pool.num_blocks
        self.losses: deque[tuple[tuple[int, bytes], HitLimit]] = deque(maxlen=self.pool.num_blocks - 1)
        self.counts = {cause: [0] * len(manager.managers) for cause in (HitLimit.EVICTED, HitLimit.TRIMMED)}
        self.counts[HitLimit.RESET] = [0] * len(manager.managers)

    def contents(self) -> list[tuple[int, bytes] | None]:
        pairs = zip(self.pool.block_groups(), self.pool.block_keys(), strict=True)
        return [(group, key) if group is not None and key is not None else None for group, key in pairs]

    def lose(self, content: tuple[int, bytes], cause: HitLimit) -> None:
        self.losses.append((content, cause))
        self.counts[cause][content[0]] += 1

    def release(self, blocks: list[int], counts: list[int], cause: HitLimit) -> None:
        for block in blocks:
            if block and counts[block] == 1:
                self.causes[block] = cause

    def grow(self, request: Request, new: int, hit: object = None, num_hit: int = 0) -> bool:
        counts, contents = self.pool.ref_counts(), self.contents()
        runs = request.request_id in self.manager.request_ids()
        before = self.manager.get_block_ids(request.request_id) if runs else ()
        blocks = self.manager.allocate_slots(request, new, num_hit, hit)  # type: ignore[arg-type]
        if blocks is None:
            return False
        for old, now in zip(before, self.manager.get_block_ids(request.request_id), strict=False):
            gone = [block for block, kept in zip(old, now, strict=False) if not kept]
            self.release(gone, counts, HitLimit.TRIMMED)
        tables, after = self.manager.get_block_ids(request.request_id), self.contents()
        for block in (int(block) for ids in blocks.ids for block in ids):  # all groups take, and then publish
            content, contents[block] = contents[block], None
            if content is not None and content not in contents:
                self.lose(content, self.causes[block])
        for block in (block for table in tables for block in table):
            contents[block] = after[block]
        return True

    def free(self, request: Request) -> None:
        counts = self.pool.ref_counts()
        for table in self.manager.get_block_ids(request.request_id):
            self.release(table, counts, HitLimit.EVICTED)
        self.manager.free(request)

    def reset(self) -> None:
        contents = self.contents()
        serving = {
            content: (self.pool.get_cached_block(content[1], [content[0]]) or [])[0].block_id
            for content in contents
            if content is not None
        }
        if self.manager.reset_prefix_cache():
            for content in sorted(serving, key=serving.__getitem__):
                self.lose(content, HitLimit.RESET)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "names", ["full, block 2 + sliding 3, block 2", "full, block 2 + mamba, block 2", "sliding 5, block 2"]
)
def test_causes_over_a_random_walk(names: str, seed: int) -> None:
    groups = tuple(starmap(Group, layers(names)))
    specs = [kv_cache_spec(group.kind, group.block_size) for group in groups]
    random, manager = Random(seed), manager_over(specs, 9 + 2 * len(specs))
    model, seen = Model(manager), set()
    running: dict[str, Request] = {}
    for step in range(250):
        name = f"r{random.randrange(3)}"
        if random.random() < 0.02:
            for request in list(running.values()):
                model.free(request)
            running.clear()
            model.reset()
        elif name not in running:
            request = Request(name, [random.randrange(2) for _ in range(random.randrange(3, 9))], 2)
            hit, num_hit = manager.get_computed_blocks(request)
            new = random.randrange(1, request.num_tokens - num_hit + 1)
            if model.grow(request, new, hit if num_hit else None, num_hit):
                request.num_computed_tokens, running[name] = num_hit + new, request
        elif random.random() < 0.3:
            model.free(running.pop(name))
        else:
            request = running[name]
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids([random.randrange(2)])
            new = random.randrange(1, request.num_tokens - request.num_computed_tokens + 1)
            if request.num_tokens < 14 and model.grow(request, new):
                request.num_computed_tokens += new
            elif request.num_tokens >= 14:
                model.free(running.pop(name))
        if step % 5 == 0:
            tokens = [random.randrange(2) for _ in range(random.randrange(3, 13))]
            seen |= judged(model, groups, Request("q", tokens, 2))
        manager.check()
    stats = manager.make_eviction_stats()
    assert stats == EvictionStats(*(tuple(model.counts[cause]) for cause in model.counts))
    assert HitLimit.EVICTED in seen


def judged(model: Model, groups: tuple[Group, ...], request: Request) -> set[HitLimit]:
    """Compare an explanation with the specification's of what is cached and of what the model saw being lost."""
    prefix: Prefix = (0, tuple(request.all_token_ids))
    named: dict[tuple[int, bytes], Content] = {
        (at, key[:16]): (at, cut(prefix, 2 * (entry + 1)))
        for entry, key in enumerate(request.block_hashes)
        for at in range(len(groups))
    }
    held = {named[content] for content in model.contents() if content in named}
    causes = {named[content]: cause for content, cause in model.losses if content in named}
    num_blocks = model.manager.block_pool.num_blocks
    wanted = explained(caching(groups, num_blocks, held), prefix, frozenset(causes))
    said = model.manager.explain_hit(request)
    assert (said.num_tokens, said.candidate) == (wanted.length, wanted.candidate)
    for at, (part, own) in enumerate(zip(said.groups, wanted.parts, strict=True)):
        end, limit = (*own.missing, None)[0], HitLimit.NEVER_PUBLISHED
        if end is not None and own.limit is Limit.MISSING:
            limit = causes.get((at, cut(prefix, end)), limit)
        elif own.limit is not Limit.MISSING:
            limit = HitLimit[own.limit.name]
        assert (part.num_tokens, part.missing_end, part.limit) == (own.length, end, limit)
    assert said.num_tokens_without_losses == found(caching(groups, num_blocks, {*held, *causes}), prefix, LRU).length
    return {part.limit for part in said.groups}


def caching(groups: tuple[Group, ...], num_blocks: int, contents: AbstractSet[Content]) -> State:
    """A state of the specification in which free blocks hold some contents; with losses, more than there are blocks."""
    state = initial(Config(groups, num_blocks, 20), 1)
    return replace(state, keys=tuple(enumerate(contents, 1)), contents=(None, *contents, *(None,) * num_blocks))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "names", ["full, block 4", "full, block 2 + sliding 3, block 4", "full, block 2 + mamba, block 4"]
)
def test_lost_parts_of_blocks_are_explained(names: str, seed: int) -> None:
    """Where hits end inside blocks: of all that was found, some is lost, and the specification says what that costs."""
    groups = tuple(starmap(Group, layers(names)))
    specs = [kv_cache_spec(group.kind, group.block_size) for group in groups]
    random = Random(seed)
    manager = support.manager_over(specs, 80, explain_evictions=True, prefix_match_unit=1)
    prompts = [[1, 0, 1], *([random.randrange(2) for _ in range(random.randrange(3, 12))] for _ in range(4))]
    for number, tokens in enumerate(prompts):
        manager.new_step_starts()
        request = Request(f"r{number}", tokens, 1)
        support.admit(manager, request)
        manager.take_copies()
        manager.free(request)
    held, pool = published_in(manager), manager.block_pool
    if seed == 0:
        assert manager.reset_prefix_cache()
    pool.free_blocks(pool.get_new_blocks(pool.get_num_free_blocks() - random.randrange(3)))
    now = published_in(manager)
    seen = set()
    for tokens in (*prompts, *([*tokens, 1, 0] for tokens in prompts)):
        request, prefix = Request("q", tokens, 1), (0, tuple(tokens))
        named: dict[tuple[int, bytes], Content] = {
            (at, key[:16]): (at, cut(prefix, end)) for end, key in enumerate(request.block_hashes, 1) for at in range(2)
        }
        there, lost = ({named[each] for each in some if each in named} for some in (now, held - now))
        state = caching(groups, pool.num_blocks, there)
        wanted = explained(
            replace(state, config=replace(state.config, chapters=(*state.config.chapters, Units(unit=1)))),
            prefix,
            frozenset(lost),
        )
        said = manager.explain_hit(request)
        assert (said.num_tokens, said.candidate) == (wanted.length, wanted.candidate)
        for part, own in zip(said.groups, wanted.parts, strict=True):
            end = (*own.missing, None)[0]
            assert (part.num_tokens, part.missing_end) == (own.length, end)
            is_lost = end is not None and (part.group, cut(prefix, end)) in lost
            is_missing = own.limit is Limit.MISSING
            causes = {HitLimit.EVICTED, HitLimit.TRIMMED} if seed else {HitLimit.RESET}
            assert part.limit in ((causes if is_lost else {HitLimit.NEVER_PUBLISHED}) if is_missing else {part.limit})
            seen |= {(part.limit, end is not None and end % part.block_size > 0)}
    assert {(HitLimit.EVICTED if seed else HitLimit.RESET, True)} <= seen


def published_in(manager: KVCacheManager) -> set[tuple[int, bytes]]:
    """What is published as whole blocks and as parts: groups and keys."""
    pool, whole = manager.block_pool, manager.block_pool.published_whole()
    rows = zip(pool.block_groups(), pool.block_keys(), pool.tail_keys(), whole, strict=True)
    return {
        (group, key)
        for group, own, parts, is_whole in rows
        if group is not None
        for key in (*parts, *([own] if is_whole and own is not None else []))
    }


def test_a_draft_margin_beyond_the_keys_was_never_lost() -> None:
    manager = manager_over([full(1)], eagle=True)
    said = manager.explain_hit(Request("r", [0, 0], 1, hasher=SipHasher(key_lookahead=1)))
    assert [(part.missing_end, part.limit) for part in said.groups] == [(2, HitLimit.DRAFT_MARGIN)]


def test_an_explanation_changes_nothing() -> None:
    manager = manager_over([full(2), sliding(2, 3)], 20)
    manager.free(run(manager, 8))
    run(manager, 9, name="s")
    flush(manager)
    before, losses = manager_dump(manager), manager.copy().make_eviction_stats()
    for length in range(1, 12):
        manager.explain_hit(ask(length))
    assert manager_dump(manager) == before
    assert manager.make_eviction_stats() == losses


def test_a_copy_remembers_on_its_own() -> None:
    manager = manager_over([full(2)], 8)
    manager.free(run(manager, 8))
    twin = manager.copy()
    flush(manager)
    assert manager.explain_hit(ask(9)).groups[0].limit is HitLimit.EVICTED
    assert twin.explain_hit(ask(9)).num_tokens == 8
    assert twin.make_eviction_stats() == EvictionStats((0,), (0,), (0,))
    later = manager.copy()
    assert later.explain_hit(ask(9)) == manager.explain_hit(ask(9))
    assert later.make_eviction_stats() == manager.make_eviction_stats() == EvictionStats((4,), (0,), (0,))


# --- wrong calls, and words ---


def test_wrong_calls() -> None:
    with pytest.raises(InvalidArgumentError, match="explain_evictions"):
        manager_over([full(2)], caching=False)
    with pytest.raises(InvalidArgumentError, match="explain_evictions"):
        BlockPool(4, enable_caching=False, explain_evictions=True)
    with pytest.raises(InvalidArgumentError, match="block_size"):
        manager_over([full(2)]).explain_hit(ask(9, size=3))


def test_words() -> None:
    manager = manager_over([full(2), sliding(2, 3), chunked(2, 4), mamba(2)])
    assert str(manager.explain_hit(ask(7))).splitlines() == [
        "q: hit of 0 of at most 6 tokens, in multiples of 2; 2 is limited by group 0, 1, 2, 3",
        "  group 0, FullAttention, blocks of 2: 0 alone; the block that ends at 2 was never published, as far as is "
        "remembered",
        "  group 1, SlidingWindow(3), blocks of 2: 0 alone; the block that ends at 2 was never published, as far as is "
        "remembered",
        "  group 2, ChunkedLocalAttention(4), blocks of 2: 4 alone; the block that ends at 2 was never published, as "
        "far as is remembered",
        "  group 3, Mamba, blocks of 2: 0 alone; the block that ends at 2 was never published, as far as is remembered",
    ]
    eagle = manager_over([full(2)], eagle=True)
    run(eagle, 8)
    assert str(eagle.explain_hit(ask(7))).endswith(
        "the block that ends at 8 would end beyond the prompt (draft margin)"
    )
    assert str(eagle.explain_hit(ask(12))).endswith("at 10 was never published, as far as is remembered (draft margin)")
    assert str(eagle.explain_hit(ask(2))).splitlines()[0] == "q: hit of 0 of at most 1 tokens, in multiples of 2"
