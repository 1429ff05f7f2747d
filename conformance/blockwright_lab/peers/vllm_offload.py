"""Adapter of vLLM's offloading managers: 0.33.0's (LRU and ARC) and 0.11.0's (LRU).

Both run unmodified from the published packages' Python files. A view gives a manager the names of our tiers, so that
the explorer of tiers drives it: it translates keys, makes the requests in whose name 0.33.0 is called, and reads
statuses and counts from the manager's own fields, which it has no calls for.

In 0.33.0 each call names a request, and a request that ends renews the use of all that it named. Two engines are
modelled: `ALONE`, whose calls share nothing (each has a new request that never ends), where only storing and `touch`
count as use, as in the specification; and `SERVED`, in which each call is all that a request does, its keys have
positions, and it ends. In the second the order of use is the engine's own, so victims are only judged legal.
"""

import copy
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Self
from unittest.mock import patch

from benchmarks.peers import vllm as vllm_peer
from benchmarks.peers import vllm_offload as vllm_offload_peer
from benchmarks.published import Published
from blockwright_conformance.offload.tier_adapter import TierUnderTest
from blockwright_spec.offload.tier_calls import TierReason
from blockwright_spec.offload.tier_state import Key

from .following import LawError

PUBLISHED = replace(
    vllm_peer.PUBLISHED,
    witness="vllm/v1/kv_offload/cpu/manager.py",
    prefix="vllm.v1.kv_offload.cpu",
    modules=frozenset(
        "vllm.utils vllm.utils.math_utils vllm.v1.kv_offload vllm.v1.kv_offload.base vllm.v1.kv_offload.config "
        "vllm.v1.metrics.cache_hit_source".split()
    ),
    foreign=frozenset({"torch"} if importlib.util.find_spec("numpy") else {"numpy", "torch"}),
)
"""The newest release, and which of its modules are executed."""


class Engine(Enum):
    """Who calls: see the module."""

    ALONE = "each call by itself"
    SERVED = "each call is a whole request"


@dataclass(frozen=True, slots=True)
class Offload:
    """A release's modules, executed: manager, base and policies."""

    published: Published
    modules: dict[str, ModuleType]

    def manager(self, policy: str, capacity: int) -> Any:
        with patch.dict(sys.modules, self.modules):  # it imports its policy when it is made
            if self.published is not PUBLISHED:
                backend = self.modules["vllm.v1.kv_offload.backends.cpu"].CPUBackend(16, capacity)
                return self.modules["vllm.v1.kv_offload.lru_manager"].LRUOffloadingManager(backend, enable_events=True)
            return self.modules["vllm.v1.kv_offload.cpu.manager"].CPUOffloadingManager(
                capacity, policy.lower(), enable_events=True
            )


def load(peer_path: Path, published: Published = PUBLISHED) -> Offload:
    """Load a release's manager from the folder that `fetch_peers` filled. Raises as `Published.load` does."""
    new = ("cpu.manager", "cpu.policies.lru", "cpu.policies.arc")
    names = new if published is PUBLISHED else ("lru_manager", "backends.cpu")

    def loaded() -> dict[str, ModuleType]:
        for name in names:
            importlib.import_module(f"vllm.v1.kv_offload.{name}")
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}

    return Offload(published, published.load(peer_path, loaded))


OLD = vllm_offload_peer.PUBLISHED


# --- views: a manager under the names of our tiers


class Places(NamedTuple):
    """The state of a manager's places."""

    freed: list[int]  # those that were given back
    num_free: int
    capacity: int


class View:
    """What both managers have in common: how they are asked, and what their answers are called here."""

    place: ClassVar[str]
    """The field of a block's status that names its place."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def copy(self) -> Self:
        new = copy.copy(self)
        new.manager = copy.deepcopy(self.manager)
        return new

    def blocks(self) -> dict[Key, Any]:
        """Return the statuses of the blocks present, the least recently used first where there is one order."""
        raise NotImplementedError

    def places(self) -> Places:
        raise NotImplementedError

    def ask(self, name: str, keys: Sequence[Key], *more: Any) -> Any:
        raise NotImplementedError

    @property
    def num_free(self) -> int:
        return int(self.places().num_free)

    def touch(self, keys: Sequence[Key]) -> None:
        self.ask("touch", keys)

    def prepare_load(self, keys: Sequence[Key]) -> Any:
        return self.ask("prepare_load", keys)

    def complete_load(self, keys: Sequence[Key], success: bool) -> None:
        assert success, "no scope asks for a load that fails"
        self.ask("complete_load", keys)

    def complete_store(self, keys: Sequence[Key], success: bool) -> None:
        self.ask("complete_store", keys, success)

    def recency(self) -> list[Key]:
        return list(self.blocks())

    def status_of(self, key: Key) -> int | None:
        status = self.blocks().get(key)
        return None if status is None else int(status.ref_cnt)

    def idle_blocks(self, count: int) -> list[Key]:
        return [key for key, status in self.blocks().items() if status.ref_cnt == 0][:count]

    def places_of(self, keys: Iterable[Key]) -> Any:
        blocks = self.blocks()
        return SimpleNamespace(block_ids=[self.place_of(blocks[key]) for key in keys])

    def check(self) -> None:
        freed, num_free, capacity = self.places()
        used = [*(self.place_of(status) for status in self.blocks().values()), *freed]
        fresh = num_free - len(freed)
        if len(used) != len(set(used)) or len(used) + fresh != capacity:
            raise LawError("TIER-2", f"{capacity} places: in use or freed {sorted(used)}, never used {fresh}")

    def place_of(self, status: Any) -> int:
        return int(getattr(status, self.place))


def reported(output: Any, keys: Sequence[Key], evicted: Sequence[Key]) -> Any:
    spec = SimpleNamespace(block_ids=[int(place) for place in output.store_spec.block_ids])
    return SimpleNamespace(block_hashes_to_store=keys, block_hashes_evicted=evicted, store_spec=spec)


class NewView(View):
    """The manager of 0.33.0."""

    place = "chunk_id"

    def __init__(self, manager: Any, base: Any, engine: Engine) -> None:
        super().__init__(manager)
        self.base, self.engine = base, engine

    def named(self, keys: Iterable[Key]) -> list[Any]:
        return [self.base.make_offload_key(key, 0) for key in keys]

    def unnamed(self, keys: Iterable[Any]) -> list[Key]:
        return [self.base.get_offload_block_hash(key) for key in keys]

    def request(self, keys: Sequence[Any]) -> Any:
        context = self.base.ReqContext("request")
        if self.engine is Engine.SERVED:
            for at, key in enumerate(dict.fromkeys(keys)):
                context.set_offload_key_position(key, (at + 1) * 16)
            self.manager.on_new_request(context)
        return context

    def ask(self, name: str, keys: Sequence[Key], *more: Any) -> Any:
        named = self.named(keys)
        context = self.request(named)
        answer = getattr(self.manager, name)(named, context, *more)
        if self.engine is Engine.SERVED:
            self.manager.on_request_finished(context)
        return answer

    def lookup(self, keys: Sequence[Key]) -> int:
        results = [self.manager.lookup(key, self.base.ReqContext("lookup")).name for key in self.named(keys)]
        return next((at for at, result in enumerate(results) if result != "HIT"), len(results))

    def prepare_store(self, keys: Sequence[Key]) -> Any:
        output = self.ask("prepare_store", keys)
        if output is None:
            return None
        return reported(output, self.unnamed(output.keys_to_store), self.unnamed(output.evicted_keys))

    def take_events(self) -> Iterator[Any]:
        for event in self.manager.take_events():
            if not event.metadata_only:
                yield SimpleNamespace(block_hashes=self.unnamed(event.keys), removed=event.removed)

    def policy_blocks(self) -> dict[Any, Any]:
        policy = self.manager._policy
        if hasattr(policy, "chunks"):
            return {key: policy.chunks[key] for key in sorted(policy.chunks, key=policy._ranks.__getitem__)}
        return {**policy.t1, **policy.t2}

    def blocks(self) -> dict[Key, Any]:
        return {self.base.get_offload_block_hash(key): status for key, status in self.policy_blocks().items()}

    def places(self) -> Places:
        manager = self.manager
        return Places(list(manager._free_list), manager._get_num_free_chunks(), manager._num_chunks)

    def check(self) -> None:
        super().check()
        counts = [status.ref_cnt for status in self.policy_blocks().values()]
        kept = (self.manager._num_evictable_cache_chunks, self.manager._num_write_pending_chunks)
        if kept != (wanted := (counts.count(0), counts.count(-1))):
            raise LawError("TIER-3", f"idle and pending chunks: expected {wanted}, kept {kept}")
        policy = self.manager._policy
        if hasattr(policy, "chunks"):
            idle = {key for key, status in policy.chunks.items() if status.ref_cnt == 0}
            current = {entry[1] for entry in policy._heap if policy._is_current(entry)}
            if not idle == policy._evictable == current:
                raise LawError("TIER-3", f"idle: {idle}, evictable: {policy._evictable}, in the heap: {current}")
        elif overlap := [
            *(policy.t1.keys() & policy.t2.keys()),
            *((policy.t1 | policy.t2).keys() & (policy.b1 | policy.b2)),
        ]:
            raise LawError("TIER-4", f"{overlap} in two of its lists")

    def policy_state(self) -> object:
        policy = self.manager._policy
        if hasattr(policy, "chunks"):
            return [self.base.get_offload_block_hash(key) for key in self.policy_blocks()]
        return [*([*map(bytes, each)] for each in (policy.t1, policy.t2, policy.b1, policy.b2)), policy.target_t1_size]


class OldView(View):
    """The manager of 0.11.0."""

    place = "block_id"

    def ask(self, name: str, keys: Sequence[Key], *more: Any) -> Any:
        return getattr(self.manager, name)(keys, *more)

    def lookup(self, keys: Sequence[Key]) -> int:
        return int(self.manager.lookup(keys))

    def prepare_store(self, keys: Sequence[Key]) -> Any:
        output = self.manager.prepare_store(keys)
        return None if output is None else reported(output, output.block_hashes_to_store, output.block_hashes_evicted)

    def take_events(self) -> Iterator[Any]:
        yield from self.manager.take_events()

    def blocks(self) -> dict[Key, Any]:
        return dict(self.manager.blocks)

    def places(self) -> Places:
        backend = self.manager.backend
        return Places(list(backend.allocated_blocks_free_list), backend.get_num_free_blocks(), backend.num_blocks)


class VllmTier(TierUnderTest):
    """One of the managers as a tier under test; made by `tier_class` for a release that is loaded."""

    offload: ClassVar[Offload]
    errors: ClassVar[dict[TierReason, type[Exception]]] = {
        reason: AssertionError for reason in TierReason if reason is not TierReason.NO_ROOM
    }

    def __init__(self, name: str, capacity: int, recovered: Sequence[Key] = ()) -> None:
        policy, _, engine = name.partition(" ")
        self.made, self.log, self.silent, self.foreign = (name, capacity, recovered), [], False, False
        self.ordered = policy == "LRU" and engine in ("", "requests strict")
        manager = self.offload.manager(policy, capacity)
        if self.offload.published is PUBLISHED:
            base = self.offload.modules["vllm.v1.kv_offload.base"]
            self.manager: Any = NewView(manager, base, Engine.SERVED if engine else Engine.ALONE)
        else:
            self.manager = OldView(manager)

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return super().call(name, *arguments)
        except KeyError as error:
            raise AssertionError(f"no such key: {error}") from error


def tier_class(offload: Offload) -> type[VllmTier]:
    return type("Tier", (VllmTier,), {"offload": offload})
