"""vLLM's `KVCacheManager` behind the kit's adapter: its scheduler's side of each call, and its state as it is.

What the scheduler does around a call is done here as it does it: a step is announced before slots are asked for, a
request is waiting until it has been given some, external tokens are asked for with the hit, and published when they
have come. Everything else is the manager's own.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Self

from blockwright_conformance.checker.world import kind_of
from blockwright_conformance.kv_cache.adapter import EXTRAS, Found, ManagerAdapter, Observation
from blockwright_conformance.kv_cache.blockwright import hash_unit
from blockwright_conformance.kv_cache.requests import Admit, Grow
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.outcomes import Publication
from blockwright_spec.manager.state import Config, Content, Running, State, Table
from blockwright_spec.reads import Mamba, Prefix, cut

from .following import LawError, asked
from .loading import SyncLoad
from .vllm_engine import VllmEngine

Entry = tuple[Any, int | None]
"""A hash as events name it, and a group; None where events name no group."""


class Mirror:
    """What one who hears all events believes to be cached: how many blocks there are of each hash."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.entries: Counter[Entry] = Counter()

    def copy(self) -> "Mirror":
        twin = Mirror(self.engine)
        twin.entries = self.entries.copy()
        return twin

    def listen(self, manager: Any) -> None:
        torn = [detail for event in manager.take_events() if (detail := self.hear(event))]
        index = self.index(manager.block_pool)
        if torn:
            raise LawError("EV-1", torn[0])
        if +self.entries != index:
            gone, false = index - self.entries, self.entries - index
            raise LawError(
                "EV-1", f"{gone.total()} cached blocks are told of nowhere, {false.total()} told of are none"
            )

    def hear(self, event: Any) -> str:
        """Take in one event; return why it could not be replayed from its tokens, if so."""
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.entries.clear()
            return ""
        group = getattr(event, "group_idx", None)
        sign = 1 if kind == "BlockStored" else -1
        for digest in event.block_hashes:
            self.entries[digest, group] += sign
        if kind == "BlockStored" and len(event.token_ids) != len(event.block_hashes) * event.block_size:
            count = len(event.block_hashes)
            return f"a stored event of {count} blocks of {event.block_size} has {len(event.token_ids)} tokens"
        return ""

    def index(self, pool: Any) -> Counter[Entry]:
        utils, cells = self.engine.utils, pool.cached_block_hash_to_block._cache
        entries: Counter[Entry] = Counter()
        for key, blocks in cells.items():
            entries[self.name(utils, key)] += len(blocks) if isinstance(blocks, dict) else 1
        return entries

    def name(self, utils: Any, key: Any) -> Entry:
        digest = utils.maybe_convert_block_hash(utils.get_block_hash(key))
        return digest, utils.get_group_id(key) if self.engine.is_new else None


class VllmAdapter(ManagerAdapter):
    """A `KVCacheManager` of vLLM with the requests of its scheduler."""

    errors: tuple[type[Exception], ...] = ()
    stale: tuple[type[Exception], ...] = ()
    follows_policy = False

    def __init__(self, engine: VllmEngine, config: Config, options: dict[str, Any] | None = None) -> None:
        self.engine, self.config, self.options = engine, config, options or {}
        self.manager: Any = engine.manager(config, **copy.deepcopy(self.options))
        self.hash_size = hash_unit(config)
        self.requests: dict[str, Any] = {}
        self.prefixes: dict[str, Prefix] = {}
        self.hits: dict[str, Any] = {}
        self.known: dict[bytes, Prefix] = {}
        self.log: list[str] | None = None
        self.mirror = Mirror(engine)

    def copy(self) -> Self:
        twin = copy.copy(self)
        shared = {id(each): each for each in (self.manager.kv_cache_config, self.engine)}
        own = (self.manager, self.requests, self.hits)
        twin.manager, twin.requests, twin.hits = copy.deepcopy(own, shared)
        twin.prefixes, twin.mirror = self.prefixes.copy(), self.mirror.copy()
        return twin

    def say(self, line: str) -> None:
        if self.log is not None:
            self.log.append(line)

    def send(self, name: str, prefix: Prefix) -> None:
        extra, tokens = prefix
        assert isinstance(extra, int)
        self.requests[name] = self.engine.request(name, extra, tokens, self.hash_size)
        self.prefixes[name] = prefix
        self.learn(name)
        keys = "".join(f", {key}={value!r}" for key, value in EXTRAS[extra].items())
        self.say(f"{name} = request({name!r}, {list(tokens)}{keys})")

    def learn(self, name: str) -> None:
        for at, digest in enumerate(self.requests[name].block_hashes):
            prefix = cut(self.prefixes[name], (at + 1) * self.hash_size)
            if self.known.setdefault(digest, prefix) != prefix:
                raise LawError("HASH-1", f"one hash stands for {self.known[digest]} and for {prefix}")

    def forget(self, name: str) -> None:
        for each in (self.requests, self.prefixes, self.hits):
            each.pop(name, None)

    def find(self, name: str) -> Found:
        request = self.requests[name]
        blocks, length, *more = self.manager.get_computed_blocks(request)
        if more:
            request.shared_prefix_boundary = more[0]
        self.hits[name] = blocks
        tables = tuple(tuple(ids) for ids in blocks.get_block_ids()) if length else ()
        self.say(f"hit, length = manager.get_computed_blocks({name})[:2]  # {length} tokens in {tables}")
        return Found(length, tables)

    def allocate(
        self, name: str, computed: int, step: Step, length: int, hit_of: str | None
    ) -> tuple[Table, ...] | None:
        request, manager = self.requests[name], self.manager
        if self.engine.is_new:
            manager.new_step_starts()
            self.say("manager.new_step_starts()")
        is_running = self.holds(name)
        request.status = self.engine.status.RUNNING if is_running else self.engine.status.WAITING
        request.num_computed_tokens = computed
        before = manager.get_block_ids(name) if is_running else None
        options = self.asked(name, step)
        new = step.new + (0 if self.engine.is_new else step.external)
        words = "".join(f", {key}={value!r}" for key, value in options.items())
        hit = f", {length}, hit" if hit_of else ""
        line = f"manager.allocate_slots({name}, {new}{hit}{words})"
        self.say(f"{name}.num_computed_tokens = {computed}")
        self.say(line)
        given = manager.allocate_slots(request, new, length, self.hits[hit_of] if hit_of else None, **options)
        if given is None:
            self.say("# refused")
            return None
        request.status = self.engine.status.RUNNING
        request.num_computed_tokens += length if step.new == 0 else 0
        self.hits.pop(name, None)
        after = manager.get_block_ids(name)
        skipped = [len(table) for table in before] if before else [len(table) for table in self.heads(length, hit_of)]
        added = tuple(tuple(table[start:]) for table, start in zip(after, skipped, strict=True))
        self.say(f"# {name} holds {after}")
        ids_given = tuple(tuple(ids) for ids in given.get_block_ids())
        if is_running and ids_given != added:
            raise LawError("STEP-1", f"tables grew by {added}, and the call returned {ids_given}")
        return added

    def heads(self, length: int, hit_of: str | None) -> tuple[range, ...]:
        return tuple(range(length // group.block_size if hit_of else 0) for group in self.config.groups)

    def asked(self, name: str, step: Step) -> dict[str, Any]:
        delays = step.publication is Publication.LATER or (step.external > 0 and step.new == 0)
        options: dict[str, Any] = {
            "num_lookahead_tokens": step.lookahead,
            "num_external_computed_tokens": step.external if self.engine.is_new else 0,
            "delay_cache_blocks": delays,
            "num_encoder_tokens": step.encoder,
            "full_sequence_must_fit": step.whole,
            "reserved_blocks": step.reserve,
        }
        if self.engine.is_new and self.config.watermark:
            options["has_scheduled_reqs"] = any(self.holds(other) for other in self.requests if other != name)
            return {key: value for key, value in options.items() if value or key == "has_scheduled_reqs"}
        return {key: value for key, value in options.items() if value}

    def holds(self, name: str) -> bool:
        """Return whether a request has a table; a refused one leaves an empty list behind, which is none."""
        return any(each.req_to_blocks.get(name) for each in self.singles)

    @property
    def singles(self) -> Any:
        return self.manager.coordinator.single_type_managers

    def unasked(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError

    plan = commit = publish_before = free_before = start = settle = allocate_each = fork = take_copies = unasked
    pin = take = unpin = explain = lease = count_on = retain = release_prefix = advance_time = touch = unasked

    def finish_load(self, name: str, count: int) -> None:
        """End a load as the scheduler does: publish what came, or release everything if nothing has.

        A last token that came is computed again; the newer release publishes it before that.
        """
        request = self.requests[name]
        came = request.num_computed_tokens + count
        if not came:
            self.free(name)
            return
        request.num_computed_tokens = came if self.engine.is_new else min(came, request.num_tokens - 1)
        self.say(f"manager.cache_blocks({name}, {request.num_computed_tokens})")
        self.manager.cache_blocks(request, request.num_computed_tokens)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.requests[name].append_output_token_ids(list(tokens))
        extra, known = self.prefixes[name]
        self.prefixes[name] = extra, known + tokens
        self.learn(name)
        self.say(f"{name}.append_output_token_ids({list(tokens)})")

    def publish(self, name: str, end: int) -> None:
        self.say(f"manager.cache_blocks({name}, {end})")
        self.manager.cache_blocks(self.requests[name], end)

    def trim(self, name: str, end: int) -> None:
        trimmer = self.manager if self.engine.is_new else self.manager.coordinator
        self.say(f"manager.{'' if self.engine.is_new else 'coordinator.'}remove_skipped_blocks({name!r}, {end})")
        trimmer.remove_skipped_blocks(name, end)

    def free(self, name: str) -> None:
        self.say(f"manager.free({name})")
        self.manager.free(self.requests[name])
        self.requests[name].num_computed_tokens = 0
        self.requests[name].status = self.engine.status.PREEMPTED

    def reset(self) -> bool:
        done: bool = self.manager.reset_prefix_cache()
        self.say(f"manager.reset_prefix_cache()  # {done}")
        return done

    def common_prefix(self, name: str, running: int) -> tuple[int, ...]:
        asked = (name,) if self.engine.is_new else (self.requests[name], running)
        return tuple(self.manager.get_num_common_prefix_blocks(*asked))

    def observe(self, names: tuple[str, ...]) -> Observation:
        pool, groups = self.manager.block_pool, range(len(self.config.groups))
        there = [self.holds(name) for name in names]
        tables = [tuple(map(tuple, self.manager.get_block_ids(name))) for name in names]
        cached = [tuple(each.num_cached_block.get(name, 0) for each in self.singles) for name in names]
        empty: tuple[Table, ...] = tuple(() for _ in groups)
        return Observation(
            tuple(table if is_there else None for table, is_there in zip(tables, there, strict=True)),
            tuple(self.queue()),
            tuple(block.ref_cnt for block in pool.blocks),
            tuple(self.content(block) for block in pool.blocks),
            tuple(count if is_there else None for count, is_there in zip(cached, there, strict=True)),
            pool.get_num_free_blocks(),
            tuple(empty if is_there else None for is_there in there),
            tuple(None for _ in names),
            (),
        )

    def queue(self) -> Iterable[int]:
        return (block.block_id for block in self.manager.block_pool.free_block_queue.get_all_free_blocks())

    def content(self, block: Any) -> Content | None:
        """Return what a block is published as; a key that ends inside it says nothing of the whole of it."""
        if block.block_hash is None:
            return None
        utils = self.engine.utils
        group, prefix = utils.get_group_id(block.block_hash), self.known[utils.get_block_hash(block.block_hash)]
        return None if len(prefix[1]) % self.config.groups[group].block_size else (group, prefix)

    def check(self) -> None:
        pool = self.manager.block_pool
        index = pool.cached_block_hash_to_block._cache
        listed = {(key, block.block_id) for key, found in index.items() for block in self.blocks_of(found)}
        fields = {(block.block_hash, block.block_id) for block in pool.blocks if block.block_hash is not None}
        if self.engine.is_new and pool.cached_block_hashes_by_block:
            raise LawError("KEY-1", f"blocks with several keys: {sorted(pool.cached_block_hashes_by_block)}")
        if listed != fields:
            raise LawError("KEY-1", f"the index lists {len(listed - fields)} that no block says, and lacks others")

    def listen(self) -> None:
        self.mirror.listen(self.manager)

    @staticmethod
    def blocks_of(found: Any) -> Iterable[Any]:
        return found.values() if isinstance(found, dict) else (found,)

    def engine_would(self, state: State, action: Any) -> bool:
        return scheduled(state, action, lambda prefix: asked(self, prefix).length)

    def law_of(self, error: Exception) -> str:
        return "PLAN-1" if "free blocks from the pool" in str(error) else "REF-0"


def scheduled(state: State, action: Any, length_of: Callable[[Prefix], int]) -> bool:
    """Return whether the scheduler makes a call; `length_of` gives the length of the hit of a prefix.

    With recurrent layers whose states are cached it ends each chunk of a prompt where a block ends, and stops at the
    last such place before the end. A load ends whole, or with nothing where there was no hit; a request that is being
    loaded stays until then.
    """
    slot = getattr(action, "slot", None)
    request = None if slot is None else state.requests[slot]
    if isinstance(request, Running) and request.coming:
        ends = {request.coming} if request.written else {request.coming, 0}
        return kind_of(action) == "FinishLoad" and action.arguments[1] in ends
    sizes = [each.block_size for each in state.config.groups if isinstance(each.kind, Mamba)]
    if not sizes or not state.config.caching or not isinstance(action, Admit | Grow | SyncLoad):
        return True
    if isinstance(request, Running):
        prefix, begin = request.prefix, request.computed
    else:
        assert not isinstance(action, Grow)
        prefix = action.prefix
        begin = 0 if isinstance(action, Admit) and not action.asked else length_of(prefix)
        begin += action.step.external
    return all(is_split(size, begin, begin + action.step.new, len(prefix[1])) for size in sizes)


def is_split(size: int, begin: int, end: int, known: int) -> bool:
    """Return whether the scheduler makes a chunk of a request of so many known tokens, for a recurrent layer."""
    if begin >= known - 1:
        return True
    last = (known - 1) // size * size
    is_aligned = end % size == 0 or end >= known
    return is_aligned and not begin < last < end and (begin % size == 0 or end <= (begin // size + 1) * size)
