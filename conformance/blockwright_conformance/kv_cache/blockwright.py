"""The first manager under test: Blockwright itself, through its public interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import gcd
from types import ModuleType
from typing import Any, ClassVar, Self

import blockwright
import blockwright.observe
from blockwright import Fits, KVCacheBlocks, KVCacheConfig, KVCacheManager, KVCacheSpec, Request
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.events import Cleared, Event, Listener, Removed, Stored
from blockwright_spec.manager.keeping import keeping_of
from blockwright_spec.manager.keys import num_ahead, stride
from blockwright_spec.manager.metrics import Counts, Life, added
from blockwright_spec.manager.outcomes import Publication
from blockwright_spec.manager.retention import retention_of
from blockwright_spec.manager.state import Config, Content
from blockwright_spec.reads import Kind, Prefix, cut

from ..checker.world import twin_of
from .adapter import EXTRAS, Asks, Batch, Copies, Counted, Explained, Found, Observation, Planned, Served, Tables
from .scopes import LAYERS, kind_and_lengths, option

TOKENS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
STATES: dict[str, Any] = {"shapes": ((1,),), "dtypes": ("float32",)}
SPECS: dict[str, tuple[str | Callable[..., KVCacheSpec], dict[str, Any]]] = {
    "full": ("FullAttentionSpec", TOKENS),
    **dict.fromkeys(("sliding", "sinks"), ("SlidingWindowSpec", TOKENS)),
    "chunked": ("ChunkedLocalAttentionSpec", TOKENS),
    "ahead": ("MambaSpec", STATES | {"runs_ahead": True}),
    "mamba": ("MambaSpec", STATES),
    "cross": ("CrossAttentionSpec", TOKENS),
}
"""What each kind of layer is declared as, beside its block size and own lengths."""
LENGTHS = {"window": "sliding_window", "sinks": "sink_len", "chunk": "attention_chunk_size"}
LENGTHS |= {"drafts": "num_speculative_blocks"}


def add_kind(name: str, kind: type[Any], lengths: tuple[str, ...], spec: Callable[..., KVCacheSpec]) -> None:
    """Let scopes name a kind that is not in the product: a record with `reads`, and what declares it to a manager."""
    LAYERS[name], SPECS[name] = (kind, lengths), (spec, {})


def kv_cache_spec(kind: Kind, block_size: int, package: Any = blockwright) -> KVCacheSpec:
    name, lengths = kind_and_lengths(kind)
    spec, options = SPECS[name]
    own = {LENGTHS.get(length, length): value for length, value in lengths.items()}
    make: Callable[..., KVCacheSpec] = getattr(package, spec) if isinstance(spec, str) else spec
    return make(block_size=block_size, **options, **own)


ERRORS = "Block DuplicateRequest InvalidArgument StaleHit UnknownRequest UnknownStep Unsupported"
JOINED = 12
"""Listeners that are kept at most: one for every point of a history, and of a longer one every second goes."""


def keywords(step: Step) -> dict[str, int]:
    names = "num_draft_tokens num_external_computed_tokens num_encoder_tokens num_checkpoint_tokens "
    names += "full_sequence_must_fit reserved_blocks"
    values = step.drafts, step.external, step.encoder, step.checkpoint, step.whole, step.reserve
    return {name: value for name, value in zip(names.split(), values, strict=True) if value}


def errors_of(package: ModuleType, names: str = ERRORS) -> tuple[type[Exception], ...]:
    return tuple(getattr(package.errors, f"{name}Error") for name in names.split())


def hash_unit(config: Config) -> int:
    """Return the tokens per hashed block of a request: the unit, or the largest that divides every group's blocks."""
    return stride(config) or gcd(*(group.block_size for group in config.groups))


def slices(flat: list[int], offsets: list[int], groups: int) -> list[Tables]:
    """Cut a flat buffer into one tuple per request, of one table per group."""
    cuts = [tuple(flat[start:stop]) for start, stop in pairwise(offsets)]
    return [tuple(cuts[at : at + groups]) for at in range(0, len(cuts), groups)]


def options_of(config: Config) -> dict[str, Any]:
    keeping, retention = keeping_of(config), retention_of(config)
    options: dict[str, Any] = {
        "enable_caching": config.caching,
        "use_eagle": config.eagle,
        "overlap_steps": config.overlaps,
        "publish_on_settlement": config.settles,
        "enable_kv_cache_events": option(config, "tells"),
        "watermark": config.watermark / config.num_blocks,
        "keep_wanted": keeping is not None,
    }
    if keeping is not None:
        options["passing_spares"] = keeping.spares if keeping.parts is None else None
        options["wanted_interval"] = keeping.every
        options["track_evictions"] = True
    if option(config, "adapts"):
        options["eviction_order"] = "adaptive"
    if option(config, "most"):
        options["max_num_blocks"] = option(config, "most")
    if stride(config):
        options["prefix_match_unit"] = stride(config)
    if retention is None:
        return options
    shares = {EXTRAS[extra]["cache_salt"]: floor for extra, floor in retention.floors if isinstance(extra, int)}
    return options | {"shares": shares or None, "hint_guard": retention.guard / (config.num_blocks - 1)}


def kv_cache_config(config: Config, package: Any = blockwright) -> KVCacheConfig:
    specs = [kv_cache_spec(group.kind, group.block_size, package) for group in config.groups]
    groups = [package.KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]
    made: KVCacheConfig = package.KVCacheConfig(config.num_blocks, groups)
    return made


class Shared:
    """Shared by all copies of an adapter: requests as first made, and the prefix of each digest."""

    def __init__(self, block_size: int, make: Callable[..., Request], lookahead: int = 0) -> None:
        self.block_size = block_size
        self.make = make
        self.lookahead = lookahead
        self.requests: dict[tuple[str, Prefix], Request] = {}
        self.prefixes: dict[bytes, Prefix] = {}

    def request(self, name: str, prefix: Prefix) -> Request:
        request = self.requests.get((name, prefix))
        if request is None:
            extra, tokens = prefix
            assert isinstance(extra, int)
            request = self.make(name, list(tokens), block_size=self.block_size, **EXTRAS[extra])
            self.requests[name, prefix] = request
            self.learn(request, prefix)
        return request

    def learn(self, request: Request, prefix: Prefix) -> None:
        for entry, digest in enumerate(request.block_hashes):
            covered = cut(prefix, (entry + 1) * self.block_size + self.lookahead)
            known = self.prefixes.setdefault(digest, covered)
            self.prefixes[digest[:16]] = known  # as the index keeps it
            if known != covered:
                raise AssertionError(f"HASH-1: one digest stands for {known} and for {prefix}")


def folded(fact: Any) -> Counts:
    local = min(fact.hit, fact.prompt)
    external = min(fact.external, fact.prompt - local)
    computed, admits = fact.prompt - local - external, fact.kind == "admit"
    counts = Counts(preemptions=int(fact.kind == "preempt"), evicted=fact.evicted_tokens)
    if fact.is_resumed:
        again = {"again_local": local, "again_external": external, "again_computed": computed}
        return counts._replace(resumed=int(admits), **again)
    hits = fact.hit if admits and fact.queries else 0
    counts = counts._replace(external_queries=fact.external_queries, external_hits=fact.external_hits)
    return counts._replace(queries=fact.queries, hits=hits, local=local, external=external, computed=computed)


class Account:
    """What an engine knows of its requests, and a reader of the manager's journal, a short one that must keep up."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.reader = manager.start_journal(num_facts=64, num_blocks=256, clock=float).reader()
        self.journal = self.reader.journal
        self.before = Counts()
        self.lives: dict[str, Life] = {}  # of each request, what is known now
        self.admitted: dict[str, Life] = {}  # and what was known when it was last admitted
        self.life = Life(0)

    def copy(self, manager: KVCacheManager) -> Self:
        journal: Any = manager.journal
        reader = journal.reader(self.reader.position)
        return twin_of(self, journal=journal, reader=reader, lives=self.lives.copy(), admitted=self.admitted.copy())

    def asked(self, name: str, tokens: int) -> None:
        self.lives[name] = replace(self.lives.get(name, Life(0)), asked=tokens)

    def asked_elsewhere(self, manager: KVCacheManager, request: Request, length: int, external: int) -> None:
        """Find all of a request beyond the device, of which a part is loaded; of one request nothing is reported."""
        if external > 0 and request.request_id != "r1":
            tokens, name = request.num_tokens - length, request.request_id
            manager.found_outside(request, tokens, tokens)
            self.lives[name] = replace(self.lives.get(name, Life(0)), elsewhere=tokens)

    def admit(self, request: Request) -> None:
        name = request.request_id
        self.admitted[name] = self.life = replace(self.lives.get(name, Life(0)), prompt=request.num_prompt_tokens)
        self.lives[name] = Life(request.num_prompt_tokens, was_admitted=True)

    def counted(self) -> Counted:
        """Return the counts, and what the facts since the last time come to."""
        read = Counts()
        for fact in self.reader.read():
            read = added(read, folded(fact))
        before, self.before = self.before, Counts(*self.journal.totals().values())  # the same numbers, in one order
        return Counted(before, self.before, read, self.life)


class BlockwrightAdapter:
    """A `KVCacheManager` with the requests of its engine.

    A subclass may use another copy of the package (`package`, with its `errors` and `stale`), and give the manager
    further options.
    """

    package: ClassVar[Any] = blockwright
    options: ClassVar[Mapping[str, Any]] = {}
    errors: tuple[type[Exception], ...] = errors_of(blockwright)
    stale: tuple[type[Exception], ...] = (blockwright.errors.StaleHitError,)
    follows_policy = True

    def __init__(self, config: Config) -> None:
        groups, options = kv_cache_config(config, self.package), {**options_of(config), **self.options}
        self.follows_policy = self.follows_policy and not option(config, "adapts")
        self.manager: KVCacheManager = self.package.KVCacheManager(groups, config.max_model_len, **options)
        keeping, retention = keeping_of(config), retention_of(config)
        if keeping and keeping.parts and not retention:  # in fewer parts, and faster, so that few states show all of it
            learner = self.manager.block_pool._order
            learner.whole, learner.slow, learner.parts = keeping.parts
        state = self.manager._state
        state.last_prompts = type(state.last_prompts)(option(config, "last_prompts"))
        state.keeps_prompts = option(config, "last_prompts") > 0
        state.hears_prompts = state.hears_prompts or state.keeps_prompts
        if retention is not None:
            self.manager.advance_time(0)  # candidates are told apart from the beginning
        self.requests: dict[str, Request] = {}
        self.prefixes: dict[str, Prefix] = {}
        self.hits: dict[str, KVCacheBlocks] = {}
        self.plans: dict[str, Fits] = {}
        self.counts: dict[str, int] = {}  # tokens of each request that its steps have computed
        self.overlaps = config.overlaps
        self.has_tails = stride(config) > 0
        self.shared = self.sharing(config)
        self.stream = self.package.observe.EventStream() if option(config, "tells") else None
        self.joined: list[tuple[int, tuple[Event, ...]]] = []
        self.account = Account(self.manager) if option(config, "counts") else None

    def sharing(self, config: Config) -> Shared:
        tells, lookahead = option(config, "tells"), num_ahead(config)
        hasher = {"hasher": self.package.Sha256Hasher(b"", lookahead)} if tells or lookahead else {}
        return Shared(hash_unit(config), partial(self.package.Request, **hasher), lookahead)

    def copy(self) -> Self:
        """Return an independent copy; requests are copied when they are next used."""
        manager = self.manager.copy()
        own = {name: getattr(self, name).copy() for name in ("requests", "prefixes", "counts", "joined")}
        return twin_of(
            self,
            manager=manager,
            hits={name: self.package.KVCacheBlocks(manager.block_pool, hit.ids) for name, hit in self.hits.items()},
            plans={},
            stream=None if self.stream is None else self.stream.copy(),
            account=None if self.account is None else self.account.copy(manager),
            **own,
        )

    def owned(self, name: str) -> Request:
        """Return a request for a call that may change it: a copy that other copies of the adapter do not share."""
        request = self.requests[name] = self.requests[name].copy()
        return request

    def send(self, name: str, prefix: Prefix) -> None:
        self.requests[name] = self.shared.request(name, prefix)
        self.prefixes[name] = prefix

    def forget(self, name: str) -> None:
        self.requests.pop(name, None)
        self.prefixes.pop(name, None)
        self.hits.pop(name, None)
        self.counts.pop(name, None)
        if self.account is not None:
            self.account.lives.pop(name, None)

    def find(self, name: str) -> Found:
        return self.found(name, self.manager.get_computed_blocks)

    def touch(self, name: str, most: int) -> Found:
        return self.found(name, lambda request: self.manager.touch(request, most))

    def found(self, name: str, look: Callable[[Request], tuple[KVCacheBlocks, int]]) -> Found:
        request = self.owned(name)  # which a lookup tells its junction; of the manager it changes nothing
        if self.account is not None:
            self.account.asked(name, request.num_tokens if self.manager.enable_caching else 0)
        hit, length = look(request)
        self.hits[name] = hit
        return Found(length, tuple([tuple(ids) for ids in hit.ids]) if length else ())

    def asked(
        self, name: str, computed: int, step: Step, length: int, hit_of: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        request = self.owned(name)
        request.num_computed_tokens = computed
        hit = self.hits[hit_of] if hit_of else None
        later = step.publication is Publication.LATER
        if self.account is not None:
            self.account.asked_elsewhere(self.manager, request, length, step.external)
        return (request, step.new, length, hit, step.lookahead, later), keywords(step)

    def given(self, name: str, blocks: KVCacheBlocks, stop: int) -> Tables:
        self.counts[name] = stop
        if self.account is not None:
            self.account.admit(self.requests[name])
        self.hits.pop(name, None)
        self.changed = tuple(map(tuple, blocks.nulled_entries)), tuple(blocks.replaced_entries)
        return tuple([tuple(ids) for ids in blocks.ids])

    def allocate(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Tables | None:
        arguments, more = self.asked(name, computed, step, length, hit_of)
        try:
            blocks = self.manager.allocate_slots(*arguments, **more)
            never = False
        except self.package.errors.NeverFitsError:
            blocks, never = None, True
        if blocks is not None:
            return self.given(name, blocks, computed + length + step.new)
        plan = self.manager.plan(*arguments, **more)
        if never != (isinstance(plan, self.package.Never) and name not in self.manager.request_ids()):
            raise AssertionError(f"LIVE-1: refused for ever: {never}, and the plan is {plan}")
        return None

    def plan(self, name: str, computed: int, step: Step, length: int, hit_of: str | None) -> Planned:
        arguments, more = self.asked(name, computed, step, length, hit_of)
        plan = self.manager.plan(*arguments, **more)
        if isinstance(plan, self.package.Fits):
            self.plans[name], self.counts[name] = plan, computed + length + step.new
            return Planned(plan.num_blocks, by_group=tuple(plan.blocks_by_group))
        if isinstance(plan, self.package.NotNow):
            by_group = tuple(plan.blocks_by_group)
            return Planned(None, plan.num_missing_blocks, plan.num_returning_blocks, by_group)
        return Planned()

    def commit(self, name: str) -> Tables:
        return self.given(name, self.manager.commit(self.plans.pop(name)), self.counts[name])

    def start(self) -> None:
        if self.overlaps:
            self.manager.start_step()
        else:
            self.manager.new_step_starts()

    def settle(self, rejected: tuple[tuple[str, int], ...]) -> None:
        self.manager.settle_step((*self.manager.steps_in_flight, 1)[0], dict(rejected))

    def finish_load(self, name: str, count: int) -> None:
        absent = name not in self.requests
        if absent:
            self.send(name, (0, (0,)))
        try:
            self.note_call(name)
            request = self.owned(name)
            if self.manager.finish_load(request, count):
                self.counts[name] = min(self.counts[name] + count, request.num_tokens - 1)
        finally:
            if absent:
                self.forget(name)

    def allocate_each(self, asks: Asks, lookahead: int) -> Batch:
        return self.grow_each(asks, lookahead, delay_cache_blocks=False)

    def allocate_each_later(self, asks: Asks, lookahead: int) -> Batch:
        return self.grow_each(asks, lookahead, delay_cache_blocks=True)

    def grow_each(self, asks: Asks, lookahead: int, **options: bool) -> Batch:
        requests = [self.owned(name) for name, _, _ in asks]
        for request, (_, computed, _) in zip(requests, asks, strict=True):
            request.num_computed_tokens = computed
        news = [new for _, _, new in asks]
        batch = self.manager.allocate_slots_batch(requests, news, lookahead, **options)
        new = slices(list(batch.new_block_ids), list(batch.new_block_offsets), len(self.manager.managers))
        nulled = slices(list(batch.nulled_entries), list(batch.nulled_offsets), len(self.manager.managers))
        flat, replaced = list(batch.replaced_entries), [list[Any]() for _ in new]
        for at in range(0, len(flat), 4):
            replaced[flat[at]].append(tuple(flat[at + 1 : at + 4]))
        served = tuple(map(Served, new, nulled, map(tuple, replaced)))[: batch.num_served]
        self.counts |= {name: computed + new for name, computed, new in asks[: batch.num_served]}
        if batch.refused != (None if len(served) == len(asks) else len(served)):
            raise AssertionError(f"BATCH-1: {len(served)} served of {len(asks)}, refused {batch.refused}")
        return served, batch.refused is None

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        request = self.owned(name)
        if len(tokens) == 1:  # either call does the same
            self.package.append_output_token_ids_batch([request], tokens)
        else:
            request.append_output_token_ids(list(tokens))
        extra, known = self.prefixes[name]
        self.prefixes[name] = extra, known + tokens
        if self.overlaps or self.shared.lookahead:
            self.manager.cache_blocks(request, 0)  # publishes nothing, but shows the copy that a later step is to read
        before = len(known) - self.shared.lookahead
        if (before + len(tokens)) // self.shared.block_size > before // self.shared.block_size:
            self.shared.learn(request, self.prefixes[name])

    def publish(self, name: str, end: int) -> None:
        self.manager.cache_blocks(self.owned(name), end)

    def publish_each(self, asks: tuple[tuple[str, int], ...]) -> None:
        self.manager.cache_blocks_batch([self.owned(name) for name, _ in asks], [end for _, end in asks])

    def shorten(self, name: str, computed: int, count: int) -> None:
        request = self.owned(name)
        request.num_computed_tokens = computed
        self.manager.shorten(request, count)
        self.counts[name] = count

    def fold(self, name: str, computed: int) -> tuple[tuple[int, ...], ...]:
        told = list(self.manager.fold_duplicates([self.owned(name)], computed).replaced_entries)
        return tuple([tuple(told[at + 1 : at + 4]) for at in range(0, len(told), 4)])

    def publish_before(self, name: str, end: int) -> None:
        self.manager.cache_blocks(self.owned(name), end, has_run=False)

    def trim(self, name: str, end: int) -> None:
        self.manager.remove_skipped_blocks(self.owned(name), end)

    def free(self, name: str) -> None:
        self.free_before(name, self.counts.get(name, 0))

    def preempt(self, name: str) -> None:
        self.free_before(name, self.counts.get(name, 0), preempted=True)

    def free_before(self, name: str, computed: int, preempted: bool = False) -> None:
        request = self.owned(name)
        request.num_computed_tokens = computed
        self.note_call(name)
        self.manager.free(request, preempted=preempted)

    def note_call(self, name: str) -> None:
        if self.account is not None:
            self.account.life = self.account.admitted.get(name, Life(0))

    def fork(self, name: str, child: str, prefix: Prefix, computed: int) -> bool:
        return self.begin_fork(name, child, prefix, computed, self.manager.fork)

    def fork_with_copies(self, name: str, child: str, prefix: Prefix, computed: int) -> bool:
        return self.begin_fork(name, child, prefix, computed, self.parts)

    def parts(self, parent: Any, child: Any) -> Any:
        copies = self.manager.fork_with_copies(parent, child)
        if copies is None:
            return None
        self.copied, tables = copies, self.manager.get_block_ids(child.request_id)
        if any(pairs and pairs[-1][1] != table[-1] for pairs, table in zip(copies, tables, strict=True)):
            raise AssertionError(f"FORK-1: the copies {copies} do not go to the last blocks of {tables}")
        return self.manager.get_blocks(child.request_id)

    def begin_fork(self, name: str, child: str, prefix: Prefix, computed: int, fork: Any) -> bool:
        parent = self.owned(name)
        parent.num_computed_tokens = computed
        if child not in self.requests and prefix == self.prefixes[name]:
            self.requests[child], self.prefixes[child] = parent.fork(child), prefix
        elif child not in self.requests:
            self.send(child, prefix)
        before, twin = self.requests[child], self.owned(child)
        twin.num_computed_tokens = self.counts[name] = computed
        try:
            blocks = fork(parent, twin)
        except self.errors:
            self.requests[child] = before  # a child that runs goes on as it was
            raise
        self.counts[child] = computed
        if blocks is not None and blocks.get_block_ids() != self.manager.get_block_ids(child):
            raise AssertionError(f"FORK-1: {child!r} was told of {blocks}, and holds {self.manager.get_blocks(child)}")
        if blocks is not None and self.account is not None:
            self.account.admit(twin)
        return blocks is not None

    def take_copies(self) -> Copies:
        return tuple(map(tuple, self.manager.take_copies()))

    def reset(self) -> bool:
        return self.manager.reset_prefix_cache()

    def unlearn(self, name: str | None, extra: int) -> None:
        request = None if name is None else self.requests[name]
        owner = EXTRAS[extra] if name is None else {}
        self.manager.forget(request, cache_salt=owner.get("cache_salt"), lora_name=owner.get("lora_name"))

    def unlearn_all(self) -> None:
        self.manager.forget()

    def resize(self, num_blocks: int) -> tuple[int, tuple[str, ...]]:
        told = self.manager.resize(num_blocks)
        return told.held, tuple(sorted(told.requests))

    def resizing(self) -> tuple[int, tuple[str, ...]]:
        told = self.manager.resizing
        return told.held, tuple(sorted(told.requests))

    def held_alone(self, name: str) -> int:
        return self.manager.num_blocks_held_alone(self.requests[name])

    def common_prefix(self, name: str, running: int) -> tuple[int, ...]:
        return tuple(self.manager.get_num_common_prefix_blocks(name, running))

    def pin(self, blocks: tuple[int, ...]) -> None:
        self.manager.block_pool.touch(blocks)

    def take(self, count: int) -> tuple[int, ...] | None:
        try:
            return tuple([each.block_id for each in self.manager.block_pool.get_new_blocks(count)])
        except self.package.errors.NoFreeBlocksError:
            return None

    def unpin(self, blocks: tuple[int, ...]) -> None:
        self.manager.block_pool.free_blocks(blocks)

    def retain(self, name: str, tokens: int, priority: int, until: int) -> None:
        self.manager.retain(self.requests[name], tokens, priority, until)

    def release_prefix(self, name: str, first: int) -> None:
        self.manager.release_prefix(self.requests[name], first)

    def advance_time(self, now: int) -> None:
        self.manager.advance_time(now)

    def lease(self, name: str) -> int:
        request, seen = self.requests[name], self.manager._state.running[name].request
        exact, told = self.manager.lease(request), min(request.lease, seen.lease)  # copies of one request of an engine
        if not told <= max(exact, request.num_computed_tokens, self.counts.get(name, 0)):
            raise AssertionError(f"LEASE-1: {name!r} was told of {told} tokens, of {exact} now")
        return exact

    def count_on(self, name: str, count: int) -> None:
        self.counts[name] = count

    def explain(self, name: str) -> Explained:
        said = self.manager.explain_hit(self.requests[name])
        limiting = tuple([part.group for part in said.groups if part.missing_end is not None])
        if limiting != said.limiting_groups:
            raise AssertionError(f"EXPLAIN-1: groups {limiting} lack a block, {said.limiting_groups} are said to limit")
        limits = ["MISSING" if part.limit is part.cause else part.limit.name for part in said.groups]
        parts = [(part.num_tokens, part.missing_end, limit) for part, limit in zip(said.groups, limits, strict=True)]
        return Explained(said.num_tokens, said.candidate, tuple(parts))

    def observe(self, names: tuple[str, ...]) -> Observation:
        manager = self.manager
        pool = manager.block_pool
        there = set(manager.request_ids())
        if not there <= set(names):
            raise AssertionError(f"REQ-1: the manager holds tables of {sorted(there - set(names))}")
        keys, tails = self.published()
        return Observation(
            tuple([tuple(map(tuple, manager.get_block_ids(name))) if name in there else None for name in names]),
            tuple(pool.free_block_ids()),
            tuple(pool.ref_counts()),
            keys,
            tuple([manager.num_published(name) if name in there else None for name in names]),
            pool.get_num_free_blocks(),
            tuple([tuple(map(tuple, manager.get_draft_block_ids(name))) if name in there else None for name in names]),
            tuple([manager.num_settled(name) if self.overlaps and name in there else None for name in names]),
            tuple(pool.pending_copies()),
            self.evicted() if pool.tracks_evictions else None,
            None if self.stream is None else self.listeners(self.stream),
            tuple([block for block, times in enumerate(pool.holders_apart()) for _ in range(times)]),
            tuple(pool.passing_block_ids()),
            tuple(pool.tips()),
            pool.passing_spares,
            None if self.account is None else self.account.counted(),
            tails,
        )

    def published(self) -> tuple[tuple[Content | None, ...], tuple[tuple[int, ...], ...] | None]:
        """Return what each block is published as, and where hits may end inside blocks its other lengths."""
        pool, prefixes = self.manager.block_pool, self.shared.prefixes
        groups, digests = pool.block_groups(), pool.block_keys()
        if not self.has_tails:
            pairs = zip(groups, digests, strict=True)
            return tuple([None if at is None or key is None else (at, prefixes[key]) for at, key in pairs]), None
        found = [
            sorted({prefixes[key] for key in (digest, *more) if key is not None}, key=lambda prefix: len(prefix[1]))
            for digest, more in zip(digests, pool.tail_keys(), strict=True)
        ]
        keys = [None if at is None else (at, every[-1]) for at, every in zip(groups, found, strict=True)]
        return tuple(keys), tuple([tuple([len(prefix[1]) for prefix in every[:-1]]) for every in found])

    def listeners(self, stream: Any) -> tuple[Listener, ...]:
        """Return the index of a listener who joined at each observation up to now, this one included."""
        stream.record(self.manager.take_events())
        if not self.joined:
            self.joined.append((0, ()))
        since = [[event for batch in stream.since(at) for event in batch.events] for at, _ in self.joined]
        pairs: Any = zip(self.joined, since, strict=True)
        heard = tuple([Listener(snapshot, tuple(map(self.event, events))) for (_, snapshot), events in pairs])
        now = stream.snapshot()
        joined = [*self.joined, (now.sequence, tuple(map(self.event, now.events)))]
        self.joined = joined[:: 1 + (len(joined) > JOINED)]
        return heard

    def routed(self, prompts: tuple[Prefix, ...]) -> list[int]:
        """Return what a router that has heard every event would hit of each prompt."""
        stream: Any = self.stream
        stream.record(self.manager.take_events())
        index = self.package.observe.PrefixIndex()
        for batch in stream.since(0):
            index.apply(batch.events)
        pairs: Any = prompts  # whose extra keys are numbers
        return [index.match(tokens, leave=1, **EXTRAS[extra]) for extra, tokens in pairs]

    def event(self, event: Any) -> Event:
        prefixes, kind = self.shared.prefixes, type(event).__name__
        if kind == "AllBlocksCleared":
            return Cleared()
        content = event.group_id, prefixes[event.block_hash]
        if kind == "BlockRemoved":
            return Removed(content)
        extras = {"cache_salt": event.cache_salt, "lora_name": event.lora_name}
        extra = EXTRAS.index({name: value for name, value in extras.items() if value is not None})
        parent = None if event.parent_block_hash is None else prefixes[event.parent_block_hash]
        return Stored(content, parent, event.is_parent_absent, event.token_ids, extra, event.lookahead_token_ids)

    def evicted(self) -> tuple[tuple[int, Content, bool], ...]:
        prefixes, told = self.shared.prefixes, self.manager.take_evictions()
        return tuple([(each.block_id, (each.group, prefixes[each.block_hash]), each.is_passing) for each in told])

    def check(self) -> None:
        self.manager.check()
